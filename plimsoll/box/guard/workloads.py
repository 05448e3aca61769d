"""Everything that could be stopped, from plain data about processes. Pure.

A workload is a container or a unit as a whole, or single process groups of a place that must survive them: a login
session, a window, cron. Names decide nothing here; whether one is a victim is decided from what it holds (`choose`).
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll.box import engines
from plimsoll.box.guard.config import Selector
from plimsoll.box.guard.model import Process, Workload
from plimsoll.box.guard.places import Place, is_users_manager, place_of, printable
from plimsoll.box.guard.processes import Seen

MAX_PROCESSES = 256
"""Processes of a workload that are kept by number; the likeliest come first, and `cgroup.kill` needs none."""
MAX_WORKLOADS = 512
MAX_PID_SELECTORS = 32

Names = Mapping[tuple[int | None, str], str]
"""What containers are called: by the user whose they are (None: the system's) and the first 12 digits."""
Told = Mapping[int, int | None]
"""KiB of the GPU's memory by process; None where the driver does not say how much."""


@dataclass(frozen=True)
class Wishes:
    """What the operator said, and what is known of this host; times in seconds of the monotonic clock."""

    told_s: float = 0.0
    """When the driver was asked what it tells."""

    protect: tuple[Selector, ...] = ()
    prefer: tuple[Selector, ...] = ()
    names: Names = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    """By what reservations call the workloads that they are of."""
    deaf: frozenset[int] = frozenset()
    """First processes of containers that do not listen to SIGTERM, which the kernel then does not deliver."""
    own_pid: int = 0
    own_cgroup: str = ""
    ticks_per_s: int = 100
    asleep_s: float = 0.0
    """By how much the time since boot exceeds the monotonic clock: the machine was suspended."""


@dataclass(frozen=True)
class Target:
    """Who gets SIGTERM, and why they and not others."""

    processes: tuple[Process, ...]
    why: str


@dataclass(frozen=True)
class Found:
    """A workload, and what is needed to stop it and to see it grow."""

    workload: Workload
    target: Target
    kernel_s: float
    """Time that the kernel worked for it."""
    computes: bool
    """Whether it has open what is needed to compute, which a display server has not."""


def workloads(processes: Sequence[Seen], told: Told | None, wishes: Wishes) -> tuple[Found, ...]:
    """Return what could be stopped, and what holds the GPU and must not be: containers, holders, servers, reserved.

    `told` is what the driver said of its memory, None where it said nothing: then nothing is attributed. It must not
    hold processes that started later. `grew_kib` is 0; it is for `growth` to say.
    """
    own = _descendants(processes, wishes.own_pid)
    groups: dict[str, tuple[Place, list[Seen]]] = {}
    for process in processes:
        place = place_of(process.cgroup)
        if process.pid == 1 or process.pid in own:
            continue
        if is_users_manager(place) and process.ppid == 1:
            continue
        key = place.cgroup if place.whole else f"{place.cgroup}#{process.pgrp}"
        groups.setdefault(key, (place, []))[1].append(process)
    found = [_found(place, members, told, wishes) for place, members in groups.values()]
    kept = [each for each in found if each is not None]
    kept.sort(key=lambda each: (not each.workload.holds_gpu, -each.workload.resident_kib))
    return tuple(kept[:MAX_WORKLOADS])


def _descendants(processes: Iterable[Seen], pid: int) -> set[int]:
    """Return a process and all that it started, as far as their parents are still there."""
    if not pid:
        return set()
    children: dict[int, list[int]] = {}
    for each in processes:
        children.setdefault(each.ppid, []).append(each.pid)
    found, waiting = set(), [pid]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += children.get(current, ())
    return found


def _found(place: Place, members: Sequence[Seen], told: Told | None, wishes: Wishes) -> Found | None:
    holders = {each.pid for each in members if each.devices or each.pid in (told or {})}
    if not (holders or place.kind == "container" or wishes.reserved or any(each.engine for each in members)):
        return None
    if not place.whole:
        members = _qualifying(members, holders)
    if not members:
        return None
    members = sorted(members, key=lambda each: (each.pid not in holders, each.engine is None, each.start_ticks))
    name = _name(place, members, wishes.names)
    selectors = _selectors(place, members, name)
    engine = next((each.engine for each in members if each.engine), None)
    if not holders and engine is None and place.kind != "container" and not selectors & wishes.reserved:
        return None
    leading = [each for each in members if each.pid in holders] or members
    ticks = wishes.ticks_per_s
    return Found(
        workload=Workload(
            key=_key(place, members),
            name=name,
            kind=place.kind,
            cgroup=place.cgroup,
            whole_cgroup=place.whole,
            processes=tuple(_process(each) for each in members[:MAX_PROCESSES]),
            engine=engine,
            holds_gpu=bool(holders),
            attributed_kib=_attributed((each for each in members if each.pid in holders), told, wishes),
            resident_kib=sum(each.resident_kib for each in members),
            grew_kib=0,
            started_s=min(each.start_ticks for each in leading) / ticks - wishes.asleep_s,
            protected=_protected(place, members, name, wishes),
            preferred=_fits(wishes.prefer, place, members, name) is not None,
            selectors=selectors,
        ),
        target=term_target(members, holders, wishes.deaf | _own_system(place, members, holders)),
        kernel_s=sum(each.kernel_ticks for each in members) / ticks,
        computes=_computes(members, told),
    )


def _qualifying(members: Sequence[Seen], holders: set[int]) -> list[Seen]:
    """Return those of a process group that go: who holds the GPU, model servers, and what they started."""
    chosen = {each.pid for each in members if each.pid in holders or each.engine}
    parents = {each.pid: each.ppid for each in members}
    return [each for each in members if _has_ancestor(each.pid, chosen, parents)]


def _has_ancestor(pid: int, wanted: set[int], parents: Mapping[int, int]) -> bool:
    """Say whether a process or one of its parents is among `wanted`; who is not in `parents` ends the way up."""
    passed: set[int] = set()
    while pid in parents and pid not in passed:
        if pid in wanted:
            return True
        passed.add(pid)
        pid = parents[pid]
    return False


def term_target(members: Sequence[Seen], holders: set[int], deaf: frozenset[int] = frozenset()) -> Target:
    """Return who is asked to go: the main processes above the GPU's holders, as `docker stop` and systemd do it.

    A main process is one whose parent is outside. One that holds nothing and started nobody who does (`sleep
    infinity`, into whose container an engine was brought by `docker exec`) is left alone; for one that is deaf, those
    that it started are asked.
    """
    parents = {each.pid: each.ppid for each in members}
    concerned = holders or {each.pid for each in members if each.engine} or set(parents)
    tops = {_top(pid, parents, deaf) for pid in concerned if pid in parents}
    mains = {each.pid for each in members if each.ppid not in parents}
    beside = [f"{len(mains - tops - deaf)} main processes that hold nothing"] if mains - tops - deaf else []
    beside += [f"{len(mains & deaf)} that SIGTERM does not end"] if mains & deaf else []
    whom = "the main processes of those that hold the GPU" if holders else "the main processes"
    chosen = tuple(_process(each) for each in members if each.pid in tops)
    return Target(chosen, f"{whom}, not {' and '.join(beside)}" if beside else whom)


def _own_system(place: Place, members: Sequence[Seen], holders: set[int]) -> frozenset[int]:
    """Return all but engines of a container that has a system of its own: SIGTERM makes systemd start itself anew."""
    if place.kind != "container" or place.identity:
        return frozenset()
    return frozenset(each.pid for each in members if each.pid not in holders and each.engine is None)


def _top(pid: int, parents: Mapping[int, int], deaf: frozenset[int]) -> int:
    passed = {pid}
    while parents[pid] in parents and parents[pid] not in passed | deaf:
        pid = parents[pid]
        passed.add(pid)
    return pid


def _process(seen: Seen) -> Process:
    return Process(seen.pid, seen.start_ticks)


def _key(place: Place, members: Sequence[Seen]) -> str:
    if place.whole:
        return place.cgroup
    leader = next((each for each in members if each.pid == each.pgrp), None)
    oldest = leader or min(members, key=lambda each: each.start_ticks)
    return f"{place.cgroup}#pgrp={oldest.pgrp}@{oldest.start_ticks}"


def _name(place: Place, members: Sequence[Seen], names: Names) -> str:
    """Return what stays the same when it is started again: a container's or unit's name, else the program's."""
    if place.identity:
        return printable(names.get((place.owner, place.identity[:12]), place.identity[:12]))
    if place.whole or place.never:
        return printable(place.name)
    first = members[0]
    return printable(first.engine or program(first.argv) or first.comm)


def program(argv: Sequence[str]) -> str:
    """Return what a command line runs: a script or a module rather than its interpreter."""
    script = engines.interpreted_script(argv)
    if script:
        return script
    if "-m" in argv[1:-1]:
        return argv[argv.index("-m") + 1]
    return posixpath.basename(argv[0]) if argv else ""


def _selectors(place: Place, members: Sequence[Seen], name: str) -> frozenset[str]:
    pids = {f"pid:{each.pid}" for each in members[:MAX_PID_SELECTORS]}
    if not place.whole:
        return frozenset(pids)
    if place.identity:
        return frozenset({*pids, place.cgroup, place.identity, place.identity[:12], name})
    # A user may call a unit of his as one of the system's: only with his number before it is it that one.
    unit = place.name if place.owner is None else f"{place.owner}/{place.name}"
    return frozenset({*pids, place.cgroup, unit})


def _attributed(holders: Iterable[Seen], told: Told | None, wishes: Wishes) -> int | None:
    """Return the sum of what the driver tells of the holders; one that it does not list computes nothing."""
    if told is None:
        return None
    told_ticks = (wishes.told_s + wishes.asleep_s) * wishes.ticks_per_s
    amounts = [told.get(each.pid, 0 if each.start_ticks < told_ticks else None) for each in holders]
    known = [each for each in amounts if each is not None]
    return sum(known) if known or not amounts else None


def _computes(members: Iterable[Seen], told: Told | None) -> bool:
    """Say whether any has the device open through which memory is managed; a display server has the others only."""
    held = {device for each in members for device in each.devices or ()}
    is_told = any(each.pid in (told or {}) for each in members)
    graphics = all(device.startswith("/dev/nvidia") and "uvm" not in device for device in held)
    return is_told or (bool(held) and not graphics)


def _protected(place: Place, members: Sequence[Seen], name: str, wishes: Wishes) -> str | None:
    if place.never is not None:
        return place.never
    if wishes.own_cgroup not in ("", "/") and place.whole and _is_below(wishes.own_cgroup, place.cgroup):
        return "the guard itself runs in it"
    selector = _fits(wishes.protect, place, members, name)
    return None if selector is None else f"by the operator: {selector.kind}:{printable(selector.pattern)}"


def _is_below(cgroup: str, above: str) -> bool:
    return cgroup == above or cgroup.startswith(f"{above}/")


def _fits(selectors: Iterable[Selector], place: Place, members: Sequence[Seen], name: str) -> Selector | None:
    """Return the first selector that means a workload; users' own units are not called by a unit's name alone."""
    is_users_unit = place.owner is not None and not place.identity
    unit = f"{place.owner}/{place.name}" if is_users_unit else name if place.identity else place.name
    cgroups = {place.cgroup, *(each.cgroup for each in members)}
    for selector in selectors:
        if selector.kind == "command":
            if any(selector.fits("", None, " ".join(each.argv)) for each in members):
                return selector
        elif any(selector.fits(cgroup, unit, "") for cgroup in cgroups):
            return selector
    return None
