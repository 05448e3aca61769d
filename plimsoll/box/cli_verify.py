"""`plimsoll verify`: the box judges itself."""

import argparse
import json
import sys

from plimsoll.box import verify as judging
from plimsoll.box.exclusive import settle
from plimsoll.box.host import Host
from plimsoll.box.judge import exit_code


def verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print the audit document")
    parser.add_argument("--strict", action="store_true", help="let what is pending count as drift")
    parser.add_argument("--settled", action="store_true", help="wait until nothing was changed for half a minute")
    parser.add_argument("--notify", action="store_true", help="run the notify command of the policy if anything is bad")


def verify(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Compare the live state with what was deployed; 2 for drift, 3 for what could not be told."""
    if arguments.settled:
        settle(host)
    wanted, command = judging.load_wanted(host)
    judgements = judging.judge_host(host, wanted)
    document = judging.report(host.text_or_none("/proc/sys/kernel/hostname") or "localhost", judgements)
    print(json.dumps(document, indent=1) if arguments.json else "\n".join(judging.lines(judgements)))
    if arguments.notify and command and judging.should_notify(judgements):
        problem = judging.notify(host, command, document)
        if problem:
            print(f"plimsoll: nobody could be told: {problem}", file=sys.stderr)
    return exit_code(judgements, strict=arguments.strict)
