"""docs/wedge.md and its pictures, out of the results file."""

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2

from lab.errors import HostError, UsageError
from lab.wedge import case as cases
from lab.wedge import picture, table
from lab.wedge.defences import DEFENCES, ROOT, available
from lab.wedge.results import KEY, Run, counted, newest
from lab.wedge.verdict import AGAIN, figure

PAGE = ROOT / "docs" / "wedge.md"
PICTURES = "wedge"
"""The pictures' directory beside the page."""


def is_core(run: Run) -> bool:
    """Whether a run is one of those that medians are made of; those on another architecture stand apart."""
    core_regime = run["regime"] in cases.CORE_REGIMES
    same = run["scenario"] == cases.CORE_SCENARIO and run["place"] == cases.CORE_PLACE
    return core_regime and same and run["arch"] == platform.machine()


def representative(runs: Iterable[Run], regime: str) -> list[Run]:
    """Return the first core run of each defence in a regime, in the order of the defences."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: int(run["index"])):
        if is_core(run) and run["regime"] == regime:
            found.setdefault(run["defence"], run)
    return [found[name] for name in DEFENCES if name in found]


def machine_lines(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what was measured on, and when."""
    machines = [run["machine"] for run in runs]
    versions = {f"{name} {value}" for each in machines for name, value in each["versions"].items() if value}
    idle = figure(run["idle_login_s"] for run in runs)
    days = sorted(run["at"][:10] for run in runs)
    return [
        ("host", "; ".join(sorted({each["host"] for each in machines}))),
        ("machine", "; ".join(sorted({f"{each['memory_kib'] >> 10} MiB seen by the kernel" for each in machines}))),
        ("versions", ", ".join(sorted(versions))),
        ("a login to the idle machine", f"{idle} s"),
        ("runs", f"{len(runs)}, from {days[0]} to {days[-1]}"),
    ]


def logs_table(runs: Sequence[Run]) -> str:
    """Return what each log had of the incident, for frozen machines and for others."""
    lines = ["| | runs | lines on the console | in kern.log | in the journal | journal ends at, s |", "|---" * 6 + "|"]
    for name, survived in (("frozen", False), ("reachable", True)):
        group = [run["logs"] for run in runs if run["survived"] is survived]
        keys = ("console_lines", "kern_log_lines", "journal_lines", "journal_ends_at_s")
        figures = [figure(logs[key] for logs in group if logs[key] is not None) for key in keys]
        cells = [str(each) if each else "not looked at" for each in figures]
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(runs: Sequence[Run], dropped: int, *, png: bool) -> str:
    """Return the page. Raises UsageError where nothing was measured yet."""
    if not runs:
        raise UsageError("no run is in the results file yet: python -m lab wedge --matrix")
    order = list(DEFENCES)
    others = [run for run in runs if not is_core(run) and run["arch"] == platform.machine()]
    elsewhere = [run for run in runs if run["arch"] != platform.machine()]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(picture.TEMPLATES),
        autoescape=False,  # noqa: S701  # the page is Markdown
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    core = [
        (regime, table.markdown(of_regime, order), f"{PICTURES}/{picture_name(regime)}")
        for regime in cases.CORE_REGIMES
        if (of_regime := [run for run in runs if is_core(run) and run["regime"] == regime])
    ]
    return environment.get_template("wedge.md.j2").render(
        machine=machine_lines(runs),
        again=AGAIN,
        defences=DEFENCES.values(),
        core=core,
        png=png,
        others=table.markdown(others, order) if others else "",
        missing=len(missing_pairs(runs)),
        elsewhere=table.markdown(elsewhere, order) if elsewhere else "",
        elsewhere_named=" and ".join(sorted({run["arch"] for run in elsewhere})),
        logs=logs_table(runs),
        discarded=f"{dropped} runs were discarded because the host was busy or the workload did not run.",
    )


def missing_pairs(runs: Iterable[Run]) -> set[tuple[str, ...]]:
    """Return the pairs of properties that were not measured together."""
    names = [defence.name for defence in available()]
    wanted = cases.everything(names)
    return cases.pairs_missing(wanted, [case_of(run) for run in runs])


def case_of(run: Run) -> cases.Case:
    """Return the case that a run was of."""
    return cases.Case(*(run[name] for name in KEY))


def picture_name(regime: str) -> str:
    """Return the file of a regime's picture, without its ending."""
    return f"ramp-regime-{regime.lower()}"


def write(all_runs: Sequence[Run], to: Path = PAGE) -> list[str]:
    """Write the page and its pictures; returns what could not be written, and why."""
    runs = newest(counted(all_runs))
    if not runs:
        raise UsageError("no run is in the results file yet: python -m lab wedge --matrix")
    problems = []
    for regime in cases.CORE_REGIMES:
        shown = representative(runs, regime)
        if shown:
            problems += write_picture(shown, regime, to.parent / PICTURES)
    to.write_text(page(runs, len(all_runs) - len(counted(all_runs)), png=not problems))
    return problems


def write_picture(runs: Sequence[Run], regime: str, directory: Path) -> list[str]:
    """Write the pictures of one regime; returns why there is no PNG."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{picture_name(regime)}.svg"
    file.write_text(picture.svg(runs, f"ramp, regime {regime}, a system unit"))
    try:
        picture.write_png(file)
    except HostError as error:
        return [str(error)]
    return []
