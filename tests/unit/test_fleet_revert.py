"""`plimsoll revert HOST`: what is asked and shown, and what the exit code says of how it went."""

import os
from pathlib import Path

import click
import pytest

from plimsoll.box.revert import NOTHING
from plimsoll.fleet import cli, gather, revert

SSH = """#!/bin/sh
# stands in for ssh and the host: says what lies ready for a preview and for the deed, then waits as the host does
while [ "$1" != -- ]; do shift; done
shift 2
echo "$*" >>"${0%/*}/asked"
case "$*" in
'echo plimsoll') [ -e "${0%/*}/login" ] && echo plimsoll ;;
*--dry*) cat "${0%/*}/preview"; cat >/dev/null ;;
*) cat "${0%/*}/deed"; [ -e "${0%/*}/lost" ] || cat >/dev/null ;;
esac
"""
END = "plimsoll: reverted with 0\n"
LINE = "restore /etc/default/earlyoom\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a host with one file to put back, that lets one in afterwards; returns where it can be made another."""
    (tmp_path / "hosts.yml").write_text("hosts: {gx10: {}}\n")
    there = tmp_path / "bin"
    there.mkdir()
    (there / "ssh").write_text(SSH)
    (there / "ssh").chmod(0o755)
    for name, text in (("preview", LINE + END), ("deed", LINE + END), ("login", "")):
        (there / name).write_text(text)
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(tmp_path / "hosts.yml"))
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    return there


def deeds(host: Path) -> int:
    """Return how often the host was asked to put something back, previews and logins aside."""
    lines = (host / "asked").read_text().splitlines()
    return sum("revert" in line and "--dry" not in line for line in lines)


def test_put_back_and_proven(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --yes nothing is asked: the preview, the deed, and a fresh login over a connection of its own."""
    assert cli.run(["revert", "gx10", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out == LINE * 2
    assert "a fresh login took" in err
    assert deeds(host) == 1


@pytest.mark.parametrize(("answer", "number"), [(True, 1), (False, 0)])
def test_the_question(host: Path, answer: bool, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be put back is put back once that was agreed to."""
    monkeypatch.setattr(click, "confirm", lambda *_words, **_options: answer)
    assert cli.run(["revert", "gx10"]) == 0
    assert deeds(host) == number


def test_nothing_to_put_back_is_no_question(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host on which nothing is left to put back is not asked about, and left alone."""
    (host / "preview").write_text(f"{NOTHING}\n{END}")
    assert cli.run(["revert", "gx10"]) == 0
    assert capsys.readouterr() == (f"{NOTHING}\n", "")
    assert deeds(host) == 0


def test_a_preview_that_fails_is_the_end(host: Path) -> None:
    """A host without the program, or with a damaged ledger, says so with its own exit code; no more is asked of it."""
    (host / "preview").write_text("plimsoll: reverted with 4\n")
    assert cli.run(["revert", "gx10", "--yes"]) == 4
    assert deeds(host) == 0


@pytest.mark.parametrize("code", ["", "soon", "²", "9" * 5000, "-1"])
def test_an_end_that_is_no_exit_code(host: Path, code: str) -> None:
    """How it went is not known where a host says anything but a number."""
    (host / "preview").write_text(f"plimsoll: reverted with {code}\n")
    assert cli.run(["revert", "gx10", "--dry"]) == 3


@pytest.mark.parametrize("line", ["x" * 50_000, "x" * 50_000 + "\n"])
def test_a_host_that_does_not_end(
    host: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a host that talks for ever, in one line or in many, no more is read than of any answer."""
    monkeypatch.setattr(gather, "MAX_ANSWER_BYTES", 1 << 20)
    (host / "preview").write_text(line)
    (host / "ssh").write_text(SSH.replace('cat "${0%/*}/preview"', 'while cat "${0%/*}/preview"; do :; done'))
    assert cli.run(["revert", "gx10", "--dry"]) == 3
    assert "says more than 1 MiB" in capsys.readouterr().err


def test_no_login_afterwards(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that lets nobody in any more is a failure, and it is said that the open connection is the way back."""
    (host / "login").unlink()
    assert cli.run(["revert", "gx10", "--yes"]) == 1
    assert "no fresh login to gx10 works" in capsys.readouterr().err
    assert (host / "asked").read_text().splitlines().count("echo plimsoll") == revert.PROOF_TRIES


def test_a_connection_that_is_lost(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the host has not said how it ended nobody knows, and no login is tried on the strength of it."""
    (host / "deed").write_text(LINE)
    (host / "lost").write_text("")
    assert cli.run(["revert", "gx10", "--yes"]) == 3
    assert "the connection to gx10 was lost" in capsys.readouterr().err


def test_a_host_cannot_steer_the_terminal(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a host says is shown with its control characters spelled out."""
    (host / "preview").write_text(f"restore \x1b[2J\n{END}")
    assert cli.run(["revert", "gx10", "--dry"]) == 0
    assert capsys.readouterr().out == "restore \\x1b[2J\n"
