"""The answer as `plimsoll.incident/1`: plain values only. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from plimsoll.box.incident import victim
from plimsoll.box.incident.classify import Incident, classify, leading, not_incidents
from plimsoll.box.incident.model import Findings, MemoryReport, Note, OomKill, Place, Target, Task, UserspaceKill
from plimsoll.box.incident.timeline import Timed, TimedNote, Timeline

SCHEMA = "plimsoll.incident/1"
_HIDDEN = frozenset({"place", "stamp", "raw", "count", "last", "again", "memory", "tasks", "certain"})
SHORT_ID_CHARACTERS = 12
"""As much of a container's id as its manager shows."""
_ENDS = frozenset({"unit_result", "container_oom", "reported_oom"})
"""Notes of what became of something."""
COMM_CHARACTERS = 15
"""What the kernel keeps of a name."""


def document(timeline: Timeline, unread: Mapping[str, str], standing: Sequence[str] = ()) -> dict[str, Any]:
    """Return the whole answer; `unread` says of what could not be read why, `standing` how this box is guarded now."""
    incidents = classify(timeline)
    first = leading(incidents)
    problems = {f.file: f.problem for f in timeline.sources if f.problem}
    return {
        "schema": SCHEMA,
        "class": first.label if first else None,
        "confidence": first.confidence if first else 0.0,
        "says": first.says if first else _nothing(timeline),
        "evidence": _evidence(first),
        "events": [event(timed) for timed in timeline.events],
        "incidents": [_incident(each) for each in incidents if each.group.events or each.label],
        "notes": [note(each) for each in timeline.notes],
        "not_incidents": [{"text": text, "source": source(place)} for text, place in not_incidents(timeline)],
        "platform": timeline.platform,
        "standing": list(standing),
        "remarks": list(timeline.remarks),
        "sources": [_source(each) for each in timeline.sources],
        "unread": {**unread, **problems},
    }


def hosts_of(timeline: Timeline) -> frozenset[str]:
    """Return the names of machines in all sources."""
    return frozenset().union(*(each.hosts for each in timeline.sources))


def _nothing(timeline: Timeline) -> str:
    return "events were found, but none that is an incident of a known kind" if timeline.events else "nothing was found"


def _evidence(incident: Incident | None) -> list[dict[str, Any]]:
    grounds = incident.grounds if incident else ()
    return [{"text": g.text, "weight": g.weight, "source": source(g.place)} for g in grounds]


def source(place: Place) -> dict[str, Any]:
    """Return a place as JSON."""
    return {"file": place.file, "line": place.line}


def _incident(incident: Incident) -> dict[str, Any]:
    start = incident.start
    return {
        "class": incident.label,
        "confidence": incident.confidence,
        "says": incident.says,
        "start": start.text if start else None,
        "lasted_s": round(incident.end_s - start.at_s, 6)
        if start and start.at_s is not None and incident.end_s
        else None,
        "events": len(incident.group.events),
        "evidence": _evidence(incident),
        "others": [{"class": label, "confidence": round(value, 2)} for label, value in incident.others],
    }


def _source(found: Findings) -> dict[str, Any]:
    return {"file": found.file, "lines": found.lines, "bytes": found.bytes, "events": len(found.events)}


def note(timed: TimedNote) -> dict[str, Any]:
    """Return a note as JSON."""
    each: Note = timed.note
    facts = {key: _plain(value) for key, value in each.facts.items()}
    return {
        "kind": each.kind,
        "time": timed.moment.text,
        "source": source(each.place),
        "text": each.text,
        "facts": facts,
    }


def event(timed: Timed) -> dict[str, Any]:
    """Return an event as JSON: `kind`, `time`, `source`, what its kind has, and how often."""
    each = timed.event
    found: dict[str, Any] = {"kind": each.kind, "time": timed.moment.text, "source": source(each.place)}
    if timed.moment.basis:
        found["time_basis"] = timed.moment.basis
    if each.stamp.uptime_s is not None:
        found["uptime_s"] = each.stamp.uptime_s
    for field in fields(each):
        if field.name not in _HIDDEN:
            found[field.name] = _plain(getattr(each, field.name))
    found["count"] = each.count
    if timed.moment.at_s is not None and timed.until_s is not None and timed.until_s > timed.moment.at_s:
        found["lasted_s"] = round(timed.until_s - timed.moment.at_s, 6)
    found["also_in"] = [source(place) for place in each.again]
    found["raw"] = each.raw
    if isinstance(each, OomKill):
        found["memory"] = None if each.memory is None else memory(each.memory)
        found["tasks"] = [_task(task) for task in each.tasks]
        found["why"] = _why(each)
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401  # any value of the model
    if isinstance(value, MemoryReport):
        return memory(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _task(task: Task) -> dict[str, Any]:
    return task._asdict()


def memory(report: MemoryReport) -> dict[str, Any]:
    """Return a memory report as JSON, KiB; what it does not say is null."""
    found = {field.name: getattr(report, field.name) for field in fields(report)}
    found["lists_kib"] = dict(report.lists_kib)
    found["orders_free"] = {str(order): count for order, count in report.orders_free.items()}
    return {**found, "accounted_kib": report.accounted_kib, "residual_kib": report.residual_kib}


def _why(kill: OomKill) -> dict[str, Any] | None:
    found = victim.why(kill)
    if found is None:
        return None
    return {
        "total_pages": found.total_pages,
        "page_kib": found.page_kib,
        "points": found.victim.points,
        "rank": found.rank,
        "next": None
        if found.next is None
        else {"pid": found.next.task.pid, "comm": found.next.task.comm, "points": found.next.points},
        "text": list(found.lines),
    }


def who(timeline: Timeline, name: str) -> list[Timed]:
    """Return the kills of a process, a unit or a container, by name or PID; names as far as the kernel keeps them."""
    return [timed for timed in timeline.events if _is_of(timed, name)]


def said_of(timeline: Timeline, name: str) -> list[TimedNote]:
    """Return what others say of the end of a process, a unit or a container: its manager, its runtime."""
    return [each for each in timeline.notes if each.note.kind in _ENDS and _is_about(each.note, name)]


def _is_about(note: Note, name: str) -> bool:
    facts = [str(note.facts[key]) for key in ("unit", "comm", "pid") if note.facts.get(key) is not None]
    return any(fact == name for fact in facts) or _is_unit(facts, name)


def _is_of(timed: Timed, name: str) -> bool:
    each = timed.event
    if not isinstance(each, OomKill | UserspaceKill) or each.victim is None:
        return False
    pid, comm = each.victim.pid, each.victim.comm
    if name.isascii() and name.isdigit() and pid == int(name):
        return True
    if comm is not None and comm.casefold() == name.casefold()[:COMM_CHARACTERS]:
        return True
    units = [each.victim.unit] if isinstance(each.victim, Target) else []
    units += [each.task_memcg] if isinstance(each, OomKill) else []
    return _is_unit(units, name)


def _is_unit(units: Iterable[str | None], name: str) -> bool:
    """Say whether a name is of one of these units or cgroups, or of one that they lie in; an id may be shortened."""
    wanted = name.casefold()
    parts = [part.casefold() for unit in units if unit for part in unit.split("/")]
    stems = [part.rpartition(".")[0] for part in parts]
    if wanted in (*parts, *stems):
        return True
    ids = (stem.rpartition("-")[2] for stem in (*parts, *stems))
    return len(wanted) >= SHORT_ID_CHARACTERS and any(each.startswith(wanted) for each in ids)
