"""Which workload takes the memory that is going: what each held before available memory began to fall, and holds now.

Pure; the history is bounded in time and in number. Amounts in KiB, times in seconds of the monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from plimsoll.box.guard.model import Workload

PAUSE_S = 60.0
"""A fall that pauses for longer is over: what follows is another one, and may be another's doing."""
NOISE_KIB = 64 << 10
"""Less than this in a minute is no fall."""
FALL_KIB = 256 << 10
"""From here on it is worth asking who takes it."""
MAX_LOOKS = 240
THIN_AFTER_S = 30.0
"""Of what is older, one look in THIN_EVERY_S is kept."""
THIN_EVERY_S = 5.0
KEPT_S = 900.0


class Holding(NamedTuple):
    """What one workload holds at one moment."""

    attributed_kib: int | None
    """Of the driver's memory; None where the driver does not say."""
    own_kib: int
    """Of the rest: resident, or charged to its cgroup."""
    kernel_s: float
    """Time that the kernel has worked for it: allocating and clearing memory is the kernel's work."""
    started_s: float
    computes: bool

    @property
    def held_kib(self) -> int:
        """All that is known of it."""
        return (self.attributed_kib or 0) + self.own_kib


@dataclass(frozen=True)
class Look:
    """All holdings at one moment, by the workload's key."""

    at_s: float
    available_kib: int
    driver_kib: int | None
    """What the driver holds, for whomever."""
    holdings: Mapping[str, Holding]


@dataclass(frozen=True)
class Growth:
    """What was seen, and where the last fall of available memory began."""

    looks: tuple[Look, ...] = ()
    base: Look | None = None
    idle_driver_kib: int | None = None
    """The least that the driver was seen to hold while nobody computed."""


def look(growth: Growth, now: Look) -> Growth:
    """Return the history with one more look; a look that is not later than the last is left out."""
    if growth.looks and now.at_s <= growth.looks[-1].at_s:
        return growth
    looks = _thinned((*growth.looks, now))
    began = _began(looks)
    falls = began.available_kib - now.available_kib >= FALL_KIB
    base = began if falls or growth.base is None else growth.base
    return Growth(looks, base, _idle(growth.idle_driver_kib, now))


def _idle(before: int | None, now: Look) -> int | None:
    if now.driver_kib is None or any(each.computes for each in now.holdings.values()):
        return before
    return now.driver_kib if before is None else min(before, now.driver_kib)


def _began(looks: Sequence[Look]) -> Look:
    """Return the look from which available memory has fallen until now, small rises and short pauses left aside."""
    highest = looks[-1]
    for each in reversed(looks[:-1]):
        if each.available_kib > highest.available_kib + NOISE_KIB:
            highest = each
        elif highest.at_s - each.at_s > PAUSE_S:
            break
    return highest


def _thinned(looks: Sequence[Look]) -> tuple[Look, ...]:
    now_s = looks[-1].at_s
    kept: list[Look] = []
    for each in looks:
        is_old = now_s - each.at_s > THIN_AFTER_S
        if now_s - each.at_s > KEPT_S or (is_old and kept and each.at_s - kept[-1].at_s < THIN_EVERY_S):
            continue
        kept.append(each)
    return tuple(kept[-MAX_LOOKS:])


def shares_kib(growth: Growth) -> dict[str, int]:
    """Return by how much each workload grew since the last fall began, by key.

    What the driver took meanwhile and tells of nobody (its answer is seconds old, and a load takes 17 to 41 GiB/s) is
    put to the one that computes and for which the kernel worked most in that time.
    """
    if not growth.looks or growth.base is None:
        return {}
    now, base = growth.looks[-1], growth.base
    grown = {key: max(0, held.held_kib - _before(key, held, base)) for key, held in now.holdings.items()}
    untold = _untold_kib(now, base)
    taker = _taker(now, base) if untold > 0 else None
    return grown if taker is None else {**grown, taker: grown[taker] + untold}


def _before(key: str, now: Holding, base: Look) -> int:
    """Return what it held at the base; one that was started since held nothing."""
    before = base.holdings.get(key)
    if before is None or now.started_s > base.at_s:
        return 0
    # An amount that was not told then cannot be compared with one that is told now.
    return before.held_kib if (before.attributed_kib is None) == (now.attributed_kib is None) else now.held_kib


def _untold_kib(now: Look, base: Look) -> int:
    if now.driver_kib is None or base.driver_kib is None:
        return 0
    told = 0
    for key, held in now.holdings.items():
        before = base.holdings.get(key)
        is_new = before is None or held.started_s > base.at_s
        told += max(0, (held.attributed_kib or 0) - (0 if is_new or before is None else before.attributed_kib or 0))
    return max(0, now.driver_kib - base.driver_kib - told)


def _taker(now: Look, base: Look) -> str | None:
    def worked(item: tuple[str, Holding]) -> tuple[float, float]:
        key, held = item
        before = base.holdings.get(key)
        is_new = before is None or held.started_s > base.at_s
        return held.kernel_s - (0.0 if is_new or before is None else before.kernel_s), held.started_s

    computing = [(key, held) for key, held in now.holdings.items() if held.computes]
    return max(computing, key=worked)[0] if computing else None


def with_growth(workloads: Iterable[Workload], growth: Growth) -> tuple[Workload, ...]:
    """Return the workloads with what they grew by."""
    known = shares_kib(growth)
    return tuple(replace(each, grew_kib=known.get(each.key, each.grew_kib)) for each in workloads)


def sole_holder(workloads: Sequence[Workload], computing: frozenset[str], growth: Growth) -> tuple[Workload, ...]:
    """Attribute what the driver holds to the only workload that computes, where the driver tells nothing of it.

    `computing` are the keys of those that compute, protected ones included: with two of them nothing can be said.
    """
    now = growth.looks[-1] if growth.looks else None
    if len(computing) != 1 or now is None or now.driver_kib is None:
        return tuple(workloads)
    held = max(0, now.driver_kib - (growth.idle_driver_kib or 0))
    return tuple(
        replace(each, attributed_kib=held) if each.key in computing and each.attributed_kib is None else each
        for each in workloads
    )
