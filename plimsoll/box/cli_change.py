"""The commands of the box that change it."""

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterable

from plimsoll.box import actions
from plimsoll.box import apply as changing
from plimsoll.box import revert as reverting
from plimsoll.box import rollback as way_back
from plimsoll.box.errors import GOOD, INTERNAL, UsageError
from plimsoll.box.exclusive import exclusively
from plimsoll.box.host import Host
from plimsoll.box.model import GUARDED_LAYER, LAYERS, ROLLBACK_DELAY_S

_LONGEST_DELAY_S = 86_400
"""A day: nobody who changes sshd waits longer before he tries to log in."""


def _need_root(what: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{what} needs root: use sudo")


def apply_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: all that it needs is in the plan."""
    del parser


def apply(_arguments: argparse.Namespace, host: Host, program: bytes) -> int:
    """Carry out the plan on standard input."""
    _need_root("changing the host")
    try:
        plan = dict(json.load(sys.stdin))
    except (ValueError, TypeError) as error:
        raise UsageError(f"the plan is not a JSON object: {error}") from error
    _carry_on_without_a_terminal()
    with exclusively(host):
        try:
            for line in changing.apply(plan, host, program):
                _say(line)
        except actions.Pending as reason:
            _say(f"pending: {reason}")
    return GOOD


def _carry_on_without_a_terminal() -> None:
    """Carry a change to its end when the connection that it came in by is lost."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _say(line: str) -> None:
    """Print a line at once: whoever started the change follows it."""
    print(line, flush=True)


def revert_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    layers = ", ".join(layer for layer in LAYERS if layer != reverting.PROGRAM_LAYER)
    parser.add_argument("--layer", choices=LAYERS, metavar="LAYER", help=f"only what this layer changed: {layers}")
    parser.add_argument("--dry", action="store_true", help="say what would be put back, and change nothing")


def revert(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Put back what the ledger remembers, or say what would be put back."""
    _need_root("reverting")
    if arguments.layer == reverting.PROGRAM_LAYER:
        raise UsageError("the layer box is the program that puts the others back: revert all, without --layer")
    if arguments.dry:
        return _report(reverting.preview(host, arguments.layer))
    _carry_on_without_a_terminal()
    with exclusively(host):
        code = _report(reverting.revert(host, arguments.layer))
        if arguments.layer in (None, GUARDED_LAYER) and way_back.is_armed(host):
            _say(way_back.disarm(host))
    return code


def _report(outcomes: Iterable[tuple[str, str]]) -> int:
    found = []
    for outcome, line in outcomes:
        found.append(outcome)
        _say(line if outcome == "done" else f"{outcome}: {line}")
    if not found:
        _say(reverting.NOTHING)
    return INTERNAL if "failed" in found else GOOD


def rollback_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("verb", choices=("arm", "disarm", "fire"), help="before the change; after a login; take back")
    parser.add_argument("--layer", default=GUARDED_LAYER, choices=LAYERS, metavar="LAYER", help="what is taken back")
    parser.add_argument(
        "--delay-s", type=_delay_s, default=ROLLBACK_DELAY_S, metavar="S", help="until it is; %(default)s unless given"
    )


def _delay_s(text: str) -> int:
    """Return a delay; one that no timer has is an ArgumentTypeError, which the parser turns into an error of usage."""
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= _LONGEST_DELAY_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds from 1 to {_LONGEST_DELAY_S}")
    return int(text)


def rollback(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Arm, disarm or fire the way back that a deploy has while it changes sshd."""
    _need_root("this")
    _carry_on_without_a_terminal()
    if arguments.verb == "disarm":
        _say(way_back.disarm(host))
        return GOOD
    # a change that is under way is waited for: it may be what is to be taken back
    with exclusively(host, wait=True):
        if arguments.verb == "arm":
            _say(way_back.arm(host, arguments.layer, arguments.delay_s))
            return GOOD
        if not way_back.is_armed(host):
            _say("nothing was armed: a login was proven meanwhile")
            return GOOD
        code = _report(reverting.revert(host, arguments.layer))
        _say(way_back.disarm(host))
    return code


def precompile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: there is one program."""
    del parser


def precompile(_arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Keep the installed program compiled for the Python that runs this."""
    _need_root("this")
    from plimsoll.box import compiled  # noqa: PLC0415  # 10 ms, which no other command needs

    _say(compiled.keep(host))
    return GOOD
