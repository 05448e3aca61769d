"""What kind of incident it was, with how much confidence and on what grounds. Pure.

A class is an opinion about a group of events that lie together in time. What is no incident (a cgroup's own limit, a
kill or crash that somebody asked for, a counter without a date) is named, so that nobody takes it for one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.box.incident.clocks import Moment
from plimsoll.box.incident.grounds import OF_MEMORY, RULES, Ground, Group, duration
from plimsoll.box.incident.model import DriverAllocFailure, Gap, OomKill, Panic, Place, UserspaceKill, Xid
from plimsoll.box.incident.timeline import Timed, TimedNote, Timeline

CLASSES = {
    "A": "reclaim livelock: the machine lived and did nothing but look for memory",
    "B": "OOM cascade: the kernel killed, and what it killed or who waited for it took others along",
    "C": "reset or power loss: the machine was gone without a word of why",
    "D": "userspace killer: a program stopped something, the machine was well",
    "E": "network or PCIe: a card, its link or its driver failed",
    "F": "kernel or driver fault: not a matter of memory",
}
TOGETHER_S = 3600.0
LEAST = 0.25
"""Below it nothing is claimed."""
CERTAIN = 0.97
"""No log proves what happened."""
_ORDER = "BADEFC"
"""Of two classes with equal grounds, the one that explains the other."""
_SPEAKING = frozenset({*OF_MEMORY, "driver_fault", "pcie", "network", "nul_bytes"})


@dataclass(frozen=True)
class Incident:
    """Events that lie together, and what they are."""

    group: Group
    label: str | None
    """`A` to `F`; None where nothing can be claimed."""
    confidence: float
    grounds: tuple[Ground, ...]
    """For that class, the weightiest first."""
    others: tuple[tuple[str, float], ...]
    """What else it could be, with the sum of its grounds."""
    start: Moment | None
    end_s: float | None

    @property
    def says(self) -> str:
        """The class in words."""
        return CLASSES[self.label] if self.label else "no incident of a known kind"


def classify(timeline: Timeline) -> list[Incident]:
    """Return the incidents, in the order of time."""
    return [judge(group) for group in groups(timeline)]


def leading(incidents: list[Incident]) -> Incident | None:
    """Return the one that is reported first: the last with good grounds, else the one with the best."""
    labelled = [incident for incident in incidents if incident.label]
    sure = [incident for incident in labelled if incident.confidence >= 0.5]  # noqa: PLR2004  # more likely than not
    if sure:
        return sure[-1]
    return max(labelled, key=lambda incident: incident.confidence, default=None)


def _span(item: Timed | TimedNote) -> tuple[str, float | None, float | None]:
    if isinstance(item, TimedNote):
        return item.moment.axis, item.moment.at_s, item.moment.at_s
    until_s = item.until_s
    if isinstance(item.event, Gap) and item.moment.at_s is not None:
        until_s = item.moment.at_s + item.event.seconds
    return item.moment.axis, item.moment.at_s, until_s


def groups(timeline: Timeline) -> list[Group]:
    """Return what lies together: within an hour, or, without times, in one file."""
    speaking = [note for note in timeline.notes if note.note.kind in _SPEAKING]
    timed: list[Timed | TimedNote] = [*timeline.events, *speaking]
    buckets: dict[str, list[Timed | TimedNote]] = {}
    for item in timed:
        axis = item.moment.axis
        place = item.event.place if isinstance(item, Timed) else item.note.place
        buckets.setdefault(axis if axis in ("wall", "day") else f"{axis} {place.file}", []).append(item)
    found = []
    for items in buckets.values():
        found += [_group(part) for part in _parts(sorted(items, key=_when))]
    return found


def _when(item: Timed | TimedNote) -> tuple[float, Place]:
    place = item.event.place if isinstance(item, Timed) else item.note.place
    return item.moment.at_s or 0.0, place


def _parts(items: list[Timed | TimedNote]) -> Iterator[list[Timed | TimedNote]]:
    part: list[Timed | TimedNote] = []
    end_s: float | None = None
    for item in items:
        _axis, start_s, until_s = _span(item)
        if part and start_s is not None and end_s is not None and start_s - end_s > TOGETHER_S:
            yield part
            part, end_s = [], None
        part.append(item)
        if until_s is not None:
            end_s = until_s if end_s is None else max(end_s, until_s)
    if part:
        yield part


def _group(items: list[Timed | TimedNote]) -> Group:
    return Group([i for i in items if isinstance(i, Timed)], [i for i in items if isinstance(i, TimedNote)])


def judge(group: Group) -> Incident:
    """Return what a group is."""
    found = [ground for rule in RULES for ground in rule(group)]
    sums = {label: _confidence([g.weight for g in found if g.to == label]) for label in CLASSES}
    ordered = sorted(sums.items(), key=lambda item: (-item[1], _ORDER.index(item[0])))
    label, confidence = _decide(group, ordered)
    others = [(name, _beside(value, confidence)) for name, value in ordered if name != label]
    items: list[Timed | TimedNote] = [*group.events, *group.notes]
    first = min(items, key=_when, default=None)
    ends = [end for item in items if (end := _span(item)[2]) is not None]
    return Incident(
        group, label, confidence,
        tuple(sorted((g for g in found if g.to == label), key=lambda g: -g.weight)),
        tuple((name, value) for name, value in others if value >= LEAST),
        first.moment if first else None, max(ends, default=None),
    )  # fmt: skip


def _beside(value: float, confidence: float) -> float:
    """Return how likely another class still is beside the one that was chosen."""
    return round(value * (1 - 0.5 * confidence), 2)


def _decide(group: Group, ordered: list[tuple[str, float]]) -> tuple[str | None, float]:
    """Return the class with the best grounds, and how sure that is; a freeze outweighs the kills on its way there."""
    sums = dict(ordered)
    frozen = any(isinstance(t.event, Gap) and t.event.seconds >= 600 for t in group.events)  # noqa: PLR2004  # ten minutes
    label, best = ordered[0]
    if label == "B" and frozen and sums["A"] >= 0.5:  # noqa: PLR2004  # more likely than not
        label, best = "A", sums["A"]
    if best < LEAST:
        return None, 0.0
    rival = max((value for name, value in ordered if name != label), default=0.0)
    # a close rival takes away what it could be instead
    return label, round(best * (1 - 0.3 * rival), 2)


def _confidence(weights: list[float]) -> float:
    """Return how far independent grounds go together: each takes its share of what is still open."""
    left = 1.0
    for weight in weights:
        left *= 1 - weight
    return min(CERTAIN, 1 - left)


def not_incidents(timeline: Timeline) -> list[tuple[str, Place]]:
    """Return what looks like an incident and is none, each with why."""
    found = [item for timed in timeline.events if (item := _no_incident(timed))]
    for note in timeline.notes:
        if note.note.kind == "counter":
            found.append((note.note.text, note.note.place))
        elif note.note.kind == "pcie_corrected":
            found.append(("corrected PCIe errors: the link mended them", note.note.place))
    return list({text: (text, place) for text, place in reversed(found)}.values())[::-1]


def _no_incident(timed: Timed) -> tuple[str, Place] | None:
    event = timed.event
    match event:
        case OomKill(scope="sysrq"):
            text = "an OOM kill that somebody asked for (SysRq-f): memory was not short"
        case OomKill(scope="memcg"):
            whose = event.memcg or "a cgroup"
            text = f"an OOM kill because {whose} reached its own limit: the host was not short of memory"
        case Panic(deliberate=True):
            text = f"a crash that somebody asked for (SysRq-c or a test): {event.reason}"
        case DriverAllocFailure(severity="soft"):
            text = "soft driver lines: large pages were refused and smaller ones taken; healthy boxes have thousands"
        case Xid(category="application"):
            text = f"Xid {event.code}: an error of the program on the GPU, not of the machine's memory"
        case UserspaceKill(outcome="failed"):
            text = f"{event.killer} tried to kill and failed ({event.reason})"
        case _:
            return None
    return text, event.place


__all__ = ["CLASSES", "Incident", "classify", "duration", "leading", "not_incidents"]
