"""An audit's report on a terminal: what is not as it should be, host by host. Also the house's colours of verdicts.

Whatever comes from a host goes through `printable` into a `Text`: it can neither move the cursor nor be
taken for markup.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from plimsoll.box.model import Judgement, Verdict
from plimsoll.fleet.advice import BY_SEVERITY, severity
from plimsoll.fleet.text import printable, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from plimsoll.fleet.report import Finding, HostReport, Report, WaiverNote

STYLES = {
    Verdict.OK: "green",
    Verdict.PENDING: "yellow",
    Verdict.WAIVED: "cyan",
    Verdict.UNSUPPORTED: "dim",
    Verdict.UNKNOWN: "magenta",
}
"""Colours of verdicts; what is not named here is bad and red."""
_Row = tuple[Text, Text]
_LONGEST_IN_TABLE = 300
_FOLDED = 3
"""So many controls that are unknown for the same reason share an entry: without systemd that is so of twenty."""


def style(verdict: Verdict) -> str:
    """Return the rich style of a verdict."""
    return STYLES.get(verdict, "bold red")


def show(report: Report, console: Console, *, every: bool = False) -> None:
    """Print a report: what deviates, or with `every` each control; several hosts begin with a line for each."""
    if len(report.hosts) > 1:
        console.print(_overview(report.hosts))
    for host in report.hosts:
        rows = _rows(host, every=every)
        if rows or not host.reached or len(report.hosts) == 1:
            _show_host(host, rows, console)
    if report.waivers:
        console.print(Text("\nwaivers", "bold"))
        console.print(_grid((Text(_cut(note.problem), "yellow"), _waiver(note)) for note in report.waivers))
    console.print(_totals(report))


def _overview(hosts: Iterable[HostReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("host", "controls", "findings", "kernel"):
        table.add_column(column, overflow="fold", justify="right" if column == "findings" else "left")
    for host in hosts:
        findings = str(len(host.findings)) if host.reached else ""
        kernel = _cut(host.facts.get("kernel") or "not known") if host.reached else ""
        table.add_row(Text(_cut(host.name), "bold"), _state(host), findings, Text(kernel))
    return table


def counts(host: HostReport) -> Text:
    """Return how many controls of a host have which verdict, the worst first."""
    return _counted({verdict: host.count(verdict) for verdict in BY_SEVERITY})


def _counted(numbers: dict[Verdict, int]) -> Text:
    said = [Text(f"{number} {verdict}", style(verdict)) for verdict, number in numbers.items() if number]
    return Text(", ").join(said) if said else Text("no control was judged", style(Verdict.UNKNOWN))


def _show_host(host: HostReport, rows: Sequence[_Row], console: Console) -> None:
    console.print(Text.assemble("\n", (_cut(host.name), "bold"), ": ", _state(host)))
    if host.facts:
        facts = Text(", ".join(_fact(*fact) for fact in host.facts.items()), "dim")
        console.print(Padding(facts, (0, 0, 0, 2)))
    if rows:
        console.print(_grid(rows))


def _rows(host: HostReport, *, every: bool) -> list[_Row]:
    shown = sorted((j for j in host.controls if every or j.verdict is not Verdict.OK), key=severity)
    rows = [(Text(verdict, style(verdict)), found) for verdict, found in _controls(shown, every=every)]
    rows += [(Text(f.kind.replace("_", " "), "yellow"), _finding(f)) for f in host.findings]
    rows += [(Text("not seen", style(Verdict.UNKNOWN)), Text(_cut(what))) for what in host.not_seen]
    return rows


def _controls(shown: Sequence[Judgement], *, every: bool) -> Iterator[tuple[Verdict, Text]]:
    """Yield verdict and text of each control; of several that are unknown for one reason, all at once."""
    alike = {} if every else Counter(j.reason for j in shown if j.verdict is Verdict.UNKNOWN)
    told = set()
    for judgement in shown:
        reason = judgement.reason
        if judgement.verdict is not Verdict.UNKNOWN or alike.get(reason, 0) < _FOLDED:
            yield judgement.verdict, _found(judgement)
        elif reason not in told:
            told.add(reason)
            ids = ", ".join(j.id for j in shown if (j.verdict, j.reason) == (Verdict.UNKNOWN, reason))
            yield judgement.verdict, Text.assemble(_cut(reason), "\n", (printable(ids), "dim"))


def _state(host: HostReport) -> Text:
    if host.reached:
        return counts(host)
    return Text(f"not reached: {_cut(host.problem or 'no reason is known')}", style(Verdict.UNKNOWN))


def _fact(name: str, value: str | None) -> str:
    return f"{_cut(name).replace('_', ' ')} {'not known' if value is None else _cut(value)}"


def _grid(rows: Iterable[_Row]) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=max(len(verdict) for verdict in Verdict))
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, 2))


def _found(judgement: Judgement) -> Text:
    lines = [Text(_cut(judgement.id), "bold"), Text(_values(judgement))]
    place = judgement.decided_by
    where = f"{place.file}:{place.line}" if place is not None else ""
    if where and where not in judgement.reason:
        lines.append(Text(f"decided by {_cut(where)}"))
    if judgement.reason:
        lines.append(Text(_cut(judgement.reason)))
    return Text("\n").join(lines)


def _values(judgement: Judgement) -> str:
    wanted = f"wanted {readable(judgement.wanted, _LONGEST_IN_TABLE)}"
    live, persisted = judgement.live, judgement.persisted
    if live == persisted:
        return wanted if live is None else f"{wanted}, now and after a reboot {readable(live, _LONGEST_IN_TABLE)}"
    found = (("now", live), ("after a reboot", persisted))
    return ", ".join([wanted, *(f"{when} {readable(v, _LONGEST_IN_TABLE)}" for when, v in found if v is not None)])


def _finding(finding: Finding) -> Text:
    lines = [
        Text(_cut(finding.title), "bold"),
        Text(_cut(finding.seen)),
        Text(_cut(finding.advice)),
        Text(f"{_cut(finding.source)}, {_cut(finding.dated)}", "dim"),
    ]
    return Text("\n").join(lines)


def _waiver(note: WaiverNote) -> Text:
    return Text(f"{_cut(note.control)} on {_cut(', '.join(note.hosts))}, until {_cut(note.until)}")


def _totals(report: Report) -> Text:
    if not report.hosts:
        return Text("no host was audited", style(Verdict.UNKNOWN))
    reached = sum(host.reached for host in report.hosts)
    numbers = {verdict: sum(host.count(verdict) for host in report.hosts) for verdict in BY_SEVERITY}
    findings = sum(len(host.findings) for host in report.hosts)
    unseen = sum(len(host.not_seen) for host in report.hosts)
    more = f"; findings: {findings}" if findings else ""
    more += f"; could not be seen: {unseen}" if unseen else ""
    return Text.assemble(f"\nhosts reached: {reached} of {len(report.hosts)}; ", _counted(numbers), more)


def _cut(value: object) -> str:
    return printable(value, _LONGEST_IN_TABLE)
