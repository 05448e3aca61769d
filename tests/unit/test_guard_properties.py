"""What holds of the guard's decisions whatever memory does."""

import time
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.box.guard.decide import released, step
from plimsoll.box.guard.model import CALM, Action, Known, Rule, Sample, Settings, State, Verb
from tests.unit.guarding import ARMED, LINES, kib, run, workload

FIRST_DAY = replace(ARMED, armed=frozenset({Rule.FLOOR}))
MANY = Known((workload("first", started_s=1.0), workload("second", started_s=2.0), workload("third", started_s=3.0)))
LEVELS = st.lists(st.integers(0, kib(60)), min_size=2, max_size=120)
WALKS = st.tuples(st.integers(0, kib(40)), st.lists(st.integers(-kib(2), kib(2)), min_size=2, max_size=300)).map(
    lambda walk: accumulated(*walk)
)


def accumulated(level: int, steps: list[int]) -> list[int]:
    """Return a random walk between nothing and 60 GiB."""
    levels = [level]
    for each in steps:
        levels.append(min(max(levels[-1] + each, 0), kib(60)))
    return levels


def samples_of(levels: list[int], period_s: float = 0.1, full: float = 0.0) -> list[Sample]:
    """Return samples of these levels at an even pace."""
    return [Sample(1 + index * period_s, level, None, full, "A") for index, level in enumerate(levels)]


def killed(actions: list[tuple[float, Action]]) -> list[tuple[float, Action]]:
    """Return those that stop somebody."""
    return [(at_s, action) for at_s, action in actions if action.armed and action.verb in (Verb.TERM, Verb.KILL)]


@given(st.one_of(LEVELS, WALKS))
def test_nobody_is_stopped_above_the_lines_while_memory_is_not_falling(levels: list[int]) -> None:
    """Every stop is below a line that is not left yet, or meets a fall that was measured."""
    samples = samples_of(levels)
    state = State()
    for sample in samples:
        before = state.available_kib
        state, action, _ = step(ARMED, state, sample, MANY)
        if action is None or action.verb not in (Verb.TERM, Verb.KILL) or sample.available_kib is None:
            continue
        recent = [state.fall_kib_per_s, state.fall_before, state.fall_before_that]
        below = sample.available_kib <= LINES.slow_leave_kib
        assert below or (before is not None and max(recent) > 0)


@given(st.one_of(LEVELS, WALKS), st.sampled_from([0.02, 0.1, 0.5]))
def test_on_the_first_day_nobody_is_stopped_but_near_the_floor(levels: list[int], period_s: float) -> None:
    """With the floor alone in force every stop is below it, or below twice that in a fall of three intervals."""
    samples = samples_of(levels, period_s)
    state = State()
    for sample in samples:
        state, action, _ = step(FIRST_DAY, state, sample, MANY)
        if action is None or not action.armed:
            continue
        available = sample.available_kib or 0
        falls = min(state.fall_kib_per_s, state.fall_before, state.fall_before_that) > 0
        assert available < LINES.floor_kib or (available < 2 * LINES.floor_kib and falls)


@given(WALKS, st.integers(0, kib(20)), st.sampled_from([ARMED, FIRST_DAY]))
def test_more_headroom_never_makes_a_stop_earlier(levels: list[int], more: int, rules: Settings) -> None:
    """The same course of memory with more of it left is stopped at the same time, later, or never."""
    lean = killed(run(samples_of(levels), MANY, rules)[0])
    ample = killed(run(samples_of([level + more for level in levels]), MANY, rules)[0])
    if ample:
        assert lean
        assert lean[0][0] <= ample[0][0]


@given(st.one_of(LEVELS, WALKS), st.integers(0, 400))
def test_never_two_victims_before_recovery_or_timeout(levels: list[int], released_after: int) -> None:
    """Another victim comes only after the first one was gone, or 20 s after its kill and below the floor."""
    state, stopped, gone_s = State(), [], None
    for index, sample in enumerate(samples_of(levels)):
        if index == released_after and state.mood.stopping is not None:
            state, gone_s = released(state, sample.at_s), sample.at_s
        state, action, _ = step(ARMED, state, sample, MANY)
        if action is not None and action.victim is not None:
            stopped.append((sample, action))
    for (before, first), (after, second) in pairwise(stopped):
        assert first.victim is not None
        assert second.victim is not None
        if first.victim.key == second.victim.key:
            continue
        waited = after.at_s - before.at_s >= ARMED.next_victim_after_s and (after.available_kib or 0) < LINES.floor_kib
        assert waited or (gone_s is not None and before.at_s <= gone_s <= after.at_s)


@given(st.one_of(LEVELS, WALKS))
def test_the_same_course_gives_the_same_decisions(levels: list[int]) -> None:
    """Stepped again, also from a state in the middle, the recording gives what was decided."""
    samples = samples_of(levels)
    whole, end = run(samples, MANY)
    half = len(samples) // 2
    first, middle = run(samples[:half], MANY)
    second, same_end = run(samples[half:], MANY, state=middle)
    assert first + second == whole
    assert end == same_end


@settings(max_examples=20)
@given(WALKS)
def test_a_calm_machine_is_remembered_as_calm(levels: list[int]) -> None:
    """After ten minutes with plenty left nothing of what was before counts any more."""
    _, state = run(samples_of(levels), MANY)
    state = released(state, state.at_s)
    later = [Sample(state.at_s + 1 + i, kib(60), None, 0.0, "A") for i in range(700)]
    assert run(later, MANY, state=state)[1].mood is CALM


@settings(max_examples=20)
@given(st.lists(st.one_of(st.none(), st.integers(0, kib(60))), min_size=2, max_size=60))
def test_no_order_of_unknown_levels_breaks_it(levels: list[int | None]) -> None:
    """Levels that come and go are never taken for zero: a kill needs a level that is known and low, or falling."""
    state = State()
    for index, level in enumerate(levels):
        state, action, _ = step(ARMED, state, Sample(1 + index * 0.1, level), MANY)
        assert level is not None or action is None


def test_hovering_at_the_line_makes_episodes_out_of_crossings() -> None:
    """116 crossings of 8 GiB by a workload that sits at 8.0 to 8.1, with nine stays above 9, are nine episodes."""
    observing = replace(ARMED, armed=frozenset({Rule.FLOOR}))
    levels = [kib(20)] * 5
    crossings = 0
    for number in (13, 13, 13, 13, 13, 13, 13, 13, 12):
        levels += ([kib(7.98)] * 4 + [kib(8.08)] * 2) * number + [kib(9.5)] * 3
        crossings += number
    told = [action for _, action in run(samples_of(levels), MANY, observing)[0]]
    assert crossings == 116
    assert [(action.rule, action.verb, action.armed) for action in told] == [(Rule.SLOW, Verb.TERM, False)] * 9


def test_three_days_are_replayed_in_seconds() -> None:
    """A step on a calm machine costs so little that 2.6 million of them take under 10 s; a tenth of them is timed."""
    samples = [Sample(1 + index * 0.1, kib(40) - index % 7 * 1000, None, 0.0, "A") for index in range(259_200)]
    state = State()
    started_s = time.process_time()
    for sample in samples:
        state, _, _ = step(ARMED, state, sample, MANY)
    assert time.process_time() - started_s < 1.0
