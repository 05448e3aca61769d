"""What an audit runs on a host: one question on standard input, one state on standard output."""

import json
import signal
import sys

from plimsoll.box import state
from plimsoll.box.model import Request


def main() -> int:
    """Answer `{"request", "mark", "limit_s"}`, one line of JSON, with the state between two lines of the mark.

    Nobody else knows the mark, so that a shell's greeting can be told apart. After `limit_s` nobody waits for the
    answer any more, and the kernel ends the process, which a lost connection would not do.
    """
    question = json.loads(sys.stdin.readline())
    signal.alarm(question["limit_s"])
    found = state.read(Request.from_json(question["request"]))
    print(question["mark"], json.dumps(found), question["mark"], sep="\n")
    return 0
