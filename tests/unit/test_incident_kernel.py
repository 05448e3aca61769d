"""The driver's lines, hung tasks, lockups, crashes and boots, in old and new wordings."""

# ruff: noqa: E501  # log lines are as long as they are printed

import datetime
from typing import Any

import pytest

from plimsoll.box.incident import wording
from plimsoll.box.incident.model import Boot, DriverAllocFailure, Gap, HungTask, Lockup, Panic, Process, Xid
from tests.unit.incident_logs import HARD, HUNG, OWNER, SOFT, answer, events, findings, kern_log


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


# the driver


@pytest.mark.parametrize("number", [1336, 1338, 1359, 1393, 1])
@pytest.mark.parametrize("gpu", ["GPU0 ", ""])
def test_a_soft_line_is_told_by_its_function(number: int, gpu: str) -> None:
    """Whatever the line in the driver's source, and with or without a GPU's name, it is soft."""
    (found,) = events(_text(SOFT.format(number).replace("GPU0 ", gpu)))
    assert isinstance(found, DriverAllocFailure)
    assert (found.severity, found.function, found.error) == ("soft", "_memdescAllocInternal", "NV_ERR_NO_MEMORY")


@pytest.mark.parametrize(
    "line",
    [
        HARD,
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x(y) @ z.c:1",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from sysmemConstruct_IMPL(pMemory) @ system_mem.c:354",
        "NVRM: failed to allocate vmap() page descriptor table!",
    ],
)
def test_a_hard_line(line: str) -> None:
    """A request that failed is hard: another function, another file, an assertion."""
    (found,) = events(_text(line))
    assert isinstance(found, DriverAllocFailure)
    assert found.severity == "hard"


def test_a_companion_makes_it_hard() -> None:
    """The soft line just before a hard one is part of it; those long before are not."""
    (found,) = events(_text(SOFT.format(1), HARD))
    assert isinstance(found, DriverAllocFailure)
    assert (found.severity, found.count, found.companions) == ("hard", 2, ("_memdescAllocInternal",))
    # two lines, of one failure
    assert wording.describe(found).endswith("[2 lines]")
    apart = kern_log([SOFT.format(1)] * 200 + [HARD])
    first, second = events(apart)
    assert isinstance(first, DriverAllocFailure)
    assert isinstance(second, DriverAllocFailure)
    assert [(first.severity, first.count), (second.severity, second.count)] == [("soft", 199), ("hard", 2)]


def test_a_storm_is_one_event() -> None:
    """920 lines in a minute are one event that knows how many they were and when they ended."""
    found = answer(kern_log([SOFT.format(1336)] * 920))
    assert [(e["count"], e["lasted_s"]) for e in found["events"]] == [(920, 9.19)]
    assert found["class"] is None


def test_syslog_counts_repeats() -> None:
    """`message repeated N times` stands for so many, in either of its wordings."""
    base = "Sep 12 08:44:2{} gx10 kernel: {}"
    lines = [base.format(2, SOFT.format(1)), base.format(3, f"message repeated 5 times: [ {SOFT.format(1)}]")]
    (found,) = events(_text(*lines))
    assert found.count == 6
    (found,) = events(_text(lines[0], "Sep 12 08:44:24 gx10 last message repeated 7 times"))
    assert found.count == 8


XIDS: list[tuple[str, tuple[Any, ...]]] = [
    (
        "NVRM: Xid (PCI:0000:61:00): 119, pid=97, name=nvidia-smi, Timeout waiting for RPC",
        (119, "0000:61:00", 97, "nvidia-smi"),
    ),
    ("NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics SM", (13, "0000:38:00", None, None)),
    ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU-…", (79, "0000:01:00", None, None)),
    ("NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", (31, "0000:03:00", None, None)),
    ("NVRM: GPU0 Xid (PCI:000f:01:00): 154, GPU recovery action changed", (154, "000f:01:00", None, None)),
]


@pytest.mark.parametrize(("line", "expected"), XIDS)
def test_xids(line: str, expected: tuple[Any, ...]) -> None:
    """Number and device always, a process where there is one; a pid need not be a number."""
    (found,) = events(_text(line))
    assert isinstance(found, Xid)
    assert (found.code, found.device, found.pid, found.name) == expected


@pytest.mark.parametrize(("code", "label"), [(79, "E"), (119, "F"), (62, "F"), (13, None), (31, None), (43, None)])
def test_what_a_xid_stands_for(code: int, label: str | None) -> None:
    """A lost bus and a dead firmware are classes of their own; a program's fault on the GPU is no incident."""
    found = answer(f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, text\n")
    assert found["class"] == label
    assert found["events"][0]["severity"] == ("hard" if label else "soft")


def test_a_script_that_looks_for_driver_lines_is_no_driver() -> None:
    """The pattern in a watcher's source is no event."""
    assert events('journalctl -k --since "-6min" | grep "NVRM:.*Out of memory"\n') == []


# hung tasks


def test_a_hung_task_and_who_holds_the_lock() -> None:
    """The owner of what it waits for belongs to the event, in the wordings of 6.17 and of a shortened report."""
    for owner in (
        OWNER,
        "task jbd2/nvme0n1p2- blocked on an rw-semaphore likely owned by task VLLM::EngineCor (writer)",
    ):
        (found,) = events(_text(HUNG.format(122), owner))
        assert isinstance(found, HungTask)
        assert (found.task, found.seconds) == (Process(812, "jbd2/nvme0n1p2-"), 122)
        assert found.owner is not None
        assert (found.owner.comm, found.owner_mode, found.lock) == ("VLLM::EngineCor", "writer", "rw-semaphore")


def test_a_mutex_has_an_owner_too() -> None:
    """So it is for a mutex, whose owner has no mode."""
    line = "INFO: task a:b:5 is blocked on a mutex likely owned by task c d:7."
    (found,) = events(_text("INFO: task a:b:5 blocked for more than 122 seconds.", line))
    assert isinstance(found, HungTask)
    assert (found.task, found.owner, found.lock) == (Process(5, "a:b"), Process(7, "c d"), "mutex")


def test_the_owner_is_not_hung_because_it_is_shown() -> None:
    """The kernel prints the trace of who holds the lock behind its name; that is no second task that hangs."""
    lines = [
        "[  +0.001213] INFO: task a:5(T5) is blocked on a mutex likely owned by task (b):7(T7).",
        "[  +0.000011] task:(b)             state:D stack:0     pid:7     tgid:7     ppid:2    flags:0x00004002",
        "[  +0.000011]  io_schedule+0x46/0x70",
    ]
    (found,) = events(_text(*lines))
    assert isinstance(found, HungTask)
    assert (found.task, found.owner, found.frames) == (Process(5, "a"), Process(7, "(b)"), ())


@pytest.mark.parametrize(
    ("line", "task"),
    [
        ("INFO: task nvc:[driver]:5403 blocked for more than 120 seconds.", Process(5403, "nvc:[driver]")),
        ("task jfsmount:136986 blocked for more than 120 seconds.", Process(136986, "jfsmount")),
        ("INFO: task kworker/u8:1:33 blocked in I/O wait for more than 122 seconds.", Process(33, "kworker/u8:1")),
        (
            "task:python3.11      state:D stack:    0 pid:15277 ppid: 15257 flags:0x00000002",
            Process(15277, "python3.11"),
        ),
        ("task:a b             state:D stack:0     pid:15 tgid:15 ppid:1 flags:0x0000000d", Process(15, "a b")),
        ("nvc:[driver]    D ffff883f2cc43bd8     0  5403   5396 0x00000084", Process(5403, "nvc:[driver]")),
        ("jbd2/nvme0n1-8 D    0 736989      2 0x80000000", Process(736989, "jbd2/nvme0n1-8")),
    ],
)
def test_forms_of_a_hung_task(line: str, task: Process) -> None:
    """Names may hold colons and brackets; the number is behind the last one. Old and new headers of a state."""
    (found,) = events(_text(line))
    assert isinstance(found, HungTask)
    assert found.task == task


def test_frames_say_where_it_hangs() -> None:
    """The call trace belongs to the task before it; guesses of the unwinder do not."""
    lines = [
        HUNG.format(122),
        "      Tainted: P",
        " ? guess+0x1/0x2",
        " wait+0x77/0xe0 [jbd2 ae888ef92775c4ea4c63]",
        " uvm_ioctl+0x13e0/0x16f0 [nvidia_uvm]",
        " __x64_sys_ioctl+0x1/0x2",
    ]
    (found,) = events(_text(*lines))
    assert isinstance(found, HungTask)
    assert found.frames == ("wait [jbd2]", "uvm_ioctl [nvidia_uvm]", "__x64_sys_ioctl")


def test_repeats_of_one_hang_are_one_episode() -> None:
    """122, 245, 368 seconds of the same task are one event; another task is another."""
    stamp = "2026-09-12T13:{:02d}:00+00:00 gx10 kernel: {}"
    other = HUNG.replace("jbd2/nvme0n1p2-:812", "gnome-shell:4123")
    lines = [stamp.format(10 + 2 * n, HUNG.format(s)) for n, s in enumerate((122, 245, 368))]
    found = answer(_text(*lines, stamp.format(14, other.format(368))))
    assert [(e["task"]["comm"], e["seconds"], e["count"]) for e in found["events"]] == [
        ("jbd2/nvme0n1p2-", 368, 3), ("gnome-shell", 368, 1),
    ]  # fmt: skip


# lockups and crashes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
            ("soft", 18, 27, Process(2254956, "python3")),
        ),
        (
            "NMI watchdog: BUG: soft lockup - CPU#113 stuck for 22s! [kopald:854]",
            ("soft", 113, 22, Process(854, "kopald")),
        ),
        ("BUG: soft lockup - CPU#0 stuck for 67s! [a:b c:12]", ("soft", 0, 67, Process(12, "a:b c"))),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", ("hard", 3, None, None)),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 3", ("hard", 3, None, None)),
        ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", ("rcu", None, None, None)),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", ("rcu", None, None, None)),
        (
            "INFO: rcu_sched detected stalls on CPUs/tasks: { 3} (detected by 2, t=60002 jiffies)",
            ("rcu", None, None, None),
        ),
        ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... }", ("rcu", None, None, None)),
        ("BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 44s!", ("workqueue", None, 44, None)),
    ],
)
def test_lockups(line: str, expected: tuple[Any, ...]) -> None:
    """Soft, hard, RCU and workqueue, old and new."""
    (found,) = events(_text(line))
    assert isinstance(found, Lockup)
    assert (found.type, found.cpu, found.seconds, found.task) == expected


OOPS = (
    "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008",
    "Internal error: Oops: 0000000096000004 [#1]  SMP",
    "Modules linked in: a b c",
    "CPU: 7 UID: 0 PID: 3648 Comm: mlx tool Tainted: G           O        6.17.0-1032-nvidia #32-Ubuntu PREEMPT",
    "Hardware name: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36_0ACUM027 06/12/2026",
    "pc : pci_bus_read_config_dword+0x6c/0x118",
    "Call trace:",
    " pci_bus_read_config_dword+0x6c/0x118 (P)",
    " some_ioctl+0xc0/0x178 [{}]",
    "---[ end trace 0000000000000000 ]---",
)


@pytest.mark.parametrize(
    ("module", "label"), [("mstflint_access", "E"), ("mlx5_core", "E"), ("nvidia", "F"), ("ext4", "F")]
)
def test_an_oops(module: str, label: str) -> None:
    """A crash is one event with its task, function and module; whose module it is decides the class."""
    source = findings(_text(*OOPS).format(module))
    (found,) = source.events
    assert isinstance(found, Panic)
    assert (found.fatal, found.deliberate) == (False, False)
    assert (found.task, found.function, found.module) == (
        Process(3648, "mlx tool"),
        "pci_bus_read_config_dword",
        module,
    )
    assert source.platform["kernel"] == "6.17.0-1032-nvidia"
    assert source.platform["hardware"].startswith("NVIDIA NVIDIA_DGX_Spark/P4242")
    assert answer(_text(*OOPS).format(module))["class"] == label


def test_a_panic_after_an_oops_is_the_same_crash() -> None:
    """The kernel gives up because of what it has just reported."""
    (found,) = events(_text(*OOPS[:9], "Kernel panic - not syncing: Oops: Fatal exception").format("x"))
    assert isinstance(found, Panic)
    assert found.fatal
    assert found.reason.startswith("Unable to handle")


@pytest.mark.parametrize(
    "lines",
    [
        ("sysrq: Trigger a crash", "Kernel panic - not syncing: sysrq triggered crash"),
        ("sysrq: SysRq : Trigger a crash", "BUG: unable to handle kernel NULL pointer dereference at (null)"),
        (
            "BUG: unable to handle kernel NULL pointer dereference at (null)",
            "IP: [<ffff16>] sysrq_handle_crash+0x16/0x20",
        ),
        ("lkdtm: Performing direct entry PANIC", "Kernel panic - not syncing: dumptest"),
    ],
)
def test_a_crash_on_demand_is_no_incident(lines: tuple[str, ...]) -> None:
    """A crash that somebody asked for is an event, and no class comes of it."""
    found = answer(_text(*lines))
    assert [(e["kind"], e["deliberate"]) for e in found["events"]] == [("panic", True)]
    assert found["class"] is None


def test_a_panic_for_hung_tasks_is_the_livelocks_end() -> None:
    """hung_task_panic ends a livelock: its panic is evidence of that, not of a fault of the kernel."""
    panic = "Kernel panic - not syncing: hung_task: blocked tasks"
    assert answer(kern_log([HUNG.format(122), " shrink_lruvec+0x1a/0x2b0", panic]))["class"] == "A"
    # a disk, a lock or a bug does that as well
    assert answer(kern_log([HUNG.format(122), " nfs_wait_bit_killable+0x1a/0x80", panic]))["class"] is None


# boots


def _boot(before: str, *, stop: str = "") -> dict[str, Any]:
    lines = [
        "2026-09-12T13:00:00+00:00 gx10 systemd[1]: Started something.",
        f"{before} gx10 kernel: [ 9000.000000] usb 1-2: something",
        *([f"{before} gx10 systemd[1]: {stop}"] if stop else []),
        "2026-09-12T14:00:00+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0-1032-nvidia (buildd@x) #32-Ubuntu",
        "2026-09-12T14:00:01+00:00 gx10 systemd[1]: Started something.",
    ]
    return answer(_text(*lines))


@pytest.mark.parametrize(
    ("before", "stop", "label", "clean"),
    [
        ("2026-09-12T13:58:00+00:00", "", "C", False),
        ("2026-09-12T13:15:00+00:00", "", "A", False),
        ("2026-09-12T13:58:00+00:00", "Reached target reboot.target - System Reboot.", None, True),
        ("2026-09-12T13:15:00+00:00", "Shutting down.", None, True),
    ],
)
def test_how_the_run_before_a_boot_ended(before: str, stop: str, label: str | None, clean: bool) -> None:
    """Two minutes without a word of a stop are a reset, 45 a freeze that somebody ended; an orderly stop is neither."""
    found = _boot(before, stop=stop)
    boot = next(event for event in found["events"] if event["kind"] == "boot")
    assert (boot["kernel"], boot["clean_stop"]) == ("6.17.0-1032-nvidia", clean)
    assert found["class"] == label
    assert [e["kind"] for e in found["events"]].count("gap") == int(not clean)


def test_a_kernel_log_does_not_tell_how_it_stopped() -> None:
    """kern.log has no word of an orderly stop either: a night between two boots is no freeze."""
    text = (
        "2026-09-12T18:00:00+00:00 gx10 kernel: [ 9000.000000] usb 1-2: something\n"
        "2026-09-13T08:00:00+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0 (x) #1\n"
    )
    found = answer(text)
    assert (found["class"], [(e["kind"], e["clean_stop"]) for e in found["events"]]) == (None, [("boot", None)])


def test_a_kernel_log_that_ends_in_distress() -> None:
    """Hung tasks, then nothing for 39 minutes, then a boot: that is a livelock that somebody ended."""
    text = (
        f"2026-09-12T13:00:00+00:00 gx10 kernel: [ 9000.000000] {HUNG.format(122)}\n"
        "2026-09-12T13:39:00+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0 (x) #1\n"
    )
    found = answer(text)
    assert (found["class"], [e["kind"] for e in found["events"]]) == ("A", ["hung_task", "gap", "boot"])
    assert found["events"][1]["seconds"] == 2340


LAST = """\
reboot   system boot  6.17.0-1032-nvid {} - {}  (00:46)
reboot   system boot  6.17.0-1032-nvid {} - {}  (2+03:00)
shutdown system down  6.17.0-1032-nvid {} - {}  (00:01)
reboot   system boot  6.17.0-1029-nvid {} - {}  (00:30)
alice    pts/0        192.0.2.5        Mon Sep 28 03:00 - crash  (00:39)

wtmp begins Sat Sep  5 07:00:00 2026
"""


@pytest.mark.parametrize("form", ["%a %b %d %H:%M", "%a %b %d %H:%M:%S %Y", "%Y-%m-%dT%H:%M:%S+00:00"])
def test_the_list_of_logins(form: str) -> None:
    """`last -x` tells of each boot but the oldest whether an orderly end stood before it."""
    times = [datetime.datetime(2026, 9, 28 - n, 3, 41, tzinfo=datetime.UTC).strftime(form) for n in range(8)]
    found = answer(LAST.format(*times))["events"]
    assert [(e["kind"], e["kernel"], e["clean_stop"]) for e in found] == [
        ("boot", "6.17.0-1029-nvid", None), ("boot", "6.17.0-1032-nvid", True), ("boot", "6.17.0-1032-nvid", False),
    ]  # fmt: skip
    assert [e["time"][:16] for e in found] == ["2026-09-22T03:41", "2026-09-26T03:41", "2026-09-28T03:41"]


def test_a_mark_of_journalctl() -> None:
    """The mark between two boots has no time of its own; the line after it has, and the kernel's version may follow."""
    lines = [
        "Sep 12 13:00:00 gx10 app[7]: tick",
        "-- Boot 0123456789abcdef0123456789abcdef --",
        "Sep 12 13:45:00 gx10 kernel: Linux version 6.17.0-1032-nvidia (x) #1",
        "Sep 12 13:45:01 gx10 app[7]: tick",
    ]
    found = events(_text(*lines))
    assert [(type(event), event.place.line) for event in found] == [(Gap, 2), (Boot, 2)]
    assert isinstance(found[0], Gap)
    assert isinstance(found[1], Boot)
    assert (found[0].seconds, found[1].kernel) == (2700, "6.17.0-1032-nvidia")


@pytest.mark.parametrize("dash", [" ", "—"])
def test_the_list_of_boots(dash: str) -> None:
    """`journalctl --list-boots`, of old and new systemd: a boot a row, and how long nothing was recorded between."""
    rows = [
        ("Sat 2026-09-26 15:42:17 CST", "Mon 2026-09-28 03:39:21 CST"),
        ("Mon 2026-09-28 03:41:22 CST", "Mon 2026-09-28 04:27:29 CST"),
    ]
    text = "".join(f"{n - 1:3d} {'a' * 31}{n} {first}{dash}{last}\n" for n, (first, last) in enumerate(rows))
    found = events(f"IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY\n{text}")
    assert [type(event) for event in found] == [Boot, Gap, Boot]
    assert isinstance(found[1], Gap)
    assert found[1].seconds == 121
