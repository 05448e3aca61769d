"""How much a model has taken at most, by every mark there is, and whether what grows is warming up or leaking.

No single mark sees all of a model: most of its memory is the driver's, which is in no process's and in no cgroup's
figure. The lowest available memory sees everything, and everybody else's as well.
"""

import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from plimsoll.box.guard import recording
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.host import Host
from plimsoll.box.systemctl import CGROUP

BOOTS_BYTES = 512
"""What a recording begins with, the boot and the columns, is shorter."""


@dataclass(frozen=True)
class Mark:
    """A high-water mark, KiB; None where it cannot be read. `does_not_see` is what it misses, or sees too much."""

    name: str
    kib: int | None
    does_not_see: str


class Point(NamedTuple):
    """What a model held at a time, in seconds and KiB."""

    at_s: float
    footprint_kib: int


class Growth(StrEnum):
    """What a series comes to."""

    STEADY = "steady"
    WARMING_UP = "warming up"
    LEAKING = "leaking"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Trend:
    """Whether a model warms up or leaks, and why that is thought."""

    verdict: Growth
    said: str
    grew_kib: int = 0
    kib_per_h: int = 0
    """In the last third of the time."""


# --- growth: pure ------------------------------------------------------------------------------------------

MIN_SPAN_S = 30 * 60.0
MIN_LEAK_SPAN_S = 90 * 60.0
"""A mixture of 512 experts went from 28 to 34.6 GiB in 39 minutes, which was taken for a leak, and stopped there."""
NOISE_KIB = KIB_PER_GIB // 4
NOISE_SHARE = 64
"""What a load of requests moves to and fro: this part of what is held, or NOISE_KIB."""
FLAT_SHARE = 0.15
"""Of all growth, what the last third may have of it, and it counts as over."""
LEAK_SHARE = 0.25
"""A leak at an even pace has a third of its growth in the last third."""
BINS = 12
"""A median each, so that no single request counts."""


def trend(points: Sequence[Point]) -> Trend:
    """Return whether a footprint is steady, warms up or leaks, from points in the order of their time.

    Unknown: fewer than 30 minutes; and growth that goes on, of less than 90 minutes, for the first hour looks alike
    either way.
    """
    span_s = points[-1].at_s - points[0].at_s if points else 0.0
    levels = _medians(points, span_s)
    if span_s < MIN_SPAN_S or len(levels) < BINS // 2:
        need = f"{MIN_SPAN_S / 60:.0f} minutes of recording are needed"
        return Trend(Growth.UNKNOWN, f"there are {span_s / 60:.0f} minutes of it, and {need} to tell")
    grew = levels[-1] - levels[0]
    last_third = levels[-1] - levels[-1 - len(levels) // 3]
    # the median of a bin stands in its middle: between the first and the last lies a bin less than the span
    bin_h = span_s / len(levels) / 3600
    pace = round(last_third / (len(levels) // 3 * bin_h))
    return _judged(levels, (grew, last_third), pace, span_s)


def _medians(points: Sequence[Point], span_s: float) -> list[int]:
    """Return the medians of even parts of the time; a part without a point is left out."""
    parts: dict[int, list[int]] = {}
    for point in points:
        part = min(BINS - 1, int((point.at_s - points[0].at_s) / span_s * BINS)) if span_s else 0
        parts.setdefault(part, []).append(point.footprint_kib)
    return [round(statistics.median(parts[part])) for part in sorted(parts)]


def _judged(levels: Sequence[int], growth: tuple[int, int], pace: int, span_s: float) -> Trend:
    grew, last_third = growth
    noise = max(NOISE_KIB, max(levels) // NOISE_SHARE)
    over = f"in {span_s / 3600:.1f} h from {_gib(levels[0])} to {_gib(levels[-1])}"
    if grew <= noise:
        return Trend(Growth.STEADY, f"steady: {over}, which is within its noise", grew, pace)
    if last_third <= max(FLAT_SHARE * grew, noise / 2):
        said = f"it was warming up: {over}, and in the last third no more. A restart would only have it grow again"
        return Trend(Growth.WARMING_UP, said, grew, pace)
    still = f"it grows: {over}, of late by {_gib(pace)} an hour"
    if span_s < MIN_LEAK_SPAN_S:
        wait = f"look again after {MIN_LEAK_SPAN_S / 60:.0f} minutes"
        return Trend(Growth.UNKNOWN, f"{still}; a model that warms up does that too at first: {wait}", grew, pace)
    if last_third < LEAK_SHARE * grew:
        return Trend(Growth.UNKNOWN, f"{still}, more slowly than before: it may be warming up; look again", grew, pace)
    return Trend(Growth.LEAKING, f"it leaks: {over}, and it does not slow down: {_gib(pace)} an hour", grew, pace)


def footprint_kib(baseline_kib: int | None, lowest_kib: int | None) -> int | None:
    """Return what was taken at most: the largest difference in available memory; None where either is not known."""
    return None if baseline_kib is None or lowest_kib is None else max(0, baseline_kib - lowest_kib)


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"


# --- reading -----------------------------------------------------------------------------------------------


def peaks(
    host: Host, cgroup: str, pids: Iterable[int], since_unix_s: float, baseline_kib: int | None = None
) -> tuple[Mark, ...]:
    """Return every mark of a model that runs, or ran until just now; `baseline_kib` was available before its start."""
    path = f"{CGROUP}{cgroup}/memory.peak" if cgroup else ""
    lowest = min((point.footprint_kib for point in _available(host, since_unix_s)), default=None)
    return (
        Mark(
            "lowest available memory", footprint_kib(baseline_kib, lowest),
            "as a difference to before its start: it sees the driver's memory, and whatever others took or gave back",
        ),
        Mark(
            "memory.peak", _bytes_as_kib(host.text_or_none(path) if path else None),
            "what its cgroup was charged: with the page cache of its files, without what it has from the driver",
        ),
        Mark(
            "VmHWM", _high_water_kib(host, pids),
            "what its processes had in memory, each at its own time, shared pages more than once; without what it has "
            "from the driver but does not map. ru_maxrss is the same of a process that has ended",
        ),
    )  # fmt: skip


def _bytes_as_kib(text: str | None) -> int | None:
    return int(text) >> 10 if text is not None and text.strip().isdecimal() else None


def _high_water_kib(host: Host, pids: Iterable[int]) -> int | None:
    """Return the sum over processes; None where none of them can be read."""
    texts = (host.text_or_none(f"/proc/{pid}/status") or "" for pid in pids)
    found = [int(match[1]) for text in texts if (match := re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE))]
    return sum(found) if found else None


def recorded(host: Host, since_unix_s: float, baseline_kib: int, until_unix_s: float | None = None) -> list[Point]:
    """Return what was taken over time, as the recording has it: by how much less was available than before."""
    return [
        Point(at_s, max(0, baseline_kib - available_kib))
        for at_s, available_kib in _available(host, since_unix_s)
        if until_unix_s is None or at_s <= until_unix_s
    ]


def _available(host: Host, since_unix_s: float) -> Iterator[Point]:
    """Yield available memory since a time, from both files of the recording; lines that are torn are left out."""
    for path in (f"{recording.PATH}.1", recording.PATH):
        for row in recording.Reader(_lines_since(host.path(path), since_unix_s)):
            if row.unix_s >= since_unix_s and row.available_kib is not None:
                yield Point(row.unix_s, row.available_kib)


def _lines_since(path: str, since_unix_s: float) -> Iterator[str]:
    """Yield a recording's heading, and its lines from a little before a time on; nothing where there is no file."""
    try:
        with open(path, "rb") as file:
            heading = file.read(BOOTS_BYTES).split(b"\n")[:2]
            yield from (line.decode("utf-8", "replace") for line in heading)
            file.seek(_position(file.fileno(), since_unix_s))
            for line in file:
                yield line.decode("utf-8", "replace")
    except OSError:
        return


_CLOSE_BYTES = 64 << 10


def _position(descriptor: int, since_unix_s: float) -> int:
    """Return where, or a little before where, a time begins: lines are in its order, and a fortnight is 80 MB."""
    low, high = 0, os.fstat(descriptor).st_size
    while high - low > _CLOSE_BYTES:
        middle = (low + high) // 2
        found = re.search(rb"\n(\d{1,15}),", os.pread(descriptor, _CLOSE_BYTES // 2, middle))
        if found is None or int(found[1]) >= since_unix_s:
            high = middle
        else:
            low = middle
    return low
