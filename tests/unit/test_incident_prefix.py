"""Stamps, programs and messages are told apart in every form in which logs are kept and pasted."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.incident import journal
from plimsoll.box.incident.model import NO_STAMP, Stamp
from plimsoll.box.incident.months import MONTHS, month_number
from plimsoll.box.incident.prefix import Prefix, clean


def _at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


SEP_12 = _at("1972-09-12T08:44:22")
FULL = _at("2026-09-12T08:44:22")
MESSAGE = "NVRM: hello"


@pytest.mark.parametrize(
    ("text", "stamp", "program"),
    [
        ("Sep 12 08:44:22 gx10 kernel: [  123.456789] ", Stamp(SEP_12, "yearless", None, 123.456789), "kernel"),
        ("Sep  2 08:44:22 gx10 kernel: ", Stamp(_at("1972-09-02T08:44:22"), "yearless"), "kernel"),
        ("Sep 12 08:44:22.250000 gx10 kernel: ", Stamp(SEP_12 + 0.25, "yearless"), "kernel"),
        ("Sep 12 2026 08:44:22 gx10 kernel: ", Stamp(FULL, "date"), "kernel"),
        ("2026 Sep 12 08:44:22 gx10 kernel: ", Stamp(FULL, "date"), "kernel"),
        ("Sep 12 08:44:22 gx10 ", Stamp(SEP_12, "yearless"), None),
        ("Sep 12 08:44:22: ", Stamp(SEP_12, "yearless"), None),
        ("Sep 12 08:44:22 <host> kernel: ", Stamp(SEP_12, "yearless"), "kernel"),
        ("Sep 12 08:44:22 earlyoom[12]: ", Stamp(SEP_12, "yearless"), "earlyoom"),
        ("sept. 12 08:44:22 gx10 kernel: ", Stamp(SEP_12, "yearless"), "kernel"),
        ("9月 12 08:44:22 gx10 kernel: ", Stamp(SEP_12, "yearless"), "kernel"),
        ("2026-09-12T08:44:22+0200 gx10 kernel: ", Stamp(FULL, "date", 7200), "kernel"),
        ("2026-09-12T08:44:22.500000-04:30 gx10 kernel: [   7.25] ", Stamp(FULL + 0.5, "date", -16200, 7.25), "kernel"),
        ("2026-09-12T08:44:22Z gx10 kernel: ", Stamp(FULL, "date", 0), "kernel"),
        ("2026-09-12 08:44:22 ", Stamp(FULL, "date"), None),
        ("Sat 2026-09-12 08:44:22 CST gx10 kernel: ", Stamp(FULL, "date"), "kernel"),
        ("1789202662.125000 gx10 kernel: ", Stamp(FULL + 0.125, "date", 0), "kernel"),
        ("<4>1 2026-09-12T08:44:22.0Z gx10 kernel - - - ", Stamp(FULL, "date", 0), "kernel"),
        ("[  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("<4>[  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("[  123.456789][  T812] ", Stamp(uptime_s=123.456789), None),
        ("[  123.456789] [  T812] ", Stamp(uptime_s=123.456789), None),
        ("[  123.456789 <    0.000012>] ", Stamp(uptime_s=123.456789), None),
        ("kernel: [  123.456789] ", Stamp(uptime_s=123.456789), "kernel"),
        ("[  123.456789] kernel: ", Stamp(uptime_s=123.456789), "kernel"),
        ("[  123.456789] gx10 kernel: ", Stamp(uptime_s=123.456789), "kernel"),
        ("[Sat Sep 12 08:44:22 2026] ", Stamp(FULL, "date"), None),
        ("[Sa Sep 12 08:44:22 2026] ", Stamp(FULL, "date"), None),
        ("[sam. sept. 12 08:44:22 2026] ", Stamp(FULL, "date"), None),
        ("[土  9月 12 08:44:22 2026] ", Stamp(FULL, "date"), None),
        ("[2026-09-12 08:44:22,000 E 12 12] ", Stamp(FULL, "date"), None),
        ("kern  :warn  : 2026-09-12T08:44:22,500000+00:00 ", Stamp(FULL + 0.5, "date", 0), None),
        ("kern  :warn  : [  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("6,416,123456789,-;", Stamp(uptime_s=123.456789), None),
        ("6.12.0-57,6,416,123456789,-,ncfrag=0/33;", Stamp(uptime_s=123.456789), None),
        ("Sep 12 08:44:22 192.0.2.7 [  123.456789] ", Stamp(SEP_12, "yearless", None, 123.456789), None),
        ("08:44:22  ", Stamp(31462.0, "day"), None),
        ("08:44:22.125 ", Stamp(31462.125, "day"), None),
        ("08:44:22 kernel: ", Stamp(31462.0, "day"), "kernel"),
        ("kern.log.2:Sep 12 08:44:22 gx10 kernel: ", Stamp(SEP_12, "yearless"), "kernel"),
        ("/var/log/kern.log:77:[  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("> > [  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("\x1b[33m[  123.456789]\x1b[0m ", Stamp(uptime_s=123.456789), None),
        ("gx10 login: \x1b[!p\x1b]104\x07\x1b[?7h[  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("[...] ", NO_STAMP, None),
        ("192.0.2.7: kern: warning: [2026-09-12T08:44:22.500000000Z]: ", Stamp(FULL + 0.5, "date", 0), None),
        ("avril 12 08:44:22 gx10 kernel: ", Stamp(_at("1972-04-12T08:44:22"), "yearless"), "kernel"),
        ("September 12 08:44:22 gx10 kernel: ", Stamp(SEP_12, "yearless"), "kernel"),
        ("\x00\x00[  123.456789] ", Stamp(uptime_s=123.456789), None),
        ("", NO_STAMP, None),
    ],
)
def test_a_prefix_is_taken_off(text: str, stamp: Stamp, program: str | None) -> None:
    """Whatever stands before it, the message, its stamp as it says it, and who wrote it come out."""
    line = Prefix().parse(7, clean(f"{text}{MESSAGE}\n".encode()))
    assert (line.number, line.stamp, line.program, line.text) == (7, stamp, program, MESSAGE)


@pytest.mark.parametrize(
    "message",
    [
        "Hardware name: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36 06/12/2026",
        "Out of memory: Killed process 1 (x)",
        "Kernel panic - not syncing: hung_task: blocked tasks",
        "Internal error: Oops: 0000000096000004 [#1]  SMP",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        "[    650]     0   650     3283      800    65536        0         -1000 sshd",
        "Node 0 Normal: 100*4kB (UME) 20*8kB (UM) = 560kB",
        "Feb 30 08:44:22 gx10 kernel: no such day",
        "99:99:99 no such time",
    ],
)
def test_a_message_is_no_prefix(message: str) -> None:
    """What a kernel's message begins with is not taken for a host, a program or a date."""
    assert Prefix().parse(1, message).text == message


def test_human_dmesg_counts_on() -> None:
    """`dmesg -H` gives a minute, and then only how much later each line is."""
    prefix = Prefix()
    lines = [prefix.parse(n, text) for n, text in enumerate(["[Sep12 08:44] a", "[  +0.500000] b", "[  +1.250000] c"])]
    base = _at("1972-09-12T08:44:00")
    assert [line.stamp.wall_s for line in lines] == [base, base + 0.5, base + 1.75]
    assert [line.text for line in lines] == ["a", "b", "c"]


def test_a_delta_without_its_minute_has_no_time() -> None:
    """An excerpt of `dmesg -H` may begin anywhere."""
    line = Prefix().parse(1, "[  +0.500000] b")
    assert (line.stamp, line.text, line.prefixed) == (NO_STAMP, "b", True)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("Sep", 9),
        ("mars", 3),
        ("août", 8),
        ("Okt.", 10),
        ("DEZ", 12),
        ("12月", 12),
        ("13月", None),
        ("kernel", None),
        ("", None),
    ],
)
def test_months(name: str, number: int | None) -> None:
    """Months are told in many languages, with or without a full stop; other words are none."""
    assert month_number(name) == number


def test_no_month_is_two() -> None:
    """Every number has names, and no name stands in two languages for different months."""
    assert set(MONTHS.values()) == set(range(1, 13))


def test_a_journal_record() -> None:
    """A record of `journalctl -o json` has both clocks, its program, and a message in text or bytes."""
    fields = '"__REALTIME_TIMESTAMP":"1789202662125000","_SOURCE_MONOTONIC_TIMESTAMP":"123456789","_TRANSPORT":"kernel"'
    for message in ('"NVRM: hello"', "[78,86,82,77,58,32,104,101,108,108,111]"):
        (line,) = journal.json_lines(3, f'{{{fields},"MESSAGE":{message}}}'.encode())
        assert line.stamp == Stamp(FULL + 0.125, "date", 0, 123.456789)
        assert (line.program, line.text, line.number) == ("kernel", MESSAGE, 3)


def test_an_export_record() -> None:
    """So has one of `journalctl -o export`, where a message of several lines stands behind its length."""
    head = b"__REALTIME_TIMESTAMP=1789202662125000\nMESSAGE\n"
    message = b"first\nsecond"
    record = head + len(message).to_bytes(8, "little") + message + b"\nSYSLOG_IDENTIFIER=earlyoom\n"
    lines = journal.export_lines(9, record)
    assert [(line.program, line.text) for line in lines] == [("earlyoom", "first"), ("earlyoom", "second")]
    assert lines[0].stamp == Stamp(FULL + 0.125, "date", 0)


@pytest.mark.parametrize(
    "record", ["[1]", "{", '{"MESSAGE": null}', '{"a": 1}', "{" * 100_000, '{"MESSAGE": [1e9, -1, "x"]}']
)
def test_a_record_that_is_none(record: str) -> None:
    """A torn record, a list, or one without a message gives no line with a text, and no error."""
    assert [line.text for line in journal.json_lines(1, record.encode())] in ([], [""])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_line(raw: bytes) -> None:
    """Nothing that stands in a file stops the reader."""
    line = Prefix().parse(1, clean(raw))
    assert line.number == 1
    journal.export_lines(1, raw)
    journal.json_lines(1, raw)
