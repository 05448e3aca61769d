"""What follows from one sample: a pure function of settings, state, sample and what is known of the workloads."""

from collections.abc import Iterable
from dataclasses import replace

from plimsoll.box.guard import rules
from plimsoll.box.guard.model import (
    CALM,
    Action,
    Episode,
    Kill,
    Known,
    Mood,
    Reservation,
    Rule,
    Sample,
    Settings,
    State,
    Step,
    Stopping,
    Verb,
)

SAID_FOR_S = 10.0
"""A fall is looked at every 20 ms; a load in several stages takes longer than this."""


def step(settings: Settings, state: State, sample: Sample, known: Known) -> Step:
    """Return the next state, what is to be done, and when to look again.

    A sample without a level, or one that is not later than the last, changes nothing.
    """
    at_s, available, _, full, _ = sample
    before_s, before, fall_before, fall_before_that, _, mood = state
    elapsed_s = at_s - before_s
    if available is None or elapsed_s <= 0:
        return Step(state, None, settings.period_ms)
    fall = 0.0 if before is None else (before - available) / elapsed_s
    now = State(at_s, available, fall, fall_before, fall_before_that, mood)
    lines, horizon_s = settings.lines, settings.horizon_s
    headroom = available - lines.floor_kib
    period = settings.fast_period_ms if fall * settings.fast_below_s > headroom else settings.period_ms
    # All that a calm machine needs, 2 us: three days of samples are 2.6 million. Two small falls of three make a small
    # median, so that the third need not be looked at.
    if (
        mood is CALM
        and available > lines.slow_leave_kib
        and (full is None or full < settings.stall_full_percent)
        and fall * horizon_s < headroom
        and fall_before * horizon_s < headroom
    ):
        return Step(now, None, period)
    # The first sample says what is, and nothing of the time before it.
    elapsed_s = 0.0 if before is None else elapsed_s
    mood = _later(settings, state, sample, known.reservations, elapsed_s)
    return _with(rules.Situation(settings, now._replace(mood=CALM if mood == CALM else mood), sample, known), period)


def released(state: State, at_s: float) -> State:
    """Return the state once the last process of a victim is gone and its memory was asked back."""
    stopping = state.mood.stopping
    if stopping is None:
        return state
    return state._replace(mood=replace(state.mood, stopping=replace(stopping, released_s=at_s)))


def failed(state: State) -> State:
    """Return the state after a victim could not be signalled: there is nobody whose memory could come back."""
    return state._replace(mood=replace(state.mood, stopping=None, kills=state.mood.kills[:-1]))


def _with(now: rules.Situation, period_ms: int) -> Step:
    """Do what the first armed rule demands that is due; else say, once, what an observing one would do."""
    said: Step | None = None
    for rule in Rule:
        action = rules.demand(rule, now) if rules.is_due(rule, now) else None
        if action is None:
            continue
        if action.armed and action.verb is not Verb.NOBODY:
            return Step(_after(now.state, action), action, now.settings.fast_period_ms)
        said = said or _said_once(now.state, action, period_ms)
    return said or Step(now.state, None, period_ms)


def _said_once(state: State, action: Action, period_ms: int) -> Step | None:
    key = (action.rule, action.victim.key if action.victim else "")
    if key in state.mood.said:
        return None
    mood = replace(state.mood, said=state.mood.said | {key}, said_s=state.at_s)
    return Step(state._replace(mood=mood), action, period_ms)


def _after(state: State, action: Action) -> State:
    """Return the state in which the action is under way."""
    mood, at_s = state.mood, state.at_s
    if action.victim is None:
        return state._replace(mood=replace(mood, reclaimed_s=at_s))
    before = mood.stopping if mood.stopping and mood.stopping.workload.key == action.victim.key else None
    term_s = before.term_s if before else at_s
    killed_s = at_s if action.verb is Verb.KILL else None
    kill = () if before else (Kill(action.victim.name, at_s),)
    stopping = Stopping(action.victim, action.rule, term_s, killed_s)
    return state._replace(mood=replace(mood, stopping=stopping, kills=mood.kills + kill))


def _later(
    settings: Settings, state: State, sample: Sample, reservations: Iterable[Reservation], elapsed_s: float
) -> Mood:
    """Return the mood after the time since the last sample."""
    mood, at_s = state.mood, sample.at_s
    if _is_back(settings, mood.stopping, at_s):
        # what follows is another's doing, and gets the whole time again
        mood = replace(mood, stopping=None, episodes=(), stalled_s=0.0)
    episodes = _episodes(settings, mood, state, sample, reservations, elapsed_s)
    said = _still_said(mood, episodes, at_s)
    return replace(
        mood,
        episodes=episodes,
        stalled_s=_stalled_s(settings, mood.stalled_s, sample, elapsed_s),
        kills=tuple(kill for kill in mood.kills if at_s - kill.at_s <= settings.loop_within_s),
        reclaimed_s=mood.reclaimed_s if episodes else None,
        said=said,
        said_s=mood.said_s if said else 0.0,
    )


def _still_said(mood: Mood, episodes: tuple[Episode, ...], at_s: float) -> frozenset[tuple[Rule, str]]:
    """Return what need not be said again: of a level until its episode ends, of a fall for a while."""
    over = {
        Rule.FLOOR: not episodes,
        Rule.RATE: at_s - mood.said_s >= SAID_FOR_S,
        Rule.SLOW: not episodes,
        Rule.STALL: mood.stalled_s == 0,
    }
    return frozenset(each for each in mood.said if not over[each[0]])


def _is_back(settings: Settings, stopping: Stopping | None, at_s: float) -> bool:
    if stopping is None or stopping.released_s is None:
        return False
    return at_s - stopping.released_s >= settings.settle_s


def _stalled_s(settings: Settings, stalled_s: float, sample: Sample, elapsed_s: float) -> float:
    """Count the time of a stall; a low sample takes away its own time and no more."""
    if sample.full_percent is None:
        return stalled_s
    if sample.full_percent >= settings.stall_full_percent:
        return min(stalled_s + elapsed_s, 2 * settings.stall_s)
    return max(0.0, stalled_s - elapsed_s)


def _episodes(
    settings: Settings,
    mood: Mood,
    state: State,
    sample: Sample,
    reservations: Iterable[Reservation],
    elapsed_s: float,
) -> tuple[Episode, ...]:
    """Return the episodes below every slow line, each begun below it and ended only above where it is left."""
    available = sample.available_kib or 0
    before = available if state.available_kib is None else state.available_kib
    gap = settings.lines.slow_leave_kib - settings.lines.slow_enter_kib
    running = {episode.line_kib: episode.below_s for episode in mood.episodes}
    needed = settings.slow_needs_full_percent
    counts = not needed or (sample.full_percent is not None and sample.full_percent >= needed)
    found = []
    for line in sorted({settings.lines.slow_enter_kib, *(each.steady_line_kib for each in reservations)}):
        if available >= line and (line not in running or available > line + gap):
            continue
        # The time before the sample that crossed the line was spent above it, as far as anybody knows.
        below_s = elapsed_s if max(available, before) < line and counts else 0.0
        found.append(Episode(line, running.get(line, 0.0) + below_s))
    return tuple(found)
