"""Events of this box as the kernel logs them, for a person or a hook: the edge to /dev/kmsg."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from plimsoll.box.errors import UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident.clocks import Clocks
from plimsoll.box.incident.model import Event, Findings, Stamp
from plimsoll.box.incident.reader import Live
from plimsoll.box.incident.timeline import Timed

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192
"""The kernel hands over one record a read, of at most 1 KiB and its dictionary."""


def watch(host: Host, tell: Callable[[Timed], None]) -> None:
    """Tell of each event from now on, when its first record is complete; ends only where the log does.

    Raises UsageError where the kernel's log cannot be read.
    """
    try:
        kmsg = os.open(host.path(KMSG), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{KMSG}: {error.strerror}; run it as root, on the box itself") from error
    with os.fdopen(kmsg, "rb", buffering=0):
        with contextlib.suppress(OSError):
            os.lseek(kmsg, 0, os.SEEK_END)
        live = Live(KMSG)
        source = Findings(file=KMSG, boots=(_boot(),))
        for record in _records(kmsg):
            for event in live.feed(record):
                tell(_timed(event, source))


def _records(kmsg: int) -> Iterator[bytes]:
    while True:
        try:
            record = os.read(kmsg, RECORD_BYTES)
        except BrokenPipeError:
            continue  # the ring has been overwritten: the next read is of what is left
        if not record:
            return
        # what is indented under a record is its dictionary
        yield from (line for line in record.split(b"\n") if line and not line.startswith(b" "))


def _boot() -> Stamp:
    return Stamp(time.time(), "date", 0, time.monotonic())


def _timed(event: Event, source: Findings) -> Timed:
    moment = Clocks([source], time.time()).resolve(event.stamp, source)
    return Timed(event, moment, moment.at_s)
