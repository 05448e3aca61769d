"""Where the readers of messages put what they find in one source; bounded, whatever the source holds."""

import math
from dataclasses import replace
from typing import Any

from plimsoll.box.incident.model import MAX_RAW_CHARACTERS, Event, Line, Note, Place, Point, Stamp

MAX_EVENTS = 20_000
MAX_NOTES = 5_000
DAY_S = 86_400


def elapsed_s(earlier: Stamp, later: Stamp) -> float | None:
    """Return the seconds between two stamps of one source; None where they have no clock in common.

    Infinite where another boot began between them, and nothing tells when.
    """
    if earlier.uptime_s is not None and later.uptime_s is not None:
        if earlier.boot != later.boot:
            return math.copysign(math.inf, later.boot - earlier.boot)
        return later.uptime_s - earlier.uptime_s
    if earlier.wall_s is None or later.wall_s is None or earlier.form != later.form:
        return None
    seconds = later.wall_s - earlier.wall_s
    # past midnight, where only the time of day is known
    return seconds + DAY_S if earlier.form == "day" and seconds < -DAY_S / 2 else seconds


def within(earlier: Stamp, later: Stamp, seconds: float) -> bool:
    """Say whether two stamps are no further apart than that; what has no time is not told apart by it."""
    apart = elapsed_s(earlier, later)
    return apart is None or abs(apart) <= seconds


class Sink:
    """What was found so far in one source."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.events: list[Event] = []
        self.notes: list[Note] = []
        self.platform: dict[str, str] = {}
        self.series: list[Point] = []
        self.left_out = 0

    def common(self, line: Line) -> dict[str, Any]:
        """Return what every event has of the line that it was found in."""
        return {"place": Place(self.file, line.number), "stamp": line.stamp, "raw": line.text[:MAX_RAW_CHARACTERS]}

    def add(self, event: Event) -> int | None:
        """Keep an event and return its number, None once there are too many."""
        if len(self.events) >= MAX_EVENTS:
            self.left_out += 1
            return None
        self.events.append(event)
        return len(self.events) - 1

    def amend(self, number: int | None, **changes: Any) -> None:  # noqa: ANN401  # fields of any event
        """Replace fields of an event that was found before."""
        if number is not None:
            self.events[number] = replace(self.events[number], **changes)

    def repeat(self, number: int | None, line: Line, times: int = 1) -> None:
        """Count another record of the same event."""
        if number is not None:
            self.amend(number, count=self.events[number].count + times, last=line.stamp)

    def note(self, line: Line, kind: str, text: str, **facts: Any) -> None:  # noqa: ANN401  # figures of any kind
        """Keep a note."""
        if len(self.notes) < MAX_NOTES:
            place = Place(self.file, line.number)
            self.notes.append(Note(kind, text[:MAX_RAW_CHARACTERS], place, line.stamp, facts))
