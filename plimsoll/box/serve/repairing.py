"""What was cut off: explained, and brought to an end that is one. Every command that acts begins with it.

Whoever holds the lock knows that nobody else is at work; a state that says so is of somebody who was killed.
"""

import time
from dataclasses import dataclass

from plimsoll.box.errors import BoxError
from plimsoll.box.serve import attendant, attending, config, readiness, reclaim, records, starting
from plimsoll.box.serve.acting import Act, tell
from plimsoll.box.serve.launch import Launcher, Seen, launcher
from plimsoll.box.serve.loading import Loaded
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import Phase, State
from plimsoll.box.serve.stopping import bring_down

CUT_OFF = "cut off"


@dataclass(frozen=True)
class Asked:
    """The models that a command names: it sees to a load of theirs itself, and nothing is started in their place."""

    names: frozenset[str] = frozenset()
    ending: frozenset[str] = frozenset()
    """Those that it ends first: a stop that was cut off is its to finish."""


def repair(act: Act, asked: Asked) -> None:
    """See to every model that somebody left in the middle; what cannot be repaired is said, and left."""
    states, problems = records.look(act.host)
    for problem in problems:
        act.say(problem)
    for state in states:
        if state.phase in records.OVER:
            continue
        try:
            _repair(act, config.load(act.host, state.name), state, asked)
        except BoxError as error:
            act.say(f"{state.name}: {state.by.what} left it {state.phase.value}, and it stays so: {error}")


def _repair(act: Act, model: Model, state: State, asked: Asked) -> None:
    launched = launcher(act.host, model)
    seen = launched.look()
    if state.phase is Phase.READY:
        _serving(act, model, state, seen, replace_it=model.name not in asked.names)
        return
    act.say(f"{model.name}: {state.by.what} (pid {state.by.pid}) was cut off while it was {state.phase.value}")
    if state.phase in (Phase.STOPPING, Phase.RECLAIMING):
        if model.name not in asked.ending:
            _end(act, model, launched, state)
    elif not seen.there:
        _dead(act, model, state, seen)
    elif model.name not in asked.names:
        _loading(act, model, state, seen)


def _end(act: Act, model: Model, launched: Launcher, state: State) -> None:
    """Finish a stop."""
    down = bring_down(act, model, launched, state)
    act.say(f"{model.name}: {'stopped, and its memory is back' if down.clean else down.verdict}")


def _serving(act: Act, model: Model, state: State, seen: Seen, *, replace_it: bool) -> None:
    """See to a model that is ready: it may have ended, or nobody waits for its end, because that one was killed."""
    gone = frozenset(state.pids) - frozenset(seen.pids)
    if not seen.there or gone:
        attending.see_to_end(act, model, state, gone, replace_it=replace_it)
    elif not attendant.is_there(act.host, model.name):
        act.say(f"{model.name}: nobody waits for its end; sending for somebody")
        attendant.send_for(act, model.name)


def _dead(act: Act, model: Model, state: State, seen: Seen) -> None:
    """Clean up after a load that died with nobody looking."""
    said = f"it ended while it was loading, after {state.by.what} was killed: {seen.said}"
    act.remember_end(state, CUT_OFF, said)
    bring_down(act, model, launcher(act.host, model), state, to=Phase.FAILED, said=said)
    tell(act, model, model.hooks.failed, "failed", cause=CUT_OFF, said=said, fallback=model.fallback)


def _loading(act: Act, model: Model, state: State, seen: Seen) -> None:
    """See whether a load that nobody waits for has come to its end."""
    answer = readiness.ask(act.host, model.readiness)
    if not answer.ready:
        act.say(
            f"{model.name}: it is still loading ({answer.said}), and nobody waits for it: plimsoll serve start "
            f"{model.name} takes it over, plimsoll serve stop {model.name} ends it"
        )
        return
    state = reclaim.taken(state, reclaim.measure(act.host).level)
    took_s = time.monotonic() - state.began_s
    starting.settle(act, model, Loaded(True, False, answer.said, took_s, state, seen))
