"""A rollout before it begins and after it has ended: the plan by group, and what became of each host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from plimsoll.fleet.report import HostReport, Report
from plimsoll.fleet.rollout import plan, schedule
from plimsoll.fleet.rollout.model import Begin, HostSummary, OnFailure, Phase, Planned, Summary
from plimsoll.fleet.rollout.screen import SIGNS, duration
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from plimsoll.fleet.rollout.progress import Progress
    from plimsoll.fleet.rollout.state import Journal


def show_plan(begin: Begin, console: Console) -> None:
    """Print what would change on which hosts, what waits, who is left out, and in which order it goes."""
    for group in plan.grouped(begin.hosts):
        _show_group(group, console)
    for host in begin.hosts:
        if host.problem:
            console.print(
                Text.assemble((printable(host.name), "bold magenta"), ": left out: ", printable(host.problem))
            )
    serving = [host for host in begin.hosts if host.serving]
    for host in serving:
        engines = ", ".join(printable(engine, 60) for engine in host.serving[:3])
        console.print(Text(f"{printable(host.name)} serves a model, which is not disturbed: {engines}", "dim"))
    for number, batch in enumerate(begin.batches, 1):
        is_canary = " (canary)" if set(batch) <= set(begin.canaries) else ""
        console.print(Text(f"batch {number}{is_canary}: {_names(batch)}"))


def _show_group(group: plan.Group, console: Console) -> None:
    count = f"{len(group.hosts)} host{'s' * (len(group.hosts) != 1)}"
    what = "" if group.steps else ": nothing to do"
    console.print(Text.assemble((f"{count}{what}: ", "bold"), _names(group.hosts)))
    for step in group.steps:
        console.print(Text(f"  {step.layer}: {printable(step.what)}"))
    for held in group.held:
        console.print(Text(f"  {held.layer}: waits: it {printable(held.why)} (--allow-restart)", "yellow"))


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(printable(name, 100) for name in names)


def show_end(progress: Progress, journal: Journal, console: Console) -> None:
    """Print a table of all hosts, how it ended as a whole, and what can be done next."""
    console.print(_table(progress))
    for name, host in progress.hosts.items():
        for waiting in host.pending:
            console.print(Text(f"pending on {printable(name)}: {printable(waiting)}", "yellow"))
    for line in outlook(progress, journal):
        console.print(Text(line), soft_wrap=True)


def _table(progress: Progress) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("host", "", "detail"):
        table.add_column(column, overflow="fold")
    for name, host in progress.hosts.items():
        sign, style = SIGNS[host.phase]
        what = Text(f"{sign} {host.phase.replace('_', ' ')}", style)
        table.add_row(Text(printable(name, 100), "bold"), what, Text(printable(host.detail)))
    return table


def outlook(progress: Progress, journal: Journal) -> list[str]:
    """Return how it ended and what can be done next, a line each."""
    waits = sum(host.phase is Phase.WAITING for host in progress.hosts.values())
    not_begun = f"; not begun: {waits}" if waits else ""
    took = duration(max(host.since_s for host in progress.hosts.values()) - progress.begin.at_s)
    lines = [f"stopped: {progress.stopped}{not_begun}" if progress.stopped else f"took {took}{not_begun}"]
    failed = [name for name, host in progress.hosts.items() if host.phase is Phase.FAILED]
    lines += [f"log of {printable(name)}: {journal.log(name)}" for name in failed if journal.log(name).exists()]
    lines += _kept(progress)
    if progress.resumable:
        lines.append("mend what failed, then go on with it: plimsoll rollout --resume")
    return [*lines, f"journal: {journal.file}"]


def _kept(progress: Progress) -> list[str]:
    """Return what a revert did not take back, as a line; none if there is nothing."""
    before = {planned.name for planned in progress.begin.hosts if planned.deployed_before}
    kept = [name for name, host in progress.hosts.items() if host.touched and name in before]
    took_back = progress.stopped and progress.begin.settings.on_failure is OnFailure.REVERT
    if not kept or not took_back:
        return []
    return [f"kept, because they had Plimsoll before, and a revert would take that away: {_names(tuple(kept))}"]


def interrupted(progress: Progress) -> list[str]:
    """Return what a rollout that was interrupted leaves as it is, and how it is gone on with."""
    at_work = {
        Phase.APPLYING: "its deploy goes on by itself to its end",
        Phase.REVERTING: "its revert goes on by itself",
    }
    hosts = progress.hosts.items()
    left = [f"{printable(name)}: {at_work[host.phase]}" for name, host in hosts if host.phase in at_work]
    return [*left, "go on with it: plimsoll rollout --resume"]


def of(progress: Progress, journal: Journal) -> Summary:
    """Return how each host ended, and the exit code: the last line of `--json`."""
    hosts = {
        name: HostSummary(host.phase, host.detail, host.failure, host.touched, host.pending, str(journal.log(name)))
        for name, host in progress.hosts.items()
    }
    code = schedule.exit_code(progress)
    return Summary(progress.begin.id, code, progress.stopped, progress.resumable, str(journal.file), hosts)


def report(progress: Progress, journal: Journal, taken: str) -> Report:
    """Return what was found of each host last, in the form of an audit."""
    return Report(taken, tuple(journal.report(p.name) or _unseen(p, progress) for p in progress.begin.hosts))


def _unseen(planned: Planned, progress: Progress) -> HostReport:
    host = progress.hosts[planned.name]
    what = host.detail or f"it is {host.phase.replace('_', ' ')}: nothing was looked at after the plan"
    return HostReport(planned.name, reached=False, problem=what)
