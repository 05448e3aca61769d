"""Which runs are made: a case is a defence, a scenario, a regime, a place and a number. Pure but for `fingerprint`."""

import hashlib
import itertools
import json
import platform
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lab import fakegb10
from lab.engine.plan import Plan
from lab.image import GUEST
from lab.wedge.defences import DEFENCES, ROOT
from lab.wedge.places import PLACES
from lab.wedge.scenarios import SCENARIOS

Regime = Literal["A", "B", "C"]
REGIMES: tuple[Regime, ...] = ("A", "B", "C")
METHOD = 1
"""Raised whenever the bench measures in another way: what was measured before is then not compared with it."""
CORE_RUNS = 5
MOST_PAIRWISE = 40
"""Runs of three minutes that the pairs may cost."""
CORE_SCENARIO, CORE_PLACE = "ramp", "unit"
CORE_REGIMES: tuple[Regime, ...] = ("A", "C")
PLIMSOLL = (
    *("plimsoll/box", "plimsoll/controls", "plimsoll/provision", "plimsoll/policy.py", "plimsoll/zipapp.py"),
    *("deploy.py", "facts", "templates", "lab/hosts.yml"),
)
"""What a deploy is made from."""


@dataclass(frozen=True, order=True)
class Case:
    """One run that can be repeated: `seed` and `index` choose the rates, the same for every defence."""

    defence: str
    scenario: str
    regime: Regime
    place: str
    index: int = 0
    seed: int = 0
    arch: str = field(default_factory=platform.machine)

    def plan(self) -> Plan:
        """What the model server will do, every rate drawn."""
        return SCENARIOS[self.scenario].plan.drawn(random.Random(f"{self.seed}/{self.index}/{self.scenario}"))  # noqa: S311  # repeatable on purpose

    def pairs(self) -> set[tuple[str, ...]]:
        """Every two of its properties together."""
        named = [f"{name}={getattr(self, name)}" for name in ("defence", "scenario", "regime", "place")]
        return set(itertools.combinations(named, 2))

    def __str__(self) -> str:
        """As in progress lines."""
        named = f"{self.defence}, {self.scenario}, regime {self.regime}, {self.place}, run {self.index + 1}"
        return named if self.arch == platform.machine() else f"{named}, {self.arch}"


def core(defences: Sequence[str], seed: int) -> list[Case]:
    """The runs of which medians are made, number by number: what is cut short has all defences."""
    return [
        Case(defence, CORE_SCENARIO, regime, CORE_PLACE, index, seed)
        for index in range(CORE_RUNS)
        for regime in CORE_REGIMES
        for defence in defences
    ]


def pairwise(defences: Sequence[str], seed: int, most: int = MOST_PAIRWISE) -> list[Case]:
    """Choose cases that together have every two properties at least once, as far as `most` cases allow.

    Pairs that the core has are not sought again. Each case is the one of all that brings the most new pairs.
    """
    candidates = everything(defences, seed)
    random.Random(seed).shuffle(candidates)  # noqa: S311  # repeatable on purpose
    missing = pairs_missing(candidates, core(defences, seed))
    chosen: list[Case] = []
    while missing and len(chosen) < most:
        best = max(candidates, key=lambda case: len(case.pairs() & missing))
        chosen.append(best)
        missing -= best.pairs()
    return chosen


def everything(defences: Sequence[str], seed: int = 0) -> list[Case]:
    """Return every combination there is."""
    product = itertools.product(defences, SCENARIOS, REGIMES, PLACES)
    return [Case(*properties, 0, seed) for properties in product]


def pairs_missing(wanted: Iterable[Case], chosen: Iterable[Case]) -> set[tuple[str, ...]]:
    """Return the pairs of properties that no chosen case has."""
    have = set().union(*(case.pairs() for case in chosen))
    return set().union(*(case.pairs() for case in wanted)) - have


def matrix(defences: Sequence[str], seed: int) -> list[Case]:
    """Return all runs of the published table, those for the medians first."""
    return [*core(defences, seed), *pairwise(defences, seed)]


def fingerprint(case: Case, machine: str) -> str:
    """Name all that a run's outcome rests on: 16 hexadecimal digits.

    `machine` names image, size and accelerator. The bench's own code is not in it; METHOD stands for it.
    """
    defence, place = DEFENCES[case.defence], PLACES[case.place]
    parts = [
        fakegb10.SOURCE,
        ROOT / "lab" / "engine",
        GUEST / "fakegb10.py",
        GUEST / "recorder.py",
        GUEST / "session.sh",
    ]
    parts += [ROOT / part for part in PLIMSOLL] if defence.deploys else []
    described = [METHOD, machine, defence.script, defence.deploys, defence.guard, place.script, case.plan().to_json()]
    digest = hashlib.sha256(json.dumps(described).encode())
    for file in itertools.chain.from_iterable(map(files_of, parts)):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def files_of(part: Path) -> list[Path]:
    """Return a file, or all of a directory that are no leavings of Python."""
    found = [part] if part.is_file() else sorted(part.rglob("*"))
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]
