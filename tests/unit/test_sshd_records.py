"""What sshd goes by, as records: whose line decides, and when that cannot be told."""

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.resolve_sshd import MAIN
from plimsoll.box.state import sshd_files
from plimsoll.fleet import judging
from plimsoll.fleet.findings import findings, load_rules
from plimsoll.fleet.sshd import not_seen, records, span_s
from tests.unit.builders import FakeHost, unreadable, write_tree

INCLUDE = "/etc/ssh/sshd_config.d"
DEBIAN = f"Include {INCLUDE}/*.conf\nUsePAM yes\nX11Forwarding yes\n"


def files(root: Path, **of_includes: str) -> list[dict[str, Any]]:
    """Return what a state has of Debian's sshd_config with these included files, after a trip through JSON."""
    write_tree(root, {MAIN: DEBIAN, **{f"{INCLUDE}/{name}.conf": text for name, text in of_includes.items()}})
    found: list[dict[str, Any]] = json.loads(json.dumps(sshd_files(FakeHost(str(root)))))
    return found


def ids(sshd: object) -> list[str]:
    """Return which rules find something in a state with these files."""
    return [found.id for found in findings({"sshd_files": sshd}, load_rules())]


def test_a_stock_sshd_gives_no_reason_for_a_finding(tmp_path: Path) -> None:
    """Debian's own file has UsePAM yes and leaves the time for a login at its default of two minutes."""
    grace, pam = records(files(tmp_path))
    assert (grace["value"], grace["seconds"], grace["file"], grace["line"]) == ("120", 120, MAIN, 0)
    assert (pam["value"], pam["file"], pam["line"]) == ("yes", MAIN, 2)
    assert ids(files(tmp_path)) == []


def test_the_first_line_decides_and_is_named(tmp_path: Path) -> None:
    """Of two included files the one that is read first decides, and so its line is the one in the finding."""
    sshd = files(tmp_path, low="\nLoginGraceTime 30\n", middle="LoginGraceTime 2m\nUsePAM no\n")
    found = {each.id: each for each in findings({"sshd_files": sshd}, load_rules())}
    assert found.keys() == {"sshd-short-grace", "sshd-without-pam"}
    place = found["sshd-short-grace"].place
    assert place is not None
    assert (place.file, place.line) == (f"{INCLUDE}/low.conf", 2)
    assert found["sshd-short-grace"].seen == "LoginGraceTime 30 ends a login that takes longer"


def test_a_grace_without_end_is_not_short(tmp_path: Path) -> None:
    """With 0 sshd waits for ever."""
    assert ids(files(tmp_path, a="LoginGraceTime 0\n")) == []


def test_what_sshd_itself_takes_for_a_missing_line() -> None:
    """Where no line sets it sshd does without PAM, whatever distributions write into their files."""
    assert ids([{"path": MAIN, "text": "Port 22\n"}]) == ["sshd-without-pam"]


@pytest.mark.parametrize(
    ("sshd", "reason"),
    [
        ([{"path": MAIN, "text": "UsePAM no\n"}, unreadable(f"{INCLUDE}/a.conf")], "Input/output error"),
        ([{"path": MAIN, "text": "Match User x\nUsePAM no\n"}], "it may not start with these files"),
    ],
)
def test_what_cannot_be_told_is_said(sshd: list[dict[str, Any]], reason: str) -> None:
    """A file that cannot be read, or one that sshd refuses, leaves its settings unknown, with the reason."""
    assert records(sshd) == []
    (said,) = not_seen(sshd)
    assert reason in said
    state = {"platform": {"euid": 0}, "protections": {"not_seen": []}, "sshd_files": sshd}
    assert judging.not_seen(state) == [said]


@pytest.mark.parametrize("sshd", [None, 5, [None, {"path": 5}], [{"path": MAIN}], [], [{"path": MAIN, "text": None}]])
def test_a_host_without_sshd_or_with_nonsense(sshd: object) -> None:
    """Where there is no text of sshd_config nothing is said of it, and nothing breaks."""
    assert (records(sshd), not_seen(sshd)) == ([], [])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1m30s", 90), ("1H", 3600), ("2w", 1209600), ("", None), ("soon", None)]
)
def test_spans(text: str, seconds: int | None) -> None:
    """A span is read as sshd writes it."""
    assert span_s(text) == seconds
