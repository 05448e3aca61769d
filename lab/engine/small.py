"""The same model server as two small processes in C (fakegb10/engine.c), which answer no requests. Pure."""

from lab.engine.kinds import Kind
from lab.engine.life import ASK_AGAIN_S
from lab.engine.plan import Plan
from lab.guest.fakegb10 import ENGINES, whole_pages

VARIABLE = "LAB_ENGINE_PLAN"
LONGEST_PATH = 255


def plan_text(plan: Plan, kind: Kind, total_bytes: int, weights: str) -> str:
    """What engine.c reads: who it is, and a line for each phase; amounts in bytes of a memory of `total_bytes`.

    Raises ValueError for a plan that these processes cannot carry out.
    """
    if plan.memory != "driver" or plan.when_refused != "ask again" or plan.lie:
        raise ValueError("the small server takes the driver's memory, asks again when refused, and tells no lies")
    if " " in weights or len(weights) > LONGEST_PATH:
        raise ValueError(f"{weights!r}: no blanks, and {LONGEST_PATH} characters at most")
    ends_after_ms = -1 if plan.ends_after_s is None else round(plan.ends_after_s * 1000)
    worker = kind.worker or "-"
    again_ms = round(ASK_AGAIN_S * 1000)
    lines = [f"{kind.comms[0]} {worker} {ENGINES.index(kind.driver_class)} {ends_after_ms} {again_ms} {weights}"]
    for phase in plan.phases:
        grow, rate, read = (total_bytes * each / 100 for each in (phase.grow_percent, phase.rate, phase.read_percent))
        line = f"{whole_pages(grow)} {int(rate)} {int(read)} {round(phase.hold_s * 1000)} {int(phase.gives_back)}"
        lines += [line] * phase.times
    return "\n".join(lines) + "\n"
