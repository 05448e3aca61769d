"""What is written down reaches whoever can be reached, in one piece, and never keeps the guard from its work."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import records
from plimsoll.box.guard.logfile import LogFile
from plimsoll.box.guard.model import Action, Process, Rule, Sample, Verb, Workload
from plimsoll.box.guard.records import Event, Kind, Scribe
from plimsoll.box.host import Host
from plimsoll.box.texts import printable
from tests.unit.builders import NEEDS_ROOT, write_tree
from tests.unit.test_docs import _fits

WAIT_S = 20.0
NASTY = 'evil\n{"schema":"plimsoll.guard/1"}\r\x1b[2J\x00\u202e\u2028\ud800'
SAMPLE = Sample(100.5, 5 << 20, 1 << 20, 12.345678, "C")


def _workload(name: str = "gemma", **changes: Any) -> Workload:  # noqa: ANN401  # any of the fields
    base: dict[str, Any] = {
        "key": f"/system.slice/{name}.scope",
        "kind": "container",
        "cgroup": f"/system.slice/{name}.scope",
        "whole_cgroup": True,
        "processes": (Process(4711, 99),),
        "engine": "vllm",
        "holds_gpu": True,
        "attributed_kib": None,
        "resident_kib": 5,
        "grew_kib": 7,
        "started_s": 1.23456789,
    }
    return Workload(name=name, **{**base, **changes})


def _action(name: str = "gemma", *, armed: bool = True, **changes: Any) -> Action:  # noqa: ANN401  # as above
    base: dict[str, Any] = {
        "verb": Verb.KILL,
        "rule": Rule.FLOOR,
        "armed": armed,
        "victim": _workload(name),
        "reason": "2.00 GiB available, below the floor of 3.00 GiB",
        "margins_kib": {"floor": -(1 << 20), "rate": -5, "slow": -7},
        "considered": ((name, "holds 80.00 GiB"),),
    }
    return Action(**{**base, **changes})


def _decision(name: str = "gemma", **changes: Any) -> Event:  # noqa: ANN401  # as above
    action = _action(name, **changes)
    timeline = (("sampled", 100.5), ("signalled", 100.502))
    return Event(Kind.DECISION, 100.5, 1764508126.25, "", SAMPLE, 1234.56, "MemAvailable", action, timeline=timeline)


def _note(kind: Kind = Kind.WARNING, text: str = "the disk is full", **changes: Any) -> Event:  # noqa: ANN401  # as above
    return Event(kind, 1.0, 1764508126.0, text, **changes)


# --- a record ---------------------------------------------------------------------------------------

EVENTS = [
    _decision(),
    _decision(armed=False, victim=None, verb=Verb.NOBODY, loop=True),
    _decision(NASTY),
    _decision(considered=(("x" * 5000, "y" * 5000),) * 500, victim=_workload(processes=(Process(1, 2),) * 5000)),
    _decision()._replace(sample=Sample(1.0, None)),
    _decision()._replace(kind=Kind.SIGNALLED, details={"outcome": "signalled", "how": "cgroup.kill"}),
    _note(Kind.WARNING, "still there", victim=_workload(), timeline=(("signalled", 2.0),), came_back_kib=-5),
    _note(Kind.SIGNALLED, "sent", victim=_workload(), timeline=(("signal", 2.0),)),
    _note(Kind.RECOVERED, "back", victim=_workload(), came_back_kib=90 << 20, recovered_after_s=4.25),
    _note(Kind.RECLAIMED, "the pool was emptied", came_back_kib=5, recovered_after_s=6.1, sample=SAMPLE),
    *(_note(kind, "said", details={"more": [1, None]}) for kind in Kind if kind is not Kind.DECISION),
]


@pytest.mark.parametrize("event", EVENTS, ids=[f"{number}-{event.kind}" for number, event in enumerate(EVENTS)])
def test_a_record_fits_its_schema(event: Event) -> None:
    """Every kind of record has the promised form, whatever things are called and however many there are."""
    found = records.record(event, "b0071d", "0.1.0")
    _fits("guard", found)
    assert len(json.dumps(found)) < 128 << 10


def test_what_a_decision_says() -> None:
    """A decision holds what it was made from, in figures, and one line for a person."""
    found = records.record(_decision(), "b0071d", "0.1.0")
    assert found["text"] == "floor: kill gemma: 2.00 GiB available, below the floor of 3.00 GiB"
    assert found["inputs"] == {
        "available_kib": 5 << 20,
        "free_kib": 1 << 20,
        "full_percent": 12.35,
        "rate_kib_per_s": 1235,
        "regime": "C",
        "basis": "MemAvailable",
    }
    assert (found["rule"], found["verb"], found["armed"]) == ("floor", "kill", True)
    assert found["victim"]["processes"] == [{"pid": 4711, "start_ticks": 99}]
    assert found["timeline"][1] == {"what": "signalled", "at_s": 100.502}


def test_an_observing_rule_says_would() -> None:
    """What was not done is not told as if it had been."""
    assert records.said(_decision(armed=False)).startswith("floor: would, if it were armed: kill gemma: ")


# --- texts --------------------------------------------------------------------------------------------


@given(st.text(max_size=400))
def test_no_name_breaks_a_line(name: str) -> None:
    """In every form a record is one line, of plain characters where a terminal may show it, and can be read again."""
    event = _decision(name)
    line = records.kmsg_line(event)
    assert len(line) <= 900
    assert b"\n" not in line
    assert all(32 <= byte < 127 for byte in line)
    text = json.dumps(records.record(event, "b", "v"))
    assert text.isascii()
    assert "\n" not in text
    assert records.read_records(f"{text}\n{text}\n").unreadable == 0


def test_the_kernel_is_told_how_bad_it_is() -> None:
    """What was done is a warning of a daemon, what was only said a notice."""
    assert records.kmsg_line(_decision()).startswith(b"<28>plimsoll-guard: floor: kill gemma")
    assert records.kmsg_line(_decision(armed=False)).startswith(b"<29>plimsoll-guard: ")


def _journal_fields(message: bytes) -> dict[str, str]:
    """Read the journal's protocol as journald does."""
    found = {}
    while message:
        head, _, message = message.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(message[:8], "little")
            value, message = message[8 : 8 + size], message[8 + size + 1 :]
        found[name.decode()] = value.decode()
    return found


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_the_journals_protocol(name: str) -> None:
    """A name cannot add a field of its own: one with a newline goes by its length."""
    event = _decision(name)
    found = _journal_fields(records.journal_message(event, "{}"))
    assert found["MESSAGE"] == printable(records.said(event))
    assert found.get("PLIMSOLL_VICTIM", "") == name
    assert (found["PLIMSOLL_RULE"], found["PRIORITY"], found["SYSLOG_IDENTIFIER"]) == ("floor", "4", "plimsoll-guard")
    assert set(found) <= {
        "MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "PLIMSOLL_KIND", "PLIMSOLL_RULE", "PLIMSOLL_VERB",
        "PLIMSOLL_VICTIM", "PLIMSOLL_RECORD",
    }  # fmt: skip


# --- reading them again -----------------------------------------------------------------------------


def test_records_after_a_hard_reset() -> None:
    """Zeros, a torn line and other people's lines are left out and counted; all others are read."""
    whole = json.dumps(records.record(_note(), "b", "v"))
    text = f"{whole}\n\0\0\0\0{whole}\n\n{{}}\n[1]\n{'[' * 100000}\n\0\0\0\0\n{whole}\n{whole[:40]}"
    found = records.read_records(text)
    assert len(found.records) == 3
    assert found.unreadable == 5


# --- all three together -----------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> Host:
    """A machine with a kernel's log and a place for the file."""
    write_tree(tmp_path, {"/dev/kmsg": "", "/proc/sys/kernel/random/boot_id": "b0071d\n"})
    (tmp_path / "var/log/plimsoll").mkdir(parents=True)
    return Host(str(tmp_path))


@pytest.fixture
def journal(box: Host) -> Iterator[socket.socket]:
    """A journal that is never read from unless a test does."""
    Path(box.path(records.JOURNAL)).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(box.path(records.JOURNAL))
        listening.settimeout(WAIT_S)
        yield listening


def _written(host: Host, *events: Event) -> Scribe:
    scribe = Scribe(host, "0.1.0")
    scribe.start()
    for event in events:
        assert scribe.put(event)
    assert scribe.stop(WAIT_S)
    return scribe


def _file(host: Host) -> list[dict[str, Any]]:
    return records.read_records(host.text_or_none(records.PATH) or "").records


def test_all_three_are_told(box: Host, journal: socket.socket) -> None:
    """A record is in the kernel's log, the journal and the file, and nothing is the matter."""
    scribe = _written(box, _decision(), _note(Kind.STOP, "stopped"))
    assert box.text(records.KMSG).count("plimsoll-guard: ") == 2
    fields = _journal_fields(journal.recv(1 << 20))
    assert [each["kind"] for each in _file(box)] == ["decision", "stop"]
    assert json.loads(fields["PLIMSOLL_RECORD"]) == _file(box)[0]
    assert _file(box)[0]["boot_id"] == "b0071d"
    assert (scribe.troubles, scribe.backlog) == ({}, 0)


def test_whoever_is_not_there(box: Host) -> None:
    """Without a journal and a kernel's log the file has the record, and it is said which two have not."""
    Path(box.path(records.KMSG)).unlink()
    scribe = _written(box, _note())
    assert len(_file(box)) == 1
    assert set(scribe.troubles) == {records.KMSG, "the journal"}


def test_a_kernel_that_drops_it(box: Host, journal: socket.socket) -> None:
    """Where the kernel takes such lines and drops them, it does not count as told."""
    assert journal.fileno() >= 0
    write_tree(Path(box.root), {records.KMSG_SWITCH: "off\n"})
    scribe = _written(box, _note())
    assert "printk_devkmsg" in scribe.troubles[records.KMSG]
    assert box.text(records.KMSG) == ""


def test_a_kernels_log_that_fails_once(box: Host, journal: socket.socket) -> None:
    """A log that could not be written to is opened again for the next record."""
    assert journal.fileno() >= 0
    path = Path(box.path(records.KMSG))
    path.unlink()
    scribe = Scribe(box, "0.1.0")
    scribe.start()
    scribe.put(_note())
    _await(lambda: records.KMSG in scribe.troubles)
    path.write_text("")
    scribe.put(_note())
    assert scribe.stop(WAIT_S)
    assert scribe.troubles == {}
    assert path.read_text().startswith("<28>plimsoll-guard: the disk is full")


def test_a_file_that_hangs(box: Host, journal: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk takes nothing, the journal is told, whoever hands over goes on, and the end is not waited for."""
    go_on = threading.Event()
    monkeypatch.setattr(LogFile, "append", lambda *_, **__: go_on.wait(WAIT_S))
    scribe = Scribe(box, "0.1.0")
    scribe.start()
    assert all(scribe.put(_note()) for _ in range(5))
    for _ in range(5):
        assert journal.recv(1 << 20)
    assert not scribe.stop(0.05)
    go_on.set()
    assert scribe.stop(WAIT_S)


def test_a_journal_that_has_stopped(box: Host, journal: socket.socket) -> None:
    """A journal that reads nothing any more is not waited for."""
    assert journal.fileno() >= 0
    scribe = _written(box, *[_decision()] * 300)
    assert len(_file(box)) == 300
    assert set(scribe.troubles) == {"the journal"}


def test_a_record_larger_than_a_datagram(box: Host, journal: socket.socket) -> None:
    """Where the record is too large for the journal, its message goes there, and the record into the file."""
    huge = "\U0001f4a5" * 100_000
    scribe = _written(box, _note(Kind.CONFIG, "changed", details={"what": huge}))
    fields = _journal_fields(journal.recv(1 << 20))
    assert fields["MESSAGE"] == "changed"
    assert "PLIMSOLL_RECORD" not in fields
    assert _file(box)[0]["details"]["what"] == huge
    assert scribe.troubles == {}


@NEEDS_ROOT
def test_a_file_that_cannot_be_written(box: Host, journal: socket.socket) -> None:
    """The others are told at once; when the file can be written again, it says how many records it lacks."""
    directory = Path(box.path(records.PATH)).parent
    directory.chmod(0o777)
    scribe = Scribe(box, "0.1.0")
    scribe.start()
    for _ in range(3):
        scribe.put(_decision())
    messages = [_journal_fields(journal.recv(1 << 20))["PLIMSOLL_KIND"] for _ in range(3)]
    assert messages == ["decision"] * 3
    _await(lambda: scribe.lost == 3)
    assert "somebody else" in scribe.troubles[records.PATH]
    directory.chmod(0o755)
    scribe.put(_note())
    _await(lambda: len(_file(box)) == 2)
    assert scribe.stop(WAIT_S)
    assert [each["kind"] for each in _file(box)] == ["warning", "warning"]
    assert _file(box)[1]["details"] == {"lost": 3}
    assert scribe.troubles == {}


def _await(condition: Any) -> None:  # noqa: ANN401  # a function without arguments
    tick = threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("did not come true")


def test_what_is_no_json(box: Host) -> None:
    """A detail of another type is told as text."""
    _written(box, _note(details={"path": Path("/x")}))
    assert _file(box)[0]["details"] == {"path": "/x"}


def test_an_event_that_cannot_be_written(box: Host) -> None:
    """What cannot even be told as text ends nothing: the next record is written."""
    endless: dict[str, Any] = {}
    endless["itself"] = endless
    _written(box, _note(details=endless), _note())
    assert len(_file(box)) == 1
