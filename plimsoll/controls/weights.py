"""Shares of processor and disk for what must go on while everything else waits; the same for every such unit."""

from collections.abc import Callable, Sequence
from typing import Any

from plimsoll.box.model import State
from plimsoll.controls.record import DROP_IN, UnitProperty, Why
from plimsoll.controls.values import Integer

TEN_TIMES = "1000"
"""A unit without a weight of its own has 100."""
_EVIDENCE = {
    "CPUWeight": (
        "99.5 % system time was measured during a wedge.",
        "public report of a GB10 box, September 2026",
    ),
    "IOWeight": (
        (
            "Its reads and writes go before those of a swap storm, where the disk's scheduler knows weights; a kernel "
            "without an I/O cost model or BFQ has no io.weight, and the control is then unsupported."
        ),
        "Documentation/admin-guide/cgroup-v2.rst",
    ),
}


def weights(
    layer: str,
    unit: str,
    reason: str,
    risk: str,
    *,
    targets: Callable[[State], Sequence[str]] | None = None,
    possible: tuple[str, ...] = (),
) -> tuple[UnitProperty, ...]:
    """Return the two records that give a unit ten times the share of an ordinary one."""
    common: dict[str, Any] = {"target": unit, "targets": targets, "possible": possible, "section": "Service"}
    return tuple(
        UnitProperty(
            id=f"{layer}/{name}",
            name=name,
            file=DROP_IN,
            default=TEN_TIMES,
            value=Integer(1, 10000),
            why=Why(
                reason=reason,
                evidence=evidence,
                source=source,
                cost="None while there is idle time.",
                risk=risk,
                skip_if="Never, as far as is known.",
            ),
            **common,
        )
        for name, (evidence, source) in _EVIDENCE.items()
    )
