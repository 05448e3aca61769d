"""One lock on the box: whoever starts or stops a model holds it, and says who he is and since when.

The kernel gives it back when its holder has ended, however that happened; what he has written down is only said.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from plimsoll.box import files
from plimsoll.box.errors import REFUSED, BoxError
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.host import Host
from plimsoll.box.observing import regular_text

LOCK = "/run/plimsoll/serve.lock"
"""Root's alone: whoever may open it could take it, and keep it."""
HOLDER = "/run/plimsoll/serve.by"
"""Who says that he has it, for everybody to read."""
_MAX_BYTES = 4096


class BusyError(BoxError):
    """Somebody else starts or stops a model; it may succeed later."""

    exit_code = REFUSED


@dataclass(frozen=True)
class Actor:
    """Who acts: a process, told from a later one of its number by its start, and since when (monotonic clock)."""

    pid: int
    start_ticks: int
    what: str
    """The command, for people."""
    since_s: float


def myself(what: str) -> Actor:
    """Return this process as somebody who acts from now on."""
    stat = read_stat(Host(), os.getpid())
    return Actor(os.getpid(), stat.start_ticks if stat else 0, what, time.monotonic())


@contextmanager
def exclusively(host: Host, what: str, *, wait: bool = False) -> Iterator[Actor]:
    """Hold the lock; raises BusyError, which names the holder, where somebody has it and `wait` is not given."""
    path = host.path(LOCK)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise BusyError(_busy(holder(host))) from error
        actor = myself(what)
        # who holds the lock is only said: where there is no room to say it, models can be stopped all the same
        with suppress(OSError):
            _say_who(host.path(HOLDER), actor)
        try:
            yield actor
        finally:
            with suppress(FileNotFoundError):
                os.unlink(host.path(HOLDER))
    finally:
        os.close(descriptor)


def _say_who(path: str, actor: Actor) -> None:
    """Write down who holds the lock, whole or not at all; nobody else writes there, and no reset is outlived."""
    temporary = f"{path}{files.TEMPORARY_SUFFIX}"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        os.write(descriptor, json.dumps(asdict(actor)).encode())
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def holder(host: Host) -> Actor | None:
    """Return who holds the lock, by his own word and as long as he lives; None where nobody says that he does."""
    try:
        found = json.loads(regular_text(host, HOLDER, _MAX_BYTES))
        actor = Actor(int(found["pid"]), int(found["start_ticks"]), str(found["what"]), float(found["since_s"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    stat = read_stat(Host(), actor.pid)
    return actor if stat is not None and not stat.is_dead and stat.start_ticks == actor.start_ticks else None


def _busy(actor: Actor | None) -> str:
    if actor is None:
        return "somebody else is starting or stopping a model; try again when he has ended"
    age_s = max(0.0, time.monotonic() - actor.since_s)
    return (
        f"{actor.what} (pid {actor.pid}) has been at work for {age_s:.0f} s; try again when it has ended. "
        f"kill {actor.pid} ends it, and it cleans up"
    )
