"""The main thread's round: it looks twice before it signals, follows whom it stopped, and stops for nobody's error."""

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from plimsoll.box.guard.act import Outcome, Ready, Result
from plimsoll.box.guard.loop import Loop, Timeline
from plimsoll.box.guard.model import Action, Kill, Known, Rule, Sample, Settings, Verb, Workload
from plimsoll.box.guard.records import Event, Kind
from plimsoll.box.guard.workloads import Target
from tests.unit.guarding import ARMED, kib, workload

NOTHING_OPEN = Ready(None, {}, Target((), ""))


class Levels:
    """Gives one level after the other, and the last one for ever."""

    basis = "levels of a test"

    def __init__(self, levels_gib: Iterable[float | None]) -> None:
        self._levels = list(levels_gib)

    def sample(self, at_s: float) -> Sample:
        """Return the next one."""
        level = self._levels.pop(0) if len(self._levels) > 1 else self._levels[0]
        return Sample(at_s, None if level is None else kib(level), None, 0.0, "A")


class Others:
    """Everybody whom the loop hands something to; remembers it."""

    def __init__(self, result: Result = Result.SIGNALLED) -> None:
        self.result = result
        self.stopped: list[tuple[str, Verb]] = []
        self.events: list[Event] = []
        self.followed: list[str] = []
        self.reclaims = 0

    def stop(self, workload: Workload, verb: Verb) -> Outcome:
        """Note whom."""
        self.stopped.append((workload.name, verb))
        return Outcome(self.result, "by a test")

    def watch(self, workload: Workload) -> Ready:
        """Open nothing."""
        del workload
        return NOTHING_OPEN

    def put(self, event: Event) -> bool:
        """Note what is told."""
        self.events.append(event)
        return True

    def follow(self, action: Action, victim: Ready, timeline: Timeline) -> None:
        """Note whom."""
        del victim, timeline
        self.followed.append(action.victim.name if action.victim else "")

    def reclaim(self) -> None:
        """Count."""
        self.reclaims += 1


def loop(levels_gib: Iterable[float | None], others: Others, *workloads: Workload, settings: Settings = ARMED) -> Loop:
    """Return a loop that knows these workloads; one sample is taken at once."""
    made = Loop(settings, Levels(levels_gib), others, others, others)
    made.known = Known(workloads)
    return made


def turns(made: Loop, number: int) -> None:
    """Go round so many times, without waiting."""
    for _ in range(number):
        made.turn()


def waits(made: Loop) -> bool:
    """Say whether it waits for a victim to be gone."""
    stopping = made.tick.state.mood.stopping
    return stopping is not None and stopping.released_s is None


def test_below_the_floor_it_kills_and_follows() -> None:
    """One round is enough; the record says what was seen, decided and done, and when."""
    others = Others()
    turns(loop([60, 2.0], others, workload()), 1)
    assert others.stopped == [("vllm", Verb.KILL)]
    assert others.followed == ["vllm"]
    (event,) = others.events
    assert (event.kind, event.details and event.details["outcome"]) == (Kind.SIGNALLED, "signalled")
    assert [what for what, _ in event.timeline] == ["sampled", "decided", "signalled"]


def test_a_second_look_that_is_better_spares() -> None:
    """A single bad reading kills nobody: right before the signal memory is looked at again."""
    others = Others()
    made = loop([60, 2.0, 60, 60], others, workload())
    turns(made, 3)
    assert others.stopped == []
    assert [event.details for event in others.events] == [{"outcome": "not done: a second look was better"}]
    assert made.tick.state.mood.stopping is None


def test_a_second_look_that_sees_nothing_does_not_spare() -> None:
    """Where memory cannot be read a moment later, the first look counts."""
    others = Others()
    turns(loop([60, 2.0, None, 2.0], others, workload()), 1)
    assert others.stopped == [("vllm", Verb.KILL)]


def test_who_cannot_be_signalled_is_passed_over_for_a_while() -> None:
    """The next one is tried in the next round, and the refused one is not tried again at once."""
    others = Others(Result.DENIED)
    turns(loop([60, 2.0], others, workload("old", started_s=1.0), workload("new", started_s=2.0)), 4)
    assert others.stopped == [("new", Verb.KILL), ("old", Verb.KILL)]
    assert others.followed == []


def test_only_the_victim_that_is_gone_ends_the_wait() -> None:
    """While a victim is there nobody else is stopped; word of another one changes nothing."""
    others = Others()
    made = loop([60, 2.0], others, workload("first", started_s=2.0), workload("second"))
    turns(made, 3)
    made.gone("/system.slice/second")
    turns(made, 1)
    assert waits(made)
    made.gone("/system.slice/first")
    turns(made, 1)
    assert not waits(made)
    assert others.stopped == [("first", Verb.KILL)]


def test_an_observing_rule_is_told_of_and_nothing_is_done() -> None:
    """With nothing armed the same sample makes a record and no signal."""
    others = Others()
    turns(loop([60, 2.0], others, workload(), settings=Settings(ARMED.lines, armed=frozenset())), 2)
    assert others.stopped == []
    assert [(event.kind, event.action and event.action.armed) for event in others.events] == [(Kind.DECISION, False)]


def test_the_pool_is_emptied_elsewhere() -> None:
    """In regime C with nobody on the GPU the loop asks for the pool, and goes on."""
    others = Others()

    class Pooled(Levels):
        def sample(self, at_s: float) -> Sample:
            return super().sample(at_s)._replace(regime="C")

    made = Loop(ARMED, Pooled([60, 2.0]), others, others, others)
    turns(made, 3)
    assert others.reclaims == 1


def test_it_says_how_soon_to_look_again() -> None:
    """A round returns the rest of its period: 100 ms on a calm machine."""
    assert 0.05 < loop([60], Others(), workload()).turn() <= 0.1


@pytest.mark.parametrize(("remembered", "stopped"), [(0, []), (1, []), (2, [("vllm", Verb.KILL)])])
def test_whom_another_guard_has_stopped_counts(remembered: int, stopped: list[tuple[str, Verb]]) -> None:
    """A workload that the guard before this one has stopped twice is killed early when it comes back."""
    others = Others()
    made = loop([60, 7.9, 7.8, 7.7, 7.6], others, workload(), settings=replace(ARMED, armed=frozenset({Rule.SLOW})))
    made.remember((Kill("vllm", time.monotonic()),) * remembered)
    turns(made, 4)
    assert others.stopped == stopped
