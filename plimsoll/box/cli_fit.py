"""`plimsoll fit`: whether a model fits into this box, before it is started."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN, UsageError
from plimsoll.box.fit import ask, report
from plimsoll.box.fit import box as boxes
from plimsoll.box.fit.context import Context
from plimsoll.box.fit.model import CannotTellError, Verdict
from plimsoll.box.fit.verdict import judge
from plimsoll.box.observing import regular_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from plimsoll.box.fit.advice import Advice
    from plimsoll.box.fit.model import Estimate, Launch
    from plimsoll.box.host import Host

EXIT_CODES = {Verdict.FITS: GOOD, Verdict.TIGHT: DRIFT, Verdict.NO: DRIFT, Verdict.UNKNOWN: UNKNOWN}
"""Tight is no yes: a script that starts what `fit` lets pass must not start it."""


def fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--compose", nargs="+", metavar=("FILE", "SERVICE"), help="the engines of a compose file")
    source.add_argument("--unit", metavar="NAME", help="what a systemd unit starts")
    source.add_argument("--pid", type=int, metavar="N", help="what a running process was started with")
    box = parser.add_mutually_exclusive_group()
    box.add_argument("--meminfo", metavar="FILE", help="judge the box that this /proc/meminfo is of")
    box.add_argument("--mem-total-gib", type=float, metavar="X", help="judge an empty box of this size")
    parser.add_argument("--json", action="store_true", help="print the fit document")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="after --: how the engine is started, or a file")


def fit(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Print the verdict; 0 fits, 2 tight or not at all, 3 cannot tell."""
    question = _question(arguments)
    box = _box(arguments, host)
    if question is None:
        return _box_alone(box, host, as_json=arguments.json)
    context = Context(host, box)
    try:
        estimates = ask.estimates(_launches(host, question), context)
    except CannotTellError as error:
        if arguments.json:
            print(json.dumps(report.refusal(str(error)), indent=1))
        raise
    judged = judge(estimates, box, running=question.pid is not None)
    answer = report.Answer(box, estimates, judged, _advice(estimates, context))
    _print(report.document(answer) if arguments.json else report.lines(answer))
    return EXIT_CODES[judged.verdict]


def _launches(host: Host, question: ask.Question) -> list[Launch]:
    """Return the engines that are asked about; raises CannotTellError, with what helps where that is known."""
    try:
        return ask.launches(host, question)
    except CannotTellError as error:
        from plimsoll.box.fit import unseen  # noqa: PLC0415  # few questions end here

        why = unseen.command(question.command)
        if not why:
            raise
        raise CannotTellError(why) from error


def _advice(estimates: Sequence[Estimate], context: Context) -> list[Advice]:
    from plimsoll.box.fit.advice import Question, advise  # noqa: PLC0415  # a third of the run time

    found = []
    for each in estimates:
        beside = [other for other in estimates if other is not each and _may_run_beside(other.launch, each.launch)]
        found.append(advise(Question(each, beside, context.box, lambda launch: ask.one(launch, context))))
    return found


def _may_run_beside(one: Launch, other: Launch) -> bool:
    shares = one.exclusive == other.exclusive != ""
    return not shares or not set(one.mixes).isdisjoint(other.mixes)


def _question(arguments: argparse.Namespace) -> ask.Question | None:
    compose = tuple(arguments.compose or ())
    given = [bool(compose), arguments.unit is not None, arguments.pid is not None, bool(arguments.words)]
    if sum(given) > 1:
        raise UsageError("fit: a command, --compose, --unit and --pid exclude each other")
    if arguments.pid is not None and arguments.pid < 1:
        raise UsageError(f"fit: --pid {arguments.pid}: no number of a process")
    if arguments.unit == "":
        raise UsageError("fit: --unit takes the name of a unit")
    return ask.Question(tuple(arguments.words), compose, arguments.unit or "", arguments.pid) if any(given) else None


def _box(arguments: argparse.Namespace, host: Host) -> boxes.Box:
    if arguments.mem_total_gib is not None:
        return boxes.of_size(arguments.mem_total_gib)
    if arguments.meminfo is None:
        return boxes.of_host(host)
    try:
        return boxes.of_meminfo(regular_text(host, arguments.meminfo), arguments.meminfo)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--meminfo {arguments.meminfo}: {reason}; save it with: cat /proc/meminfo") from error


def _box_alone(box: boxes.Box, host: Host, *, as_json: bool) -> int:
    account = boxes.account(host) if box.live else None
    _print(report.box_document(box, account) if as_json else report.box_lines(box, account))
    return GOOD


def _print(content: dict[str, Any] | list[str]) -> None:
    if isinstance(content, list) and sys.stdout.isatty():
        content = [row for line in content for row in _wrapped(line, shutil.get_terminal_size().columns)]
    sys.stdout.write(f"{json.dumps(content, indent=1)}\n" if isinstance(content, dict) else "\n".join([*content, ""]))


_TO_PASTE = "  to paste: "


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line as rows of a terminal, the later ones set in; flags that are to be pasted stay one line."""
    if len(line) <= width or line.startswith(_TO_PASTE):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, max(width, 40), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
