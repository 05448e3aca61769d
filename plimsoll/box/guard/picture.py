"""A replay as a picture: memory above, stalls below, the lines, and what would have been done. SVG, nothing else."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Sample
from plimsoll.box.guard.recording import GAP_S
from plimsoll.box.guard.replay import Decided
from plimsoll.box.guard.when import Clock
from plimsoll.box.texts import printable

MAX_MARKS = 40
"""More of them are a wall; the table has them all."""
_POINTS = 1600
"""About one for each pixel of width; up to twice as many are kept while it is not known how long it all is."""
_WIDTH, _LEFT, _RIGHT = 1200, 64, 1000
_LEVEL_TOP, _LEVEL_BOTTOM, _FULL_TOP, _FULL_BOTTOM, _HEIGHT = 64, 400, 450, 550, 600
_LABEL_APART, _NAME_WIDTH = 15, 90
_MAX_STEPS = 8
_STEPS_GIB = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:16px}.grid{stroke:#e2e2e2}"
    ".level{fill:#cfe3f5;stroke:#1f6fb2}.full{fill:#ecd3f2;stroke:#7b2d96}"
    ".floor{stroke:#b00020}.slow{stroke:#b26a00}.leave{stroke:#5d7f00;stroke-dasharray:6 4}"
    ".acts{stroke:#b00020;stroke-width:1.5}.says{stroke:#777;stroke-dasharray:2 3}"
)


class _Bucket(NamedTuple):
    """A stretch of time: its lowest and highest level, and its worst stall; None where nobody knows."""

    start_s: float
    end_s: float
    low: int | None
    high: int | None
    full: float | None

    def with_next(self, other: "_Bucket") -> "_Bucket":
        lows = [each for each in (self.low, other.low) if each is not None]
        highs = [each for each in (self.high, other.high) if each is not None]
        fulls = [each for each in (self.full, other.full) if each is not None]
        return _Bucket(
            self.start_s, other.end_s, min(lows, default=None), max(highs, default=None), max(fulls, default=None)
        )


class Trace:
    """Keeps what a picture needs of samples that pass by, however many there are; lows and highs are never lost."""

    def __init__(self, gap_s: float = GAP_S) -> None:
        self.gap_s = gap_s
        """Above this nothing is drawn between two samples."""
        self._buckets: list[_Bucket] = []
        self._each = 1
        self._in_last = 0

    @property
    def buckets(self) -> Sequence[_Bucket]:
        """What was kept, oldest first."""
        return self._buckets

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass the samples on, and keep them."""
        for sample in samples:
            level = sample.available_kib
            self._add(_Bucket(sample.at_s, sample.at_s, level, level, sample.full_percent))
            yield sample

    def _add(self, bucket: _Bucket) -> None:
        last = self._buckets[-1] if self._buckets else None
        if last is not None and self._in_last < self._each and bucket.start_s - last.end_s <= self.gap_s:
            self._buckets[-1] = last.with_next(bucket)
            self._in_last += 1
            return
        self._buckets.append(bucket)
        self._in_last = 1
        if len(self._buckets) >= 2 * _POINTS:
            halved = _in_pairs(self._buckets, self.gap_s)
            # so many gaps, that they are narrower than the picture can show
            self._buckets = halved if len(halved) < 1.5 * _POINTS else _in_pairs(self._buckets, math.inf)
            self._each *= 2


def _in_pairs(buckets: Sequence[_Bucket], gap_s: float) -> list[_Bucket]:
    """Join each second one with the one before it, but not over a gap that is longer."""
    found: list[_Bucket] = []
    is_joined = True
    for bucket in buckets:
        is_joined = not is_joined and bucket.start_s - found[-1].end_s <= gap_s
        if is_joined:
            found[-1] = found[-1].with_next(bucket)
        else:
            found.append(bucket)
    return found


class _Scale(NamedTuple):
    """Where a moment, a level and a stall are in the picture."""

    start_s: float
    end_s: float
    top_kib: int

    def x(self, at_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at_s - self.start_s) / max(self.end_s - self.start_s, 1e-9)

    def y(self, kib: float) -> float:
        return _LEVEL_BOTTOM - (_LEVEL_BOTTOM - _LEVEL_TOP) * min(kib, self.top_kib) / self.top_kib

    def full_y(self, percent: float) -> float:
        return _FULL_BOTTOM - (_FULL_BOTTOM - _FULL_TOP) * min(percent, 100.0) / 100


def draw(title: str, clock: Clock, trace: Trace, lines: Lines, decided: Sequence[Decided]) -> str:
    """Return the picture as SVG; a recording without a sample has an empty one."""
    buckets = trace.buckets
    highest = max((each.high for each in buckets if each.high is not None), default=0)
    top = max(highest, lines.slow_leave_kib) * 1.05
    times = (buckets[0].start_s, buckets[-1].end_s) if buckets else (0.0, 1.0)
    scale = _Scale(*times, math.ceil(top))
    shown = escape(printable(title))
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{shown}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_LEFT, 26, shown, "title"),
        *_axes(scale, clock),
        *_areas(scale, trace),
        *_lines(scale, lines),
        *_marks(scale, decided),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> str:
    named = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{text}</text>'


def _horizontal(y: float, css: str) -> str:
    return f'<line class="{css}" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _axes(scale: _Scale, clock: Clock) -> Iterator[str]:
    top_gib = scale.top_kib / KIB_PER_GIB
    step = next((each for each in _STEPS_GIB if top_gib / each <= _MAX_STEPS), _STEPS_GIB[-1])
    yield _text(_LEFT, 44, "available memory, GiB")
    for gib in range(0, int(top_gib) + 1, step):
        y = scale.y(gib * KIB_PER_GIB)
        yield _horizontal(y, "grid")
        yield _text(_LEFT - 8, y + 4, str(gib), anchor="end")
    yield _text(_LEFT, _FULL_TOP - 12, "time in which everybody stalled on memory (PSI full), %")
    for percent in (0, 50, 100):
        yield _horizontal(scale.full_y(percent), "grid")
        yield _text(_LEFT - 8, scale.full_y(percent) + 4, str(percent), anchor="end")
    yield _text(_LEFT, _HEIGHT - 20, clock.shown(scale.start_s))
    yield _text(_RIGHT, _HEIGHT - 20, clock.shown(scale.end_s), anchor="end")


def _areas(scale: _Scale, trace: Trace) -> Iterator[str]:
    """Draw what is known; where it is not, there is nothing."""
    for run in _runs(trace.buckets, trace.gap_s):
        levels = [(scale.x(each.start_s), scale.y(level)) for each in run for level in _swing(each)]
        if levels:
            yield _area("level", levels, _LEVEL_BOTTOM)
        fulls = [(scale.x(each.start_s), scale.full_y(each.full)) for each in run if each.full is not None]
        if fulls:
            yield _area("full", fulls, _FULL_BOTTOM)


def _swing(bucket: _Bucket) -> Iterator[int]:
    """Yield a bucket's highest and lowest level, so that a dip of one sample is a line down."""
    if bucket.high is not None and bucket.low is not None:
        yield bucket.high
        if bucket.low != bucket.high:
            yield bucket.low


def _runs(buckets: Sequence[_Bucket], gap_s: float) -> Iterator[list[_Bucket]]:
    run: list[_Bucket] = []
    for bucket in buckets:
        if run and bucket.start_s - run[-1].end_s > gap_s:
            yield run
            run = []
        run.append(bucket)
    if run:
        yield run


def _area(css: str, points: Sequence[tuple[float, float]], bottom: float) -> str:
    along = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon class="{css}" points="{points[0][0]:.1f},{bottom} {along} {points[-1][0]:.1f},{bottom}"/>'


def _lines(scale: _Scale, lines: Lines) -> Iterator[str]:
    rows = (
        ("leave", "slow line, left above", lines.slow_leave_kib),
        ("slow", "slow line", lines.slow_enter_kib),
        ("floor", "floor", lines.floor_kib),
    )
    label_y = float("-inf")
    for css, name, kib in rows:
        y = scale.y(kib)
        yield _horizontal(y, css)
        # on a large box the lines lie closer together than their names are high
        label_y = max(y + 4, label_y + _LABEL_APART)
        yield _text(_RIGHT + 8, label_y, f"{name} {kib / KIB_PER_GIB:.2f} GiB")


def _marks(scale: _Scale, decided: Sequence[Decided]) -> Iterator[str]:
    """Draw what would have been done; those that are too near for a name each share one."""
    names: list[tuple[float, int, int, list[str]]] = []
    for number, each in enumerate(decided[:MAX_MARKS], 1):
        x, action = scale.x(each.at_s), each.action
        css = "acts" if action.armed else "says"
        described = f"<title>{escape(f'{number}: {action.rule.value}, {action.verb.value}: {action.reason}')}</title>"
        yield f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{_LEVEL_TOP}" y2="{_FULL_BOTTOM}">{described}</line>'
        if names and x - names[-1][0] < _NAME_WIDTH:
            first_x, first, _, rules = names.pop()
            names.append((first_x, first, number, list(dict.fromkeys([*rules, action.rule.value]))))
        else:
            names.append((x, number, number, [action.rule.value]))
    for x, first, last, rules in names:
        numbers = str(first) if first == last else f"{first}-{last}"
        yield _text(x, _LEVEL_TOP - 4, f"{numbers} {', '.join(rules)}")
    if len(decided) > MAX_MARKS:
        yield _text(_RIGHT, 26, f"{len(decided) - MAX_MARKS} more are not drawn", anchor="end")
