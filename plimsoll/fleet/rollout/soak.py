"""What a host must not show after a change that it did not show before. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.box.heartbeat import FRESH_S
from plimsoll.box.model import BAD, Verdict
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from plimsoll.box.model import State
    from plimsoll.fleet.report import HostReport
    from plimsoll.fleet.rollout.model import Held, Sample
    from plimsoll.policy import Policy

MOST_PRESSURE_PERCENT = 10.0
"""A tenth of a minute in which nobody got on. A box that serves shows less than 1; a wedge goes to 90 at once."""
HARMLESS_KERNEL_ERRORS = re.compile(r"NVRM: .*NV_ERR_NO_MEMORY")
"""The driver is refused large pages and takes smaller ones: each of three healthy starts of an engine logged one."""
MAX_TOLD = 3


def blind(baseline: Sample) -> str:
    """Return what of a host could not be watched after a change; empty if nothing."""
    unseen = [
        "systemd does not say which units have failed" if baseline.failed_units is None else "",
        "the kernel's log cannot be read" if baseline.kernel_seq is None else "",
    ]
    return "; ".join(what for what in unseen if what)


def problems(baseline: Sample, now: Sample) -> list[str]:
    """Return what is worse than before, in the order of its weight; what could not be looked at is worse, too."""
    return list(_problems(baseline, now))


def _problems(baseline: Sample, now: Sample) -> Iterator[str]:
    if now.boot_id != baseline.boot_id:
        yield "it restarted by itself"
        return
    unseen = blind(now)
    if unseen:
        yield unseen
    failed = sorted(set(now.failed_units or ()) - set(baseline.failed_units or ()))
    if failed:
        yield f"failed since the change: {', '.join(failed[:MAX_TOLD])}"
    errors = [text for text in now.kernel_errors if not HARMLESS_KERNEL_ERRORS.search(text)]
    if errors:
        yield f"the kernel reports since the change: {'; '.join(errors[:MAX_TOLD])}"
    for resource, percent in now.pressure.items():
        if percent >= baseline.pressure.get(resource, 0.0) + MOST_PRESSURE_PERCENT:
            yield f"nobody got on for {percent:.0f} % of the last minute, for want of {resource}"


def guard_problem(policy: Policy, state: State) -> str:
    """Return why it is not certain that the guard is alive; empty if it is, or if the host is to have none."""
    if not policy.layers.guard:
        return ""
    said = state["heartbeat"]
    if said is None or "error" in said:
        return f"the guard does not say that it is alive{': ' + said['error'] if said else ''}"
    age_s = said["sample_age_s"]
    return "" if 0 <= age_s < FRESH_S else f"the guard's last sample is {age_s:.0f} s old"


def drift(report: HostReport, held: Collection[Held]) -> tuple[list[str], bool]:
    """Return a line for every control that is not as it should be, layers that are held back left out.

    And whether that is only because something could not be told, rather than because it is bad.
    """
    layers = {each.layer for each in held}
    seen = [j for j in report.controls if j.layer not in layers]
    wrong = [j for j in seen if j.verdict in BAD or j.verdict is Verdict.UNKNOWN]
    return [f"{j.id} is {j.verdict}: {j.reason}" for j in wrong], not any(j.verdict in BAD for j in wrong)


def pending(report: HostReport) -> tuple[str, ...]:
    """Return the controls that are written down and wait for a restart, a login or a reboot, each with which."""
    return tuple(f"{j.id}: {j.reason}" for j in report.controls if j.verdict is Verdict.PENDING)


def told(lines: Sequence[str]) -> str:
    """Return several problems as one line."""
    more = f" (and {len(lines) - MAX_TOLD} more)" if len(lines) > MAX_TOLD else ""
    return printable("; ".join(lines[:MAX_TOLD]) + more)
