"""What differs: from a saved report, and between hosts."""

import dataclasses
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plimsoll.box import verify
from plimsoll.box.model import Judgement, Place, Verdict
from plimsoll.fleet import compare, difference_table
from plimsoll.fleet.compare import Difference, ReportFileError, against_host, against_report, load, save
from plimsoll.fleet.report import Finding, FindingKind, HostReport, Report, WaiverNote

OURS, THEIRS = "/etc/sysctl.d/zz-plimsoll.conf", "/etc/sysctl.d/zzz-local.conf"
GOOD = Judgement("kernel/kernel.sysrq", "kernel", Verdict.OK, "1", "1", "1", Place(OURS, 4), "")
DRIFTED = dataclasses.replace(GOOD, verdict=Verdict.DRIFTED, live="0", reason="the running system has 0")
CONTAINER = Finding(
    id="docker-memory",
    kind=FindingKind.FALSE_PROTECTION,
    title="docker --memory does not hold a model",
    seen="container 0123456789ab has a limit of 16 GiB (process 4711)",
    why="GPU memory is charged to no cgroup.",
    evidence="A container with a limit of 16 GiB took 100.",
    source="virtual machine",
    dated="2026-10-01",
    advice="Give the engine a smaller share.",
)


def _host(*controls: Judgement, name: str = "a", **fields: Any) -> HostReport:  # noqa: ANN401  # any field
    facts = {"kernel": "6.17.0-1014-nvidia", "driver": "580.95.05"}
    return HostReport(name, **{"reached": True, "controls": controls, "facts": facts, **fields})


def _report(*hosts: HostReport) -> Report:
    return Report("2026-12-01T10:00:00+00:00", hosts)


def _shown(differences: tuple[Difference, ...], width: int = 80) -> str:
    out = io.StringIO()
    difference_table.show(differences, Console(file=out, width=width), ("saved", "now"))
    return out.getvalue()


# --- comparing one host -----------------------------------------------------------------------------


def test_nothing_differs() -> None:
    """A report does not differ from itself, and the exit code is 0."""
    host = _host(GOOD, DRIFTED, findings=(CONTAINER,))
    assert compare.compare(host, host) == ()
    assert compare.exit_code(()) == 0


def test_a_control_that_drifted() -> None:
    """Every field that differs is one difference; the reason stands with the first, and the exit code is 2."""
    found = compare.compare(_host(GOOD), _host(DRIFTED))
    assert found == (
        Difference("a", "control", GOOD.id, "verdict", "ok", "drifted", DRIFTED.reason),
        Difference("a", "control", GOOD.id, "live", "1", "0"),
    )
    assert compare.exit_code(found) == 2


@pytest.mark.parametrize(
    ("field", "value", "after"),
    [
        ("live", None, None),
        ("persisted", "0", "0"),
        ("wanted", "0", "0"),
        ("decided_by", Place(THEIRS, 4), THEIRS),
        ("decided_by", None, None),
    ],
)
def test_fields_of_a_control(field: str, value: object, after: str | None) -> None:
    """Each of the values, and the file that decides, is compared under an unchanged verdict too."""
    changes: dict[str, Any] = {field: value}
    (found,) = compare.compare(_host(GOOD), _host(dataclasses.replace(GOOD, **changes)))
    assert (found.field, found.after, found.exit_code()) == (field, after, 2)


def test_what_moves_by_itself() -> None:
    """A process number or free memory in a reason, the line in the same file and the time it took do not count."""
    before = _host(dataclasses.replace(GOOD, reason="pid 700, 3.1 GiB are available"), took_ms=90)
    moved = dataclasses.replace(GOOD, reason="pid 4711, 2.9 GiB are available", decided_by=Place(OURS, 5))
    assert compare.compare(before, _host(moved, took_ms=1200)) == ()


def test_controls_that_came_and_went() -> None:
    """A control of one side only is said with its verdict."""
    other = dataclasses.replace(GOOD, id="kernel/kernel.panic", verdict=Verdict.PENDING)
    came, went = compare.compare(_host(GOOD), _host(other))
    assert (came.id, came.before, came.after) == (other.id, None, "pending")
    assert (went.id, went.before, went.after) == (GOOD.id, "ok", None)
    assert came.exit_code() == went.exit_code() == 2


@pytest.mark.parametrize("turned", [False, True])
def test_unknown_is_not_compared(turned: bool) -> None:
    """Whether a control has changed that could not be looked at on one side is not known: exit code 3."""
    sides = [_host(GOOD), _host(dataclasses.replace(GOOD, verdict=Verdict.UNKNOWN, live=None))]
    before, after = reversed(sides) if turned else sides
    assert compare.exit_code(compare.compare(before, after)) == 3


def test_facts() -> None:
    """What Plimsoll does not set and depends on: changed, new and gone."""
    before = _host(facts={"kernel": "6.17", "driver": "580", "killers": None, "firmware": "5.36"})
    after = _host(facts={"kernel": "7.0", "driver": "580", "killers": "nohang.service", "bios": "1"})
    found = compare.compare(before, after)
    assert [(d.what, d.id, d.before, d.after) for d in found] == [
        ("fact", "bios", None, "1"),
        ("fact", "firmware", "5.36", None),
        ("fact", "kernel", "6.17", "7.0"),
        ("fact", "killers", None, "nohang.service"),
    ]
    assert compare.exit_code(found) == 2


def test_verdicts_only() -> None:
    """A report without facts says nothing about them; that they were left out is said and is no drift."""
    found = compare.compare(_host(GOOD, facts={}), _host(GOOD, findings=(CONTAINER,)))
    assert [(d.what, d.exit_code(strict=True)) for d in found] == [("scope", 0)]
    assert "the report of before holds verdicts only" in found[0].note
    assert "no facts and findings were compared" in _shown(found).replace("\n", " ")


def test_findings() -> None:
    """A finding is recognised after a restart, when its process and container have new numbers."""
    again = dataclasses.replace(CONTAINER, seen="container ba9876543210 has a limit of 16 GiB (process 99)")
    place = dataclasses.replace(CONTAINER, place=Place("/etc/docker/daemon.json", 3))
    assert compare.compare(_host(findings=(CONTAINER,)), _host(findings=(again,))) == ()
    second = compare.compare(_host(findings=(CONTAINER,)), _host(findings=(again, CONTAINER)))
    assert [(d.before, d.after) for d in second] == [(None, CONTAINER.seen)]
    new, gone = compare.compare(_host(findings=(CONTAINER,)), _host(findings=(place,)))
    assert (new.before, new.after, gone.before, gone.after) == (None, place.seen, CONTAINER.seen, None)
    assert (compare.exit_code((new, gone)), compare.exit_code((new, gone), strict=True)) == (0, 2)


def test_a_finding_that_nobody_could_look_for() -> None:
    """A finding that is gone where not everything could be seen is said together with that."""
    blind = _host(not_seen=("containers: permission denied",))
    (gone,) = compare.compare(_host(findings=(CONTAINER,)), blind)
    assert "not everything could be looked at now: containers: permission denied" in gone.note


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (True, False, ("reached", "not reached")),
        (False, True, ("not reached", "reached")),
        (False, False, ("not reached", "not reached")),
    ],
)
def test_not_reached(before: bool, after: bool, said: tuple[str, str]) -> None:
    """A host that one side has nothing of is not compared, and the exit code is 3, never 0."""
    sides = [_host(GOOD, reached=reached, problem="" if reached else "timed out") for reached in (before, after)]
    (found,) = compare.compare(*sides)
    assert (found.what, found.before, found.after, found.exit_code()) == ("reached", *said, 3)
    assert "timed out" in found.note


# --- comparing reports and hosts --------------------------------------------------------------------


def test_hosts_are_matched_by_name() -> None:
    """Each host is compared with itself; one that was not asked is named, one that was not saved is not compared."""
    saved = _report(_host(GOOD, name="a"), _host(DRIFTED, name="b"), _host(name="gone"))
    found = against_report(saved, _report(_host(DRIFTED, name="b"), _host(DRIFTED, name="a"), _host(name="new")))
    assert [(d.host, d.what) for d in found] == [
        ("a", "control"),
        ("a", "control"),
        ("new", "reached"),
        ("gone", "scope"),
    ]
    assert [d.exit_code() for d in found] == [2, 2, 3, 0]


def test_a_boxs_own_name() -> None:
    """The box's own report, under its own host name, is compared with the only host of the run."""
    own = _host(GOOD, name="spark-1a2b", facts={})
    found = against_report(_report(own), _report(_host(DRIFTED, name="gx10")))
    assert {d.host for d in found} == {"gx10"}
    assert "the one of a box named spark-1a2b" in found[0].note
    assert compare.exit_code(found) == 2


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        ([_host(name="a")], [_host(name="b")]),
        ([_host(name="a", facts={})], [_host(name="b"), _host(name="c")]),
        ([_host(name="a", facts={}), _host(name="d", facts={})], [_host(name="b")]),
        ([_host(name="a", facts={}, reached=False)], [_host(name="b")]),
    ],
)
def test_names_are_not_guessed(saved: list[HostReport], now: list[HostReport]) -> None:
    """Only where a box's own report meets a single host can the two be meant for each other."""
    found = against_report(_report(*saved), _report(*now))
    assert compare.exit_code(found) == 3
    assert {d.what for d in found} == {"reached", "scope"}


def test_against_a_host() -> None:
    """Every other host is compared with the reference, which is not compared with itself."""
    reference = _host(GOOD, name="a")
    other = _host(GOOD, name="c", facts={**reference.facts, "kernel": "7.0"})
    found = against_host(reference, [_host(DRIFTED, name="b"), reference, other])
    assert [(d.host, d.id) for d in found] == [("b", GOOD.id), ("b", GOOD.id), ("c", "kernel")]


def test_what_always_differs_between_hosts() -> None:
    """The UUID of the root file system is each host's own; on one host, it changes only with the file system."""
    lines = [f"root=UUID=0d9e1a2b-3c4d-5e6f-7a8b-9c0d1e2f3a4{digit} quiet" for digit in "bc"]
    hosts = [_host(name=name, facts={"kernel_command_line": line}) for name, line in zip("ab", lines, strict=True)]
    longer = _host(name="c", facts={"kernel_command_line": f"{lines[1]} debug"})
    assert against_host(hosts[0], hosts) == ()
    assert [d.after for d in against_host(hosts[0], [longer])] == ["root=UUID=(a UUID) quiet debug"]
    assert [d.after for d in compare.compare(*hosts)] == [lines[1]]


# --- the file ---------------------------------------------------------------------------------------


FULL = Report(
    "2026-12-01T10:00:00+00:00",
    (
        _host(GOOD, dataclasses.replace(DRIFTED, decided_by=None), findings=(CONTAINER,), not_seen=("x",), took_ms=7),
        _host(name="b", reached=False, problem="no route to host", facts={}),
        _host(name="c", findings=(dataclasses.replace(CONTAINER, place=Place("/x", 0)),), facts={"driver": None}),
    ),
    (WaiverNote("kernel/kernel.sysrq", ("a", "b"), "2026-11-30", "expired"),),
)


def test_round_trip(tmp_path: Path) -> None:
    """What was saved is read back as it was."""
    save(FULL, tmp_path / "report.json")
    assert load(tmp_path / "report.json") == FULL


def test_the_boxs_own_report(tmp_path: Path) -> None:
    """What `plimsoll verify --json` prints on a box can be compared with."""
    path = tmp_path / "box.json"
    path.write_text(json.dumps(verify.report("box", [GOOD, DRIFTED])))
    (host,) = load(path).hosts
    assert host.controls == (GOOD, DRIFTED)
    assert compare.compare(host, host)[0].what == "scope"


def test_later_versions_may_add_keys(tmp_path: Path) -> None:
    """A key that this version does not know is left out, at every level."""
    document = FULL.to_json()
    for part in (document, document["hosts"]["a"], *document["hosts"]["a"]["controls"], *document["waivers"]):
        part["new_key"] = {"x": 1}
    (tmp_path / "later.json").write_text(json.dumps(document))
    assert load(tmp_path / "later.json") == FULL


def _broken(**changes: Any) -> str:  # noqa: ANN401  # any JSON
    return json.dumps({**_report(_host(GOOD)).to_json(), **changes})


BROKEN = {
    "empty": (b"", "not JSON"),
    "binary": (b"\x7fELF\xff", "not JSON"),
    "cut off": (_broken()[:-20].encode(), "not JSON"),
    "nested without end": (b"[" * 100_000, "not JSON"),
    "a list": (b"[]", "the document: Input should be"),
    "another schema": (_broken(schema="plimsoll.state/1").encode(), "schema: Input should be 'plimsoll.audit/1'"),
    "no hosts": (b'{"schema": "plimsoll.audit/1"}', "hosts: Field required"),
    "unknown verdict": (_broken().replace('"ok"', '"fine"').encode(), "hosts.a.controls.0.verdict: Input should be"),
    "a number for a text": (_broken().replace('"wanted": "1"', '"wanted": 1').encode(), "controls.0.wanted: Input"),
    "a text for a bool": (_broken().replace("true", '"yes"').encode(), "hosts.a.reached: Input should be"),
    "an escape sequence": (_broken(hosts={"\x1b[2J": 1}).encode(), r"hosts.\x1b[2J: Input should be"),
}


@pytest.mark.parametrize(("content", "said"), BROKEN.values(), ids=BROKEN)
def test_not_a_report(tmp_path: Path, content: bytes, said: str) -> None:
    """A file that is no report is one line: which file, what in it, and what would be right."""
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ReportFileError) as raised:
        load(path)
    assert said in raised.value.message
    assert raised.value.message.startswith(f"{path}: is no saved report: ")
    assert "plimsoll audit --save FILE" in raised.value.message
    assert raised.value.message.isprintable()


@pytest.mark.parametrize(("name", "said"), [("missing", "No such file"), ("", "Is a directory")])
def test_no_file(tmp_path: Path, name: str, said: str) -> None:
    """A file that cannot be read is named, with the reason."""
    with pytest.raises(ReportFileError, match=f"cannot be read: {said}"):
        load(tmp_path / name)


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    """A name in a host's file system that is not UTF-8 neither spoils the file nor is a difference."""
    host = _host(dataclasses.replace(GOOD, live="\udcff", decided_by=Place("/etc/sysctl.d/\udcff.conf", 1)))
    save(_report(host), tmp_path / "report.json")
    assert against_report(load(tmp_path / "report.json"), _report(host)) == ()


def test_a_new_file_is_private(tmp_path: Path) -> None:
    """Nobody but its owner can read a new file, and nothing else is left in its directory."""
    save(FULL, tmp_path / "report.json")
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_an_earlier_report_is_replaced(tmp_path: Path) -> None:
    """It keeps the mode that its owner gave it, and a link to it stays one."""
    save(_report(), tmp_path / "report.json")
    (tmp_path / "report.json").chmod(0o640)
    (tmp_path / "latest").symlink_to("report.json")
    save(FULL, tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert load(tmp_path / "report.json") == FULL
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o640


def test_an_empty_file_is_filled(tmp_path: Path) -> None:
    """A file that mktemp has made holds nothing to lose."""
    (tmp_path / "tmp.x").touch()
    save(FULL, tmp_path / "tmp.x")
    assert load(tmp_path / "tmp.x") == FULL


@pytest.mark.parametrize("content", ["hosts:\n  gx10:\n", '{"schema": "plimsoll.state/1"}'])
def test_another_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    """A file that holds something else stays as it is."""
    path = tmp_path / "hosts.yml"
    path.write_text(content)
    with pytest.raises(ReportFileError, match="holds something else than a saved report: name another file"):
        save(FULL, path)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("name", "said"), [("no/such/report.json", "there is no directory"), (".", "is not a regular file")]
)
def test_nowhere_to_write(tmp_path: Path, name: str, said: str) -> None:
    """That there is no place for the file can be said before the audit as well as after it."""
    for attempt in (compare.check_target, lambda path: save(FULL, path)):
        with pytest.raises(ReportFileError, match=said):
            attempt(tmp_path / name)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be written is one message, and the old one is still there."""
    save(FULL, tmp_path / "report.json")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ReportFileError, match="cannot be written: No space left on device"):
        save(_report(), tmp_path / "report.json")
    assert load(tmp_path / "report.json") == FULL


# --- showing ----------------------------------------------------------------------------------------


def test_json_form() -> None:
    """The document names its schema, and every difference is flat."""
    found = compare.to_json(compare.compare(_host(GOOD), _host(DRIFTED)))
    assert found["schema"] == "plimsoll.compare/1"
    assert json.loads(json.dumps(found)) == found
    assert found["differences"][1] == {
        "host": "a",
        "what": "control",
        "id": "kernel/kernel.sysrq",
        "field": "live",
        "before": "1",
        "after": "0",
        "note": "",
    }


def test_shown_as_a_table() -> None:
    """A person sees what, before and now, with the reason, a host at a time; values that moved alike share a line."""
    changed = dataclasses.replace(GOOD, wanted="0", live="0", persisted="0")
    found = against_report(
        _report(_host(GOOD), _host(GOOD, name="b")), _report(_host(changed), _host(DRIFTED, name="b"))
    )
    text = _shown(found)
    assert text.index("a: what differs") < text.index("b: what differs")
    assert "live, persisted, wanted" in text
    assert DRIFTED.reason in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_nothing_to_show() -> None:
    """That nothing differs is said, with what was compared."""
    assert _shown(()) == "no difference between saved and now\n"


def test_what_a_host_says_is_shown_as_text() -> None:
    """Escape sequences and markup come out as characters, and a megabyte as a few lines."""
    evil = dataclasses.replace(DRIFTED, live="\x1b[2J[red]x[/red]", reason="y" * (1 << 20))
    text = _shown(compare.compare(_host(GOOD), _host(evil, facts={"kernel": "\u202ez", "driver": "580.95.05"})))
    assert "\x1b" not in text
    assert r"\x1b[2J[red]x[/red]" in text
    assert r"\u202e" in text
    assert len(text) < 4000


def test_a_hash_is_shown_by_its_beginning() -> None:
    """What a managed file has is recognised by twelve digits."""
    sums = [f"{digit * 64} 0644" for digit in "ab"]
    files = [dataclasses.replace(GOOD, wanted=each, live=each, persisted=each) for each in sums]
    text = _shown(compare.compare(*(_host(each) for each in files)))
    assert "aaaaaaaaaaaa… 0644" in text
    assert "a" * 13 not in text
