"""Starting a model: admitted or not started; ready, or cleaned up, explained, and its fallback in its place."""

import time
from dataclasses import dataclass, replace

from plimsoll.box.errors import DRIFT, GOOD, BoxError, UsageError
from plimsoll.box.guard.reserve import ReservationError
from plimsoll.box.serve import (
    announcing,
    attendant,
    causes,
    cluster,
    config,
    holders,
    needs,
    readiness,
    reclaim,
    records,
    scores,
    situation,
)
from plimsoll.box.serve.acting import Act, tell, tell_cluster
from plimsoll.box.serve.checking import Granted, check
from plimsoll.box.serve.launch import Launcher, LaunchError, NoAnswerError, launcher
from plimsoll.box.serve.loading import Loaded, Loading
from plimsoll.box.serve.model import Model, Needed, Situation
from plimsoll.box.serve.records import History, Load, Phase, State, gib
from plimsoll.box.serve.stopping import Down, bring_down
from plimsoll.box.serve.watching import until

POOL_WORTH_KIB = 256 << 10
"""A smaller pool is not worth a call that every shrinker of the kernel hears."""
LATCH_S = 3600.0
"""Nothing is started twice within this time without anybody asking for it: what fails so often fails again."""
PORT_FREE_WITHIN_S = 60.0
"""As long as Linux keeps a closed connection in TIME_WAIT."""
INTERRUPTED = "interrupted while it was loading"


@dataclass(frozen=True)
class Failure:
    """A start that came to nothing: why, and what is left of it."""

    kind: str
    said: str
    down: Down


def start(act: Act, model: Model, *, prove: bool = False) -> int:
    """Start a model and wait until it truly answers: 0, also where its fallback does; 2 where nothing does.

    Raises RefusedError where it may not start now, and CannotTellError where its need cannot be told.
    """
    if prove and model.proof is None:
        raise UsageError(f"{model.file} has no section [prove], so that there is nothing to prove {model.name} with")
    launched = launcher(act.host, model)
    state = _taken_over(act, model, launched) or _launched(act, model, launched)
    failure = _brought_up(act, model, launched, state, prove=prove)
    return GOOD if failure is None else _instead(act, model, failure)


# --- until it is launched ---------------------------------------------------------------------------


def _taken_over(act: Act, model: Model, launched: Launcher) -> State | None:
    """Return the state of a load that somebody began and did not see through; None where there is none."""
    state = records.read(act.host, model.name)
    if state is None or state.phase not in (Phase.STARTING, Phase.LOADING) or not launched.look().there:
        return None
    act.say(f"{model.name}: taking over the load that {state.by.what} (pid {state.by.pid}) has begun")
    return act.move(state, Phase.LOADING)


def _launched(act: Act, model: Model, launched: Launcher, fallback_for: str = "") -> State:
    """Admit a model and launch it."""
    granted = check(act, model, lambda needed, found: _make_room(act, model, needed, found))
    needed, admitted = granted.needed, granted.admitted
    if model.cluster is not None:
        cluster.ask(act.host, model.name, model.cluster)
    for note in granted.notes:
        act.say(f"{model.name}: {note}")
    act.say(
        f"{model.name}: admitted: it needs {gib(needed.peak_kib)} ({needed.basis}), {gib(admitted.left_kib)} stay; "
        f"free blocks: {_count(granted.situation.free_32mib_blocks)} of 32 MiB, "
        f"{_count(granted.situation.free_2mib_blocks)} of 2 MiB"
    )
    at_s, unix_s = time.monotonic(), time.time()
    level = reclaim.measure(act.host).level
    state = State(
        model.name, Phase.STARTING, act.by, level, at_s, unix_s, at_s, unit=model.unit, fallback_for=fallback_for
    )
    records.write(act.host, state)
    try:
        return _begun(act, model, launched, granted, state)
    except KeyboardInterrupt:
        _interrupted(act, model, launched, state)
        raise


def _begun(act: Act, model: Model, launched: Launcher, granted: Granted, state: State) -> State:
    """Announce a model and have it started; it stays in its phase, with the reason, where that was refused."""
    try:
        launched.prepare()
        state = announcing.announce(act, model, launched.selector, granted, state)
        launched.start()
        seen = launched.look()
    except (LaunchError, NoAnswerError, ReservationError, OSError) as error:
        # what there may be of it is ended by who sees that it is not there
        act.say(f"{model.name}: {error}")
        return replace(state, said=str(error))
    for note in (*scores.unprotected(act.host, model, seen), *scores.give(act.host, model, seen.pids)):
        act.say(f"{model.name}: {note}")
    return act.move(state, Phase.LOADING, container=seen.container, cgroup=seen.cgroup, pids=seen.pids)


def _interrupted(act: Act, model: Model, launched: Launcher, state: State) -> None:
    """Leave nothing behind of a start that somebody has thought better of."""
    act.say(f"{model.name}: {INTERRUPTED}; it is being stopped")
    # by the name that it was announced under, which a compose service has only since it was prepared
    state = replace(state, container=state.container or ("" if model.unit else launched.selector))
    bring_down(act, model, launched, state, to=Phase.FAILED, said=INTERRUPTED)


def _count(blocks: int | None) -> str:
    return "an unknown number" if blocks is None else str(blocks)


def _make_room(act: Act, model: Model, needed: Needed, found: Situation) -> bool:
    """Ask back, the gentle way, what nobody uses: the driver's pool, and files of models that do not run.

    Files only where less is free than will be taken: a driver that allocates faster than they are dropped fails.
    """
    pool_kib = found.pool_kib or 0
    if pool_kib >= POOL_WORTH_KIB:
        dropped = reclaim.release(act.host)
        came = dropped.problem or f"{gib(dropped.came_back_kib)} came back in {dropped.took_s:.1f} s"
        act.say(f"{model.name}: asked the driver for its pool: {came}")
    free_kib = reclaim.measure(act.host).free_kib
    if free_kib is not None and free_kib < needed.peak_kib:
        there = {each.name for each in found.running} | {model.name}
        for name in config.names(act.host):
            if name not in there:
                reclaim.forget_files(act.host, _files_of(act, name))
    return pool_kib >= POOL_WORTH_KIB


def _files_of(act: Act, name: str) -> tuple[str, ...]:
    """Return another model's checkpoint; of one whose file is faulty, or whose command does not tell, nothing."""
    try:
        return needs.checkpoint_files(act.host, config.read(act.host, name))
    except BoxError:
        return ()


# --- until it is ready ------------------------------------------------------------------------------


def _brought_up(act: Act, model: Model, launched: Launcher, state: State, *, prove: bool) -> Failure | None:
    """Wait until it is ready, and prove it if that is wanted; None for success, else all is cleaned up."""
    if state.phase is Phase.STARTING:
        return _failed(act, model, launched, state, ("not launched", state.said))
    try:
        loaded = Loading(act, model, launched, state).wait()
        unproven = _unproven(act, model) if loaded.ready and prove else ""
    except KeyboardInterrupt:
        _interrupted(act, model, launched, state)
        raise
    _remember_load(act, model, loaded)
    if loaded.ready and not unproven:
        settle(act, model, loaded)
        return None
    why = ("not proven", unproven) if loaded.ready else _why(act, model, loaded)
    return _failed(act, model, launched, loaded.state, why)


def _unproven(act: Act, model: Model) -> str:
    """Send what real use sends; return what did not come back, empty where all did."""
    if model.proof is None:
        return ""
    act.say(f"{model.name}: ready; sending {model.proof.slots} prompts of {model.proof.prompt_tokens} tokens at once")
    found = readiness.prove(act.host, model.readiness, model.proof)
    if found.ok:
        act.say(f"{model.name}: proven: {found.answered} of {found.asked} answered in {found.took_s:.0f} s")
        return ""
    return f"{found.answered} of {found.asked} prompts were answered: {'; '.join(found.problems)}"


def _why(act: Act, model: Model, loaded: Loaded) -> tuple[str, str]:
    """Return the kind of a failure, and what is known of its cause."""
    if not loaded.died:
        return "not ready", loaded.said
    cause = causes.find(act.host, attendant.ended(model, loaded.state))
    return str(cause.kind), f"{cause.said} ({loaded.said})"


def settle(act: Act, model: Model, loaded: Loaded) -> None:
    """Write down that it is ready, see to its score, and have somebody wait for its end."""
    for problem in scores.give(act.host, model, loaded.seen.pids):
        act.say(f"{model.name}: {problem}")
    watched = attendant.watched(loaded.seen, holders.look(act.host).holders)
    reservation = announcing.settle(act, loaded.state)
    state = act.move(
        loaded.state, Phase.READY, ready_unix_s=time.time(), reservation=reservation,
        container=loaded.seen.container, cgroup=loaded.seen.cgroup, pids=watched, said=loaded.said,
    )  # fmt: skip
    if act.attends:
        attendant.send_for(act, model.name)
    available = reclaim.available_kib(act.host)
    act.say(
        f"{model.name}: ready after {loaded.took_s:.0f} s; it has taken {gib(state.footprint_kib)} at most so far, "
        f"{gib(available)} are available"
    )
    tell(act, model, model.hooks.started, "started", took_s=round(loaded.took_s, 1), fallback_for=state.fallback_for)


def _remember_load(act: Act, model: Model, loaded: Loaded) -> None:
    state = loaded.state
    load = Load(state.began_unix_s, round(loaded.took_s, 1), loaded.ready, state.footprint_kib)

    def change(history: History) -> History:
        return replace(history, loads=(*history.loads, load))

    act.remember(model.name, change)


# --- where it failed --------------------------------------------------------------------------------


def _failed(act: Act, model: Model, launched: Launcher, state: State, why: tuple[str, str]) -> Failure:
    """Write down why, then leave nothing of it behind."""
    kind, said = why
    act.say(f"{model.name} did not become ready: {said}")
    act.remember_end(state, kind, said)
    tell_cluster(act, model, cause=kind, said=said)
    return Failure(kind, said, bring_down(act, model, launched, state, to=Phase.FAILED, said=said))


def _instead(act: Act, model: Model, failure: Failure) -> int:
    """Start the fallback once, and tell the operator either way."""
    code, outcome = fall_back(act, model)
    facts = {"cause": failure.kind, "said": failure.said, "clean": failure.down.clean}
    tell(act, model, model.hooks.failed, "failed", **facts, fallback=model.fallback, fallback_outcome=outcome or None)
    return code


def fall_back(act: Act, model: Model) -> tuple[int, str]:
    """Start a model's fallback, by its own admission, unless the latch holds; return the exit code and what came of it.

    It has no fallback in its turn, and an attendant of its own.
    """
    if model.fallback is None:
        return DRIFT, ""
    outcome = _latched(act, model, "instead_unix_s") or _fallen_back(replace(act, attends=True), model, model.fallback)
    said = outcome or "is ready in its place"
    act.say(f"{model.name}: its fallback {model.fallback} {said}")
    return (DRIFT if outcome else GOOD), said


def _fallen_back(act: Act, model: Model, name: str) -> str:
    """Start a fallback; return what it came to, empty where it is ready."""
    try:
        other = config.load(act.host, name)
        until(lambda: not situation.is_taken(act.host, other.port), PORT_FREE_WITHIN_S)
        launched = launcher(act.host, other)
        failure = _brought_up(act, other, launched, _launched(act, other, launched, model.name), prove=False)
    except BoxError as error:
        return f"was not started: {error}"
    return "" if failure is None else f"did not become ready: {failure.said}"


def again(act: Act, model: Model) -> int:
    """Start a model that ended by itself once more, and its fallback where that fails; not while the latch holds."""
    outcome = _latched(act, model, "again_unix_s")
    if not outcome:
        try:
            return start(act, model)
        except BoxError as error:
            outcome = f"was not started again: {error}"
    act.say(f"{model.name} {outcome}")
    code, fallen = fall_back(act, model)
    facts = {"cause": "not started again", "said": outcome}
    tell(act, model, model.hooks.failed, "failed", **facts, fallback=model.fallback, fallback_outcome=fallen or None)
    return code


def _latched(act: Act, model: Model, what: str) -> str:
    """Return why nothing is started by itself now; empty where it may be, and that is remembered under `what`.

    What cannot be remembered is not done: it might be done again and again.
    """
    at_s = time.time()
    try:
        times: tuple[float, ...] = getattr(records.history(act.host, model.name), what)
    except records.RecordError as error:
        return f"was not started: when that was last done is not known: {error}"
    if times and 0 <= at_s - times[-1] < LATCH_S:
        return f"was not started: that was done {at_s - times[-1]:.0f} s ago, and is done once in {LATCH_S:.0f} s"
    if not act.remember(model.name, lambda before: replace(before, **{what: (*getattr(before, what), at_s)})):
        return "was not started: that it was could not be remembered"
    return ""
