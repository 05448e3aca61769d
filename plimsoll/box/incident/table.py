"""Recordings: columns of samples with a heading. The guard's CSV, a watcher's TSV, a table in somebody's text.

Units stand in the names (`used_MiB`, `free_GB`) or behind the figures; where none does, they are told from the size:
nobody has a box of 2,000 GiB.
"""

import itertools
import re
from collections.abc import Sequence

from plimsoll.box.incident.model import NO_STAMP, Gap, Line, Stamp
from plimsoll.box.incident.prefix import Prefix
from plimsoll.box.incident.samples import Sample, Samples
from plimsoll.box.incident.sink import Sink

_KIB, _MIB, _GIB, _BYTE = 1 / (1 << 20), 1 / 1024, 1.0, 1 / (1 << 30)
_UNITS = {
    "kib": _KIB, "kb": _KIB, "k": _KIB, "mib": _MIB, "mb": _MIB, "m": _MIB, "gib": _GIB, "gb": _GIB, "g": _GIB,
    "bytes": _BYTE, "b": _BYTE,
}  # fmt: skip
"""GiB a unit: a watcher that writes GB for what `free -g` shows means GiB, and the difference decides nothing here."""
_NAMED_UNIT = re.compile(r"[_ ]?[(\[]?(kib|kb|mib|mb|gib|gb|bytes|b|g|m|k)[)\]]?$", re.IGNORECASE)
_CELL = re.compile(
    r"(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?) ?(%|s|secs?|min|h|kib|kb|mib|mb|gib|gb|g|m|k)?"
    r"(?: ?/ ?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?))?",
    re.IGNORECASE,
)
"""A figure, in thousands or not, with its unit, and of how much."""
_ROLES = {
    "gap": re.compile(r"(?!.*(?:before|after|count|_[gmk]i?b\b)).*(?:gap|dark|frozen|outage|unreachable)(?:_[a-z]+)?"),
    "lasts": re.compile(r"(?:dur|last(?:s|ed)\b).*"),
    "full": re.compile(r"(?=.*full)(?!.*(?:some|io|cpu)).*"),
    "available": re.compile(r"(?=.*avail)(?!.*swap).*"),
    "free": re.compile(r"(?=.*free)(?!.*(?:swap|block|order|cma)).*"),
    "used": re.compile(r"(?=.*used)(?!.*(?:swap|gpu|cpu)).*"),
    "total": re.compile(r"(?=.*total)(?!.*(?:swap|gpu|cpu|used|count)).*"),
    "time": re.compile(
        r"ts|t|t_?s|s|secs?|seconds|at|when|wall|clock|date.*|time.*|.*timestamp|last.*sample.*|unix.*|epoch.*|elapsed.*|uptime.*"
    ),
}  # fmt: skip
"""What a column is, by its name in small letters, with `_` for all else and without its unit."""
_COUNTERS = frozenset({"at_s", "n", "i", "seq", "pid", "line"})
"""Columns whose range says nothing."""
_DURATIONS = (
    (60.0, re.compile(r"(?:^|_)min(?:s|utes?)?(?:_|$)")),
    (3600.0, re.compile(r"(?:^|_)h(?:ours?|rs?)?(?:_|$)")),
)
"""Seconds a unit, by how it is written."""
_MAX_GUESSED_GIB = 2048
_MAX_GUESSED_MIB = 2048 * 1024
_UNIX_S = 1e9
MIN_TREND_ROWS = 3
MAX_TREND_ROWS = 10_000
_OF_LOG = re.compile(r"\s*\[\s*\d+\.\d{3,}\]|.* kernel: ")
"""A line of the kernel's log, whatever its words are."""
_SEPARATORS = ("\t", "|", ",", ";", None)


class Table:
    """Reads rows of samples by the names of their columns."""

    def __init__(self, sink: Sink, names: Sequence[str], separator: str | None) -> None:
        self._sink = sink
        self._separator = separator
        self._names = names
        self._columns = columns(names)
        self._samples = Samples(sink, "recording")
        self._trend: list[float] = []
        self._prefix = Prefix()
        self._length = 0
        self._last = Line(1, NO_STAMP, None, "")
        told = {*self._columns.values(), *(n for n, name in enumerate(names) if name in _COUNTERS)}
        self._ranges: dict[int, tuple[float, float] | None] = {n: None for n in range(len(names)) if n not in told}
        """Of columns that have no role, the lowest and the highest value."""

    def row(self, number: int, text: str, *, whole: bool) -> bool:
        """Take a row; False for a line that is none: a log may stand below a table, or around it.

        A last one that is torn (no newline, and shorter than the one before) is left out.
        """
        if _OF_LOG.match(text):
            return False
        length, self._length = self._length, len(text)
        cells = split(text, self._separator)
        is_torn = not whole and len(text) < length
        if len(cells) != len(self._names) or not any(_CELL.fullmatch(cell) for cell in cells):
            return is_torn
        if is_torn:
            return True
        self._remember(cells)
        line = self._last = Line(number, self._stamp(cells), None, text, prefixed=True)
        available, free, used = (self._gib(cells, role) for role in ("available", "free", "used"))
        if available is None and free is None and used is not None and (total := self._total_gib(cells)):
            available = total - used
        sample = Sample(line, available, free, used, self._value(cells, "full"), self._seconds(cells, "lasts"))
        gap_s = self._seconds(cells, "gap")
        if gap_s is not None and gap_s > 0:
            row = ", ".join(f"{name} {cell}" for name, cell in zip(self._names, cells, strict=True))
            common = self._sink.common(line)
            self._sink.add(Gap(**common, seconds=gap_s, ended_by="record", before=f"last sample: {row}"))
        elif "time" in self._columns:
            self._samples.take(sample)
        elif len(self._trend) < MAX_TREND_ROWS and (level := free or available):
            self._trend.append(level)
        return True

    def close(self) -> None:
        """Say what the rows show."""
        line = self._last
        self._samples.close()
        shown = [f"{self._names[n]} {found[0]:g} to {found[1]:g}" for n, found in self._ranges.items() if found]
        if self._samples.is_remarkable and shown:
            self._sink.note(line, "ranges", f"in that recording: {', '.join(shown)}")
        levels = self._trend
        if len(levels) >= MIN_TREND_ROWS and all(a > b for a, b in itertools.pairwise(levels)):
            text = (
                f"free memory is lower at each {self._names[0]}: {levels[0]:g} to {levels[-1]:g} GiB over "
                f"{len(levels)} rows; each try again starts with less"
            )
            self._sink.note(line, "memory_drift", text, from_gib=levels[0], to_gib=levels[-1])

    def _remember(self, cells: Sequence[str]) -> None:
        for index, known in self._ranges.items():
            if cell := _CELL.fullmatch(cells[index]):
                value = _figure(cell[1])
                low, high = known or (value, value)
                self._ranges[index] = min(low, value), max(high, value)

    def _value(self, cells: Sequence[str], role: str) -> float | None:
        cell = _CELL.fullmatch(cells[self._columns[role]]) if role in self._columns else None
        return _figure(cell[1]) if cell else None

    def _seconds(self, cells: Sequence[str], role: str) -> float | None:
        """Return a duration, whose unit stands behind it or in the column's name; seconds where none does."""
        value = self._value(cells, role)
        cell = _CELL.fullmatch(cells[self._columns[role]]) if value is not None else None
        if value is None or cell is None:
            return None
        unit = (cell[2] or "").casefold() or _plain(self._names[self._columns[role]])
        return value * next((s for s, pattern in _DURATIONS if pattern.search(unit)), 1.0)

    def _total_gib(self, cells: Sequence[str]) -> float | None:
        """Return what there is in all: of its own column, or as the second part of `used / total`."""
        cell = _CELL.fullmatch(cells[self._columns["used"]])
        if cell and cell[3]:
            return to_gib(_figure(cell[3]), self._names[self._columns["used"]])
        return self._gib(cells, "total")

    def _gib(self, cells: Sequence[str], role: str) -> float | None:
        cell = _CELL.fullmatch(cells[self._columns[role]]) if role in self._columns else None
        if not cell:
            return None
        own = (cell[2] or "").casefold()
        return (
            _figure(cell[1]) * _UNITS[own]
            if own in _UNITS
            else to_gib(_figure(cell[1]), self._names[self._columns[role]])
        )

    def _stamp(self, cells: Sequence[str]) -> Stamp:
        if "time" not in self._columns:
            return Stamp()
        text = cells[self._columns["time"]]
        cell = _CELL.fullmatch(text)
        if not cell:
            return self._prefix.parse(0, f"{text} ").stamp
        value = _figure(cell[1])
        scaled = value / 1000 if value > 100 * _UNIX_S else value
        return Stamp(scaled, "date", 0) if scaled > _UNIX_S else Stamp(uptime_s=value)


def _figure(text: str) -> float:
    return float(text.replace(",", ""))


def split(text: str, separator: str | None) -> list[str]:
    """Return the cells of a row; a table in a text may have bars at its sides."""
    inner = text.strip().strip("|") if separator == "|" else text
    return [cell.strip() for cell in inner.split(separator)]


def columns(names: Sequence[str]) -> dict[str, int]:
    """Return which column has which role; the first that fits has it, and no column has two."""
    found: dict[str, int] = {}
    for role, pattern in _ROLES.items():
        for index, name in enumerate(names):
            if index not in found.values() and (pattern.fullmatch(_plain(name)) or pattern.fullmatch(_bare(name))):
                found[role] = index
                break
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def _bare(name: str) -> str:
    return _plain(_NAMED_UNIT.sub("", name.strip()))


def to_gib(value: float, name: str) -> float:
    """Return a figure in GiB, by the unit in its name or else by its size."""
    if unit := _NAMED_UNIT.search(name.strip()):
        return value * _UNITS[unit[1].casefold()]
    if value <= _MAX_GUESSED_GIB:
        return value
    return value * _MIB if value <= _MAX_GUESSED_MIB else value * _KIB


def heading(first: str, second: str) -> tuple[list[str], str | None] | None:
    """Return the names of a recording's columns and its separator, from two of its first lines; None if it is none."""
    if _OF_LOG.match(first):
        return None
    for separator in _SEPARATORS:
        names, cells = split(first.strip().lstrip("# "), separator), split(second, separator)
        if len(names) < 2 or len(names) != len(cells) or any(_CELL.fullmatch(name) for name in names):  # noqa: PLR2004
            continue
        numbers = sum(bool(_CELL.fullmatch(cell)) for cell in cells)
        if numbers * 2 >= len(cells) and columns(names):
            return names, separator
    return None
