"""A dead process is not reclaimed memory: what came back, against what there was before a start; and asking for it.

What a process had for itself is free by the kernel's own rules once it is gone. What it had from the driver comes back
when the driver has given it back, which takes tens of seconds, or never.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.box import memory, platform
from plimsoll.box.host import Host
from plimsoll.box.serve.holders import level_kib, tolerance_kib
from plimsoll.box.serve.records import OVER, Baseline, State

if TYPE_CHECKING:
    from plimsoll.box.guard.aftermath import Dropped

RELEASE_EVERY_S = 10.0
"""The driver's pool fills while a teardown goes on; to empty it took 6.1 s at the most."""
_CLEAN_AFTER_S = 30.0
"""Written pages of a checkpoint that was just downloaded are on the disk by then (vm.dirty_expire_centisecs)."""


@dataclass(frozen=True)
class Now:
    """Memory now, in KiB; None for what cannot be read."""

    level: Baseline
    free_kib: int | None = None
    """In use for nothing at all, not even for files."""


def measure(host: Host) -> Now:
    """Look at memory."""
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    available = memory.available_kib(meminfo, to_driver=bool(platform.driver(host)["version"]))
    return Now(Baseline(available, level_kib(meminfo, available)), meminfo.get("MemFree"))


def available_kib(host: Host) -> int | None:
    """Return available memory, None where it cannot be told."""
    return measure(host).level.available_kib


# --- pure -------------------------------------------------------------------------------------------


def expected_kib(state: State, others: Iterable[State]) -> int | None:
    """Return the level that there must be once a model is gone; None where its baseline is not known.

    It is that of before its start, less what other models (`others` are their states) have taken since, plus what those
    had that have ended since.
    """
    level = state.baseline.level_kib
    if level is None:
        return None
    for each in others:
        if each.name == state.name or each.held_kib is None:
            continue
        if each.phase not in OVER and each.began_s > state.began_s:
            level -= each.held_kib
        elif each.ended_s is not None and each.began_s < state.began_s < each.ended_s:
            level += each.held_kib
    return level


def missing_kib(expected: int | None, level: int | None, footprint: int | None) -> int | None:
    """Return how much has not come back, 0 where all has, None where that cannot be told."""
    if expected is None or level is None:
        return None
    missing = expected - level
    return 0 if missing <= tolerance_kib(footprint or 0) else missing


def taken(state: State, now: Baseline) -> State:
    """Return a state whose footprint is at least the difference between its baseline and now."""
    before = state.baseline
    return replace(
        state,
        footprint_kib=_larger(state.footprint_kib, before.available_kib, now.available_kib),
        held_kib=_larger(state.held_kib, before.level_kib, now.level_kib),
    )


def _larger(so_far: int | None, before: int | None, now: int | None) -> int | None:
    return so_far if before is None or now is None else max(so_far or 0, before - now)


# --- asking for it ----------------------------------------------------------------------------------


def release(host: Host) -> "Dropped":
    """Have the driver give back what it keeps pooled, the gentle way: the models' files stay in memory."""
    from plimsoll.box.guard.aftermath import drop_pool  # noqa: PLC0415  # with ctypes; most commands release nothing

    return drop_pool(host, lambda: available_kib(host))


def forget_files(host: Host, paths: Iterable[str]) -> int:
    """Drop a checkpoint's clean pages from the page cache, and no others; return how many files were asked for.

    Pages that somebody has mapped stay. A file that is still being written keeps what is not on the disk yet.
    """
    done = 0
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(host.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                if time.time() - os.fstat(descriptor).st_mtime > _CLEAN_AFTER_S:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    done += 1
            finally:
                os.close(descriptor)
    return done
