"""Puts the stamps of all sources on one time line, and says what had to be assumed. Pure.

The axis is seconds since 1970, UTC where any line says its offset, else the wall clock of the box as if it were UTC.
"""

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.box.incident.model import Findings, Stamp

DAY_S = 86_400
BOOTS_APART_S = 1e9
"""More than any machine was up."""
MAX_WALL_S = 32_503_680_000.0
"""The year 3000: a figure beyond it is no time."""
QUARTER_S = 900
UPTIME_TOLERANCE_S = 0.01
SAME_BOOT_S = 30.0
RING = "dmesg"
"""The kernel's own buffer, which ends with the boot."""
AXES = ("wall", "day", "uptime", "order")
"""A date, a time of day, seconds since an unknown boot, the order in a file: what cannot be compared is kept apart."""


@dataclass(frozen=True)
class Moment:
    """When something was: where on which axis, how to write it, and what was assumed for it."""

    axis: str
    at_s: float | None
    text: str | None
    basis: str | None = None


NO_MOMENT = Moment("order", None, None)


class Clocks:
    """Resolves stamps; `now_s` bounds the year of a stamp without one, where nothing better does."""

    def __init__(self, sources: Sequence[Findings], now_s: float) -> None:
        self._sources = sources
        self._now_s = now_s
        self._dates = frozenset().union(*(source.dates for source in sources))
        self.remarks: dict[str, None] = {}
        """What was assumed, each once, in order."""
        stamps = [s for f in sources for s in (f.first, f.last) if s.form == "date"]
        self._known = [s.wall_s for s in stamps if s.wall_s is not None and 0 <= s.wall_s < MAX_WALL_S]
        self._offset_s = self._common_offset(stamps)
        self._day_starts: dict[str, tuple[float, float]] = {}

    def _common_offset(self, stamps: list[Stamp]) -> int | None:
        """Return the offset of stamps that do not say theirs: by an event in two sources, or the only one told."""
        events = [(e.kind, e.stamp) for f in self._sources for e in f.events if e.stamp.uptime_s is not None]
        dated = [(kind, stamp) for kind, stamp in events if stamp.offset_s is not None and stamp.wall_s is not None]
        twins = {(kind, round((stamp.uptime_s or 0.0) / UPTIME_TOLERANCE_S)): stamp for kind, stamp in dated}
        for kind, stamp in events:
            twin = twins.get((kind, round((stamp.uptime_s or 0.0) / UPTIME_TOLERANCE_S)))
            if stamp.offset_s is None and stamp.form == "date" and twin:
                apart = (stamp.wall_s or 0.0) - (twin.wall_s or 0.0) + (twin.offset_s or 0)
                return round(apart / QUARTER_S) * QUARTER_S
        told = Counter(s.offset_s for s in stamps if s.offset_s is not None)
        if not told:
            return None
        offset_s = min(told, key=lambda o: (-told[o], o))
        untold = any(
            s.form in ("date", "yearless") and s.offset_s is None for f in self._sources for s in (f.first, f.last)
        )
        if untold:
            others = f", of {len(told)} in the input" if len(told) > 1 else ""
            self.remarks[f"stamps without a time zone are taken as UTC{offset_text(offset_s)}{others}"] = None
        return offset_s

    def resolve(self, stamp: Stamp, source: Findings) -> Moment:
        """Return when a stamp of a source is."""
        if stamp.wall_s is not None and not 0 <= stamp.wall_s < MAX_WALL_S:
            stamp = stamp._replace(wall_s=None, form="none")
        if stamp.form == "date" and stamp.wall_s is not None:
            return self._wall(stamp.wall_s, stamp.offset_s, None)
        if stamp.form == "yearless" and stamp.wall_s is not None:
            wall_s, basis = self._with_year(stamp.wall_s, source)
            return self._wall(wall_s, stamp.offset_s, basis)
        if stamp.form == "day" and stamp.wall_s is not None:
            return self._of_day(stamp.wall_s, source)
        if stamp.uptime_s is not None:
            return self._since_boot(stamp, stamp.uptime_s, source)
        return NO_MOMENT

    def _wall(self, wall_s: float, offset_s: int | None, basis: str | None) -> Moment:
        known = offset_s if offset_s is not None else self._offset_s
        text = iso(wall_s) + ("" if offset_s is None else offset_text(offset_s))
        return Moment("wall", wall_s - (known or 0), text, basis)

    def _with_year(self, wall_s: float, source: Findings) -> tuple[float, str | None]:
        """Return the wall clock with the year that the log states, or the likeliest one, and then on what grounds."""
        date = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
        stated = sorted(year for year, month, day in self._dates if (month, day) == (date.month, date.day))
        if stated:
            return in_year(wall_s, stated[-1]), None
        if self._known:
            nearest = min(
                self._candidates(wall_s, max(self._known)), key=lambda w: min(abs(w - k) for k in self._known)
            )
            self.remarks["years are taken from the stamps of the other lines that have one"] = None
            return nearest, "year from other lines"
        reference_s = source.modified_s if source.modified_s is not None else self._now_s
        what = "the date of the file" if source.modified_s is not None else "today"
        past = [w for w in self._candidates(wall_s, reference_s) if w <= reference_s + DAY_S]
        self.remarks[f"{source.file} has no years: the last one before {what} is assumed"] = None
        return max(past, default=wall_s), f"year assumed from {what}"

    @staticmethod
    def _candidates(wall_s: float, near_s: float) -> list[float]:
        year = datetime.datetime.fromtimestamp(near_s, datetime.UTC).year
        return [in_year(wall_s, y) for y in range(year - 8, year + 2) if is_in_year(wall_s, y)]

    def _of_day(self, second: float, source: Findings) -> Moment:
        """Return a time of day on an axis that goes on after midnight, in the order of the file."""
        start, last = self._day_starts.get(source.file, (0.0, second))
        if second < last - DAY_S / 2:
            start += DAY_S
        self._day_starts[source.file] = (start, second)
        self.remarks[f"{source.file} has times of day only, no dates"] = None
        return Moment("day", start + second, iso(second)[11:])

    def _since_boot(self, stamp: Stamp, uptime_s: float, source: Findings) -> Moment:
        """Return a time since boot as wall clock, where the log, or exactly one boot in another, says when that was."""
        known = [boot for boot in source.boots if boot.boot == stamp.boot]
        basis = None
        if not known:
            known = [boot for other in self._sources for boot in other.boots]
            basis = "boot time from another source"
        found = self._different([began for boot in known if (began := self._began(boot, source)) is not None])
        if len(found) > 1:
            found = self._likeliest(found, source)
        at_s = found[0] + uptime_s if len(found) == 1 else -1.0
        if 0 <= at_s < MAX_WALL_S:
            offset_s = self._offset_s if self._offset_s is not None else known[0].offset_s
            text = iso(at_s + (offset_s or 0)) + ("" if offset_s is None else offset_text(offset_s))
            return Moment("wall", at_s, text, basis or "boot time and seconds since")
        if found:
            why = f"{source.file} counts from a boot, and {len(found)} are known: which one cannot be told"
        else:
            why = f"{source.file} counts seconds from a boot whose time nothing tells"
        self.remarks[why] = None
        name = f"boot {stamp.boot + 1}" if stamp.boot else "boot"
        return Moment("uptime", stamp.boot * BOOTS_APART_S + uptime_s, f"{name}+{uptime_s:.6f}s")

    def _likeliest(self, boots: list[float], source: Findings) -> list[float]:
        """Return the boot of which another log has a record of this one; of the running kernel's log it is the last."""
        own = {(e.kind, round((e.stamp.uptime_s or 0.0) / UPTIME_TOLERANCE_S)) for e in source.events}
        agreeing = []
        for other in self._sources:
            for event in other.events:
                uptime_s = event.stamp.uptime_s
                if event.stamp.wall_s is None or uptime_s is None:
                    continue
                if (event.kind, round(uptime_s / UPTIME_TOLERANCE_S)) in own:
                    agreeing += [boot for boot in boots if self._is_in(event.stamp, boot, other)]
        if agreeing:
            return self._different(agreeing)
        return [max(boots)] if source.file == RING else boots

    def _is_in(self, both: Stamp, boot_s: float, source: Findings) -> bool:
        began = self._began(both, source)
        return began is not None and abs(began - boot_s) <= SAME_BOOT_S

    def _began(self, both: Stamp, source: Findings) -> float | None:
        """Return when a boot began, by a stamp with both clocks."""
        at_s = self.resolve(both._replace(uptime_s=None), source).at_s
        return None if at_s is None else at_s - (both.uptime_s or 0.0)

    @staticmethod
    def _different(times: list[float]) -> list[float]:
        kept: list[float] = []
        for at_s in times:
            if all(abs(at_s - known) > SAME_BOOT_S for known in kept):
                kept.append(at_s)
        return kept


def in_year(wall_s: float, year: int) -> float:
    """Return a stamp of the stand-in year in another; 29 February of a year without one is 1 March."""
    date = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
    if not is_in_year(wall_s, year):
        return date.replace(year=year, month=3, day=1).timestamp()
    return date.replace(year=year).timestamp()


def is_in_year(wall_s: float, year: int) -> bool:
    """Say whether the date of a stamp of the stand-in year exists in another."""
    date = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    return leap or (date.month, date.day) != (2, 29)


def iso(wall_s: float) -> str:
    """Return `2026-09-13T07:47:06`, with a fraction where there is one."""
    whole = datetime.datetime.fromtimestamp(int(wall_s // 1), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = round((wall_s % 1) * 1e6)
    return f"{whole}.{fraction:06d}" if 0 < fraction < 1_000_000 else whole  # noqa: PLR2004  # microseconds


def offset_text(offset_s: int) -> str:
    """Return `+02:00`."""
    sign = "-" if offset_s < 0 else "+"
    return f"{sign}{abs(offset_s) // 3600:02d}:{abs(offset_s) % 3600 // 60:02d}"
