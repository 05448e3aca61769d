"""One look at memory, through descriptors that are opened once and a buffer that is made once.

Whoever takes a sample every 20 ms of a wedged machine must not open, format or allocate much: `Sampler.sample` reads
two files with one system call each and picks six fields out of the bytes. What cannot be read becomes unknown, and is
opened again for the next sample; nothing raises.
"""

import os
from dataclasses import dataclass
from typing import Any

from plimsoll.box import memory, platform
from plimsoll.box.guard.model import Sample
from plimsoll.box.host import Host

MEMINFO = "/proc/meminfo"
PRESSURE = "/proc/pressure/memory"
VMSTAT = "/proc/vmstat"
_MEMINFO_BYTES = 16 << 10
"""1.5 KiB on a box; the fields that are used are among its first thirty lines."""
_PRESSURE_BYTES = 512
_VMSTAT_BYTES = 32 << 10
"""4 to 7 KiB; the counters that are used are in its second half."""
_MAX_DIGITS = 20
"""What 64 bits need; int() refuses 4301."""
_US_PER_PERCENT_OF_A_SECOND = 1e4
_NO_FILE = f"{MEMINFO} cannot be read"
_NO_LEVEL = f"MemFree, Cached or Shmem is missing from {MEMINFO} as well: how much is available is unknown"
_FILE_CACHE = (
    "taken instead: MemFree + Cached + Buffers - Shmem. SwapCached is left out: those pages are memory of programs "
    "that is in swap as well, and no part of Cached"
)


class Readings:
    """A file of /proc that is read again and again: one open descriptor, one buffer."""

    def __init__(self, host: Host, path: str, size_bytes: int) -> None:
        self._path = host.path(path)
        # A line's start is found by the newline before it; the file's first line has none.
        self._buffer = bytearray(b"\n") + bytearray(size_bytes)
        self._into = [memoryview(self._buffer)[1:]]
        self._descriptor = -1
        self._end = 1
        self.failures = 0
        """How often it could not be opened or read."""

    def look(self) -> bool:
        """Read the file anew; False where that fails, and nothing is found in it then."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            self._end = 1 + os.preadv(self._descriptor, self._into, 0)
        except OSError:
            self._fail()
            return False
        return self._end > 1

    def number(self, line: bytes, key: bytes = b"") -> int | None:
        """Return the number after `key` on the first line that begins with `line`; None for anything else.

        A last line without a newline is torn, and says nothing.
        """
        buffer = self._buffer
        start = buffer.find(line, 0, self._end)
        if start < 0:
            return None
        start += len(line)
        end = buffer.find(b"\n", start, self._end)
        if key:
            start = buffer.find(key, start, max(end, 0)) + len(key)
            if start < len(key):
                return None
        words = buffer[start:end].split(None, 1) if end > start else ()
        return int(words[0]) if words and words[0].isdigit() and len(words[0]) <= _MAX_DIGITS else None

    def _fail(self) -> None:
        self.failures += 1
        self._end = 1
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError:
                # it was closed already, which may be why it could not be read
                return

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Slow:
    """What the recording has beside a sample; each None where unknown."""

    swap_free_kib: int | None
    anon_kib: int | None
    shmem_kib: int | None
    some_percent: float | None
    oom_kills: int | None
    """Since boot, as the kernel counts them."""


class _Stalled:
    """A PSI line's share of the time between two readings of it."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._total_us: int | None = None
        self._at_s = 0.0

    def percent(self, pressure: Readings, at_s: float) -> float | None:
        """Return it, 0 to 100; None for the first reading, a kernel without PSI, and a total that went back."""
        total_us = pressure.number(self._line, b" total=")
        before_us, elapsed_s = self._total_us, at_s - self._at_s
        self._total_us, self._at_s = total_us, at_s
        if total_us is None or before_us is None or elapsed_s <= 0 or total_us < before_us:
            return None
        # The total is brought up to date when it is read, a moment after the clock was.
        return min(100.0, (total_us - before_us) / elapsed_s / _US_PER_PERCENT_OF_A_SECOND)


class Sampler:
    """Takes the samples that the rules judge. For one thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._meminfo = Readings(host, MEMINFO, _MEMINFO_BYTES)
        self._pressure = Readings(host, PRESSURE, _PRESSURE_BYTES)
        self._full = _Stalled(b"\nfull ")
        self._missing: tuple[str, ...] = (_NO_FILE,)
        self._to_driver = False
        self._otherwise = ("unknown", "")
        self.look_at_driver()

    def look_at_driver(self) -> None:
        """Read anew whether the NVIDIA driver is loaded and keeps pools; opens files, so not for every sample."""
        driver: dict[str, Any] = platform.driver(self._host)
        found = memory.regime({"KReclaimable": 0, "SReclaimable": 0}, driver)
        self._to_driver = bool(driver["version"])
        self._otherwise = (found["regime"], found["basis"])

    @property
    def failures(self) -> int:
        """How often a file could not be opened or read."""
        return self._meminfo.failures + self._pressure.failures

    @property
    def basis(self) -> str:
        """Say what the last sample's figures rest on."""
        if self._missing:
            return "; ".join(self._missing)
        kinds = f"CmaFree, which a driver cannot use, {'' if self._to_driver else 'not '}taken off"
        return f"MemAvailable - (KReclaimable - SReclaimable), {kinds}; {self._otherwise[1]}"

    def sample(self, at_s: float) -> Sample:
        """Return what memory is like now; never raises. `at_s` is the monotonic clock, read just before."""
        full = self._full.percent(self._pressure, at_s) if self._pressure.look() else None
        meminfo = self._meminfo
        if not meminfo.look():
            self._missing = (_NO_FILE,)
            return Sample(at_s, None, None, full)
        free = meminfo.number(b"\nMemFree:")
        available = meminfo.number(b"\nMemAvailable:")
        kernel, slab = meminfo.number(b"\nKReclaimable:"), meminfo.number(b"\nSReclaimable:")
        if available is None or kernel is None or slab is None:
            return Sample(at_s, self._by_file_cache(free, available), free, full)
        self._missing = ()
        misc = kernel - slab
        regime = "C" if misc >= memory.REGIME_C_MIN_KIB else self._otherwise[0]
        return Sample(at_s, max(0, available - max(0, misc) - self._cma_kib()), free, full, regime)

    def _cma_kib(self) -> int:
        """Return what of free memory only movable pages may take, where a driver that pins is loaded."""
        if not self._to_driver:
            return 0
        free = self._meminfo.number(b"\nCmaFree:") or 0
        return free if free <= (self._meminfo.number(b"\nCmaTotal:") or 0) else 0

    def _by_file_cache(self, free: int | None, available: int | None) -> int | None:
        """Return free memory and what the file cache would give back; what the kernel did not say is kept as a text."""
        which = "MemAvailable" if available is None else "KReclaimable or SReclaimable"
        said = f"{which} is missing from {MEMINFO}"
        cached, shmem = self._meminfo.number(b"\nCached:"), self._meminfo.number(b"\nShmem:")
        if free is None or cached is None or shmem is None:
            self._missing = (said, _NO_LEVEL)
            return None
        self._missing = (said, _FILE_CACHE)
        buffers = self._meminfo.number(b"\nBuffers:") or 0
        return max(0, free + max(0, cached + buffers - shmem) - self._cma_kib())

    def close(self) -> None:
        """Give the descriptors back."""
        self._meminfo.close()
        self._pressure.close()


class SlowReader:
    """Reads what is recorded once a second and judged by no rule. For one thread, which is not the sampler's."""

    def __init__(self, host: Host) -> None:
        self._meminfo = Readings(host, MEMINFO, _MEMINFO_BYTES)
        self._pressure = Readings(host, PRESSURE, _PRESSURE_BYTES)
        self._vmstat = Readings(host, VMSTAT, _VMSTAT_BYTES)
        self._some = _Stalled(b"\nsome ")

    def read(self, at_s: float) -> Slow:
        """Return the figures as of now; never raises."""
        self._meminfo.look()
        number = self._meminfo.number
        return Slow(
            swap_free_kib=number(b"\nSwapFree:"),
            anon_kib=number(b"\nAnonPages:"),
            shmem_kib=number(b"\nShmem:"),
            some_percent=self._some.percent(self._pressure, at_s) if self._pressure.look() else None,
            oom_kills=self._vmstat.number(b"\noom_kill ") if self._vmstat.look() else None,
        )

    def close(self) -> None:
        """Give the descriptors back."""
        for each in (self._meminfo, self._pressure, self._vmstat):
            each.close()
