"""Why this victim: the kernel's own arithmetic, from the table that it printed. Pure.

Points of a task are its resident pages, swap entries and page tables, plus oom_score_adj thousandths of all memory:
a host's RAM and swap, or a cgroup's limit (mm/oom_kill.c, oom_badness, the same since 4.17; before, root had 3 % off).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.box.incident.meminfo import KEPT_TASKS
from plimsoll.box.incident.model import MemoryReport, OomKill, Task

UNKILLABLE = -1000
USER_DEFAULT_ADJ = (100, 200, 300)
"""What systemd's user manager gives itself, what it starts, and what editors and browsers give their own children."""


@dataclass(frozen=True)
class Ranked:
    """A task with its points, in pages."""

    task: Task
    base: int
    points: int


@dataclass(frozen=True)
class Why:
    """Why this victim, in words, and the arithmetic."""

    total_pages: int
    page_kib: int
    victim: Ranked
    next: Ranked | None
    rank: int
    """1 for the task with the most points."""
    lines: tuple[str, ...]


def total_pages(memory: MemoryReport | None, scope: str | None) -> int | None:
    """Return the pages that an oom_score_adj of 1000 stands for; None where the dump does not show them."""
    if memory is None:
        return None
    if scope == "memcg":
        return (
            None if memory.limit_kib is None else (memory.limit_kib + (memory.swap_limit_kib or 0)) // memory.page_kib
        )
    if memory.total_kib is None:
        return None
    return (memory.total_kib + (memory.swap_total_kib or 0)) // memory.page_kib


def ranked(tasks: Sequence[Task], total: int, least: int | None = None, *, spares_root: bool = False) -> list[Ranked]:
    """Return the tasks that could be chosen, the one with the most points first; the first of equals stays first.

    `least` is what nobody is below: 1 in kernels that print a score. `spares_root`: before 4.17 root had 3 % off.
    """
    found = []
    for task in tasks:
        base = task.rss + task.swap + task.pgtables
        if task.oom_score_adj != UNKILLABLE:
            base -= base * 3 // 100 if spares_root and task.uid == 0 else 0
            # C truncates towards zero: the kernel divides total by 1000 first
            points = base + task.oom_score_adj * (total // 1000)
            found.append(Ranked(task, base, points if least is None else max(points, least)))
    return sorted(found, key=lambda r: -r.points)


def worth_keeping(tasks: Sequence[Task], total: int | None, pid: int | None) -> tuple[Task, ...]:
    """Return the rows with the most points, or, without a total, the largest; the victim's is among them."""
    ordered = [r.task for r in ranked(tasks, total)] if total else sorted(tasks, key=lambda t: -(t.rss + t.swap))
    top = ordered[:KEPT_TASKS]
    return (*top, *[task for task in ordered[KEPT_TASKS:] if task.pid == pid][:1])


def why(kill: OomKill) -> Why | None:
    """Return why the victim was chosen; None where the record has no table, no totals or not the victim's row."""
    total = total_pages(kill.memory, kill.scope)
    if kill.memory is None or total is None or kill.victim is None:
        return None
    # newer kernels print no score
    is_old = kill.victim.score is not None
    orders = [ranked(kill.tasks, total, 1, spares_root=spares) for spares in (False, True)] if is_old else []
    orders = orders or [ranked(kill.tasks, total)]
    ranks = [next((n for n, r in enumerate(each, 1) if r.task.pid == kill.victim.pid), None) for each in orders]
    # whether root was spared is not told, but the victim was the first
    rank, order = min(((n, each) for n, each in zip(ranks, orders, strict=True) if n), default=(None, []), key=_first)
    if rank is None:
        return None
    chosen = order[rank - 1]
    following = next((r for r in order if r.task.pid != chosen.task.pid), None)
    lines = (_arithmetic(chosen, total, kill), *_alternatives(chosen, following, rank, total, kill))
    return Why(total, kill.memory.page_kib, chosen, following, rank, lines)


def gib(pages: float, page_kib: int = 4) -> str:
    """Return pages as GiB, or MiB below one."""
    kib = pages * page_kib
    return f"{kib / (1 << 20):.1f} GiB" if abs(kib) >= 1 << 20 else f"{kib / 1024:.0f} MiB"


def _first(found: tuple[int, list[Ranked]]) -> int:
    return found[0]


def _arithmetic(chosen: Ranked, total: int, kill: OomKill) -> str:
    task, page_kib = chosen.task, kill.memory.page_kib if kill.memory else 4
    parts = (
        f"rss {gib(task.rss, page_kib)} + swap {gib(task.swap, page_kib)} + page tables {gib(task.pgtables, page_kib)}"
    )
    share = gib(task.oom_score_adj * total / 1000, page_kib)
    adj = f"oom_score_adj {task.oom_score_adj} of {gib(total, page_kib)} = {share}"
    score = kill.victim.score if kill.victim else None
    told = "" if score is None else f"; the kernel says {score}"
    return (
        f"{task.comm} ({task.pid}): {parts}; {adj}: {chosen.points} points, "
        f"{1000 * chosen.points // max(1, total)} per mille of all memory that could be freed{told}"
    )


def _alternatives(chosen: Ranked, following: Ranked | None, rank: int, total: int, kill: OomKill) -> tuple[str, ...]:
    found = []
    if rank > 1:
        found.append(
            f"{rank - 1} in the table had more points: they were being killed already, or the kernel took a child or a "
            "sharer of the one with the most"
        )
    elif following is not None:
        needed = (following.points - chosen.base - 1) // max(1, total // 1000)
        name = f"{following.task.comm} ({following.task.pid})"
        if needed >= UNKILLABLE:
            found.append(
                f"with an oom_score_adj of {needed} or less, instead of {chosen.task.oom_score_adj}, "
                f"the kernel would have taken {name} with {following.points} points"
            )
        else:
            found.append(f"only an oom_score_adj of -1000 would have spared it: {name} is far behind")
        by_adj = chosen.base < following.base
        if by_adj:
            found.append(f"it was not the larger of the two: its oom_score_adj of {chosen.task.oom_score_adj} decided")
    return (*found, *inherited(chosen.task.oom_score_adj, kill.scope))


def inherited(adj: int | None, scope: str | None) -> tuple[str, ...]:
    """Return where a score comes from that a program hardly chose itself; nothing for another."""
    if adj not in USER_DEFAULT_ADJ or scope != "host":
        return ()
    why = (
        f"an oom_score_adj of {adj} is what a user's systemd manager or an editor hands down, not something that the "
        "program chose (DefaultOOMScoreAdjust= of the user manager)"
    )
    return (why,)
