"""What the runs came to, as rows: for a terminal and for a page. Pure."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table

from lab.wedge.results import Run
from lab.wedge.verdict import figure

COLUMNS = (
    "defence",
    "scenario",
    "regime",
    "place",
    "survived",
    "logins that came back",
    "worst login, s",
    "recovery, s",
    "killed",
    "wrongly killed",
    "lowest MemFree, MiB",
)
SAME = ("scenario", "place", "regime", "defence")
"""What runs have in common that become one row."""
NEVER = "never"


class Row(NamedTuple):
    """One line of the table, all texts."""

    defence: str
    scenario: str
    regime: str
    place: str
    survived: str
    came_back: str
    worst_s: str
    recovery_s: str
    killed: str
    wrongly: str
    lowest_mib: str


def rows(runs: Iterable[Run], order: Sequence[str]) -> list[Row]:
    """Return a row for each group of counted runs that differ in nothing but their number; `order` is of defences."""

    def key(run: Run) -> tuple[object, ...]:
        rank = order.index(run["defence"]) if run["defence"] in order else len(order)
        return *(run[name] for name in SAME[:-1]), rank, run["defence"]

    counted = sorted((run for run in runs if not run["discarded"]), key=key)
    return [_row(list(group)) for _, group in itertools.groupby(counted, key=key)]


def _row(runs: Sequence[Run]) -> Row:
    first = runs[0]
    survived = sum(run["survived"] for run in runs)
    came_back = [sum(login["ok"] for login in run["logins"]) for run in runs]
    of = [len(run["logins"]) for run in runs]
    worst = figure(max(login["took_s"] for login in run["logins"]) for run in runs)
    lowest = figure(run["lowest_mem_free_kib"] / 1024 for run in runs if run["lowest_mem_free_kib"] is not None)
    return Row(
        defence=first["defence"],
        scenario=first["scenario"],
        regime=first["regime"],
        place=first["place"],
        survived=f"{survived} of {len(runs)}",
        came_back=", ".join(f"{ok} of {n}" for ok, n in zip(came_back, of, strict=True)),
        worst_s=str(worst),
        recovery_s=recovery(runs),
        killed=names(runs, "killed"),
        wrongly=names(runs, "bystanders_killed"),
        lowest_mib=str(lowest) if lowest else "not known",
    )


def recovery(runs: Sequence[Run]) -> str:
    """Return the median and spread of those that recovered, and how many never did."""
    known = figure(run["recovery_s"] for run in runs if run["recovery_s"] is not None)
    never = sum(run["recovery_s"] is None for run in runs)
    if known is None:
        return NEVER
    return f"{known}; {NEVER} in {never} of {len(runs)}" if never else str(known)


def names(runs: Sequence[Run], key: str) -> str:
    """Return who was killed in a group of runs, by whom, and in how many of them."""
    counts: dict[str, int] = {}
    for run in runs:
        for name in sorted({f"{kill['name']} (by {kill['by']})" for kill in run[key]}):
            counts[name] = counts.get(name, 0) + 1
    told = (name if len(runs) == 1 else f"{name} in {count}" for name, count in counts.items())
    return ", ".join(told) or "nobody"


def terminal(runs: Iterable[Run], order: Sequence[str]) -> Table:
    """Return the table for a terminal."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows(runs, order):
        whole = row.survived.partition(" of ")[0] == row.survived.partition(" of ")[2]
        table.add_row(*row, style=None if whole else "red")
    return table


def markdown(runs: Iterable[Run], order: Sequence[str]) -> str:
    """Return the table for a page."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows(runs, order)]
    return "\n".join(lines)


def discards(runs: Iterable[Run]) -> list[str]:
    """Return a line for each run that does not count, and why."""
    dropped = [run for run in runs if run["discarded"]]
    return [f"{r['defence']}, {r['scenario']}, {r['regime']}, {r['place']}: {r['discarded']}" for r in dropped]
