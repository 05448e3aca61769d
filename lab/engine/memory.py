"""The two kinds of memory that a stand-in takes: the driver's, and any program's."""

import mmap
import time
from typing import Protocol

from lab.guest.fakegb10 import Device, whole_pages

CHUNK_BYTES = 4 << 20
"""What is taken at a time of ordinary memory: at 34 % of 1.5 GiB a second, a hundred times a second."""


class Memory(Protocol):
    """What a plan needs of memory."""

    def alloc(self, size_bytes: int, bytes_per_s: int) -> int:
        """Take memory, evenly at `bytes_per_s` (0: at once); returns the bytes got, maybe fewer."""

    def free(self, size_bytes: int) -> None:
        """Give back the newest memory, at least so much."""


class DriverMemory:
    """Memory of the stand-in driver: belongs to the open file, and goes with this process."""

    def __init__(self, driver_class: str) -> None:
        self._device = Device()
        self._class = driver_class

    def alloc(self, size_bytes: int, bytes_per_s: int) -> int:
        """Take memory from the driver."""
        return self._device.alloc(whole_pages(size_bytes), bytes_per_s, self._class)

    def free(self, size_bytes: int) -> None:
        """Give it back to the driver."""
        self._device.free(whole_pages(size_bytes), self._class)


class OrdinaryMemory:
    """Anonymous memory, written to: the kernel can swap it out, and the OOM killer sees it."""

    def __init__(self) -> None:
        self._chunks: list[mmap.mmap] = []

    def alloc(self, size_bytes: int, bytes_per_s: int) -> int:
        """Take and touch; the kernel refuses nothing, it kills."""
        started_s, got = time.monotonic(), 0
        while got < size_bytes:
            chunk = mmap.mmap(-1, min(CHUNK_BYTES, whole_pages(size_bytes - got)))
            for offset in range(0, len(chunk), mmap.PAGESIZE):
                chunk[offset] = 1
            self._chunks.append(chunk)
            got += len(chunk)
            early_s = got / bytes_per_s - (time.monotonic() - started_s) if bytes_per_s else 0.0
            if early_s > 0:
                time.sleep(early_s)
        return got

    def free(self, size_bytes: int) -> None:
        """Unmap the newest chunks."""
        freed = 0
        while self._chunks and freed < size_bytes:
            chunk = self._chunks.pop()
            freed += len(chunk)
            chunk.close()
