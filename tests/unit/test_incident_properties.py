"""Whatever is done to a log, the records in it that are whole give the same events, and nothing stops the reader."""

# ruff: noqa: E501  # log lines are as long as they are printed

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.box.incident import document, reader, report, scan, timeline
from tests import fuzz_incident
from tests.unit.incident_logs import HARD, HUNG, KILLED, NOW_S, OWNER, REAPED, SOFT, SUMMARY, answer, kern_log
from tests.unit.incident_logs import report as oom_report

RECORDS = (
    oom_report(),
    [SOFT.format(1336)],
    [HARD],
    [HUNG.format(122), OWNER],
    ["NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."],
    ["watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]"],
    ["rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"],
    [SUMMARY.replace("4242", "77"), KILLED.replace("4242", "77"), REAPED.replace("4242", "77")],
    ["Kernel panic - not syncing: Fatal exception"],
)
"""Each is whole, and of another kind or task than the others."""
NOISE = st.sampled_from([
    b"2026-09-12T13:08:10.000000+00:00 gx10 systemd[1]: Started Session 9 of User a.\n",
    b"2026-09-12T13:08:10.000000+00:00 gx10 kernel: [ 5000.000000] usb 1-2: new high-speed USB device\n",
    b'2026-09-12T13:08:10.000000+00:00 gx10 kernel: [ 5000.000000] audit: type=1400 apparmor="DENIED" comm="a room"\n',
    b"2026-09-12T13:08:10.000000+00:00 gx10 app[9]: something: Out of memory: Killed process 1 (init)\n",
    b"2026-09-12T13:08:10.000000+00:00 gx10 kernel: [ 5000.000000] \xff\xfe\x00 broken\n",
    b"\n",
    b"-- noise --\n",
])  # fmt: skip


def _rows(order: tuple[int, ...]) -> list[list[bytes]]:
    """The records in some order, each as its lines, an hour apart."""
    return [
        kern_log(RECORDS[record], start=f"2026-09-12T{hour:02d}:08:", uptime_s=3600.0 * hour).splitlines(keepends=True)
        for hour, record in enumerate(order)
    ]


def _facts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that are records, without their places; a gap is where there is none."""
    hidden = ("source", "also_in")
    records = (event for event in found["events"] if event["kind"] != "gap")
    return [{key: value for key, value in event.items() if key not in hidden} for event in records]


ORDERS = st.permutations(range(len(RECORDS))).map(tuple)


@settings(max_examples=10, deadline=None)
@given(ORDERS, st.data())
def test_noise_changes_no_event(order: tuple[int, ...], data: st.DataObject) -> None:
    """Lines of others, before, between and within records, change nothing about them."""
    rows = _rows(order)
    plain = b"".join(itertools.chain.from_iterable(rows))
    mixed = b"".join(row + data.draw(NOISE) if data.draw(st.booleans()) else row for record in rows for row in record)
    assert _facts(answer(mixed)) == _facts(answer(plain))


@settings(max_examples=10, deadline=None)
@given(ORDERS, st.data())
def test_a_split_between_records_changes_no_event(order: tuple[int, ...], data: st.DataObject) -> None:
    """A log that was rotated, read in any order of its parts, has the events of the whole."""
    rows = [b"".join(record) for record in _rows(order)]
    cut = data.draw(st.integers(0, len(rows)))
    parts = {"b.log": b"".join(rows[:cut]), "a.log": b"".join(rows[cut:])}
    names = data.draw(st.permutations(sorted(parts)))
    found = [reader.read(name, [parts[name]]) for name in names]
    split = document.document(timeline.build(found, NOW_S), {})
    assert _facts(split) == _facts(answer(b"".join(rows)))


@settings(max_examples=10, deadline=None)
@given(ORDERS, st.data())
def test_a_split_within_a_record_leaves_the_others(order: tuple[int, ...], data: st.DataObject) -> None:
    """Cut anywhere, all records but the one that was cut have the same events."""
    rows = [b"".join(record) for record in _rows(order)]
    broken = data.draw(st.integers(0, len(rows) - 1))
    # behind its stamp: a shorter scrap cannot be told from the wrapped end of the line before
    offset = data.draw(st.integers(40, len(rows[broken]) - 1))
    before, after = b"".join(rows[:broken]), b"".join(rows[broken + 1 :])
    parts = [before + rows[broken][:offset], rows[broken][offset:] + after]
    whole = _facts(answer(before + after))
    assert [fact for fact in _facts(answer(*parts)) if fact in whole] == whole


@settings(max_examples=10, deadline=None)
@given(ORDERS, st.integers(1, 5000))
def test_the_size_of_the_blocks_does_not_matter(order: tuple[int, ...], size: int) -> None:
    """However a pipe hands a log over, the same comes out."""
    text = b"".join(itertools.chain.from_iterable(_rows(order)))
    blocks = [text[n : n + size] for n in range(0, len(text), size)]
    one, two = reader.read("x", blocks), reader.read("x", [text])
    assert (one.events, one.notes, one.lines, one.bytes) == (two.events, two.notes, two.lines, two.bytes)


WALL_S = 1_789_218_490
"""2026-09-12T13:08:10Z."""


def _json(n: int, message: str) -> str:
    return json.dumps({
        "__REALTIME_TIMESTAMP": str(WALL_S * 1_000_000 + n), "_SOURCE_MONOTONIC_TIMESTAMP": str(5_000_000_000 + n),
        "_TRANSPORT": "kernel", "MESSAGE": message, "_HOSTNAME": "gx10",
    })  # fmt: skip


FORMS: dict[str, Callable[[int, str], str]] = {
    "syslog": lambda n, m: f"Sep 12 13:08:10 gx10 kernel: [ 5000.{n:06d}] {m}",
    "syslog without uptime": lambda _n, m: f"Sep 12 13:08:10 gx10 kernel: {m}",
    "rsyslog": lambda n, m: f"2026-09-12T13:08:10.{n:06d}+00:00 gx10 kernel: [ 5000.{n:06d}] {m}",
    "short-iso": lambda _n, m: f"2026-09-12T13:08:10+0000 gx10 kernel: {m}",
    "short-precise": lambda n, m: f"Sep 12 13:08:10.{n:06d} gx10 kernel: {m}",
    "short-unix": lambda n, m: f"{WALL_S}.{n:06d} gx10 kernel: {m}",
    "short-full": lambda _n, m: f"Sat 2026-09-12 13:08:10 UTC gx10 kernel: {m}",
    "short-monotonic": lambda n, m: f"[ 5000.{n:06d}] gx10 kernel: {m}",
    "cat": lambda _n, m: m,
    "dmesg": lambda n, m: f"[ 5000.{n:06d}] {m}",
    "dmesg with callers": lambda n, m: f"[ 5000.{n:06d}] [   T1701] {m}",
    "dmesg -T": lambda _n, m: f"[Sat Sep 12 13:08:10 2026] {m}",
    "dmesg -H": lambda n, m: f"[Sep12 13:08] {m}" if n == 0 else f"[  +0.000001] {m}",
    "dmesg -x iso": lambda n, m: f"kern  :err   : 2026-09-12T13:08:10,{n:06d}+00:00 {m}",
    "kmsg": lambda n, m: f"3,{n},{5_000_000_000 + n},-;{m}",
    "netconsole": lambda n, m: f"6.17.0,3,{n},{5_000_000_000 + n},-;{m}",
    "pstore": lambda n, m: f"<3>[ 5000.{n:06d}] {m}",
    "json": _json,
    "export": lambda n, m: f"__REALTIME_TIMESTAMP={WALL_S * 1_000_000 + n}\n_TRANSPORT=kernel\nMESSAGE={m}\n",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_log_gives_the_same(form: str) -> None:
    """Whatever program wrote the log out, kinds, victims, owners, memory and tables are the same."""
    messages = [*oom_report(), HUNG.format(122), OWNER, HARD]
    text = "".join(f"{FORMS[form](n, message)}\n" for n, message in enumerate(messages))
    told = ("kind", "victim", "invoker", "scope", "memory", "tasks", "why", "task", "owner", "severity", "function")
    wanted, found = (
        [{key: value for key, value in event.items() if key in told} for event in answer(log)["events"]]
        for log in (kern_log(messages), text)
    )
    assert found == wanted
    assert len(found) == 3


def _padding() -> bytes:
    line = (
        "2026-09-12T00:00:0{}.000000+00:00 gx10 kernel: [    1.000000] usb 1-{}: new high-speed USB device number 5\n"
    )
    return "".join(line.format(n % 10, n % 9) for n in range(2000)).encode()


@pytest.mark.parametrize("record", range(len(RECORDS)), ids=lambda n: RECORDS[n][-1][:30])
def test_a_large_log_gives_what_a_small_one_gives(record: int) -> None:
    """Of a large log only lines with certain words are read; they are enough for every kind of record."""
    small = b"".join(itertools.chain.from_iterable(_rows((record,))))
    padding = _padding()
    assert len(padding) > reader.SMALL_BYTES
    assert _facts(answer(padding + small + padding)) == _facts(answer(small))


def test_only_a_few_lines_of_a_large_log_are_taken_apart() -> None:
    """Else it could not be read at the speed of a search."""
    padding = _padding()
    cutter = scan.Cutter()
    text = padding + kern_log([SOFT.format(1)]) + padding
    units = list(cutter.units([text]))
    assert [unit.number for unit in units] == [2001]
    assert (cutter.lines, cutter.bytes) == (4001, len(text))


def test_search_without_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library has no memmem, Python's own search finds the same."""
    text = _padding() + b"".join(itertools.chain.from_iterable(_rows(tuple(range(len(RECORDS))))))
    found = scan.hits(text, 0, len(text))
    monkeypatch.setattr(scan, "_MEMMEM", None)
    assert scan.hits(text, 0, len(text)) == found
    assert found


def _lines(seconds: list[int]) -> bytes:
    return "".join(
        f"2026-09-12T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}+00:00 gx10 app[7]: x\n" for s in seconds
    ).encode()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=2, max_size=90), st.integers(1, 4000))
def test_silences_are_all_found(steps: list[int], size: int) -> None:
    """Looking at few lines finds every time without a line, and no other."""
    seconds = list(itertools.accumulate(steps))
    found = scan.Silences(reader.line_clock())
    text = _lines([s for s in seconds if s < 86_400])
    cutter = scan.Cutter(silences=found)
    list(cutter.units(text[n : n + size] for n in range(0, len(text), size)))
    kept = [s for s in seconds if s < 86_400]
    gaps = [(n, b - a) for n, (a, b) in enumerate(itertools.pairwise(kept), 1) if b - a >= scan.SILENCE_S]
    assert found.count == len(gaps)
    assert {silence.before.number for silence in found.longest} <= {number for number, _ in gaps}


ALPHABET = st.sampled_from([
    b"oom-kill:", b"constraint=", b"task=", b",pid=", b"invoked oom-killer: ", b"Killed process ", b"(", b")", b" total-vm:",
    b"9", b"NVRM: ", b"Xid (", b"INFO: task ", b":1", b" blocked for more than ", b" seconds.", b"kernel: ", b"[ 1.5] ",
    b"Sep 12 08:44:22 h ", b"\n", b"\n", b"\x00", b"\xff", b"[  pid  ]   uid  tgid total_vm      rss name\n", b"[ 1] 0 1 2 3 x\n",
    b"{", b'"MESSAGE":', b"__CURSOR=", b"mem avail: ", b"Linux version ", b"Free swap = 5kB", b"active_anon:5", b"1*4kB ",
    b"message repeated 3 times: [ ", b"]", b"Node 0 Normal free:5kB min:9kB", b"ts,avail\n", b"1,2\n", b"\x1b[31m", b"`> ",
])  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(ALPHABET, max_size=60).map(b"".join))
def test_nothing_stops_the_reader(text: bytes) -> None:
    """Fragments of everything in any order give a document and a text, never an error."""
    line = timeline.build([reader.read("x", [text])], NOW_S)
    document.document(line, {})
    assert all(isinstance(row, str) for row in report.lines(line, {}, verbose=True))


def _endless(line: bytes, megabytes: int) -> Iterator[bytes]:
    block = line * ((1 << 20) // len(line) + 1)
    for _ in range(megabytes):
        yield block


@pytest.mark.parametrize(
    "line",
    [b"\x00" * 4096, b"NVRM: Xid (PCI:0000:01:00): 13, pid=1, x\n", b"oom" * 1000, b"x invoked oom-killer: order=0\n"],
)
def test_memory_is_bounded(line: bytes) -> None:
    """Megabytes of NUL bytes, of one long line, or of nothing but events are read without keeping them."""
    found = reader.read("x", _endless(line, 1))
    assert found.bytes >= 1 << 20
    assert len(found.events) <= 20_000


def test_a_mutation_anywhere_is_survived() -> None:
    """A byte lost or changed at any place of a report gives at most that report's event."""
    text = kern_log(oom_report()[-4:])
    for at in range(0, len(text), 23):
        for mutated in (
            text[:at] + text[at + 1 :],
            text[:at] + b"\x00" + text[at + 1 :],
            text[:at] + b"\n" + text[at:],
        ):
            assert len(answer(mutated)["events"]) <= 2


@pytest.mark.parametrize("number", [12511, 62079])
def test_inputs_that_once_ended_it(number: int) -> None:
    """Numbers of thousands of digits, where memory is counted: found by tests.fuzz_incident."""
    dice = random.Random(number)  # noqa: S311  # to be repeated, not to be secret
    fuzz_incident.read(fuzz_incident.mutated(dice, fuzz_incident.seeds()), dice)
