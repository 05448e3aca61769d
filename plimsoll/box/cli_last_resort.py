"""`plimsoll last-resort`: what the unit of the same name runs."""

import argparse
import os
import signal
import sys
import threading

from plimsoll.box.errors import UsageError
from plimsoll.box.guard import last_resort as watching
from plimsoll.box.host import Host


def last_resort_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add no options: there is nothing to choose."""


def last_resort(_arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Watch until systemd ends it."""
    if "NOTIFY_SOCKET" not in os.environ:
        raise UsageError("this is the program of plimsoll-last-resort.service: only systemd can use it")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    return watching.run(host, os.environ, stopped, lambda line: print(line, file=sys.stderr, flush=True))
