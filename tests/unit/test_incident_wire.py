"""What a box hands over arrives as it was, and what is something else is refused."""

import json
from typing import Any

import pytest

from plimsoll.box.incident import reader, timeline, wire
from plimsoll.box.incident.document import document
from plimsoll.box.incident.model import Findings
from tests.unit.incident_logs import NOW_S
from tests.unit.test_incident_cli import EVERYTHING


def _sources() -> list[Findings]:
    """Return sources that hold an event of each kind, notes, a memory report, samples, and one that is unreadable."""
    contents = (*EVERYTHING, b"LPKSHHRH")
    return [reader.read(f"log{number}", [content], NOW_S) for number, content in enumerate(contents)]


def _over(found: list[Findings], about: wire.About) -> wire.Receiver:
    receiver = wire.Receiver()
    for line in [line for each in found for line in wire.of_findings(each)] + [wire.of_box(about)]:
        assert receiver.take(line)
    return receiver


def test_all_arrives_as_it_was() -> None:
    """Events, notes, places, stamps, samples, problems: the answer made of them is the same."""
    found = _sources()
    about = wire.About(NOW_S, ("gx10",), ("the guard runs",), {"/var/log/kern.log": "there is none"}, {"/proc/x": "y"})
    receiver = _over(found, about)
    assert receiver.about == about
    assert [each.events for each in receiver.found] == [each.events for each in found]
    before, after = (document(timeline.build(each, NOW_S), {}) for each in (found, receiver.found))
    assert json.loads(json.dumps(after)) == json.loads(json.dumps(before))
    assert before["class"] is not None


@pytest.mark.parametrize(
    "line", ["", "Welcome to gx10\n", "{}", "[1]", '{"schema": "plimsoll.audit/1"}', "{" * 100_000, "\x00\xff"]
)
def test_what_a_login_prints_is_passed_over(line: str) -> None:
    """A banner, JSON of another kind and noise are no part of it, and no error."""
    assert not wire.Receiver().take(line)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"event": {"kind": "surprise"}}, "another version"),
        ({"event": {"kind": "boot", "place": ["f", 1], "stamp": [], "raw": "x", "more": 1}}, "no 'more' here"),
        ({"event": {"kind": "boot", "place": ["f", "one"], "stamp": [], "raw": "x"}}, "str where another"),
        ({"event": {"kind": "boot", "raw": "x"}}, "missing"),
        ({"note": {"kind": 7, "text": "x", "place": ["f", 1]}}, "int where another"),
        ({"source": []}, "list where another"),
        ({"source": {"file": "f", "dates": [[2026, 1]]}}, "2 values instead of 3"),
        ({"source": {"file": "f", "platform": {"kernel": True}}}, "bool where another"),
        ({"box": {"now_s": "soon"}}, "str where another"),
    ],
)
def test_what_is_not_of_its_type_is_refused(what: dict[str, Any], said: str) -> None:
    """Every value is fitted to the type that it should have; the first that is not ends it."""
    with pytest.raises(wire.WireError, match=said):
        wire.Receiver().take(json.dumps({"schema": wire.SCHEMA, **what}))


def test_without_the_last_line_it_is_not_complete() -> None:
    """Only the box's own line says that nothing is missing."""
    receiver = wire.Receiver()
    for line in wire.of_findings(_sources()[0]):
        receiver.take(line)
    assert receiver.found
    assert receiver.about is None


def test_what_it_is_at() -> None:
    """The other side says what it reads, which is shown and no part of the answer."""
    receiver = wire.Receiver()
    assert receiver.take(wire.of_progress("/var/log/kern.log"))
    assert receiver.reading == "/var/log/kern.log"
    assert not receiver.found
