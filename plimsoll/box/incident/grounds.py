"""What each thing on the time line speaks for: one rule a function, each with its weight and its words. Pure.

Weights are a judgement, made on the public reports of frozen, rebooted and healthy boxes: a ground that was seen on
healthy boxes too weighs little alone, one that was only seen in one class weighs much.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from plimsoll.box.incident.model import (
    Boot,
    DriverAllocFailure,
    Event,
    Gap,
    HungTask,
    Lockup,
    MemoryReport,
    Note,
    OomKill,
    Panic,
    Place,
    UserspaceKill,
    Xid,
)
from plimsoll.box.incident.pci import is_network
from plimsoll.box.incident.timeline import Timed, TimedNote
from plimsoll.box.incident.victim import gib

LONG_GAP_S = 600.0
"""A reset comes back within minutes; whoever finds a frozen box and walks to it took 35 minutes to 13 hours."""
RECORDING_GAP_S = 120.0
LOW_GIB = 8.0
STALL_S = 180.0
FEW_SAMPLES = 20
"""Somebody's table of what he saw, and not every second of it."""
HIGH_RESIDUAL = 0.5
_STUCK = re.compile(r"Timer expired|did not exit")
"""What earlyoom says of a victim that does not die within 10 s."""


_RECLAIM = re.compile(
    r"(?:shrink_|(?:do_)?try_to_free|(?:__)?alloc_pages|__perform_reclaim|balance_pgdat|kswapd|evict_"
    r"|wait_iff_congested|congestion_wait|reclaim_throttle|throttle_direct_reclaim|compact_|swap_|do_swap|folio_wait"
    r"|io_schedule|.*\[nvidia)"
)
"""Frames of a task that waits for memory: its own reclaim, or a page that has to come back from the disk."""
OF_MEMORY = (
    "low_and_idle", "memory_fall", "memory_stall", "memory_report", "allocation_failure", "allocation_stall",
    "journal_pressure",
)  # fmt: skip
"""Kinds of notes about memory."""


class Ground(NamedTuple):
    """One reason for a class; a weight below 0 speaks against it."""

    to: str
    weight: float
    text: str
    place: Place


class Group(NamedTuple):
    """What happened together."""

    events: Sequence[Timed]
    notes: Sequence[TimedNote]

    def of(self, kind: type[Event]) -> list[Timed]:
        """Return the events of one kind."""
        return [timed for timed in self.events if isinstance(timed.event, kind)]

    def noted(self, kind: str) -> list[Note]:
        """Return the notes of one kind."""
        return [timed.note for timed in self.notes if timed.note.kind == kind]


def host_kills(group: Group) -> list[OomKill]:
    """Return the kills for want of memory of the host; those that cannot be told are among them."""
    kills = [t.event for t in group.of(OomKill)]
    return [k for k in kills if isinstance(k, OomKill) and k.scope not in ("memcg", "sysrq")]


def residual_share(report: MemoryReport | None) -> float | None:
    """Return the share of memory that no list accounts for, None where the dump does not tell."""
    if report is None or report.residual_kib is None or not report.total_kib:
        return None
    return report.residual_kib / report.total_kib


def gaps(group: Group) -> Iterator[Ground]:
    """A time without a record."""
    for timed in group.of(Gap):
        gap = timed.event
        assert isinstance(gap, Gap)  # noqa: S101
        if gap.ended_by == "boot" and gap.seconds >= LONG_GAP_S:
            yield Ground("A", 0.4, f"nothing was recorded for {duration(gap.seconds)} before the next boot", gap.place)
        elif gap.ended_by == "boot":
            yield Ground("C", 0.4, f"it came back {duration(gap.seconds)} after its last record", gap.place)
        elif gap.seconds >= RECORDING_GAP_S:
            yield Ground("A", 0.4, f"nothing was recorded for {duration(gap.seconds)}, and then it went on", gap.place)


def boots(group: Group) -> Iterator[Ground]:
    """A start of the machine without an orderly stop before it."""
    for timed in group.of(Boot):
        boot = timed.event
        if isinstance(boot, Boot) and boot.clean_stop is False:
            yield Ground("C", 0.3, "the machine started without having been stopped in order", boot.place)
    for note in group.noted("nul_bytes")[:1]:
        yield Ground("C", 0.2, note.text, note.place)


def kills(group: Group) -> Iterator[Ground]:
    """The kernel's OOM killer."""
    found = host_kills(group)
    for kill in found[:1]:
        # of a report that breaks off nobody knows whether it came to a kill: on a box that swaps into its own memory
        # ten minutes went by within the report
        told = kill.scope is not None and kill.victim is not None
        whom = f"took {kill.victim.comm} ({kill.victim.pid})" if kill.victim else "was called; the record has no victim"
        whom = "found nobody whom it may kill" if kill.outcome == "nobody_found" else whom
        text = f"the kernel's OOM killer {whom}" + (
            "" if kill.scope else "; whether for want of the host's memory, it does not say"
        )
        yield Ground("B", 0.65 if told else 0.4, text, kill.place)
    if len(found) > 1:
        yield Ground("B", 0.1, f"it ran {len(found)} times", found[-1].place)
    for kill in found:
        share = residual_share(kill.memory)
        if share is not None and share >= HIGH_RESIDUAL and kill.memory:
            held, total = gib(kill.memory.residual_kib or 0, 1), gib(kill.memory.total_kib or 0, 1)
            text = f"{held} of {total} were on no list: held by a driver"
            yield Ground("A", 0.15, text, kill.place)
            break


def hung(group: Group) -> Iterator[Ground]:
    """Tasks that waited without end."""
    tasks = [t.event for t in group.of(HungTask) if isinstance(t.event, HungTask)]
    if not tasks:
        return
    names = ", ".join(dict.fromkeys(str(task.task.comm) for task in tasks[:6]))
    longest = max((task.seconds or 0 for task in tasks), default=0)
    told = f" for up to {longest} s" if longest else ""
    after_kill = bool(host_kills(group))
    weight = 0.25 if _speaks_of_memory(group) else 0.15
    yield Ground("B" if after_kill else "A", weight, f"{names} hung{told}", tasks[0].place)
    victims = {kill.victim.comm for kill in host_kills(group) if kill.victim}
    for task in tasks:
        if task.owner is None:
            continue
        whose = f"what {task.task.comm} waited for was held by {task.owner.comm}"
        yield Ground("B" if task.owner.comm in victims else "A", 0.15, whose, task.place)
        break
    inside = next((task for task in tasks if any("[nvidia" in frame for frame in task.frames)), None)
    if inside:
        where = next(frame for frame in inside.frames if "[nvidia" in frame)
        yield Ground("F", 0.3, f"{inside.task.comm} was stuck inside the driver ({where})", inside.place)


def _speaks_of_memory(group: Group) -> bool:
    """Say whether anything beside the wait itself is about memory: a disk, a lock or a bug makes tasks hang as well."""
    events = (OomKill, DriverAllocFailure, UserspaceKill, Gap)
    waits = [t.event for t in group.of(HungTask) if isinstance(t.event, HungTask)]
    in_reclaim = any(_RECLAIM.match(frame) for task in waits for frame in task.frames)
    return in_reclaim or any(group.of(kind) for kind in events) or any(group.noted(kind) for kind in OF_MEMORY)


def driver(group: Group) -> Iterator[Ground]:
    """The driver's refused allocations and numbered errors."""
    failures = [t.event for t in group.of(DriverAllocFailure) if isinstance(t.event, DriverAllocFailure)]
    soft = [f for f in failures if f.severity == "soft"]
    hard = [f for f in failures if f.severity == "hard"]
    if soft:
        count = sum(f.count for f in soft)
        yield Ground("A", 0.1, f"the driver was refused large pages {count} time{'s' * (count != 1)}", soft[0].place)
    if hard:
        yield Ground("A", 0.2, f"an allocation of the driver failed ({hard[0].function})", hard[0].place)
    for timed in group.of(Xid):
        xid = timed.event
        assert isinstance(xid, Xid)  # noqa: S101
        if xid.category == "bus":
            yield Ground("E", 0.7, f"Xid {xid.code}: {xid.text[:80]}", xid.place)
        elif xid.category == "driver or firmware":
            yield Ground("F", 0.7, f"Xid {xid.code}: {xid.text[:80]}", xid.place)
    for note in group.noted("driver_fault")[:1]:
        yield Ground("F", 0.45, note.text, note.place)


def memory(group: Group) -> Iterator[Ground]:
    """Samples and reports of memory."""
    for note in group.noted("low_and_idle")[-1:]:
        yield Ground("A", 0.4, note.text, note.place)
    for note in group.noted("memory_stall")[:1]:
        # healthy loads were seen there too, for up to two minutes: in a dense recording only its duration tells
        few = note.facts["samples"] <= FEW_SAMPLES and not note.facts.get("timed")
        lasts = note.facts["longest_s"] >= STALL_S or few
        yield Ground("A", 0.55 if lasts else 0.2, note.text, note.place)
    for note in group.noted("memory_fall")[:1]:
        left_gib = note.facts["to_gib"]
        yield Ground("A", 0.3 if left_gib is not None and left_gib < LOW_GIB else 0.15, note.text, note.place)
    for kind in ("allocation_failure", "allocation_stall", "journal_pressure"):
        for note in group.noted(kind)[:1]:
            yield Ground("A", 0.1, note.text, note.place)
    for note in group.noted("memory_report"):
        report = note.facts["report"]
        if isinstance(report, MemoryReport) and report.all_unreclaimable and report.zone_below_min:
            yield Ground("A", 0.3, f"{report.zone_below_min}, and nothing could be reclaimed", note.place)
            break


def userspace(group: Group) -> Iterator[Ground]:
    """Kills by programs."""
    for timed in group.of(UserspaceKill):
        kill = timed.event
        assert isinstance(kill, UserspaceKill)  # noqa: S101
        if kill.outcome == "failed":
            if kill.reason and _STUCK.search(kill.reason):
                yield Ground("A", 0.2, f"{kill.killer} could not end {kill.victim.comm}: {kill.reason}", kill.place)
            continue
        whom = (
            kill.victim.comm or kill.victim.unit or (f"process {kill.victim.pid}" if kill.victim.pid else "something")
        )
        weight = 0.3 if host_kills(group) else 0.5 if kill.killer == "unnamed" else 0.8
        yield Ground(
            "D", weight, f"{kill.killer} stopped {whom}" + (f": {kill.reason}" if kill.reason else ""), kill.place
        )
        return


def crashes(group: Group) -> Iterator[Ground]:
    """Oopses, panics, lockups, PCIe errors."""
    for timed in group.of(Panic):
        panic = timed.event
        assert isinstance(panic, Panic)  # noqa: S101
        if panic.deliberate:
            continue
        if "hung_task" in panic.reason:
            weight = 0.3 if _speaks_of_memory(group) else 0.1
            yield Ground("A", weight, f"the kernel gave up on it: {panic.reason}", panic.place)
        elif "ut of memory" in panic.reason or "deadlocked on memory" in panic.reason:
            yield Ground("B", 0.7, f"the kernel gave up: {panic.reason}", panic.place)
        elif is_network(panic.module):
            yield Ground("E", 0.8, f"the kernel crashed in {panic.module}: {panic.reason}", panic.place)
        elif "soft lockup" not in panic.reason:
            where = f" in {panic.function}" if panic.function else ""
            yield Ground("F", 0.6, f"the kernel crashed{where}: {panic.reason}", panic.place)
    locked = [t.event for t in group.of(Lockup) if isinstance(t.event, Lockup)]
    if locked:
        kinds = ", ".join(sorted({lockup.type for lockup in locked}))
        yield Ground("F", 0.3, f"processors were stuck in the kernel ({kinds}, {len(locked)} in all)", locked[0].place)
    for kind, weight in (("pcie", 0.6), ("network", 0.4)):
        for note in group.noted(kind)[:1]:
            yield Ground("E", weight, note.text, note.place)


RULES: tuple[Callable[[Group], Iterator[Ground]], ...] = (
    gaps, boots, kills, hung, driver, memory, userspace, crashes,
)  # fmt: skip


def duration(seconds: float) -> str:
    """Return a duration in words that a person reads: `39 min`, `13 h 5 min`, `45 s`."""
    whole = round(seconds)
    if whole < 120:  # noqa: PLR2004  # two minutes
        return f"{whole} s"
    if whole < 7200:  # noqa: PLR2004  # two hours
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
