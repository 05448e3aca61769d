"""What differs between two reports, on a terminal: a table a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from plimsoll.fleet.text import printable, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from plimsoll.fleet.compare import Difference

_LONGEST = 300


def show(differences: Sequence[Difference], console: Console, names: tuple[str, str] = ("before", "now")) -> None:
    """Show what differs, a table a host; `names` are what the two sides are called."""
    if not differences:
        console.print(Text(f"no difference between {printable(names[0])} and {printable(names[1])}"))
    for host in dict.fromkeys(difference.host for difference in differences):
        _show_host(host, [d for d in differences if d.host == host], console, names)


def _show_host(host: str, found: Sequence[Difference], console: Console, names: tuple[str, str]) -> None:
    said = [d for d in found if d.what in ("reached", "scope")]
    for difference in said:
        style = "magenta" if difference.what == "reached" else "dim"
        console.print(Text(f"{printable(host)}: {printable(difference.note, _LONGEST)}", style))
    rows = [d for d in found if d not in said]
    if rows:
        console.print(_table(host, rows, names))


def _table(host: str, rows: Sequence[Difference], names: tuple[str, str]) -> Table:
    title = Text(f"{printable(host)}: what differs", "bold")
    table = Table(title=title, title_justify="left", expand=False)
    for heading in ("what", *names):
        table.add_column(Text(printable(heading)), overflow="fold")
    for what, name in dict.fromkeys((d.what, d.id) for d in rows):
        group = [d for d in rows if (d.what, d.id) == (what, name)]
        _add(table, group)
    return table


def _add(table: Table, group: Sequence[Difference]) -> None:
    """Add the fields of one thing; those that have changed alike share a line."""
    first, alike = group[0], dict[tuple[str | None, str | None], list[str]]()
    for difference in group:
        alike.setdefault((difference.before, difference.after), []).append(difference.field)
    label = first.id if first.what == "control" else f"{first.what} {first.id}"
    for number, ((before, after), fields) in enumerate(alike.items()):
        named = f"  {', '.join(fields)}" if first.field not in ("", "control") else ""
        what = "\n".join(part for part in ("" if number else printable(label), named) if part)
        table.add_row(Text(what), Text(readable(before, _LONGEST)), _after(after, "" if number else first.note))
    table.add_section()


def _after(after: str | None, note: str) -> Text:
    found = Text(readable(after, _LONGEST))
    return found.append(f"\n{printable(note, _LONGEST)}", "dim") if note else found
