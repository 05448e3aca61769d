"""A replay says what the guard would have done in a recording, when, and what nobody can know."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import recording
from plimsoll.box.guard.model import Rule, Sample, Verb
from plimsoll.box.guard.recording import GAP_S
from plimsoll.box.guard.replay import GONE_AFTER_S, Decided, Tally, replay, stretch
from plimsoll.box.guard.sampler import Slow
from tests.unit.recording_builders import GIB, LINES, SETTINGS, START_S, at, ramp


def _verbs(found: Iterable[Decided]) -> list[tuple[Rule, Verb]]:
    return [(each.action.rule, each.action.verb) for each in found]


# --- what would have been done ----------------------------------------------------------------------


def test_nothing_happens() -> None:
    """A level that stays above every line, however much it moves, has nothing done about it."""
    noise = random.Random(1)  # noqa: S311  # the same figures every time
    assert not list(replay(SETTINGS, at(*(50 + 5 * noise.random() for _ in range(5000)))))


def test_a_fast_ramp() -> None:
    """A load that takes 17 GiB/s is killed during the ramp, once half a second of it would reach the floor."""
    (found,) = replay(SETTINGS, at(*[60] * 50, *ramp(60, 7, 17), *[7] * 10, *[100] * 50))
    assert (found.action.rule, found.action.verb) == (Rule.RATE, Verb.KILL)
    assert 9 * GIB < (found.sample.available_kib or 0) < 3 * GIB + 0.5 * 17 * GIB


def test_below_the_floor() -> None:
    """Memory at the floor is a kill at once, where the fall there was slow and the slow rule observes."""
    settings = replace(SETTINGS, armed=frozenset({Rule.FLOOR}))
    found = [each for each in replay(settings, at(*ramp(20, 2.9, 0.2), *[2.9] * 20)) if each.action.armed]
    assert _verbs(found) == [(Rule.FLOOR, Verb.KILL)]
    assert (found[0].sample.available_kib or 0) < 3 * GIB + 0.2 * 0.15 * GIB


def test_sigterm_then_sigkill() -> None:
    """Two seconds below the slow line ask the load to go; what is there ten seconds later is killed."""
    term, kill = replay(SETTINGS, at(*[20] * 20, *[7.5] * 200))
    assert _verbs([term, kill]) == [(Rule.SLOW, Verb.TERM), (Rule.SLOW, Verb.KILL)]
    assert term.at_s - START_S == pytest.approx(2 + 2, abs=0.11)
    assert kill.at_s - term.at_s == pytest.approx(10, abs=0.11)


def test_a_load_that_went_by_itself() -> None:
    """A load whose memory came back after SIGTERM is not killed."""
    found = replay(SETTINGS, at(*[7.5] * 60, *[90] * 200))
    assert _verbs(found) == [(Rule.SLOW, Verb.TERM)]


def test_the_dead_are_not_stopped_again() -> None:
    """After a kill the recording does not say what would have been: nobody is there until memory has recovered."""
    low, recovered = [7.5] * 6000, [50] * 100
    found = list(replay(SETTINGS, at(*low, *recovered, *low)))
    assert _verbs(found) == [(Rule.SLOW, Verb.TERM), (Rule.SLOW, Verb.KILL)] * 2
    assert found[2].at_s >= START_S + 610


def test_a_kill_above_the_line_is_not_taken_for_recovery() -> None:
    """A load that was killed in a ramp at 11 GiB is not gone because that is above the slow line."""
    found = list(replay(SETTINGS, at(*[60] * 20, *ramp(60, 8.5, 17), *[7.9] * round(GONE_AFTER_S * 10 - 50))))
    assert _verbs(found) == [(Rule.RATE, Verb.KILL)]


def test_a_rule_that_observes() -> None:
    """A rule that is not armed says once what it would have done, and nothing is taken for dead."""
    found = list(replay(replace(SETTINGS, armed=frozenset()), at(*[20] * 20, *[7.5] * 600)))
    assert _verbs(found) == [(Rule.SLOW, Verb.TERM)]
    assert not found[0].action.armed


def test_a_freeze_with_memory_free() -> None:
    """A stall that lasts stops the load although 46 GiB are free; a healthy start with stalls does not."""
    settings = replace(SETTINGS, armed=frozenset({Rule.STALL}))
    start = at(*[60] * 180, period_s=1.0, full=45.0)
    freeze = at(*[46] * 300, period_s=1.0, full=92.0)
    assert not list(replay(settings, start))
    assert _verbs(replay(settings, freeze)) == [(Rule.STALL, Verb.KILL)]


def test_little_free_and_much_to_reclaim() -> None:
    """With 1.2 GiB free and 8.1 available nothing is done: what is only free is no level."""
    samples = [each._replace(free_kib=1270 << 10, available_kib=8342 << 10) for each in at(*[0] * 600)]
    assert not list(replay(SETTINGS, samples))


def test_the_first_sample_has_no_past() -> None:
    """Whatever the clock says, nothing is taken for having been so before the recording began."""
    found = list(replay(SETTINGS, at(*[7.5] * 15, full=99.0)))
    assert not found


def test_a_gap() -> None:
    """Of a time without samples nothing is known: what is before and after it is not joined."""
    before = at(*[7.5] * 15)
    after = at(*[7.5] * 15, start_s=before[-1].at_s + GAP_S + 1)
    joined = at(*[7.5] * 15, start_s=before[-1].at_s + GAP_S - 1)
    assert not list(replay(SETTINGS, before + after))
    assert list(replay(SETTINGS, before + joined))


def test_samples_without_a_level() -> None:
    """A sample of which the level is not known is no reason for anything."""
    assert not list(replay(SETTINGS, at(*[None] * 100)))


@given(st.lists(st.tuples(st.integers(0, 20 * GIB), st.integers(0, 100)), min_size=2, max_size=60))
def test_its_own_recording(figures: list[tuple[int, int]]) -> None:
    """A recording of what the rules went by has them decide the same again."""
    samples = [Sample(1000.0 + n, level, 5, float(full), "B") for n, (level, full) in enumerate(figures)]
    settings = replace(SETTINGS, stall_s=10.0, armed=frozenset(Rule))
    nothing = Slow(None, None, None, None, None)
    text = "".join(f"{recording.line(START_S + n, sample, nothing)}\n" for n, sample in enumerate(samples))
    again = replay(settings, recording.samples(recording.Reader(text.splitlines())))
    assert [each.action for each in again] == [each.action for each in replay(settings, samples)]


# --- between samples --------------------------------------------------------------------------------


def test_a_line_between_samples() -> None:
    """Samples are joined by a straight line; the share of a stall is that of the interval."""
    samples = [Sample(0.0, 100, 7, 0.0, "A"), Sample(1.0, 0, 9, 50.0, "C")]
    found = list(stretch(samples, 0.25))
    assert [each.at_s for each in found] == [0, 0.25, 0.5, 0.75, 1]
    assert [each.available_kib for each in found] == [100, 75, 50, 25, 0]
    assert [each.full_percent for each in found] == [0, 50, 50, 50, 50]
    assert found[0] is samples[0]
    assert found[-1] is samples[-1]


@pytest.mark.parametrize(
    "samples",
    [
        [Sample(0.0, 5), Sample(GAP_S + 1, 6)],
        [Sample(0.0, 5), Sample(1.0, None), Sample(2.0, 5)],
        [Sample(1.0, 5), Sample(0.5, 6)],
        [Sample(0.0, 5), Sample(0.1, 6), Sample(0.2000001, 6)],
        [],
    ],
)
def test_where_nothing_is_put_between(samples: list[Sample]) -> None:
    """Nothing is made up in a gap, beside an unknown level, where time goes back, or where samples are near enough."""
    assert list(stretch(samples, 0.1)) == samples


def test_a_ramp_seen_once_a_second() -> None:
    """With looks in between, a ramp of two samples is caught above the floor; without, only when it is over."""
    seconds = at(60, 60, 60, 43, 26, 9, 9, 9, period_s=1.0)
    (stretched,) = replay(SETTINGS, stretch(seconds, 0.1))
    (as_recorded,) = replay(SETTINGS, seconds)
    assert stretched.at_s < as_recorded.at_s
    assert stretched.action.rule is Rule.RATE


# --- counting ---------------------------------------------------------------------------------------


def test_hovering_at_the_line() -> None:
    """A load at 8.0 to 8.1 GiB crosses the line 116 times, which is 9 episodes, and is stopped once in each."""
    levels: list[float] = []
    for crossings in (13, 13, 13, 13, 13, 13, 13, 13, 12):
        levels += [20] * 50
        for _ in range(crossings):
            levels += [8.05] * 7 + [7.98] * 3
    levels += [20] * 50
    tally = Tally(LINES)
    found = list(replay(SETTINGS, tally.watch(at(*levels))))
    assert (tally.crossings, tally.episodes) == (116, 9)
    assert [verb for _, verb in _verbs(found)].count(Verb.TERM) == 9


def test_a_dip_of_a_second() -> None:
    """A dip of one second adds a second and does nothing."""
    assert not list(replay(SETTINGS, at(*[10] * 50, *[7.9] * 10, *[10] * 50, *[7.9] * 10, *[10] * 50)))


def test_what_a_tally_says() -> None:
    """How long it is, what is unknown, the gaps, and the lowest level with its time."""
    tally = Tally(LINES)
    samples = [*at(50, None, 8.5, 7, period_s=1.0), *at(50, start_s=START_S + 100), *at(50, start_s=START_S + 500)]
    assert list(tally.watch(samples)) == samples
    assert (tally.samples, tally.unknown, tally.gaps) == (6, 1, 2)
    assert (tally.first_s, tally.last_s, tally.longest_gap_s) == (START_S, START_S + 500, 400)
    assert tally.lowest == samples[3]
    assert (tally.crossings, tally.episodes) == (1, 1)


def test_three_days_are_many_samples() -> None:
    """Three days of seconds, looked at every tenth of one, are 2.592 million looks, and nothing of a calm box."""
    hour = itertools.chain.from_iterable(
        at(*[60, 61] * 1800, period_s=1.0, start_s=START_S + n * 3600) for n in range(2)
    )
    looks = sum(1 for _ in stretch(hour, 0.1))
    assert looks == 2 * 36000 - 9
