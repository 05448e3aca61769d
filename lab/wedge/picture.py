"""The picture: a row for each defence; memory, pressure and logins over time. SVG from a template; PNG from that."""

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from lab.errors import HostError
from lab.wedge.probe import LIMIT_S
from lab.wedge.recording import Sample, full_percent
from lab.wedge.results import Run

TEMPLATES = Path(__file__).parent / "templates"
WIDTH, HEIGHT = 300, 110
"""Of one panel, in the picture's units."""
LEFT, TOP, GAP, ROW_GAP = 130, 70, 60, 34
BEFORE_S, AFTER_S = -5.0, 150.0
"""What of the time is shown: the last logins are waited for until 150 s."""
THIN = 5
"""Of ten samples a second two are drawn."""
CONVERTER = "rsvg-convert"


class Line(NamedTuple):
    """One curve: its class in the style sheet, and the points of its path."""

    kind: str
    points: str


class Dot(NamedTuple):
    """One login: where, and whether it came back."""

    x: float
    y: float
    ok: bool


class Panel(NamedTuple):
    """One panel: its place, its curves and dots, and the texts at its upper and lower end."""

    x: float
    y: float
    top: str
    lines: list[Line]
    dots: list[Dot]


class Band(NamedTuple):
    """One row of the picture."""

    y: float
    name: str
    verdict: str
    survived: bool
    panels: list[Panel]


def x_of(at_s: float) -> float:
    """A time's place in a panel."""
    return round((at_s - BEFORE_S) / (AFTER_S - BEFORE_S) * WIDTH, 1)


def y_of(share: float) -> float:
    """A share's place in a panel: 0 is at the bottom, 1 at the top."""
    return round(HEIGHT * (1 - min(1.0, max(0.0, share))), 1)


def path(points: Iterable[tuple[float, float]]) -> str:
    """SVG's list of points, of (seconds, share)."""
    shown = ((x_of(at_s), y_of(share)) for at_s, share in points if BEFORE_S <= at_s <= AFTER_S)
    return " ".join(f"{x},{y}" for x, y in shown)


def memory_lines(run: Run, recorded: Sequence[Sample]) -> list[Line]:
    """What is free, what the kernel calls available, and what was asked for, as shares of all memory."""
    total = run["machine"]["memory_kib"]
    thin = recorded[::THIN]
    free = [(s.at_s, s.mem_free_kib / total) for s in thin if s.mem_free_kib is not None]
    available = [(s.at_s, s.mem_available_kib / total) for s in thin if s.mem_available_kib is not None]
    asked = [(at_s, percent / 100) for at_s, percent in run["asked"]]
    asked.append((AFTER_S, asked[-1][1]))
    return [Line("asked", path(asked)), Line("available", path(available)), Line("free", path(free))]


def login_dots(run: Run) -> list[Dot]:
    """Each login, at its beginning and as high as it took long."""
    shown = [login for login in run["logins"] if login["at_s"] <= AFTER_S]
    return [Dot(x_of(login["at_s"]), y_of(login["took_s"] / LIMIT_S), login["ok"]) for login in shown]


def band(run: Run, number: int) -> Band:
    """The row of one run."""
    recorded = [Sample(*values) for values in run["samples"]]
    y = TOP + number * (HEIGHT + ROW_GAP)
    pressure = [(at_s, percent / 100) for at_s, percent in full_percent(recorded)]
    recovery = run["recovery_s"]
    back = "never as before" if recovery is None else f"as before after {recovery:.0f} s"
    contents: list[tuple[str, list[Line], list[Dot]]] = [
        ("100 %", memory_lines(run, recorded), []),
        ("100 %", [Line("pressure", path(pressure))], []),
        (f"{LIMIT_S:.0f} s", [], login_dots(run)),
    ]
    panels = [Panel(LEFT + n * (WIDTH + GAP), y, *content) for n, content in enumerate(contents)]
    return Band(y, run["defence"], "reachable" if run["survived"] else f"frozen; {back}", run["survived"], panels)


def svg(runs: Sequence[Run], title: str) -> str:
    """The picture of these runs, in their order."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    marks = [(x_of(at_s), f"{at_s} s") for at_s in range(0, 151, 30)]
    return environment.get_template("wedge.svg.j2").render(
        title=title,
        bands=[band(run, number) for number, run in enumerate(runs)],
        width=LEFT + 3 * (WIDTH + GAP),
        height=TOP + len(runs) * (HEIGHT + ROW_GAP) + 10,
        panel={"width": WIDTH, "height": HEIGHT},
        headings=list(zip(("memory", "all tasks stalled for memory", "fresh logins"), heading_places(), strict=True)),
        marks=marks,
    )


def heading_places() -> list[float]:
    """Where the columns begin."""
    return [LEFT + n * (WIDTH + GAP) for n in range(3)]


def write_png(source: Path) -> Path:
    """Make a PNG beside an SVG. Raises HostError where there is no tool for it."""
    if not shutil.which(CONVERTER):
        raise HostError(f"no PNG of {source.name}: {CONVERTER} is not installed: apt-get install librsvg2-bin")
    target = source.with_suffix(".png")
    subprocess.run([CONVERTER, "--zoom", "1.5", "--output", str(target), str(source)], check=True)
    return target
