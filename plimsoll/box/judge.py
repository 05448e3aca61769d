"""State and wanted controls in, verdicts out. Pure: no file is read and no process started here.

Order of verdicts: see `plimsoll.box.model.Verdict`. What each kind of control compares is in
`plimsoll.box.readings`.
"""

import datetime
from collections.abc import Iterable, Mapping

from plimsoll.box.model import BAD, Judgement, Place, State, Verdict, Wanted
from plimsoll.box.quantities import same_value
from plimsoll.box.readings import Reading, reading


def judge(wanted: Iterable[Wanted], state: State, today: datetime.date) -> list[Judgement]:
    """Return a judgement for every control, in the given order; never raises for what a state contains."""
    return [judge_one(control, state, today) for control in wanted]


def judge_one(control: Wanted, state: State, today: datetime.date) -> Judgement:
    """Judge one control; a reading that breaks on a malformed state is `unknown` with the reason."""
    try:
        found = _checked(reading(control, state))
        verdict, reason = _verdict(control, found, today)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        found = Reading()
        verdict, reason = Verdict.UNKNOWN, f"the state of the host is not in the expected form: {error!r}"
    waiting = _waiting(control.layer, state)
    if verdict in BAD and waiting:
        verdict, reason = Verdict.PENDING, waiting
    return Judgement(
        id=control.id,
        layer=control.layer,
        verdict=verdict,
        wanted=control.value,
        live=found.live,
        persisted=found.persisted,
        decided_by=found.decided_by,
        reason="; ".join(part for part in (reason, found.note) if part),
    )


def _checked(found: Reading) -> Reading:
    """Return a reading that holds what it is declared to hold; raises TypeError for another, from a malformed state."""
    texts = [found.live, found.persisted, found.pending, found.drift, found.note, found.unknown, found.unsupported]
    place = found.decided_by or Place("", 0)
    if not all(text is None or isinstance(text, str) for text in (*texts, place.file)) or type(place.line) is not int:
        raise TypeError("a value is not text")
    return found


def _waiting(layer: str, state: State) -> str:
    """Return what a whole layer waits for since it was last tried, such as a package source; empty for nothing."""
    proofs = state.get("proofs")
    pending = proofs.get("pending") if isinstance(proofs, Mapping) else None
    return str(pending.get(layer, "")) if isinstance(pending, Mapping) else ""


def _verdict(control: Wanted, found: Reading, today: datetime.date) -> tuple[Verdict, str]:
    if found.unknown:
        return Verdict.UNKNOWN, found.unknown
    if found.unsupported:
        return Verdict.UNSUPPORTED, found.unsupported
    verdict, reason = _compare(control, found)
    waiver = control.waiver
    if waiver is not None and verdict in BAD:
        if waiver.holds(today):
            return Verdict.WAIVED, f"{waiver.reason} (until {waiver.until}); otherwise {verdict}: {reason}"
        return verdict, f"{reason}; the waiver ended on {waiver.until}"
    return verdict, reason


def _compare(control: Wanted, found: Reading) -> tuple[Verdict, str]:
    live_right = found.live_right
    if live_right is None:
        live_right = same_value(control.kind, control.name, found.live, control.value)
    kept_right = same_value(control.kind, control.name, found.persisted, control.value)
    place = found.decided_by
    if not kept_right and place is not None and found.ours_present and place.file != control.file:
        return Verdict.SHADOWED, f"{place.file}:{place.line} {_sets(found.persisted)} and wins over {control.file}"
    if live_right and kept_right:
        return Verdict.OK, ""
    if kept_right and found.pending:
        return Verdict.PENDING, found.pending
    if not live_right:
        return Verdict.DRIFTED, found.drift or f"the running system has {_said(found.live)}"
    return Verdict.UNPERSISTED, f"after a reboot it would be {_said(found.persisted)}{_where(found)}"


def _sets(value: str | None) -> str:
    return "takes it back" if value is None else f"sets {_visible(value) or 'nothing'}"


def _said(value: str | None) -> str:
    return _visible(value) if value else "nothing set"


def _visible(value: str) -> str:
    """Return a value as it is, or spelled out if it holds what cannot be seen, such as a no-break space."""
    return value if value.isprintable() else ascii(value)


def _where(found: Reading) -> str:
    place = found.decided_by
    return f" ({place.file}:{place.line})" if place is not None else ""


def exit_code(judgements: Iterable[Judgement], *, strict: bool = False) -> int:
    """Return 3 if anything is unknown, else 2 if anything is bad (or, `strict`, pending), else 0."""
    verdicts = {j.verdict for j in judgements}
    if Verdict.UNKNOWN in verdicts:
        return 3
    return 2 if verdicts & BAD or (strict and Verdict.PENDING in verdicts) else 0
