"""What a rollout would do on each host, and what it holds back there. Pure but for a timer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.box.model import OWN_UNITS
from plimsoll.controls import plan, preflight
from plimsoll.fleet.judging import bounded, cannot_be_judged, report_of
from plimsoll.fleet.report import HostReport
from plimsoll.fleet.rollout.model import Failure, Held, Planned, Step
from plimsoll.fleet.rollout.reasons import explained

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Sequence

    from plimsoll.box.model import State
    from plimsoll.controls.plan import LayerPlan
    from plimsoll.controls.record import Action
    from plimsoll.fleet.findings import Rule
    from plimsoll.fleet.gather import Answer
    from plimsoll.inventory import Host

HARMLESS_UNITS = ("systemd-journald.service", "ssh.service", "sshd.service", "earlyoom.service")
"""Who may be restarted beside a model: journald gets its streams back from systemd's store, sessions of sshd live
on, and earlyoom serves nobody."""
_ON_UNITS = {"stop": "stops", "mask": "masks", "disable": "disables", "restart": "restarts", "try-restart": "restarts"}
_BY_ITSELF = {
    "retire-socket": "takes the listening socket away and restarts sshd",
    "initramfs": "rebuilds the initramfs, which takes memory, for a change that needs a reboot",
    "daemon-reexec": "has systemd itself start anew",
}


def looked(
    answer: Answer, rules: Sequence[Rule], today: datetime.date, *, allow_restart: bool
) -> tuple[Planned, HostReport]:
    """Return what would be done on a host, and what was found there.

    One that did not answer, or makes no sense, is left out with the reason.
    """
    host = answer.host
    if answer.state is None:
        return _left_out(answer, explained(answer.problem) or "no answer")
    try:
        with bounded():
            found = plan.host_plan(host.policy, answer.state, host.waiver_for, today)
            planned = _planned(host, answer.state, found, allow_restart=allow_restart)
            return planned, report_of(answer, answer.state, found, rules)
    except Exception as error:  # noqa: BLE001 - a host that lies must not end the plan of the others
        return _left_out(answer, cannot_be_judged(error))


def _left_out(answer: Answer, problem: str) -> tuple[Planned, HostReport]:
    name = answer.host.name
    planned = Planned(name, problem=problem, failure=Failure.UNKNOWN)
    return planned, HostReport(name, reached=False, problem=problem, took_ms=answer.took_ms)


def _planned(host: Host, state: State, found: plan.HostPlan, *, allow_restart: bool) -> Planned:
    problems = preflight.problems(host.policy, state)
    if problems:
        return Planned(host.name, problem="; ".join(problems), failure=Failure.BAD)
    serving = tuple(f"{engine['comm']} (pid {engine['pid']})" for engine in state["engines"])
    held = held_back(found.layers) if serving and not allow_restart else ()
    left = found.without({each.layer for each in held}).layers
    steps = tuple(Step(layer.layer, what) for layer in left for what in layer.lines())
    return Planned(host.name, steps, held, serving, deployed_before=bool(state["ledger"]["files"]))


def held_back(layers: Iterable[LayerPlan]) -> tuple[Held, ...]:
    """Return the layers that would disturb what runs on the host, each as a whole.

    Nothing of such a layer is done, since an action that is left out after its file was written would be forgotten.
    """
    found = ((layer.layer, [why for action in layer.actions if (why := disturbs(action))]) for layer in layers)
    return tuple(Held(layer, ", ".join(reasons)) for layer, reasons in found if reasons)


def disturbs(action: Action) -> str:
    """Return what an action does to others than Plimsoll's own units; empty if it does nothing to them."""
    verb, *units = action
    if verb in _BY_ITSELF:
        return _BY_ITSELF[verb]
    others = [unit for unit in units if not unit.startswith(OWN_UNITS) and unit not in HARMLESS_UNITS]
    return f"{_ON_UNITS[verb]} {', '.join(others)}" if verb in _ON_UNITS and others else ""


@dataclass(frozen=True)
class Group:
    """Hosts of which the same would be changed."""

    hosts: tuple[str, ...]
    steps: tuple[Step, ...]
    held: tuple[Held, ...]


def grouped(hosts: Sequence[Planned]) -> list[Group]:
    """Return the hosts that are fit to be deployed to, by identical plan; the plan of most hosts comes first."""
    found: dict[tuple[tuple[Step, ...], tuple[Held, ...]], list[str]] = {}
    for host in hosts:
        if not host.problem:
            found.setdefault((host.steps, host.held), []).append(host.name)
    groups = [Group(tuple(names), steps, held) for (steps, held), names in found.items()]
    return sorted(groups, key=lambda group: -len(group.hosts))
