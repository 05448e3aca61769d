"""An audit's report as one HTML page that needs no network, no script and no other file. Pure but for its template.

Every text is made printable before the template sees it, and escaped by the template; anchors are numbers, so
nothing that a host says becomes part of the page's structure.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

import plimsoll
from plimsoll.box.model import BAD, LAYERS, Judgement, Verdict
from plimsoll.controls import registry
from plimsoll.fleet.advice import BY_SEVERITY, Reason, advice, matters, reason_for, severity, worst
from plimsoll.fleet.report import COULD_NOT_TELL
from plimsoll.fleet.text import printable, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.box.model import Place
    from plimsoll.fleet.report import Finding, HostReport, Report, WaiverNote

TEMPLATES = Path(__file__).resolve().parent / "templates"
_MOST_OPEN = 6
"""Up to this many hosts a deviating one is unfolded from the start; more would bury the overview."""
_BAR_WIDTH = 1000
_LONGEST_NAME = 100

_SIGNS = {
    Verdict.UNKNOWN: "?",
    Verdict.SHADOWED: "◐",
    Verdict.DRIFTED: "✗",
    Verdict.UNPERSISTED: "↺",
    Verdict.PENDING: "…",
    Verdict.WAIVED: "~",
    Verdict.UNSUPPORTED: "○",
    Verdict.OK: "✓",
}
"""A shape for every verdict, for those who cannot tell the colours apart and for print."""

_MEANINGS = {
    Verdict.UNKNOWN: "could not be looked at",
    Verdict.SHADOWED: "another file wins over ours",
    Verdict.DRIFTED: "the running system differs",
    Verdict.UNPERSISTED: "right now, gone after a reboot",
    Verdict.PENDING: "written down, not yet in force",
    Verdict.WAIVED: "deviates with leave",
    Verdict.UNSUPPORTED: "this kernel or release lacks it",
    Verdict.OK: "as wanted, now and after a reboot",
}

_View = dict[str, Any]
"""What the template is given of one thing: printable texts, numbers and further views."""


def page(report: Report) -> str:
    """Return the page. Text of any kind and size is taken; a single text is cut after 2000 characters."""
    reasons = _reasons(report)
    css = (TEMPLATES / "audit.css").read_text(encoding="utf-8")
    layers = _layers(report)
    unfold = len(report.hosts) <= _MOST_OPEN
    return _template().render(
        css=Markup(css),  # noqa: S704  # our own file, which the page's policy names by its hash
        css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
        version=plimsoll.__version__,
        taken=printable(report.taken).replace("T", " ", 1),
        layers=[printable(layer, _LONGEST_NAME).replace("_", " ") for layer in layers],
        tiles=_tiles(report),
        bar=_bar(report),
        hosts=[_host(host, f"h{i}", layers, list(reasons), unfold=unfold) for i, host in enumerate(report.hosts, 1)],
        waivers=[_waiver(note) for note in report.waivers],
        reasons=[_reason(reason, number) for number, reason in enumerate(reasons.values(), 1)],
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["commands"] = _commands
    return environment.get_template("audit.html.j2")


def _commands(text: str) -> Markup:
    """Escape a text and set off what stands between its backquotes."""
    parts = text.split("`")
    return Markup().join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


# --- the fleet --------------------------------------------------------------------------------------


def _layers(report: Report) -> list[str]:
    """Return the layers that occur, in the order of a deploy, then what this version does not know."""
    seen = dict.fromkeys(j.layer for host in report.hosts for j in host.controls)
    return [*(layer for layer in LAYERS if layer in seen), *(layer for layer in seen if layer not in LAYERS)]


def _tiles(report: Report) -> list[_View]:
    """Return the few numbers that say how it stands: of hosts, or of one host's controls."""
    if len(report.hosts) == 1 and report.hosts[0].reached:
        return _tiles_of_controls(report.hosts[0])
    hosts = report.hosts
    good = sum(host.exit_code() == 0 and bool(host.controls) for host in hosts)
    bad = sum(any(j.verdict in BAD for j in host.controls) for host in hosts)
    unseen = sum(host.exit_code() == COULD_NOT_TELL for host in hosts)
    return [
        _tile(good, f"of {_number(len(hosts), 'host')} as wanted", "ok"),
        _tile(bad, "with drift", "drifted"),
        _tile(unseen, "could not be told", "unknown"),
        _findings_tile(sum(len(host.findings) for host in hosts)),
    ]


def _tiles_of_controls(host: HostReport) -> list[_View]:
    return [
        _tile(host.count(Verdict.OK), f"of {_number(len(host.controls), 'control')} ok", "ok"),
        _tile(sum(j.verdict in BAD for j in host.controls), "with drift", "drifted"),
        _tile(host.count(Verdict.UNKNOWN), "could not be told", "unknown"),
        _findings_tile(len(host.findings)),
    ]


def _findings_tile(number: int) -> _View:
    return _tile(number, "finding beside the controls" if number == 1 else "findings beside the controls", "pending")


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tile(number: int, label: str, tone: str) -> _View:
    return {"number": number, "label": label, "tone": tone if number else "none"}


def _bar(report: Report) -> list[_View]:
    """Return a segment for every verdict that occurs, its place and width in thousandths of the bar."""
    numbers = {verdict: sum(host.count(verdict) for host in report.hosts) for verdict in BY_SEVERITY}
    total = sum(numbers.values())
    segments: list[_View] = []
    begin = 0.0
    for verdict, number in numbers.items():
        width = _BAR_WIDTH * number / total if total else 0.0
        x, shown = f"{begin:.2f}", f"{width:.2f}"
        segments.append({**_verdict(verdict), "number": number, "x": x, "width": shown})
        begin += width
    return segments


def _verdict(verdict: Verdict) -> _View:
    return {"name": verdict.value, "sign": _SIGNS[verdict], "meaning": _MEANINGS[verdict]}


def _waiver(note: WaiverNote) -> _View:
    return {
        "problem": printable(note.problem),
        "control": printable(note.control),
        "hosts": printable(", ".join(note.hosts)),
        "until": printable(note.until),
    }


def _reasons(report: Report) -> dict[str, Reason]:
    """Return the reasons for every control that occurs, by the name of its record, in the order of a deploy."""
    found = [reason_for(judgement) for host in report.hosts for judgement in host.controls]
    by_record = {reason.record: reason for reason in found if reason is not None}
    order = {control.id: place for place, control in enumerate(registry.every_control())}
    return dict(sorted(by_record.items(), key=lambda item: order.get(item[0], len(order))))


def _reason(reason: Reason, number: int) -> _View:
    return {"anchor": f"why{number}", "record": reason.record, "why": reason.why, "undo": reason.undo}


# --- one host ---------------------------------------------------------------------------------------


def _host(host: HostReport, anchor: str, layers: Sequence[str], reasons: Sequence[str], *, unfold: bool) -> _View:
    needs_care = bool(host.exit_code(strict=True) or host.not_seen or not host.controls)
    by_layer = {layer: [j for j in host.controls if j.layer == layer] for layer in layers}
    deviating = sorted((j for j in host.controls if j.verdict is not Verdict.OK), key=severity)
    return {
        "anchor": anchor,
        "name": printable(host.name, _LONGEST_NAME),
        "reached": host.reached,
        "problem": printable(host.problem) or "no reason is known",
        "took": f"{host.took_ms / 1000:.1f} s",
        "good": not needs_care,
        "unfolded": unfold and needs_care,
        "facts": [(printable(name).replace("_", " "), _text(value)) for name, value in host.facts.items()],
        "counts": [{**_verdict(v), "number": host.count(v)} for v in BY_SEVERITY if host.count(v)],
        "cells": [_cell(found, anchor, index) for index, found in enumerate(by_layer.values())],
        "deviating": [_control(judgement, host.name, reasons) for judgement in deviating],
        "fine": [
            {"layer": printable(layer, _LONGEST_NAME), "anchor": f"{anchor}-l{index}", "controls": ok}
            for index, (layer, found) in enumerate(by_layer.items())
            if (ok := [_control(j, host.name, reasons) for j in found if j.verdict is Verdict.OK])
        ],
        "findings": [_finding(finding) for finding in host.findings],
        "not_seen": [printable(what) for what in host.not_seen],
    }


def _text(value: object) -> str:
    return "not known" if value is None else printable(value)


def _cell(judgements: Sequence[Judgement], host: str, layer: int) -> _View | None:
    """Return a layer of a host in the overview, None where the host has nothing of that layer.

    It leads to the controls of that layer if all are ok, else to the head of the host, below which the others stand.
    """
    verdict = worst(judgements)
    if verdict is None:
        return None
    number = sum(j.verdict is verdict for j in judgements)
    anchor = f"{host}-l{layer}" if verdict is Verdict.OK else host
    return {"verdict": _verdict(verdict), "number": number, "of": len(judgements), "anchor": anchor}


def _control(judgement: Judgement, host: str, reasons: Sequence[str]) -> _View:
    reason = reason_for(judgement)
    return {
        "id": printable(judgement.id),
        "verdict": _verdict(judgement.verdict),
        "wanted": readable(judgement.wanted),
        "live": readable(judgement.live),
        "persisted": readable(judgement.persisted),
        "place": _place(judgement.decided_by),
        "reason": printable(judgement.reason),
        "advice": printable(advice(judgement, host)),
        "matters": matters(judgement),
        "why": f"why{reasons.index(reason.record) + 1}" if reason is not None else "",
    }


def _place(place: Place | None) -> str:
    if place is None:
        return ""
    return printable(f"{place.file}:{place.line}" if place.line else place.file)


def _finding(finding: Finding) -> _View:
    texts = ("title", "seen", "why", "evidence", "source", "dated", "advice")
    view: _View = {name: printable(getattr(finding, name)) for name in texts}
    return {**view, "kind": finding.kind.replace("_", " "), "place": _place(finding.place)}
