"""What to do about a verdict, and why its control matters, for every form in which a report is shown. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.box.model import Judgement, Verdict
from plimsoll.controls import registry, trims
from plimsoll.controls.docs import layer_summary, undo_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plimsoll.controls.record import Control, Why

BY_SEVERITY = (
    Verdict.UNKNOWN,
    Verdict.SHADOWED,
    Verdict.DRIFTED,
    Verdict.UNPERSISTED,
    Verdict.PENDING,
    Verdict.WAIVED,
    Verdict.UNSUPPORTED,
    Verdict.OK,
)
"""The verdicts in the order in which a reader wants them."""


def severity(judgement: Judgement) -> int:
    """Return the place of a judgement among others, 0 for the worst; to sort by."""
    return BY_SEVERITY.index(judgement.verdict)


def worst(judgements: Iterable[Judgement]) -> Verdict | None:
    """Return the worst verdict, or None where nothing was judged."""
    return min((j.verdict for j in judgements), key=BY_SEVERITY.index, default=None)


@dataclass(frozen=True)
class Reason:
    """Why a control exists and how it is undone, with the name of the record that says so."""

    record: str
    why: Why
    undo: str


def reason_for(judgement: Judgement) -> Reason | None:
    """Return the reasons for a control; None for a file of ours, which has no record of its own."""
    control = _record(judgement.id)
    if control is not None:
        return Reason(control.id, control.why, f"`{undo_command(control.layer)}`. {control.undo()}".rstrip())
    if judgement.id.startswith("trims/") and not _is_file(judgement):
        return Reason("trims/UNIT", trims.WHY, f"`{undo_command('trims')}`.")
    return None


def _record(control_id: str) -> Control | None:
    named = [c for c in registry.every_control() if control_id == c.id or control_id.startswith(f"{c.id}:")]
    return max(named, key=lambda control: len(control.id), default=None)


def _is_file(judgement: Judgement) -> bool:
    return judgement.id.startswith(f"{judgement.layer}/file:")


def matters(judgement: Judgement) -> str:
    """Say in a sentence or two why a control matters; empty for one that this version does not know."""
    reason = reason_for(judgement)
    if reason is not None:
        return reason.why.reason
    if _is_file(judgement) and judgement.layer in registry.LAYERS:
        return (
            f"Plimsoll keeps a layer's settings in this file ({judgement.layer}: "
            f"{layer_summary(judgement.layer).rstrip('.')}). Once edited, removed or writable by others, it no longer "
            "says what was decided."
        )
    return ""


_ADVICE = {
    Verdict.UNKNOWN: "Mend what the reason names, or audit with root rights on {host}. Until then nobody knows "
    "whether this setting is in force.",
    Verdict.SHADOWED: "Take the setting out of {place}, which wins over ours, then run `pyinfra {host} deploy.py`. "
    "If it is meant to be so, say so in the inventory: another value, or a waiver with its reason.",
    Verdict.DRIFTED: "`plimsoll explain {id} {host}` shows which files had a say; `pyinfra {host} deploy.py` puts it "
    "right. If the change was meant, say so in the inventory: another value, or a waiver with its reason.",
    Verdict.UNPERSISTED: "It is right until the next reboot only. `plimsoll explain {id} {host}` shows what would "
    "decide then; `pyinfra {host} deploy.py` writes it down again.",
    Verdict.PENDING: "Do what the reason names when it suits, then audit again.",
    Verdict.WAIVED: "Nothing before the waiver ends. Then deploy, or give it a new date in the inventory.",
    Verdict.UNSUPPORTED: "Nothing on this kernel and release, which lack it; after an update the next deploy sets it.",
    Verdict.OK: "Nothing.",
}


def advice(judgement: Judgement, host: str) -> str:
    """Say what to do about a judgement on `host`; commands stand between backquotes."""
    place = judgement.decided_by
    where = f"`{place.file}:{place.line}`" if place is not None else "the file"
    words = {"id": shlex.quote(judgement.id), "host": shlex.quote(host), "place": where}
    return _ADVICE[judgement.verdict].format(**words)
