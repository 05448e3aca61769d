"""`plimsoll drill`: a bounded over-commit, to see the guard act before it has to be relied on."""

import argparse
import json
import os
import sys
import threading
import time

from plimsoll.box.cli_status import of_guard
from plimsoll.box.errors import REFUSED, BoxError, UsageError
from plimsoll.box.guard import configured, records
from plimsoll.box.guard import drill as drilling
from plimsoll.box.guard.model import KIB_PER_GIB, Rule
from plimsoll.box.host import Host
from plimsoll.box.model import PROGRAM

LIMIT_S = 900
"""118 GiB at this pace take a minute, the last 10 GiB of them 16 s; an emulated machine is slower."""
BACK_WITHIN_S = 60.0
BACK_SHARE = 0.95
"""Of what was available before: caches that the drill displaced come back later, or never."""
POLL_S = 0.1


class NotNowError(BoxError):
    """A drill must not begin; the message says why."""

    exit_code = REFUSED


def drill_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--gib", type=positive, help="take this much; without it, enough to come below the floor")
    parser.add_argument("--beside", action="store_true", help="though a model runs that may be stopped in its place")
    parser.add_argument("--json", action="store_true", help="print what came of it as JSON")
    parser.add_argument("--take-kib", type=int, help=argparse.SUPPRESS)


def positive(text: str) -> float:
    """Return a number above 0 from the command line."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def drill(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Take memory until the guard acts; 0 if it did, 2 if not, 3 if that cannot be told, 75 if it is not begun."""
    if os.geteuid() != 0:
        raise UsageError("this needs root: use sudo")
    if arguments.take_kib is not None:
        return _take(host, arguments.take_kib)
    status, problem = of_guard(host)
    reason = drilling.refusal(status, problem, beside=arguments.beside)
    if reason:
        raise NotNowError(reason)
    lines, before = configured.load(host).config.settings.lines, drilling.level(host)
    if before is None or status is None:
        raise NotNowError("how much memory is available is not known here")
    wanted = None if arguments.gib is None else round(arguments.gib * KIB_PER_GIB)
    plan = drilling.plan(lines, before, wanted)
    armed = frozenset(Rule(each["rule"]) for each in status["rules"] if each["armed"])
    short = drilling.reaches(plan, lines, before, armed)
    if short:
        raise UsageError(short)
    found = _watched(host, plan, before)
    print(json.dumps(found.to_json(), indent=1) if arguments.json else "\n".join(found.lines()))
    return found.exit_code


def _take(host: Host, take_kib: int) -> int:
    """Be the workload: in the transient unit, until somebody ends it."""
    lines, before = configured.load(host).config.settings.lines, drilling.level(host)
    if before is None:
        return drilling.ABORTED
    try:
        device = drilling.open_device()
        code = drilling.take(drilling.plan(lines, before, take_kib), device, lambda: drilling.level(host), time.sleep)
    except drilling.DeviceError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return drilling.NO_DEVICE
    if code == drilling.WAS_TAKEN:
        drilling.hold()
    return code


def _watched(host: Host, plan: drilling.Plan, before_kib: int) -> drilling.Outcome:
    """Run the workload, and watch memory until it is back."""
    codes: list[int] = []
    began_s = time.monotonic()
    runner = threading.Thread(target=lambda: codes.append(_run(host, plan)), daemon=True)
    runner.start()
    lowest = before_kib
    while runner.is_alive():
        runner.join(POLL_S)
        lowest = min(lowest, drilling.level(host) or lowest)
    after = _recovered(host, round(before_kib * BACK_SHARE))
    took_s = time.monotonic() - began_s
    boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id") or "unknown"
    written = records.read_records(host.text_or_none(records.PATH) or "").records
    return drilling.Outcome(
        before_kib, lowest, after, round(took_s, 1), drilling.acted(written, boot_id, began_s), (*codes, 1)[0]
    )


def _run(host: Host, plan: drilling.Plan) -> int:
    """Run it in a unit of its own, and return its exit code; 255 where a signal has ended it."""
    program = ("/usr/bin/python3", "-I", PROGRAM, "drill", "--take-kib", str(plan.take_kib))
    unit = ("--unit", drilling.UNIT, "--collect", "--quiet", "--wait", "--property", f"RuntimeMaxSec={LIMIT_S}")
    return host.run("systemd-run", *unit, "--", *program, timeout_s=LIMIT_S + 60).code


def _recovered(host: Host, wanted_kib: int) -> int | None:
    """Wait until so much is available again, or the time is over; return what is."""
    deadline_s = time.monotonic() + BACK_WITHIN_S
    found = drilling.level(host)
    while (found or 0) < wanted_kib and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        found = drilling.level(host)
    return found
