"""An audit's report for Prometheus: text that is valid OpenMetrics and valid for node_exporter's textfile collector.

Pure. A collector refuses a file in which a series occurs twice, so every series is kept once.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plimsoll.box.model import Verdict
from plimsoll.fleet.advice import severity
from plimsoll.fleet.report import FindingKind
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.fleet.report import HostReport, Report

_MOST_CONTROLS = 200
"""Deviating controls of one host that get a series of their own, the worst first; a deploy has about 60 controls."""
_LONGEST_LABEL = 200
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass
class _Gauge:
    name: str
    help: str
    series: dict[str, str] = field(default_factory=dict)

    def add(self, value: float, **labels: str) -> None:
        said = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
        self.series[f"{self.name}{{{said}}}" if said else self.name] = f"{value:.15g}"

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        yield from (f"{name} {value}" for name, value in self.series.items())


def _label(text: str) -> str:
    return printable(text, _LONGEST_LABEL).translate(_ESCAPES)


def metrics(report: Report) -> str:
    """Return the exposition. A host that was not reached has no figures but that: nothing is known of it.

    `plimsoll_control_not_ok` has a series only for what is not ok, at most 200 a host; `plimsoll_controls` counts all.
    """
    makers = (_times, _reached, _durations, _controls, _not_ok, _findings, _not_seen)
    gauges = [make(report) for make in makers]
    lines = [line for gauge in gauges if gauge.series for line in gauge.lines()]
    return "\n".join([*lines, "# EOF", ""])


def _times(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_audit_timestamp_seconds", "When the audit began, in seconds since 1970-01-01 UTC.")
    try:
        gauge.add(datetime.datetime.fromisoformat(report.taken).timestamp())
    except (ValueError, OverflowError):
        return gauge  # a box's own report does not say when it was made
    return gauge


def _reached(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_host_reached", "Whether the host was reached and its answer could be used (1) or not (0).")
    for host in report.hosts:
        gauge.add(host.reached, host=host.name)
    return gauge


def _durations(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_audit_host_duration_seconds", "From the first attempt to connect to the last byte.")
    for host in report.hosts:
        gauge.add(host.took_ms / 1000, host=host.name)
    return gauge


def _controls(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_controls", "Number of controls of the host with this verdict.")
    for host in _known(report):
        for verdict in Verdict:
            gauge.add(host.count(verdict), host=host.name, verdict=verdict)
    return gauge


def _not_ok(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_control_not_ok", "1 for every control that is not ok, with its verdict.")
    for host in report.hosts:
        bad = sorted((j for j in host.controls if j.verdict is not Verdict.OK), key=severity)
        for judgement in bad[:_MOST_CONTROLS]:
            gauge.add(1, host=host.name, control=judgement.id, verdict=judgement.verdict)
    return gauge


def _findings(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_findings", "Number of findings on the host that no control covers, by kind.")
    for host in _known(report):
        for kind in FindingKind:
            number = sum(finding.kind is kind for finding in host.findings)
            gauge.add(number, host=host.name, kind=kind)
    return gauge


def _not_seen(report: Report) -> _Gauge:
    gauge = _Gauge("plimsoll_not_seen", "Number of things on the host that could not be looked at.")
    for host in _known(report):
        gauge.add(len(host.not_seen), host=host.name)
    return gauge


def _known(report: Report) -> list[HostReport]:
    return [host for host in report.hosts if host.reached or host.controls]
