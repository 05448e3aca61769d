"""Further wordings: other kernels and architectures, other programs, tables as people write them."""

# ruff: noqa: E501  # log lines are as long as they are printed

import json
from typing import Any

import pytest

from plimsoll.box.incident.model import DriverAllocFailure, Gap, HungTask, Lockup, UserspaceKill
from plimsoll.box.incident.redact import Redactor
from tests.unit.incident_logs import SOFT, answer, events, findings, kern_log, report


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _notes(text: str, kind: str) -> list[dict[str, Any]]:
    return [note for note in answer(text)["notes"] if note["kind"] == kind]


# the kernel


def test_a_name_with_a_blank_in_a_lockup() -> None:
    """Old kernels put a blank before the number of the process."""
    (found,) = events("[1234.5] BUG: soft lockup - CPU#0 stuck for 61s! [nautilus-search: 4883]\n")
    assert isinstance(found, Lockup)
    assert found.task is not None
    assert (found.task.comm, found.task.pid, found.seconds) == ("nautilus-search", 4883, 61)


@pytest.mark.parametrize(
    "frames",
    [
        (
            "[<807762c0>] (__schedule) from [<80776938>] (schedule+0x50/0xa8)",
            "[<8014ac8c>] (io_schedule) from [<8021c4e4>] (__lock_page+0x100/0x128)",
        ),
        (" __schedule from schedule+0x50/0xa8", " io_schedule from __lock_page+0x100/0x128"),
    ],
)
def test_stacks_of_32_bit_arm(frames: tuple[str, str]) -> None:
    """Each line names a function and its caller."""
    (found,) = events(
        _text("[1.5] INFO: task kworker/u8:0:5 blocked for more than 120 seconds.", *(f"[1.6] {f}" for f in frames))
    )
    assert isinstance(found, HungTask)
    assert found.frames == ("__schedule", "io_schedule")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "pcieport 0002:00:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
            "pcie",
        ),
        ("pcieport 0002:00:00.0: AER: Uncorrected (Fatal) error received: 0002:01:00.0", "pcie"),
        (
            "pcieport 0002:00:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "pcie_corrected",
        ),
        (
            "mlx5_core 0002:01:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
            "network",
        ),
        (
            "mlx5_core 0002:01:00.1: wait_func:1155:(pid 984354): TEARDOWN_HCA(0x103) timeout. Will cause a leak of a command resource",
            "network",
        ),
    ],
)
def test_cards_and_their_links(line: str, kind: str) -> None:
    """An error that the link mended is none; the others, and a card that does not answer, are class E."""
    found = answer(_text(line))
    assert [note["kind"] for note in found["notes"]] == [kind]
    assert found["class"] == (None if kind == "pcie_corrected" else "E")
    assert [note["kind"] for note in answer(_text(f"Aug 26 02:11:09 gx10 app[7]: {line}"))["notes"]] == []


def test_calls_to_the_firmware_are_listed_once() -> None:
    """The table of calls that follows one without an answer says nothing more."""
    rows = [f"NVRM:     -{n}    103  GSP_RM_ALLOC          0x0000000000002081 0x4" for n in range(20)]
    text = _text("NVRM: GPU4 RPC history (CPU -> GSP):", *rows, "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out")
    assert [note["text"] for note in _notes(text, "driver_fault")] == [
        "the driver reports: _kgspRpcRecvPoll: GSP RM heartbeat timed out"
    ]


def test_a_method_that_failed() -> None:
    """What was called by a pointer has its name too."""
    (found,) = events(
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from pRmApi->AllocWithHandle(pRmApi, hClient) @ system_mem.c:412\n"
    )
    assert isinstance(found, DriverAllocFailure)
    assert (found.severity, found.function) == ("hard", "pRmApi->AllocWithHandle")


def test_a_report_that_breaks_off() -> None:
    """Nobody knows whether it came to a kill: it is not said that somebody was killed."""
    found = answer(kern_log(report()[:14]))
    assert (found["class"], found["confidence"]) == ("B", 0.4)
    assert "the record has no victim" in found["evidence"][0]["text"]


def test_a_single_line_of_a_report_says_nothing() -> None:
    """A figure without the others makes no note without words."""
    assert answer("[1.5] 242688 pages RAM\n")["notes"] == []


LONG = kern_log([f"noise number {n}" for n in range(1500)], start="2026-09-12T09:00:")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("INFO: task jbd2/sda1-8:161 blocked in I/O wait for more than 122 seconds.", "hung_task"),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "lockup"),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "lockup"),
        ("BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 31s!", "lockup"),
        ("Internal error: synchronous external abort: 0000000096000410 [#1] SMP", "panic"),
        ("invalid opcode: 0000 [#1] PREEMPT SMP NOPTI", "panic"),
        ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "panic"),
        ("kernel BUG at mm/slub.c:305!", "panic"),
        ("Kernel panic - not syncing: Fatal machine check", "panic"),
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", "xid"),
        (
            "Memory cgroup out of memory: Killed process 7 (x) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
            "oom_kill",
        ),
        ("Out of memory: Kill process 7 (x) score 9 or sacrifice child", "oom_kill"),
        ("oom_reaper: reaped process 7 (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB", "oom_kill"),
        ("Linux version 6.17.0-1032-nvidia (x) #32", "boot"),
    ],
)
def test_one_line_in_a_long_log(line: str, kind: str) -> None:
    """Of a log that is only searched, each kind of event is found by its own first line alone."""
    assert len(LONG) > 64 << 10
    found = events(LONG + kern_log([line], start="2026-09-12T13:00:") + LONG)
    assert [event.kind for event in found if event.kind != "gap"] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        'earlyoom[7]: sending SIGTERM to process 7378 uid 1000 "x": badness 1, VmRSS 2 MiB',
        "systemd-oomd[7]: Killed /system.slice/x.service due to memory pressure for /system.slice being 85.03% > 80.00% for > 2s with reclaim activity",
        "dockerd[7]: Container 9751845b0c1d failed to exit within 10 seconds of signal 15 - using the force",
        "plimsoll[7]: floor: term qwen: 3.0 GiB left",
    ],
)
def test_one_line_of_a_program_in_a_long_log(line: str) -> None:
    """Between thousands of lines of the kernel's a program's single one is found."""
    found = events(LONG + f"2026-09-12T13:00:10.000000+00:00 gx10 {line}\n".encode() + LONG)
    assert [event.kind for event in found] == ["userspace_kill"]


def test_a_stack_goes_on_with_no_line_before_it() -> None:
    """In an excerpt whose first line is its longest, the function that asked is still seen."""
    text = _text(
        "VLLM::Worker_TP invoked oom-killer: gfp_mask=0x80dc0(GFP_KERNEL|__GFP_ZERO)", " phys_mem_allocate+0x14c/0x230"
    )
    (event,) = answer(text)["events"]
    assert event["invoker"]["driver_frames"] == ["phys_mem_allocate"]


# programs


@pytest.mark.parametrize("first", [True, False])
def test_a_dry_run_stops_nobody(first: bool) -> None:
    """Whether it is said before or after, no signal was sent."""
    lines = [
        "dryrun, not actually sending any signal",
        'sending SIGTERM to process 7 uid 0 "x": badness 1, VmRSS 2 MiB',
    ]
    (found,) = events(_text(*(lines if first else lines[::-1])))
    assert isinstance(found, UserspaceKill)
    assert found.outcome == "failed"
    assert answer(_text(*lines))["class"] is None


def test_what_earlyoom_counts_in() -> None:
    """Since 1.8 a percentage is of what is left beside the driver: it is said what that comes to."""
    (note,) = _notes("mem total: 124546 MiB, user mem total: 6000 MiB, swap total: 16383 MiB\n", "moving_total")
    assert "5 % of it is 300 MiB" in note["text"]


LOW = "mem avail:    19 of   950 MiB ( 2.10%), swap free:  153 of 1023 MiB (14.96%)"


@pytest.mark.parametrize(
    ("after", "notes"),
    [
        ("low memory! at or below SIGTERM limits: mem 10.00%, swap 15.00%", 0),
        ('sending SIGTERM to process 696 uid 1001 "ipfs": badness 757, VmRSS 637 MiB', 0),
        ("mem avail:   900 of   950 MiB (94.70%), swap free: 1023 of 1023 MiB (100.00%)", 1),
        ("", 1),
    ],
)
def test_earlyoom_did_nothing_only_where_it_did_nothing(after: str, notes: int) -> None:
    """A report of little memory that an act follows is no sign of a killer that waits for swap."""
    assert len(_notes(_text(LOW, after), "low_and_idle")) == notes


def test_programs_without_a_stamp() -> None:
    """A program's name with its number begins a line of its own, which is not joined to the one before."""
    found = events(
        _text(
            "2026-07-16T03:12:00Z memwatch[812]: 4.9 GiB left: SIGKILL pid 4242 (VLLM::EngineCor)",
            "anti-oom[99]: 3.1% left, killing container vllm (SIGTERM)",
        )
    )
    assert [(each.killer, each.signal) for each in found if isinstance(each, UserspaceKill)] == [
        ("memwatch", "SIGKILL"),
        ("anti-oom", "SIGTERM"),
    ]


def test_containerds_own_stamps() -> None:
    """What stands in `time=` is the time of the line."""
    text = 'time="2026-09-01T10:00:10.123456789Z" level=info msg="Container failed to exit within 10s of signal 15 - using the force" container=9751845b0c1d\n'
    (event,) = answer(text)["events"]
    assert event["time"] == "2026-09-01T10:00:10.123457+00:00"
    assert event["victim"]["unit"] == "9751845b0c1d"


def test_why_systemd_oomd_failed() -> None:
    """What it had gone by, and why nothing came of it."""
    (found,) = events(
        "Mar 01 14:37:27 gx10 systemd-oomd[666]: Failed to kill any cgroups based on swap: Invalid argument\n"
    )
    assert isinstance(found, UserspaceKill)
    assert (found.outcome, found.reason) == ("failed", "based on swap: Invalid argument")


@pytest.mark.parametrize(("value", "said"), [(0, "proves nothing"), (32, "a restart by the watchdog")])
def test_what_a_watchdog_remembers(value: int, said: str) -> None:
    """A register that is 0 is no evidence that it was no hang."""
    found = answer(f"bootstatus={value}\n")
    assert said in found["notes"][0]["text"]
    assert found["class"] is None


# tables


def test_memory_in_use_that_rises() -> None:
    """Where only what is used was written down, its rise is the fall; how much was left is not made up."""
    (note,) = _notes("# t_s\tused_MB\n0\t114686\n3\t122131\n", "memory_fall")
    assert "memory in use rose from 112.00 to 119.27 GiB in 3 s" in note["text"]
    assert note["facts"]["to_gib"] is None


def test_used_of_a_total() -> None:
    """`124,258 / 124,546` says what was left."""
    table = [
        "| when | Used / total MiB |",
        "|---|---:|",
        "| 04:42:20 | 104,258 / 124,546 |",
        "| 04:42:22 | 124,258 / 124,546 |",
    ]
    (note,) = _notes(_text(*table), "memory_fall")
    assert note["facts"]["to_gib"] == pytest.approx(288 / 1024, abs=0.01)


@pytest.mark.parametrize(
    ("heading", "cell", "seconds"),
    [
        ("Telemetry gap", "7,196 s", 7196.0),
        ("minutes_dark", "10.6", 636.0),
        ("gap_s", "627", 627.0),
        ("outage_h", "2", 7200.0),
        ("unreachable", "45 min", 2700.0),
    ],
)
def test_gaps_in_other_units(heading: str, cell: str, seconds: float) -> None:
    """How long nothing was heard, in the unit of the figure or of the column."""
    (found,) = events(_text(f"wedge\t{heading}", f"1\t{cell}"))
    assert isinstance(found, Gap)
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["gap_before_GiB", "freeze_count", "samples_before_gap"])
def test_what_is_no_gap(name: str) -> None:
    """A size, a count, and what was before it are no durations."""
    assert events(_text(f"wedge\t{name}", "1\t7196")) == []


def test_peaks_whose_length_is_told() -> None:
    """Two minutes of waiting, as healthy boxes have them, are no freeze, however high the peak."""
    rows = ["# t\tpsi_full_avg10\tduration_s", "2000\t90.7\t120", "9000\t98.5\t120"]
    assert answer(_text(*rows))["class"] is None
    assert answer(_text(rows[0], rows[1], "9000\t98.5\t1200"))["class"] == "A"


# boots


def test_the_list_of_boots_as_json() -> None:
    """`journalctl --list-boots -o json` says the same as the table."""
    boots = [
        {"index": -1, "boot_id": "a" * 32, "first_entry": 1_790_436_137_000_000, "last_entry": 1_790_565_561_000_000}
    ]
    boots += [
        {"index": 0, "boot_id": "b" * 32, "first_entry": 1_790_568_082_000_000, "last_entry": 1_790_572_000_000_000}
    ]
    found = answer(json.dumps(boots, separators=(",", ":")) + "\n")
    assert [event["kind"] for event in found["events"]] == ["boot", "gap", "boot"]
    assert found["events"][1]["seconds"] == 2521.0
    assert "35 h 57 min after its first" in found["events"][1]["before"]


# who killed it


UNIT = (
    "Nov 01 10:00:01 gx10 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
    "Nov 01 10:00:01 gx10 systemd[1]: vllm.service: Failed with result 'oom-kill'.",
)


def test_what_a_manager_says_of_its_end() -> None:
    """Where the kernel's record is lost, what systemd says of the unit is the answer."""
    found = findings(_text(*UNIT))
    assert [note.facts["unit"] for note in found.notes] == ["vllm.service", "vllm.service"]


# redaction


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/kubepods-burstable-poda8697f49_441d_4d4f_90d2_6d8e1fa3bbe7.slice", "/kubepods-burstable-podid-1.slice"),
        (f"cpuset={'ab' * 31}c", "cpuset=id-1"),
        ("gx10-a.lab.example.com and gx10-a", "host-1 and host-2"),
        ("gx10-a.service", "host-1.service"),
        ("GPU-509665ad-b600-ac93-3616-d754b23d636d", "GPU-id-1"),
        ("session 3 of user alice.", "session 3 of user user-1"),
        ("container=9751845b0c1d", "container=id-1"),
    ],
)
def test_what_else_names_somebody(text: str, redacted: str) -> None:
    """Identifiers behind a prefix, of an odd length, and names with their domain."""
    assert Redactor(["gx10-a"]).text(text) == redacted


def test_soft_lines_of_a_healthy_box_are_no_incident() -> None:
    """Thousands of them over weeks are none."""
    days = [kern_log([SOFT.format(1359)] * 200, start=f"2026-09-{day:02d}T13:08:") for day in range(1, 22)]
    found = answer(b"".join(days))
    assert found["class"] is None
    assert sum(event["count"] for event in found["events"]) == 4200


def test_a_recording_below_many_comments() -> None:
    """Who keeps a recording for others says first where it comes from, in more than a line or two."""
    comments = "".join(f"# line {number} of what somebody has to say\n" for number in range(8))
    rows = "t,psi_full_avg10,free_GB,cuda_procs\n00:00:02,0.0,60.8,2\n00:02:03,19.3,3.8,23\n00:03:54,92.4,46.0,14\n"
    found = answer(comments + rows)
    assert found["class"] == "A"
    assert any("cuda_procs 2 to 23" in note["text"] for note in found["notes"])
