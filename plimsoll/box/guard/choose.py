"""Whom to stop. Pure; names count for nothing here, what a workload holds does."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plimsoll.box.guard.model import KIB_PER_GIB, Settings, Workload


class Choice(NamedTuple):
    """The workload to stop, if any, and what speaks for or against each: `(name, reason)`."""

    victim: Workload | None
    considered: tuple[tuple[str, str], ...]


def choose(workloads: Sequence[Workload], settings: Settings) -> Choice:
    """Choose among the workloads that hold the GPU's memory: what grew most as memory fell, else the newest."""
    reasons = [(each, against(each, settings)) for each in workloads]
    suitable = [each for each, reason in reasons if reason is None]
    considered = tuple((each.name, reason or _in_favour(each)) for each, reason in reasons)
    return Choice(max(suitable, key=lambda each: _rank(each, settings), default=None), considered)


def fallback(workloads: Iterable[Workload], settings: Settings) -> Workload | None:
    """Return the container with the most resident memory, for when nobody who holds the GPU can be found."""
    large = (each for each in workloads if each.kind == "container" and each.protected is None)
    enough = [each for each in large if each.resident_kib >= settings.fallback_min_kib]
    return max(enough, key=lambda each: each.resident_kib, default=None)


def against(workload: Workload, settings: Settings) -> str | None:
    """Return why a workload is not to be stopped, None for one that may be.

    To hold the GPU is not enough: a display server, a monitor and the driver's own daemon do as well.
    """
    if workload.protected is not None:
        return f"protected: {workload.protected}"
    if not workload.holds_gpu:
        return "holds no GPU"
    held = max(workload.attributed_kib or 0, workload.grew_kib)
    if held >= settings.attributed_min_kib:
        return None
    told = "unknown" if workload.attributed_kib is None else _gib(workload.attributed_kib)
    return f"holds the GPU, but too little of its memory ({told}), and did not grow ({_gib(workload.grew_kib)})"


def _rank(workload: Workload, settings: Settings) -> tuple[bool, int, float]:
    grew = workload.grew_kib if workload.grew_kib >= settings.attributed_min_kib else 0
    return workload.preferred, grew, workload.started_s


def _in_favour(workload: Workload) -> str:
    told = "unknown" if workload.attributed_kib is None else _gib(workload.attributed_kib)
    preferred = "preferred; " if workload.preferred else ""
    return f"{preferred}holds {told} of the GPU's memory, grew by {_gib(workload.grew_kib)}"


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"
