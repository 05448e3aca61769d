"""Small material for tests of the guard: lines of a real box, samples and workloads by their few telling figures."""

from collections.abc import Iterable, Sequence

from plimsoll.box.guard.decide import step
from plimsoll.box.guard.model import (
    KIB_PER_GIB,
    Action,
    Known,
    Lines,
    Process,
    Reservation,
    Rule,
    Sample,
    Settings,
    State,
    Workload,
)

LINES = Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
ARMED = Settings(LINES, armed=frozenset(Rule))
PERIOD_S = 0.1


def kib(gib: float) -> int:
    """GiB as KiB."""
    return round(gib * KIB_PER_GIB)


def workload(name: str = "vllm", **others: object) -> Workload:
    """Return a container that holds 80 GiB of the GPU's memory, but for what is said otherwise."""
    fields: dict[str, object] = {
        "key": f"/system.slice/{name}",
        "name": name,
        "kind": "container",
        "cgroup": f"/system.slice/{name}",
        "whole_cgroup": True,
        "processes": (Process(100, 1),),
        "engine": "vllm",
        "holds_gpu": True,
        "attributed_kib": kib(80),
        "resident_kib": kib(1),
        "grew_kib": 0,
        "started_s": 0.0,
        "selectors": frozenset({name}),
    }
    return Workload(**{**fields, **others})  # type: ignore[arg-type]  # a test may give any of its fields


def reservation(allocate_gib: float, start_gib: float, steady_gib: float, **others: object) -> Reservation:
    """Return what `vllm` announced at second 0, with a minute's time."""
    fields: dict[str, object] = {
        "id": "r",
        "workload": "vllm",
        "allocate_kib": kib(allocate_gib),
        "made_s": 0.0,
        "until_s": 60.0,
        "available_at_start_kib": kib(start_gib),
        "steady_line_kib": kib(steady_gib),
    }
    return Reservation(**{**fields, **others})  # type: ignore[arg-type]  # a test may give any of its fields


def series(levels_gib: Iterable[float], period_s: float = PERIOD_S, full: float | None = 0.0) -> list[Sample]:
    """Return samples at an even pace, from second 1 on, in accounting regime A."""
    return [Sample(1 + index * period_s, kib(level), None, full, "A") for index, level in enumerate(levels_gib)]


def run(
    samples: Sequence[Sample],
    known: Known | None = None,
    settings: Settings = ARMED,
    state: State | None = None,
) -> tuple[list[tuple[float, Action]], State]:
    """Step through the samples with the same knowledge; return the actions with their times, and the last state."""
    actions = []
    now = state or State()
    for sample in samples:
        now, action, _ = step(settings, now, sample, known or Known((workload(),)))
        if action is not None:
            actions.append((sample.at_s, action))
    return actions, now


def ramp(start_gib: float, gib_per_s: float, end_gib: float, period_s: float = PERIOD_S) -> list[float]:
    """Return the levels of an even fall, then four times the last one."""
    levels = []
    level = start_gib
    while level > end_gib:
        levels.append(level)
        level -= gib_per_s * period_s
    return [*levels, *[end_gib] * 4]
