"""`plimsoll state`: the live state as JSON, for whoever judges it."""

import argparse
import json
import sys

from plimsoll.box import state as live_state
from plimsoll.box.errors import GOOD, UsageError
from plimsoll.box.host import Host
from plimsoll.box.model import Request


def state(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Print the state on one line; with `--mark` between two lines that nobody else prints."""
    text = sys.stdin.readline() if arguments.request == "-" else arguments.request
    try:
        request = Request.from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"--request: {error}") from error
    lines = [json.dumps(live_state.read(request, host))]
    print("\n".join([arguments.mark, *lines, arguments.mark] if arguments.mark else lines))
    return GOOD
