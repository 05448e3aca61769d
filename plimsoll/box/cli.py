"""`plimsoll` on the box. Results go to stdout, diagnostics to stderr; exit codes are the project's."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from plimsoll.box.errors import INTERNAL, INTERRUPTED, USAGE, BoxError
from plimsoll.box.host import Host
from plimsoll.box.model import GUARDED_LAYER, LAYERS, ROLLBACK_DELAY_S


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"plimsoll: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="plimsoll", description="Keeps this box reachable when its unified memory runs out.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("verify", help="compare the live state with what was deployed")
    check.add_argument("--json", action="store_true", help="print the audit document")
    check.add_argument("--strict", action="store_true", help="let what is pending count as drift")
    check.add_argument("--notify", action="store_true", help="run the notify command of the policy if anything is bad")
    back = commands.add_parser("revert", help="put everything back as it was before the first deploy")
    back.add_argument("--layer", choices=LAYERS, metavar="LAYER", help="only what this layer changed")
    back.add_argument("--dry", action="store_true", help="say what would be put back, and change nothing")
    show = commands.add_parser("state", help="print the live state as JSON")
    show.add_argument("--request", default="{}", help="JSON: what to read beyond the fixed sections")
    commands.add_parser("apply", help="carry out one layer of a deploy, whose plan is read from standard input")
    guard = commands.add_parser("rollback", help="the way back that deploy.py arms while it changes sshd")
    guard.add_argument("verb", choices=("arm", "disarm", "fire"))
    guard.add_argument("--layer", default=GUARDED_LAYER, choices=LAYERS)
    guard.add_argument("--delay-s", type=int, default=ROLLBACK_DELAY_S)
    return parser


# By name, because nothing of a zipapp is kept compiled: what a command does not need is half of its run time.
_COMMANDS = {
    "verify": "plimsoll.box.cli_verify",
    "state": "plimsoll.box.cli_state",
    "apply": "plimsoll.box.cli_change",
    "revert": "plimsoll.box.cli_change",
    "rollback": "plimsoll.box.cli_change",
}
"""The module of each command; it has a function of the command's name."""
_WHAT_NOW = "what was not written yet stays as it was; mend this and run it again"


def main(argv: Sequence[str] | None = None, host: Host | None = None, program: bytes = b"") -> int:
    """Run one command and return its exit code; `program` is the zipapp's own content, to be installed."""
    arguments = _parser().parse_args(argv)
    try:
        run = getattr(import_module(_COMMANDS[arguments.command]), arguments.command)
        return int(run(arguments, host or Host(), program))
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
