"""What daemons say: earlyoom, systemd-oomd, Ray, dockerd, the guard; and recordings, facts and settings."""

# ruff: noqa: E501  # log lines are as long as they are printed

import json
from typing import Any

import pytest

from plimsoll.box.incident.model import Event, Gap, Target, UserspaceKill
from tests.unit.incident_logs import answer, events, findings

MIB = 1024


def _kill(text: str) -> UserspaceKill:
    (found,) = events(text)
    assert isinstance(found, UserspaceKill)
    return found


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


# earlyoom

SENT = 'Feb 20 10:59:34 gx10 earlyoom[812]: sending SIGTERM to process 7378 uid 1000 "llama-server": {}, VmRSS 4962 MiB'


@pytest.mark.parametrize("score", ["badness 156", "oom_score 818"])
def test_earlyoom_stops_a_process(score: str) -> None:
    """Whom, with which signal, how large it was and what became of it, in the wordings of 1.3 to 1.8."""
    kill = _kill(_text(SENT.format(score), "Feb 20 10:59:35 gx10 earlyoom[812]: process 7378 exited after 0.5 seconds"))
    assert kill.victim == Target(7378, "llama-server", 1000, None, 4962 * MIB, int(score.split()[1]))
    assert (kill.killer, kill.signal, kill.outcome, kill.took_s) == ("earlyoom", "SIGTERM", "exited", 0.5)


def test_earlyoom_escalates() -> None:
    """A second signal is the same kill, with another signal."""
    line = "Feb 20 10:59:37 gx10 earlyoom[812]: escalating to SIGKILL after 2.4 seconds"
    kill = _kill(_text(SENT.format("badness 1"), line))
    assert (kill.signal, kill.took_s, kill.victim.pid) == ("SIGKILL", 2.4, 7378)
    assert _kill("escalating to SIGKILL after 2.4 seconds\n").signal == "SIGKILL"


@pytest.mark.parametrize(
    "line", ["kill failed: Operation not permitted", "kill failed: Timer expired", "process 7378 did not exit"]
)
def test_earlyoom_fails(line: str) -> None:
    """A kill that was refused, or that nothing came of, is no kill: no class comes of it."""
    text = _text(SENT.format("badness 1"), f"Feb 20 10:59:34 gx10 earlyoom[812]: {line}")
    assert _kill(text).outcome == "failed"
    assert answer(text)["class"] is None


@pytest.mark.parametrize(
    ("line", "rss_mib"),
    [
        ('killing process 77 "tail x" with signal 15: badness 550, VmRSS 7 MiB', 7),
        ("Killing process 'tail x' with signal 15, pid: 77, badness: 538, VmRSS: 3 MiB", 3),
        ('sending SIGTERM to process 77 "tail x": badness 209, VmRSS 9 MiB', 9),
        ('sending SIGTERM to process 77 uid 5 "tail x": oom_score 11, oom_score_adj 0, VmRSS 9 MiB, cmdline "a"', 9),
        ('Jun 12 06:39:16: sending SIGTERM to process 77 uid 5 "tail x": badness 7, VmRSS 9 MiB', 9),
    ],
)
def test_wordings_of_earlyoom(line: str, rss_mib: int | None) -> None:
    """From 1.0 to 1.9, with and without a user, a score's name, a program's name in front."""
    kill = _kill(f"{line}\n")
    assert (kill.victim.pid, kill.victim.comm, kill.signal) == (77, "tail x", "SIGTERM")
    assert kill.victim.rss_kib == (None if rss_mib is None else rss_mib * MIB)


IDLE = "mem avail: {:5d} of 124546 MiB ({:5.2f}%), swap free: {} of 16383 MiB ({:.2f}%)"


@pytest.mark.parametrize(
    "prefix",
    [
        "17:21:21 earlyoom: ",
        "2026-09-17T06:48:20-0400 gx10 earlyoom[1523]: ",
        "mars 27 18:46:05 gx10 earlyoom[950]: ",
        "",
    ],
)
def test_earlyoom_sees_nothing_left_and_does_nothing(prefix: str) -> None:
    """No memory, but free swap: its rule needs both, and that is said; it is a sign of a livelock."""
    found = answer(f"{prefix}{IDLE.format(0, 0.0, 13233, 80.77)}\n")
    assert (found["class"], found["events"]) == ("A", [])
    assert "acts only when both are low" in found["notes"][0]["text"]
    assert found["notes"][0]["facts"]["swap_free_percent"] == 80.77


@pytest.mark.parametrize(("available", "percent", "swap"), [(11054, 8.88, 81.0), (56, 0.35, 3.0)])
def test_earlyoom_has_nothing_to_tell(available: int, percent: float, swap: float) -> None:
    """Enough memory, or no free swap either: nothing is concluded."""
    assert answer(f"{IDLE.format(available, percent, 99, swap)}\n")["class"] is None


def test_earlyooms_total_moves() -> None:
    """Since 1.8 percentages are of what programs hold and could have: with a driver's share gone, they mean little."""
    lines = [IDLE.format(20000, 92.22, 5251, 64.11).replace("124546", str(total)) for total in (21701, 21721, 21723)]
    assert [note["kind"] for note in answer(_text(*lines))["notes"]] == ["moving_total"]


# systemd

CGROUP = "/user.slice/user-1001.slice/user@1001.service/app.slice/vte-spawn-1.scope"
OOMD = (
    f"Dec 18 19:34:56 gx10 systemd-oomd[840]: Killed {CGROUP} due to memory pressure for /user.slice being 51.07% > 50.00% "
    "for > 20s with reclaim activity"
)


def test_systemd_oomd_kills_a_cgroup() -> None:
    """Its own line and the manager's are one kill, with the pressure and the number of processes."""
    manager = "Dec 18 19:34:56 gx10 systemd[1837]: vte-spawn-1.scope: systemd-oomd killed 12 process(es) in this unit."
    kill = _kill(_text(OOMD, manager))
    assert kill.victim == Target(unit=CGROUP, processes=12)
    assert kill.reason is not None
    assert "51.07% > 50.00%" in kill.reason
    assert answer(_text(OOMD))["class"] == "D"


def test_systemd_is_sometimes_the_first_to_say_what_oomd_killed() -> None:
    """The two programs' lines come in either order, and are one kill."""
    manager = "Dec 18 19:34:56 gx10 systemd[1837]: vte-spawn-1.scope: systemd-oomd killed 12 process(es) in this unit."
    kill = _kill(_text(manager, OOMD))
    assert kill.victim == Target(unit=CGROUP, processes=12)
    assert "51.07% > 50.00%" in (kill.reason or "")


def test_systemd_oomd_kills_for_swap() -> None:
    """So is a kill because memory and swap were used up."""
    line = (
        "Dec 18 19:34:56 gx10 systemd-oomd[840]: Killed /system.slice/a.service due to memory used (15929921536) / total "
        "(16777216000) and swap used (7730941132) / total (8589934592) being more than 90.00%"
    )
    assert _kill(_text(line)).victim.unit == "/system.slice/a.service"


def test_systemd_oomd_marks_first() -> None:
    """Since version 258 a cgroup is marked and then killed; a path may be shortened."""
    marked = OOMD.replace("Killed ", "Marked ").replace(" due", " for killing due")
    assert _kill(_text(marked, OOMD)).outcome == "killed"
    short = "19:46:58 systemd-oomd[7]: Marked …vte-spawn-1.scope for killing due to memory used (1) / total (2)"
    manager = "19:46:58 systemd[999]: app-vte-spawn-1.scope: systemd-oomd killed 9 process(es) in this unit."
    assert _kill(_text(short, manager)).victim.processes == 9


def test_systemd_oomd_fails() -> None:
    """A cgroup that was gone already is no kill."""
    kill = _kill("systemd-oomd[1]: Failed to kill any cgroup(s) under /user.slice based on pressure: No such device\n")
    assert (kill.outcome, kill.victim.unit) == ("failed", "/user.slice")
    assert kill.reason is not None
    assert "No such device" in kill.reason


def test_results_of_units() -> None:
    """What a manager says of a unit's end is noted, with the unit."""
    lines = [
        "Sep 12 08:44:22 gx10 systemd[1]: vllm.service: A process of this unit has been killed by the OOM killer.",
        "Sep 12 08:44:23 gx10 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
        "Sep 12 08:44:23 gx10 systemd[1]: vllm.service: Failed with result 'oom-kill'.",
    ]
    notes = findings(_text(*lines)).notes
    assert [(note.kind, note.facts["unit"]) for note in notes] == [("unit_result", "vllm.service")] * 3


# others


def test_ray_kills_workers() -> None:
    """A third killer, at 95 % of the node's memory."""
    line = (
        "ray.exceptions.OutOfMemoryError: 2 worker(s) were killed due to the node running low on memory. Memory on the node "
        "(IP: 192.0.2.2) was 113.76GB / 119.70GB (0.950345)"
    )
    kill = _kill(f"{line}\n")
    assert (kill.killer, kill.victim.processes) == ("ray", 2)
    assert kill.reason is not None
    assert "113.76GB" in kill.reason
    raylet = "[2026-09-12 08:44:22,123 E 12 12] (raylet) node_manager.cc:3299: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0"
    assert _kill(f"{raylet}\n").killer == "ray"


def test_dockerd_kills_what_does_not_stop() -> None:
    """A container that outlived its grace was killed by the daemon, whoever asked for its stop."""
    line = (
        'Sep 12 08:44:22 gx10 dockerd[900]: time="2026-09-12T08:44:22Z" level=info msg="Container failed to exit within 10s '
        f'of signal 15 - using the force" container={"ab12" * 16}'
    )
    kill = _kill(f"{line}\n")
    assert (kill.killer, kill.signal, kill.victim.unit) == ("dockerd", "SIGKILL", "ab12" * 16)


def test_another_guard_kills() -> None:
    """A program whose name says what it is for is believed; any other that speaks of signals is not."""
    line = "Sep 12 08:44:22 gx10 {}[7]: sent SIGKILL to process 4242 (llama-server)"
    kill = _kill(_text(line.format("memguard")))
    assert (kill.killer, kill.victim.pid, kill.victim.comm) == ("memguard", 4242, "llama-server")
    assert events(_text(line.format("myapp"))) == []


def _record(kind: str, second: int, **more: object) -> dict[str, object]:
    base = {
        "schema": "plimsoll.guard/1",
        "kind": kind,
        "at": f"2026-09-12T13:08:{second:02d}.125+00:00",
        "text": "said",
    }
    return {**base, **more}


ACT: dict[str, object] = {
    "rule": "floor", "verb": "kill", "armed": True, "reason": "available 2.1 GiB",
    "victim": {"name": "qwen", "attributed_kib": 4096, "resident_kib": 5, "processes_count": 3},
}  # fmt: skip


def test_the_guards_records() -> None:
    """Decision, signal and recovery are one kill, with its rule; the rest says how the guard was."""
    records = [
        _record("start", 1),
        _record("decision", 2, **ACT),
        _record("signalled", 2, **ACT),
        _record("recovered", 9, victim=ACT["victim"], recovered_after_s=6.5),
    ]
    text = _text(*map(json.dumps, records))
    kill = _kill(text)
    assert (kill.killer, kill.signal, kill.reason) == ("plimsoll", "SIGKILL", "floor: available 2.1 GiB")
    assert (kill.victim, kill.outcome, kill.took_s) == (Target(unit="qwen", rss_kib=4096, processes=3), "exited", 6.5)
    found = answer(text)
    assert (found["class"], found["events"][0]["time"]) == ("D", "2026-09-12T13:08:02.125000+00:00")
    assert [note["kind"] for note in found["notes"]] == ["guard", "guard"]


def test_a_guard_that_only_watches() -> None:
    """What it would have done is said, and is no kill."""
    found = answer(json.dumps(_record("decision", 2, **{**ACT, "armed": False})))
    assert (found["events"], [note["kind"] for note in found["notes"]]) == ([], ["guard"])


def test_the_guard_in_the_kernels_log() -> None:
    """Its line in kern.log and its record are one kill; its record in the journal is read from there."""
    record = json.dumps(_record("signalled", 2, **ACT))
    line = "2026-09-12T13:08:02.200000+00:00 gx10 plimsoll-guard: floor: kill qwen: available 2.1 GiB"
    found = answer(kern=f"{line}\n", guard=f"{record}\n")
    assert [(event["victim"]["unit"], len(event["also_in"])) for event in found["events"]] == [("qwen", 1)]
    entry = json.dumps(
        {"__REALTIME_TIMESTAMP": "1789218482125000", "MESSAGE": "floor: kill qwen", "PLIMSOLL_RECORD": record}
    )
    assert _kill(f"{entry}\n").victim.processes == 3
    assert events(_text(line.replace("floor: kill", "floor: would, if it were armed: kill"))) == []


# recordings, facts, settings


def _rows(heading: str, *rows: str, separator: str = "\t") -> str:
    return _text(*(line.replace("|", separator) for line in (heading, *rows)))


@pytest.mark.parametrize("separator", ["\t", ",", " "])
@pytest.mark.parametrize("mark", ["# ", ""])
def test_a_fall_of_memory(separator: str, mark: str) -> None:
    """The steepest fall within a quarter of a minute is found in a recording, with or without a comment's mark."""
    rows = ["14:02:10|28.9|92", "14:02:12|28.8|92", "14:02:16|23.8|97", "14:02:19|10.6|111", "14:02:21|6.3|115"]
    found = answer(_rows(f"{mark}ts|memavailable|other", *rows, separator=separator))
    note = found["notes"][0]
    assert (note["kind"], note["facts"]["from_gib"], note["facts"]["to_gib"], note["facts"]["seconds"]) == (
        "memory_fall",
        28.9,
        6.3,
        11.0,
    )
    assert "one step of 13.2 GiB in 3 s" in note["text"]
    assert "other 92 to 115" in found["notes"][1]["text"]
    assert found["class"] == "A"


@pytest.mark.parametrize(
    ("name", "factor"),
    [("avail_GiB", 1), ("avail_MiB", 1024), ("avail_kB", 1 << 20), ("avail", 1024), ("MemAvailable", 1 << 20)],
)
def test_units_of_a_recording(name: str, factor: int) -> None:
    """The unit stands in the column's name, or is told from the size."""
    rows = [f"{t},{gib * factor}" for t, gib in ((0, 40), (1, 41), (2, 20), (3, 5))]
    note = answer(_rows(f"t_s,{name}".replace("t_s", "t"), *rows))["notes"][0]
    assert (note["facts"]["from_gib"], note["facts"]["to_gib"]) == (41.0, 5.0)


def test_a_stall_with_free_memory() -> None:
    """PSI full at 92 % says wedged, whatever is free."""
    rows = ["00:00:02|0.0|60.8", "00:01:03|0.08|47.5", "00:02:03|19.28|3.8", "00:03:54|92.42|46.0"]
    found = answer(_rows("# t|psi_full_avg10|free_GB", *rows))
    assert found["class"] == "A"
    assert "with 46 GiB free" in found["notes"][0]["text"]


@pytest.mark.parametrize(("seconds", "label"), [(100, None), (200, "A")])
def test_how_long_a_stall_lasts_decides(seconds: int, label: str | None) -> None:
    """A healthy load may stall for two minutes; in a recording of each second only what lasts longer is a freeze."""
    rows = [f"{n},{60},{95 if 50 <= n < 50 + seconds else 3}" for n in range(400)]
    assert answer(_rows("t,avail_GiB,full_percent", *rows))["class"] == label


NAMES = ("MemAvailable (GiB)", "mem_available_gib", "true_available_GB", "avail[GiB]", "system available memory")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["elapsed_s", "timestamp", "Time", "uptime"])
def test_names_of_columns(name: str, when: str) -> None:
    """Columns are told by what is in their names, however they are written."""
    rows = [f"{n},{40 - 8 * n}" for n in range(5)]
    note = answer(_rows(f"{when},{name}", *rows))["notes"][0]
    assert (note["kind"], note["facts"]["from_gib"], note["facts"]["to_gib"]) == ("memory_fall", 40.0, 8.0)


def test_a_table_in_a_text() -> None:
    """A table with bars, a line of dashes, and units behind its figures is a recording too."""
    rows = ["|------|---:|", "| 14:02:10 | 40.0 GiB |", "| 14:02:12 | 12288 MiB |", "| 14:02:14 | 2.0 GiB |"]
    note = answer(_text("| time | avail |", *rows))["notes"][0]
    assert (note["kind"], note["facts"]["from_gib"], note["facts"]["to_gib"]) == ("memory_fall", 40.0, 2.0)


def test_a_healthy_start_is_no_stall() -> None:
    """A load in which a third of the time is spent waiting is nothing."""
    assert answer(_rows("t|psi_full_avg10|free_GB", "00:00:02|0.0|60.8", "00:00:03|45.6|40.5"))["class"] is None


def test_a_recording_that_stops() -> None:
    """Three periods without a sample are a gap; what the last sample was is told with it."""
    seconds = [*range(20), 660, 661, 662]
    found = events(_rows("t,avail_GiB", *(f"{1_789_202_000 + s},{5.5}" for s in seconds)))
    assert [event.seconds for event in found if isinstance(event, Gap)] == [641.0]
    assert isinstance(found[0], Gap)
    assert found[0].before is not None
    assert "5.5 GiB" in found[0].before


def test_the_guards_own_recording() -> None:
    """A comment above the heading, and both again at each boot, are no rows."""
    head = "# plimsoll.recording/1 boot=abc mem_total_kib=127506842\nunix_s,at_s,available_kib,free_kib,full_percent\n"
    rows = [f"{1_789_202_000 + n},{n},{(40 - 5 * n) << 20},{1 << 20},{2.5}" for n in range(8)]
    found = answer(head + _text(*rows) + head + _text("1789203000,1,99999999,5,0.0"))
    assert [note["kind"] for note in found["notes"]] == ["memory_fall"]
    assert (found["notes"][0]["facts"]["from_gib"], found["notes"][0]["facts"]["to_gib"]) == (40.0, 5.0)
    assert [event["kind"] for event in found["events"]] == ["gap"]


def test_gaps_that_somebody_listed() -> None:
    """A table of gaps is what it says."""
    found: list[Event] = events(_rows("# used_MiB|gpu_pct|gap_s", "124258|96|627", "116652|0|7196"))
    assert [event.seconds for event in found if isinstance(event, Gap)] == [627.0, 7196.0]


def test_a_drift() -> None:
    """Less at each try is said; up and down is not."""
    assert "each try" in answer(_rows("# failed_boot|free_GiB", "1|112.15", "2|112.05", "3|111.95"))["notes"][0]["text"]
    assert answer(_rows("# failed_boot|free_GiB", "1|112.15", "2|112.25", "3|111.95"))["notes"] == []


def test_a_torn_row_is_left_out() -> None:
    """A recording ends in the middle of a row, or in NUL bytes, where the machine was reset."""
    text = _rows("t,avail_GiB", "1,50", "2,51", "3,49") + "4,4\x00\x00\x00"
    assert answer(text)["class"] is None
    assert answer(text[:-4])["class"] is None


FACTS = "memavailable_before_gib=34.0\nmemavailable_after_gib=12.7\nwindow_s=1.5\nsigterm=14:02:49.395749\nfirst_nvrm_offset_ms=6.3\n"


def test_facts_that_somebody_wrote_down() -> None:
    """Names with values are read: the fall, the signal with its time, and what came first."""
    found = answer(FACTS)
    assert [(event["kind"], event["time"]) for event in found["events"]] == [("userspace_kill", "14:02:49.395749")]
    texts = [note["text"] for note in found["notes"]]
    assert any("34 to 12.7 GiB in 1.5 s" in text for text in texts)
    assert any("6.3 ms after the SIGTERM" in text for text in texts)


def test_a_release_file() -> None:
    """Of repeated keys the last holds; quotes may be missing."""
    platform = findings('DGX_NAME="DGX Spark"\nDGX_OTA_VERSION="7.3.1"\nDGX_OTA_VERSION=7.6.0\n').platform
    assert platform == {"dgx_name": "DGX Spark", "dgx_ota_version": "7.6.0"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "-r 60 -m 5,3 -s 100,100 -g --prefer '^(vllm)$'",
            "free swap is no condition; first whatever is like ^(vllm)$",
        ),
        ("-r 60 -m 5,3 -s 100,100 -g", "kills the whole process group"),
        ('EARLYOOM_ARGS="-m 2 -s 80 --avoid x"', "less than 80 % of swap is free too"),
        ("ManagedOOMMemoryPressureLimit=80%", "ManagedOOMMemoryPressureLimit=80%"),
        ("preflight: a.service waits: what is left of an engine holds 16 GiB", "waits"),
        ("[preflight] FAILED: 85.2 GiB available, 96 GiB needed", "85.2 GiB"),
    ],
)
def test_settings(line: str, said: str) -> None:
    """What decides which killer acts is noted, and is no event."""
    found = answer(f"{line}\n")
    assert said in found["notes"][0]["text"]
    assert (found["class"], found["events"]) == (None, [])


@pytest.mark.parametrize("torn", [b"\x00\x00\x00", b"\\x00\\x00\\x00\\x00"])
def test_nul_bytes_are_skipped_and_told(torn: bytes) -> None:
    """A record that never reached the disk is no error, and says something."""
    found: dict[str, Any] = answer(b'{"i": 116, "ok": true}\n' + torn)
    assert [note["kind"] for note in found["notes"]] == ["nul_bytes"]


# asides


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (
            "python3: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null)",
            "allocation_failure", "python3 a block of order 4",
        ),
        ("kworker/0:1: page allocation stalls for 10004ms, order:0", "allocation_stall", "10004 ms"),
        (
            "Sep 12 08:44:22 gx10 systemd-journald[9]: Under memory pressure, flushing caches.", "journal_pressure", "caches",
        ),
        ("Sep 12 08:44:22 gx10 systemd-journald[9]: Missed 920 kernel messages", "journal_lost", "920"),
        (
            "Sep 12 08:44:22 gx10 kubelet[9]: System OOM encountered, victim process: nginx, pid: 22", "reported_oom",
            "nginx (22)",
        ),
        ('"OOMKilled": true,', "container_oom", "a container"),
        ("        Reason:       OOMKilled", "container_oom", "a container"),
        ("container vllm exited with code 137", "exit_137", "SIGKILL"),
        ("      Exit Code:    137", "exit_137", "SIGKILL"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu_allocation", "GPU memory"),
    ],
)  # fmt: skip
def test_what_others_say(line: str, kind: str, said: str) -> None:
    """What speaks of memory and is no event of the contract is noted, and no class comes of it alone."""
    found = answer(f"{line}\n")
    assert [(note["kind"], said in note["text"]) for note in found["notes"]] == [(kind, True)]
    assert (found["events"], found["class"]) == ([], None)
