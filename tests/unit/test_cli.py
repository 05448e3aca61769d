"""The `plimsoll` command: exit codes and where messages go."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import plimsoll
from plimsoll.fleet import cli
from plimsoll.inventory import InventoryError


def _raising(error: BaseException) -> click.Command:
    def _callback() -> None:
        raise error

    return click.Command("x", callback=_callback)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.UsageError("wrong"), 4, "wrong"),
        (click.FileError("x", "no"), 4, "no"),
        (InventoryError("is empty", Path("hosts.yml"), 1), 4, "plimsoll: hosts.yml:1: is empty"),
        (RuntimeError("boom"), 1, "RuntimeError: boom"),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    """Each kind of failure has its exit code and is told on stderr, never on stdout."""
    monkeypatch.setattr(cli._Commands, "get_command", lambda *_: _raising(error))
    assert cli.run(["x"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_a_commands_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command returns is the exit code."""
    monkeypatch.setattr(cli._Commands, "get_command", lambda *_: click.Command("x", callback=lambda: 75))
    assert cli.run(["x"]) == 75


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["--no-such-option"], ["ssh-config"]])
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that means nothing exits with 4 and says why on stderr."""
    assert cli.run(arguments) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: plimsoll" in err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("audti", "there is no command 'audti'; did you mean 'audit'?"),
        ("verify", "there is no command 'verify'; it is for the box: `ssh HOST plimsoll verify`"),
    ],
)
def test_a_mistyped_command(typed: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a command that there is none of, the nearest is named, or that it is one of the box's own."""
    assert cli.run([typed]) == 4
    assert hint in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--help lists each command with its first sentence."""
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["fit", "--help"], 0, "usage: plimsoll fit"),
        (["fit", "--moon"], 4, "unrecognized arguments: --moon"),
        (["fit", "--mem-total-gib", "121.6", "--", "no-engine", "--moon"], 3, "no-engine"),
        (["replay", "no-such-file"], 4, "no-such-file"),
    ],
)
def test_what_works_on_any_machine(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands of the box that need none are the same here: every word is theirs, and so is the exit code."""
    assert cli.run(arguments) == code
    assert said in "".join(capsys.readouterr())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version is the package's."""
    assert cli.run(["--version"]) == 0
    assert plimsoll.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_closed_pipe(closed: str) -> None:
    """A reader that went away, such as `head`, changes neither how a command ends nor what else it says."""
    reader, writer = os.pipe()
    os.close(reader)
    out, err = (writer if closed == name else subprocess.PIPE for name in ("stdout", "stderr"))
    command = [sys.executable, "-c", "from plimsoll.fleet.cli import main; main()"]
    good, wrong = (
        subprocess.run([*command, argument], stdout=out, stderr=err, text=True, check=False)
        for argument in ("--help", "no-such-command")
    )
    os.close(writer)
    assert (good.returncode, wrong.returncode) == (0, cli.EXIT_USAGE)
    assert not good.stderr
    assert closed == "stderr" or "no-such-command" in wrong.stderr
