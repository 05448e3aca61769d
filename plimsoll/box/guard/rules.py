"""When a rule is due, and what it then demands of whom. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.box.guard.choose import Choice, choose, fallback
from plimsoll.box.guard.model import (
    KIB_PER_GIB,
    Action,
    Known,
    Rule,
    Sample,
    Settings,
    State,
    Stopping,
    Verb,
    Workload,
)

RECLAIM_TAKES_S = 6.0
"""To empty a pool by drop_caches took 6.1 s at the most; until then nobody knows what is really left."""


NEAR_FLOORS = 2
"""As far above it, in floors, a fall is looked at for the floor itself."""


@dataclass(frozen=True)
class Situation:
    """All that a rule may look at; the state is that of the sample, not of the one before."""

    settings: Settings
    state: State
    sample: Sample
    known: Known

    @property
    def available_kib(self) -> int:
        """What is available; `step` does not come here where it is unknown."""
        return self.sample.available_kib or 0

    def expected_fall_kib(self, ahead_s: float) -> float:
        """How far memory may fall within a time; a load that announced itself takes what it said, and no more."""
        projected = rate(self.state) * ahead_s
        announced = [each for each in self.known.reservations if each.remaining_kib(self.sample)]
        return min(projected, sum(each.untaken_kib(self.sample) for each in announced)) if announced else projected

    @property
    def is_below_floor(self) -> bool:
        """Whether memory is below the floor."""
        return self.available_kib < self.settings.lines.floor_kib

    @property
    def is_plunging(self) -> bool:
        """Whether memory, near the floor, is below it before a kill can show; nothing that fits goes that way.

        Twice the floor is 5 % of all, where the backstop acts by default, and lies below every model that was admitted.
        The least of three intervals counts: what goes up and down is no fall.
        """
        lines, ahead_s = self.settings.lines, self.settings.floor_ahead_s
        is_near = self.available_kib < min(NEAR_FLOORS * lines.floor_kib, lines.slow_enter_kib)
        state = self.state
        steady = min(state.fall_kib_per_s, state.fall_before, state.fall_before_that)
        if not is_near or steady <= 0:
            return False
        return self.available_kib - min(steady * ahead_s, self.expected_fall_kib(ahead_s)) < lines.floor_kib

    @property
    def below_s(self) -> dict[int, float]:
        """The time spent below each slow line that memory is below now."""
        return {each.line_kib: each.below_s for each in self.state.mood.episodes if self.available_kib < each.line_kib}

    @property
    def is_overdue(self) -> bool:
        """Whether a victim did not go after SIGTERM, and memory is not back."""
        stopping, grace_s = self.state.mood.stopping, self.settings.term_grace_s
        if stopping is None or stopping.killed_s is not None or not self.state.mood.episodes:
            return False
        return self.state.at_s - stopping.term_s >= grace_s

    def slow_line_kib(self, workload: Workload) -> int:
        """The slow line that holds for a workload: its own, once it has announced one."""
        own = [each.steady_line_kib for each in self.known.reservations if each.workload in workload.selectors]
        return min(own, default=self.settings.lines.slow_enter_kib)

    def loops(self, workload: Workload) -> bool:
        """Whether a workload of that name was stopped again and again of late."""
        return sum(1 for kill in self.state.mood.kills if kill.name == workload.name) >= self.settings.loop_kills


def rate(state: State) -> float:
    """Return how fast memory falls, in KiB a second: the median of three intervals, which no single sample moves."""
    a, b, c = state.fall_kib_per_s, state.fall_before, state.fall_before_that
    if a > b:
        a, b = b, a
    return a if c < a else min(b, c)


def is_due(rule: Rule, now: Situation) -> bool:
    """Say whether a rule has something to say about the sample."""
    floor = now.settings.lines.floor_kib
    match rule:
        case Rule.FLOOR:
            return now.is_below_floor or now.is_plunging
        case Rule.RATE:
            return rate(now.state) > 0 and now.available_kib - now.expected_fall_kib(now.settings.horizon_s) < floor
        case Rule.SLOW:
            return bool(now.below_s) or now.is_overdue
        case Rule.STALL:
            return now.state.mood.stalled_s >= now.settings.stall_s


def demand(rule: Rule, now: Situation) -> Action | None:
    """Return what a rule that is due demands, None while it has to wait."""
    stopping = now.state.mood.stopping
    if stopping is not None:
        return _of_victim(stopping, rule, now)
    return _slow(now) if rule is Rule.SLOW else _kill(rule, now, now.known.workloads)


def _of_victim(stopping: Stopping, rule: Rule, now: Situation) -> Action | None:
    """Return what is to be done while a victim is not gone: another one only after this one had its time."""
    if stopping.released_s is not None or rule not in now.settings.armed:
        return None
    if stopping.killed_s is None:
        if rule is Rule.SLOW and not now.is_overdue:
            return None
        waited = f"still there {now.state.at_s - stopping.term_s:.1f} s after SIGTERM; "
        return _action(Verb.KILL, rule, now, Choice(stopping.workload, ()), waited)
    has_had_its_time = now.state.at_s - stopping.killed_s >= now.settings.next_victim_after_s
    if rule is not Rule.FLOOR or not now.is_below_floor or not has_had_its_time:
        return None
    others = [each for each in now.known.workloads if each.key != stopping.workload.key]
    return _kill(rule, now, others)


def _slow(now: Situation) -> Action | None:
    """Ask a workload to go that kept memory below its line for long enough; one that loops is not asked again."""
    below_s = now.below_s
    concerned = [each for each in now.known.workloads if now.slow_line_kib(each) in below_s]
    looping = choose([each for each in concerned if now.loops(each)], now.settings)
    if looping.victim is not None and rate(now.state) > 0:
        return _action(Verb.KILL, Rule.SLOW, now, looping, "started again into the same wall; ", loop=True)
    dwell_s = now.settings.slow_dwell_s
    choice = choose([each for each in concerned if below_s[now.slow_line_kib(each)] >= dwell_s], now.settings)
    if choice.victim is not None:
        return _action(Verb.TERM, Rule.SLOW, now, choice)
    is_ripe = below_s.get(now.settings.lines.slow_enter_kib, 0.0) >= dwell_s
    is_allowed = any(now.slow_line_kib(each) not in below_s for each in now.known.workloads)
    says_nobody = is_ripe and not is_allowed and not now.is_below_floor
    return _action(Verb.NOBODY, Rule.SLOW, now, choice) if says_nobody else None


def _kill(rule: Rule, now: Situation, workloads: Sequence[Workload]) -> Action | None:
    """Stop who holds the GPU's memory; where nobody does, empty the driver's pool, then stop the largest container."""
    choice = choose(workloads, now.settings)
    if choice.victim is not None:
        return _action(Verb.KILL, rule, now, choice)
    if rule is Rule.FLOOR and not now.is_below_floor:
        # who does not hold the GPU gives memory back as the kernel asks for it: that is waited for
        return None
    if rule is not Rule.STALL:
        reclaimed_s = now.state.mood.reclaimed_s
        may_be_pooled = now.sample.regime != "A" and not any(each.holds_gpu for each in workloads)
        if may_be_pooled and reclaimed_s is None:
            return _action(Verb.RECLAIM, rule, now, choice, "nobody holds the GPU; ")
        if may_be_pooled and reclaimed_s is not None and now.state.at_s - reclaimed_s < RECLAIM_TAKES_S:
            return None
        largest = fallback(workloads, now.settings)
        if largest is not None:
            return _action(Verb.KILL, rule, now, choice._replace(victim=largest), "nobody holds the GPU's memory; ")
    return _action(Verb.NOBODY, rule, now, choice)


def _action(verb: Verb, rule: Rule, now: Situation, choice: Choice, beside: str = "", *, loop: bool = False) -> Action:
    return Action(
        verb=verb,
        rule=rule,
        # What was killed twice was killed by a rule in force; a third time needs no other.
        armed=rule in now.settings.armed or loop,
        victim=choice.victim,
        reason=beside + _why(rule, now),
        margins_kib=margins_kib(now),
        considered=choice.considered,
        loop=loop,
    )


def still_holds(action: Action, settings: Settings, before: Sample, again: Sample) -> bool:
    """Say whether a second look, right before the signal, bears out what the first one led to.

    Where the second one sees nothing, the first one counts.
    """
    if again.available_kib is None or before.available_kib is None:
        return True
    lines = settings.lines
    match action.rule:
        case Rule.FLOOR:
            is_below = again.available_kib < lines.floor_kib
            return is_below or lines.floor_kib <= before.available_kib >= again.available_kib
        case Rule.RATE:
            return again.available_kib <= before.available_kib
        case Rule.SLOW:
            return again.available_kib <= lines.slow_leave_kib
        case Rule.STALL:
            return True


def margins_kib(now: Situation) -> dict[str, int]:
    """Return how far available memory is above each line; below 0 where it is under it."""
    lines = now.settings.lines
    return {
        "floor": now.available_kib - lines.floor_kib,
        "rate": round(now.available_kib - now.expected_fall_kib(now.settings.horizon_s)) - lines.floor_kib,
        "slow": now.available_kib - lines.slow_enter_kib,
    }


def _why(rule: Rule, now: Situation) -> str:
    settings, available = now.settings, _gib(now.available_kib)
    match rule:
        case Rule.FLOOR if now.is_below_floor:
            return f"{available} available, below the floor of {_gib(settings.lines.floor_kib)}"
        case Rule.FLOOR | Rule.RATE:
            ahead_s = settings.floor_ahead_s if rule is Rule.FLOOR else settings.horizon_s
            return (
                f"{available} available, falling by {_gib(rate(now.state))}/s: in {ahead_s:g} s below the "
                f"floor of {_gib(settings.lines.floor_kib)}"
            )
        case Rule.SLOW:
            spent = max((f"{each:.1f} s below {_gib(line)}" for line, each in now.below_s.items()), default="not back")
            return f"{available} available, {spent}"
        case Rule.STALL:
            return (
                f"everybody stalled on memory for {now.state.mood.stalled_s:.0f} s "
                f"(PSI full {settings.stall_full_percent:g} % or more) with {available} available"
            )


def _gib(kib: float) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"
