"""Reads one source: bytes in, findings out. Streams; memory stays bounded whatever the source holds. Pure."""

import itertools
import quopri
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from plimsoll.box.incident import journal, recording
from plimsoll.box.incident.asides import Asides
from plimsoll.box.incident.boots import Boots
from plimsoll.box.incident.guardlog import GuardLog
from plimsoll.box.incident.joining import UNKNOWN, Joiner, shape
from plimsoll.box.incident.model import NO_STAMP, DriverAllocFailure, Event, Findings, Gap, Line, Note, Stamp
from plimsoll.box.incident.nvrm import Nvrm
from plimsoll.box.incident.oom import Oom
from plimsoll.box.incident.pci import Pci
from plimsoll.box.incident.prefix import Prefix, clean
from plimsoll.box.incident.scan import Cutter, Silence, Silences, Unit
from plimsoll.box.incident.sink import Sink, elapsed_s
from plimsoll.box.incident.stalls import Stalls
from plimsoll.box.incident.table import Table, heading
from plimsoll.box.incident.userspace import Userspace

SMALL_BYTES = 64 << 10
"""What is no larger is read line by line: excerpts have lines that no whole log would have without the words."""
_DELTA = re.compile(rb"(?m)^\[ *\+\d+\.\d+\]")
_BINARY_JOURNAL = b"LPKSHHRH"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_REPEATED = re.compile(r"(?:[\w.-]+ )?(?:last )?message repeated (\d+) times(?:: ?\[ ?(.*?)\]?)?$", re.DOTALL)
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)\b")
_NO_NUMBER = re.compile(r"\d{80}")
"""What no kernel and no program writes; Python reads at most 4,300 digits as a number, and no float is that large."""
_CLOCK = re.compile(r".*setting system clock to .*\((\d{9,11})\)")
_REALTIME = re.compile(rb'"__REALTIME_TIMESTAMP" ?: ?"(\d{10,17})"')
_OF_MAIL = re.compile(rb"(?:gfp_mask|constraint|order)=3D")
"""A mail as it was sent, with `=` and line ends encoded."""
_USUAL = re.compile(
    rb"([A-Z][a-z]{2} [ \d]\d |\d{4}-\d\d-\d\d[T ])([0-2]\d):([0-5]\d):([0-5]\d)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)? "
)
MAX_DATES = 4096
MAX_BOOTS = 1000
MAX_LIVE = 1000
"""Of a log that goes on, so many events and notes are remembered, to know what goes on."""
_RECENT = 8
SAME_BOOT_S = 30.0
"""The two clocks drift, and a wall clock is set at boot."""
ANEW_S = 20.0
"""Processors write into the kernel's log beside each other, but not by seconds."""
FULL_LINES = 20
_HEADING_LINES = 12
_RULE = re.compile(r"[\s|:+-]*")
_HEAD_LINES = 300
"""So many lines show whether anybody but the kernel writes to a log."""
_NUL = re.compile(rb"\x00|(?:\\x00){4}")
"""As bytes, or as somebody's tool has shown them."""
_STRANGE = re.compile(r"[\ufffd\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
STRANGE_SHARE = 0.3
"""Random bytes have about a half of these, a log in an 8-bit alphabet with English words of the kernel far fewer."""


def problem_of(name: str, head: bytes) -> str | None:
    """Return why a file that begins like this cannot be read, None if it can."""
    if head.startswith(_BINARY_JOURNAL):
        return "a binary journal: write it out with `journalctl --file FILE -o json` first"
    if re.search(r"(?:^|/)[wbu]tmp(?:\.\d+)?$", name) and b"\0" in head:
        return "a binary list of logins: write it out with `last -x --time-format iso -f FILE` first"
    if head.startswith(_ZSTD):
        return "compressed with zstd: decompress it first (`zstd -d`)"
    if head.startswith(_UTF16):
        return "UTF-16 text: convert it first (`iconv -f UTF-16 -t UTF-8`)"
    return None


def _is_binary(head: bytes) -> bool:
    """Say whether most likely no log begins like this; NUL bytes do not count, since a torn log has them too."""
    text = head.replace(b"\0", b"").decode("utf-8", "replace")
    return len(_STRANGE.findall(text)) > len(text) * STRANGE_SHARE


def read(name: str, blocks: Iterable[bytes], modified_s: float | None = None) -> Findings:
    """Return what a source holds; never raises for what is in it."""
    stream = iter(blocks)
    head = bytearray()
    for block in stream:
        head += block
        if len(head) > SMALL_BYTES:
            break
    problem = problem_of(name, bytes(head[:16]))
    if problem is None and _is_binary(bytes(head[:SMALL_BYTES])):
        problem = "binary, no text of a log: name the log itself, or write it out as text first"
    if problem:
        return Findings(file=name, problem=problem)
    if len(head) <= SMALL_BYTES and _OF_MAIL.search(head):
        head = bytearray(quopri.decodestring(bytes(head)))
    return _Reading(name, bytes(head)).run(itertools.chain([bytes(head)], stream), modified_s)


class Live:
    """Reads a log that goes on, a record at a time; memory stays bounded however long it goes on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reading = _Reading(name, b"")
        self._number = 0

    def feed(self, raw: bytes) -> list[Event | Note]:
        """Return the events and notes that begin with the next record, and those that it makes worse."""
        self._number += 1
        if self._reading.is_full():
            self._reading = _Reading(self._name, b"")
        return self._reading.feed(Unit(self._number, raw))


class _Reading:
    def __init__(self, name: str, head: bytes) -> None:
        self._sink = Sink(name)
        self._prefix = Prefix()
        is_small = len(head) <= SMALL_BYTES
        self._joiner = Joiner(shape([_parse(text) for text in _texts(head)]) if is_small else UNKNOWN)
        self._table = self._heading(head)
        self._export = journal.EXPORT.search(head) is not None
        self._oom, self._stalls = Oom(self._sink), Stalls(self._sink)
        self._nvrm, self._boots, self._pci = Nvrm(self._sink), Boots(self._sink), Pci(self._sink)
        self._guard, self._asides = GuardLog(self._sink), Asides(self._sink)
        self._userspace, self._facts = Userspace(self._sink), recording.Facts(self._sink)
        everything = is_small or self._table is not None or _DELTA.search(head) is not None
        self._last = NO_STAMP
        self._dates: set[tuple[int, int, int]] = set()
        self._boot_stamps: list[Stamp] = []
        self._nul: Line | None = None
        self._first = next((line.stamp for line in map(_parse, _texts(head)) if line.stamp != NO_STAMP), NO_STAMP)
        others = [line for line in map(_parse, _texts(head)) if line.program not in (None, "kernel")]
        self._is_full = len(others) >= FULL_LINES
        self._silences = Silences(line_clock()) if self._is_full and not self._export and self._table is None else None
        self._cutter = Cutter(b"\n\n" if self._export else b"\n", everything=everything, silences=self._silences)
        self._previous: Line | None = None
        self._boot = 0
        self._uptime_s = 0.0

    def _heading(self, head: bytes) -> Table | None:
        """Return the reader of a recording, whose heading may stand below a comment; None for anything else."""
        rows = [text for text in clean(head[:4096]).splitlines() if text.strip()][:_HEADING_LINES]
        # a table in a text has a line of dashes below its heading
        rows = [row for row in rows if not _RULE.fullmatch(row)]
        headings = (heading(first, second) for first, second in itertools.pairwise(rows))
        found = next((each for each in headings if each), None)
        return Table(self._sink, *found) if found else None

    def is_full(self) -> bool:
        """Say whether enough was kept of a log that goes on; a report that is just being read may end before."""
        kept = len(self._sink.events) + len(self._sink.notes)
        return kept >= 2 * MAX_LIVE or (kept >= MAX_LIVE and not self._is_busy())

    def feed(self, unit: Unit) -> list[Event | Note]:
        """Return what one more record has begun, and the driver's failures that turn out to be hard ones."""
        events, notes = self._sink.events, self._sink.notes
        told, noted, before = len(events), len(notes), events[-_RECENT:]
        for line in self._lines(unit):
            self._take(line)
        # a record is whole: nothing of it comes later
        for line in self._joiner.flush():
            self._message(line._replace(text=line.text.lstrip()))
        recent = events[told - len(before) : told]
        worse = [now for was, now in zip(before, recent, strict=True) if _severity(was) != _severity(now)]
        return [*worse, *events[told:], *notes[noted:]]

    def _is_busy(self) -> bool:
        """Say whether the lines that follow may belong to what was read last."""
        return self._oom.wants_more or self._stalls.wants_more or self._joiner.wants_more or self._boots.wants_more

    def run(self, blocks: Iterable[bytes], modified_s: float | None) -> Findings:
        problem = None
        try:
            for unit in self._cutter.units(blocks):
                for line in self._lines(unit):
                    self._take(line)
                self._cutter.follow = max(self._cutter.follow, 1 if self._is_busy() else 0)
        except (OSError, EOFError) as error:
            problem = f"not read to its end: {error}"
        self._close()
        return self._findings(problem, modified_s)

    def _lines(self, unit: Unit) -> Iterator[Line]:
        if self._export:
            yield from journal.export_lines(unit.number, unit.content)
            return
        content = unit.content.strip(b"\0\r\n")
        if self._table is not None:
            whole = unit.content.endswith(b"\n") and b"\0" not in unit.content
            if self._table.row(unit.number, clean(content), whole=whole):
                return
        if self._nul is None and _NUL.search(unit.content):
            self._nul = Line(unit.number, NO_STAMP, None, "")
        found = journal.json_lines(unit.number, content) if content[:1] == b"{" else []
        if found:
            yield from map(self._unwrapped, found)
        else:
            line = self._prefix.parse(unit.number, clean(content))
            yield line if line.stamp.uptime_s is None else line._replace(stamp=self._of_boot(line.stamp))

    def _unwrapped(self, line: Line) -> Line:
        """Return a record whose message is a line of a log, as a container's are, in the parts of that line."""
        inner = self._prefix.parse(line.number, line.text) if line.program is None else line
        if inner.stamp == NO_STAMP and inner.program is None:
            return line
        stamp = inner.stamp if line.stamp.wall_s is None else line.stamp
        if stamp.uptime_s is None:
            stamp = stamp._replace(uptime_s=inner.stamp.uptime_s)
        return inner._replace(stamp=stamp, prefixed=True)

    def _of_boot(self, stamp: Stamp) -> Stamp:
        """Return a stamp of the kernel's clock alone with the number of its boot: the clock begins anew with each."""
        uptime_s = stamp.uptime_s or 0.0
        if stamp.wall_s is not None:
            return stamp
        self._boot += uptime_s < self._uptime_s - ANEW_S
        self._uptime_s = uptime_s
        return stamp._replace(boot=self._boot)

    def _take(self, line: Line) -> None:
        self._clocks(line)
        for whole in self._joiner.feed(line):
            self._message(whole._replace(text=whole.text.lstrip()))

    def _clocks(self, line: Line) -> None:
        stamp = line.stamp
        if stamp != NO_STAMP:
            self._last = stamp
        if stamp.form == "yearless" and len(self._dates) < MAX_DATES:
            self._dates |= {(int(y), int(m), int(d)) for y, m, d in _DATE.findall(line.text[:400])}
        is_clock = "setting system clock" in line.text and line.may_be_kernel
        clock = _CLOCK.match(line.text) if is_clock else None
        if stamp.uptime_s is None:
            return
        if clock:
            self._boot_at(Stamp(float(clock[1]), "date", 0, stamp.uptime_s, stamp.boot))
        elif stamp.wall_s is not None and stamp.form in ("date", "yearless"):
            self._boot_at(stamp)

    def _boot_at(self, both: Stamp) -> None:
        """Keep a stamp with both clocks, one of each boot."""
        if len(self._boot_stamps) < MAX_BOOTS and not any(_same_boot(known, both) for known in self._boot_stamps):
            self._boot_stamps.append(both)

    def _message(self, line: Line) -> None:
        if _NO_NUMBER.search(line.text):
            return
        times = 1
        if repeated := _REPEATED.match(line.text):
            times = int(repeated[1])
            text = repeated[2] or (self._previous.text if self._previous else "")
            line = line._replace(text=text, program=line.program if repeated[2] else None)
        self._previous = line
        if self._nvrm.read(line, times) or self._oom.read(line) or self._stalls.read(line):
            return
        context = self._cutter.context() if "Linux version" in line.text or line.text.startswith("-- ") else b""
        if self._boots.read(line, context):
            self._oom.close()
            self._stalls.close()
            return
        if any(read(line) for read in (self._guard.read, self._pci.read, self._userspace.read, self._asides.read)):
            return
        if line.program != "kernel":
            any(read(line) for read in (partial(recording.settings, self._sink), self._facts.read))

    def _close(self) -> None:
        for line in self._joiner.flush():
            self._message(line._replace(text=line.text.lstrip()))
        self._oom.close()
        self._stalls.close()
        self._boots.close()
        self._userspace.close()
        self._facts.close()
        if self._nul is not None:
            what = "NUL bytes: the file was being written when the machine was reset; its end never reached the disk"
            self._sink.note(self._nul, "nul_bytes", what)
        if self._table is not None:
            self._table.close()
        if self._silences is not None:
            if self._silences.last is not None:
                self._last = self._prefix_of(self._silences.last).stamp
            for silence in self._silences.longest:
                self._silence(silence)

    def _silence(self, silence: Silence) -> None:
        """Keep a long time without a line; whether it means anything is judged beside everything else."""
        before = self._prefix_of(silence.before)
        after = self._prefix_of(silence.after)
        seconds = elapsed_s(before.stamp, after.stamp)
        if seconds is not None and seconds > 0:
            common = self._sink.common(before)
            self._sink.add(Gap(**common, seconds=seconds, ended_by="record", before=before.text[:200], certain=False))

    def _prefix_of(self, unit: Unit) -> Line:
        return _parse(clean(unit.content))._replace(number=unit.number)

    def _findings(self, problem: str | None, modified_s: float | None) -> Findings:
        if self._sink.left_out and problem is None:
            problem = f"{self._sink.left_out} events more than are kept"
        return Findings(
            file=self._sink.file, events=tuple(self._sink.events), notes=tuple(self._sink.notes),
            platform=dict(self._sink.platform), first=self._first, last=self._last, dates=frozenset(self._dates),
            modified_s=modified_s, boots=tuple(self._boot_stamps), problem=problem, lines=self._cutter.lines,
            bytes=self._cutter.bytes, is_full=self._is_full,
            hosts=frozenset(self._prefix.hosts), series=tuple(self._sink.series),
            silences=self._silences.count if self._silences else 0,
        )  # fmt: skip


def _severity(event: Event) -> str | None:
    return event.severity if isinstance(event, DriverAllocFailure) else None


def _parse(text: str) -> Line:
    found = journal.json_lines(0, text.encode()) if text[:1] == "{" else []
    return found[0] if found else Prefix().parse(0, text)


def _same_boot(one: Stamp, other: Stamp) -> bool:
    began = [(stamp.wall_s or 0.0) - (stamp.uptime_s or 0.0) for stamp in (one, other)]
    return one.form == other.form and abs(began[0] - began[1]) <= SAME_BOOT_S


def _texts(head: bytes) -> list[str]:
    return [clean(raw) for raw in head.strip(b"\n").split(b"\n")[:_HEAD_LINES]]


def line_clock() -> Callable[[bytes], float | None]:
    """Return a function for a line's time on a clock that only serves to compare neighbours.

    The usual two forms are taken apart once a day and zone: doing so for each line took half of all time.
    """
    prefix = Prefix()
    days: dict[bytes, float | None] = {}

    def slowly(raw: bytes) -> float | None:
        stamp = prefix.parse(0, clean(raw[:120])).stamp
        return stamp.uptime_s if stamp.wall_s is None else stamp.wall_s - (stamp.offset_s or 0)

    def time_of(raw: bytes) -> float | None:
        if raw[:1] == b"{":
            found = _REALTIME.search(raw)
            return int(found[1]) / 1e6 if found else None
        usual = _USUAL.match(raw)
        if usual is None:
            return slowly(raw)
        date, hour, minute, second, zone = usual.groups()
        key = date + (zone or b"")
        of_day = int(hour) * 3600 + int(minute) * 60 + int(second)
        if key not in days:
            whole = slowly(b"%s%s:%s:%s%s " % (date, hour, minute, second, zone or b""))
            days[key] = None if whole is None or len(days) > MAX_DATES else whole - of_day
        start = days[key]
        return None if start is None else start + of_day

    return time_of
