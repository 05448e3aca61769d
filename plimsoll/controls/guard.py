"""Layer guard: the right workload is stopped before the kernel livelocks, once that is known to be harmless."""

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plimsoll import zipapp
from plimsoll.box import heartbeat
from plimsoll.box.guard import config, last_resort
from plimsoll.box.guard.model import KIB_PER_GIB, Rule
from plimsoll.box.model import Judgement, State, Wanted
from plimsoll.controls import models
from plimsoll.controls.record import DROP_IN, Action, Heartbeat, OwnUnit, UnitProperty, Why
from plimsoll.controls.values import Fixed, Integer, Size
from plimsoll.controls.weights import weights
from plimsoll.policy import Lines, Policy

UNIT = "plimsoll-guard.service"
LAST_RESORT = "plimsoll-last-resort.service"
DIRECTORY = "/etc/systemd/system"
FILE = config.PATH
_LINES = ("slow_leave", "slow_enter", "floor")
_SAYS = "A guard that is alive may be an old one, or hang, or go by a file that was changed since."


def lines(policy: Policy, state: State) -> Lines:
    """Return the guard's lines on this host; raises ValueError where its MemTotal is not known."""
    total_kib = state["platform"]["mem_total_kib"]
    if total_kib is None:
        raise ValueError("/proc/meminfo has no MemTotal")
    return policy.ladder.scaled(int(total_kib))


def modes(policy: Policy) -> dict[Rule, str]:
    """Return how each rule is to stand by the policy: its own word, else the one for all."""
    own = policy.guard.rules
    return {rule: getattr(own, rule.value) or policy.guard.mode for rule in Rule}


def tables(policy: Policy, state: State) -> dict[str, dict[str, Any]]:
    """Return the content of guard.toml: section -> key -> value."""
    here = lines(policy, state)._asdict()
    guard = policy.guard
    return {
        # To the KiB; a GiB has six digits of them.
        "lines": {f"{name}_gib": _rounded_gib(here[f"{name}_kib"]) for name in _LINES},
        "armed": {rule.value: mode for rule, mode in modes(policy).items()},
        "victims": _victims(policy),
        "hooks": {"command": list(guard.hook_command)},
        "metrics": {"file": guard.metrics_file or ""},
        "reserve": {"groups": list(guard.reserve_groups)},
    }


def _victims(policy: Policy) -> dict[str, Any]:
    """Return what is said of victims; what the policy leaves open is the guard's own to choose."""
    guard = policy.guard
    spared = models.spared(policy) if policy.layers.models else ()
    given: dict[str, Any] = {
        "gpu_devices": list(guard.gpu_devices),
        "attributed_min_mib": guard.attributed_min_mib,
        "fallback_min_gib": guard.fallback_min_gib,
    }
    always = {"protect": list(dict.fromkeys([*guard.protect, *spared])), "prefer": list(guard.prefer)}
    return always | {key: value for key, value in given.items() if value not in ([], None)}


def _rounded_gib(kib: int) -> float:
    """Return a line in GiB with two digits: MemTotal differs by some KiB after a reboot, and that is no change."""
    return float(f"{kib / KIB_PER_GIB:.2g}")


def as_tables(control: Wanted) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the tables of a wanted configuration as TOML writes their values.

    A JSON text is a TOML text as long as nothing is escaped as a pair of surrogates.
    """
    return [
        (section, [(key, json.dumps(value, ensure_ascii=False)) for key, value in keys.items()])
        for section, keys in json.loads(control.value).items()
    ]


def unit_names(wanted: Sequence[Wanted]) -> dict[str, Any]:
    """Return what the templates of the units need, from what is wanted of their layer."""
    made: dict[str, Any] = next((json.loads(each.value) for each in wanted if each.id == "guard/configuration"), {})
    metrics = made.get("metrics", {}).get("file", "")
    return {"metrics_directory": posixpath.dirname(metrics), "watchdog_s": last_resort.WATCHDOG_S}


def _made(value: str, policy: Policy, state: State) -> str:
    del value
    return json.dumps(tables(policy, state), ensure_ascii=False)


def _program(value: str, policy: Policy, state: State) -> str:
    del value, policy, state
    return zipapp.sha256()


def _knows_last_resort(policy: Policy, state: State) -> bool:
    """Say whether a host is to have it, or has it from a time when the policy asked for it."""
    show = state["units"].get(LAST_RESORT, {}).get("show", {})
    return policy.guard.last_resort or bool(show.get("LoadState", "not-found") != "not-found")


def _last_resort(value: str, policy: Policy, state: State) -> str:
    del state
    return value if policy.guard.last_resort else "disabled inactive"


class _FromPolicy(Fixed):
    """Made from the policy and this checkout, not given as one value."""

    @property
    def describes(self) -> str:
        """Where to set it."""
        return self.value

    def parse(self, raw: object) -> str:
        """Refuse: there is a section of the policy for this."""
        raise ValueError(f"is {self.value}, or null to leave it alone, not {raw!r}")


class _Score(UnitProperty):
    """The guard's own score; a guard that has lost it is started again, and one that starts has it anyway."""

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Start it again where it runs with another score."""
        is_running = state["units"][wanted.target].get("process") is not None
        return [("restart", wanted.target)] if is_running and judgement.live not in (None, wanted.value) else []


class _LastResort(OwnUnit):
    """On a host that no longer is to have it, it must not go on: it is disabled and stopped, at once."""

    def live_actions(self, wanted: Wanted, judgement: Judgement, state: State) -> list[Action]:
        """Enable and start, or disable and stop."""
        if wanted.value == self.default:
            return super().live_actions(wanted, judgement, state)
        verbs = (("disable", judgement.persisted), ("stop", judgement.live))
        return [(verb, wanted.target) for verb, found in verbs if found != wanted.value]


def _why(reason: str, evidence: str, **others: str) -> Why:
    common = {
        "source": "field report from an ASUS Ascent GX10, July to October 2026",
        "cost": "None.",
        "risk": "None known.",
        "skip_if": "The layer is off.",
    }
    return Why(reason=reason, evidence=evidence, **{**common, **others})


def _is(name: str, default: str, value: Fixed, why: Why, **others: Any) -> Heartbeat:  # noqa: ANN401  # the record's fields
    fields: dict[str, Any] = {"target": UNIT, "name": name, "mend": "restart", **others}
    return Heartbeat(id=f"guard/{name}", default=default, value=value, why=why, **fields)


CONTROLS = (
    _is(
        "configuration",
        "{}",
        _FromPolicy("made from the policy's sections guard and ladder"),
        _why(
            "The lines are those of the policy's ladder, scaled to the host; what is to be protected, preferred, armed "
            "and told is the policy's. By default every rule watches for a day before it acts, but for the floor.",
            "A guard whose line lay above a healthy model's steady state stopped it; replayed over 2.5 days of "
            "recordings the 8 GiB line was crossed 116 times in 9 episodes.",
            risk="A line that is set above what a model leaves free has it stopped.",
        ),
        file=FILE,
        mend="hand-over",
        choose=_made,
        made=True,
    ),
    OwnUnit(
        id="guard/running",
        target=UNIT,
        file=f"{DIRECTORY}/{UNIT}",
        default="enabled active",
        value=Fixed("enabled active"),
        why=_why(
            "It measures what is really available every 100 ms and stops the workload that grew, by its cgroup, "
            "while there is still memory to do so.",
            "A sketch of it kept 31 of 31 fresh logins within 3.1 s on a machine that wedges otherwise; an 82 GB "
            "over-commit on a real box was stopped at 19.4 GiB, and the box was itself again in 4 s.",
            source="Debian 13 virtual machine with a driver stand-in that books as reported; field report from an "
            "ASUS Ascent GX10, October 2026",
            cost="A Python process whose memory is locked.",
            risk="It ends a workload with SIGKILL. What it would stop is shown by `plimsoll status` at any time, and "
            "only the floor is armed from the start.",
            skip_if="Nothing on the box may be stopped by a program: it then livelocks instead.",
        ),
    ),
    _is(
        "program",
        "",
        _FromPolicy("the program of the layer box"),
        _why(
            "The guard that runs is the one that is installed: a new version takes over beside the old one, which "
            "goes on until it is ready.",
            _SAYS,
        ),
        mend="hand-over",
        choose=_program,
        made=True,
    ),
    _is(
        "memory",
        heartbeat.LOCKED,
        Fixed(heartbeat.LOCKED),
        _why(
            "Its memory is locked, or it waits for its own pages in the reclaim that it is to prevent.",
            "A guard with locked memory of about 30 MiB went on through over-commits in which dockerd did not answer.",
            cost="What is locked is not available to models.",
        ),
    ),
    _is(
        "sample",
        heartbeat.FRESH,
        Fixed(heartbeat.FRESH),
        _why("It took its last sample less than 10 s ago: it is not only alive, it looks.", _SAYS),
    ),
    _Score(
        id="guard/OOMScoreAdjust",
        target=UNIT,
        section="Service",
        name="OOMScoreAdjust",
        file=DROP_IN,
        default="-1000",
        value=Integer(-1000, 0),
        why=_why(
            "Who stops others must not be the kernel's victim.",
            "The OOM killer took small services one after the other while the engine showed 32 MB.",
            risk="None known: its children set their own score to 0.",
        ),
    ),
    UnitProperty(
        id="guard/MemoryMin",
        target=UNIT,
        section="Service",
        name="MemoryMin",
        file=DROP_IN,
        default="48M",
        value=Size(),
        why=_why(
            "Beside what it has locked, its children and the files that they are read from must not be taken from it.",
            "A unit's protection counts only as far as every slice above it has it; system.slice has 768 MiB.",
            source="Debian 13 virtual machine, kernel 6.12, systemd 257",
            cost="Nothing while idle.",
        ),
    ),
    # what it writes can wait, and no thread that decides waits for it
    *(
        each
        for each in weights("guard", UNIT, "It must be scheduled while every core is in reclaim.", "None known.")
        if each.name == "CPUWeight"
    ),
    _LastResort(
        id="guard/last-resort",
        target=LAST_RESORT,
        file=f"{DIRECTORY}/{LAST_RESORT}",
        applies=_knows_last_resort,
        choose=_last_resort,
        default="enabled active",
        value=Fixed("enabled active"),
        why=Why(
            reason="Opt-in (guard.last_resort). Where everything else has failed, the box restarts after minutes in "
            "which everybody stalled on memory, at most twice a day.",
            evidence="Such a unit ended three freezes of one box, 10 minutes after their beginning; the hardware "
            "watchdog slept through two of 17 h 45 and 5 h 55. Healthy loads stalled for 3 minutes at the most.",
            source="public report of a GB10 box, September 2026",
            cost="A second, smaller Python process whose memory is locked.",
            risk="All that runs is lost when it fires. One container that thrashes at its own limit on an otherwise "
            "idle box looks the same.",
            skip_if="The root disk asks for a passphrase (refused), or unsaved work matters more.",
        ),
    ),
)


# --- before a deploy --------------------------------------------------------------------------------


def units(policy: Policy) -> list[str]:
    """Return the units that a policy has started."""
    return [UNIT, LAST_RESORT] if policy.guard.last_resort else [UNIT]


def notes(policy: Policy, state: State) -> Iterator[str]:
    """Say which lines memory is below already, what runs then, and what that means for the guard."""
    if policy.guard.last_resort:
        yield from (f"guard.last_resort: {problem}" for problem in _disorder(state))
    available = state["memory"]["available_kib"]
    if available is None:
        yield "guard: how much memory is available is not known here, so that nothing is armed"
        return
    here = lines(policy, state)
    names = _named(state["engines"])
    running = f"; running: {', '.join(names)}" if names else ""
    if available < here.floor_kib:
        yield (
            f"guard: {_gib(available)} are available, below the floor of {_gib(here.floor_kib)} already{running}: the "
            "floor is armed once memory is above it"
        )
    elif available < here.slow_enter_kib:
        yield (
            f"guard: {_gib(available)} are available, below the slow line of {_gib(here.slow_enter_kib)}{running}: "
            "the slow rule watches, and would have stopped one of them"
        )


def _disorder(state: State) -> list[str]:
    """Return which of the deadlines in force here stand in the wrong order."""
    sysctls = {key: state["sysctl"].get(key, {}).get("value") for key in last_resort.SYSCTLS}
    timeouts = [each["timeout"] for each in state["watchdogs"] if each["state"] == "active"]
    found = last_resort.deadlines(sysctls, timeouts[0] if timeouts else None, guard_stall_s=None)
    return last_resort.disorder(found)


def _named(engines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{each['comm']} (pid {each['pid']})" for each in engines]


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.3g} GiB"
