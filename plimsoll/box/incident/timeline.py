"""One time line of all sources: the same record once, repeats as one episode, silences only where they mean something.

Pure. The order of the sources makes no difference to what comes out.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from plimsoll.box.incident.clocks import AXES, DAY_S, Clocks, Moment
from plimsoll.box.incident.model import (
    Boot,
    DriverAllocFailure,
    Event,
    Findings,
    Gap,
    HungTask,
    Lockup,
    Note,
    OomKill,
    Panic,
    Point,
    UserspaceKill,
    Xid,
)
from plimsoll.box.incident.sink import elapsed_s

SAME_RECORD_S = 2.0
"""rsyslog and journald stamp when they read, not when the kernel wrote."""
SAME_BOOT_S = 45.0
"""The journal's first line, rsyslog's, and a login list's of one boot lay 30 s apart on a busy machine."""
LATE_BOOT_S = 120.0
"""rsyslog stamped the kernel's first line 66 s after it was written, where everything was slow."""
SAME_STAMP_S = 0.01
"""A record has the kernel's own stamp in every log; some of them keep only hundredths."""
EPISODE_S = {"driver_alloc_failure": 60.0, "xid": 60.0, "hung_task": 300.0, "lockup": 120.0}
"""A task is reported as hung every 120 s by default, a soft lockup every 20 to 60 s."""
DISTRESS_S = 900.0
"""A box that is about to freeze says so within minutes, where it says so at all."""
AT_BOOT_S = 120.0
HOUR_S = 3600.0
LAST_CHANGE_HOUR = 4
CHANGE_TOLERANCE_S = 120.0
RARE = 2
LONG_SILENCE_S = 600.0
REGULAR_LINES = 10
DENSE_LINES = 100
"""A log that would have had that many lines in the time was not merely quiet."""
_DISTRESS_NOTES = frozenset({"low_and_idle", "memory_fall", "memory_stall"})


@dataclass(frozen=True)
class Timed:
    """An event and when it was."""

    event: Event
    moment: Moment
    until_s: float | None
    """When its last record was, on the same axis."""


@dataclass(frozen=True)
class TimedNote:
    """A note and when it was."""

    note: Note
    moment: Moment


@dataclass(frozen=True)
class Timeline:
    """What all sources say together."""

    events: tuple[Timed, ...]
    notes: tuple[TimedNote, ...]
    sources: tuple[Findings, ...]
    platform: dict[str, str]
    remarks: tuple[str, ...]
    series: tuple[tuple[Moment, Point], ...] = ()
    """Samples of memory, in the order of their sources."""


class Limit(NamedTuple):
    """A point on one of the axes."""

    axis: str
    at_s: float


def between(line: Timeline, since: Limit | None, until: Limit | None) -> Timeline:
    """Return what lies between two points; what has no time, or is on another axis, stays."""
    last_s = max((t.moment.at_s or 0.0 for t in line.events if t.moment.axis == "wall"), default=0.0)

    def is_inside(moment: Moment) -> bool:
        at_s = moment.at_s
        return at_s is None or (_from(since, moment, last_s) <= at_s <= _to(until, moment, last_s))

    events = tuple(timed for timed in line.events if is_inside(timed.moment))
    return replace(line, events=events, notes=tuple(note for note in line.notes if is_inside(note.moment)))


def _from(limit: Limit | None, moment: Moment, last_s: float) -> float:
    found = _on_axis(limit, moment, last_s)
    return -math.inf if found is None else found


def _to(limit: Limit | None, moment: Moment, last_s: float) -> float:
    found = _on_axis(limit, moment, last_s)
    return math.inf if found is None else found


def _on_axis(limit: Limit | None, moment: Moment, last_s: float) -> float | None:
    """Return a limit on a moment's axis; a time of day is of the last day that the log has."""
    if limit is None or limit.axis == moment.axis:
        return None if limit is None else limit.at_s
    if limit.axis == "day" and moment.axis == "wall":
        return last_s - last_s % DAY_S + limit.at_s
    return None


def build(sources: Sequence[Findings], now_s: float) -> Timeline:
    """Return the time line of some sources."""
    ordered = sorted(sources, key=lambda f: (f.file, f.first))
    clocks = Clocks(ordered, now_s)
    events = [_timed(event, source, clocks) for source in ordered for event in source.events]
    notes = [TimedNote(note, clocks.resolve(note.stamp, source)) for source in ordered for note in source.notes]
    events = _sorted(_episodes(_with_exact_boots(_without_twins(_without_retold(_sorted(events))))))
    notes.sort(key=lambda n: _key(n.moment, n.note.place))
    events = [timed for timed in events if not isinstance(timed.event, Gap) or _counts(timed, events, notes, ordered)]
    platform: dict[str, str] = {}
    for source in ordered:
        platform |= source.platform
    series = tuple((clocks.resolve(point.stamp, source), point) for source in ordered for point in source.series)
    return Timeline(tuple(events), tuple(notes), tuple(ordered), platform, tuple(clocks.remarks), series)


def _timed(event: Event, source: Findings, clocks: Clocks) -> Timed:
    moment = clocks.resolve(event.stamp, source)
    last = moment if event.last is None else clocks.resolve(event.last, source)
    return Timed(event, moment, last.at_s if last.axis == moment.axis else moment.at_s)


def _key(moment: Moment, place: Any) -> tuple[int, float, str, int]:  # noqa: ANN401  # a Place
    return AXES.index(moment.axis), moment.at_s if moment.at_s is not None else 0.0, place.file, place.line


def _sorted(events: Iterable[Timed]) -> list[Timed]:
    return sorted(events, key=lambda t: _key(t.moment, t.event.place))


def identity(event: Event) -> tuple[object, ...]:
    """Return what makes two records the same event, beside their time."""
    what: tuple[object, ...] = ()
    match event:
        case OomKill():
            who = event.victim or event.invoker
            what = (who.pid, who.comm) if who else ()
        case HungTask():
            what = (event.task,)
        case Lockup():
            what = (event.type, event.cpu, event.task)
        case Panic():
            what = (event.reason,)
        case DriverAllocFailure():
            what = (event.severity, event.function)
        case Xid():
            what = (event.code, event.device)
        case UserspaceKill():
            # one program says the cgroup's whole path, and another the unit's name
            what = (event.killer, event.victim.pid, (event.victim.unit or "").rpartition("/")[2])
        case Gap():
            what = (event.ended_by,)
        case _:
            pass
    return event.kind, *what


def _without_retold(events: list[Timed]) -> list[Timed]:
    """Return each kill once where it is told with other stamps: people paste what dmesg, journalctl and syslog have.

    A pid whose memory is the same to the KiB is one process.
    """
    kept: list[Timed] = []
    known: dict[tuple[object, ...], int] = {}
    for timed in events:
        figures = _figures(timed.event)
        number = None if figures is None else known.get(figures)
        if number is not None and _is_told_otherwise(kept[number], timed):
            dated = next((each for each in (kept[number], timed) if each.moment.axis == "wall"), kept[number])
            both = _merged(kept[number], timed)
            kept[number] = replace(both, moment=dated.moment, until_s=dated.until_s)
            continue
        if figures is not None:
            known[figures] = len(kept)
        kept.append(timed)
    return kept


def _figures(event: Event) -> tuple[object, ...] | None:
    """Return what no two kills have in common; None where the record does not say enough."""
    victim = event.victim if isinstance(event, OomKill) else None
    if victim is None or victim.total_vm_kib is None or victim.anon_rss_kib is None:
        return None
    sizes = (victim.total_vm_kib, victim.anon_rss_kib, victim.file_rss_kib, victim.shmem_rss_kib, victim.pgtables_kib)
    return victim.pid, victim.comm, *sizes


def _is_told_otherwise(one: Timed, other: Timed) -> bool:
    if one.moment.axis != other.moment.axis:
        return True
    first, second = one.event.stamp, other.event.stamp
    forms = [(stamp.form, stamp.uptime_s is None) for stamp in (first, second)]
    return one.event.place.file == other.event.place.file and forms[0] != forms[1]


def _without_twins(events: list[Timed]) -> list[Timed]:
    """Return each event once, where several sources have it."""
    kept: list[Timed] = []
    latest: dict[tuple[object, ...], dict[str, deque[int]]] = {}
    for timed in events:
        # by file: a thousand alike in one of them, as in a storm, are not compared with each other
        alike = latest.setdefault((timed.moment.axis, *identity(timed.event)), {})
        for numbers in alike.values():
            # what came long before cannot be the same record
            while numbers and not _near(kept[numbers[0]], timed):
                numbers.popleft()
        file = timed.event.place.file
        elsewhere = (n for other, numbers in alike.items() if other != file for n in numbers)
        twin = next((n for n in elsewhere if _near(kept[n], timed) and _is_twin(kept[n], timed)), None)
        if twin is None:
            alike.setdefault(file, deque()).append(len(kept))
            kept.append(timed)
        else:
            kept[twin] = _merged(kept[twin], timed)
    return kept


def _near(earlier: Timed, later: Timed) -> bool:
    if earlier.moment.at_s is None or later.moment.at_s is None:
        return False
    return later.moment.at_s <= (earlier.until_s or earlier.moment.at_s) + _same_record_s(later.event)


def _same_record_s(event: Event) -> float:
    return SAME_BOOT_S if isinstance(event, Boot) else SAME_RECORD_S


def _is_twin(one: Timed, other: Timed) -> bool:
    """Say whether two records of one identity are one event told twice: in different files, at the same time."""
    files = {one.event.place.file, *(place.file for place in one.event.again)}
    if other.event.place.file in files or one.moment.at_s is None or other.moment.at_s is None:
        return False
    if isinstance(one.event, Boot) and isinstance(other.event, Boot):
        limit_s = SAME_RECORD_S if _is_exact(one) else SAME_BOOT_S
        is_alike = _is_exact(one) is _is_exact(other) and _may_be_one_kernel(one.event, other.event)
        return is_alike and other.moment.at_s - one.moment.at_s <= limit_s
    return _may_be_one_unit(one.event, other.event) and _is_same_record(one, other)


def _may_be_one_unit(one: Event, other: Event) -> bool:
    """Say whether two kills may be of one unit: two users may each have one of that name."""
    if not isinstance(one, UserspaceKill) or not isinstance(other, UserspaceKill):
        return True
    short, long = sorted((f"/{event.victim.unit or ''}" for event in (one, other)), key=len)
    return long.endswith(short)


def _is_same_record(one: Timed, other: Timed) -> bool:
    assert one.moment.at_s is not None  # noqa: S101  # the caller has looked
    assert other.moment.at_s is not None  # noqa: S101  # as above
    first, second = one.event.stamp.uptime_s, other.event.stamp.uptime_s
    if first is not None and second is not None and abs(first - second) < SAME_STAMP_S:
        return True
    if one.event.count > 1 or other.event.count > 1:
        # a file that begins where another ends goes on, it does not tell again
        ends = [timed.until_s or timed.moment.at_s or 0.0 for timed in (one, other)]
        return max(one.moment.at_s, other.moment.at_s) < min(ends)
    if first is not None and second is not None:
        return False
    return abs(one.moment.at_s - other.moment.at_s) <= _same_record_s(one.event)


def _is_exact(timed: Timed) -> bool:
    """Say whether a record's time is the kernel's own, and not that of who has read and stamped it."""
    return timed.event.stamp.wall_s is None and timed.event.stamp.uptime_s is not None


def _may_be_one_kernel(one: Boot, other: Boot) -> bool:
    """Say whether two starts may be of one kernel: who has logged in is listed with a name that is cut off."""
    names = sorted((one.kernel or "", other.kernel or ""), key=len)
    return names[1].startswith(names[0])


def _with_exact_boots(events: list[Timed]) -> list[Timed]:
    """Put each start whose time is the kernel's own to the stamped record of it, which is late.

    How late differs: of two starts that a stamped record could be of, it is of the one before it; and it is early only
    where the clock was set forward meanwhile.
    """
    boots = [n for n, timed in enumerate(events) if isinstance(timed.event, Boot) and timed.moment.axis == "wall"]
    stamped = [n for n in boots if not _is_exact(events[n])]
    joined: dict[int, Timed] = {}
    for exact in (n for n in boots if _is_exact(events[n])):
        lags = {n: lag for n in stamped if (lag := _lag_s(events[exact], events[n], events)) is not None}
        if lags:
            best = min(lags, key=lambda n: (lags[n] < -SAME_RECORD_S, abs(lags[n])))
            joined[exact] = _merged(events[exact], events[best])
            stamped.remove(best)
    gone = set(boots) - set(stamped) - {n for n in boots if _is_exact(events[n])}
    return [joined.get(n, timed) for n, timed in enumerate(events) if n not in gone]


def _lag_s(exact: Timed, stamped: Timed, events: Iterable[Timed]) -> float | None:
    """Return by how much a record of a start would be late; None where it is one of another."""
    if exact.moment.at_s is None or stamped.moment.at_s is None:
        return None
    assert isinstance(exact.event, Boot)  # noqa: S101  # both are
    assert isinstance(stamped.event, Boot)  # noqa: S101  # as above
    lag_s = stamped.moment.at_s - exact.moment.at_s
    files = [{timed.event.place.file, *(p.file for p in timed.event.again)} for timed in (exact, stamped)]
    if not -SAME_BOOT_S <= lag_s <= LATE_BOOT_S or files[0] & files[1]:
        return None
    first_s, last_s = sorted((exact.moment.at_s, stamped.moment.at_s))
    died = any(isinstance(t.event, Panic) and first_s < (t.moment.at_s or 0.0) < last_s for t in events)
    return None if died or not _may_be_one_kernel(exact.event, stamped.event) else lag_s


def _richness(event: Event) -> tuple[int, int]:
    return event.count, sum(getattr(event, f.name) not in (None, (), False) for f in fields(event))


def _merged(one: Timed, other: Timed) -> Timed:
    better, lesser = (one, other) if _richness(one.event) >= _richness(other.event) else (other, one)
    again = (*better.event.again, lesser.event.place, *lesser.event.again)
    changes: dict[str, Any] = {"again": again}
    if isinstance(better.event, Boot) and isinstance(lesser.event, Boot):
        # each log knows something else of a boot
        known = [boot.clean_stop for boot in (better.event, lesser.event) if boot.clean_stop is not None]
        changes |= {"kernel": better.event.kernel or lesser.event.kernel, "clean_stop": known[0] if known else None}
        changes["stamp"], better = one.event.stamp, replace(better, moment=one.moment)
    if isinstance(better.event, UserspaceKill) and isinstance(lesser.event, UserspaceKill):
        # the service manager alone counts them, and systemd-oomd alone knows the whole path
        victims = [event.victim for event in (better.event, lesser.event)]
        longest = max((victim.unit or "" for victim in victims), key=len)
        processes = next((victim.processes for victim in victims if victim.processes is not None), None)
        changes["victim"] = replace(better.event.victim, unit=longest or None, processes=processes)
    return replace(better, event=replace(better.event, **changes))


def _episodes(events: list[Timed]) -> list[Timed]:
    """Return repeats of one thing as one event."""
    kept: list[Timed] = []
    latest: dict[tuple[object, ...], int] = {}
    for timed in events:
        window_s = EPISODE_S.get(timed.event.kind)
        key = (timed.moment.axis, *identity(timed.event))
        before = latest.get(key)
        if window_s is not None and before is not None and _goes_on(kept[before], timed, window_s):
            kept[before] = _extended(kept[before], timed)
        else:
            latest[key] = len(kept)
            kept.append(timed)
    return kept


def _goes_on(before: Timed, timed: Timed, window_s: float) -> bool:
    if before.until_s is not None and timed.moment.at_s is not None:
        return timed.moment.at_s - before.until_s <= window_s
    one, other = before.event, timed.event
    if isinstance(one, HungTask) and isinstance(other, HungTask) and one.place.file == other.place.file:
        return one.seconds is not None and other.seconds is not None and one.seconds < other.seconds
    return False


def _extended(before: Timed, timed: Timed) -> Timed:
    one, other = before.event, timed.event
    changes: dict[str, Any] = {"count": one.count + other.count, "last": other.last or other.stamp}
    if isinstance(one, HungTask | Lockup) and isinstance(other, HungTask | Lockup):
        changes["seconds"] = max(one.seconds or 0, other.seconds or 0) or None
    if isinstance(one, HungTask) and isinstance(other, HungTask):
        changes |= {
            "owner": one.owner or other.owner, "owner_mode": one.owner_mode or other.owner_mode,
            "lock": one.lock or other.lock, "frames": one.frames or other.frames,
        }  # fmt: skip
    return replace(before, event=replace(one, **changes), until_s=timed.until_s)


def _counts(gap: Timed, events: list[Timed], notes: list[TimedNote], sources: list[Findings]) -> bool:
    """Say whether a time without a record is evidence: of a recorder always, of a log where something speaks for it."""
    event = gap.event
    assert isinstance(event, Gap)  # noqa: S101  # the caller asked
    if event.certain:
        return True
    source = next(source for source in sources if source.file == event.place.file)
    twin = any(
        isinstance(t.event, Gap)
        and t.event.certain
        and t.moment.at_s == gap.moment.at_s
        and t.event.place.file == source.file
        for t in events
    )
    end_s = None if gap.moment.at_s is None else gap.moment.at_s + event.seconds
    if event.ended_by == "boot" and _is_told_better(gap, events):
        return False
    # a boot has its own account of what was before it
    at_boot = any(
        t.event.kind == "boot" and t.moment.axis == gap.moment.axis and t.moment.at_s is not None and end_s is not None
        and event.ended_by != "boot" and -AT_BOOT_S <= t.moment.at_s - end_s <= AT_BOOT_S
        for t in events
    )  # fmt: skip
    if twin or at_boot or _is_clock_change(event) or (not source.is_full and event.ended_by != "boot"):
        return False
    if source.silences <= RARE and event.seconds >= LONG_SILENCE_S and _expected_lines(source, event) >= DENSE_LINES:
        return True
    regular = event.ended_by == "boot" or _expected_lines(source, event) >= REGULAR_LINES
    return regular and distressed(gap.moment, events, notes)


def _is_told_better(gap: Timed, events: list[Timed]) -> bool:
    """Say whether another log knows that it was an orderly stop, or has the same time without a record itself."""
    end_s = _end_s(gap)
    for timed in events:
        apart_s = math.inf if (other_s := _end_s(timed)) is None or end_s is None else abs(other_s - end_s)
        if timed.moment.axis != gap.moment.axis or apart_s > AT_BOOT_S:
            continue
        if isinstance(timed.event, Boot) and timed.event.clean_stop:
            return True
        if isinstance(timed.event, Gap) and timed.event.certain and timed.event.ended_by == "boot":
            return True
    return False


def _end_s(timed: Timed) -> float | None:
    lasted_s = timed.event.seconds if isinstance(timed.event, Gap) else 0.0
    return None if timed.moment.at_s is None else timed.moment.at_s + lasted_s


def _is_clock_change(gap: Gap) -> bool:
    """Say whether an hour is missing because summer began, in a log that does not say its offset."""
    local = gap.stamp.offset_s is None and gap.stamp.uptime_s is None and gap.stamp.wall_s is not None
    hour = (gap.stamp.wall_s or 0.0) % DAY_S / HOUR_S
    return local and hour < LAST_CHANGE_HOUR and abs(gap.seconds - HOUR_S) < CHANGE_TOLERANCE_S


def _expected_lines(source: Findings, gap: Gap) -> float:
    """Return how many lines a log would have had in a gap, at the rate of the rest of it."""
    span_s = elapsed_s(source.first._replace(uptime_s=None), source.last._replace(uptime_s=None))
    if not source.is_full or span_s is None or span_s <= gap.seconds:
        return 0.0
    return source.lines * gap.seconds / (span_s - gap.seconds)


def distressed(moment: Moment, events: Iterable[Timed], notes: Iterable[TimedNote]) -> bool:
    """Say whether the box was in trouble within the last minutes before a moment."""
    bad = [t for t in events if t.event.kind in ("driver_alloc_failure", "hung_task", "lockup", "oom_kill")]
    ends = [(t.moment.axis, t.until_s) for t in bad]
    ends += [(n.moment.axis, n.moment.at_s) for n in notes if n.note.kind in _DISTRESS_NOTES]
    return any(
        axis == moment.axis and at_s is not None and moment.at_s is not None and -60 <= moment.at_s - at_s <= DISTRESS_S  # noqa: PLR2004
        for axis, at_s in ends
    )
