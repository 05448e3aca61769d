"""What the guard did and why, one record a line: for the file, the journal and the kernel's own log.

The thread that decides hands over an `Event`, plain data that nobody has formatted, and goes on. Two threads write.
The first has the kernel's log and the journal, neither of which it ever waits for; the second has the file, which on a
full or stalled disk may take minutes. So each reaches whom it can, whatever becomes of the others.
"""

import datetime
import errno
import json
import os
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from plimsoll.box.guard.logfile import LogFile
from plimsoll.box.guard.model import Action, Sample, Workload
from plimsoll.box.guard.worker import Worker
from plimsoll.box.host import Host
from plimsoll.box.texts import printable

SCHEMA = "plimsoll.guard/1"
PATH = "/var/log/plimsoll/guard.jsonl"
KMSG = "/dev/kmsg"
KMSG_SWITCH = "/proc/sys/kernel/printk_devkmsg"
JOURNAL = "/run/systemd/journal/socket"
MAX_FILE_BYTES = 16 << 20
"""Of the file and the one before it: a decision with 64 candidates is 10 KiB."""
WAITING_MAX = 1000
_KMSG_BYTES = 900
"""The kernel takes 1024 with its prefix, and refuses what is longer as a whole."""
_NAMES_MAX = 64
_TEXT_MAX = 300
_IDENTIFIER = "plimsoll-guard"
_DAEMON = 3 << 3
_WARNING, _NOTICE = 4, 5


class Kind(StrEnum):
    """What a record is about."""

    START = "start"
    DECISION = "decision"
    SIGNALLED = "signalled"
    RECOVERED = "recovered"
    RECLAIMED = "reclaimed"
    CONFIG = "config"
    RESERVATION = "reservation"
    WARNING = "warning"
    ARMING = "arming"
    STOP = "stop"


class Event(NamedTuple):
    """What there is to be written down; made where it happens, formatted elsewhere."""

    kind: Kind
    at_s: float
    """Of the monotonic clock."""
    unix_s: float
    text: str = ""
    """For a person; empty where `action` says it."""
    sample: Sample | None = None
    rate_kib_per_s: float | None = None
    """How fast memory fell; below 0 where it rose."""
    basis: str = ""
    action: Action | None = None
    victim: Workload | None = None
    """Where there is no action of which it is the victim."""
    timeline: tuple[tuple[str, float], ...] = ()
    """What happened when, of the monotonic clock."""
    came_back_kib: int | None = None
    recovered_after_s: float | None = None
    details: Mapping[str, Any] | None = None
    """More, as JSON types."""


def record(event: Event, boot_id: str, version: str) -> dict[str, Any]:
    """Return an event as JSON types, in the form of plimsoll.guard/1; what is not known of it is left out."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": event.kind.value,
        "at": _local_time(event.unix_s),
        "at_s": round(event.at_s, 6),
        "boot_id": boot_id,
        "version": version,
        "text": said(event),
    }
    if event.sample is not None:
        found["inputs"] = _inputs(event.sample, event)
    if event.action is not None:
        found |= _decision(event.action)
    elif event.victim is not None:
        found["victim"] = _workload(event.victim)
    if event.timeline:
        found["timeline"] = [{"what": what, "at_s": round(at_s, 6)} for what, at_s in event.timeline]
    rest = {
        "came_back_kib": event.came_back_kib,
        "recovered_after_s": event.recovered_after_s,
        "details": dict(event.details) if event.details is not None else None,
    }
    return {**found, **{name: value for name, value in rest.items() if value is not None}}


def said(event: Event) -> str:
    """Return what a person reads of an event."""
    action = event.action
    if event.text or action is None:
        return event.text
    victim = f" {shortened(action.victim.name)}" if action.victim else ""
    would = "" if action.armed else "would, if it were armed: "
    return f"{action.rule.value}: {would}{action.verb.value}{victim}: {action.reason}"


def _local_time(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).astimezone().isoformat(timespec="milliseconds")


def _inputs(sample: Sample, event: Event) -> dict[str, Any]:
    rate = event.rate_kib_per_s
    return {
        "available_kib": sample.available_kib,
        "free_kib": sample.free_kib,
        "full_percent": None if sample.full_percent is None else round(sample.full_percent, 2),
        "rate_kib_per_s": None if rate is None else round(rate),
        "regime": sample.regime,
        "basis": event.basis,
    }


def _decision(action: Action) -> dict[str, Any]:
    named = action.considered[:_NAMES_MAX]
    return {
        "rule": action.rule.value,
        "verb": action.verb.value,
        "armed": action.armed,
        "loop": action.loop,
        "reason": action.reason,
        "margins_kib": dict(action.margins_kib),
        "victim": None if action.victim is None else _workload(action.victim),
        "considered": [{"name": shortened(name), "reason": shortened(reason)} for name, reason in named],
        "considered_count": len(action.considered),
    }


def _workload(workload: Workload) -> dict[str, Any]:
    named = workload.processes[:_NAMES_MAX]
    return {
        "key": shortened(workload.key),
        "name": shortened(workload.name),
        "kind": workload.kind,
        "cgroup": shortened(workload.cgroup),
        "whole_cgroup": workload.whole_cgroup,
        "engine": workload.engine,
        "holds_gpu": workload.holds_gpu,
        "attributed_kib": workload.attributed_kib,
        "resident_kib": workload.resident_kib,
        "grew_kib": workload.grew_kib,
        "started_s": round(workload.started_s, 3),
        "processes": [{"pid": each.pid, "start_ticks": each.start_ticks} for each in named],
        "processes_count": len(workload.processes),
    }


def shortened(text: str) -> str:
    """Return at most the beginning of a text that somebody else chose the length of."""
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


# --- the three ways out -----------------------------------------------------------------------------


def kmsg_line(event: Event) -> bytes:
    """Return an event as one line for the kernel's log, which takes 900 bytes of ASCII from anybody."""
    text = printable(f"{_IDENTIFIER}: {said(event)}").encode("ascii", "backslashreplace")
    return b"<%d>%s" % (_DAEMON | _priority(event), text[: _KMSG_BYTES - 5])


def journal_message(event: Event, line: str) -> bytes:
    """Return an event in the journal's own protocol, with its record as a field."""
    action = event.action
    victim = action.victim if action else event.victim
    fields = {
        "MESSAGE": printable(said(event)),
        "PRIORITY": str(_priority(event)),
        "SYSLOG_IDENTIFIER": _IDENTIFIER,
        "PLIMSOLL_KIND": event.kind.value,
        "PLIMSOLL_RULE": action.rule.value if action else "",
        "PLIMSOLL_VERB": action.verb.value if action else "",
        "PLIMSOLL_VICTIM": shortened(victim.name) if victim else "",
        "PLIMSOLL_RECORD": line,
    }
    return b"".join(_journal_field(name, value) for name, value in fields.items() if value)


def _journal_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)


def _priority(event: Event) -> int:
    acts = event.action is not None and event.action.armed
    return _WARNING if acts or event.kind in (Kind.SIGNALLED, Kind.WARNING) else _NOTICE


class _Way:
    """One way out, and how often it has failed in a row."""

    def __init__(self, name: str, send: Callable[[Event, str], None]) -> None:
        self.name = name
        self._send = send
        self.lost = 0
        self.trouble = ""

    def write(self, event: Event, line: str) -> int:
        """Write; return how many records before this one it has lost, 0 where it fails again."""
        try:
            self._send(event, line)
        except OSError as error:
            self.lost += 1
            self.trouble = error.strerror or str(error)
            return 0
        lost, self.lost, self.trouble = self.lost, 0, ""
        return lost


class Scribe:
    """Writes down what it is given. `put` never waits; `troubles` says what cannot be written to."""

    def __init__(self, host: Host, version: str, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self._host = host
        self._version = version
        self._boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id") or "unknown"
        self._log = LogFile(host, PATH, max_file_bytes)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._kmsg = -1
        self._at_once = (_Way(KMSG, self._to_kmsg), _Way("the journal", self._to_journal))
        self._file = _Way(PATH, self._to_file)
        self._telling = Worker[Event]("scribe", self._tell, WAITING_MAX)
        self._filing = Worker[tuple[Event, str]]("scribe-file", self._keep, WAITING_MAX)

    def start(self) -> None:
        """Start both threads."""
        self._telling.start()
        self._filing.start()

    def put(self, event: Event) -> bool:
        """Hand over what is to be written; False where it was dropped, which is counted and written later."""
        return self._telling.put(event)

    @property
    def troubles(self) -> dict[str, str]:
        """What cannot be written to at present, and why."""
        ways = {way.name: way.trouble for way in (*self._at_once, self._file)}
        workers = {"records": self._telling.trouble, f"records for {PATH}": self._filing.trouble}
        return {name: trouble for name, trouble in {**ways, **workers}.items() if trouble}

    @property
    def backlog(self) -> int:
        """How many records wait for the file."""
        return self._filing.backlog

    @property
    def lost(self) -> int:
        """How many records the file lacks, of which it could not be told yet."""
        return self._file.lost

    def stop(self, timeout_s: float) -> bool:
        """Write what waits, for so long at most a thread; False where one of them is still at it."""
        if not (self._telling.stop(timeout_s) and self._filing.stop(timeout_s)):
            return False
        self._socket.close()
        self._log.close()
        if self._kmsg >= 0:
            os.close(self._kmsg)
        return True

    def _tell(self, event: Event) -> None:
        # what is no JSON type is told as text: a record less would be worse
        found = record(event, self._boot_id, self._version)
        line = json.dumps(found, ensure_ascii=True, separators=(",", ":"), default=str)
        for way in self._at_once:
            way.write(event, line)
        self._filing.put((event, line))

    def _keep(self, item: tuple[Event, str]) -> None:
        event, line = item
        lost = self._file.write(event, line)
        if self._file.trouble:
            return
        lost += self._telling.take_dropped() + self._filing.take_dropped()
        if lost:
            text = (
                f"{lost} records before this one are not in {PATH}: it could not be written to, or they were too many"
            )
            self._telling.put(Event(Kind.WARNING, event.at_s, event.unix_s, text, details={"lost": lost}))

    def _to_kmsg(self, event: Event, _line: str) -> None:
        if self._kmsg < 0:
            if self._host.text_or_none(KMSG_SWITCH) == "off":
                raise OSError(errno.EPERM, "the kernel drops what is written there (kernel.printk_devkmsg is off)")
            self._kmsg = os.open(self._host.path(KMSG), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(self._kmsg, kmsg_line(event))
        except OSError:
            descriptor, self._kmsg = self._kmsg, -1
            os.close(descriptor)
            raise

    def _to_journal(self, event: Event, line: str) -> None:
        address = self._host.path(JOURNAL)
        try:
            self._socket.sendto(journal_message(event, line), address)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            # a datagram takes about 200 KiB; who named things so that a record is longer gets the message alone
            self._socket.sendto(journal_message(event, ""), address)

    def _to_file(self, _event: Event, line: str) -> None:
        self._log.append(f"{line}\n".encode("ascii"), sync=True)


# --- reading them again -----------------------------------------------------------------------------


class Read(NamedTuple):
    """The records of a file, oldest first, and how many lines are none: torn, or zeros after a hard reset."""

    records: list[dict[str, Any]]
    unreadable: int


def read_records(text: str) -> Read:
    """Return the records of a file; whatever is in a line, the others are read."""
    records, unreadable = [], 0
    for line in text.split("\n"):
        content = line.replace("\0", "").strip()
        if not line.strip():
            continue
        found = _parsed(content)
        if found is None:
            unreadable += 1
        else:
            records.append(found)
    return Read(records, unreadable)


def _parsed(content: str) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None
