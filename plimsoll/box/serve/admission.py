"""Whether a model may start now: against memory as it is, what others have announced, and every line. Pure.

It refuses or it admits; it never warns and goes on. A start that would end below a line takes others with it: the
kernel then kills whoever scores worst, and that was an editor, not the model.
"""

from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Sample
from plimsoll.box.serve.model import Admission, Admitted, Needed, Refused, Situation

FEW_32MIB_BLOCKS = 200
"""Two GB10 had 1417 and 782 of them after a fresh boot, and none after a week; a load then failed with 8.7 GiB free."""
BLOCKS_SHARE = 16
"""A small load needs fewer: this part of its size."""
_KIB_PER_BLOCK = 32 << 10
MAX_NAMED = 5


def admit(name: str, needed: Needed, steady_line_kib: int | None, now: Situation, own_workload: str = "") -> Admission:
    """Return whether a model may start.

    `steady_line_kib` is its own line, None where the guard's slow one holds; `own_workload` is what its reservation
    calls it by, which is then not counted as another's.
    """
    refused = _other_than_memory(name, needed, now) or _ladder(steady_line_kib, now.lines, now.backstop_kib)
    if refused is not None:
        return refused
    if now.available_kib is None:
        return Refused(None, f"it is not known how much memory is available{_because(now)}",
                       what_to_do="see plimsoll status; without that figure nothing can be admitted")  # fmt: skip
    announced_kib = _announced_kib(now, own_workload)
    free_kib = now.available_kib - announced_kib
    # its steady state stays where the guard's episode ends, so that one dip does not put it on the list
    line_kib = now.lines.slow_leave_kib if steady_line_kib is None else steady_line_kib
    lowest_kib = max(now.lines.floor_kib, now.backstop_kib or 0)
    short_kib = max(needed.steady_kib + line_kib, needed.peak_kib + lowest_kib) - free_kib
    if short_kib > 0:
        return _short(short_kib, needed, (free_kib, announced_kib), (line_kib, lowest_kib), now)
    steady_kib = now.lines.slow_enter_kib if steady_line_kib is None else steady_line_kib
    start_kib = max(lowest_kib + 1, min(steady_kib, free_kib - needed.peak_kib))
    return Admitted(free_kib - needed.steady_kib, min(start_kib, steady_kib), steady_kib, tuple(_notes(needed, now)))


def _other_than_memory(name: str, needed: Needed, now: Situation) -> Refused | None:
    """Return what stands against a start whatever is free."""
    if needed.never:
        return Refused(None, f"{name} cannot start: {needed.never}", what_to_do="see plimsoll fit")
    busy = next((each for each in now.running if each.name == name), None)
    if busy is not None:
        return Refused(None, f"{name} is there already: {busy.phase}", what_to_do=f"plimsoll serve status {name}")
    between = next((each for each in now.running if each.phase in ("starting", "stopping")), None)
    if between is not None:
        what = f"{between.name} is {between.phase}: until that is over nobody knows what will be free"
        return Refused(None, what, what_to_do=f"wait for it; plimsoll serve status {between.name}")
    if now.port_taken:
        return Refused(None, "its port is taken: something else answers there", what_to_do="see who: ss -ltnp")
    if now.port_taken is None:
        return Refused(None, "whether its port is free cannot be told: /proc/net/tcp cannot be read")
    return None


def _ladder(steady_line_kib: int | None, lines: Lines, backstop_kib: int | None) -> Refused | None:
    """Return why a model's own line does not fit between the others; no memory mends that."""
    if steady_line_kib is None:
        return None
    steady = f"need.steady_gib ({_gib(steady_line_kib)}) must lie"
    why = None
    if steady_line_kib <= lines.floor_kib:
        why = f"{steady} above the guard's floor ({_gib(lines.floor_kib)})"
    elif steady_line_kib > lines.slow_enter_kib:
        why = f"{steady} at or below the guard's slow line ({_gib(lines.slow_enter_kib)})"
    elif backstop_kib is not None and steady_line_kib <= backstop_kib:
        why = f"{steady} above {_gib(backstop_kib)}, where earlyoom acts"
    return None if why is None else Refused(None, why, what_to_do="change one of the two lines")


def _announced_kib(now: Situation, own_workload: str) -> int:
    sample = Sample(now.at_s, now.available_kib)
    others = (each for each in now.reservations if each.workload != own_workload)
    return sum(each.remaining_kib(sample) for each in others)


def _short(short_kib: int, needed: Needed, free: tuple[int, int], lines: tuple[int, int], now: Situation) -> Refused:
    free_kib, announced_kib = free
    line_kib, lowest_kib = lines
    beside = (
        f" (of {_gib(now.available_kib or 0)}; others have announced {_gib(announced_kib)})" if announced_kib else ""
    )
    if needed.steady_kib + line_kib >= needed.peak_kib + lowest_kib:
        wants = f"it keeps {_gib(needed.steady_kib)}, and {_gib(line_kib)} have to stay available"
    else:
        wants = f"its start takes up to {_gib(needed.peak_kib)}, and {_gib(lowest_kib)} have to stay available"
    least = "" if needed.exact else " at least"
    why = f"{_gib(short_kib)}{least} are missing: {wants}; available are {_gib(free_kib)}{beside}, regime {now.regime}"
    releasable_kib = min(short_kib, now.pool_kib or 0)
    return Refused(
        short_kib, f"{why} (need: {needed.basis})", now.holders[:MAX_NAMED], releasable_kib,
        _what_to_do(short_kib, needed, releasable_kib, now),
    )  # fmt: skip


def _what_to_do(short_kib: int, needed: Needed, releasable_kib: int, now: Situation) -> str:
    if needed.steady_kib + now.lines.floor_kib > now.mem_total_kib:
        return f"it never fits: the whole box has {_gib(now.mem_total_kib)}"
    if releasable_kib >= short_kib:
        return "the driver keeps as much pooled: it comes back when the pool is emptied"
    models = [each.name for each in now.running]
    if models:
        return f"stop what is in the way: plimsoll serve stop {models[0]}"
    return "stop what holds it, or make the model smaller: plimsoll fit says with which flags"


def _notes(needed: Needed, now: Situation) -> list[str]:
    notes = list(needed.notes)
    if not needed.exact:
        notes.insert(0, f"what it needs is not known, only {needed.basis} ({_gib(needed.steady_kib)})")
    if now.free_32mib_blocks is None or now.free_2mib_blocks is None:
        notes.append("how many contiguous blocks are free cannot be told: /proc/buddyinfo does not say")
    elif now.free_32mib_blocks < min(FEW_32MIB_BLOCKS, needed.peak_kib // _KIB_PER_BLOCK // BLOCKS_SHARE):
        notes.append(
            f"memory is in pieces: {now.free_32mib_blocks} free blocks of 32 MiB, {now.free_2mib_blocks} of 2 MiB; "
            "a load is slow then, and was seen to fail. A reboot mends it for certain"
        )
    return [*notes, *(f"not looked at: {each}" for each in now.problems)]


def _because(now: Situation) -> str:
    return f" ({'; '.join(now.problems)})" if now.problems else ""


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"
