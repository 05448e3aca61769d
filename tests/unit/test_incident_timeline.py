"""One time line: clocks, records told twice, episodes, silences; and what it comes to."""

# ruff: noqa: E501  # log lines are as long as they are printed

import datetime
from dataclasses import replace
from typing import Any

import pytest

from plimsoll.box.incident import document, reader, timeline
from plimsoll.box.incident.model import Stamp
from tests.unit.incident_logs import HUNG, KILLED, NOW_S, OWNER, SOFT, SUMMARY, answer, kern_log, report


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _times(found: dict[str, Any]) -> list[str | None]:
    return [event["time"] for event in found["events"]]


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


# clocks


def test_a_year_that_the_log_states() -> None:
    """Where a program wrote the whole date into its message, that is the year."""
    text = _text(
        f"Apr 16 22:14:48 gx10 kernel: [ 1388.26] {KILLED}",
        "Apr 16 22:14:48 gx10 app[10]: 2022-04-16 22:14:48,224 - unresponsive",
    )
    found = answer(text)
    assert _times(found) == ["2022-04-16T22:14:48"]
    assert "time_basis" not in found["events"][0]


def test_a_year_from_the_files_date() -> None:
    """Else the last such day before the file was written; that it is assumed is said."""
    text = _text(f"Dec 31 23:59:59 gx10 kernel: {SOFT.format(1)}", f"Jan  1 00:30:00 gx10 kernel: {KILLED}")
    found = answer(text, modified_s=_seconds("2024-01-02T00:00:00+00:00"))
    assert _times(found) == ["2023-12-31T23:59:59", "2024-01-01T00:30:00"]
    assert found["events"][0]["time_basis"] == "year assumed from the date of the file"
    assert any("no years" in remark for remark in found["remarks"])


def test_a_year_from_another_source() -> None:
    """Or the one that makes it lie nearest to lines with a whole date."""
    found = answer(
        f"Sep 12 08:44:22 gx10 kernel: {SOFT.format(1)}\n", f"2025-09-12T08:50:00+00:00 gx10 kernel: {KILLED}\n"
    )
    assert _times(found) == ["2025-09-12T08:44:22", "2025-09-12T08:50:00+00:00"]


def test_uptime_and_a_boot_that_another_log_dates() -> None:
    """Seconds since boot become a date, where exactly one boot is known."""
    dated = kern_log(["usb 1-2: x", "usb 1-2: y"] * 3, uptime_s=5000.0)
    found = answer(kern=dated, dmesg=f"[ 5100.000000] {KILLED}\n")
    assert _times(found) == ["2026-09-12T13:09:50+00:00"]
    assert found["events"][0]["uptime_s"] == 5100.0


def test_uptime_and_a_clock_in_the_same_log() -> None:
    """The kernel says what time it is when it reads the hardware's clock."""
    text = _text(
        "[    2.000000] rtc-efi rtc-efi.0: setting system clock to 2026-09-12T08:00:02 UTC (1789200002)",
        f"[ 3600.000000] {KILLED}",
    )
    assert _times(answer(text)) == ["2026-09-12T09:00:00+00:00"]


def test_uptime_alone_is_no_date() -> None:
    """Where no boot is known, or two are, the time stays what it is, and that is said."""
    (found,) = [answer(f"[ 5100.5] {KILLED}\n")]
    assert _times(found) == ["boot+5100.500000s"]
    assert any("whose time nothing tells" in remark for remark in found["remarks"])
    two = kern_log(["a", "b"]) + kern_log(["a", "b"], start="2026-09-13T13:08:", uptime_s=100.0)
    found = answer(kern=two, pasted=f"[ 5100.5] {KILLED}\n")
    assert any("which one cannot be told" in remark for remark in found["remarks"])


def test_two_boots_on_one_console() -> None:
    """Where the only clock begins anew, what comes later is later, and is another boot's."""
    lines = [f"[  802.866747] {HUNG.format(122)}", f"[  164.500000] {HUNG.format(122)}", f"[  164.600000] {KILLED}"]
    found = answer(_text(*lines))
    assert _times(found) == ["boot+802.866747s", "boot 2+164.500000s", "boot 2+164.600000s"]
    assert len(found["incidents"]) == 2


def test_which_of_two_boots() -> None:
    """A record that a dated log has too tells of which boot it is; the kernel's own buffer is of the last one."""
    two = kern_log([SUMMARY, KILLED]) + kern_log(["a", "b"], start="2026-09-13T13:08:", uptime_s=100.0)
    found = answer(kern=two, other=f"[ 5000.000000] {SUMMARY}\n[ 5000.010000] {KILLED}\n[ 5100.5] {HUNG.format(122)}\n")
    assert [(event["kind"], len(event["also_in"])) for event in found["events"]] == [("oom_kill", 1), ("hung_task", 0)]
    assert found["events"][1]["time"] == "2026-09-12T13:09:50.500000+00:00"
    found = answer(kern=two, dmesg=f"[ 200.0] {HUNG.format(122)}\n")
    assert _times(found)[-1] == "2026-09-13T13:09:50+00:00"


def test_midnight_in_times_of_day() -> None:
    """Without dates the order of the file tells that a day has passed."""
    found = answer(_text(f"23:59:58 {SOFT.format(1)}", f"00:00:02 {KILLED}"))
    assert _times(found) == ["23:59:58", "00:00:02"]
    assert any("no dates" in remark for remark in found["remarks"])


def test_a_zone_from_the_same_record_in_another_log() -> None:
    """A log without a zone is put beside one with, by a record that both have."""
    local = f"2026-09-12T15:08:10 gx10 kernel: [ 5000.000000] {SUMMARY}\n2026-09-12T15:30:00 gx10 kernel: [ 6310.0] {HUNG.format(122)}\n"
    found = answer(kern_log([SUMMARY, KILLED]), local)
    assert [event["kind"] for event in found["events"]] == ["oom_kill", "hung_task"]
    assert found["incidents"][0]["lasted_s"] == pytest.approx(1310, abs=1)


# twins and episodes


def test_a_record_in_two_logs_is_one_event() -> None:
    """kern.log and the journal have the same records: one event, with both places, the richer kept."""
    journal = kern_log([SUMMARY, KILLED])
    found = answer(kern=kern_log(report()), journal=journal)
    (event,) = found["events"]
    assert event["invoker"]["comm"] == "dashboard-serv"
    assert [place["file"] for place in event["also_in"]] == ["journal"]


def test_what_a_rotation_cut_apart_is_one_episode() -> None:
    """A storm that goes on in the next file is one event with all its lines."""
    whole = kern_log([SOFT.format(1)] * 300).splitlines(keepends=True)
    found = answer(one=b"".join(whole[:120]), two=b"".join(whole[120:]))
    assert [event["count"] for event in found["events"]] == [300]


def test_the_order_of_the_sources_does_not_matter() -> None:
    """The same files in another order give the same document."""
    texts: dict[str, str | bytes] = {
        "a": kern_log(report()),
        "b": kern_log([SOFT.format(1)] * 3, start="2026-09-12T13:05:"),
        "c": f"08:00:00 {KILLED}\n",
    }
    read = {name: reader.read(name, [text.encode() if isinstance(text, str) else text]) for name, text in texts.items()}
    one, two = (
        document.document(timeline.build([read[name] for name in order], NOW_S), {}) for order in ("abc", "cab")
    )
    assert one == two


def test_a_storm_in_one_file_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand kills of one process in a moment cost a thousand looks and not half a million: that took seconds."""
    looks = 0
    near = timeline._near

    def counted(earlier: timeline.Timed, later: timeline.Timed) -> bool:
        nonlocal looks
        looks += 1
        return near(earlier, later)

    monkeypatch.setattr(timeline, "_near", counted)
    read = reader.read("log", [kern_log([KILLED] * 1000)], NOW_S)
    assert len(timeline.build([read], NOW_S).events) == 1000
    assert 0 < looks <= 2000


def test_between_two_times() -> None:
    """Only what lies between is left; what has no time may lie there too."""
    found = [
        reader.read(
            "k",
            [
                kern_log([SOFT.format(1)])
                + kern_log([KILLED], start="2026-09-12T14:00:")
                + f"{HUNG.format(9)}\n".encode()
            ],
        )
    ]
    line = timeline.build(found, NOW_S)
    limit = timeline.Limit("wall", _seconds("2026-09-12T13:30:00+00:00"))
    assert [t.event.kind for t in timeline.between(line, limit, None).events] == ["oom_kill", "hung_task"]
    assert [t.event.kind for t in timeline.between(line, None, limit).events] == ["driver_alloc_failure", "hung_task"]
    day = timeline.Limit("day", 13.5 * 3600)
    assert [t.event.kind for t in timeline.between(line, day, None).events] == ["oom_kill", "hung_task"]


# silences


def _syslog(minutes: list[int], extra: dict[int, str] | None = None) -> str:
    """A full log with a line each five seconds of the given minutes after 13:00."""
    rows = []
    for minute in minutes:
        start = f"2026-09-12T{13 + minute // 60:02d}:{minute % 60:02d}"
        rows += [f"{start}:{second:02d}+00:00 gx10 app[7]: tick" for second in range(0, 60, 5)]
        if extra and minute in extra:
            rows.append(f"2026-09-12T{13 + minute // 60:02d}:{minute % 60:02d}:58+00:00 gx10 kernel: {extra[minute]}")
    return _text(*rows)


def test_a_silence_of_a_busy_log() -> None:
    """A log that had a line each five seconds and then none for 39 minutes, in one boot, was frozen."""
    found = answer(_syslog([*range(60), *range(99, 130)]))
    assert [(event["kind"], event["seconds"]) for event in found["events"]] == [("gap", 39 * 60 + 5)]
    assert found["class"] == "A"


def test_the_beginning_of_summer_is_no_silence() -> None:
    """A local clock leaves out an hour at night, with no line missing."""
    rows = [
        f"Mar 29 {h:02d}:{m:02d}:{s:02d} gx10 app[7]: tick" for h in (0, 1, 3, 4) for m in range(60) for s in (0, 30)
    ]
    assert answer(_text(*rows))["events"] == []


def test_a_quiet_log_is_no_silence() -> None:
    """A line an hour says nothing about the hours between."""
    rows = [f"2026-09-12T{hour:02d}:00:00+00:00 gx10 cron[7]: tick" for hour in range(24)]
    assert answer(_text(*rows))["events"] == []


def test_the_kernel_alone_may_be_silent() -> None:
    """After a kill that helped, a kernel log has no line for hours: that is no freeze."""
    later = "2026-09-12T16:00:00+00:00 gx10 kernel: [ 9000.0] usb 1-2: new device\n"
    found = answer(kern_log(report()).decode() + later)
    assert [event["kind"] for event in found["events"]] == ["oom_kill"]
    assert found["class"] == "B"


# classes


def test_an_oom_kill_with_hung_tasks_behind_it() -> None:
    """A victim that holds a lock which others wait for is a cascade, and nearly certain."""
    later = [HUNG.format(122), OWNER.replace("VLLM::EngineCor", "llama-server")]
    text = kern_log(report()) + kern_log(later, start="2026-09-12T13:12:", uptime_s=5240.0)
    found = answer(text)
    assert found["class"] == "B"
    assert found["confidence"] > answer(kern_log(report()))["confidence"]
    assert any("held by llama-server" in ground["text"] for ground in found["evidence"])


def test_bystanders_die_and_then_nothing() -> None:
    """Kills on the way into a freeze do not make it a cascade, when a driver held the memory."""
    after = "2026-09-12T13:52:00+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0 (x) #1\n"
    before = kern_log([SOFT.format(1)] * 920, start="2026-09-12T13:05:")
    found = answer(
        before + kern_log(report()) + kern_log([HUNG.format(122)], start="2026-09-12T13:11:") + after.encode()
    )
    assert found["class"] == "A"
    assert {ground["text"].split()[0] for ground in found["evidence"]} >= {"nothing", "the"}


def test_incidents_of_different_days_are_apart() -> None:
    """Each has its own class; the last that is likely leads."""
    crash = "2026-09-10T08:00:00+00:00 gx10 kernel: Kernel panic - not syncing: Fatal exception\n"
    found = answer(crash.encode() + kern_log(report()))
    assert [(i["class"], i["start"][:10]) for i in found["incidents"]] == [("F", "2026-09-10"), ("B", "2026-09-12")]
    assert found["class"] == "B"


def test_soft_lines_alone_are_nothing() -> None:
    """Thousands of them were counted on healthy boxes."""
    found = answer(kern_log([SOFT.format(1336)] * 900))
    assert (found["class"], found["confidence"]) == (None, 0.0)
    assert "healthy boxes" in found["not_incidents"][0]["text"]


def test_every_claim_has_its_line() -> None:
    """Each ground names a file and a line that exist."""
    text = kern_log(report())
    for ground in answer(kern=text)["evidence"]:
        assert ground["source"]["file"] == "kern"
        assert 1 <= ground["source"]["line"] <= text.count(b"\n")


# who


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-server", True),
        ("4242", True),
        ("llama", True),
        ("Llama-Server-with-a-long-tail", False),
        ("sshd", False),
        ("424", False),
    ],
)
def test_who_killed_it(name: str, found: bool) -> None:
    """By name, as far as the kernel keeps it, by number, or by unit."""
    line = timeline.build([reader.read("k", [kern_log([SUMMARY, KILLED])])], NOW_S)
    assert bool(document.who(line, name)) is found


def test_a_long_name_is_compared_as_the_kernel_cuts_it() -> None:
    """The kernel keeps 15 characters."""
    line = timeline.build([reader.read("k", [KILLED.replace("llama-server", "text-generation").encode()])], NOW_S)
    assert document.who(line, "text-generation-server")


# boots that several logs know of

KERNEL_LOG = _text(
    "2026-09-12T02:00:00.000000+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0-1032-nvidia (x) #32",
    f"2026-09-12T02:58:00.000000+00:00 gx10 kernel: [ 3480.000000] {SOFT.format(1)}",
    "2026-09-12T03:42:20.000000+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0-1032-nvidia (x) #32",
)


def _journal(last: str) -> str:
    """Return what the whole journal has around the same boots."""
    return _text(
        f"-- Boot {'a' * 32} --",
        "2026-09-12T02:00:00+0000 gx10 kernel: Booting",
        f"2026-09-12T03:00:00+0000 gx10 {last}",
        f"-- Boot {'b' * 32} --",
        "2026-09-12T03:42:00+0000 gx10 kernel: Booting",
    )


def test_a_boot_in_two_logs_is_one() -> None:
    """One has the kernel's version, the other knows how the boot before it ended."""
    found = answer(KERNEL_LOG, _journal("cron[9]: nothing special"))
    boots = [event for event in found["events"] if event["kind"] == "boot"]
    assert [(boot["kernel"], boot["clean_stop"]) for boot in boots] == [
        ("6.17.0-1032-nvidia", None),
        ("6.17.0-1032-nvidia", False),
    ]
    assert [event["seconds"] for event in found["events"] if event["kind"] == "gap"] == [2520.0]
    assert found["class"] == "A"


def _starts(*sources: str) -> list[tuple[str, str]]:
    """Return time and kernel of each start that some logs come to."""
    found = answer(*sources)
    return [(event["time"][11:19], event["kernel"]) for event in found["events"] if event["kind"] == "boot"]


LINUX = "Linux version 6.8.0-60-generic (b) #1 SMP"
CLOCK = "rtc_cmos 00:00: setting system clock to 2026-05-01T10:00:01 UTC (1777629601)"


@pytest.mark.parametrize(
    ("dmesg_more", "kernel", "starts"),
    [
        ("[   61.000000] cron: fine", "6.8.0-60-generic", 1),
        ("[   61.000000] Kernel panic - not syncing: hung_task: blocked tasks", "6.8.0-60-generic", 2),
        ("[   61.000000] cron: fine", "6.11.0-1014-nvidia", 2),
    ],
)
def test_a_late_record_is_not_of_another_start(dmesg_more: str, kernel: str, starts: int) -> None:
    """After a panic, and with another kernel, it is another one; else rsyslog was 100 s late."""
    dmesg = _text(f"[    0.000000] {LINUX}", f"[    1.000000] {CLOCK}", dmesg_more)
    kern = _text(f"2026-05-01T10:01:40+00:00 s kernel: {LINUX.replace('6.8.0-60-generic', kernel)}")
    assert len(_starts(dmesg, kern)) == starts


def test_a_clock_that_was_set_forward() -> None:
    """What was stamped before lies before the kernel's own time of the same start, as that is reckoned now."""
    journal = _text(f"-- Boot {'a' * 32} --", f"2026-05-01T10:00:00+0000 s kernel: {LINUX}")
    kern = _text(
        f"2026-05-01T10:00:05+00:00 s kernel: [    0.000000] {LINUX}",
        f"2026-05-01T10:01:40+00:00 s kernel: [  100.000000] {SOFT.format(1)}",
    )
    dmesg = _text(f"[    0.000000] {LINUX}", f"[  100.000000] {SOFT.format(1)}")
    assert len(_starts(journal, kern, dmesg)) == 1


def test_starts_closer_than_a_log_is_late() -> None:
    """Three within a minute are three, told by two logs of which one is 25 s behind."""
    one, two = (
        _text(*(f"2026-05-01T10:{at} s kernel: [    0.000000] {LINUX}" for at in times))
        for times in (("00:00+00:00", "00:20+00:00", "00:40+00:00"), ("00:25+00:00", "00:45+00:00", "01:05+00:00"))
    )
    assert [at for at, _ in _starts(one, two)] == ["10:00:00", "10:00:20", "10:00:40"]


RSYSLOG = 'rsyslogd: [origin software="rsyslogd" swVersion="8.2312.0"]'


@pytest.mark.parametrize(
    ("last", "in_order"),
    [
        ("systemd[1]: Reached target reboot.target - System Reboot.", True),
        ("systemd[1]: Reached target shutdown.target - System Shutdown.", True),
        ("systemd[345]: Reached target shutdown.target - Shutdown.", False),
        ("systemd-journald[210]: Journal stopped", True),
        (
            "systemd-journald[210]: Journal stopped\n2026-09-12T03:00:00+0000 gx10 systemd-journald[310]: Journal started",
            False,
        ),
        (f"{RSYSLOG} exiting on signal 15.", True),
        (f"{RSYSLOG} exiting on signal 15.\n2026-09-12T03:00:00+0000 gx10 {RSYSLOG} start", False),
    ],
)
def test_a_word_of_a_stop_is_not_always_the_machines(last: str, in_order: bool) -> None:  # a column
    """A user who logs out, an initrd's journal and a restart of rsyslog end as a machine does that is stopped."""
    found = answer(_journal(last))
    assert [event["clean_stop"] for event in found["events"] if event["kind"] == "boot"][-1] is in_order
    assert bool([event for event in found["events"] if event["kind"] == "gap"]) is not in_order


def test_two_boots_in_a_minute_and_a_half_are_two() -> None:
    """A log that is stamped late belongs to the boot before it, and the kernel's own time decides which that is.

    The machine started at 10:00:00 and 10:01:22; the journal's first lines are 37 s late, kern.log's 66 s.
    """
    dmesg = _text("[    0.000000] Linux version 6.12.118+deb13-amd64 (x)", f"[  300.000000] {SOFT.format(1)}")
    journal = _text(
        f"-- Boot {'a' * 32} --",
        "2026-09-12T10:00:37+0000 gx10 kernel: Booting",
        "2026-09-12T10:01:10+0000 gx10 cron[9]: nothing special",
        f"-- Boot {'b' * 32} --",
        "2026-09-12T10:01:59+0000 gx10 kernel: Booting",
        f"2026-09-12T10:06:22+0000 gx10 kernel: {SOFT.format(1)}",
    )
    kern = _text(
        "2026-09-12T10:01:06+0000 gx10 kernel: Linux version 6.12.118+deb13-amd64 (x)",
        "2026-09-12T10:02:28+0000 gx10 kernel: Linux version 6.12.118+deb13-amd64 (x)",
    )
    began = Stamp(_seconds("2026-09-12T10:01:22+00:00"), "date", 0, uptime_s=0.0)
    read = [
        replace(reader.read("dmesg", [dmesg.encode()]), boots=(began,)),
        *(reader.read(name, [text.encode()]) for name, text in (("journal", journal), ("kern.log", kern))),
    ]
    found = document.document(timeline.build(read, NOW_S), {})
    boots = [event for event in found["events"] if event["kind"] == "boot"]
    assert [(boot["time"][11:19], boot["clean_stop"], len(boot["also_in"])) for boot in boots] == [
        ("10:00:37", None, 1),
        ("10:01:22", False, 2),
    ]


def test_an_orderly_stop_that_another_log_knows_of() -> None:
    """What kern.log alone would take for a freeze was a machine that somebody had switched off."""
    found = answer(KERNEL_LOG, _journal("systemd-journald[9]: Journal stopped"))
    assert [event["kind"] for event in found["events"] if event["kind"] == "gap"] == []
    assert found["class"] is None
    assert [event["kind"] for event in answer(KERNEL_LOG)["events"]].count("gap") == 1
