"""What every act of `plimsoll serve` has at hand, and whom it tells."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.box.errors import REFUSED, BoxError
from plimsoll.box.host import Host
from plimsoll.box.serve import records
from plimsoll.box.serve.locking import Actor
from plimsoll.box.serve.model import Model
from plimsoll.box.serve.records import End, History, Phase, State

EVENT_SCHEMA = "plimsoll.serve-event/1"
TELL_EVERY_S = 15.0
"""A person who waits looks that often whether it still goes on."""


class RefusedError(BoxError):
    """Not now; nothing was started."""

    exit_code = REFUSED


@dataclass(frozen=True)
class Act:
    """Somebody who acts on a host, under the lock, and tells people how far he is."""

    host: Host
    by: Actor
    say: Callable[[str], None]
    attends: bool = True
    """Whether a model that became ready gets its attendant; the attendant itself sees to that otherwise."""

    def move(self, state: State, phase: Phase, **changes: Any) -> State:  # noqa: ANN401  # any of its fields
        """Write down what begins now, and return it.

        Where that cannot be written, it is said, and goes on: a stop must not fail for want of room in /run.
        """
        moved = records.advanced(state, phase, self.by, **changes)
        try:
            records.write(self.host, moved)
        except OSError as error:
            self.say(f"{state.name}: that it is {phase.value} cannot be written down: {_reason(error)}")
        return moved

    def remember(self, name: str, change: Callable[[History], History]) -> bool:
        """Change what is remembered of a model, and say whether that was possible; where it was not, people are told.

        What a load took is no reason to leave it alone in the middle.
        """
        try:
            records.remember(self.host, name, change)
        except (OSError, records.RecordError) as error:
            self.say(f"{name}: not remembered: {_reason(error)}")
            return False
        return True

    def remember_end(self, state: State, kind: str, said: str) -> bool:
        """Remember how a life of a model ended."""
        end = End(time.time(), kind, said, state.began_unix_s)
        return self.remember(state.name, lambda before: replace(before, ends=(*before.ends, end)))


def _reason(error: Exception) -> str:
    return f"{getattr(error, 'strerror', None) or error}"


class Progress:
    """Tells how long something takes, now and then."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say = say
        self._what = what
        self._next_s = TELL_EVERY_S

    def __call__(self, waited_s: float, more: str = "") -> None:
        """Take note of the time waited, and tell it if the last time was long ago."""
        if waited_s >= self._next_s:
            self._next_s = waited_s + TELL_EVERY_S
            self._say(f"{self._what}, {waited_s:.0f} s{more}")


def tell(act: Act, model: Model, hook: tuple[str, ...], event: str, **facts: Any) -> None:  # noqa: ANN401  # JSON types
    """Run one of the operator's programs with an event on its standard input; one that fails stops nothing."""
    from plimsoll.box.guard.aftermath import run_hook  # noqa: PLC0415  # with ctypes; most commands tell nobody

    document: Mapping[str, Any] = {
        "schema": EVENT_SCHEMA,
        "event": event,
        "model": model.name,
        "at_unix_s": round(time.time(), 3),
        **facts,
    }
    problem = run_hook(hook, document, model.hooks.timeout_s)
    if problem:
        act.say(f"{model.name}: {problem}")


def tell_cluster(act: Act, model: Model, **facts: Any) -> None:  # noqa: ANN401  # JSON types
    """Tell the other host of a model on two that this half has ended."""
    if model.cluster is not None and model.cluster.hook:
        tell(act, model, model.cluster.hook, "ended", host=model.cluster.host, **facts)
