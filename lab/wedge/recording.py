"""What the recorder in the machine wrote to the console, apart from what the kernel wrote there. Pure."""

import itertools
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from lab.guest.recorder import FIELDS

LINE = re.compile(r"lab-rec (?P<ms>\d+) (?P<values>[\d -]+) (?P<sum>[0-9a-f]{8})\r*\n?")
KERNEL = re.compile(r"\[ *(?P<at_s>\d+\.\d{6})\] (?P<text>.*)")


class Sample(NamedTuple):
    """Memory in KiB and pressure, so many seconds after the engine's start; None for what the kernel does not tell.

    `full_us` and `some_us` are the totals of /proc/pressure/memory.
    """

    at_s: float
    mem_free_kib: int | None
    mem_available_kib: int | None
    anon_kib: int | None
    cached_kib: int | None
    swap_free_kib: int | None
    misc_reclaimable_kib: int | None
    some_us: int | None
    full_us: int | None


def samples(console: str, start_s: float) -> list[Sample]:
    """Return what was recorded, without torn lines. `start_s` is when the engine was started, since 1970."""
    found = []
    for match in LINE.finditer(console):
        body = match[0].rpartition(" ")[0]
        words = match["values"].split()
        if zlib.crc32(body.encode()) == int(match["sum"], 16) and len(words) == len(FIELDS):
            values = dict(zip(FIELDS, (int(word) if word.isdigit() else None for word in words), strict=True))
            found.append(_sample(int(match["ms"]) / 1000 - start_s, values))
    return found


def _sample(at_s: float, values: dict[str, int | None]) -> Sample:
    reclaimable, slab = values["KReclaimable"], values["SReclaimable"]
    return Sample(
        round(at_s, 3),
        values["MemFree"],
        values["MemAvailable"],
        values["AnonPages"],
        values["Cached"],
        values["SwapFree"],
        None if reclaimable is None or slab is None else reclaimable - slab,
        values["some_us"],
        values["full_us"],
    )


def without_samples(console: str) -> str:
    """Return the console without the recorder's lines: what the kernel and others wrote."""
    return LINE.sub("", console).replace("\r", "")


def kernel_lines(console: str) -> list[str]:
    """Return the kernel's messages on the console, without their times."""
    matches = (KERNEL.search(line) for line in without_samples(console).splitlines())
    return [match["text"] for match in matches if match]


def full_percent(recorded: Sequence[Sample], over_s: float = 2.0) -> list[tuple[float, float]]:
    """Return (at_s, percent): how much of each `over_s` all tasks were stalled for memory."""
    known = [(s.at_s, s.full_us) for s in recorded if s.full_us is not None]
    found: list[tuple[float, float]] = []
    for _, group in itertools.groupby(known, key=lambda pair: pair[0] // over_s):
        found.append(list(group)[-1])
    pairs = itertools.pairwise(found)
    return [(b[0], min(100.0, (b[1] - a[1]) / 1e4 / (b[0] - a[0]))) for a, b in pairs if b[0] > a[0]]


def lowest_free_kib(recorded: Sequence[Sample]) -> int | None:
    """Return the lowest MemFree from the engine's start on, None where nothing was recorded."""
    return min((s.mem_free_kib for s in recorded if s.mem_free_kib is not None and s.at_s >= 0), default=None)
