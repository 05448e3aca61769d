"""`plimsoll explain CONTROL [HOST]`: what a setting is for, and which files on a host had a say in it."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plimsoll import inventory
from plimsoll.box.chain import Link, chain
from plimsoll.box.judge import exit_code
from plimsoll.box.revert import PROGRAM_LAYER
from plimsoll.controls import plan, registry
from plimsoll.controls.docs import is_opt_in, layer_summary
from plimsoll.fleet import gather, records
from plimsoll.fleet.judging import bounded, cannot_be_judged
from plimsoll.fleet.report import COULD_NOT_TELL
from plimsoll.fleet.table import style
from plimsoll.fleet.targets import connecting, resolve
from plimsoll.fleet.text import printable, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plimsoll.box.model import Judgement, State, Wanted
    from plimsoll.inventory import Host, Inventory

EXPLAIN_SCHEMA = "plimsoll.explain/1"
_LABEL_COLUMNS = 18
_MAX_LINKS = 200
"""Lines with a say that a person is shown; an honest host has a dozen."""
_ROWS = {
    "sets": "sets",
    "layer": "layer",
    "default": "default",
    "values": "in the inventory",
    "accepts": "accepts",
    "kept_in": "kept in",
    "in_force": "comes into force",
    "verified_by": "verified by",
    "undo": "undo",
    "waivers": "waivers",
}
_WHY_ROWS = {
    "reason": "why",
    "evidence": "evidence",
    "source": "source",
    "cost": "cost",
    "risk": "risk",
    "skip_if": "skip it if",
}
_STYLE_OF_ROLE = {"decides": "bold", "ours": "bold green"}
"""What of a chain is to be seen first; the rest had a say and lost it."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a host has for one control, with everything that had a say."""

    judgement: Judgement
    links: tuple[Link, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the judgement in the form of the audit schema, and the chain beside it."""
        return {**self.judgement.to_json(), "chain": [dataclasses.asdict(link) for link in self.links]}


@dataclasses.dataclass(frozen=True)
class OnHost:
    """What became of the question on one host; `found` is empty where the host is to be left alone with it."""

    name: str
    problem: str
    """Why nothing is known; empty if the host was reached and could be judged."""
    found: tuple[Found, ...] = ()

    def exit_code(self) -> int:
        """Return 3 if something could not be told, 2 for drift, else 0."""
        return COULD_NOT_TELL if self.problem else exit_code(each.judgement for each in self.found)

    def to_json(self) -> dict[str, Any]:
        """Return the record in the form of the schema plimsoll.explain/1; the name is its key there."""
        return {
            "reached": not self.problem,
            "problem": self.problem,
            "controls": [each.to_json() for each in self.found],
        }


@click.command(short_help="Say what a setting is for, and who has a say in it.")
@click.argument("control", metavar="CONTROL|LAYER")
@click.argument("host", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema plimsoll.explain/1).")
@connecting
def command(control: str, host: str | None, ssh: gather.Ssh, *, as_json: bool) -> int:
    """Say what CONTROL sets and why; with HOST, what that host has, and every file that had a say.

    CONTROL is named as an audit names it, such as kernel/vm.min_free_kbytes. A LAYER lists its controls. HOST may
    also be a group, an alias of ~/.ssh/config, or @local for this machine.
    """
    known = inventory.load(inventory.inventory_path())
    if control in registry.LAYERS:
        return _explain_layer(control, host, known, as_json=as_json)
    record = records.record(control, known)
    hosts = resolve([host], known) if host else []
    found = gather.gather(hosts, ssh, functools.partial(on_host, control))
    if as_json:
        named = {"hosts": {each.name: each.to_json() for each in found}} if found else {}
        click.echo(json.dumps({"schema": EXPLAIN_SCHEMA, "control": record, **named}, indent=1))
    else:
        _show(record, found, Console(highlight=False))
    return max((each.exit_code() for each in found), default=0)


# --- one layer --------------------------------------------------------------------------------------


def _explain_layer(layer: str, host: str | None, known: Inventory, *, as_json: bool) -> int:
    if host:
        raise click.UsageError(
            f"{layer!r} is a layer: name one of its controls (`plimsoll explain {layer}` lists them)"
        )
    found = [records.control_record(control, known) for control in records.of_layer(layer, known)]
    if as_json:
        about = {"layer": layer, "summary": layer_summary(layer), "opt_in": is_opt_in(layer), "controls": found}
        click.echo(json.dumps({"schema": EXPLAIN_SCHEMA, **about}, indent=1))
    else:
        _show_layer(layer, found, Console(highlight=False))
    return 0


def _show_layer(layer: str, found: Sequence[Mapping[str, Any]], console: Console) -> None:
    console.print(Text.assemble((layer, "bold"), f" ({_how(layer)}): {layer_summary(layer)}"))
    for record in found:
        console.print(Text(f"\n{record['id']}", "bold"))
        console.print(_grid([("in the inventory", _values(record["values"])), ("why", Text(record["why"]["reason"]))]))


# --- on a host --------------------------------------------------------------------------------------


def on_host(control: str, answer: gather.Answer) -> OnHost:
    """Return what a host that has answered has for a control; an answer that cannot be judged is a problem."""
    name = answer.host.name
    if answer.state is None:
        return OnHost(name, answer.problem or "it did not say why")
    try:
        with bounded():
            return OnHost(name, "", _found(control, answer.host, answer.state))
    except Exception as error:  # noqa: BLE001 - a host may answer anything, and none of it is an error of ours
        return OnHost(name, cannot_be_judged(error))


def _found(control: str, host: Host, state: State) -> tuple[Found, ...]:
    today = datetime.datetime.now().astimezone().date()
    planned = plan.host_plan(host.policy, state, host.waiver_for, today)
    return tuple(
        Found(judgement, tuple(chain(wanted, state)))
        for wanted, judgement in zip(planned.wanted, planned.judgements, strict=True)
        if _is_meant(control, wanted)
    )


def _is_meant(control: str, wanted: Wanted) -> bool:
    """Say whether a control is the one asked for, or one of the units that the record asked for stands for."""
    return wanted.id == control or wanted.id.startswith(f"{control}:")


# --- showing ----------------------------------------------------------------------------------------


def _show(record: Mapping[str, Any], found: Sequence[OnHost], console: Console) -> None:
    console.print(Text(record["id"], "bold"))
    shown = [(label, _text(key, record)) for key, label in _ROWS.items() if record.get(key)]
    why = [(label, Text(record["why"][key])) for key, label in _WHY_ROWS.items() if key in record["why"]]
    console.print(_grid([*shown, *why]))
    for each in found:
        _show_host(each, console)


def _text(key: str, record: Mapping[str, Any]) -> Text:
    if key == "values":
        return _values(record[key])
    if key == "waivers":
        return Text("\n").join(Text(records.waiver_line(waiver)) for waiver in record[key])
    if key == "layer":
        return Text(f"{record[key]} ({_how(record[key])}): {layer_summary(record[key])}")
    return Text(record[key])


def _how(layer: str) -> str:
    if layer == PROGRAM_LAYER:
        return "always on"
    return "off unless the policy asks for it" if is_opt_in(layer) else "on by default"


def _values(values: Sequence[Mapping[str, Any]]) -> Text:
    return Text("\n").join(Text(line) for line in records.value_lines(values))


def _show_host(on: OnHost, console: Console) -> None:
    console.print()
    name = (printable(on.name), "bold")
    if on.problem:
        console.print(Text.assemble(name, (f": not known: {printable(on.problem)}", "magenta")))
    elif not on.found:
        console.print(Text.assemble(name, ": left alone with this: the policy or the kind of host does not ask for it"))
    for found in on.found:
        _show_found(on.name, found, console)


def _show_found(host: str, found: Found, console: Console) -> None:
    judgement = found.judgement
    title = Text.assemble((printable(host), "bold"), f": {printable(judgement.id)} is ")
    console.print(title.append(judgement.verdict, style(judgement.verdict)))
    place = judgement.decided_by
    rows = {
        "wanted": readable(judgement.wanted),
        "live": readable(judgement.live),
        "after a reboot": readable(judgement.persisted),
        "decided by": printable(_at(place.file, place.line)) if place else "no file",
        "because": printable(judgement.reason),
    }
    console.print(_grid((label, Text(text)) for label, text in rows.items() if text))
    if found.links:
        console.print(_chain(found.links))


def _chain(links: Sequence[Link]) -> Table:
    table = Table(title="files that had a say", title_justify="left", title_style="bold", expand=False)
    for heading in ("role", "file", "value"):
        table.add_column(heading, overflow="fold")
    for link in links[:_MAX_LINKS]:
        role = f"{link.role} by {link.by}" if link.by else link.role
        value = "" if link.value is None else readable(link.value)
        cells = (printable(role), printable(_at(link.file, link.line)), value)
        table.add_row(*(Text(cell, _STYLE_OF_ROLE.get(link.role, "dim")) for cell in cells))
    if len(links) > _MAX_LINKS:
        table.add_row("", f"{len(links) - _MAX_LINKS} more: see --json", "")
    return table


def _at(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def _grid(rows: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL_COLUMNS)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(Text(f"  {label}", "dim"), text)
    return grid
