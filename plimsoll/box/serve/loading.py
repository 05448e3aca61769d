"""From launched to ready: ask whether it answers, ever less often, and notice at once when it dies meanwhile."""

import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.box.host import Host
from plimsoll.box.serve import readiness, reclaim, records
from plimsoll.box.serve.acting import Act, Progress
from plimsoll.box.serve.launch import Launcher, NoAnswerError, Seen
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import State
from plimsoll.box.serve.watching import Watch, watching

if TYPE_CHECKING:
    from plimsoll.box.serve.readiness import Answer

WITHOUT_MAIN_S = 1.0
"""How often a runner is asked while it has no process yet whose end could be waited for."""


@dataclass(frozen=True)
class Loaded:
    """How a load went."""

    ready: bool
    died: bool
    said: str
    took_s: float
    state: State
    """With the footprint that was seen."""
    seen: Seen


class Loading:
    """One load, until it is ready, dead, hopeless or late."""

    def __init__(self, act: Act, model: Model, launched: Launcher, state: State) -> None:
        self._act, self._model, self._launched, self._state = act, model, launched, state
        self._deadline_s = state.began_s + model.readiness.deadline_s
        self._seen = Seen(there=True, said="launched")
        self._main_pid = 0
        self._progress = Progress(act.say, f"{model.name}: loading")
        self._usual = _usual(act.host, model.name)

    def wait(self) -> Loaded:
        """Wait for its end, one way or the other."""
        for pause_s in readiness.waits():
            found = self._step(pause_s)
            if found is not None:
                return found
        raise AssertionError("the pauses have no end")

    def _step(self, pause_s: float) -> Loaded | None:
        """Look and ask once, then pause; None while nothing is decided."""
        try:
            self._seen = self._launched.look()
        except NoAnswerError as error:
            # a manager that is busy for a while says nothing about the model
            self._act.say(f"{self._model.name}: {error}")
            self._seen = replace(self._seen, said=str(error))
        if not self._seen.there:
            return self._loaded(died=True, said=self._seen.said)
        if self._main_pid and self._seen.main_pid not in (0, self._main_pid):
            return self._loaded(died=True, said=f"it ended, and was started again without admission: {self._seen.said}")
        self._main_pid = self._seen.main_pid or self._main_pid
        with watching({self._main_pid}) as watch:
            answer = ask_beside(self._act.host, watch, self._model, self._left_s())
            if answer is None:
                return self._loaded(died=True, said=self._last_words())
            return self._judged(answer) or self._pause(watch, pause_s, answer)

    def _judged(self, answer: "Answer") -> Loaded | None:
        self._take_note()
        if answer.ready:
            return self._loaded(ready=True, said=answer.said)
        if answer.hopeless:
            return self._loaded(said=answer.said)
        if self._left_s() <= 0:
            return self._loaded(said=f"not ready within {self._model.readiness.deadline_s:.0f} s: {answer.said}")
        return None

    def _pause(self, watch: Watch, pause_s: float, answer: "Answer") -> Loaded | None:
        self._progress(self._took_s(), f" ({answer.said}; {records.gib(self._state.footprint_kib)} taken{self._usual})")
        if not self._main_pid:
            pause_s = min(pause_s, WITHOUT_MAIN_S)
        if watch.wait(min(pause_s, max(0.0, self._left_s()))):
            return self._loaded(died=True, said=self._last_words())
        return None

    def _last_words(self) -> str:
        try:
            return self._launched.look().said
        except NoAnswerError as error:
            return str(error)

    def _take_note(self) -> None:
        seen = self._seen
        state = replace(self._state, pids=seen.pids, cgroup=seen.cgroup, container=seen.container)
        self._state = reclaim.taken(state, reclaim.measure(self._act.host).level)

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _took_s(self) -> float:
        return time.monotonic() - self._state.began_s

    def _loaded(self, *, ready: bool = False, died: bool = False, said: str) -> Loaded:
        return Loaded(ready, died, said, self._took_s(), self._state, self._seen)


def ask_beside(host: Host, watch: Watch, model: Model, left_s: float) -> "Answer | None":
    """Ask whether a model answers, in a thread; None where one who is watched has ended before it did.

    A server whose engine is dead may keep a connection open for ever; nobody waits for that.
    """
    answers: list[Answer] = []
    problems: list[Exception] = []
    reading, writing = os.pipe()

    def ask() -> None:
        try:
            answers.append(readiness.ask(host, model.readiness, max(left_s, 1.0)))
        except Exception as error:  # noqa: BLE001  # raised where it is waited for; it is not to look like a death
            problems.append(error)
        finally:
            os.close(writing)

    try:
        threading.Thread(target=ask, daemon=True).start()
        died = watch.wait(None, also=reading)
    finally:
        os.close(reading)
    if problems:
        raise problems[0]
    return None if died else answers[0]


def _usual(host: Host, name: str) -> str:
    """Say how long a load takes here; what cannot be read is told by who writes it."""
    try:
        usual_s = records.history(host, name).usual_load_s
    except (OSError, records.RecordError):
        return ""
    return "" if usual_s is None else f"; it usually takes {usual_s:.0f} s here"
