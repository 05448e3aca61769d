"""Writes memory and pressure to the machine's console ten times a second, through any shortage of memory.

It needs none while it runs: all it uses is allocated before and locked, its files stay open, and the console's buffer
is the kernel's own. What it writes is on the host at once, also when the machine never answers again. A line is
`lab-rec WHEN VALUE… CHECKSUM`: milliseconds since 1970, then FIELDS; the kernel prints there too, and tears lines.
"""

import ctypes
import gc
import os
import time
import zlib

MARK = b"lab-rec"
INTERVAL_S = 0.1
MCL_CURRENT_AND_FUTURE = 3
MEMINFO = (b"MemFree", b"MemAvailable", b"AnonPages", b"Cached", b"SwapFree", b"KReclaimable", b"SReclaimable")
FIELDS = (*(name.decode() for name in MEMINFO), "some_us", "full_us")
"""KiB, then the total of /proc/pressure/memory in microseconds."""


def lock_memory() -> None:
    """Keep this process in memory. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).mlockall(MCL_CURRENT_AND_FUTURE):
        raise OSError(ctypes.get_errno(), "mlockall")


def meminfo_values(text: bytes) -> list[bytes]:
    """The wanted lines' values; `-` for one that the kernel does not have."""
    rows = (line.split(None, 2) for line in text.splitlines())
    found = {row[0][:-1]: row[1] for row in rows}
    return [found.get(name, b"-") for name in MEMINFO]


def pressure_totals(text: bytes) -> list[bytes]:
    """The totals of `some` and `full`."""
    return [line.rpartition(b"total=")[2] for line in text.splitlines()]


def line_of(when_ms: int, meminfo: bytes, pressure: bytes) -> bytes:
    """One line, with its checksum."""
    words = [MARK, b"%d" % when_ms, *meminfo_values(meminfo), *pressure_totals(pressure)]
    body = b" ".join(words)
    return b"%s %08x\n" % (body, zlib.crc32(body))


def main() -> None:
    """Record until killed."""
    lock_memory()
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    console = os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY)
    files = [os.open(path, os.O_RDONLY) for path in ("/proc/meminfo", "/proc/pressure/memory")]
    # a collection walks over everything, at a moment that nobody chose
    gc.disable()
    due_s = time.monotonic()
    while True:
        meminfo, pressure = (os.pread(file, 4096, 0) for file in files)
        os.write(console, line_of(time.time_ns() // 1_000_000, meminfo, pressure))
        due_s = max(due_s + INTERVAL_S, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main()
