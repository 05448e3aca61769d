"""The `plimsoll` command of the operator's machine: finds the subcommands and keeps the exit codes.

A subcommand is a module beside this one that holds a `click.Command` called `command`, and one line in
COMMANDS. It returns its exit code, or None for 0.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

import plimsoll
from plimsoll.box.cli import COMMANDS as ON_THE_BOX
from plimsoll.box.output import outlive_readers
from plimsoll.inventory import InventoryError
from plimsoll.policy import nearest

if TYPE_CHECKING:
    from types import FrameType

EXIT_INTERNAL = 1
EXIT_USAGE = 4
EXIT_INTERRUPTED = 130

# by name, because importing some of them is slow, or replaces parts of the standard library by gevent's
COMMANDS = {
    "audit": "plimsoll.fleet.audit",
    "doctor": "plimsoll.fleet.doctor",
    "explain": "plimsoll.fleet.explain",
    "fit": "plimsoll.fleet.fit",
    "incident": "plimsoll.fleet.incident",
    "replay": "plimsoll.fleet.replay",
    "revert": "plimsoll.fleet.revert",
    "rollout": "plimsoll.fleet.rollout.command",
    "ssh-config": "plimsoll.fleet.ssh_config",
    "watch": "plimsoll.fleet.watch",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError:
            raise click.UsageError(f"there is no command {args[0]!r}; {_instead_of(args[0])}", ctx) from None


def _instead_of(name: str) -> str:
    """Return what was meant by a name that is no command: one of the box's own, or the nearest."""
    return f"it is for the box: `ssh HOST plimsoll {name}`" if name in ON_THE_BOX else nearest(name, COMMANDS)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(plimsoll.__version__, prog_name="plimsoll")
def cli() -> None:
    """Keep a GB10 box reachable when its memory runs out.

    Exit codes: 0 good, 1 something failed, 2 not as it should be or does not fit, 3 could not tell, 4 usage or
    invalid input, 75 refused now, 130 interrupted.
    """


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code; every error is one message on stderr."""
    try:
        code = cli.main(arguments, prog_name="plimsoll", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: an exit code that says so, and what to report
        return _explain(error)
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> int:
    if isinstance(error, click.ClickException):  # usage errors, and files named on the command line
        error.show()
        return EXIT_USAGE
    if isinstance(error, InventoryError):
        click.echo(f"plimsoll: {error}", err=True)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
        click.echo(f"plimsoll: cannot write to standard output: {error.strerror}", err=True)
        _drop_output()
        return EXIT_INTERNAL
    traceback.print_exception(error)
    click.echo(f"plimsoll {plimsoll.__version__}: internal error, please report the lines above", err=True)
    return EXIT_INTERNAL


_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""With a file's name it is one that a command writes and has not told of; without one it is a stream."""


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _without_streams() -> None:
    """Give a command that was started with a closed stream (`>&-`) one that takes everything and shows nothing."""
    # in this order, because each takes the lowest number that is free, which a child would inherit
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does: what was started, such as ssh in a session of its own, is ended first.

    While hosts are asked, asyncio has its own way to be interrupted: raising through it would be told as an error.
    """
    on_interrupt = signal.getsignal(signal.SIGINT)
    if not callable(on_interrupt):
        raise KeyboardInterrupt
    on_interrupt(signal.SIGINT, frame)


def main() -> None:
    """Entry point of the console script."""
    _without_streams()
    outlive_readers()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _interrupt)
    # a terminal or a file that cannot show a character shows its number, and does not end the command
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run()
    # Python would look once more through all that was imported before it ends: 0.08 s
    gc.freeze()
    sys.exit(code)
