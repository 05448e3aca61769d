"""Waivers that do not do what they were written for: those that have ended, and those that excuse nothing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.box.model import Verdict
from plimsoll.fleet.report import HostReport, WaiverNote

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Sequence

    from plimsoll.inventory import Inventory, Waiver


def notes(inventory: Inventory, reports: Sequence[HostReport], today: datetime.date) -> tuple[WaiverNote, ...]:
    """Return a note for every waiver that has ended or is unused, as far as its hosts were looked at.

    `reports` are the hosts of one audit. One that was not reached is no evidence that a waiver is unused, nor is
    a control that could not be told or that waits for something: only `ok`, or no such control there, is.
    """
    found = []
    for waiver in inventory.waivers:
        covered = [report for report in reports if report.name in _hosts(waiver, inventory, reports)]
        problem = _problem(waiver, covered, today)
        if problem:
            found.append(WaiverNote(waiver.control, waiver.hosts, waiver.until.isoformat(), problem))
    return tuple(found)


def _hosts(waiver: Waiver, inventory: Inventory, reports: Iterable[HostReport]) -> set[str]:
    """Return the names of the hosts that a waiver is for; `all` has those that only the command line named, too."""
    if "all" in waiver.hosts:
        return {report.name for report in reports}
    return {host for name in waiver.hosts for host in inventory.groups.get(name, (name,))}


def _problem(waiver: Waiver, covered: Sequence[HostReport], today: datetime.date) -> str:
    if not covered:
        return ""
    if not waiver.holds(today):
        return "expired"
    reached = [report for report in covered if report.reached]
    return "unused" if reached and not any(_needs(report, waiver.control) for report in reached) else ""


def _needs(report: HostReport, control: str) -> bool:
    """Say whether a host may deviate; a record that stands for several units has a judgement for each."""
    names = (j for j in report.controls if j.id == control or j.id.startswith(f"{control}:"))
    return any(judgement.verdict is not Verdict.OK for judgement in names)
