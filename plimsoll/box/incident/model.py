"""What the parts of `incident` hand to each other: frozen and plain, sizes in KiB, times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

MAX_RAW_CHARACTERS = 400
"""As much of a line is kept as evidence; the longest oom-kill line of a nested container has about 700."""


class Place(NamedTuple):
    """Where something stands: the file as it was named, and its line, from 1."""

    file: str
    line: int


class Stamp(NamedTuple):
    """What a line says of its time, as it says it: nothing is resolved here."""

    wall_s: float | None = None
    """The clock on the wall as if it were UTC, seconds since 1970; without a year, in 1972 (a leap year)."""
    form: str = "none"
    """`date`, `yearless`, `day` (a time of day), `none`."""
    offset_s: int | None = None
    """Seconds east of UTC, None where the line does not say."""
    uptime_s: float | None = None
    boot: int = 0
    """How often the seconds since boot had begun anew in a log that has no other clock."""


NO_STAMP = Stamp()


class Line(NamedTuple):
    """A line without its prefix."""

    number: int
    stamp: Stamp
    program: str | None
    """`kernel`, `earlyoom`, …; None where the line does not say."""
    text: str
    prefixed: bool = False
    """Whether anything was taken off its front: what has a prefix continues no line before it."""
    width: int = 0
    """The length of the whole line as it stood there."""

    @property
    def may_be_kernel(self) -> bool:
        """Whether the kernel may have said it; what an application quotes is no evidence."""
        return self.program in (None, "kernel")

    @property
    def may_be_joined(self) -> bool:
        """Whether it can be the first part of a message that was wrapped."""
        return self.program in (None, "kernel", "earlyoom", "systemd-oomd")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, as one or more lines say."""

    kind: ClassVar[str]
    place: Place
    stamp: Stamp
    raw: str
    count: int = 1
    """How many records it stands for."""
    last: Stamp | None = None
    """The stamp of the last of them, None where there is one."""
    again: tuple[Place, ...] = ()
    """The same record in other sources."""


@dataclass(frozen=True, kw_only=True)
class DriverAllocFailure(Event):
    """The driver was refused memory: `soft` where it tries again with smaller pages, `hard` where a request failed."""

    kind: ClassVar[str] = "driver_alloc_failure"
    severity: str
    function: str | None
    error: str | None = None
    companions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Xid(Event):
    """An error that the driver reports by number; the process named is whose call it was, not the cause."""

    kind: ClassVar[str] = "xid"
    code: int
    device: str | None
    pid: int | None
    name: str | None
    text: str
    category: str
    severity: str
    """`soft` for a fault of the program that ran on the GPU, `hard` for one of the card, its bus or its firmware."""


@dataclass(frozen=True)
class Process:
    """A process as a log names it; the kernel keeps 15 characters of a name."""

    pid: int | None = None
    comm: str | None = None


@dataclass(frozen=True)
class Invoker(Process):
    """Whose allocation could not be met: neither the victim nor the cause."""

    gfp_mask: str | None = None
    order: int | None = None
    oom_score_adj: int | None = None
    driver_frames: tuple[str, ...] = ()
    """Functions of the driver in its stack."""


@dataclass(frozen=True)
class Victim(Process):
    """Who was killed, with what its last line says; None is not said."""

    uid: int | None = None
    oom_score_adj: int | None = None
    total_vm_kib: int | None = None
    anon_rss_kib: int | None = None
    file_rss_kib: int | None = None
    shmem_rss_kib: int | None = None
    pgtables_kib: int | None = None
    score: int | None = None
    """Per mille of all memory, as kernels before 5.3 print it."""


class Task(NamedTuple):
    """A row of the dump's table, in pages."""

    pid: int
    uid: int | None
    comm: str
    total_vm: int
    rss: int
    pgtables: int
    swap: int
    oom_score_adj: int
    rss_anon: int | None = None
    rss_file: int | None = None
    rss_shmem: int | None = None


@dataclass(frozen=True)
class MemoryReport:
    """The kernel's account of memory (Mem-Info), KiB; None is not in the dump."""

    page_kib: int = 4
    total_kib: int | None = None
    lists_kib: Mapping[str, int] = field(default_factory=dict)
    """What is on a list or in a counter, by its name."""
    swap_total_kib: int | None = None
    swap_free_kib: int | None = None
    zone_below_min: str | None = None
    """The zone that is below its min watermark, with both figures."""
    all_unreclaimable: bool = False
    orders_free: Mapping[int, int] = field(default_factory=dict)
    """Free blocks by order, of all zones."""
    limit_kib: int | None = None
    """A cgroup's own limit, where that was reached."""
    usage_kib: int | None = None
    swap_limit_kib: int | None = None

    @property
    def accounted_kib(self) -> int | None:
        """The sum of all lists; None without a single one."""
        return sum(self.lists_kib.values()) if self.lists_kib else None

    @property
    def residual_kib(self) -> int | None:
        """What no list accounts for; None where the total or the lists are missing."""
        accounted = self.accounted_kib
        whole = self.total_kib is not None and "free" in self.lists_kib and "active_anon" in self.lists_kib
        return self.total_kib - accounted if whole and self.total_kib and accounted is not None else None


@dataclass(frozen=True, kw_only=True)
class OomKill(Event):
    """The kernel's OOM killer ran; a missing victim means that the record is cut, or that there was none."""

    kind: ClassVar[str] = "oom_kill"
    invoker: Invoker | None = None
    victim: Victim | None = None
    constraint: str | None = None
    scope: str | None = None
    """`host`, `memcg`, `mempolicy`, `cpuset`, `sysrq`; None where the record does not say."""
    memcg: str | None = None
    """The cgroup whose limit it was, or else the one that the victim was in."""
    task_memcg: str | None = None
    cpuset: str | None = None
    """Where the invoker ran, not the victim."""
    outcome: str = "killed"
    """`killed`, `already_exiting`, or `nobody_found`, where no process may be killed."""
    reaped: bool = False
    group: bool = False
    """Killed with its cgroup (memory.oom.group)."""
    memory: MemoryReport | None = None
    tasks: tuple[Task, ...] = ()
    """The rows with the most points, and the victim's."""
    unkillable: int = 0
    """Rows with an oom_score_adj of -1000."""
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class HungTask(Event):
    """A task that waited without end; `owner` is who holds what it waits for."""

    kind: ClassVar[str] = "hung_task"
    task: Process
    seconds: int | None = None
    owner: Process | None = None
    owner_mode: str | None = None
    lock: str | None = None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lockup(Event):
    """A processor that did not get out of the kernel: `soft`, `hard`, `rcu` or `workqueue`."""

    kind: ClassVar[str] = "lockup"
    type: str
    cpu: int | None = None
    seconds: int | None = None
    task: Process | None = None


@dataclass(frozen=True, kw_only=True)
class Panic(Event):
    """An oops or a panic; `deliberate` if somebody asked for it."""

    kind: ClassVar[str] = "panic"
    reason: str
    fatal: bool
    deliberate: bool = False
    task: Process | None = None
    function: str | None = None
    module: str | None = None


@dataclass(frozen=True)
class Target(Process):
    """Whom a userspace killer stopped."""

    uid: int | None = None
    unit: str | None = None
    rss_kib: int | None = None
    oom_score: int | None = None
    processes: int | None = None


@dataclass(frozen=True, kw_only=True)
class UserspaceKill(Event):
    """A program stopped something for want of memory; `outcome` is `exited`, `killed`, `failed` or `unknown`."""

    kind: ClassVar[str] = "userspace_kill"
    killer: str
    victim: Target
    signal: str | None = None
    reason: str | None = None
    outcome: str = "unknown"
    took_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Gap(Event):
    """A time of which nothing is recorded, from `stamp` on."""

    kind: ClassVar[str] = "gap"
    seconds: float
    ended_by: str
    """`boot`, or `record` where the same boot goes on."""
    before: str | None = None
    """What stood last."""
    certain: bool = True
    """False for a mere silence of a log: it counts only where something else speaks for it."""


@dataclass(frozen=True, kw_only=True)
class Boot(Event):
    """The machine started; `clean_stop` says whether the one before had ended in order, None if it cannot be told."""

    kind: ClassVar[str] = "boot"
    kernel: str | None = None
    clean_stop: bool | None = None


@dataclass(frozen=True)
class Note:
    """Something worth knowing that is no event: a sample, a setting, a counter."""

    kind: str
    text: str
    place: Place
    stamp: Stamp = NO_STAMP
    facts: Mapping[str, Any] = field(default_factory=dict)


class Point(NamedTuple):
    """A sample of memory, to be drawn."""

    stamp: Stamp
    available_gib: float | None
    full_percent: float | None


@dataclass(frozen=True)
class Findings:
    """What one source holds."""

    file: str
    events: tuple[Event, ...] = ()
    notes: tuple[Note, ...] = ()
    platform: Mapping[str, str] = field(default_factory=dict)
    first: Stamp = NO_STAMP
    last: Stamp = NO_STAMP
    dates: frozenset[tuple[int, int, int]] = frozenset()
    """Years that the log itself states: (year, month, day)."""
    modified_s: float | None = None
    boots: tuple[Stamp, ...] = ()
    """Stamps with both clocks, one of each boot: they say when it began."""
    is_full: bool = False
    """Whether programs beside the kernel write to it: the kernel alone may well be silent for hours."""
    hosts: frozenset[str] = frozenset()
    """Names of machines that stand in the lines, to be replaced where that is asked for."""
    series: tuple[Point, ...] = ()
    silences: int = 0
    """How often it has no line for five minutes or more."""
    problem: str | None = None
    """Why it, or the rest of it, could not be read."""
    lines: int = 0
    bytes: int = 0

    def is_log(self) -> bool:
        """Say whether any line was understood: from what is empty, or something else, nothing can be told."""
        understood = (self.events, self.notes, self.platform, self.series, self.boots)
        return any(understood) or self.first != NO_STAMP
