"""Fresh logins, one every two seconds, several at a time: a login that hangs does not stop the next one."""

import os
import selectors
import time
from collections.abc import Callable
from subprocess import Popen
from typing import NamedTuple

INTERVAL_S = 2.0
LIMIT_S = 30.0
"""How long one login may take; then it counts as not having come back."""


class Login(NamedTuple):
    """One login: when it began, seconds it took or was waited for, and whether it came back."""

    at_s: float
    took_s: float
    ok: bool

    @property
    def timed_out(self) -> bool:
        """Whether it hung until its limit."""
        return not self.ok and self.took_s >= LIMIT_S


Start = Callable[[], Popen[bytes]]
Seen = Callable[[Login], None]


class Prober:
    """Starts logins at their times and waits for them, without looking at anything in between.

    `at_s` counts from `started_s`, a reading of time.monotonic().
    """

    def __init__(self, start: Start, seen: Seen, started_s: float, limit_s: float = LIMIT_S) -> None:
        self._start = start
        self._seen = seen
        self._started_s = started_s
        self._limit_s = limit_s
        self._running: dict[int, tuple[Popen[bytes], float]] = {}
        self._selector = selectors.DefaultSelector()
        self.logins: list[Login] = []

    def run(self, window_s: float, interval_s: float = INTERVAL_S) -> list[Login]:
        """Probe for so long, then wait for those under way, unless the machine has answered none for a whole limit.

        Returns all logins whose end was seen, in the order of their beginnings.
        """
        next_s = self._now()
        end_s = next_s + window_s
        while self._now() < end_s:
            if self._now() >= next_s:
                self._begin()
                next_s += interval_s
            self._wait(min(next_s, end_s))
        while self._running and not self._hopeless():
            self._wait(self._now() + interval_s)
        for descriptor in list(self._running):
            self._end(descriptor)
        return sorted(self.logins)

    def _now(self) -> float:
        return time.monotonic() - self._started_s

    def _hopeless(self) -> bool:
        """Whether a login has timed out, and none has come back since it began."""
        lost = [login.at_s for login in self.logins if not login.ok and login.took_s >= self._limit_s]
        came_back = [login.at_s + login.took_s for login in self.logins if login.ok]
        return bool(lost) and max(lost) > max(came_back, default=-1.0)

    def _begin(self) -> None:
        at_s = self._now()
        process = self._start()
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._running[descriptor] = process, at_s

    def _wait(self, until_s: float) -> None:
        """Wait for the end of any login, for a limit to be reached, or until so late."""
        limits = [at_s + self._limit_s for _, at_s in self._running.values()]
        pause_s = min([until_s, *limits]) - self._now()
        for key, _ in self._selector.select(max(0.0, pause_s)):
            self._note(int(key.fd), ended=True)
        for descriptor, (_, at_s) in list(self._running.items()):
            if self._now() >= at_s + self._limit_s:
                self._note(descriptor, ended=False)

    def _note(self, descriptor: int, *, ended: bool) -> None:
        process, at_s = self._running[descriptor]
        took_s = self._now() - at_s if ended else self._limit_s
        self._end(descriptor)
        login = Login(round(at_s, 3), round(took_s, 3), ended and process.returncode == 0)
        self.logins.append(login)
        self._seen(login)

    def _end(self, descriptor: int) -> None:
        process, _ = self._running.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        process.kill()
        process.wait()
