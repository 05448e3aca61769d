"""What the guard does about what it sees: each rule, whom it spares, and what comes after a kill."""

from dataclasses import replace

import pytest

from plimsoll.box.guard.decide import failed, released, step
from plimsoll.box.guard.model import CALM, Action, Known, Rule, Sample, State, Verb
from tests.unit.guarding import ARMED, LINES, kib, ramp, reservation, run, series, workload

NOBODY = Known()
TWO = Known((workload("first", started_s=1.0), workload("second", started_s=2.0)))


def verbs(actions: list[tuple[float, Action]]) -> list[str]:
    """Return what was done, in order."""
    return [f"{action.rule}:{action.verb}" for _, action in actions]


# --- rate and floor ---------------------------------------------------------------------------------


def test_a_fast_fall_is_stopped_before_the_floor() -> None:
    """A ramp of 17 GiB/s is stopped at the half second's worth of it above the floor, 11.5 GiB."""
    actions, _ = run(series(ramp(60, 17, 0)))
    at_s, first = actions[0]
    level = 60 - 17 * (at_s - 1)
    assert (first.rule, first.verb) == (Rule.RATE, Verb.KILL)
    assert 9.5 < level < 11.6


def test_a_fall_that_ends_in_time_is_left_alone() -> None:
    """A load that takes 17 GiB/s and ends with 20 GiB left meets no rule."""
    assert run(series(ramp(60, 17, 20)))[0] == []


def test_one_bad_sample_kills_nobody_by_rate() -> None:
    """A single absurd low reading makes two intervals that cancel out; a level above the floor alone is no reason."""
    levels = [60.0, 60.0, 10.0, 60.0, 60.0, 60.0]
    assert run(series(levels))[0] == []


def test_the_real_time_between_samples_counts() -> None:
    """The same drops over ten times the time are a slow fall, which the rate rule leaves alone."""
    fast, _ = run(series([30, 24, 18, 12, 12, 12], period_s=0.3))
    slow, _ = run(series([30, 24, 18, 12, 12, 12], period_s=3.0))
    assert verbs(fast) == ["rate:kill"]
    assert slow == []


def test_below_the_floor_is_killed_at_once() -> None:
    """The first sample below 3 GiB is enough, even without a fall."""
    actions, _ = run(series([2.9]))
    assert verbs(actions) == ["floor:kill"]


FIRST_DAY = replace(ARMED, armed=frozenset({Rule.FLOOR}))


def test_a_plunge_is_stopped_when_the_floor_is_near() -> None:
    """With the floor alone in force, one that falls at 17 GiB/s is killed below 5.55 GiB: 0.15 s before the floor."""
    actions, _ = run(series(ramp(60, 17, 0, 0.02), 0.02), settings=FIRST_DAY)
    at_s, first = next((at_s, action) for at_s, action in actions if action.armed)
    assert (first.rule, first.verb) == (Rule.FLOOR, Verb.KILL)
    assert "in 0.15 s below the floor" in first.reason
    assert 5.2 < 60 - 17 * (at_s - 1) < 5.56


@pytest.mark.parametrize(("gib_per_s", "ends_gib"), [(41, 6.05), (17, 5.6), (6, 4.0), (1, 3.2)])
def test_a_load_that_ends_above_the_floor_is_spared_by_it(gib_per_s: float, ends_gib: float) -> None:
    """On the first day a load that nobody announced may end well below the slow line, however fast it came."""
    levels = [*ramp(60, gib_per_s, ends_gib, 0.02), *[ends_gib] * 500]
    assert [action for _, action in run(series(levels, 0.02), settings=FIRST_DAY)[0] if action.armed] == []


def test_one_that_sits_near_the_floor_is_spared_in_a_dip() -> None:
    """Half a GiB that comes and goes, however fast, is no fall."""
    assert [each for _, each in run(series([4.0] * 50 + [3.5, 4.0] * 20), settings=FIRST_DAY)[0] if each.armed] == []
    assert [each for _, each in run(series([4.0] * 50 + [3.7, 3.4] * 20), settings=FIRST_DAY)[0] if each.armed] == []


def test_a_plunge_takes_nobody_who_does_not_hold_the_gpu() -> None:
    """A large container is taken below the floor only: what it has may still come back by itself."""
    known = Known((workload(holds_gpu=False, engine=None, attributed_kib=None, resident_kib=kib(50)),))
    plunge = series(ramp(60, 17, 3.1, 0.02), 0.02)
    actions, state = run(plunge, known, FIRST_DAY)
    assert [action for _, action in actions if action.armed] == []
    low = Sample(state.at_s + 0.1, kib(2.5), None, 0.0, "A")
    assert verbs(run([low], known, FIRST_DAY, state)[0]) == ["floor:kill"]


def test_a_plunge_takes_no_second_victim() -> None:
    """While the first one is not gone, another is taken below the floor only, and after its time."""
    known = Known((workload("one"), workload("two", started_s=1.0)))
    levels = [*ramp(60, 17, 4.0, 0.02), *[4.0] * 1300, *ramp(4.0, 6, 3.05, 0.02)]
    actions, _ = run(series(levels, 0.02), known, FIRST_DAY)
    assert verbs([each for each in actions if each[1].armed]) == ["floor:kill"]


def test_looks_more_often_when_the_floor_is_near_in_time() -> None:
    """Below two seconds to the floor the next look is after 20 ms, else after 100."""
    state, _, calm = step(ARMED, State(), series([60])[0], NOBODY)
    _, _, near = step(ARMED, state, Sample(1.1, kib(57)), NOBODY)
    assert (calm, near) == (100, 20)


# --- the slow line ----------------------------------------------------------------------------------


def test_a_dip_of_a_second_does_nothing() -> None:
    """A second below 8 GiB adds a second to an episode, and the rule asks for two."""
    assert run(series([12] * 5 + [7.5] * 10 + [12] * 50))[0] == []


def test_two_seconds_below_the_line_ask_it_to_go_and_ten_more_kill_it() -> None:
    """SIGTERM after 2 s below 8 GiB, SIGKILL 10 s later for one that is still there."""
    actions, _ = run(series([7.5] * 150))
    (asked_s, asked), (killed_s, killed) = actions
    assert (asked.verb, killed.verb) == (Verb.TERM, Verb.KILL)
    assert 3.0 <= asked_s < 3.3
    assert 10.0 <= killed_s - asked_s < 10.2


def test_an_episode_ends_only_above_nine() -> None:
    """Time below 8 GiB adds up while memory hovers around the line, and starts anew once it was above 9."""
    hovering = ([7.9] * 8 + [8.1] * 4) * 4
    with_pause = ([7.9] * 8 + [9.1] * 4) * 4
    assert verbs(run(series(hovering))[0]) == ["slow:term"]
    assert run(series(with_pause))[0] == []


def test_who_went_by_itself_is_not_killed() -> None:
    """One that exited after SIGTERM, with its memory back, gets no SIGKILL."""
    actions, state = run(series([7.5] * 40))
    assert verbs(actions) == ["slow:term"]
    later, end = run([Sample(5.2 + i / 10, kib(40)) for i in range(200)], state=released(state, 5.1))
    assert later == []
    assert end.mood.stopping is None


def test_the_slow_rule_can_ask_for_a_stall() -> None:
    """With a stall demanded, time below the line counts only while everybody waits for memory."""
    settings = replace(ARMED, slow_needs_full_percent=5.0)
    assert run(series([7.5] * 100, full=1.0), settings=settings)[0] == []
    assert verbs(run(series([7.5] * 40, full=6.0), settings=settings)[0]) == ["slow:term"]


def test_a_fast_fall_kills_at_once_who_was_asked_to_go() -> None:
    """The floor does not wait for the ten seconds of somebody who was asked."""
    actions, _ = run(series([7.5] * 40 + [2.5]))
    assert verbs(actions) == ["slow:term", "floor:kill"]
    assert actions[0][1].victim == actions[1][1].victim


# --- reservations -----------------------------------------------------------------------------------


def test_an_announced_load_passes() -> None:
    """A load that said it takes 54 GiB of 60 and stays at 6 does so at 17 GiB/s, unharmed by rate and slow rule."""
    known = Known((workload(),), (reservation(54, 60, 5.5),))
    assert run(series(ramp(60, 17, 6) + [6.0] * 600), known)[0] == []


@pytest.mark.parametrize("ends_gib", [3.6, 4.5, 6.0])
def test_an_announced_load_passes_to_where_it_said(ends_gib: float) -> None:
    """The little more that a load may take is not held against it while it takes what it said."""
    known = Known((workload(),), (reservation(60 - ends_gib, 60, 3.5),))
    assert run(series([*ramp(60, 17, ends_gib, 0.02), *[ends_gib] * 500], 0.02), known)[0] == []


def test_beyond_the_announcement_the_rules_apply() -> None:
    """A load that takes more than it announced is stopped as any other."""
    known = Known((workload(),), (reservation(40, 60, 5.5),))
    actions, _ = run(series(ramp(60, 17, 0)), known)
    assert verbs(actions)[0] == "rate:kill"


def test_after_its_time_the_rules_apply() -> None:
    """An announcement that has run out holds nobody's hand."""
    known = Known((workload(),), (reservation(54, 60, 5.5, until_s=1.5),))
    assert verbs(run(series(ramp(60, 17, 6)), known)[0])[0] == "rate:kill"


def test_the_floor_holds_always() -> None:
    """No announcement allows less than the floor."""
    known = Known((workload(),), (reservation(60, 60, 3.5),))
    assert verbs(run(series([2.9]), known)[0]) == ["floor:kill"]


def test_its_own_line_holds_for_it_alone() -> None:
    """Below 8 GiB the one that announced a line of 5.5 GiB is spared, and the other is asked to go."""
    known = Known((workload("other", started_s=0.0), workload(started_s=9.0)), (reservation(54, 60, 5.5),))
    actions, _ = run(series([7.0] * 40), known)
    assert [(action.verb, action.victim.name) for _, action in actions if action.victim] == [(Verb.TERM, "other")]


# --- the stall --------------------------------------------------------------------------------------


def test_a_long_stall_with_memory_free_stops_the_engine() -> None:
    """92 % for 240 s with 46 GiB free is a freeze; one low sample does not start the count anew."""
    stalled = series([46] * 200, period_s=1.0, full=92.0)
    low = [Sample(201.0, kib(46), None, 0.0, "A")]
    rest = [Sample(202.0 + i, kib(46), None, 92.0, "A") for i in range(60)]
    actions, _ = run([*stalled, *low, *rest])
    (at_s, action), *_ = actions
    assert (action.rule, action.verb) == (Rule.STALL, Verb.KILL)
    assert 240 <= at_s <= 244


def test_a_healthy_start_is_no_stall() -> None:
    """45 % for three minutes, as a model that loads was seen to cause, stops nobody."""
    assert (
        run(series([46] * 180, period_s=1.0, full=45.0) + [Sample(182.0 + i, kib(46), None, 0.0) for i in range(99)])[0]
        == []
    )


# --- whom, and what comes after ---------------------------------------------------------------------


def test_no_second_victim_until_the_first_had_its_time() -> None:
    """Below the floor all along: the next one after 20 s, not before."""
    actions, _ = run(series([2.0] * 250), TWO)
    (first_s, first), (second_s, second) = actions[:2]
    assert first.victim is not None
    assert second.victim is not None
    assert (first.victim.name, second.victim.name) == ("second", "first")
    assert 20 <= second_s - first_s < 20.3


def test_no_second_victim_while_memory_comes_back() -> None:
    """A victim that is gone settles for a second; then another may be stopped, if memory is still below the floor."""
    actions, state = run(series([2.0]), TWO)
    assert len(actions) == 1
    now = released(state, 1.1)
    samples = [Sample(1.2 + i / 10, kib(2.0), None, 0.0, "A") for i in range(15)]
    others = Known((workload("first", started_s=1.0),))
    later, _ = run(samples, others, state=now)
    assert [round(at_s, 1) for at_s, _ in later] == [2.1]


def test_who_cannot_be_signalled_is_not_waited_for() -> None:
    """After EPERM or a vanished cgroup the next sample chooses anew."""
    _, state = run(series([2.0]), TWO)
    actions, _ = run([Sample(1.2, kib(2.0), None, 0.0, "A")], Known((workload("first"),)), state=failed(state))
    assert verbs(actions) == ["floor:kill"]


def test_a_loop_is_ended_early() -> None:
    """The same name killed twice within ten minutes is stopped as soon as it is below the slow line and falling."""
    known = Known((workload("again.service"),))
    state, kills = State(), []
    for start_s in (0.0, 60.0, 120.0):
        fall = [Sample(start_s + s.at_s, s.available_kib, None, 0.0, "A") for s in series(ramp(12, 2, 2.0))]
        actions, state = run(fall, known, state=state)
        kills += [(action.rule, action.loop, action.margins_kib["slow"] / kib(1)) for _, action in actions]
        state = released(state, start_s + 30.0)
        state = run([Sample(start_s + 40.0 + i, kib(60)) for i in range(3)], known, state=state)[1]
    assert [rule for rule, *_ in kills] == [Rule.RATE, Rule.RATE, Rule.SLOW]
    assert [loop for _, loop, _ in kills] == [False, False, True]
    assert kills[2][2] > kills[1][2] + 3


def test_a_loop_is_forgotten_after_ten_minutes() -> None:
    """Kills that are old count for nothing, and a calm machine is calm again."""
    known = Known((workload(),))
    _, state = run(series([2.0]), known)
    state = released(state, 1.5)
    assert run([Sample(3.0, kib(60))], known, state=state)[1].mood.kills != ()
    assert run([Sample(700.0, kib(60))], known, state=state)[1].mood is CALM


def test_without_anybody_on_the_gpu_the_pool_is_emptied_first() -> None:
    """In regime C memory that nobody holds is the driver's pool: it is asked back, and only then a container goes."""
    large = workload("database", holds_gpu=False, attributed_kib=None, resident_kib=kib(20), engine=None)
    samples = [Sample(1 + i / 10, kib(2.0), None, 0.0, "C") for i in range(70)]
    actions, _ = run(samples, Known((large,)))
    assert verbs(actions) == ["floor:reclaim", "floor:kill"]
    assert 6.0 <= actions[1][0] - actions[0][0] < 6.3


@pytest.mark.parametrize(("resident_gib", "expected"), [(8.0, ["floor:kill"]), (7.9, ["floor:nobody"])])
def test_a_large_container_is_the_last_choice(resident_gib: float, expected: list[str]) -> None:
    """Where nobody holds the GPU's memory, a container of 8 GiB or more goes; a smaller one does not."""
    container = workload("database", holds_gpu=False, attributed_kib=None, resident_kib=kib(resident_gib), engine=None)
    assert verbs(run(series([2.0] * 3), Known((container,)))[0]) == expected


def test_the_slow_rule_never_takes_a_container_that_holds_no_gpu() -> None:
    """Twenty resident GiB are no reason for the slow rule."""
    container = workload("database", holds_gpu=False, attributed_kib=None, resident_kib=kib(20), engine=None)
    assert verbs(run(series([7.0] * 60), Known((container,)))[0]) == ["slow:nobody"]


def test_that_there_is_nobody_is_said_once() -> None:
    """Ten minutes below the floor with nobody to stop are one record, not 6,000."""
    assert verbs(run(series([2.0] * 6000), NOBODY)[0]) == ["floor:nobody"]


# --- arming -----------------------------------------------------------------------------------------


def test_an_observing_rule_says_once_what_it_would_do() -> None:
    """Nothing is stopped by a rule that is not armed, and what it would have done is told."""
    settings = replace(ARMED, armed=frozenset({Rule.FLOOR}))
    actions, state = run(series([7.0] * 600), settings=settings)
    assert [(action.verb, action.armed) for _, action in actions] == [(Verb.TERM, False)]
    assert state.mood.stopping is None


def test_an_observing_rate_rule_speaks_once_of_one_fall() -> None:
    """A ramp that is looked at every 20 ms makes one record of what the rate rule would do, not one for each look."""
    settings = replace(ARMED, armed=frozenset())
    actions, state = run(series(ramp(60, 17, 9.5, 0.02), period_s=0.02), settings=settings)
    assert verbs(actions) == ["rate:kill"]
    later = [Sample(state.at_s + 11 + i, kib(60)) for i in range(3)]
    assert run(later, settings=settings, state=state)[1].mood is CALM


def test_an_observing_rule_does_not_hold_back_an_armed_one() -> None:
    """With only the slow rule armed, a fast fall that the rate rule watches is still met by the slow rule."""
    settings = replace(ARMED, armed=frozenset({Rule.SLOW}))
    actions, _ = run(series([2.0] * 40), settings=settings)
    assert [(action.rule, action.armed) for _, action in actions if action.armed] == [(Rule.SLOW, True)]


# --- what cannot be known ---------------------------------------------------------------------------


def test_an_unknown_level_kills_nobody() -> None:
    """A sample without a level changes nothing, and is not taken for zero."""
    samples = [Sample(1.0, kib(60)), Sample(1.1, None), Sample(1.2, None), Sample(1.3, kib(60))]
    assert run(samples)[0] == []


def test_the_first_sample_says_nothing_of_the_time_before_it() -> None:
    """A guard that starts a week after the boot has seen neither a week below a line nor a week's stall."""
    _, state = run([Sample(600_000.0, kib(7.5), None, 99.0, "A")])
    assert [episode.below_s for episode in state.mood.episodes] == [0.0]
    assert state.mood.stalled_s == 0.0


def test_a_sample_of_the_past_is_ignored() -> None:
    """Two looks at the same moment are one."""
    state, _, _ = step(ARMED, State(), Sample(5.0, kib(60)), NOBODY)
    assert step(ARMED, state, Sample(5.0, kib(1)), NOBODY).state is state


def test_a_record_says_what_it_was_made_from() -> None:
    """Rule, margins to each line, everybody considered with a reason, and the reason in words."""
    known = Known((workload(), workload("sshd", holds_gpu=False), workload("mine", protected="by the operator")))
    ((_, action),) = run(series([2.5]), known)[0]
    assert action.margins_kib["floor"] == kib(2.5) - LINES.floor_kib
    assert dict(action.considered) == {
        "vllm": "holds 80.00 GiB of the GPU's memory, grew by 0.00 GiB",
        "sshd": "holds no GPU",
        "mine": "protected: by the operator",
    }
    assert action.reason == "2.50 GiB available, below the floor of 3.00 GiB"
