"""Which branches of a script run: `if`, loops and `case`, as far as their conditions are known. Pure."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass
class Branch:
    """One `if`, loop or `case` that is open. Of a branch it is known that it runs, that it does not, or neither."""

    word: str
    number: int = 0
    """Which one it is in the run of a script."""
    runs: bool | None = None
    has_run: bool | None = False
    """Whether a branch before has run."""
    asks: bool = False
    """Whether what comes next is the condition."""
    turn: int = 0
    """Which of its branches this is."""
    subject: str | None = None
    """What a `case` is about; None where it is not known."""
    awaits: bool = False
    """Whether a pattern of a `case` is next."""

    @property
    def state(self) -> bool | None:
        """Whether what comes next is run; a condition is, where no branch before it has been."""
        if not self.asks:
            return self.runs
        return None if self.has_run is None else not self.has_run

    def turns(self, word: str) -> None:
        """Go on to what a keyword begins."""
        self.asks = word == "elif"
        self.turn += word != "do"
        if self.word != "if":
            self.runs = None
        elif word == "then":
            self.runs = False if self.has_run else None if self.has_run is None and self.runs else self.runs
        elif word == "else":
            before = either(self.has_run, self.runs)
            self.runs = None if before is None else not before
        else:
            self.has_run, self.runs = either(self.has_run, self.runs), None

    def meets(self, patterns: Sequence[tuple[str, str]]) -> None:
        """Go on to the commands of a pattern of a `case`; each is `(written, expanded)`."""
        matches = _matches(self.subject, patterns)
        self.awaits = False
        self.runs = matches if self.has_run is False else False if self.has_run or matches is False else None
        self.has_run = either(self.has_run, matches)

    def ends_pattern(self, by: str) -> None:
        """Go on to the next pattern; what falls through (`;&`) is no alternative."""
        self.awaits = True
        self.turn += by == ";;"
        if by != ";;" and self.runs is not False:
            self.has_run = None


def either(one: bool | None, other: bool | None) -> bool | None:
    """Say whether one of two is true; None where that is not known."""
    return True if one or other else None if one is None or other is None else False


def both(one: bool | None, other: bool | None) -> bool | None:
    """Say whether two are true; None where that is not known."""
    return False if one is False or other is False else None if one is None or other is None else True


def _matches(subject: str | None, patterns: Iterable[tuple[str, str]]) -> bool | None:
    """Say whether a text fits one of several patterns; None where that is not known."""
    found: bool | None = False
    for written, pattern in patterns:
        if written == "*":
            return True
        quoted = re.search(r"['\"\\]", written) is not None and re.search(r"[*?\[]", pattern) is not None
        # a shell has forms that fnmatch reads otherwise
        other = re.search(r"[$`]|\[[\^\[]|[@!+?*]\(", pattern) is not None
        known = subject is not None and not quoted and not other
        found = either(found, fnmatch.fnmatchcase(subject or "", pattern) if known else None)
    return found


def alternatives(branches: Iterable[Branch]) -> tuple[tuple[int, int], ...]:
    """Return of which undecided `if` and `case` something is in which branch, the outermost first."""
    return tuple((each.number, each.turn) for each in branches if each.number and each.runs is None and not each.asks)


class Slots:
    """Shares out places among what is started in branches of which one runs: no more than one runs in each place.

    What one branch starts together gets different places, so that the sum of the largest in each is never too small.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[tuple[int, int], ...], int] = {}
        self._first: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}

    def place(self, path: tuple[tuple[int, int], ...]) -> str:
        """Return the name of the next place in a branch, empty outside of all."""
        if not path:
            return ""
        start = 0
        for depth, (number, _turn) in enumerate(path):
            first = self._first.setdefault((path[:depth], number), start)
            start = self._free.setdefault(path[: depth + 1], first)
        for depth in range(len(path)):
            inside = path[: depth + 1]
            self._free[inside] = max(self._free[inside], start + 1)
        return f"{path[0][0]}/{start}"
