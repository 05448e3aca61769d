"""Layer earlyoom: a backstop, with arguments that can fire here, and an honest figure of when."""

import json
import re
from dataclasses import dataclass
from typing import Any

from plimsoll.box.model import State
from plimsoll.box.protections import MOVING_DENOMINATOR_SINCE, describe_firing, firing_levels_kib, version_numbers
from plimsoll.controls.record import Cmdline, Package, UnitState, Why
from plimsoll.controls.values import Fixed
from plimsoll.policy import Policy

UNIT = "earlyoom.service"
FILE = "/etc/default/earlyoom"
VARIABLE = "EARLYOOM_ARGS"
REPORT_INTERVAL_S = 60
PERCENTAGES_OF_MEM_TOTAL = (5, 3)
"""6.08 and 3.65 GiB of 121.6: at 15 % a healthy model with a steady 14.9 % free was killed (October 2026)."""
PERCENTAGES_OF_USER_MEMORY = (6, 4)
"""The highest whole percentage that lies below the slow line (8 GiB) even on an idle box: 7.3 GiB of 121.6."""


@dataclass(frozen=True)
class FiringPoint:
    """Below which MemAvailable earlyoom would send SIGTERM on a host, and how much there is, in KiB."""

    now_kib: int
    reached_kib: int
    """As a driver takes the rest."""
    available_kib: int


def version(state: State) -> tuple[int, ...]:
    """Return the installed version, else the one that this release has (Debian 12: 1.7, Debian 13: 1.8.2)."""
    installed = (state["packages"] or {}).get("earlyoom")
    if installed:
        return version_numbers(installed)
    systemd = version_numbers((state["packages"] or {}).get("systemd", ""))
    # earlyoom 1.8 reached Debian and Ubuntu together with systemd 256 and later; Ubuntu 24.04 has 255 and 1.7.
    return (1, 8) if systemd and systemd[0] >= 256 else (1, 7)  # noqa: PLR2004  # explained above


def percentages(policy: Policy, state: State) -> tuple[int, int]:
    """Return the percentages of memory for SIGTERM and SIGKILL: the policy's, or those for the version."""
    moving = version(state) >= MOVING_DENOMINATOR_SINCE
    term, kill = PERCENTAGES_OF_USER_MEMORY if moving else PERCENTAGES_OF_MEM_TOTAL
    own = policy.earlyoom
    term = own.term_percent if own.term_percent is not None else term
    kill = own.kill_percent if own.kill_percent is not None else min(kill, max(1, term - 1))
    return term, kill


def arguments(policy: Policy, state: State) -> list[str]:
    """Return the arguments. Swap is taken out of the condition: GPU memory never goes there, so it stays free."""
    term, kill = percentages(policy, state)
    prefer = "^(" + "|".join(policy.earlyoom.prefer) + ")$"
    preferred = ["--prefer", prefer] if policy.earlyoom.prefer else []
    return ["-r", str(REPORT_INTERVAL_S), "-m", f"{term},{kill}", "-s", "100,100", "-g", *preferred]


def firing_point(policy: Policy, state: State) -> FiringPoint | None:
    """Return where it would fire on this host; None where memory could not be read."""
    meminfo = state["memory"]["meminfo"] or {}
    term, _kill = percentages(policy, state)
    moving = version(state) >= MOVING_DENOMINATOR_SINCE
    now, reached = firing_levels_kib(term, meminfo, moving=moving)
    available = meminfo.get("MemAvailable")
    if now is None or reached is None or available is None:
        return None
    return FiringPoint(now, reached, available)


def describe_firing_point(policy: Policy, state: State) -> str:
    """Say in one line at which level it would act here, and under which accounting it never would."""
    point = firing_point(policy, state)
    if point is None:
        return "earlyoom: where it would act is unknown, /proc/meminfo lacks a field"
    regime = state["memory"]["regime"]
    blind = "; in the accounting seen now (C) it takes the driver's memory for free and never acts"
    return (
        f"earlyoom would send SIGTERM {describe_firing(point.now_kib, point.reached_kib)}; "
        f"{point.available_kib / (1 << 20):.3g} GiB are available; regime {regime}{blind if regime == 'C' else ''}"
    )


def would_fire_at_once(policy: Policy, state: State) -> bool:
    """Say whether starting it now would kill something: it must not be what ends a workload that is running well."""
    point = firing_point(policy, state)
    return point is not None and point.available_kib <= point.now_kib


def environment_value(args: list[str]) -> str:
    """Return the arguments as the value of the variable, which systemd splits by its own quoting rules."""
    return " ".join(f"'{arg}'" if re.search(r"[^\w,.:-]", arg) else arg for arg in args)


def _chosen(value: str, policy: Policy, state: State) -> str:
    del value
    return json.dumps(arguments(policy, state))


class _Any(Fixed):
    """The arguments are made from the policy's section `earlyoom`, not given as one value."""

    @property
    def describes(self) -> str:
        """Where to set them."""
        return "chosen by the installed version; see the policy's section earlyoom"

    def parse(self, raw: object) -> str:
        """Refuse: there is a section of the policy for this."""
        raise ValueError(f"is set in the policy's section earlyoom, or null to leave it alone, not {raw!r}")


def _why(reason: str, evidence: str, **others: Any) -> Why:  # noqa: ANN401  # the other fields of Why, texts
    common = {
        "source": "earlyoom 1.7 and 1.8.2 in virtual machines; field reports of 2026",
        "cost": "2 MiB of memory.",
        "risk": "It kills a whole process group. It trusts MemAvailable, so with a driver that books memory in use "
        "as reclaimable (regime C) it never acts.",
        "skip_if": "Another killer is wanted, or the engine must be stopped only by you.",
    }
    return Why(reason=reason, evidence=evidence, **{**common, **others})


CONTROLS = (
    Package(
        id="earlyoom/package",
        target="earlyoom",
        default="installed",
        value=Fixed("installed"),
        why=_why(
            "A killer that needs no GPU knowledge, as the last one before the kernel's own.",
            "Where GPU memory is booked honestly (regime A) it held: 30 of 30 logins, SIGKILL 10 s after the start "
            "of a ramp that wedges a stock machine.",
        ),
    ),
    Cmdline(
        id="earlyoom/arguments",
        target=UNIT,
        file=FILE,
        variable=VARIABLE,
        default="[]",
        value=_Any(""),
        choose=_chosen,
        why=_why(
            "The usual arguments require memory and swap to be low. GPU memory never goes to swap, so swap stays "
            "free and nothing happens; 100,100 takes swap out of the condition.",
            "`mem avail: 0 of 124546 MiB, swap free 80.77 %` and no kill, with -m 15 -s 5. At 15 % without the swap "
            "condition a healthy model with a steady 14.86 % free was killed.",
        ),
    ),
    UnitState(
        id="earlyoom/running",
        target=UNIT,
        default="enabled active",
        value=Fixed("enabled active"),
        why=_why("It helps only while it runs, with the arguments above.", "Verified from its real command line."),
    ),
)
