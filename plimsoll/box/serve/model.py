"""What a model is to `plimsoll serve`, and what its parts hand to each other: frozen, plain, units in the names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Reservation

# --- what an operator declares: one file a model ---------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """It runs as a unit of the system's manager."""

    unit: str


@dataclass(frozen=True)
class Compose:
    """It runs as a service of a compose file."""

    file: str
    service: str


@dataclass(frozen=True)
class Command:
    """It is a program that runs as a transient unit in system.slice; it starts as `user`, in `directory`."""

    argv: tuple[str, ...]
    user: str = "root"
    directory: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)


Place = Unit | Compose | Command


@dataclass(frozen=True)
class Need:
    """What its file says about its memory; where that is nothing, its command is asked."""

    declared_kib: int | None = None
    """What it takes at most, the spike of its start included."""
    steady_line_kib: int | None = None
    """Its own line of available memory instead of the guard's slow line."""
    weights: tuple[str, ...] = ()
    """Files and directories of its checkpoint, where its command does not tell."""


@dataclass(frozen=True)
class Readiness:
    """When it is ready: its list of models names it, and it completes one token."""

    url: str
    """Of its list of models, such as http://127.0.0.1:8000/v1/models."""
    model_id: str
    completion: bool = True
    deadline_s: float = 1800.0
    """A load of 590 GB took 570 s; the longest that was seen took 45 minutes."""
    request_timeout_s: float = 60.0
    """The first completion compiles kernels."""
    api_key_file: str = ""
    """Whose first line goes along as a bearer token; empty for none."""


@dataclass(frozen=True)
class Proof:
    """What real use sends: a prompt of this length in each slot, all at once."""

    prompt_tokens: int
    slots: int
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Docker:
    """The rootless daemon that a compose service is started by."""

    user: str
    socket: str


@dataclass(frozen=True)
class Cluster:
    """The other host of a model that runs on two: both are admitted, or neither."""

    host: str
    """As ssh takes it; the model has the same name there."""
    hook: tuple[str, ...] = ()
    """Run when the model ends on this host, so that the other half can be ended."""


@dataclass(frozen=True)
class Hooks:
    """Programs that are run with a JSON document on standard input; empty for none."""

    started: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """A start failed: with the fallback's fate, if it has one."""
    ended: tuple[str, ...] = ()
    """It had been ready, and ended without being stopped."""
    timeout_s: float = 10.0


class Restart(StrEnum):
    """Whether it is started again after it ended without being stopped."""

    NO = "no"
    ON_FAILURE = "on-failure"


@dataclass(frozen=True)
class Model:
    """One file of /etc/plimsoll/models.d."""

    name: str
    file: str
    place: Place
    readiness: Readiness
    port: int
    """What must be free before it starts: the readiness URL's."""
    need: Need = Need()
    proof: Proof | None = None
    stop_grace_s: float = 60.0
    """From SIGTERM to SIGKILL: what is in flight may be finished in this time."""
    reclaim_timeout_s: float = 300.0
    """How long its memory may take to come back once its processes are gone."""
    fallback: str | None = None
    oom_score_adj: int = 0
    guard_may_kill: bool = True
    docker: Docker | None = None
    at_boot: bool = False
    restart: Restart = Restart.NO
    cluster: Cluster | None = None
    hooks: Hooks = Hooks()

    @property
    def unit(self) -> str:
        """The unit that it runs in; of a compose service, the empty text.

        Not plimsoll-model-...: units of Plimsoll's own are never stopped by the guard.
        """
        if isinstance(self.place, Unit):
            return self.place.unit
        return "" if isinstance(self.place, Compose) else f"model-{self.name}.service"

    @property
    def steady_line_gib(self) -> float | None:
        """Its own line in GiB, None where the guard's slow line holds."""
        return None if self.need.steady_line_kib is None else self.need.steady_line_kib / KIB_PER_GIB


# --- what is found out -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needed:
    """What a model will take, in KiB, and how that is known."""

    peak_kib: int
    """At most, while it starts; what has to be available."""
    steady_kib: int
    """What it keeps."""
    basis: str
    exact: bool
    """False: it is the least that can be assumed (the size of its weights), and it will take more."""
    weights_kib: int | None = None
    """Of its weights, what comes into this box's memory; None where they are not found."""
    never: str = ""
    """Why it cannot start whatever is free; empty otherwise."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holder:
    """Somebody who holds memory, or a device of the driver."""

    pid: int
    name: str
    """Its unit, container or program."""
    held_kib: int | None
    """What the driver says it holds, else what it has in memory; None where neither is known."""
    state: str = ""
    """As in /proc/PID/stat: R, S, D, Z."""
    holds_gpu: bool = False
    orphan: bool = False
    """An engine's process whose starter is gone."""
    start_ticks: int = 0


@dataclass(frozen=True)
class Running:
    """Another model of models.d that runs, or is being started or stopped, now."""

    name: str
    phase: str
    footprint_kib: int | None = None


@dataclass(frozen=True)
class Situation:
    """The box at one moment: all that an admission goes by. KiB; None for what could not be read."""

    at_s: float
    """Of the monotonic clock."""
    mem_total_kib: int
    available_kib: int | None
    regime: str
    regime_basis: str
    lines: Lines
    backstop_kib: int | None = None
    """The level at which earlyoom acts, None where it does not."""
    reservations: tuple[Reservation, ...] = ()
    holders: tuple[Holder, ...] = ()
    """The largest first."""
    running: tuple[Running, ...] = ()
    free_2mib_blocks: int | None = None
    free_32mib_blocks: int | None = None
    pool_kib: int | None = None
    """What is in use and in no bucket of the kernel's while nobody holds the GPU: the driver's pool, which can be
    released. None where somebody holds it, and what is used cannot be told from what is kept."""
    port_taken: bool | None = None
    problems: tuple[str, ...] = ()
    """What could not be looked at."""


@dataclass(frozen=True)
class Admitted:
    """It may start; what is then left is above every line."""

    left_kib: int
    """What its steady state leaves available."""
    start_line_kib: int
    """What its reservation has to name as its line until it is ready: a start may pass below the steady one."""
    steady_line_kib: int
    """What its reservation has to name once it is ready."""
    notes: tuple[str, ...] = ()
    """What should be known: few contiguous blocks, a basis that is a least."""


@dataclass(frozen=True)
class Refused:
    """It may not start now."""

    shortfall_kib: int | None
    """How much is missing; None where it is not memory that is missing."""
    why: str
    holders: tuple[Holder, ...] = ()
    releasable_kib: int = 0
    """How much of the shortfall the driver's pool would give back."""
    what_to_do: str = ""


Admission = Admitted | Refused
