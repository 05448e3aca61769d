"""Reports of the OOM killer: whole, cut, old and new, and why the victim was the victim."""

# ruff: noqa: E501  # log lines are as long as they are printed

import textwrap
from typing import Any

import pytest

from plimsoll.box.incident import victim
from plimsoll.box.incident.model import Event, MemoryReport, OomKill, Victim
from tests.unit.incident_logs import HARD, HUNG, KILLED, REAPED, SOFT, SUMMARY, answer, events, kern_log, report


def _kill(text: str | bytes) -> OomKill:
    (found,) = events(text)
    assert isinstance(found, OomKill)
    return found


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_a_whole_report() -> None:
    """Invoker, victim, sizes, cgroups, memory and the table come from one report, which is one event."""
    kill = _kill(kern_log([*report(), REAPED]))
    assert kill.invoker is not None
    assert (kill.invoker.comm, kill.invoker.pid, kill.invoker.order) == ("dashboard-serv", 1701, 0)
    assert kill.victim == Victim(
        4242, "llama-server", 1000, 200, 131_072_000, 2_097_152, 1024, 0, 40_960
    )  # fmt: skip
    assert (kill.scope, kill.constraint, kill.memcg) == ("host", "CONSTRAINT_NONE", "/system.slice/llama.service")
    assert kill.reaped
    assert (kill.rows, kill.unkillable) == (4, 1)
    assert [task.comm for task in kill.tasks] == ["llama-server", "node (x) y", "dashboard-serv"]


def test_what_no_list_accounts_for() -> None:
    """The residual of all managed memory is what a driver holds: nearly all of it here."""
    memory = _kill(kern_log(report())).memory
    assert memory is not None
    assert memory.total_kib == (32_000_000 - 100_000) * 4
    assert memory.accounted_kib == 4 * 191_800 + 8_000
    assert memory.residual_kib == memory.total_kib - memory.accounted_kib
    assert memory.zone_below_min == "Normal: free 41000 kB, min 45000 kB"
    assert memory.all_unreclaimable
    assert (memory.swap_free_kib, memory.swap_total_kib) == (11_000_000, 16_000_000)


def test_a_figure_that_is_missing_is_not_zero() -> None:
    """Without the total, or without the lists, nothing is said of the residual."""
    assert MemoryReport(lists_kib={"free": 5, "active_anon": 1}).residual_kib is None
    assert MemoryReport(total_kib=100, lists_kib={"free": 5}).residual_kib is None
    assert MemoryReport(total_kib=100).accounted_kib is None


def test_why_this_victim() -> None:
    """The points are the kernel's: pages resident, swapped, in page tables, and the score's share of all memory."""
    why = victim.why(_kill(kern_log(report())))
    assert why is not None
    total = 31_900_000 + 4_000_000
    assert why.total_pages == total
    assert (why.victim.task.pid, why.rank) == (4242, 1)
    assert why.victim.base == 526_336 + 50_000 + 41_943_040 // 4096
    assert why.victim.points == why.victim.base + 200 * (total // 1000)
    assert why.next is not None
    assert (why.next.task.comm, why.next.points) == ("node (x) y", 600_000 + 1280)


def test_the_setting_that_would_have_spared_it() -> None:
    """The score named is the highest with which the next one has more points; one more, and it has not."""
    kill = _kill(kern_log(report()))
    text = answer(kern_log(report()))["events"][0]["why"]["text"]
    named = int(text[1].split("oom_score_adj of ")[1].split()[0])
    total = victim.total_pages(kill.memory, kill.scope)
    assert total is not None
    for adj, spared in ((named, True), (named + 1, False)):
        tasks = [task._replace(oom_score_adj=adj) if task.pid == 4242 else task for task in kill.tasks]
        assert (victim.ranked(tasks, total)[0].task.pid != 4242) is spared


def test_a_score_that_a_manager_hands_down_is_named() -> None:
    """200 is what the user's systemd gives; a score of 7 is somebody's own choice."""
    assert "DefaultOOMScoreAdjust" in str(answer(kern_log(report(200)))["events"][0]["why"])
    assert "DefaultOOMScoreAdjust" not in str(answer(kern_log(report(7, rss=900_000)))["events"][0]["why"])


@pytest.mark.parametrize("form", ["{}", "[ 1388.2627{n:02d}] {}", "<4>[ 1388.2627{n:02d}] {}", "> {}"])
def test_a_report_in_any_form(form: str) -> None:
    """The same comes out of a report without a prefix, from the ring buffer, from pstore, and quoted."""
    text = _text(*(form.format(line, n=n % 100) for n, line in enumerate(report())))
    whole = _kill(kern_log(report()))
    kill = _kill(text)
    assert (kill.victim, kill.scope, kill.memory, kill.tasks) == (whole.victim, whole.scope, whole.memory, whole.tasks)


OLD = (
    "python invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0",
    "python cpuset=/ mems_allowed=0",
    "CPU: 0 PID: 77 Comm: python Not tainted 3.10.0-514.el7.x86_64 #1",
    "Mem-Info:",
    "active_anon:405991 inactive_anon:57 isolated_anon:0",
    " free:12929 slab_reclaimable:1635 slab_unreclaimable:1919",
    "445340 pages RAM",
    "10614 pages reserved",
    "[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name",
    "[   77]  1020    77   410347   398810     788        0             0 python",
    "[   80]  1020    80     5000     2000       9        0             0 a child",
    "Out of memory: Kill process 77 (python) score 919 or sacrifice child",
    "Killed process {} total-vm:1641388kB, anon-rss:1595164kB, file-rss:76kB, shmem-rss:0kB",
)


def test_an_old_report() -> None:
    """Kernels before 5.3 say whom they mean and then whom they took, in two lines; the printed score is ours."""
    kill = _kill(_text(*OLD).format("77 (python)"))
    assert kill.victim is not None
    assert (kill.victim.pid, kill.victim.score, kill.scope) == (77, 919, "host")
    why = victim.why(kill)
    assert why is not None
    assert 1000 * why.victim.points // why.total_pages == 919


def test_an_old_kernel_takes_a_child() -> None:
    """The victim is the process that was killed, not the one whose score it was."""
    kill = _kill(_text(*OLD).format("80 (a child)"))
    assert kill.victim is not None
    assert (kill.victim.pid, kill.victim.comm, kill.victim.score) == (80, "a child", None)


def test_a_report_that_was_cut_off() -> None:
    """A reset in the middle of a report leaves an event without a victim."""
    kill = _kill(kern_log(report()[:12]))
    assert kill.victim is None
    assert kill.invoker is not None


def test_nobody_could_be_killed() -> None:
    """Where a cgroup had nobody left to kill there is no summary; the stack tells that it was a cgroup's limit."""
    lines = [*report()[:8], " mem_cgroup_out_of_memory+0x1/0x2", "Out of memory and no killable processes..."]
    kill = _kill(kern_log(lines))
    assert (kill.victim, kill.scope) == (None, "memcg")


LINES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((KILLED,), {"pid": 4242, "comm": "llama-server", "oom_score_adj": 200, "scope": "host"}),
    ((SUMMARY,), {"pid": 4242, "comm": "llama-server", "uid": 1000, "scope": "host"}),
    ((SUMMARY, KILLED), {"pid": 4242, "total_vm_kib": 131_072_000, "scope": "host"}),
    ((REAPED,), {"pid": 4242, "comm": "llama-server", "scope": None}),
    (("Killed process 9 (a b) total-vm:5kB, anon-rss:4kB, file-rss:3kB",), {"comm": "a b", "file_rss_kib": 3, "scope": None}),
    (("Killed process 9, UID 48, (httpd) total-vm:5kB",), {"pid": 9, "uid": 48, "comm": "httpd", "total_vm_kib": 5}),
    (("Out of memory: Killed process 9, UID 48, (httpd).",), {"uid": 48, "comm": "httpd", "scope": "host"}),
    (("Out of memory: Killed process 9 ((sd-pam)) total-vm:5kB",), {"comm": "(sd-pam)"}),
    (("Out of memory: Killed process 9 (kworker/0:2) total-vm:5kB",), {"comm": "kworker/0:2"}),
    (("Out of memory: Kill process 9 (python) score 50 or sacrifice child",), {"pid": 9, "score": 50, "scope": "host"}),
    (("Memory cgroup out of memory: Killed process 9 (x) total-vm:5kB, oom_score_adj:-997",), {"oom_score_adj": -997, "scope": "memcg"}),
    (("Out of memory (oom_kill_allocating_task): Killed process 9 (x) total-vm:5kB",), {"pid": 9, "scope": "host"}),
    (("oom-kill: task=VLLM::EngineCor, pid=9, total-vm:7kB (~305 GiB)",), {"comm": "VLLM::EngineCor", "total_vm_kib": 7}),
    (("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),",), {"scope": "memcg"}),
    (("oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=/a,task=a,b,pid=9,uid=0",), {"comm": "a,b", "scope": "cpuset"}),
    (("oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=0,task=x,pid=9,uid=0",), {"scope": "mempolicy"}),
    (("oom-kill:constraint=OTHER_CONSTRAINT",), {"scope": None, "constraint": "OTHER_CONSTRAINT"}),
    (
        ("x invoked oom-killer: gfp_mask=0x201da, order=0", "Task in /mem2 killed as a result of limit of /mem3",
         "Memory cgroup out of memory: Kill process 9 (x) score 1923 or sacrifice child", "Killed process 9 (x) total-vm:5kB"),
        {"scope": "memcg", "memcg": "/mem3", "task_memcg": "/mem2", "score": 1923},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), LINES, ids=[lines[-1][:50] for lines, _ in LINES])
def test_single_lines(lines: tuple[str, ...], expected: dict[str, Any]) -> None:
    """Every wording that a kernel has, or that somebody shortened, gives one event with what it says."""
    kill = _kill(_text(*lines))
    found = {
        **(vars(kill.victim) if kill.victim else {}),
        **{k: getattr(kill, k) for k in ("scope", "memcg", "task_memcg", "constraint")},
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    "report_lines",
    [
        report(order=-1),
        [*report()[:9], " moom_callback+0x60/0xb8", *report()[9:]],
        ["sysrq: Manual OOM execution", *report()],
    ],
    ids=["order", "stack", "request"],
)
def test_a_kill_on_demand_is_no_incident(report_lines: list[str]) -> None:
    """SysRq-f is told by its order, its stack or its announcement; it is an event, and no class comes of it."""
    found = answer(kern_log(report_lines))
    assert [event["scope"] for event in found["events"]] == ["sysrq"]
    assert found["class"] is None
    assert "SysRq-f" in found["not_incidents"][0]["text"]


def test_a_cgroups_limit_is_no_shortage_of_the_host() -> None:
    """A memcg kill is named with the cgroup whose limit it was, and no class comes of it."""
    line = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c.scope,mems_allowed=0,oom_memcg=/a/pod1,"
        "task_memcg=/a/pod1/c,task=node,pid=9,uid=0"
    )
    found = answer(f"{line}\n")
    assert found["class"] is None
    assert (found["events"][0]["memcg"], found["events"][0]["task_memcg"]) == ("/a/pod1", "/a/pod1/c")


def test_two_kills_of_one_container_are_two() -> None:
    """First at its own limit, hours later for want of the host's memory: only the second is an incident."""
    first = "2026-09-12T08:44:22+00:00 h kernel: Memory cgroup out of memory: Killed process 7 (agent) total-vm:5kB"
    second = "2026-09-12T17:38:00+00:00 h kernel: Out of memory: Killed process 8 (agent) total-vm:5kB"
    found = answer(f"{first}\n{second}\n")
    assert [event["scope"] for event in found["events"]] == ["memcg", "host"]
    assert (found["class"], found["incidents"][-1]["start"]) == ("B", "2026-09-12T17:38:00+00:00")


def test_a_whole_cgroup_goes() -> None:
    """With memory.oom.group each process is a kill of its own, and all are of that cgroup."""
    lines = [
        SUMMARY.replace("CONSTRAINT_NONE", "CONSTRAINT_MEMCG").replace("global_oom", "oom_memcg=/g"),
        KILLED.replace("Out", "Memory cgroup out"),
        "Tasks in /g are going to be killed due to memory.oom.group set",
        "Memory cgroup out of memory: Killed process 11 (a) total-vm:5kB",
        "Memory cgroup out of memory: Killed process 12 (b) total-vm:5kB",
    ]
    found = events(kern_log(lines))
    assert [(e.victim.pid, e.group, e.scope, e.memcg) for e in found if isinstance(e, OomKill) and e.victim] == [
        (4242, False, "memcg", "/g"), (11, True, "memcg", "/g"), (12, True, "memcg", "/g"),
    ]  # fmt: skip


def test_the_allocation_was_the_drivers() -> None:
    """Functions of the driver in the invoker's stack are named, with and without their module."""
    lines = [*report()[:5], " nv_alloc_pages+0x1c/0x90 [nvidia]", " phys_mem_allocate+0x14c/0x230", *report()[5:]]
    kill = _kill(kern_log(lines))
    assert kill.invoker is not None
    assert kill.invoker.driver_frames == ("nv_alloc_pages", "phys_mem_allocate")


def test_pages_of_64_kib() -> None:
    """An arm64 kernel with large pages is told by its free lists, and all figures follow."""
    lines = [line.replace("100*4kB (UME) 20*8kB", "100*64kB (UME) 20*128kB") for line in report()]
    memory = _kill(kern_log(lines)).memory
    assert memory is not None
    assert (memory.page_kib, memory.total_kib) == (64, 31_900_000 * 64)


def test_an_excerpt_of_the_figures() -> None:
    """Figures alone are no event; what they show is said, and that a total is missing."""
    text = "active_anon:28000 inactive_anon:1000 slab_unreclaimable:400000 free:150000 Free swap = 11000kB / 16000kB\n"
    found = answer(f"{text}Node 0 Normal free:41000kB min:44000kB ... all_unreclaimable\n")
    assert found["events"] == []
    note = found["notes"][0]
    assert note["facts"]["report"]["accounted_kib"] == 4 * 579_000
    assert note["facts"]["report"]["residual_kib"] is None
    assert "the total is not in this excerpt" in note["text"]
    assert "69 % of" in note["text"]


def test_what_an_application_says_is_no_kill() -> None:
    """A program that quotes the kernel, or a script that looks for its lines, is no evidence."""
    text = (
        f"Sep 12 08:44:22 gx10 kubelet[812]: {KILLED}\n"
        f'Sep 12 08:44:23 gx10 app[9]: saw "{HUNG.format(122)}"\n'
        'journalctl -k | grep "Out of memory: Killed process"\n'
    )
    assert events(text) == []


def test_lines_of_others_between_do_not_matter() -> None:
    """Other programs write into the same log while a report is printed."""
    lines = kern_log(report()).splitlines(keepends=True)
    noise = b"2026-09-12T13:08:10.500000+00:00 gx10 app[77]: Out of memory: Killed process 1 (init)\n"
    mixed = b"".join(part for line in lines for part in (line, noise))
    one, two = _kill(b"".join(lines)), _kill(mixed)
    assert (one.victim, one.memory, one.tasks) == (two.victim, two.memory, two.tasks)


def test_a_counter_is_no_evidence() -> None:
    """A counter since boot has no date: it is named as what it is, and nothing is concluded from it."""
    for text in ("vmstat_oom_kill=13\n", "oom_kill 13\n"):
        found = answer(text)
        assert (found["class"], found["events"]) == (None, [])
        assert "evidence of no incident" in found["not_incidents"][0]["text"]


def test_only_kinds_of_the_contract() -> None:
    """An event says its kind as other programs know it."""
    found: list[Event] = events(kern_log(report()))
    assert [event.kind for event in found] == ["oom_kill"]


WRAPPED = (SUMMARY, KILLED, SOFT.format(1336), HUNG.format(122), HARD, report()[0])
PREFIXES = ("", "Sep 12 08:44:22 gx10 kernel: [ 1388.262738] ", "[Sat Sep 12 08:44:22 2026] ", "    ")


@pytest.mark.parametrize("prefix", PREFIXES, ids=["none", "syslog", "dmesg", "indented"])
@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
@pytest.mark.parametrize("within_words", [True, False], ids=["terminal", "mail"])
def test_a_text_that_was_wrapped(prefix: str, width: int, within_words: bool) -> None:
    """A paste from a terminal, cut within words, or from a mail, cut at blanks, gives what the lines gave."""
    lines = [f"{prefix}{line}" for line in WRAPPED]
    cut = [_cut(line, width) if within_words else _wrapped(line, width) for line in lines]

    def facts(text: str) -> list[dict[str, Any]]:
        hidden = ("place", "raw")
        return [{key: value for key, value in vars(event).items() if key not in hidden} for event in events(text)]

    assert facts(_text(*(part for parts in cut for part in parts))) == facts(_text(*lines))


def _cut(line: str, width: int) -> list[str]:
    return [line[start : start + width] for start in range(0, len(line), width)]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def test_prose_around_an_excerpt_is_not_joined() -> None:
    """What somebody writes below a line that he shortened is not taken for its rest."""
    text = "Out of memory: Killed process 9 (x)\nand then nothing worked any more, score 5 of 10.\n\nbye\n"
    kill = _kill(text)
    assert kill.victim is not None
    assert (kill.victim.pid, kill.victim.score) == (9, None)
