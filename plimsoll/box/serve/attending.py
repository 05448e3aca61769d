"""Waiting for the end of a model that serves: known at once, told at once, and what was chosen for it is done."""

from collections.abc import Callable

from plimsoll.box.errors import GOOD
from plimsoll.box.host import Host
from plimsoll.box.serve import attendant, causes, config, locking, records, starting
from plimsoll.box.serve.acting import Act, tell, tell_cluster
from plimsoll.box.serve.launch import launcher
from plimsoll.box.serve.model import Model, Restart
from plimsoll.box.serve.records import Phase, State
from plimsoll.box.serve.stopping import bring_down
from plimsoll.box.serve.watching import watching


def attend(host: Host, name: str, say: Callable[[str], None]) -> int:
    """Wait until a model that is ready ends by itself, and see to what follows; again, where it was started again.

    Nothing is done for a model that was stopped, or that somebody else looks after.
    """
    while (state := _ready(host, name)) is not None:
        gone = _until_one_is_gone(host, config.load(host, name), state)
        if not _is_same(_ready(host, name), state):
            break
        # told at once; whoever acts now may have the lock for as long as another model loads
        by = locking.myself(f"plimsoll serve attend {name}")
        explain(Act(host, by, say, attends=False), config.load(host, name), state, gone)
        with locking.exclusively(host, by.what, wait=True) as actor:
            act = Act(host, actor, say, attends=False)
            now = _ready(host, name)
            if now is None or not _is_same(now, state) or not see_to_end(act, config.load(host, name), now, gone):
                break
    return GOOD


def _ready(host: Host, name: str) -> State | None:
    """Return the state of a model that is ready; whoever stops it has written so before."""
    state = records.read(host, name)
    return state if state is not None and state.phase is Phase.READY else None


def _is_same(now: State | None, before: State) -> bool:
    return now is not None and now.began_s == before.began_s


def _until_one_is_gone(host: Host, model: Model, state: State) -> frozenset[int]:
    """Wait until one of those whose end matters has ended, and return which; with nobody to be watched, none."""
    missing = frozenset(state.pids) - frozenset(launcher(host, model).look().pids)
    if missing or not state.pids:
        # by its number alone another process could be taken for one that ended before
        return missing
    with watching(state.pids) as watch:
        watch.wait(None)
        return frozenset(watch.ended)


def explain(act: Act, model: Model, state: State, gone: frozenset[int], *, replace_it: bool = True) -> str:
    """Find what ended a model that nobody has stopped, remember it and tell of it; return it for people.

    `gone` are those of its processes that were seen to have ended. Without `replace_it` nothing will be started.
    """
    cause = causes.find(act.host, attendant.ended(model, state))
    seen = launcher(act.host, model).look()
    rest = f"; {len(seen.pids)} of its processes were still there" if seen.pids else ""
    said = f"{cause.said}{rest}"
    act.say(f"{model.name} has ended: {said}")
    act.remember_end(state, str(cause.kind), said)
    facts = {"cause": str(cause.kind), "said": said, "evidence": list(cause.evidence), "pids": sorted(gone)}
    tell(act, model, model.hooks.ended, "ended", **facts, next=_next(model) if replace_it else None)
    tell_cluster(act, model, **facts)
    return said


def see_to_end(act: Act, model: Model, state: State, gone: frozenset[int], *, replace_it: bool = True) -> bool:
    """Clean up after an end that nobody asked for, and start what was chosen; True: it serves again.

    Unless that was done already, it is explained first.
    """
    said = _explained(act, state) or explain(act, model, state, gone, replace_it=replace_it)
    bring_down(act, model, launcher(act.host, model), state, to=Phase.FAILED, said=said)
    return replace_it and _replace(act, model)


def _explained(act: Act, state: State) -> str:
    """Return what was remembered of the end of this very life; empty where nobody has looked yet."""
    try:
        ends = records.history(act.host, state.name).ends
    except records.RecordError:
        return ""
    return next((each.said for each in reversed(ends) if each.life_unix_s == state.began_unix_s), "")


def _next(model: Model) -> str | None:
    """Return what is started now, by name; None for nothing."""
    return model.name if model.restart is Restart.ON_FAILURE else model.fallback


def _replace(act: Act, model: Model) -> bool:
    """Start it again, or its fallback, where that was chosen; True where it serves again itself."""
    if model.restart is Restart.ON_FAILURE:
        starting.again(act, model)
    elif model.fallback is not None:
        code, outcome = starting.fall_back(act, model)
        if code != GOOD:
            tell(act, model, model.hooks.failed, "failed", fallback=model.fallback, fallback_outcome=outcome)
    after = records.read(act.host, model.name)
    return after is not None and after.phase is Phase.READY
