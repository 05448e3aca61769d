"""What a person sees of a deploy: the plan before it, the verdicts and the cost after it. All on stderr."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plimsoll.box.model import BAD, Judgement, Verdict
from plimsoll.controls import registry
from plimsoll.fleet.table import style
from plimsoll.fleet.text import printable, readable
from plimsoll.provision.look import Look


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_plan(before: Look, *, with_diff: bool) -> None:
    """Show what a run would do, layer by layer; with the difference of every file if asked for."""
    console = _console()
    origin = "" if before.known else " (not in the inventory: default policy)"
    console.print(f"\n{before.name}{origin}", style="bold")
    _print_notes(console, before.notes())
    for layer in before.plan.layers:
        for line in layer.lines():
            console.print(Text(f"  {layer.layer}: {line}"))
        if with_diff:
            for change in layer.changes:
                console.print(Text("\n").join(Text(f"    {_whole(line)}") for line in change.diff()))
    if not any(before.plan.layers):
        console.print("  nothing to do: every file and every live value is as it should be")


def _whole(line: str) -> str:
    """Return a line of a file, of which nothing is cut off: what is announced is what is written."""
    shown = line.expandtabs()
    return printable(shown, len(shown))


def wrong(found: Look) -> list[str]:
    """Return a line for every control that is not as it should be, or of which that could not be told."""
    judged = found.plan.judgements
    return [
        f"{j.id}: {j.verdict}: {printable(j.reason)}"
        for j in judged
        if j.verdict in BAD or j.verdict is Verdict.UNKNOWN
    ]


def show(after: Look) -> None:
    """Show the verdict over every layer, every control that is not simply ok, and what the kit costs here."""
    console = _console()
    console.print(_table(after))
    _print_notes(console, [*after.notes(), *cost(after)])


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print what a host says of itself: a process has the name that somebody gave it, markup and all."""
    for note in notes:
        console.print(Text(f"  {printable(note)}", "dim"))


def _table(after: Look) -> Table:
    table = Table(title=f"{after.name}, as it is now", title_justify="left", expand=False)
    for column in ("layer", "verdict", "control", "live"):
        table.add_column(column, overflow="fold")
    for layer in registry.LAYERS:
        rows = [j for j in after.plan.judgements if j.layer == layer]
        for judgement in rows:
            if "/file:" not in judgement.id or judgement.verdict is not Verdict.OK:
                _add(table, judgement)
        if rows:
            table.add_section()
    return table


def _add(table: Table, judgement: Judgement) -> None:
    said = readable(judgement.live) if judgement.live else ""
    reason = printable(judgement.reason)
    name = judgement.id.partition("/")[2]
    detail = f"{said}\n{reason}" if said and reason else said or reason
    table.add_row(judgement.layer, Text(judgement.verdict, style(judgement.verdict)), Text(name), Text(detail))


def cost(after: Look) -> list[str]:
    """Say what the kit costs on this host, measured: the kernel's reserve, and the daemons that were added."""
    state = after.state
    reserve_kib = int(state["sysctl"].get("vm.min_free_kbytes", {}).get("value") or 0)
    before_kib = int(state["ledger"]["sysctls"].get("vm.min_free_kbytes") or reserve_kib)
    unit = state["units"]["earlyoom.service"]
    current = unit["cgroup"][0].get("memory.current") if unit.get("cgroup") else None
    daemons = [f"earlyoom {int(current) / (1 << 20):.1f} MiB"] if current else []
    locked_kib = (state["heartbeat"] or {}).get("locked_kib")
    daemons += [f"guard {locked_kib / 1024:.1f} MiB locked"] if locked_kib else []
    reserve = f"kernel reserve {(reserve_kib - before_kib) / 1024:+.0f} MiB"
    return [f"cost: {', '.join([reserve, *(daemons or ['no daemon of its own'])])}"]
