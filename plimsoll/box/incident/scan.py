"""Cuts a stream of bytes into the few lines that can matter, at the speed of a memory search.

Reading every line of a 1 GB log in Python takes minutes. So each block is searched for words that every message of
interest has; only lines with one of them, and those that a reader asks for after them, are taken apart. The words were
chosen for their rarity and length: on an x86-64 core the C library's memmem went over a kern.log at 0.5 to 5 GB/s a
word, the longer the faster, Python's own search at 0.4 to 1.3, one regular expression of all of them at 0.04.
"""

import ctypes
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

KERNEL_WORDS = (
    b"oom", b"NVRM: ", b"ut of memory", b"for more than ", b"BUG: ", b"detected ", b"panic - not", b" [#",
    b"kernel BUG at", b"Linux version", b"PCIe Bus Error", b"plimsoll", b"nactive_anon:",
    b"page allocation", b"DPC: containment event",
)  # fmt: skip
OTHER_WORDS = (
    b"otal-vm", b"blocked ", b"AER: ", b"mlx5_core ", b"mem avail", b"user mem total", b"SIGTERM", b"SIGKILL",
    b"low on mem", b"ry pressure", b"=killed", b"the force", b"Missed ", b"setting system clock",
    b"nternal error: ", b"Oops: ",
)  # fmt: skip
"""What programs say, and lines of the kernel that no log of its own has without one of the others before them."""
_OF_KERNEL = b" kernel: "
BLOCK_BYTES = 1 << 20
MAX_UNIT_BYTES = 256 << 10
"""A line that is longer is cut: after a hard reset a file may hold megabytes of NUL bytes and no newline."""
_CONTEXT_BYTES = 16 << 10
_PIECES = 4
"""A range is cut into quarters as long as it spans SILENCE_S: 85 lines of 9,000 in a log of a line a second."""
SILENCE_S = 300.0
MAX_SILENCES = 64
MAX_STAMP_BYTES = 512
"""A stamp stands within the first 80 bytes, in a JSON record within the first 500."""


class Unit(NamedTuple):
    """A line, or a record of several lines, with the number of its first."""

    number: int
    content: bytes


class Silence(NamedTuple):
    """Two neighbouring lines with a long time between them."""

    before: Unit
    after: Unit


def _memmem() -> Callable[[int, int, bytes, int], int | None] | None:
    """Return the C library's search; None where there is none to be had."""
    try:
        found = ctypes.CDLL(None).memmem
    except (OSError, AttributeError):
        return None
    found.restype = ctypes.c_void_p
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return found


_MEMMEM = _memmem()


def _positions(chunk: bytes, word: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield one position a line of a word."""
    if _MEMMEM is None:
        while (at := chunk.find(word, start, stop)) >= 0:
            yield at
            start = chunk.find(b"\n", at, stop)
            if start < 0:
                return
        return
    base = ctypes.cast(ctypes.c_char_p(chunk), ctypes.c_void_p).value or 0
    while (found := _MEMMEM(base + start, stop - start, word, len(word))) is not None:
        yield found - base
        start = chunk.find(b"\n", found - base, stop)
        if start < 0:
            return


def hits(chunk: bytes, start: int, stop: int, lines: int | None = None) -> list[int]:
    """Return where in a range of a chunk a word stands, in order; of a log of the kernel's alone half of them will do.

    To see that no line is anybody else's takes a third of what looking for what the others say would take.
    """
    lines = chunk.count(b"\n", start, stop) if lines is None else lines
    of_kernel = lines > 0 and chunk.count(_OF_KERNEL, start, stop) == lines
    words = KERNEL_WORDS if of_kernel else (*KERNEL_WORDS, *OTHER_WORDS)
    return sorted(at for word in words for at in _positions(chunk, word, start, stop))


class Cutter:
    """Yields the units that matter; a reader sets `follow` to be given those after the last one as well."""

    def __init__(
        self, separator: bytes = b"\n", *, everything: bool = False, silences: "Silences | None" = None
    ) -> None:
        self._silences = silences
        self.follow = 0
        self.lines = 0
        self.bytes = 0
        self._separator = separator
        self._everything = everything
        self._chunk = b""
        self._start = 0
        self._before = b""
        """The end of the chunk before."""

    def units(self, blocks: Iterable[bytes]) -> Iterator[Unit]:
        """Yield units in order; the last one may be torn."""
        tail = b""
        for block in blocks:
            self.bytes += len(block)
            first = block.find(self._separator) + len(self._separator)
            if first < len(self._separator):
                tail += block
                if len(tail) > MAX_UNIT_BYTES:
                    yield from self._units(tail, 0, len(tail))
                    tail = b""
                continue
            if tail:
                # only the unit at the seam is copied: copying whole blocks costs a tenth of the time
                seam = tail + block[:first]
                yield from self._units(seam, 0, len(seam))
            last = block.rfind(self._separator) + len(self._separator)
            yield from self._units(block, first if tail else 0, last)
            tail = block[last:]
        if tail:
            yield from self._units(tail, 0, len(tail))

    def context(self) -> bytes:
        """Return up to 16 KiB of what stands before the unit that was yielded last."""
        here = self._chunk[max(0, self._start - _CONTEXT_BYTES) : self._start]
        return self._before[-max(0, _CONTEXT_BYTES - len(here)) :] + here if len(here) < _CONTEXT_BYTES else here

    def _units(self, chunk: bytes, position: int, stop: int) -> Iterator[Unit]:
        self._before, self._chunk = self._chunk[-_CONTEXT_BYTES:], chunk
        counted, number = position, self.lines + 1
        if self._silences is not None and position < stop:
            self._silences.look(chunk[position:stop], number)
        lines = chunk.count(b"\n", position, stop)
        found = hits(chunk, position, stop, lines) if not self._everything else []
        index = 0
        while position < stop:
            if self._everything or self.follow > 0:
                self.follow = max(0, self.follow - 1)
                start = position
            else:
                while index < len(found) and found[index] < position:
                    index += 1
                if index == len(found):
                    break
                before = chunk.rfind(self._separator, position, found[index])
                start = position if before < 0 else before + len(self._separator)
            end = chunk.find(self._separator, start, stop)
            end = stop if end < 0 else end + len(self._separator)
            number += chunk.count(b"\n", counted, start)
            counted = self._start = start
            yield Unit(number, chunk[start : min(end, start + MAX_UNIT_BYTES)])
            position = end
        self.lines += lines


class Silences:
    """Finds neighbouring lines that are SILENCE_S or more apart, looking at as few lines as will do.

    `stamp_of` returns a line's time in seconds on any clock of its own, None for a line without one.
    """

    def __init__(self, stamp_of: Callable[[bytes], float | None]) -> None:
        self._stamp_of = stamp_of
        self._last: Unit | None = None
        self._found: list[tuple[float, int, Silence]] = []
        self.count = 0

    @property
    def last(self) -> Unit | None:
        """The last line so far, as far as its stamp may go."""
        return self._last

    @property
    def longest(self) -> list[Silence]:
        """The longest ones, in the order of the file."""
        return [silence for _, _, silence in sorted(self._found, key=lambda item: item[1])]

    def look(self, chunk: bytes, first_line: int) -> None:
        """Look through the next chunk of a file."""
        first = Unit(first_line, _line_at(chunk, 0))
        if self._last is not None:
            self._judge(self._last, first)
        starts = _line_starts(chunk, 0, len(chunk), _PIECES)
        self._between(chunk, first_line, starts, [self._stamp_of(_line_at(chunk, start)) for start in starts])
        self._last = Unit(first_line + chunk.count(b"\n", 0, starts[-1]), _line_at(chunk, starts[-1]))

    def _between(self, chunk: bytes, first_line: int, starts: list[int], stamps: list[float | None]) -> None:
        pairs = zip(starts, starts[1:], stamps, stamps[1:], strict=False)
        for start, end, earlier, later in pairs:
            if earlier is not None and later is not None and abs(later - earlier) < SILENCE_S:
                continue
            after = chunk.find(b"\n", start) + 1
            if after >= end:
                number = first_line + chunk.count(b"\n", 0, start)
                self._judge(Unit(number, _line_at(chunk, start)), Unit(number + 1, _line_at(chunk, end)))
            elif earlier is not None or later is not None:
                inner = sorted({*_line_starts(chunk, start, end, _PIECES), end})
                self._between(chunk, first_line, inner, [self._stamp_of(_line_at(chunk, at)) for at in inner])

    def _judge(self, before: Unit, after: Unit) -> None:
        earlier, later = self._stamp_of(before.content), self._stamp_of(after.content)
        if earlier is None or later is None or later - earlier < SILENCE_S:
            return
        self.count += 1
        keep = heapq.heappush if len(self._found) < MAX_SILENCES else heapq.heappushpop
        keep(self._found, (later - earlier, before.number, Silence(before, after)))


def _line_starts(chunk: bytes, start: int, end: int, pieces: int) -> list[int]:
    """Return the starts of lines that cut a range in about that many pieces; all of them where they are few."""
    if chunk.count(b"\n", start, end) <= pieces:
        found, at = [start], chunk.find(b"\n", start, end - 1) + 1
        while at > found[-1]:
            found.append(at)
            at = chunk.find(b"\n", at, end - 1) + 1
        return found
    marks = {start, chunk.rfind(b"\n", start, end - 1) + 1}
    for piece in range(1, pieces):
        middle = start + (end - start) * piece // pieces
        marks |= {chunk.rfind(b"\n", start, middle) + 1, chunk.find(b"\n", middle, end - 1) + 1}
    return sorted(at for at in marks if start <= at < end)


def _line_at(chunk: bytes, start: int) -> bytes:
    end = chunk.find(b"\n", start, start + MAX_STAMP_BYTES)
    return chunk[start : start + MAX_STAMP_BYTES if end < 0 else end]
