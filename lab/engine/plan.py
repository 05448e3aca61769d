"""What a stand-in model server does with memory, phase by phase. Pure; all amounts are percent of MemTotal."""

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

Rate = float | tuple[float, float]
"""Percent of MemTotal a second; a pair is a range to draw from; 0 is as fast as memory can be had."""
WhenRefused = Literal["ask again", "exit", "pretend"]
Lie = Literal["", "healthy after a failed start", "healthy while stuck"]


class Point(NamedTuple):
    """What is held at one moment, if every request is granted at once."""

    at_s: float
    held_percent: float


@dataclass(frozen=True)
class Phase:
    """One stretch of a model server's life: it reads and grows, holds for a while, and may give back what it took.

    `read_percent` is read from the weights' file through the page cache while memory grows. With `gives_back` the
    growth is a spike. `loading`: requests are answered only after the last such phase.
    Raises ValueError for a phase that can not be.
    """

    name: str
    grow_percent: float = 0.0
    percent_per_s: Rate = 0.0
    hold_s: float = 0.0
    read_percent: float = 0.0
    gives_back: bool = False
    times: int = 1
    loading: bool = False

    def __post_init__(self) -> None:
        slowest = min(self.percent_per_s) if isinstance(self.percent_per_s, tuple) else self.percent_per_s
        least = {"percent_per_s": slowest, "hold_s": self.hold_s, "read_percent": self.read_percent}
        for name, value in least.items():
            if value < 0:
                raise ValueError(f"phase {self.name!r}: {name} is {value:g}, and cannot be below 0")
        if self.grow_percent < 0:
            raise ValueError(f"phase {self.name!r}: grow_percent is {self.grow_percent:g}; a spike has gives_back")
        if self.times < 1:
            raise ValueError(f"phase {self.name!r}: times is {self.times}, and must be 1 or more")

    def drawn(self, dice: random.Random) -> Self:
        """Return the phase with one rate out of its range."""
        if isinstance(self.percent_per_s, tuple):
            return dataclasses.replace(self, percent_per_s=round(dice.uniform(*self.percent_per_s), 1))
        return self

    @property
    def rate(self) -> float:
        """The rate. Raises ValueError while it is still a range."""
        if not isinstance(self.percent_per_s, tuple):
            return self.percent_per_s
        raise ValueError(f"phase {self.name!r}: a rate must be drawn from {self.percent_per_s} first")


@dataclass(frozen=True)
class Plan:
    """A model server: which one it looks like, what it does with memory, and how it ends.

    `engine` is a name of `kinds.KINDS`. `memory` is where it takes memory: from the driver, or as any program does.
    `ends_after_s` counts from SIGTERM; None: SIGTERM is ignored. Raises ValueError for a plan without a phase.
    """

    phases: tuple[Phase, ...]
    engine: str = "vllm"
    memory: Literal["driver", "ordinary"] = "driver"
    ends_after_s: float | None = 2.0
    when_refused: WhenRefused = "ask again"
    lie: Lie = ""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a plan needs at least one phase")

    def drawn(self, dice: random.Random) -> Self:
        """Return the plan with every rate drawn."""
        return dataclasses.replace(self, phases=tuple(phase.drawn(dice) for phase in self.phases))

    @property
    def read_percent(self) -> float:
        """How large the weights' file has to be."""
        return max(phase.read_percent for phase in self.phases)

    @property
    def peak_percent(self) -> float:
        """The most that is asked for at a time."""
        return max(point.held_percent for point in self.timeline())

    def timeline(self) -> list[Point]:
        """Return the corners of what is asked for over time; reading takes no time here.

        Raises ValueError while a rate is still a range.
        """
        points = [Point(0.0, 0.0)]
        for phase in self.phases:
            for _ in range(phase.times):
                points += _corners(phase, points[-1])
        return points

    def to_json(self) -> str:
        """Return the plan as a file for the machine."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises ValueError naming what is wrong with it."""
        try:
            fields: dict[str, Any] = json.loads(text)
            phases = tuple(_phase(fields) for fields in fields.pop("phases"))
            return cls(phases, **fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no plan: {error}") from error


def _phase(fields: dict[str, Any]) -> Phase:
    rate = fields.get("percent_per_s", 0.0)
    return Phase(**{**fields, "percent_per_s": tuple(rate) if isinstance(rate, list) else rate})


def _corners(phase: Phase, start: Point) -> Iterator[Point]:
    took_s = phase.grow_percent / phase.rate if phase.rate else 0.0
    summit = Point(start.at_s + took_s, start.held_percent + phase.grow_percent)
    yield summit
    if phase.hold_s:
        yield Point(summit.at_s + phase.hold_s, summit.held_percent)
    if phase.gives_back:
        yield Point(summit.at_s + phase.hold_s, start.held_percent)
