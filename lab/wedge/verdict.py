"""What a run's logins mean, and what several runs come to. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lab.wedge.probe import Login

AGAIN = 1.5
"""A login is as it was when it takes less than so many times the idle one."""


class Figure(NamedTuple):
    """A figure over several runs: median, and the least and the greatest."""

    median: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        """As in a table: `31 (28-30)`; one run has no spread."""
        if self.runs == 1:
            return f"{self.median:.1f}"
        return f"{self.median:.1f} ({self.low:.1f}-{self.high:.1f})"


def figure(values: Iterable[float]) -> Figure | None:
    """Return the figure of some values, None of none."""
    known = list(values)
    return Figure(statistics.median(known), min(known), max(known), len(known)) if known else None


def idle_s(logins: Sequence[Login]) -> float:
    """Return what a login takes on the idle machine. Raises ValueError where not one came back."""
    if not (took := [login.took_s for login in logins if login.ok]):
        raise ValueError("no login to the idle machine came back")
    return statistics.median(took)


def survived(logins: Sequence[Login]) -> bool:
    """Say whether the machine could be reached: no login hung until its limit, and the last one came back.

    A login that was cut off at once, because the kernel killed its shell, is no wedge.
    """
    return bool(logins) and not any(login.timed_out for login in logins) and logins[-1].ok


def recovery_s(logins: Sequence[Login], idle: float) -> float | None:
    """Return the seconds from the first bad login to the end of the first after it that is as when idle.

    0 where none was bad; None where none was as before again. Bad is a login that did not come back, or took
    AGAIN times the idle one; after the recovery none may fail any more.
    """
    good = [login.ok and login.took_s < AGAIN * idle for login in logins]
    if all(good):
        return 0.0
    first_bad = good.index(False)
    last_failed = max((number for number, login in enumerate(logins) if not login.ok), default=-1)
    for number in range(max(first_bad, last_failed) + 1, len(logins)):
        if good[number]:
            login = logins[number]
            return round(login.at_s + login.took_s - logins[first_bad].at_s, 1)
    return None
