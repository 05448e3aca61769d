"""Waiting for processes to end, by descriptor: an end is known at once, and nobody polls for it."""

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from plimsoll.box.host import Host
from plimsoll.box.systemctl import CGROUP

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Watch:
    """Some processes whose end matters. One that cannot be found has ended."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids: dict[int, int] = {}
        self.ended: set[int] = set()
        """Those that were seen to have ended, by number."""
        for pid in set(pids) - {0}:
            try:
                self._pids[os.pidfd_open(pid)] = pid
            except OSError:
                self.ended.add(pid)

    @property
    def is_empty(self) -> bool:
        """Whether there was nobody to be watched."""
        return not self._pids and not self.ended

    def wait(self, timeout_s: float | None, also: int | None = None) -> bool:
        """Wait until one of them has ended, or until `also`, a descriptor, can be read; say whether one has ended."""
        if self.ended:
            return True
        poll = select.poll()
        for descriptor in (*self._pids, *(() if also is None else (also,))):
            poll.register(descriptor, select.POLLIN)
        events = poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        self.ended |= {self._pids[descriptor] for descriptor, _ in events if descriptor in self._pids}
        return bool(self.ended)

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in self._pids:
            os.close(descriptor)
        self._pids.clear()


@contextmanager
def watching(pids: Iterable[int]) -> Iterator[Watch]:
    """Watch processes for as long as the block lasts."""
    watch = Watch(pids)
    try:
        yield watch
    finally:
        watch.close()


def members(host: Host, cgroup: str) -> tuple[int, ...]:
    """Return all processes in a cgroup and below it, the smallest number first; none where there is no such one."""
    if not cgroup.startswith("/") or cgroup == "/":
        return ()
    found: set[int] = set()
    for directory, _, names in os.walk(host.path(f"{CGROUP}{cgroup}")):
        if "cgroup.procs" in names:
            with suppress(OSError), open(f"{directory}/cgroup.procs", encoding="ascii") as file:
                found |= {int(word) for word in file.read().split()}
    return tuple(sorted(found - {0}))


def until(done: Callable[[], bool], timeout_s: float, tell: Callable[[float], None] = lambda _: None) -> bool:
    """Ask again and again, ever less often, until it is so; False at the deadline. `tell` is given the time waited.

    For what the kernel wakes nobody for: available memory, a port, what a daemon says.
    """
    began_s = time.monotonic()
    pause_s = FIRST_PAUSE_S
    while not done():
        left_s = began_s + timeout_s - time.monotonic()
        if left_s <= 0:
            return False
        tell(time.monotonic() - began_s)
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return True
