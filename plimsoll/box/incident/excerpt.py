"""The logs around an incident, as they stand there: what a maintainer asks for first. Pure, over streams of bytes."""

from collections.abc import Iterable

from plimsoll.box.incident import journal
from plimsoll.box.incident.classify import Incident
from plimsoll.box.incident.clocks import iso
from plimsoll.box.incident.grounds import Group
from plimsoll.box.incident.model import Line
from plimsoll.box.incident.prefix import clean

BEFORE_LINES = 100
AFTER_LINES = 250
"""A report of a kill with its stack and a desktop's 150 tasks has 230 lines."""
MAX_LINES = 2000
MAX_BYTES = 512 << 10
_MAX_TORN_BYTES = 64 << 10


def ranges(incident: Incident | None) -> dict[str, tuple[int, int]]:
    """Return for each source the first and the last line to show; empty without an incident."""
    lines: dict[str, list[int]] = {}
    group = incident.group if incident else Group((), ())
    for place in (*(timed.event.place for timed in group.events), *(timed.note.place for timed in group.notes)):
        lines.setdefault(place.file, []).append(place.line)
    found = {file: (max(1, min(each) - BEFORE_LINES), max(each) + AFTER_LINES) for file, each in lines.items()}
    return {file: (first, min(last, first + MAX_LINES - 1)) for file, (first, last) in found.items()}


def cut(blocks: Iterable[bytes], first: int, last: int) -> str:
    """Return these lines of a stream, from 1 and both included, readable, and 512 KiB at most."""
    kept: list[bytes] = []
    number, torn = 1, b""
    for block in blocks:
        breaks = block.count(b"\n")
        if number + breaks < first:
            number += breaks
            torn = block[block.rfind(b"\n") + 1 :] if breaks else (torn + block)[-_MAX_TORN_BYTES:]
            continue
        lines = (torn + block).split(b"\n")
        torn = lines.pop()[-_MAX_TORN_BYTES:]
        kept += [raw for at, raw in enumerate(lines, number) if first <= at <= last]
        number += len(lines)
        if number > last:
            break
    kept += [torn] if torn and first <= number <= last else []
    text = "\n".join(shown for raw in kept for shown in _shown(raw))
    return text[:MAX_BYTES]


def _shown(raw: bytes) -> list[str]:
    """Return a line as people read it: a record of the journal without its sixty fields."""
    found = journal.json_lines(0, raw) if raw[:1] == b"{" else []
    return [_plain(line) for line in found] or [clean(raw)]


def _plain(line: Line) -> str:
    at = "" if line.stamp.wall_s is None else f"{iso(line.stamp.wall_s)}Z "
    since = "" if line.stamp.uptime_s is None else f"[{line.stamp.uptime_s:.6f}] "
    return f"{at}{line.program or ''}: {since}{line.text}"
