"""`plimsoll incident` on the operator's machine: over ssh, and on files; what a host sends is not believed."""

import json
import os
import stat
import tarfile
import time
from pathlib import Path

import pytest

from plimsoll.box.incident import reader, wire
from plimsoll.fleet import cli
from tests.unit.incident_logs import KILLED, NOW_S, SUMMARY, kern_log, report

BANNER = "Welcome to gx10!"
ABOUT = wire.About(NOW_S, ("gx10",), ("the guard runs: floor armed",), {}, {"/proc/version": "Linux gx10"})


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where there is neither an inventory nor a file of a host's name, with this test's ssh alone."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def _ssh(tmp_path: Path, script: str) -> None:
    """Put a program in the place of ssh: it keeps its arguments, takes what it is given, and does what it is told."""
    path = tmp_path / "bin/ssh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/asked\nread -r program\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _answering(tmp_path: Path, about: wire.About | None = ABOUT, log: bytes | None = None) -> None:
    """Let ssh answer what a box with a kill in its kern.log hands over; without `about` it is cut off."""
    found = reader.read("/var/log/kern.log", [kern_log(report()) if log is None else log], NOW_S)
    lines = [BANNER, *wire.of_findings(found), *([wire.of_box(about)] if about else [])]
    (tmp_path / "answer").write_text("\n".join(lines) + "\n")
    _ssh(tmp_path, f"cat {tmp_path}/answer")


def test_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is that of the box's own logs, with its guard; on the host only the box's program is run."""
    _answering(tmp_path)
    assert cli.run(["incident", "gx10"]) == 0
    out = capsys.readouterr().out
    assert "class B, OOM cascade" in out.splitlines()[0]
    assert "the guard runs: floor armed" in out
    assert BANNER not in out
    asked = (tmp_path / "asked").read_text()
    assert "gx10" in asked.split()
    assert "incident --findings" in asked


def test_the_document_of_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the document, and with --redact the host's name is in it nowhere."""
    _answering(tmp_path)
    assert cli.run(["incident", "--json", "--redact", "gx10"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["class"] == "B"
    assert "gx10" not in out.casefold().replace("asustek computer inc. gx10/gx10, bios gx10.0101", "")


def test_files_are_written_on_this_side(tmp_path: Path) -> None:
    """The page and the archive lie here; the archive has the logs around it and what the box is, without its name."""
    about = wire.About(
        NOW_S, ("gx10",), (), {}, {"/proc/version": "Linux gx10"}, {"/var/log/kern.log": "gx10 kernel: x"}
    )
    _answering(tmp_path, about)
    assert cli.run(["incident", "gx10", "--html", "page.html", "--bundle", "out.tgz"]) == 0
    assert "<svg" in Path("page.html").read_text()
    with tarfile.open("out.tgz") as tar:
        files = {Path(member.name).name: tar.extractfile(member) for member in tar}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert texts["log.txt"] == "== /var/log/kern.log\nhost-1 kernel: x\n"
    assert "Linux host-1" in texts["host.txt"]
    assert "--bundle -" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "gx10: Permission denied"),
        ("echo 'ssh: Could not resolve hostname gx10' >&2; exit 255", "no file of that name here either"),
        ("exit 7", "gx10: it ended with exit code 7 before it had answered"),
        ("""echo '{"schema": "plimsoll.findings/1", "event": {"kind": "?"}}'""", "another version"),
        ("printf '\\033]0;owned\\007' >&2; exit 1", "]0;owned"),
    ],
)
def test_a_host_that_does_not_answer(
    script: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one line with the reason, exit code 3, and nothing is said of what happened."""
    _ssh(tmp_path, script)
    assert cli.run(["incident", "gx10"]) == 3
    found = capsys.readouterr()
    assert said in found.err
    assert "\x1b" not in found.err
    assert found.out == ""


def test_an_answer_that_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half an answer is none: what did come is not taken for all that there is."""
    _answering(tmp_path, about=None)
    assert cli.run(["incident", "gx10"]) == 3
    assert capsys.readouterr().out == ""


def test_a_host_that_falls_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is given up after its time without a word, not later."""
    _ssh(tmp_path, "exec sleep 60")
    started_s = time.monotonic()
    assert cli.run(["incident", "gx10", "--timeout-s", "1"]) == 3
    assert time.monotonic() - started_s < 30
    assert "not a word from it for 1 s" in capsys.readouterr().err


def test_a_host_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it may send is bounded."""
    monkeypatch.setattr("plimsoll.fleet.incident.MAX_BYTES", 10_000)
    _ssh(tmp_path, "exec yes")
    assert cli.run(["incident", "gx10"]) == 3
    assert "it sent more than" in capsys.readouterr().err


def test_a_host_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name in its log that would is shown without what could."""
    evil = KILLED.replace("llama-server", "\\u001b]0;owned\\u0007x")
    found = reader.read("kern.log", [f"{KILLED}\n".encode()], NOW_S)
    lines = [line.replace("llama-server", "\\u001b]0;owned\\u0007x") for line in wire.of_findings(found)]
    (tmp_path / "answer").write_text("\n".join([*lines, wire.of_box(ABOUT)]) + "\n")
    _ssh(tmp_path, f"cat {tmp_path}/answer")
    assert cli.run(["incident", "gx10"]) == 0
    out = capsys.readouterr().out
    assert evil
    assert "owned" in out
    assert not set(out) & {"\x1b", "\x07"}


def test_watching_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines are shown as they come; that the connection ended is said, and is never success."""
    _ssh(tmp_path, "printf 'one\\033[2J\\ntwo\\n'")
    assert cli.run(["incident", "gx10", "--watch", "--json"]) == 3
    found = capsys.readouterr()
    assert found.out.splitlines() == ["one\\x1b[2J", "two"]
    assert "the connection ended" in found.err
    assert "incident --watch --json" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gx10", "--watch", "--who", "x"], "not with --who"),
        (["gx10", "gx11"], "are no files here: name one host at a time"),
        (["./nowhere.log"], "no such file"),
        (["@local", "--html", "/nowhere/x.html", "--watch"], "not with --html"),
        (["gx10", "--since", "yesterday"], "not a time"),
        (["gx10", "--html", "/nowhere/x.html"], "/nowhere"),
        (["gx10", "--bundle", "-"], "is no file"),
    ],
)
def test_calls_that_cannot_work(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one clear error, before anybody is asked."""
    assert cli.run(["incident", *words]) == 4
    assert said in capsys.readouterr().err


def test_files_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is a file, also with a host's name, and is read here."""
    Path("gx10").write_text(f"{SUMMARY}\n{KILLED}\n")
    assert cli.run(["incident", "gx10"]) == 0
    assert "class B" in capsys.readouterr().out


def test_this_machine_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """@local runs the box's program from memory, with no ssh, and its last line has come."""
    _ssh(tmp_path, "exit 255")
    assert cli.run(["incident", "@local", "--json"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "plimsoll.incident/1"
    assert len(found["standing"]) == 1
