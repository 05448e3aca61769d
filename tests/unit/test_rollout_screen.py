"""What a person sees of a rollout: all of it on one screen, and nothing that a host could do to the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from plimsoll.fleet.rollout import progress, screen
from plimsoll.fleet.rollout.model import Begin, Event, HostEvent, Phase, Planned, RunEvent, Settings, Step
from plimsoll.fleet.rollout.progress import Progress
from tests.unit.report_builders import HOSTILE

COLUMNS, ROWS = 80, 24


def standing(phases: list[Phase], prefix: str = "gx10-") -> Progress:
    """Return a rollout whose hosts are in these phases, for as many seconds as their number says."""
    names = [f"{prefix}{number}" for number in range(len(phases))]
    hosts = tuple(Planned(name, (Step("kernel", "x"),)) for name in names)
    begin = Begin("id", 0.0, "anna", "hosts.yml", "b", Settings(), hosts, tuple(names[:1]), (tuple(names),))
    events: list[Event] = [
        HostEvent(float(number), name, phase, f"why {number}")
        for number, (name, phase) in enumerate(zip(names, phases, strict=True))
    ]
    return progress.of(begin, events)


@given(st.lists(st.sampled_from(list(Phase)), min_size=1, max_size=120), st.integers(20, 200), st.integers(10, 60))
def test_it_fits(phases: list[Phase], columns: int, rows: int) -> None:
    """Whatever the number of hosts and the size of the screen, there are no more lines than rows."""
    found = screen.frame(standing(phases), 200.0, columns, rows)
    assert len(found) <= rows
    assert all("\n" not in line.plain for line in found)


@pytest.mark.parametrize("number", [50, 500])
def test_trouble_is_always_seen(number: int) -> None:
    """One host in trouble is on the screen with its reason, among however many others."""
    phases = [Phase.DONE] * (number - 1) + [Phase.FAILED]
    text = "\n".join(line.plain for line in screen.frame(standing(phases), 200.0, COLUMNS, ROWS))
    assert f"gx10-{number - 1} failed  why {number - 1}" in text
    assert f"{number - 1} done, 1 failed" in text


def test_fifty_hosts() -> None:
    """Each of fifty hosts has its own cell on a terminal of the smallest usual size, beside those at work."""
    phases = [Phase.DONE] * 20 + [Phase.APPLYING] * 8 + [Phase.WAITING] * 22
    text = "\n".join(line.plain for line in screen.frame(standing(phases), 200.0, COLUMNS, ROWS))
    assert all(f" gx10-{number} " in f"{text} " for number in range(50))
    assert "gx10-20 applying 3 min  why 20" in text


def test_more_than_there_is_room_for() -> None:
    """What is left out is counted."""
    lines = screen.frame(standing([Phase.FAILED] * 60), 200.0, COLUMNS, ROWS)
    listed = sum("failed  why" in line.plain for line in lines)
    assert lines[-1].plain == f"… and {60 - listed} more"


@pytest.mark.parametrize(
    ("seconds", "said"), [(-1, "0 s"), (34.4, "34 s"), (99, "99 s"), (120, "2 min"), (7500, "2 h 5 min")]
)
def test_times(seconds: float, said: str) -> None:
    """A time is told as a person says it."""
    assert screen.duration(seconds) == said


def shown(events: list[Event], *, terminal: bool) -> str:
    """Return what a console is given while these events happen."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=COLUMNS, height=ROWS, highlight=False)
    now = standing([Phase.WAITING], HOSTILE)
    with screen.watching(console, now) as told:
        for event in events:
            now = progress.after(now, event)
            told(event, now)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_without_a_terminal() -> None:
    """Every event is one line, in which what a host says is harmless."""
    events: list[Event] = [
        RunEvent(0.0, "batch", "a b"), HostEvent(1.0, f"{HOSTILE}0", Phase.FAILED, HOSTILE), RunEvent(2.0, "end"),
    ]  # fmt: skip
    lines = shown(events, terminal=False).splitlines()
    assert len(lines) == len(events)
    assert all(line.isprintable() for line in lines)
    assert lines[0].endswith(" batch: a b")


def test_on_a_terminal() -> None:
    """The last state of things stays on the screen, and what a host says moves no cursor."""
    found = shown([HostEvent(1.0, f"{HOSTILE}0", Phase.FAILED, HOSTILE)], terminal=True)
    assert "1 failed" in found
    assert "\x1b[2J" not in found
    assert "\x1b]0;" not in found
