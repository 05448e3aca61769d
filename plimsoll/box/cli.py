"""`plimsoll` on the box. Results go to stdout, diagnostics to stderr; exit codes are the project's."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from plimsoll.box import actions, apply, ledger, revert, rollback, state, verify
from plimsoll.box.host import Host
from plimsoll.box.judge import exit_code
from plimsoll.box.model import LAYERS, Request

GOOD, INTERNAL, DRIFT, UNKNOWN, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130


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
    guard.add_argument("--layer", default=rollback.LAYER, choices=LAYERS)
    guard.add_argument("--delay-s", type=int, default=rollback.DEFAULT_DELAY_S)
    return parser


def main(argv: Sequence[str] | None = None, host: Host | None = None, program: bytes = b"") -> int:
    """Run one command and return its exit code; `program` is the zipapp's own content, to be installed."""
    arguments = _parser().parse_args(argv)
    host = host or Host()
    try:
        return _COMMANDS[arguments.command](arguments, host, program)
    except apply.Refused as error:
        return _fail(REFUSED, str(error))
    except (ledger.LedgerError, verify.WantedError) as error:
        return _fail(USAGE if isinstance(error, ledger.LedgerError) else UNKNOWN, str(error))
    except actions.ActionError as error:
        return _fail(INTERNAL, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(INTERNAL, f"{where}{error.strerror or error}; {_WHAT_NOW}")
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")


_WHAT_NOW = "what was not written yet stays as it was; mend this and run it again"


def _fail(code: int, message: str) -> int:
    print(f"plimsoll: {message}", file=sys.stderr)
    return code


def _verify(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    wanted, command = verify.load_wanted(host)
    judgements = verify.judge_host(host, wanted)
    document = verify.report(host.text_or_none("/proc/sys/kernel/hostname") or "localhost", judgements)
    print(json.dumps(document, indent=1) if arguments.json else "\n".join(verify.lines(judgements)))
    if arguments.notify and command and verify.should_notify(judgements):
        problem = verify.notify(host, command, document)
        if problem:
            print(f"plimsoll: nobody could be told: {problem}", file=sys.stderr)
    return exit_code(judgements, strict=arguments.strict)


def _state(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    try:
        request = Request.from_json(json.loads(arguments.request))
    except (ValueError, TypeError, AttributeError) as error:
        return _fail(USAGE, f"--request: {error}")
    print(json.dumps(state.read(request, host)))
    return GOOD


def _need_root() -> bool:
    return os.geteuid() != 0


def _apply(_arguments: argparse.Namespace, host: Host, program: bytes) -> int:
    if _need_root():
        return _fail(USAGE, "changing the host needs root: use sudo")
    try:
        plan = dict(json.load(sys.stdin))
    except (ValueError, TypeError) as error:
        return _fail(USAGE, f"the plan is not a JSON object: {error}")
    _carry_on_without_a_terminal()
    with apply.exclusively(host):
        try:
            for line in apply.apply(plan, host, program):
                _say(line)
        except actions.Pending as reason:
            _say(f"pending: {reason}")
    return GOOD


def _carry_on_without_a_terminal() -> None:
    """Carry a change to its end when the connection that it came in by is lost."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _say(line: str) -> None:
    """Print a line; nobody may be there to read it any more."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _revert(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    if _need_root():
        return _fail(USAGE, "reverting needs root: use sudo")
    if arguments.layer == revert.PROGRAM_LAYER:
        return _fail(USAGE, "the layer box is the program that puts the others back: revert all, without --layer")
    if arguments.dry:
        return _report(revert.preview(host, arguments.layer))
    _carry_on_without_a_terminal()
    with apply.exclusively(host):
        code = _report(revert.revert(host, arguments.layer))
        if arguments.layer in (None, rollback.LAYER) and rollback.is_armed(host):
            _say(rollback.disarm(host))
    return code


def _report(outcomes: Iterable[tuple[str, str]]) -> int:
    found = []
    for outcome, line in outcomes:
        found.append(outcome)
        _say(line if outcome == "done" else f"{outcome}: {line}")
    if not found:
        _say("nothing to put back")
    return INTERNAL if "failed" in found else GOOD


def _rollback(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    if _need_root():
        return _fail(USAGE, "this needs root: use sudo")
    _carry_on_without_a_terminal()
    if arguments.verb == "disarm":
        _say(rollback.disarm(host))
        return GOOD
    # a change that is under way is waited for: it may be what is to be taken back
    with apply.exclusively(host, wait=True):
        if arguments.verb == "arm":
            _say(rollback.arm(host, arguments.layer, arguments.delay_s))
            return GOOD
        if not rollback.is_armed(host):
            _say("nothing was armed: a login was proven meanwhile")
            return GOOD
        code = _report(revert.revert(host, arguments.layer))
        _say(rollback.disarm(host))
    return code


_COMMANDS = {"verify": _verify, "state": _state, "apply": _apply, "revert": _revert, "rollback": _rollback}
