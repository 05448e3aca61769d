"""The answer as text for people: a page at most, all of it with `verbose`. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence

from plimsoll.box.incident import meminfo, victim
from plimsoll.box.incident.classify import Incident, classify, leading, not_incidents
from plimsoll.box.incident.grounds import duration
from plimsoll.box.incident.model import Note, OomKill, Place
from plimsoll.box.incident.timeline import Timed, Timeline
from plimsoll.box.incident.wording import describe

AFTER_S = 60.0
MAX_EVENTS = 24
"""With the rest it fills a page."""
MAX_GROUNDS = 6
MAX_NOTES = 8
MAX_REMARKS = 6
_LAYERS = {
    "A": "the guard stops the workload before memory is gone; ssh and journald keep their pages; at last a watchdog",
    "B": "the guard acts before the kernel must; scores decide whom the kernel takes (user manager and ssh layers)",
    "C": "no layer prevents it; with no sign of trouble before, look at power, heat and firmware",
    "D": "the killer's own thresholds (earlyoom layer, systemd-oomd's slices)",
    "E": "no layer prevents it; look at the card, its cable and its firmware",
    "F": "no layer prevents it; look at the pair of kernel and driver",
}
_CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def printable(text: str) -> str:
    """Return a text that cannot steer a terminal: names in a log are anybody's."""
    return text.translate(_CONTROL)


def lines(
    timeline: Timeline, unread: Mapping[str, str], *, standing: Sequence[str] = (), verbose: bool = False
) -> Iterator[str]:
    """Yield the answer's lines."""
    incidents = classify(timeline)
    first = leading(incidents)
    yield from _head(first, incidents, timeline)
    most = None if verbose else MAX_EVENTS
    yield from _section("Time line", [_row(timed) for timed in timeline.events], most)
    if first:
        yield from _section(
            "Grounds", [_ground(g.text, g.place) for g in first.grounds], None if verbose else MAX_GROUNDS
        )
        if first.label:
            yield f"What prevents it: {_LAYERS[first.label]}"
    yield from _victims(timeline, verbose=verbose)
    yield from _section("The guard", _guard(timeline, first), None if verbose else MAX_NOTES)
    yield from _section("This box now", list(standing), None)
    told = {g.text for g in first.grounds} if first else set()
    others = [t.note for t in timeline.notes if t.note.kind not in ("counter", "guard") and t.note.text not in told]
    notes = [_ground(note.text, note.place) for note in others]
    yield from _section("Also seen", notes, None if verbose else MAX_NOTES)
    yield from _section(
        "No incident in itself", [_ground(text, place) for text, place in not_incidents(timeline)], most
    )
    yield from _section(
        "Platform", [f"{key}: {value}" for key, value in timeline.platform.items()], None if verbose else MAX_NOTES
    )
    yield from _section("Assumed", list(timeline.remarks), None if verbose else MAX_REMARKS)
    problems = {**unread, **{f.file: f.problem for f in timeline.sources if f.problem}}
    yield from _section("Not read", [f"{file}: {why}" for file, why in problems.items()], None)


def _head(first: Incident | None, incidents: list[Incident], timeline: Timeline) -> Iterator[str]:
    read = f"{len(timeline.sources)} source{'s' * (len(timeline.sources) != 1)}"
    if first is None or first.label is None:
        if not any(source.is_log() for source in timeline.sources):
            yield f"Nothing can be told: no line of {read} is one of a log."
            return
        what = "events, but no incident of a known kind" if timeline.events else "nothing"
        told = [note for note in timeline.notes if note.note.kind == "container_oom" or _is_oom(note.note)]
        if told and not timeline.events:
            what = f"no record of the kernel's, but others report an OOM kill, {len(told)} in all,"
        yield f"Found {what} in {read}."
        return
    when = f"{first.start.text}: " if first.start and first.start.text else ""
    yield f"{when}class {first.label}, {first.says} (confidence {first.confidence:.0%})"
    if first.others:
        yield "Could also be: " + ", ".join(f"{label} ({value:.0%})" for label, value in first.others)
    more = [i for i in incidents if i is not first and i.label]
    if more:
        listed = ", ".join(
            f"{i.label} ({i.confidence:.0%}) {i.start.text if i.start and i.start.text else ''}".strip()
            for i in more[-8:]
        )
        yield f"Other incidents: {listed}"


def _is_oom(note: Note) -> bool:
    """Say whether a manager reports of a unit that the kernel's OOM killer came to it."""
    return note.kind == "unit_result" and (note.facts.get("result") == "oom-kill" or "OOM killer" in note.text)


def _guard(timeline: Timeline, first: Incident | None) -> list[str]:
    """Return what the guard said before the incident was over, the last first; that it said nothing where it might."""
    start = first.start if first else None
    until_s = (first.end_s if first and first.end_s is not None else math.inf) + AFTER_S
    found = [
        n for n in timeline.notes if n.note.kind == "guard" and (n.moment.at_s is None or n.moment.at_s <= until_s)
    ]
    rows = [f"{n.moment.text or ''}  {_ground(n.note.text, n.note.place)}" for n in reversed(found)]
    records = [source.file for source in timeline.sources if "guard.jsonl" in source.file]
    if records and not rows:
        rows = [f"{', '.join(records)} has no record of it up to then"]
    elif rows and start and start.at_s is not None and found[-1].moment.axis == start.axis:
        silent_s = start.at_s - (found[-1].moment.at_s or 0.0)
        rows += [f"its last record is {duration(silent_s)} before the first sign"] if silent_s > AFTER_S else []
    return rows


def _section(title: str, rows: list[str], most: int | None) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield title
    kept = rows if most is None or len(rows) <= most else rows[:most]
    yield from (f"  {row}" for row in kept)
    if len(kept) < len(rows):
        yield f"  … and {len(rows) - len(kept)} more (-v shows all)"


def _row(timed: Timed) -> str:
    place = timed.event.place
    return f"{timed.moment.text or '(no time)'}  {describe(timed.event)}  [{at(place)}]"


def at(place: Place) -> str:
    """Return where something stands, as people write it."""
    return f"{place.file}:{place.line}"


def _ground(text: str, place: Place) -> str:
    return f"{text}  [{at(place)}]"


def _victims(timeline: Timeline, *, verbose: bool) -> Iterator[str]:
    kills = [t.event for t in timeline.events if isinstance(t.event, OomKill) and t.event.scope != "sysrq"]
    rows: list[str] = []
    for kill in kills if verbose else kills[-2:]:
        found = victim.why(kill)
        adj = kill.victim.oom_score_adj if kill.victim else None
        rows += found.lines if found else victim.inherited(adj, kill.scope)
        if kill.memory and (text := meminfo.describe(kill.memory)):
            rows.append(text)
    yield from _section("Why this victim, and where memory was", rows, None)
