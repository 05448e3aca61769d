"""What the main thread does: look, decide, signal. It opens nothing, waits for nobody and writes nothing itself."""

import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple, Protocol

from plimsoll.box.guard import decide, rules
from plimsoll.box.guard.act import Outcome, Ready, Result
from plimsoll.box.guard.model import CALM, Action, Kill, Known, Sample, Settings, State, Verb, Workload
from plimsoll.box.guard.records import Event, Kind

SPARED_S = 5.0
"""For how long somebody who could not be signalled is no candidate: long enough for a look at who is there now."""


Timeline = tuple[tuple[str, float], ...]
"""What happened when, on the monotonic clock."""


class Sampling(Protocol):
    """What takes samples; `Sampler` is one."""

    @property
    def basis(self) -> str:
        """What the last sample's figures rest on."""

    def sample(self, at_s: float) -> Sample:
        """Return what memory is like now."""


class Stopping(Protocol):
    """What stops workloads; `Hand` is one."""

    def stop(self, workload: Workload, verb: Verb) -> Outcome:
        """Signal, without waiting."""

    def watch(self, workload: Workload) -> Ready:
        """Return what shows when it is gone."""


class Telling(Protocol):
    """What takes events to write down; `Scribe` is one."""

    def put(self, event: Event) -> bool:
        """Take one, without waiting."""


class Following(Protocol):
    """What goes on after a decision, in other threads."""

    def follow(self, action: Action, victim: Ready, timeline: Timeline) -> None:
        """Follow a victim to its end; the loop is told by `gone`."""

    def reclaim(self) -> None:
        """Empty the driver's pool."""


class Tick(NamedTuple):
    """Where the loop stands: what others read of it, as often as they like."""

    sample: Sample
    state: State
    settings: Settings
    longest_gap_s: float
    """Between two samples, since the start."""


class Loop:
    """Goes round; `known` and `settings` are replaced by other threads, whole."""

    def __init__(
        self, settings: Settings, sampler: Sampling, hand: Stopping, scribe: Telling, follower: Following
    ) -> None:
        self.settings = settings
        self.known = Known()
        self._sampler = sampler
        self._hand = hand
        self._scribe = scribe
        self._follower = follower
        self._gone: deque[str] = deque()
        self._spared: dict[str, float] = {}
        self._longest_gap_s = 0.0
        first = sampler.sample(time.monotonic())
        self._state = State(at_s=first.at_s, available_kib=first.available_kib)
        self.tick = Tick(first, self._state, settings, 0.0)

    def remember(self, kills: tuple[Kill, ...]) -> None:
        """Take over whom another guard has stopped of late; before the first turn."""
        self._state = self._state._replace(mood=replace(CALM, kills=kills)) if kills else self._state

    def gone(self, key: str) -> None:
        """Say that a victim's last process is gone and its memory was asked back; from any thread."""
        self._gone.append(key)

    def turn(self) -> float:
        """Look once and do what follows; return in how many seconds to look again."""
        at_s = time.monotonic()
        settings, known = self.settings, self._candidates(at_s)
        before = self._released(at_s)
        sample = self._sampler.sample(at_s)
        state, action, period_ms = decide.step(settings, before, sample, known)
        self._state = state if action is None else self._carried_out(action, settings, before, state, sample)
        self._longest_gap_s = max(self._longest_gap_s, at_s - self.tick.sample.at_s)
        self.tick = Tick(sample, self._state, settings, self._longest_gap_s)
        return period_ms / 1000 - (time.monotonic() - at_s)

    def _released(self, at_s: float) -> State:
        state = self._state
        while self._gone:
            key = self._gone.popleft()
            stopping = state.mood.stopping
            if stopping is not None and stopping.workload.key == key:
                state = decide.released(state, at_s)
        return state

    def _candidates(self, at_s: float) -> Known:
        """Return what is known, without those that could not be signalled a moment ago."""
        if not self._spared:
            return self.known
        self._spared = {key: until_s for key, until_s in self._spared.items() if until_s > at_s}
        left = tuple(each for each in self.known.workloads if each.key not in self._spared)
        return replace(self.known, workloads=left)

    def _carried_out(self, action: Action, settings: Settings, before: State, state: State, sample: Sample) -> State:
        """Do what was decided, and return the state that follows."""
        decided_s = time.monotonic()
        timeline: Timeline = (("sampled", sample.at_s), ("decided", decided_s))
        if not action.armed or action.victim is None:
            self._say(Kind.DECISION, action, sample, state, timeline)
            if action.armed and action.verb is Verb.RECLAIM:
                self._follower.reclaim()
            return state
        again = self._sampler.sample(decided_s)
        if not rules.still_holds(action, settings, sample, again):
            self._say(Kind.DECISION, action, again, state, timeline, {"outcome": "not done: a second look was better"})
            return state._replace(mood=before.mood)
        outcome = self._hand.stop(action.victim, action.verb)
        timeline = (*timeline, ("signalled", time.monotonic()))
        self._say(Kind.SIGNALLED, action, sample, state, timeline, _details(outcome))
        if outcome.result is not Result.SIGNALLED:
            self._spared[action.victim.key] = decided_s + SPARED_S
            # Who was asked to go and cannot be killed is waited for as if he were; then it is another's turn.
            return decide.failed(state) if before.mood.stopping is None else state
        if not _is_followed(before, action.victim):
            self._follower.follow(action, self._hand.watch(action.victim), timeline)
        return state

    def _say(
        self,
        kind: Kind,
        action: Action,
        sample: Sample,
        state: State,
        timeline: Timeline,
        details: dict[str, object] | None = None,
    ) -> None:
        event = Event(
            kind,
            sample.at_s,
            time.time(),
            sample=sample,
            rate_kib_per_s=rules.rate(state),
            basis=self._sampler.basis,
            action=action,
            timeline=timeline,
            details=details,
        )
        self._scribe.put(event)


def _is_followed(before: State, victim: Workload) -> bool:
    """Say whether it was asked to go before, and is watched since."""
    return before.mood.stopping is not None and before.mood.stopping.workload.key == victim.key


def _details(outcome: Outcome) -> dict[str, object]:
    return {
        "outcome": outcome.result.value,
        "how": outcome.how,
        "signalled": outcome.signalled,
        "detail": outcome.detail,
    }
