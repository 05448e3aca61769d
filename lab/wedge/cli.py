"""`python -m lab wedge`: measure, and tell what came of it."""

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from lab.errors import LabError, UsageError
from lab.host import ARCHITECTURES
from lab.progress import Progress
from lab.snapshot import describe
from lab.wedge import case as cases
from lab.wedge import quiet, report, results, table
from lab.wedge import run as runner
from lab.wedge.defences import DEFENCES, available
from lab.wedge.places import PLACES
from lab.wedge.scenarios import SCENARIOS

QUIET_TIMEOUT_S = 60.0
MATRIX_QUIET_TIMEOUT_S = 600.0
MATRIX_ATTEMPTS = 3
RUN_MINUTES = 3.5
"""Machine, defence, two minutes of logins, and reading the disk."""


def chosen_defences(names: Sequence[str]) -> list[str]:
    """The defences to measure. Raises UsageError for one that cannot be had."""
    for name in names:
        if missing := DEFENCES[name].missing():
            raise UsageError(f"the defence {name} is not available: {missing}")
    return list(names) or ["stock", "layers" if DEFENCES["plimsoll"].missing() else "plimsoll"]


@click.command()
@click.option(
    "--defence", "defences", multiple=True, type=click.Choice(list(DEFENCES)), help="Default: stock, Plimsoll."
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice(list(SCENARIOS)),
    default=["ramp"],
    help="How memory is taken.",
)
@click.option(
    "--regime", type=click.Choice(cases.REGIMES), default="C", show_default=True, help="How it is accounted for."
)
@click.option(
    "--place", type=click.Choice(list(PLACES)), default="unit", show_default=True, help="Where the workload runs."
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="How many of each.")
@click.option("--seed", default=0, show_default=True, help="Chooses rates and, in the matrix, the pairs.")
@click.option("--arch", type=click.Choice(list(ARCHITECTURES)), default=platform.machine, help="Default: this host's.")
@click.option("--matrix", is_flag=True, help="All runs of docs/wedge.md instead; can be interrupted and repeated.")
@click.option("--report", "write_report", is_flag=True, help="Measure nothing; write docs/wedge.md from the results.")
@click.option("--results", "file", type=click.Path(path_type=Path, dir_okay=False), help="Default: below .lab.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON (plimsoll.wedge/1).")
def wedge(  # noqa: PLR0913  # one parameter an option
    *,
    defences: Sequence[str],
    scenarios: Sequence[str],
    regime: cases.Regime,
    place: str,
    runs: int,
    seed: int,
    arch: str,
    file: Path | None,
    matrix: bool,
    write_report: bool,
    as_json: bool,
) -> None:
    """Freeze a machine, and see which defence keeps it reachable. What the results file has is not run again."""
    file = file or results.default_file()
    if write_report:
        for problem in report.write(results.load(file)):
            click.echo(f"lab: {problem}", err=True)
        return
    if matrix:
        asked = cases.matrix(chosen_defences(defences or [defence.name for defence in available()]), seed)
    else:
        each = [(d, s) for d in chosen_defences(defences) for s in scenarios]
        asked = [cases.Case(*names, regime, place, index, seed, arch) for index in range(runs) for names in each]
    progress = Progress()
    for defence in DEFENCES.values():
        if defence.missing() and (matrix or not defences):
            progress.say(f"left out: {defence.name}: {defence.missing()}")
    made = measure(asked, file, MATRIX_ATTEMPTS if matrix else 1, progress)
    show(made, as_json=as_json)
    if lost := len(table.discards(made)):
        raise LabError(f"{lost} of {len(made)} runs were discarded: repeat the command when this host is idle")


def measure(asked: Sequence[cases.Case], file: Path, attempts: int, progress: Progress) -> list[results.Run]:
    """Make the runs that the file does not have; returns the newest run of each case that was asked for.

    Cases whose machine cannot be made are left out, with the reason. Raises LabError where that is so of all.
    """
    prints = fingerprints(asked, progress)
    for attempt in range(attempts):
        todo = results.remaining(list(prints.items()), results.load(file))
        for number, case in enumerate(todo):
            left = (len(todo) - number) * RUN_MINUTES
            progress.say(f"run {number + 1} of {len(todo)} ({left:.0f} minutes left): {case}")
            quiet.await_quiet(MATRIX_QUIET_TIMEOUT_S if attempts > 1 else QUIET_TIMEOUT_S, progress)
            results.append(file, one(case, prints[case], progress))
        if not todo or attempt == attempts - 1:
            break
    wanted = {(*(getattr(case, name) for name in results.KEY), print_) for case, print_ in prints.items()}
    found = [run for run in results.load(file) if (*(run[name] for name in results.KEY), run["fingerprint"]) in wanted]
    return results.newest(results.preferred(found))


def fingerprints(asked: Sequence[cases.Case], progress: Progress) -> dict[cases.Case, str]:
    """Name what each case's outcome rests on; that needs its machine, which is made if it is not there."""
    found: dict[cases.Case, str] = {}
    problem = LabError("nothing to measure")
    for spec in dict.fromkeys(map(runner.spec_of, asked)):
        try:
            key = runner.machine_key(spec, progress)
        except LabError as error:
            problem = error
            progress.say(f"left out: all runs on {describe(spec)}: {error}")
            continue
        found |= {case: cases.fingerprint(case, key) for case in asked if runner.spec_of(case) == spec}
    if not found:
        raise problem
    return {case: found[case] for case in asked if case in found}


def one(case: cases.Case, fingerprint: str, progress: Progress) -> results.Run:
    """Make one run; one that did not come about is recorded as discarded."""
    started_s = time.monotonic()
    try:
        run = runner.run(case, fingerprint, progress)
    except LabError as error:
        run = runner.discarded(case, fingerprint, error)
    outcome = run["discarded"] or ("survived" if run["survived"] else "frozen")
    progress.say(f"{case}: {outcome} ({time.monotonic() - started_s:.0f} s)")
    return run


def show(runs: Sequence[results.Run], *, as_json: bool) -> None:
    """Print the results."""
    if as_json:
        click.echo(json.dumps(results.document(runs), indent=2))
        return
    console = Console()
    console.print(table.terminal(runs, list(DEFENCES)))
    for line in table.discards(runs):
        console.print(f"discarded: {line}", style="yellow")
