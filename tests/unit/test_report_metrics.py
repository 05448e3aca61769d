"""A report for Prometheus."""

import re

import pytest

from plimsoll.box.model import Verdict
from plimsoll.fleet.metrics import metrics
from plimsoll.fleet.report import HostReport, Report
from tests.unit import report_builders as build

LABEL = r'[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"(plimsoll_[a-z_]+)(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+)")


def samples(report: Report) -> dict[str, float]:
    """Return every series with its value; fails on a line that is neither a sample nor a known comment."""
    lines = metrics(report).split("\n")
    assert lines[-2:] == ["# EOF", ""]
    found: dict[str, float] = {}
    for line in lines[:-2]:
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP plimsoll_[a-z_]+ [^\\]+|TYPE plimsoll_[a-z_]+ gauge)", line)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        series = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
        assert series not in found, "a collector refuses a file with a series twice"
        found[series] = float(match[3])
    return found


@pytest.mark.parametrize("name", build.every_kind())
def test_it_is_valid_text_with_help_and_type_once_before_the_samples(name: str) -> None:
    """Every line parses, no series comes twice, and a metric's lines stand together below its help and type."""
    text = metrics(build.every_kind()[name])
    samples(build.every_kind()[name])
    assert text.encode()
    assert all(character == "\n" or character.isprintable() for character in text)
    order = [re.split(r"[ {]", line.removeprefix("# "))[0] for line in text.splitlines() if not line.startswith("# ")]
    declared = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert list(dict.fromkeys(order)) == declared
    assert order == sorted(order, key=declared.index)


def test_a_host_is_counted_by_verdict() -> None:
    """Every verdict has its count, zero included, and only what is not ok a series of its own."""
    found = samples(build.report(build.host(verdicts=(Verdict.DRIFTED, Verdict.PENDING))))
    counted = {v: found[f'plimsoll_controls{{host="gx10",verdict="{v}"}}'] for v in Verdict}
    assert counted == {
        **dict.fromkeys(Verdict, 0),
        Verdict.OK: build.CONTROLS - 2,
        Verdict.DRIFTED: 1,
        Verdict.PENDING: 1,
    }
    own = [series for series in found if series.startswith("plimsoll_control_not_ok")]
    assert len(own) == 2
    assert 'plimsoll_control_not_ok{host="gx10",control="box/plimsoll-verify.timer",verdict="drifted"}' in own


def test_a_host_that_was_not_reached_has_no_figures() -> None:
    """It is 0 as reached, and nothing says that it has no drift."""
    found = samples(build.report(build.unreached("a")))
    assert found['plimsoll_host_reached{host="a"}'] == 0
    assert {series.partition("{")[0] for series in found} == {
        "plimsoll_audit_timestamp_seconds",
        "plimsoll_host_reached",
        "plimsoll_audit_host_duration_seconds",
    }


def test_times_are_in_seconds() -> None:
    """When the audit began is a Unix time, and a host's duration is in seconds."""
    found = samples(build.report(build.host()))
    assert found["plimsoll_audit_timestamp_seconds"] == 1_785_226_320
    assert found['plimsoll_audit_host_duration_seconds{host="gx10"}'] == 1.234
    assert "plimsoll_audit_timestamp_seconds" not in samples(build.every_kind()["without a time"])


def test_findings_and_what_was_not_seen_are_counted() -> None:
    """Both kinds of finding have a figure, zero included."""
    found = samples(build.report(build.host(findings=(build.finding(),), not_seen=("x", "y"))))
    assert found['plimsoll_findings{host="gx10",kind="false_protection"}'] == 1
    assert found['plimsoll_findings{host="gx10",kind="known_bad"}'] == 0
    assert found['plimsoll_not_seen{host="gx10"}'] == 2


def test_a_host_cannot_add_a_line_or_a_label() -> None:
    """Quotes, backslashes and line ends of a name are escaped; no sample of its making appears."""
    name = 'a"} 1\nplimsoll_host_reached{host="b\\'
    found = samples(build.report(build.host(name)))
    reached = [series for series in found if series.startswith("plimsoll_host_reached")]
    assert reached == [r'plimsoll_host_reached{host="a\"} 1\\nplimsoll_host_reached{host=\"b\\"}']


def test_the_number_of_series_is_bounded() -> None:
    """A host with thousands of deviations has at most 200 series for them, the worst first, and the true count."""
    pending = tuple(build.judgement(Verdict.PENDING, f"kernel/{i}") for i in range(5000))
    host = HostReport("a", reached=True, controls=(*pending, build.judgement(Verdict.DRIFTED)))
    found = samples(build.report(host))
    own = [series for series in found if series.startswith("plimsoll_control_not_ok")]
    assert len(own) == 200
    assert 'verdict="drifted"' in own[0]
    assert found['plimsoll_controls{host="a",verdict="pending"}'] == 5000
