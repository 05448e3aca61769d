"""Reads a table that something else recorded: CSV, TSV or columns set apart by blanks, whose columns a person names."""

import csv
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from plimsoll.box.errors import UsageError
from plimsoll.box.guard.model import Sample

KIB_PER = {"kib": 1.0, "mib": 1024.0, "gib": 1048576.0, "bytes": 1 / 1024}
LEVELS = ("available", "free")
WANTED = "at=COLUMN, available_UNIT=COLUMN, free_UNIT=COLUMN (UNIT: kib, mib, gib or bytes) and full_percent=COLUMN"
_SEPARATORS = ("\t", ",", ";")
_EMPTY = frozenset(("", "-", "nan", "none", "null", "n/a", "na"))
_DAY_S = 86400.0
_UNIX_S = 1e9
"""A number from here on is a time since 1970, which it has been since 2001; a smaller one counts from some start."""


class Level(NamedTuple):
    """Where a level is found, and what one of its unit is in KiB."""

    column: str
    kib: float


class Columns(NamedTuple):
    """What a person has declared."""

    at: str
    available: Level | None
    free: Level | None
    full_percent: str | None

    @property
    def names(self) -> list[str]:
        """The columns that the table must have."""
        levels = [each.column for each in (self.available, self.free) if each]
        return [self.at, *levels, *([self.full_percent] if self.full_percent else [])]


def columns(declared: str) -> Columns:
    """Read `at=ts,available_gib=memavailable`; raises UsageError that says what can be declared."""
    found: dict[str, str] = {}
    for part in declared.split(","):
        name, equals, column = (word.strip() for word in part.partition("="))
        level, _, unit = name.partition("_")
        is_known = name in ("at", "full_percent") or (level in LEVELS and unit in KIB_PER)
        key = level if level in LEVELS else name
        if not equals or not column or not is_known or key in found:
            again = " a second time" if key in found else ""
            raise UsageError(f"--columns: {part.strip()!r} cannot be declared{again}; what can be: {WANTED}")
        found[key] = f"{unit}={column}" if level in LEVELS else column
    if "at" not in found:
        raise UsageError(f"--columns: at=COLUMN is missing, the time; what can be declared: {WANTED}")
    levels = {name: _level(found[name]) if name in found else None for name in LEVELS}
    return Columns(found["at"], levels["available"], levels["free"], found.get("full_percent"))


def _level(text: str) -> Level:
    unit, _, column = text.partition("=")
    return Level(column, KIB_PER[unit])


class Table:
    """A table's samples; afterwards `unreadable` counts the lines that were none, `first_unreadable` says which."""

    def __init__(self, lines: Iterable[str], path: str, declared: Columns) -> None:
        self._lines = lines
        self._path = path
        self._declared = declared
        self._clock = _Clock()
        self.unreadable = 0
        self.first_unreadable = ""

    @property
    def is_unix_time(self) -> bool:
        """Whether its times are since 1970; else they count from an unknown start, or from midnight."""
        return self._clock.is_unix_time

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples; raises UsageError, with the line, where no header has the declared columns."""
        header: Mapping[str, int] | None = None
        separator: str | None = None
        number = 0
        for number, raw in enumerate(self._lines, 1):
            text = raw.replace("\0", "").strip("\r\n")
            if not text.strip():
                continue
            if header is None:
                separator = next((each for each in _SEPARATORS if each in text), None)
                header = self._header(_cells(text.lstrip("# "), separator))
                continue
            if not text.startswith("#") and (sample := self._sample(_cells(text, separator), header, number)):
                yield sample
        if header is None:
            named = ", ".join(self._declared.names)
            raise UsageError(f"{self._path}:{max(number, 1)}: no line up to here is a header with the columns {named}")

    def _header(self, cells: Sequence[str]) -> Mapping[str, int] | None:
        found = {cell: number for number, cell in enumerate(cells)}
        return found if all(name in found for name in self._declared.names) else None

    def _sample(self, cells: Sequence[str], header: Mapping[str, int], number: int) -> Sample | None:
        declared = self._declared
        try:
            at_s = self._clock.seconds(cells[header[declared.at]])
            available, free = (_kib(cells, header, level) for level in (declared.available, declared.free))
            full = _number(cells[header[declared.full_percent]]) if declared.full_percent else None
        except (ValueError, IndexError) as error:
            self.unreadable += 1
            why = "too few cells" if isinstance(error, IndexError) else str(error)
            self.first_unreadable = self.first_unreadable or f"{self._path}:{number}: {why}"
            return None
        return Sample(at_s, available, free, full)


def _cells(text: str, separator: str | None) -> list[str]:
    if separator is None:
        return text.split()
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=separator), [])]
    except csv.Error:
        # a cell of more than 128 KiB
        return []


def _kib(cells: Sequence[str], header: Mapping[str, int], level: Level | None) -> int | None:
    figure = _number(cells[header[level.column]]) if level else None
    return None if figure is None or level is None else round(figure * level.kib)


def _number(cell: str) -> float | None:
    """Return a number that is not below 0, None for an empty cell; raises ValueError for anything else."""
    if cell.lower() in _EMPTY:
        return None
    found = float(cell)
    if not 0 <= found < math.inf:
        raise ValueError(f"{cell!r} is not a figure")
    return found


class _Clock:
    """Turns times as people write them into seconds that do not go back at midnight."""

    def __init__(self) -> None:
        self._days = 0
        self._before_s = 0.0
        self.is_unix_time = False

    def seconds(self, cell: str) -> float:
        """Return a number, an ISO time or HH:MM:SS as seconds; raises ValueError."""
        try:
            found = float(cell)
        except ValueError:
            return self._written(cell)
        if not math.isfinite(found):
            raise ValueError(f"{cell!r} is not a time")
        self.is_unix_time = found >= _UNIX_S
        return found

    def _written(self, cell: str) -> float:
        try:
            if len(cell) > len("HH:MM:SS.ffffff"):
                moment = datetime.datetime.fromisoformat(cell)
                self.is_unix_time = True
                return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp()
            time = datetime.time.fromisoformat(cell)
        except ValueError:
            raise ValueError(f"{cell!r} is not a time: seconds, an ISO time, or HH:MM:SS") from None
        found = time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6
        if found < self._before_s - _DAY_S / 2:
            self._days += 1
        self._before_s = found
        return found + self._days * _DAY_S
