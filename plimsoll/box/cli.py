"""`plimsoll` on the box. Results go to stdout, diagnostics to stderr; exit codes are the project's."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from plimsoll import __version__
from plimsoll.box.errors import GOOD, INTERNAL, INTERRUPTED, USAGE, BoxError
from plimsoll.box.host import Host
from plimsoll.box.output import ReaderLeft, outlive_readers

_USUAL_COLUMNS = 80
_COLLECTED_EVERY = 50_000


class _Formatter(argparse.HelpFormatter):
    """Knows how wide a terminal is without shutil, whose three compressors are 5 of the 80 ms of a command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given[:6]):
        return int(given[:6])
    try:
        return os.get_terminal_size(1).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole name: what was cut short may mean another one in the next version."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # argparse's own
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **settings)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"plimsoll: {message}\n")


# By name, because nothing of a zipapp is kept compiled: what a command does not need is half of its run time.
_COMMANDS = {
    "status": ("plimsoll.box.cli_status", "show memory as it is, and who would be stopped now"),
    "verify": ("plimsoll.box.cli_verify", "compare the live state with what was deployed"),
    "revert": ("plimsoll.box.cli_change", "put everything back as it was before the first deploy"),
    "guard": ("plimsoll.box.cli_guard", "watch memory, and stop the right workload in time"),
    "fit": ("plimsoll.box.cli_fit", "say whether a model fits into this box, before it is started"),
    "serve": ("plimsoll.box.cli_serve", "start and stop models so that one never meets what is left of another"),
    "incident": ("plimsoll.box.cli_incident", "say what happened, from the logs"),
    "reserve": ("plimsoll.box.cli_reserve", "announce what a load will allocate"),
    "replay": ("plimsoll.box.cli_replay", "say what the guard would have done in a recording"),
    "drill": ("plimsoll.box.cli_drill", "prove on this box that the guard acts"),
    "state": ("plimsoll.box.cli_state", "print the live state as JSON"),
    "apply": ("plimsoll.box.cli_change", "carry out one layer of a deploy, whose plan is read from standard input"),
    "rollback": ("plimsoll.box.cli_change", "the way back that deploy.py arms while it changes sshd"),
    "precompile": ("plimsoll.box.cli_change", "keep the program compiled, so that it starts at once; deploys do it"),
    "last-resort": ("plimsoll.box.cli_last_resort", "restart a box that is stalled for good; for its unit"),
}
"""The module of each command, and what the command does. The module has a function of the command's name, which runs
it, and `NAME_arguments`, which adds its options to a parser."""
COMMANDS = tuple(_COMMANDS)
_PURPOSE = "Keeps this box reachable when its unified memory runs out."
_EXIT_CODES = (
    "Exit codes: 0 good, 1 something failed, 2 not as it should be or does not fit, 3 could not tell, 4 usage or "
    "invalid input, 75 not now, 130 interrupted."
)


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser, with the options of one command: the others need not be imported for it."""
    parser = _Parser(prog="plimsoll", description=_PURPOSE, epilog=_EXIT_CODES)
    version = f"%(prog)s, version {__version__}"
    parser.add_argument("--version", action="version", version=version, help="say which version this is, and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, what) in _COMMANDS.items():
        of_command = commands.add_parser(name, help=what, description=what)
        if name == command:
            getattr(import_module(module), f"{_function(name)}_arguments")(of_command)
    return parser


def _function(command: str) -> str:
    return command.replace("-", "_")


_WHAT_NOW = "what was not written yet stays as it was; mend this and run it again"


def main(argv: Sequence[str] | None = None, host: Host | None = None, program: bytes = b"") -> int:
    """Run one command and return its exit code; `program` is the zipapp's own content, to be installed."""
    # what is imported stays; to look through it every 700 objects, as is usual, took 5 of the 110 ms of a command
    gc.set_threshold(_COLLECTED_EVERY)
    outlive_readers()
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(words[0] if words else "").parse_args(words)
    try:
        run = getattr(import_module(_COMMANDS[arguments.command][0]), _function(arguments.command))
        return int(run(arguments, host or Host(), program))
    except ReaderLeft:
        return GOOD
    except BoxError as error:
        return _fail(error.exit_code, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(INTERNAL, f"{where}{error.strerror or error}; {_WHAT_NOW}")
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")


def _fail(code: int, message: str) -> int:
    print(f"plimsoll: {message}", file=sys.stderr)
    return code
