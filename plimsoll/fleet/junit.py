"""An audit's report for a CI server: JUnit XML as Jenkins and GitLab read it. Pure.

A host is a test suite, a control a test case. The class name is HOST.LAYER: Jenkins makes its tree of it, and
GitLab keeps one result for each class name and name, whatever suite they stand in.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from plimsoll.box.model import BAD, Judgement, Verdict
from plimsoll.fleet.advice import advice, matters
from plimsoll.fleet.text import printable, readable

if TYPE_CHECKING:
    from plimsoll.fleet.report import Finding, HostReport, Report

_SKIPPED = frozenset({Verdict.WAIVED, Verdict.UNSUPPORTED, Verdict.PENDING})


def junit(report: Report) -> str:
    """Return the document: failures for drift, errors for what could not be told, the rest passed or skipped.

    Findings and what could not be seen are skipped cases: listed, and failing no build, as the exit code does not.
    """
    root = ET.Element("testsuites", name="plimsoll audit")
    for host in report.hosts:
        root.append(_suite(host, report.taken))
    root.set("time", _seconds(sum(host.took_ms for host in report.hosts)))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(host: HostReport, taken: str) -> ET.Element:
    name = printable(host.name)
    suite = ET.Element("testsuite", name=name, hostname=name, time=_seconds(host.took_ms))
    timestamp = _utc(taken)
    if timestamp:
        suite.set("timestamp", timestamp)
    _properties(suite, host)
    suite.append(_reached(host))
    suite.extend(_control(judgement, host.name) for judgement in host.controls)
    suite.extend(_finding(finding, host.name) for finding in host.findings)
    suite.extend(_not_seen(what, number, host.name) for number, what in enumerate(host.not_seen, 1))
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _properties(suite: ET.Element, host: HostReport) -> None:
    if host.facts:
        properties = ET.SubElement(suite, "properties")
        for name, value in host.facts.items():
            shown = "not known" if value is None else printable(value)
            ET.SubElement(properties, "property", name=printable(name), value=shown)


def _case(host: str, group: str, name: str) -> ET.Element:
    # the schemas want a time on every case; a host is read in one go, and only the suite's time is measured
    return ET.Element("testcase", classname=f"{printable(host)}.{printable(group)}", name=printable(name), time="0.000")


def _result(case: ET.Element, tag: str, message: str, details: tuple[str, ...]) -> None:
    # twice, because GitLab shows the element's text and Jenkins the attribute
    result = ET.SubElement(case, tag, message=message)
    result.text = "\n".join((message, *details))
    if tag != "skipped":
        result.set("type", "plimsoll")


def _reached(host: HostReport) -> ET.Element:
    case = _case(host.name, "host", "reached")
    if not host.reached:
        _result(case, "error", f"not reached: {printable(host.problem)}", ())
    return case


def _control(judgement: Judgement, host: str) -> ET.Element:
    case = _case(host, judgement.layer, judgement.id)
    if judgement.verdict is Verdict.UNKNOWN:
        tag = "error"
    elif judgement.verdict in BAD:
        tag = "failure"
    elif judgement.verdict in _SKIPPED:
        tag = "skipped"
    else:
        return case
    _result(case, tag, f"{judgement.verdict}: {printable(judgement.reason)}", _details(judgement, host))
    return case


def _details(judgement: Judgement, host: str) -> tuple[str, ...]:
    place = judgement.decided_by
    decided = printable(f"{place.file}:{place.line}") if place is not None else "nothing"
    return (
        f"wanted: {readable(judgement.wanted)}",
        f"now: {readable(judgement.live)}",
        f"after a reboot: {readable(judgement.persisted)}",
        f"decided by: {decided}",
        f"what to do: {printable(advice(judgement, host))}",
        f"why it matters: {matters(judgement)}",
    )


def _finding(finding: Finding, host: str) -> ET.Element:
    case = _case(host, "findings", finding.id)
    details = (finding.seen, finding.why, finding.evidence, f"{finding.source}, {finding.dated}", finding.advice)
    message = f"{finding.kind.replace('_', ' ')}: {printable(finding.title)}"
    _result(case, "skipped", message, tuple(printable(text) for text in details))
    return case


def _not_seen(what: str, number: int, host: str) -> ET.Element:
    case = _case(host, "not seen", str(number))
    _result(case, "skipped", f"could not be seen: {printable(what)}", ())
    return case


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"


def _utc(taken: str) -> str:
    """Return the time without its offset, which the strictest of the schemas does not allow; empty for none."""
    try:
        moment = datetime.datetime.fromisoformat(taken)
        return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):
        return ""
