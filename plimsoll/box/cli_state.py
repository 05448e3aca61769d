"""`plimsoll state`: the live state as JSON, for whoever judges it."""

import argparse
import json

from plimsoll.box import state as live_state
from plimsoll.box.errors import GOOD, UsageError
from plimsoll.box.host import Host
from plimsoll.box.model import Request


def state_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--request", default="{}", help="JSON: what to read beyond the fixed sections")


def state(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Print the state on one line."""
    try:
        request = Request.from_json(json.loads(arguments.request))
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"--request: {error}") from error
    print(json.dumps(live_state.read(request, host)))
    return GOOD
