"""A rollout as it goes: one screen for a person, whatever the number of hosts, or a line for each event."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from plimsoll.fleet.rollout.model import ENDED, GOOD, Event, HostEvent, Phase
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from plimsoll.fleet.rollout.progress import HostProgress, Progress

SIGNS = {
    Phase.WAITING: ("·", "dim"),
    Phase.LOCKING: ("…", "cyan"),
    Phase.APPLYING: ("▶", "bold cyan"),
    Phase.VERIFYING: ("◆", "cyan"),
    Phase.SOAKING: ("◌", "blue"),
    Phase.REVERTING: ("◀", "bold yellow"),
    Phase.UNCHANGED: ("=", "green"),
    Phase.DONE: ("✓", "green"),
    Phase.FAILED: ("✗", "bold red"),
    Phase.SKIPPED: ("~", "yellow"),
    Phase.LEFT_OUT: ("?", "magenta"),
    Phase.REVERTED: ("↺", "yellow"),
}
"""A shape for every phase, for those who cannot tell the colours apart."""
CALM = frozenset({*GOOD, Phase.WAITING})
"""Phases of which a total says enough."""
LONGEST_NAME = 24
LONGEST_DETAIL = 300
FRAMES_A_SECOND = 2
_LINES_BESIDE_GRID = 6
"""What the totals and the hosts at work need at least."""


def frame(progress: Progress, now_s: float, columns: int, rows: int) -> list[Text]:
    """Return what a screen of that size shows: totals, a sign for each host, and a line for each that matters now."""
    head = [_totals(progress, now_s), *_grid(progress, columns, rows - _LINES_BESIDE_GRID)]
    room = max(1, rows - len(head) - 1)
    lines = _details(progress, now_s)
    more = [Text(f"… and {len(lines) - room + 1} more", "dim")] if len(lines) > room else []
    return [*head, *(lines[: room - 1] if more else lines), *more]


def _totals(progress: Progress, now_s: float) -> Text:
    counts = progress.counts
    said = [f"{number} {phase.replace('_', ' ')}" for phase in Phase if (number := counts[phase])]
    took_s = now_s - progress.begin.at_s
    batch = f"batch {progress.batch_number} of {len(progress.begin.batches)}"
    return Text(f"{batch}, {duration(took_s)}: {', '.join(said)}", "bold")


def _grid(progress: Progress, columns: int, rows: int) -> list[Text]:
    """Return a cell for each host; where those are too many, as 500 are, for each that is not calm, and then cut."""
    names = list(progress.hosts)
    width = max(len(_short(name)) for name in names) + 3
    in_a_row = max(1, columns // width)
    if len(names) > in_a_row * max(0, rows):
        names = [name for name in names if progress.hosts[name].phase not in CALM]
    cells = [_cell(name, progress.hosts[name], width) for name in names[: in_a_row * max(0, rows)]]
    return [Text("").join(cells[i : i + in_a_row]) for i in range(0, len(cells), in_a_row)]


def _cell(name: str, host: HostProgress, width: int) -> Text:
    sign, style = SIGNS[host.phase]
    return Text(f"{sign} {_short(name)}".ljust(width), style)


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def _details(progress: Progress, now_s: float) -> list[Text]:
    """Return a line for every host that is at work or has not ended well, the latter first."""
    shown = [(name, host) for name, host in progress.hosts.items() if host.phase not in CALM]
    shown.sort(key=lambda item: item[1].phase not in ENDED)
    return [_detail(name, host, now_s) for name, host in shown]


def _detail(name: str, host: HostProgress, now_s: float) -> Text:
    _sign, style = SIGNS[host.phase]
    age = "" if host.phase in ENDED else f" {duration(now_s - host.since_s)}"
    what = f"{host.phase.replace('_', ' ')}{age}"
    line = Text.assemble((_short(name), "bold"), " ", (what, style), "  ", printable(host.detail, LONGEST_DETAIL))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def duration(seconds: float) -> str:
    """Return a time as a person says it: `34 s`, `12 min`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 100:  # noqa: PLR2004  # up to here seconds are what one counts
        return f"{whole} s"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@contextmanager
def watching(console: Console, standing: Progress) -> Iterator[Callable[[Event, Progress], None]]:
    """Show a rollout on a console while the block runs; what is yielded is told of every event."""
    if not console.is_terminal:
        yield lambda event, _progress: _say(console, event)
        return
    latest = standing

    def told(_event: Event, progress: Progress) -> None:
        nonlocal latest
        latest = progress

    def now() -> Group:
        return Group(*frame(latest, time.time(), console.width, console.height))

    with Live(get_renderable=now, console=console, refresh_per_second=FRAMES_A_SECOND):
        yield told


def _say(console: Console, event: Event) -> None:
    when = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    if isinstance(event, HostEvent):
        detail = f": {printable(event.detail)}" if event.detail else ""
        what = f"{printable(event.host)} {event.phase.replace('_', ' ')}{detail}"
    else:
        what = f"{event.event}{': ' + printable(event.detail) if event.detail else ''}"
    console.print(Text(f"{when} {what}"), soft_wrap=True)
