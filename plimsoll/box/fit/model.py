"""What the parts of the fit hand to each other: frozen, plain, sizes in bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.box.errors import UNKNOWN, BoxError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class CannotTellError(BoxError):
    """Something that decides cannot be known; the message says what, where, and what would help."""

    exit_code = UNKNOWN


class Verdict(StrEnum):
    """What the whole of it comes to."""

    FITS = "fits"
    TIGHT = "tight"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Place:
    """Where something was read; line 0 stands for the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Amount:
    """Bytes, with the band in which they can lie; an exact figure has no band."""

    low: int
    likely: int
    high: int

    @classmethod
    def exactly(cls, size: int) -> "Amount":
        """Return a figure without a band."""
        return cls(size, size, size)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, count: int) -> "Amount":
        """Return as much of it `count` times."""
        return Amount(self.low * count, self.likely * count, self.high * count)


NOTHING = Amount(0, 0, 0)


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum."""
    found = NOTHING
    for amount in amounts:
        found += amount
    return found


@dataclass(frozen=True)
class Item:
    """One line of the bill. `passing`: only while it starts. `gpu`: in the own memory of a graphics card."""

    name: str
    amount: Amount
    basis: str
    passing: bool = False
    gpu: bool = False


@dataclass(frozen=True)
class Setting:
    """What one flag or variable was set to, as its engine understands it."""

    flag: str
    value: object
    unit: str
    written: str
    place: Place | None = None


@dataclass(frozen=True)
class Mount:
    """A directory of the box, and where a container sees it."""

    outside: str
    inside: str


@dataclass(frozen=True)
class Guards:
    """What around a command is taken for a limit or a way back, and may be none."""

    memory_bytes: int | None = None
    """`docker run --memory`, `mem_limit`."""
    limits: tuple[tuple[str, str, Place], ...] = ()
    """A unit's MemoryMax and the like: name, value, place."""
    restart: str = ""
    restart_place: Place | None = None
    shm_bytes: int | None = None
    ipc_host: bool = False
    oom_score_adj: int | None = None
    client_only: bool = False
    """The unit runs the client of a container daemon, so that its limits hold for that alone."""


NO_GUARDS = Guards()


@dataclass(frozen=True)
class Launch:
    """One start of one engine, whatever stands around it."""

    engine: str
    name: str
    """What people call it: a service, a unit, a model."""
    arguments: tuple[str, ...]
    """What follows the program (and `serve`, or the module)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None
    mounts: tuple[Mount, ...] = ()
    homes: tuple[str, ...] = ()
    """Home directories in which a cache of models may lie, the likeliest first."""
    directory: str = "/"
    contained: bool = False
    guards: Guards = NO_GUARDS
    unknowns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    opaque: bool = False
    """Whether its flags are not known at all, so that not even the defaults can be taken."""
    unsure: Mapping[str, Place] = field(default_factory=dict)
    """Variables that are left in the arguments because a condition may have set them, and where it does."""
    exclusive: str = ""
    """Of launches with the same name here only one runs at a time, or one of their mixes."""
    mixes: tuple[str, ...] = ()
    """Those of the same mix run together; empty for one that runs alone."""


@dataclass(frozen=True)
class Estimate:
    """What one launch takes, and what was understood of it."""

    launch: Launch
    items: tuple[Item, ...] = ()
    settings: tuple[Setting, ...] = ()
    unknown_flags: tuple[str, ...] = ()
    unknowns: tuple[str, ...] = ()
    """What cannot be told although it decides; each with its reason."""
    warnings: tuple[str, ...] = ()
    never: str = ""
    """Why it cannot start whatever the box has free; empty otherwise."""
    concurrency: Mapping[str, int | str | None] = field(default_factory=dict)
    model: str = ""

    @property
    def steady(self) -> Amount:
        """What it holds of the box's memory once it runs and is used."""
        return total(item.amount for item in self.items if not item.passing and not item.gpu)

    @property
    def passing(self) -> Amount:
        """What it takes beyond that while it starts."""
        return total(item.amount for item in self.items if item.passing and not item.gpu)
