"""What a series of samples of memory shows: the steepest fall, the lowest point, stalls, silences. Online, bounded."""

import math
from typing import NamedTuple

from plimsoll.box.incident.model import Gap, Line, Point
from plimsoll.box.incident.sink import Sink, elapsed_s

FALL_WINDOW_S = 15.0
"""Loads took 11 s for 23 GiB and 1.5 s for 21 GiB on GB10 boxes."""
FALL_MIN_GIB = 4.0
STALL_FULL_PERCENT = 80.0
"""Healthy starts were seen at up to 45.6 %, with short peaks above; freezes at 92 to 99 %."""
GAP_PERIODS = 3.0
MIN_GAP_S = 10.0
_WINDOW = 4096
MAX_POINTS = 4000
"""More than a page has pixels; of a longer series every second, fourth, … sample is kept."""


class Sample(NamedTuple):
    """One row: GiB and percent, None where it does not say."""

    line: Line
    available_gib: float | None = None
    free_gib: float | None = None
    used_gib: float | None = None
    full_percent: float | None = None
    lasts_s: float | None = None
    """For how long it was like this, where the row is a time and not a moment."""


class Samples:
    """Takes samples in the order of their time."""

    def __init__(self, sink: Sink, source: str, *, is_regular: bool = True) -> None:
        """`is_regular`: the recorder looks at an even pace, and not also when something happens."""
        self._is_regular = is_regular
        self._sink = sink
        self._source = source
        self._window: list[Sample] = []
        self._count = 0
        self._fall: tuple[float, Sample, Sample] | None = None
        self._step: tuple[float, Sample, Sample] | None = None
        self._stall: Sample | None = None
        self._stalled = 0
        self._stall_began: Line | None = None
        self._stalled_s = 0.0
        """The longest time in which no sample was below."""
        self._timed = False
        """Whether the rows themselves say how long they lasted."""
        self._period_s: float | None = None
        self._previous: Sample | None = None
        self._stride = 1

    @property
    def is_remarkable(self) -> bool:
        """Whether the series shows anything beside its own course."""
        return self._fall is not None or self._stall is not None

    def take(self, sample: Sample) -> None:
        """Take the next sample."""
        if self._count % self._stride == 0:
            self._sink.series.append(Point(sample.line.stamp, _shown(sample), sample.full_percent))
        if len(self._sink.series) > MAX_POINTS:
            self._sink.series[:] = self._sink.series[::2]
            self._stride *= 2
        self._count += 1
        previous, self._previous = self._previous, sample
        if previous is not None:
            self._pair(previous, sample)
        full = sample.full_percent
        if full is None or full < STALL_FULL_PERCENT:
            self._stall_began = None
        else:
            self._stalled += 1
            self._stall_began = self._stall_began or sample.line
            since_s = elapsed_s(self._stall_began.stamp, sample.line.stamp) or 0.0
            self._stalled_s = max(self._stalled_s, since_s if sample.lasts_s is None else sample.lasts_s)
            self._timed |= sample.lasts_s is not None
            if self._stall is None or full > (self._stall.full_percent or 0):
                self._stall = sample
        self._window = [s for s in self._window[-_WINDOW:] if self._recent(s, sample)]
        self._measure(sample)
        self._window.append(sample)

    def _recent(self, earlier: Sample, later: Sample) -> bool:
        seconds = elapsed_s(earlier.line.stamp, later.line.stamp)
        return seconds is not None and 0 <= seconds <= FALL_WINDOW_S

    def _measure(self, sample: Sample) -> None:
        level = _level(sample)
        if level is None:
            return
        above = max((s for s in self._window if _level(s) is not None), key=lambda s: _level(s) or 0.0, default=None)
        if above is not None and (drop := (_level(above) or 0.0) - level) > (
            self._fall[0] if self._fall else FALL_MIN_GIB
        ):
            self._fall = (drop, above, sample)

    def _pair(self, earlier: Sample, later: Sample) -> None:
        seconds = elapsed_s(earlier.line.stamp, later.line.stamp)
        before, after = _level(earlier), _level(later)
        if before is not None and after is not None and before - after > (self._step[0] if self._step else 0.0):
            self._step = (before - after, earlier, later)
        if seconds is None or not 0 < seconds < math.inf:
            return
        is_gap = self._period_s is not None and seconds >= max(MIN_GAP_S, GAP_PERIODS * self._period_s)
        if is_gap and self._count > 3:  # noqa: PLR2004
            self._gap(earlier, seconds)
        if self._is_regular:
            # the period is the shortest that holds: such a recorder is late under load, never early
            self._period_s = seconds if self._period_s is None else min(seconds, self._period_s * 1.5)
        elif seconds >= MIN_GAP_S and not (is_gap and self._count > 3):  # noqa: PLR2004
            self._period_s = max(seconds, self._period_s or 0.0)

    def _gap(self, earlier: Sample, seconds: float) -> None:
        common = self._sink.common(earlier.line)
        self._sink.add(Gap(**common, seconds=seconds, ended_by="record", before=f"last sample: {describe(earlier)}"))

    def close(self) -> None:
        """Say what the series shows."""
        if self._fall:
            drop, above, below = self._fall
            seconds = elapsed_s(above.line.stamp, below.line.stamp)
            high, low = _level(above) or 0.0, _level(below) or 0.0
            known = high >= 0 and low >= 0
            course = f"available memory fell from {high:.2f} to {low:.2f}" if known else _rise(high, low)
            self._sink.note(
                above.line, "memory_fall", f"{self._source}: {course} GiB in {seconds:g} s{self._steepest()}",
                from_gib=high if known else None, to_gib=low if known else None, seconds=seconds,
                drop_gib=round(drop, 3),
            )  # fmt: skip
        if self._stall:
            free = self._stall.free_gib if self._stall.free_gib is not None else self._stall.available_gib
            level = "" if free is None else f" with {free:g} GiB free"
            self._sink.note(
                self._stall.line, "memory_stall",
                f"{self._source}: PSI full {self._stall.full_percent:g} %{level}: everybody waited for memory, "
                f"whatever the level says ({self._stalled} of {self._count} samples above {STALL_FULL_PERCENT:g} %)",
                full_percent=self._stall.full_percent, free_gib=free, longest_s=self._stalled_s, samples=self._count,
                timed=self._timed,
            )  # fmt: skip

    def _steepest(self) -> str:
        if self._step is None or self._fall is None:
            return ""
        step, earlier, later = self._step
        seconds = elapsed_s(earlier.line.stamp, later.line.stamp)
        return "" if seconds is None or self._count < 3 else f" (one step of {step:.1f} GiB in {seconds:g} s)"  # noqa: PLR2004


def _level(sample: Sample) -> float | None:
    """Return the level; where only what is in use is told, the negative of it, which falls as it rises."""
    if sample.available_gib is not None or sample.free_gib is not None:
        return sample.available_gib if sample.available_gib is not None else sample.free_gib
    return None if sample.used_gib is None else -sample.used_gib


def _shown(sample: Sample) -> float | None:
    """Return the level that can be drawn: what is in use is no level of what is left."""
    level = _level(sample)
    return level if level is not None and level >= 0 else None


def _rise(high: float, low: float) -> str:
    return f"memory in use rose from {-high:.2f} to {-low:.2f}"


def describe(sample: Sample) -> str:
    """Return a sample in words."""
    figures = {"available": sample.available_gib, "free": sample.free_gib, "used": sample.used_gib}
    parts = [f"{name} {value:.1f} GiB" for name, value in figures.items() if value is not None]
    if sample.full_percent is not None:
        parts.append(f"PSI full {sample.full_percent:g} %")
    return ", ".join(parts) or "no figures"
