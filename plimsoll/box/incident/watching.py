"""Events of this box as the kernel logs them, for a person or a hook: the edge to /dev/kmsg."""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from plimsoll.box.errors import UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident import document
from plimsoll.box.incident.clocks import Clocks
from plimsoll.box.incident.model import Event, Findings, Note, Stamp
from plimsoll.box.incident.reader import Live
from plimsoll.box.incident.timeline import Timed, TimedNote
from plimsoll.box.incident.wording import describe

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192
"""The kernel hands over one record a read, of at most 1 KiB and its dictionary."""
STDOUT = 1
EARLY_SIGNS = frozenset({"allocation_failure", "allocation_stall", "driver_fault", "pcie"})
"""Notes that come before an incident; each kind is told once a minute: a storm has thousands a second."""
EVERY_S = 60.0


class Told(NamedTuple):
    """An event or an early sign, for programs and for people."""

    document: dict[str, Any]
    text: str


def watch(host: Host, tell: Callable[[Told], None]) -> None:
    """Tell of each event and early sign from now on, when its first record is complete; ends only where the log does.

    Raises UsageError where the kernel's log cannot be read.
    """
    try:
        kmsg = os.open(host.path(KMSG), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{KMSG}: {error.strerror}; run it as root, on the box itself") from error
    with os.fdopen(kmsg, "rb", buffering=0):
        with contextlib.suppress(OSError):
            os.lseek(kmsg, 0, os.SEEK_END)
        live, signs = Live(KMSG), _Signs()
        for record in _records(kmsg):
            for found in live.feed(record):
                if isinstance(found, Event) or signs.are_due(found, time.monotonic()):
                    tell(_told(found))


class _Signs:
    def __init__(self) -> None:
        self._told_at_s: dict[str, float] = {}

    def are_due(self, note: Note, now_s: float) -> bool:
        """Say whether a note is an early sign of a kind that was not told within the last minute."""
        due = note.kind in EARLY_SIGNS and now_s - self._told_at_s.get(note.kind, -EVERY_S) >= EVERY_S
        if due:
            self._told_at_s[note.kind] = now_s
        return due


def _records(kmsg: int) -> Iterator[bytes]:
    ready = select.poll()
    ready.register(kmsg, select.POLLIN)
    # asked for nothing, it still says when nobody reads any more what is told: the other end of a lost connection
    ready.register(STDOUT, 0)
    while not any(file == STDOUT and event & (select.POLLERR | select.POLLHUP) for file, event in ready.poll()):
        try:
            record = os.read(kmsg, RECORD_BYTES)
        except BrokenPipeError:
            continue  # the ring has been overwritten: the next read is of what is left
        if not record:
            return
        # what is indented under a record is its dictionary
        yield from (line for line in record.split(b"\n") if line and not line.startswith(b" "))


def _told(found: Event | Note) -> Told:
    # the clock of the day may be set while this runs
    source = Findings(file=KMSG, boots=(Stamp(time.time(), "date", 0, time.monotonic()),))
    moment = Clocks([source], time.time()).resolve(found.stamp, source)
    if isinstance(found, Note):
        return Told(document.note(TimedNote(found, moment)), f"{moment.text}  {found.text}")
    return Told(document.event(Timed(found, moment, moment.at_s)), f"{moment.text}  {describe(found)}")
