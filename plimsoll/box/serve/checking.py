"""Whether a model may start now: what it needs, the box as it is, and the verdict. Changes nothing.

Apart from the rest of a start, because an answer is asked for by scripts and by the other host of a cluster, and what
acts takes as long again to be imported.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.box.serve import admission, holders, needs, records, situation
from plimsoll.box.serve.acting import Act, RefusedError
from plimsoll.box.serve.launch import launcher
from plimsoll.box.serve.model import Admitted, Model, Needed, Refused, Situation
from plimsoll.box.serve.records import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.box.guard.model import Reservation


@dataclass(frozen=True)
class Granted:
    """An admission, and what it went by."""

    needed: Needed
    situation: Situation
    admitted: Admitted
    notes: tuple[str, ...] = ()
    """What should be known besides: what starts it without an admission."""

    def why_not(self, model: Model, selector: str, others: "Sequence[Reservation]") -> str | None:
        """Return why it would not be admitted beside these reservations, None where it would."""
        now = replace(self.situation, reservations=tuple(others))
        found = admission.admit(model.name, self.needed, model.need.steady_line_kib, now, selector)
        return found.why if isinstance(found, Refused) else None


MakesRoom = Callable[[Needed, Situation], bool]
"""Asks back what nobody uses, and says whether the box has to be looked at again."""


def check(act: Act, model: Model, makes_room: MakesRoom | None = None) -> Granted:
    """Say whether a model may start now, and change nothing, unless told how to make room; raises RefusedError."""
    seen = launcher(act.host, model).look()
    if seen.there:
        raise RefusedError(
            f"{model.name} runs already: {seen.said}; plimsoll serve restart {model.name} starts it anew"
        )
    needed, found = needs.needed(act.host, model), _situation(act, model)
    if makes_room is not None and makes_room(needed, found):
        found = _situation(act, model)
    verdict = admission.admit(model.name, needed, model.need.steady_line_kib, found)
    if isinstance(verdict, Admitted):
        return Granted(needed, found, verdict, (*verdict.notes, *seen.notes))
    if verdict.shortfall_kib is not None:
        # the driver takes its time, and knows better who holds how much
        again = admission.admit(model.name, needed, model.need.steady_line_kib, _situation(act, model, asks=True))
        verdict = again if isinstance(again, Refused) else verdict
    raise RefusedError(refusal(model, verdict))


def check_instead(act: Act, model: Model, old: Model) -> None:
    """Raise RefusedError where a model would not fit even once another has given back all that it took."""
    state = records.read(act.host, old.name)
    now = _situation(act, model)
    if state is None or state.phase is not Phase.READY or now.available_kib is None or state.footprint_kib is None:
        return
    freed = replace(
        now,
        available_kib=now.available_kib + state.footprint_kib,
        running=tuple(each for each in now.running if each.name != old.name),
        reservations=tuple(each for each in now.reservations if each.workload != state.selector),
        port_taken=False,
    )
    verdict = admission.admit(
        model.name, needs.needed(act.host, model), model.need.steady_line_kib, freed
    )  # fmt: skip
    if isinstance(verdict, Refused):
        raise RefusedError(f"{refusal(model, verdict)}; that is without {old.name}, which goes on")


def _situation(act: Act, model: Model, *, asks: bool = False) -> Situation:
    running = records.running(act.host, but=(model.name,))
    return situation.look(act.host, port=model.port, running=running, with_driver=asks)


def refusal(model: Model, refused: Refused) -> str:
    """Return a refusal for people: what is missing, and who holds it."""
    held = "; ".join(holders.describe(each) for each in refused.holders)
    parts = (f"{model.name} is not started: {refused.why}", held, refused.what_to_do)
    return "; ".join(part for part in parts if part)
