"""What is said: one document for programs (`plimsoll.fit/1`), one table for people, both from the same facts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box.fit.advice import Advice, spread
from plimsoll.box.fit.box import Account, Box
from plimsoll.box.fit.model import Estimate, Item, Place, Verdict
from plimsoll.box.fit.protection import false_ones
from plimsoll.box.fit.sizes import gib
from plimsoll.box.fit.verdict import Judged

SCHEMA = "plimsoll.fit/1"
WORDS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight: not safe to start",
    Verdict.NO: "does not fit",
    Verdict.UNKNOWN: "cannot tell",
}


@dataclass(frozen=True)
class Answer:
    """Everything that is known about a question."""

    box: Box
    estimates: Sequence[Estimate]
    judged: Judged
    advice: Sequence[Advice]
    """One for each estimate."""


def document(answer: Answer) -> dict[str, Any]:
    """Return the answer as JSON."""
    judged, box = answer.judged, answer.box
    return {
        "schema": SCHEMA,
        "engine": _joined(each.launch.engine for each in answer.estimates),
        "verdict": judged.verdict.value,
        "need_bytes": judged.need if _has_figures(answer) else None,
        "available_bytes": judged.available,
        "available_basis": judged.available_basis,
        "items": [_item(each, item) for each in answer.estimates for item in each.items],
        "flags": _flags(answer.estimates),
        "warnings": _warnings(answer),
        "reasons": list(judged.reasons),
        "unknowns": [reason for each in answer.estimates for reason in each.unknowns],
        "kept_bytes": _amount(judged.kept),
        "peak_bytes": _amount(judged.peak),
        "margins": [
            {"line": each.line, "at_bytes": each.at, "kept_bytes": each.kept, "peak_bytes": each.peak}
            for each in judged.margins
        ],
        "box": {
            "name": box.name, "mem_total_bytes": box.total, "empty_bytes": box.empty, "empty_basis": box.empty_basis,
            "regime": box.regime, "lines_basis": box.lines.basis,
        },
        "engines": [_engine(each, advice) for each, advice in zip(answer.estimates, answer.advice, strict=True)],
    }  # fmt: skip


def refusal(why: str) -> dict[str, Any]:
    """Return the document for a question that could not even be read."""
    return {
        "schema": SCHEMA, "engine": None, "verdict": Verdict.UNKNOWN.value, "need_bytes": None, "available_bytes": None,
        "items": [], "flags": {}, "warnings": [], "reasons": [why], "unknowns": [why],
    }  # fmt: skip


def _joined(names: Any) -> str:  # noqa: ANN401  # any iterable of texts
    return ", ".join(dict.fromkeys(names))


def _has_figures(answer: Answer) -> bool:
    return any(each.items for each in answer.estimates)


def _amount(amount: Any) -> dict[str, int]:  # noqa: ANN401  # an Amount
    return {"low": amount.low, "likely": amount.likely, "high": amount.high}


def _item(estimate: Estimate, item: Item) -> dict[str, Any]:
    return {
        "name": item.name, "bytes": item.amount.likely, "basis": item.basis, "low_bytes": item.amount.low,
        "high_bytes": item.amount.high, "engine": estimate.launch.name, "passing": item.passing,
        "where": "gpu" if item.gpu else "box",
    }  # fmt: skip


def _flags(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the flags of the one engine; of several, of each by its name."""
    each = {one.launch.name: {setting.flag: setting.value for setting in one.settings} for one in estimates}
    return next(iter(each.values())) if len(estimates) == 1 else each


def _warnings(answer: Answer) -> list[str]:
    found = list(answer.box.notes)
    for each in answer.estimates:
        found += [*each.warnings, *each.launch.notes, *false_ones(each.launch, answer.box)]
        found += [
            f"{flag}: this flag is not known here, so whether it takes memory is not either"
            for flag in each.unknown_flags
        ]
    return list(dict.fromkeys(found))


def _place(place: Place | None) -> str | None:
    return str(place) if place else None


def _engine(estimate: Estimate, advice: Advice) -> dict[str, Any]:
    launch = estimate.launch
    return {
        "name": launch.name, "engine": launch.engine, "model": estimate.model or None,
        "place": _place(launch.place), "exclusive": launch.exclusive or None,
        "settings": [
            {"flag": each.flag, "value": each.value, "unit": each.unit, "place": _place(each.place)}
            for each in estimate.settings
        ],
        "unknown_flags": list(estimate.unknown_flags), "concurrency": dict(estimate.concurrency),
        "never": estimate.never or None, "largest_that_fits": advice.largest or None,
        "flags_to_paste": advice.paste or None, "trial_start": advice.trial or None,
    }  # fmt: skip


# --- for people -------------------------------------------------------------------------------------


def lines(answer: Answer) -> list[str]:
    """Return the answer for people."""
    found: list[str] = []
    for each, advice in zip(answer.estimates, answer.advice, strict=True):
        found += [*_one(each), *_advised(advice), ""]
    judged = answer.judged
    found += [f"On {_named(answer.box)}:", *_sums(answer), ""]
    found += [f"VERDICT: {WORDS[judged.verdict]}", *(f"  {reason}" for reason in judged.reasons)]
    warnings = _warnings(answer)
    return [*found, *(["", "Beware:"] if warnings else []), *(f"  - {each}" for each in warnings)]


def _named(box: Box) -> str:
    """Return a box's name with its memory, which the name of one that is only a size has already."""
    size = gib(box.total)
    return box.name if size in box.name else f"{box.name} ({size})"


def _one(estimate: Estimate) -> list[str]:
    launch = estimate.launch
    where = f" ({launch.place})" if launch.place else ""
    found = [f"{launch.name}: {launch.engine} {estimate.model}{where}".rstrip()]
    if estimate.settings:
        shown = (f"{each.flag} {each.written}".strip() for each in estimate.settings)
        found.append(f"  understood: {', '.join(shown)}")
    width = max((len(item.name) for item in estimate.items), default=0)
    for item in estimate.items:
        mark = " (start only)" if item.passing else " (on the GPU)" if item.gpu else ""
        found.append(f"  {item.name:<{width}}  {spread(item.amount)}{mark}: {item.basis}")
    found += [f"  cannot tell: {each}" for each in estimate.unknowns]
    return found + _carried(estimate)


def _carried(estimate: Estimate) -> list[str]:
    carried = estimate.concurrency
    if carried.get("full_length_requests") is None:
        return []
    each = f"; with {carried['asked']} at a time each has {carried['tokens_each']} tokens"
    shown = f"{carried['full_length_requests']} requests of {carried['context']}"
    return [f"  the cache carries {carried['kv_tokens']} tokens: {shown}{each if 'tokens_each' in carried else ''}"]


def _advised(advice: Advice) -> list[str]:
    found = [f"  largest that fits: {advice.largest}"] if advice.largest else []
    if advice.paste:
        found.append(f"  to paste: {advice.paste}")
    return [*found, *([f"  try first: {advice.trial}"] if advice.trial else [])]


def _sums(answer: Answer) -> list[str]:
    judged = answer.judged
    if not _has_figures(answer):
        return ["  nothing could be added up"]
    free = "not known" if judged.available is None else gib(judged.available)
    found = [
        f"  kept       {spread(judged.kept)}",
        f"  at start   {spread(judged.peak)}",
        f"  available  {free}: {judged.available_basis}",
        f"  empty box  {gib(answer.box.empty)}: {answer.box.empty_basis}",
    ]
    return found + [
        f"  {each.line:<16} at {gib(each.at):>9}: {_above(each.kept)} while it runs, {_above(each.peak)} at the start"
        for each in judged.margins
    ]


def _above(margin: int) -> str:
    return f"{gib(margin)} above" if margin >= 0 else f"{gib(-margin)} below"


# --- the box alone ----------------------------------------------------------------------------------


def box_document(box: Box, account: Account | None) -> dict[str, Any]:
    """Return what a model gets on a box, as JSON: a fit without an engine."""
    free = box.empty if box.available is None else box.available
    return {
        "schema": SCHEMA, "engine": None, "verdict": Verdict.UNKNOWN.value, "need_bytes": None,
        "available_bytes": box.available, "items": [], "flags": {}, "warnings": list(box.notes),
        "box": {
            "name": box.name, "mem_total_bytes": box.total, "empty_bytes": box.empty, "empty_basis": box.empty_basis,
            "regime": box.regime, "regime_basis": box.regime_basis, "lines_basis": box.lines.basis,
            "kernel_reserve_bytes": box.kernel_reserve,
            "for_models_bytes": max(0, free - box.lines.slow_leave),
            "physical_bytes": account.physical if account else None,
            "system_ram_bytes": account.system_ram if account else None,
            "reserved_bytes": account.reserved if account else None,
            "struct_page_bytes": account.struct_pages if account else None,
            "kernel_image_bytes": account.kernel if account else None,
        },
    }  # fmt: skip


def box_lines(box: Box, account: Account | None) -> list[str]:
    """Return the same for people."""
    found = [f"{box.name}: MemTotal {gib(box.total)}"]
    found += _accounted(box, account) if account else []
    now = "not known" if box.available is None else gib(box.available)
    free = box.empty if box.available is None else box.available
    lines_gib = f"{gib(box.lines.slow_leave)} and {gib(box.lines.slow_enter)} (slow), {gib(box.lines.floor)} (floor)"
    leave = box.lines.slow_leave
    kept = f"{gib(max(0, free - leave))} now, {gib(max(0, box.empty - leave))} on the empty box"
    if box.available is not None:
        found.append(f"  in use                 {gib(box.total - box.available)}")
    if box.kernel_reserve is not None:
        found.append(f"  the kernel's reserve   {gib(box.kernel_reserve)} (not counted as free)")
    found += [
        f"  free for a model now   {now} (regime {box.regime}: {box.regime_basis})",
        f"  free when it is empty  {gib(box.empty)} ({box.empty_basis})",
        f"  the guard's lines      {lines_gib}: {box.lines.basis}",
        f"  a model may keep       {kept}",
    ]
    return [*found, *(f"  - {note}" for note in box.notes)]


def _accounted(box: Box, account: Account) -> list[str]:
    if account.physical is None and account.system_ram is None:
        return ["  how much is built in cannot be told (/proc/iomem shows it to root, and the model of the box)"]
    found = []
    if account.physical is not None:
        gone = account.physical - box.total
        found.append(f"  built in               {gib(account.physical)}, of which {gib(gone)} are gone:")
    parts = (
        ("reserved by firmware", account.reserved),
        ("struct page", account.struct_pages),
        ("kernel image", account.kernel),
    )
    found += [f"    {name:<20} {gib(size)}" for name, size in parts if size is not None]
    if account.system_ram is None:
        found.append("    where to, /proc/iomem shows to root")
    elif account.physical is not None:
        known = sum(size for _name, size in parts if size is not None)
        rest = gib(account.physical - box.total - known)
        found.append(f"    {'the rest':<20} {rest}, never handed to Linux or taken at boot")
    return found
