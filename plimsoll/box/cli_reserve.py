"""`plimsoll reserve`: a load announces what it will allocate, so that the guard does not stop it for doing so."""

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.box import heartbeat, memory, platform, protections, units
from plimsoll.box.errors import GOOD, REFUSED, UNKNOWN, UsageError
from plimsoll.box.guard import configured
from plimsoll.box.guard import reserve as reserving
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Reservation, Sample
from plimsoll.box.guard.places import printable
from plimsoll.box.host import Host

SCHEMA = "plimsoll.reserve/1"
MAX_GIB = 1 << 20


def reserve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reserve`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--for",
        dest="selector",
        metavar="WORKLOAD",
        help="who will allocate: a unit, a user's unit as UID/UNIT, a container's name or id, a cgroup, or pid:N",
    )
    what.add_argument("--list", action="store_true", help="show what is reserved")
    what.add_argument("--release", metavar="ID", help="take a reservation back")
    parser.add_argument("--gib", type=float, metavar="N", help="how much it will allocate, in GiB")
    parser.add_argument("--within-s", type=float, metavar="S", help="until when, in seconds from now")
    parser.add_argument("--steady-gib", type=float, metavar="N", help="its own line, instead of the slow one, in GiB")
    parser.add_argument("--json", action="store_true", help=f"print it as {SCHEMA}")


def reserve(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Reserve, list or release; 75 for an announcement that cannot be kept now."""
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    if "MemTotal" not in meminfo:
        raise UsageError("/proc/meminfo does not say how much memory there is: nothing can be reserved")
    config = configured.load(host).config
    store = reserving.Store(host, config.reserve_groups)
    _need_access(host)
    if arguments.selector is not None:
        return _reserve(arguments, host, store, config.settings.lines, meminfo)
    if arguments.release is not None:
        return _release(arguments.release, store)
    return _list(store, as_json=arguments.json)


def _need_access(host: Host) -> None:
    """Say at once who may not reserve; the guard makes the directory, or root's first reservation does."""
    directory = host.path(reserving.DIRECTORY)
    there = os.path.lexists(directory)
    if os.geteuid() != 0 and not (there and os.access(directory, os.R_OK | os.W_OK | os.X_OK)):
        raise UsageError("reservations are for root, and members of guard.toml's reserve.groups: use sudo")


def _reserve(
    arguments: argparse.Namespace,
    host: Host,
    store: reserving.Store,
    lines: Lines,
    meminfo: Mapping[str, int],
) -> int:
    within_s = _positive("--within-s", arguments.within_s)
    allocate_kib = _kib("--gib", arguments.gib)
    steady_kib = lines.slow_enter_kib if arguments.steady_gib is None else _kib("--steady-gib", arguments.steady_gib)
    sample = _sample(host, meminfo)
    backstop = backstop_kib(host, meminfo)
    wanted = reserving.new(
        _selector(arguments.selector), allocate_kib, within_s, sample.at_s, sample.available_kib or 0, steady_kib
    )
    if not os.path.lexists(host.path(reserving.DIRECTORY)):
        store.create()
    reason = store.add(wanted, lambda others: _why_not(wanted, others, sample, lines, backstop))
    if reason is not None:
        print(f"plimsoll: refused: {reason}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"schema": SCHEMA, "refused": reason, "reservations": []}))
        return REFUSED
    if not heartbeat_is_fresh(host):
        print("plimsoll: no guard runs here: nobody keeps to this until one does", file=sys.stderr)
    _print((wanted,), sample.at_s, as_json=arguments.json)
    return GOOD


def heartbeat_is_fresh(host: Host) -> bool:
    """Say whether a guard works on this host."""
    found = heartbeat.read(host)
    return found is not None and found.get("sample_age_s", math.inf) <= heartbeat.FRESH_S


def _why_not(
    wanted: Reservation,
    others: Sequence[Reservation],
    sample: Sample,
    lines: Lines,
    backstop: int | None,
) -> str | None:
    if any(each.workload == wanted.workload for each in others):
        return f"{wanted.workload} has a reservation already; release that first"
    return reserving.admit(wanted, sample, lines, others, backstop)


def _sample(host: Host, meminfo: Mapping[str, int]) -> Sample:
    has_driver = bool(platform.driver(host)["version"])
    return Sample(time.monotonic(), memory.available_kib(meminfo, to_driver=has_driver))


def backstop_kib(host: Host, meminfo: Mapping[str, int]) -> int | None:
    """Return the level of available memory below which earlyoom would act now, None where none runs or it would not."""
    version = (platform.packages(host, ("earlyoom",)) or {}).get("earlyoom")
    found = [
        _fires_below(each["argv"], meminfo, version) for each in units.processes(host) if each["comm"] == "earlyoom"
    ]
    return max((each for each in found if each is not None), default=None)


def _fires_below(argv: Sequence[str], meminfo: Mapping[str, int], version: str | None) -> int | None:
    given = protections.earlyoom_arguments(argv)
    facts = protections.firing_facts(given, {"meminfo": meminfo}, version)
    used, needed = facts["swap_used_kib"], facts["swap_used_needed_kib"]
    waits_for_swap = used is not None and needed is not None and used < needed
    fires: int | None = facts["fires_below_kib"]
    return None if given["dryrun"] or waits_for_swap else fires


def _release(identity: str, store: reserving.Store) -> int:
    if not store.remove(identity):
        raise UsageError(f"there is no reservation {printable(identity)}; see plimsoll reserve --list")
    print(f"released {identity}")
    return GOOD


def _list(store: reserving.Store, *, as_json: bool) -> int:
    found, problems = store.read()
    for problem in problems:
        print(f"plimsoll: {printable(problem)}", file=sys.stderr)
    _print(found, time.monotonic(), as_json=as_json)
    return UNKNOWN if problems else GOOD


def _print(found: Sequence[Reservation], at_s: float, *, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps({"schema": SCHEMA, "refused": None, "reservations": [_document(each, at_s) for each in found]})
        )
        return
    for each in found:
        left_s = each.until_s - at_s
        until = f"to be taken within {left_s:.0f} s" if left_s > 0 else "taken"
        steady = f"its line is {each.steady_line_kib / KIB_PER_GIB:.2f} GiB"
        amount = f"{each.allocate_kib / KIB_PER_GIB:.2f} GiB"
        print(f"{each.id}  {printable(each.workload)}: {amount}, {until}; {steady}")
    if not found:
        print("nothing is reserved")


def _document(reservation: Reservation, at_s: float) -> dict[str, Any]:
    return {
        "id": reservation.id,
        "workload": reservation.workload,
        "allocate_bytes": reservation.allocate_kib << 10,
        "available_at_start_bytes": reservation.available_at_start_kib << 10,
        "steady_line_bytes": reservation.steady_line_kib << 10,
        "seconds_left": max(0.0, reservation.until_s - at_s),
    }


def _selector(text: str) -> str:
    if text.startswith("pid:") and not re.fullmatch(r"pid:[1-9][0-9]{0,9}", text):
        raise UsageError(f"reserve --for: {printable(text)!r}: pid: is followed by a process's number")
    return text


def _kib(option: str, gib: float | None) -> int:
    return round(_positive(option, gib) * KIB_PER_GIB)


def _positive(option: str, value: float | None) -> float:
    if value is None:
        raise UsageError(f"reserve --for needs {option}")
    if not math.isfinite(value) or not 0 < value <= MAX_GIB:
        raise UsageError(f"reserve {option}: {value:g} is not a number above 0")
    return value
