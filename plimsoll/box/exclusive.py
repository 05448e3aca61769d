"""The one lock under which a host is changed: who holds it, and when the last change is over."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from plimsoll.box.errors import REFUSED, BoxError
from plimsoll.box.host import Host

LOCK = "/run/plimsoll/lock"
SETTLED_S = 30.0
"""A deploy holds the lock for each of its layers; between two of them lies a step of the operator's machine."""
SETTLE_LIMIT_S = 900.0
POLL_S = 1.0
RETRY_S = 0.05


class RefusedError(BoxError):
    """Another run holds the lock; try again later."""

    exit_code = REFUSED


@contextmanager
def exclusively(host: Host, *, wait: bool = False) -> Iterator[None]:
    """Hold the one lock under which a host is changed; when it is taken, wait, or raise RefusedError in a second."""
    os.makedirs(host.path(os.path.dirname(LOCK)), mode=0o755, exist_ok=True)
    descriptor = os.open(host.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, wait=wait)
        try:
            yield
        finally:
            os.utime(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int, *, wait: bool) -> None:
    """Take the lock; who only looks whether it is held (`settle`) holds it for a moment himself."""
    deadline_s = time.monotonic() + POLL_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise RefusedError("another plimsoll is changing this host; try again when it has ended") from error
            time.sleep(RETRY_S)
        else:
            return


def settle(host: Host, settled_s: float = SETTLED_S, limit_s: float = SETTLE_LIMIT_S) -> None:
    """Wait until nobody has changed the host for so long, or the limit is over: a deploy is most likely done then."""
    deadline_s = time.monotonic() + limit_s
    while (left_s := min(_unsettled_s(host, settled_s), deadline_s - time.monotonic())) > 0:
        time.sleep(left_s)


def _unsettled_s(host: Host, settled_s: float) -> float:
    """Return how long there is still to wait, as far as that can be told now."""
    try:
        descriptor = os.open(host.path(LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # a clock that was set back must not make it wait for ever
        return settled_s - abs(time.time() - os.fstat(descriptor).st_mtime)
    except BlockingIOError:
        return min(settled_s, POLL_S)
    finally:
        os.close(descriptor)
