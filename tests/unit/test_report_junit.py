"""A report for a CI server."""

import re
from xml.etree import ElementTree as ET

import pytest

from plimsoll.box.model import Verdict
from plimsoll.fleet.junit import junit
from plimsoll.fleet.report import HostReport, Report
from tests.unit import report_builders as build

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parsed(report: Report) -> ET.Element:
    """Return the root of the document."""
    return ET.fromstring(junit(report))  # noqa: S314  # written by the code under test


def results(root: ET.Element) -> dict[str, str]:
    """Return for every test case its outcome, by class name and name."""
    cases = root.iter("testcase")
    return {f"{c.get('classname')} {c.get('name')}": c[0].tag if len(c) else "passed" for c in cases}


@pytest.mark.parametrize("name", build.every_kind())
def test_it_is_xml_with_counts_that_are_right(name: str) -> None:
    """The document parses, holds no forbidden character, and its counts are those of its cases."""
    text = junit(build.every_kind()[name])
    assert not FORBIDDEN.search(text)
    assert text.encode()
    root = parsed(build.every_kind()[name])
    assert root.tag == "testsuites"
    for suite in root:
        outcomes = [case[0].tag if len(case) else "passed" for case in suite.findall("testcase")]
        assert int(suite.get("tests", "")) == len(outcomes)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == outcomes.count(tag)
    for attribute in ("tests", "failures", "errors"):
        assert int(root.get(attribute, "")) == sum(int(suite.get(attribute, "")) for suite in root)


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict.UNKNOWN, "error"),
        (Verdict.UNSUPPORTED, "skipped"),
        (Verdict.WAIVED, "skipped"),
        (Verdict.SHADOWED, "failure"),
        (Verdict.PENDING, "skipped"),
        (Verdict.DRIFTED, "failure"),
        (Verdict.UNPERSISTED, "failure"),
        (Verdict.OK, "passed"),
    ],
)
def test_a_verdict_has_its_outcome(verdict: Verdict, outcome: str) -> None:
    """Drift fails, the unknown is an error, and what fails no audit fails no build."""
    root = parsed(build.report(HostReport("gx10", reached=True, controls=(build.judgement(verdict),))))
    assert results(root) == {"gx10.host reached": "passed", "gx10.kernel kernel/kernel.sysrq": outcome}


def test_a_failure_says_what_and_what_to_do() -> None:
    """Message and text name values, place, advice and reason."""
    root = parsed(build.report(HostReport("gx10", reached=True, controls=(build.judgement(Verdict.SHADOWED),))))
    failure = root.find(".//failure")
    assert failure is not None
    message = "shadowed: /etc/sysctl.d/zzz-site.conf:3 sets 438 and wins over /etc/sysctl.d/zz-plimsoll.conf"
    assert failure.get("message") == message
    assert failure.text is not None
    lines = failure.text.splitlines()
    assert lines[:5] == [
        message,
        "wanted: 1",
        "now: 438",
        "after a reboot: 438",
        "decided by: /etc/sysctl.d/zzz-site.conf:3",
    ]
    assert lines[5].startswith("what to do: Take the setting out of")
    assert lines[6].startswith("why it matters: All of sysrq")


def test_a_host_that_was_not_reached_is_an_error() -> None:
    """It is a suite with one error, which says why."""
    root = parsed(build.report(build.unreached()))
    assert results(root) == {"gx10-lost.host reached": "error"}
    error = root.find(".//error")
    assert error is not None
    assert error.get("message") == "not reached: timed out after 10 s: no banner"


def test_hosts_do_not_share_a_class_name() -> None:
    """The same control of two hosts is two results, also for a server that ignores suites."""
    assert len(results(parsed(build.fleet(50)))) == sum(1 for _ in parsed(build.fleet(50)).iter("testcase"))


def test_findings_and_what_was_not_seen_are_listed_and_fail_nothing() -> None:
    """They are skipped cases with their message."""
    host = HostReport("gx10", reached=True, findings=(build.finding(),), not_seen=("x: denied",))
    root = parsed(build.report(host))
    assert results(root)["gx10.findings docker-memory-limit"] == "skipped"
    messages = [element.get("message") for element in root.iter("skipped")]
    assert messages == [
        "false protection: A memory limit on a container that CUDA does not obey",
        "could not be seen: x: denied",
    ]


def test_times_are_in_seconds_and_utc() -> None:
    """The suite has the time that the host took, and when the audit began without an offset."""
    root = parsed(build.report(build.host(), build.unreached()))
    assert [suite.get("time") for suite in root] == ["1.234", "10.000"]
    assert root.get("time") == "11.234"
    assert root[0].get("timestamp") == "2026-07-28T08:12:00"
    assert parsed(build.every_kind()["without a time"])[0].get("timestamp") is None


def test_facts_are_properties() -> None:
    """Kernel and driver are there, and what is not known is said."""
    found = {p.get("name"): p.get("value") for p in parsed(build.report(build.host())).iter("property")}
    assert found["kernel"] == "6.17.0-1014-nvidia"
    assert found["earlyoom"] == "not known"
