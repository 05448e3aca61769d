"""Ending a model: its processes first, then its memory. What returns before both are done is no stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN
from plimsoll.box.serve import announcing, attendant, holders, readiness, reclaim, records
from plimsoll.box.serve.acting import Act, Progress, tell_cluster
from plimsoll.box.serve.launch import Launcher, LaunchError, NoAnswerError, Seen, launcher
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import Phase, State, gib
from plimsoll.box.serve.watching import until, watching

HANG_AFTER_S = 60.0
"""To unmap 87 GiB takes more than 2 s every time, and teardowns of tens of seconds are ordinary."""
STOPPED = "stopped"


@dataclass(frozen=True)
class Down:
    """What ending a model has come to."""

    gone: bool
    """Whether it has no process any more."""
    missing_kib: int | None
    """Of its memory, what did not come back; None where that is not known."""
    verdict: str = ""
    """Where it is not all back: who holds what, and what to do."""

    @property
    def clean(self) -> bool:
        """Whether nothing of it is left."""
        return self.gone and self.missing_kib == 0


def stop(act: Act, model: Model) -> int:
    """End a model; 0 when its processes and its memory are gone, 2 when they are not, 3 when that is not known."""
    launched = launcher(act.host, model)
    seen, state = launched.look(), records.read(act.host, model.name)
    if not seen.there and (state is None or state.phase in records.OVER):
        act.say(f"{model.name} does not run: {seen.said}")
        return GOOD
    state = state if state is not None and state.phase not in records.OVER else _unrecorded(act, model, seen)
    _say_in_flight(act, model)
    down = bring_down(act, model, launched, replace(state, pids=state.pids or seen.pids))
    act.remember_end(state, STOPPED, f"stopped by {act.by.what}")
    tell_cluster(act, model, cause=STOPPED)
    return _told(act, model, down)


def bring_down(
    act: Act, model: Model, launched: Launcher, state: State, *, to: Phase = Phase.STOPPED, said: str = STOPPED
) -> Down:
    """End what there is of a model and wait for its memory; write down each step before it, and at last `to`."""
    if act.attends:
        attendant.dismiss(act.host, model.name)
    state = act.move(state, Phase.STOPPING)
    gone = end_processes(act, model, launched)
    if not gone:
        verdict = _verdict(act, state)
        act.say(f"{model.name} is still there {HANG_AFTER_S:.0f} s and more after SIGKILL: {verdict}")
        return Down(gone=False, missing_kib=None, verdict=verdict)
    state = act.move(state, Phase.RECLAIMING)
    announcing.release(act, state)
    launched.forget()
    missing = await_memory(act, model, state)
    verdict = "" if missing == 0 else _verdict(act, state)
    act.move(state, to, said=said, reservation="", pids=())
    return Down(True, missing, verdict)


# --- processes --------------------------------------------------------------------------------------


def end_processes(act: Act, model: Model, launched: Launcher) -> bool:
    """Send SIGTERM, wait, send SIGKILL, wait; return whether all are gone."""
    seen = _look(launched)
    if not seen.there:
        return True
    # where nobody could be asked to end, there is nothing to wait for before SIGKILL
    grace_s = model.stop_grace_s if _done(act, model, launched.ask_to_end) else 0.0
    progress = Progress(act.say, f"{model.name}: waiting for it to end")
    if _until_gone(launched, seen, grace_s, progress):
        return True
    act.say(f"{model.name}: {grace_s:g} s after SIGTERM it is still there: sending SIGKILL")
    _done(act, model, launched.kill)
    return _until_gone(launched, _look(launched), model.reclaim_timeout_s, _Hanging(act, model, launched))


def _done(act: Act, model: Model, what: Callable[[], None]) -> bool:
    """Do a step of an end, and say whether it could be done: what cannot is told, and the end goes on."""
    try:
        what()
    except (LaunchError, NoAnswerError) as error:
        act.say(f"{model.name}: {error}")
        return False
    return True


def _look(launched: Launcher) -> Seen:
    """Return what there is of a model; while nobody says what, it is taken to run."""
    try:
        return launched.look()
    except NoAnswerError as error:
        return Seen(there=True, said=str(error))


def _until_gone(launched: Launcher, seen: Seen, timeout_s: float, progress: "Progress | _Hanging") -> bool:
    """Wait for the main process by its descriptor, and then for what its runner says of the rest."""
    began_s = time.monotonic()
    with watching({seen.main_pid}) as watch:
        while not watch.is_empty and (left_s := began_s + timeout_s - time.monotonic()) > 0:
            if watch.wait(min(1.0, left_s)):
                break
            progress(time.monotonic() - began_s)
    left_s = max(0.0, began_s + timeout_s - time.monotonic())
    return until(lambda: not _look(launched).there, left_s, progress)


class _Hanging:
    """Says that SIGKILL takes its time, and calls it a hang only once it may be one."""

    def __init__(self, act: Act, model: Model, launched: Launcher) -> None:
        self._progress = Progress(act.say, f"{model.name}: killed, its memory is being unmapped")
        self._act, self._model, self._launched = act, model, launched
        self._told = False

    def __call__(self, waited_s: float) -> None:
        """Take note of the time since SIGKILL."""
        if waited_s < HANG_AFTER_S or self._told:
            self._progress(waited_s)
            return
        self._told = True
        seen = _look(self._launched)
        there = ", ".join(f"pid {pid}" for pid in seen.pids[:8]) or seen.said
        self._act.say(f"{self._model.name}: {waited_s:.0f} s after SIGKILL: this is a hang; still there: {there}")


# --- memory -----------------------------------------------------------------------------------------


def await_memory(act: Act, model: Model, state: State) -> int | None:
    """Wait until a model's memory is back, asking the driver for what it keeps; return what is missing in the end."""
    waiting = _Memory(act, state)
    missing = waiting.missing_kib
    if not missing:
        return missing
    act.say(f"{model.name}: its processes are gone; {gib(missing)} of its memory are still to come back")
    progress = Progress(act.say, f"{model.name}: waiting for its memory")
    until(
        waiting.is_back, model.reclaim_timeout_s,
        lambda waited_s: progress(waited_s, f"; {gib(waiting.missing_kib)} are missing"),
    )  # fmt: skip
    return waiting.missing_kib


class _Memory:
    """A model's memory on its way back."""

    def __init__(self, act: Act, state: State) -> None:
        self._act, self._state = act, state
        others, unknown = records.look(act.host)
        # what others have taken or given back since is in the level that there must be
        self.expected_kib = None if unknown else reclaim.expected_kib(state, others)
        self._asked_s = -reclaim.RELEASE_EVERY_S

    @property
    def level_kib(self) -> int | None:
        """The level now."""
        return reclaim.measure(self._act.host).level.level_kib

    @property
    def missing_kib(self) -> int | None:
        """What is missing now."""
        return reclaim.missing_kib(self.expected_kib, self.level_kib, self._state.footprint_kib)

    def is_back(self) -> bool:
        """Ask the driver for its pool, where that was not done just before, and say whether nothing is missing."""
        if time.monotonic() - self._asked_s >= reclaim.RELEASE_EVERY_S:
            self._asked_s = time.monotonic()
            problem = reclaim.release(self._act.host).problem
            if problem:
                self._act.say(f"{self._state.name}: the driver's pool could not be asked back: {problem}")
        return not self.missing_kib


def _verdict(act: Act, state: State) -> str:
    """Say who holds what, and what can be done about it."""
    memory = _Memory(act, state)
    found = holders.verdict(
        holders.look(act.host), memory.expected_kib, memory.level_kib, holders.tolerance_kib(state.footprint_kib or 0),
        state.pids, timed_out=True,
    )  # fmt: skip
    return f"{found.kind}: {found.said}"


# --- telling ----------------------------------------------------------------------------------------


def _unrecorded(act: Act, model: Model, seen: Seen) -> State:
    """Return a state for what was started by others: what there was before it is not known."""
    act.say(f"{model.name} was not started by plimsoll serve: what was available before it is not known")
    at_s, unix_s = time.monotonic(), time.time()
    return State(
        model.name, Phase.READY, act.by, records.Baseline(), at_s, unix_s, at_s,
        unit=model.unit, container=seen.container, cgroup=seen.cgroup, pids=seen.pids,
    )  # fmt: skip


def _say_in_flight(act: Act, model: Model) -> None:
    found = readiness.in_flight(act.host, model.readiness)
    if found.problem:
        act.say(f"{model.name}: how many requests are in flight is not known: {found.problem}")
    else:
        waiting = f", {found.waiting} waiting" if found.waiting is not None else ""
        act.say(f"{model.name}: {found.running} requests in flight{waiting}; they have {model.stop_grace_s:g} s")


def _told(act: Act, model: Model, down: Down) -> int:
    available = gib(reclaim.available_kib(act.host))
    if down.clean:
        act.say(f"{model.name}: stopped, and its memory is back; {available} are available")
        return GOOD
    if down.gone and down.missing_kib is None:
        act.say(f"{model.name}: stopped; whether its memory is back cannot be told; {available} are available")
        act.say(f"{model.name}: {down.verdict}")
        return UNKNOWN
    if down.gone:
        act.say(f"{model.name}: stopped, but {gib(down.missing_kib)} of its memory did not come back: {down.verdict}")
    return DRIFT
