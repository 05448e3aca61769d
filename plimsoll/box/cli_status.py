"""`plimsoll status`: memory as it is, what the guard sees, who would be stopped and by whom. Works without root."""

import argparse
import json
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plimsoll.box import heartbeat
from plimsoll.box.errors import GOOD, UNKNOWN, UsageError
from plimsoll.box.guard import glance, status_view
from plimsoll.box.guard import status as guard_status
from plimsoll.box.host import Host

PERIOD_S = 1.0


def status_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the document plimsoll.status/1")
    shown.add_argument("--watch", action="store_true", help="show it live, until q")


def status(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Show it once, or again and again; 3 where it is not known what the guard would do.

    Memory below a line is no failure of the question, and is shown: a program that asks whether the box is guarded
    must be able to tell that from a guard that is not there.
    """
    if arguments.watch:
        return _watch(host)
    found = current(host)
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(status_view.lines(found)))
    return UNKNOWN if found["problem"] else GOOD


def current(host: Host) -> dict[str, Any]:
    """Return the guard's own status if it is fresh, else one of this moment; with the kernel's choice added to both."""
    found, problem = of_guard(host)
    not_seen: list[str] = []
    if found is None:
        seen, not_seen = glance.look(host)
        found = guard_status.document(seen)
    ranked, hidden = glance.kernel_candidates(host)
    sampled_s = found["guard"]["sampled_monotonic_s"] if found["guard"] else None
    return {
        **found,
        "sample_age_s": None if sampled_s is None else heartbeat.age_s(sampled_s),
        "problem": problem,
        "kernel_candidates": ranked,
        "not_seen": [*not_seen, *hidden],
    }


def of_guard(host: Host) -> tuple[dict[str, Any] | None, str]:
    """Return the guard's status, or why there is none that can be relied on."""
    try:
        found = heartbeat.document(host)
        if found is None:
            return None, f"no guard has written {heartbeat.STATUS}; systemctl status plimsoll-guard says more"
        age_s = heartbeat.age_s(float(found["guard"]["sampled_monotonic_s"]))
    except OSError as error:
        return None, f"{heartbeat.STATUS}: {error.strerror}"
    except (ValueError, TypeError, KeyError) as error:
        return None, f"{heartbeat.STATUS}: cannot be understood: {error}"
    if not 0 <= age_s < heartbeat.FRESH_S:
        return None, f"its last sample is {age_s:.0f} s old: it hangs, or has ended; what follows is of this moment"
    return found, ""


# --- a live view ------------------------------------------------------------------------------------


def _watch(host: Host) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("--watch needs a terminal; without one, run it again and again with --json")
    name = host.text_or_none("/proc/sys/kernel/hostname") or "localhost"
    with _screen():
        while True:
            # A serial line does not know its size.
            columns, rows = shutil.get_terminal_size((80, 24))
            found = current(host)
            sys.stdout.write(status_view.frame(found, columns, rows, name))
            sys.stdout.flush()
            if _key(PERIOD_S) in ("q", "Q", "\x03", "\x04"):
                return UNKNOWN if found["problem"] else GOOD


@contextmanager
def _screen() -> Iterator[None]:
    """Take the terminal's second screen, keys one by one, and give both back whatever happens."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(status_view.BEGIN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(status_view.END)
        sys.stdout.flush()


def _key(timeout_s: float) -> str:
    """Return a key that is pressed within the time, empty for none; the end of input counts as q."""
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or "q"
