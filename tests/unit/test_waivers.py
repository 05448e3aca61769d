"""Waivers that do not do what they were written for."""

import datetime
from pathlib import Path

import pytest

from plimsoll import inventory
from plimsoll.box.model import Judgement, Verdict
from plimsoll.fleet.report import HostReport, WaiverNote
from plimsoll.fleet.waivers import notes

TODAY = datetime.date(2026, 12, 1)
CONTROL = "kernel/kernel.sysrq"
FLEET = """\
groups: {pair: {hosts: [a, b]}}
hosts: {a: {}, b: {}, c: {}}
waivers:
  - {control: %s, hosts: [%s], reason: strangers at the console, until: %s}
"""


def _fleet(path: Path, hosts: str, until: str = "2026-12-01", control: str = CONTROL) -> inventory.Inventory:
    file = path / "hosts.yml"
    file.write_text(FLEET % (control, hosts, until))
    return inventory.load(file)


def _host(name: str, *verdicts: tuple[str, Verdict], reached: bool = True) -> HostReport:
    controls = tuple(Judgement(each, "x", verdict, "1", "1", "1", None, "") for each, verdict in verdicts)
    return HostReport(name, reached, controls=controls)


def _problems(found: tuple[WaiverNote, ...]) -> list[str]:
    return [note.problem for note in found]


def test_used(tmp_path: Path) -> None:
    """A waiver that excuses a host of those it is for is in use, on its last day too."""
    reports = [_host("a", (CONTROL, Verdict.WAIVED)), _host("b", (CONTROL, Verdict.OK))]
    assert notes(_fleet(tmp_path, "pair"), reports, TODAY) == ()


def test_expired(tmp_path: Path) -> None:
    """The day after its last one a waiver is expired, whatever the hosts have."""
    found = notes(_fleet(tmp_path, "a", until="2026-11-30"), [_host("a", (CONTROL, Verdict.OK))], TODAY)
    assert found == (WaiverNote(CONTROL, ("a",), "2026-11-30", "expired"),)


def test_expired_without_an_answer(tmp_path: Path) -> None:
    """That a waiver has ended is known from the inventory alone."""
    assert _problems(notes(_fleet(tmp_path, "a", until="2026-11-30"), [_host("a", reached=False)], TODAY)) == [
        "expired"
    ]


@pytest.mark.parametrize("named", ["a", "pair", "all"])
def test_unused(tmp_path: Path, named: str) -> None:
    """Hosts, groups and `all`: where the control is as wanted on each that was looked at, the waiver is unused."""
    found = notes(_fleet(tmp_path, named), [_host("a", (CONTROL, Verdict.OK))], TODAY)
    assert found == (WaiverNote(CONTROL, (named,), "2026-12-01", "unused"),)


def test_unused_where_the_control_is_absent(tmp_path: Path) -> None:
    """A host whose policy leaves the control alone needs no waiver for it."""
    other = _host("a", ("kernel/kernel.panic", Verdict.DRIFTED))
    assert _problems(notes(_fleet(tmp_path, "a"), [other], TODAY)) == ["unused"]


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.PENDING, Verdict.UNSUPPORTED, Verdict.DRIFTED])
def test_no_evidence(tmp_path: Path, verdict: Verdict) -> None:
    """A control that is not known to be right does not prove that nobody needs the waiver."""
    assert notes(_fleet(tmp_path, "a"), [_host("a", (CONTROL, verdict))], TODAY) == ()


def test_a_record_for_several_units(tmp_path: Path) -> None:
    """One unit that deviates uses the waiver of the record that stands for all of them."""
    control = "sshd/MemoryMin"
    used = _host("a", (f"{control}:ssh.service", Verdict.WAIVED))
    other = _host("a", (f"{control}Low:ssh.service", Verdict.WAIVED), (f"{control}:ssh.service", Verdict.OK))
    fleet = _fleet(tmp_path, "a", control=control)
    assert notes(fleet, [used], TODAY) == ()
    assert _problems(notes(fleet, [other], TODAY)) == ["unused"]


def test_hosts_that_were_not_reached(tmp_path: Path) -> None:
    """A host that does not answer proves nothing, and is no reason to be silent about one that does."""
    fleet = _fleet(tmp_path, "pair")
    assert notes(fleet, [_host("a", reached=False), _host("b", reached=False)], TODAY) == ()
    assert _problems(notes(fleet, [_host("a", reached=False), _host("b", (CONTROL, Verdict.OK))], TODAY)) == ["unused"]


@pytest.mark.parametrize("until", ["2026-11-30", "2026-12-01"])
def test_hosts_that_were_not_looked_at(tmp_path: Path, until: str) -> None:
    """An audit of other hosts has nothing to say about a waiver."""
    assert notes(_fleet(tmp_path, "pair", until), [_host("c", (CONTROL, Verdict.OK))], TODAY) == ()


def test_all_covers_a_host_from_the_command_line(tmp_path: Path) -> None:
    """A host that the inventory does not name has the waivers for all."""
    assert notes(_fleet(tmp_path, "all"), [_host("elsewhere", (CONTROL, Verdict.WAIVED))], TODAY) == ()
