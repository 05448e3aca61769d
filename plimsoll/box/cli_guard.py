"""`plimsoll guard`: run it, or tell the one that runs what it shall do."""

import argparse
import json
import os
import signal
import time
from collections.abc import Sequence
from importlib import import_module

from plimsoll.box import heartbeat
from plimsoll.box.errors import GOOD, INTERNAL, UNKNOWN, BoxError, UsageError
from plimsoll.box.guard import arming, config, configured
from plimsoll.box.guard.handover import READY_WITHIN_S
from plimsoll.box.guard.hashes import sha256_of
from plimsoll.box.guard.model import Rule
from plimsoll.box.host import Host
from plimsoll.box.model import PROGRAM

UNIT = "plimsoll-guard.service"
POLL_S = 0.2
RELOADED_WITHIN_S = READY_WITHIN_S + 20.0
"""A new version is made ready first, and takes over once nobody is being stopped."""
MODES = {"arm": config.Arming.ARMED, "observe": config.Arming.OBSERVE, "auto": config.Arming.AUTO}
VERBS = (*MODES, "reload", "last-day")
_DEFAULT_RULES = {"arm": tuple(rule for rule in Rule if rule is not Rule.STALL)}
"""Without a rule's name all are meant; but stall is armed by its name only."""


class ReloadError(BoxError):
    """The running guard does not go by the new program or configuration; it goes on as it was."""

    exit_code = INTERNAL


def guard_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("verb", nargs="?", choices=VERBS, help="what the running guard shall do; none: be the guard")
    parser.add_argument("rules", nargs="*", metavar="RULE", help=f"of arm, observe and auto: {', '.join(Rule)}")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done, whatever is armed")
    parser.add_argument("--json", action="store_true", help="of last-day: print JSON")


def guard(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Do what the verb says; without one, be the guard."""
    if arguments.verb is None:
        # by name, because only the daemon itself needs all that it imports
        return int(import_module("plimsoll.box.guard.daemon").run(host, PROGRAM, dry_run=arguments.dry_run))
    if os.geteuid() != 0:
        raise UsageError("this needs root: use sudo")
    if arguments.verb == "reload":
        return _reload(host)
    if arguments.verb == "last-day":
        return _last_day(host, as_json=arguments.json)
    return _choose(host, arguments.verb, _rules(arguments.rules))


def _rules(names: Sequence[str]) -> list[Rule]:
    """Return the rules of these names; raises UsageError for what is none."""
    for name in names:
        if name not in list(Rule):
            raise UsageError(f"{name!r} is no rule: {', '.join(Rule)}")
    return [Rule(name) for name in names]


def _choose(host: Host, verb: str, named: list[Rule]) -> int:
    """Keep an operator's word on rules, and have the running guard read it."""
    rules = named or list(_DEFAULT_RULES.get(verb, Rule))
    before, problem = arming.load(host)
    if problem:
        print(problem)
    arming.save(host, arming.choose(before, rules, MODES[verb]))
    print(f"{', '.join(rules)}: {MODES[verb]}")
    active = host.run("systemctl", "is-active", "--quiet", UNIT).code == 0
    if not active:
        print(f"{UNIT} does not run: it holds from its next start")
        return GOOD
    ran = host.run("systemctl", "reload", UNIT, timeout_s=RELOADED_WITHIN_S + 10)
    if ran.code != 0:
        raise ReloadError(f"it is kept, but {UNIT} has not read it: {ran.problem}")
    return GOOD


def _reload(host: Host) -> int:
    """Have the running guard go by what is installed; systemd runs this for `systemctl reload`.

    Raises ConfigError for a faulty file, and then the guard is not even told.
    """
    pid = os.environ.get("MAINPID", "")
    if not pid.isascii() or not pid.isdigit():
        raise UsageError(f"this is for systemd; by hand: systemctl reload {UNIT}")
    configured.load(host)
    os.kill(int(pid), signal.SIGHUP)
    deadline_s = time.monotonic() + RELOADED_WITHIN_S
    while problem := _not_yet(host):
        if time.monotonic() > deadline_s:
            raise ReloadError(f"{problem} after {RELOADED_WITHIN_S:.0f} s; journalctl -u {UNIT} says why")
        time.sleep(POLL_S)
    return GOOD


def _not_yet(host: Host) -> str:
    """Return what the running guard does not go by yet, empty for nothing."""
    said = heartbeat.read(host)
    if said is None or "error" in said:
        return "the guard says nothing" if said is None else str(said["error"])
    if said["program_sha256"] != sha256_of(host.path(PROGRAM)):
        return f"the guard is not yet the one in {PROGRAM}"
    if said["config_sha256"] != (sha256_of(host.path(config.PATH)) or ""):
        return f"the guard does not yet go by {config.PATH}"
    return ""


def _last_day(host: Host, *, as_json: bool) -> int:
    """Say what the rules would have done in the last day, were none armed; 3 where there is no recording."""
    found = arming.last_day(host, configured.load(host).config.settings, time.time())
    if as_json:
        print(json.dumps(arming.replayed_to_json(found)))
    else:
        print(found.problem or f"{found.covered_s / 3600:.1f} h of the last 24 h are recorded")
        for each in found.would:
            early = "" if each in found.against(each.rule) or each.rule is Rule.FLOOR else ", as the floor did then"
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(each.at_s))} {each.rule}{early}: {each.reason}")
    return UNKNOWN if found.problem or not found.covered_s else GOOD
