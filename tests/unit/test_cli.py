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


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--help lists each command with its first sentence."""
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version is the package's."""
    assert cli.run(["--version"]) == 0
    assert plimsoll.__version__ in capsys.readouterr().out


def test_closed_pipe() -> None:
    """A reader that went away, such as `head`, is no reason for a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from plimsoll.fleet.cli import main; main()", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == cli.EXIT_INTERNAL
