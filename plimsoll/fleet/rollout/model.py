"""What a rollout is made of: frozen records, and their JSON in its journal. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

SCHEMA = "plimsoll.rollout/1"


class Phase(enum.StrEnum):
    """Where one host stands."""

    WAITING = "waiting"
    LOCKING = "locking"
    APPLYING = "applying"
    VERIFYING = "verifying"
    SOAKING = "soaking"
    REVERTING = "reverting"
    UNCHANGED = "unchanged"
    """There was nothing to do: it was only looked at."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not begun, because another host of its cluster failed."""
    LEFT_OUT = "left_out"
    """Not reached, or not fit to be deployed to, before anything began."""
    REVERTED = "reverted"


GOOD = frozenset({Phase.UNCHANGED, Phase.DONE})
ENDED = frozenset({*GOOD, Phase.FAILED, Phase.SKIPPED, Phase.LEFT_OUT, Phase.REVERTED})
"""Phases that a host leaves only by `--resume`, or when what was done is taken back."""
RESUMABLE = frozenset({Phase.FAILED, Phase.SKIPPED})
"""Ended, and tried again by `--resume`; what else has ended is never begun a second time."""


class OnFailure(enum.StrEnum):
    """What becomes of what was done when a rollout stops."""

    STOP = "stop"
    REVERT = "revert"


class Failure(enum.StrEnum):
    """Why a host was not done, as far as the exit code tells them apart."""

    NONE = ""
    BAD = "bad"
    UNKNOWN = "unknown"
    """It was not reached, or something could not be told."""
    BUSY = "busy"
    """Somebody else is at work on it."""


@dataclass(frozen=True)
class Step:
    """One line of a host's plan."""

    layer: str
    what: str


@dataclass(frozen=True)
class Held:
    """A layer that is left as it is, because a model is being served there."""

    layer: str
    why: str


@dataclass(frozen=True)
class Planned:
    """What a rollout would do on one host."""

    name: str
    steps: tuple[Step, ...] = ()
    held: tuple[Held, ...] = ()
    serving: tuple[str, ...] = ()
    """The model servers that run there."""
    deployed_before: bool = False
    """Whether the host has had Plimsoll before: a revert would take that away, too."""
    problem: str = ""
    """Why the host is left out; empty if it is not."""
    failure: Failure = Failure.NONE
    """What kind of problem that is."""

    @property
    def waits(self) -> str:
        """What is held back, and how it is done all the same; empty for nothing."""
        held = "; ".join(f"{each.layer} waits: it {each.why}" for each in self.held)
        return f"{held} (--allow-restart)" if held else ""


@dataclass(frozen=True)
class Settings:
    """The choices of one rollout, which `--resume` takes over."""

    soak_s: float = 600.0
    max_failures: int = 0
    on_failure: OnFailure = OnFailure.STOP
    allow_restart: bool = False
    ssh_config: str | None = None
    timeout_s: float = 90.0


@dataclass(frozen=True)
class Sample:
    """What a host is like at one moment, in the figures that a bad change would move."""

    boot_id: str
    kernel_seq: int | None
    """The number of the kernel's last message; None where its log could not be read."""
    kernel_errors: tuple[str, ...] = ()
    """Messages of level error and worse, after the one that was asked for."""
    failed_units: tuple[str, ...] | None = ()
    """None where systemd did not answer."""
    pressure: dict[str, float] = field(default_factory=dict)
    """Percent of the last minute in which nobody got on, by resource (PSI `full avg60`)."""


@dataclass(frozen=True)
class Begin:
    """The first line of a journal: everything that was confirmed."""

    id: str
    at_s: float
    owner: str
    inventory: str
    basis: str
    """A digest of the inventory and of the program that was confirmed with it."""
    settings: Settings
    hosts: tuple[Planned, ...]
    canaries: tuple[str, ...]
    batches: tuple[tuple[str, ...], ...]
    clusters: tuple[tuple[str, ...], ...] = ()
    schema: str = SCHEMA
    event: Literal["begin"] = "begin"


@dataclass(frozen=True)
class HostEvent:
    """A host has come to another phase."""

    at_s: float
    host: str
    phase: Phase
    detail: str = ""
    failure: Failure = Failure.NONE
    baseline: Sample | None = None
    """What the host was like before it was touched, with its first phase that has one."""
    pending: tuple[str, ...] = ()
    """Controls that are persisted and wait for a restart, a login or a reboot."""
    event: Literal["host"] = "host"


@dataclass(frozen=True)
class RunEvent:
    """Something happened to the rollout as a whole."""

    at_s: float
    event: Literal["resume", "batch", "stop", "interrupt", "end"]
    detail: str = ""


@dataclass(frozen=True)
class HostSummary:
    """How one host ended, in the last line of `--json`."""

    phase: Phase
    detail: str
    failure: Failure
    touched: bool
    """Whether a deploy was begun there by this rollout."""
    pending: tuple[str, ...]
    log: str
    """The file with everything that its deploys said; there is none where none was begun."""


@dataclass(frozen=True)
class Summary:
    """The last line of `--json`; it is not in the journal."""

    id: str
    exit_code: int
    stopped: str
    """Why it stopped before its end; empty if it did not."""
    resumable: bool
    journal: str
    hosts: dict[str, HostSummary]
    schema: str = SCHEMA
    event: Literal["summary"] = "summary"


Event = HostEvent | RunEvent
_ENTRY: TypeAdapter[Begin | HostEvent | RunEvent] = TypeAdapter(
    Annotated[Begin | HostEvent | RunEvent, Field(discriminator="event")]
)
_LINE: TypeAdapter[Begin | HostEvent | RunEvent | Summary] = TypeAdapter(
    Annotated[Begin | HostEvent | RunEvent | Summary, Field(discriminator="event")]
)
_SAMPLE = TypeAdapter(Sample)


def to_line(entry: Begin | Event | Summary) -> str:
    """Return a record as one line of JSON, without its end."""
    return _LINE.dump_json(entry).decode()


def from_line(line: str) -> Begin | Event:
    """Read a record of a journal back; raises ValueError for what is none."""
    return _ENTRY.validate_json(line)


def json_schema() -> dict[str, Any]:
    """Return what a line of `--json` is, as JSON Schema."""
    about = "A line of plimsoll rollout --json, and, but for the summary, of a journal. More keys may come."
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, "description": about}
    return {**head, **_LINE.json_schema(mode="serialization")}


def sample_from(data: Any) -> Sample:  # noqa: ANN401  # whatever a host has answered
    """Check what a host says of itself; raises ValueError."""
    return _SAMPLE.validate_python(data)
