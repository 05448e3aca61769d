"""What the guard's parts hand to each other: frozen, plain, in KiB and seconds of the monotonic clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

KIB_PER_GIB = 1 << 20


class Rule(StrEnum):
    """Why something is done; in the order in which they are asked."""

    FLOOR = "floor"
    RATE = "rate"
    SLOW = "slow"
    STALL = "stall"


RULES = tuple(Rule)


class Sample(NamedTuple):
    """One look at memory. A tuple, because three days of them are replayed in seconds."""

    at_s: float
    available_kib: int | None
    """None where nothing that could be read says it: then no level and no rate is known."""
    free_kib: int | None = None
    full_percent: float | None = None
    """The share of the time since the last sample in which everybody stalled on memory (PSI full)."""
    regime: str = "unknown"


@dataclass(frozen=True)
class Lines:
    """The guard's part of the ladder on this host."""

    floor_kib: int
    slow_enter_kib: int
    slow_leave_kib: int


@dataclass(frozen=True)
class Settings:
    """What the rules go by; the defaults are those that were measured on a box with 121.6 GiB."""

    lines: Lines
    floor_ahead_s: float = 0.15
    """What a kill takes until it shows: memory fell by another 0.6 GiB at 17 GiB/s, and by 14.6 at 41 at the worst."""
    horizon_s: float = 0.5
    """Memory fell by another 0.6 to 14.6 GiB after a kill, because the driver ends the request in flight."""
    slow_dwell_s: float = 2.0
    term_grace_s: float = 10.0
    """Those that exited after SIGTERM took 0.5 to 7.6 s; those still there at 10 s did not go by themselves."""
    slow_needs_full_percent: float = 0.0
    """Above 0, the slow rule counts only time in which PSI full was at least that high."""
    stall_full_percent: float = 10.0
    stall_s: float = 240.0
    """Healthy loads stayed above 10 % for up to 180 s; the last resort reboots after 300 s."""
    next_victim_after_s: float = 20.0
    settle_s: float = 1.0
    """How long memory may go on coming back after the last process of a victim is gone."""
    fallback_min_kib: int = 8 * KIB_PER_GIB
    attributed_min_kib: int = KIB_PER_GIB
    """Less than that is what a display server or a monitor holds."""
    loop_kills: int = 2
    loop_within_s: float = 600.0
    period_ms: int = 100
    fast_period_ms: int = 20
    fast_below_s: float = 2.0
    armed: frozenset[Rule] = frozenset({Rule.FLOOR})


@dataclass(frozen=True)
class Process:
    """One process of a workload; the start time (clock ticks since boot) tells it from a later one with its number."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Workload:
    """Something that could be stopped: a container, a unit, a scope, or processes of a login session."""

    key: str
    """What it is told by: its cgroup, or `CGROUP#pgrp=PID@START` for a process group inside a shared one."""
    name: str
    """What its manager calls it (container, unit, command): the same after a restart. Not to be trusted."""
    kind: str
    """`container`, `unit`, `scope`, `session`."""
    cgroup: str
    whole_cgroup: bool
    """Whether all of the cgroup goes with it, so that `cgroup.kill` is the way."""
    processes: tuple[Process, ...]
    engine: str | None
    holds_gpu: bool
    attributed_kib: int | None
    """What the driver says it holds; None where it does not say."""
    resident_kib: int
    grew_kib: int
    """How much more it holds than before available memory began to fall."""
    started_s: float
    protected: str | None = None
    """Why it must not be stopped."""
    preferred: bool = False
    selectors: frozenset[str] = frozenset()
    """What a reservation can call it by: unit, container name or id, cgroup, `pid:N`."""


@dataclass(frozen=True)
class Reservation:
    """What a load has announced: how much it will take, until when, and where it will then stay."""

    id: str
    workload: str
    """One of the selectors of the workload that it is of."""
    allocate_kib: int
    made_s: float
    until_s: float
    available_at_start_kib: int
    steady_line_kib: int
    """Replaces the slow line for this workload, for as long as the reservation is kept."""

    @property
    def at_most_kib(self) -> int:
        """What it may take: a little more than it said, or the last sample of an exact load would be beyond."""
        return self.allocate_kib + self.allocate_kib // 32

    def remaining_kib(self, sample: Sample) -> int:
        """Return what it may still take; 0 once its time or its amount is used up."""
        if sample.available_kib is None or sample.at_s > self.until_s:
            return 0
        return max(0, self.at_most_kib - self._taken_kib(sample.available_kib))

    def untaken_kib(self, sample: Sample) -> int:
        """Return what it has said and not taken yet; not with the little more that it may."""
        return 0 if sample.available_kib is None else max(0, self.allocate_kib - self._taken_kib(sample.available_kib))

    def _taken_kib(self, available_kib: int) -> int:
        return max(0, self.available_at_start_kib - available_kib)


class Episode(NamedTuple):
    """Time spent below one slow line, which ends only above the line where it is left."""

    line_kib: int
    below_s: float


@dataclass(frozen=True)
class Stopping:
    """A victim that was signalled, until its memory is back."""

    workload: Workload
    rule: Rule
    term_s: float
    killed_s: float | None = None
    released_s: float | None = None
    """When its last process was gone and the driver's pool was emptied."""


class Kill(NamedTuple):
    """A kill in the past, to recognise a workload that is started again and again into the same wall."""

    name: str
    at_s: float


@dataclass(frozen=True)
class Mood:
    """What the rules remember beside the last sample; nothing of it changes while all is well."""

    episodes: tuple[Episode, ...] = ()
    stalled_s: float = 0.0
    stopping: Stopping | None = None
    kills: tuple[Kill, ...] = ()
    reclaimed_s: float | None = None
    """When the driver's pool was emptied because memory was low and nobody held the GPU."""
    said: frozenset[tuple[Rule, str]] = frozenset()
    """What was said already: that a rule has nobody to stop (""), or whom it would stop if it were armed."""
    said_s: float = 0.0


CALM = Mood()


class State(NamedTuple):
    """Everything that a decision depends on beside settings, workloads and reservations."""

    at_s: float = 0.0
    available_kib: int | None = None
    fall_kib_per_s: float = 0.0
    """Of the last interval; below 0 where memory rose."""
    fall_before: float = 0.0
    fall_before_that: float = 0.0
    mood: Mood = CALM


class Verb(StrEnum):
    """What is to be done."""

    TERM = "term"
    KILL = "kill"
    RECLAIM = "reclaim"
    """Empty the driver's pool: memory is low, and nobody holds the GPU."""
    NOBODY = "nobody"
    """A rule is due and there is nobody to stop."""


@dataclass(frozen=True)
class Action:
    """One decision, and all that it was made from."""

    verb: Verb
    rule: Rule
    armed: bool
    """False: it is only said what would be done."""
    victim: Workload | None
    reason: str
    margins_kib: Mapping[str, int]
    considered: tuple[tuple[str, str], ...] = ()
    """Every workload's name, with what speaks for or against it."""
    loop: bool = False


class Step(NamedTuple):
    """What comes of one sample."""

    state: State
    action: Action | None
    period_ms: int


@dataclass(frozen=True)
class Known:
    """What the background has found out, as of some time: the workloads, and what loads have announced."""

    workloads: tuple[Workload, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    seen_s: float = 0.0
