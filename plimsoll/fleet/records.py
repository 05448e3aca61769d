"""What is known of a control before any host is asked: its record, and its value for this inventory. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from plimsoll.box.model import Kind
from plimsoll.box.readings import CGROUP_FILE
from plimsoll.controls import registry, render, trims
from plimsoll.controls.docs import is_opt_in, undo_command, verified_by
from plimsoll.controls.record import Cmdline, Control, Declaration, ManagerProperty, UnitProperty
from plimsoll.policy import Policy, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plimsoll.inventory import Inventory, Waiver

_FILE = "file:"


def record(name: str, known: Inventory) -> dict[str, Any]:
    """Return the record of a control as it is named in a report; raises click.UsageError for one that is none."""
    controls = {control.id: control for control in every(known)}
    found = controls.get(name) or next((c for c in controls.values() if _stands_for(c, name)), None)
    if found is not None:
        return control_record(found, known)
    files = _files(controls.values(), _policies(known))
    if name in files:
        return _file_record(name, files[name])
    hint = nearest(name, [*controls, *files, *registry.LAYERS])
    raise click.UsageError(f"there is no control or layer {name!r}; {hint}")


def every(known: Inventory) -> list[Control]:
    """Return every record: those of all layers, and of the units that may be trimmed or that the inventory names."""
    policies = [Policy(trims=tuple(trims.COMPANIONS)), *_policies(known)]
    trimmed = {control.id: control for policy in policies for control in trims.controls(policy)}
    return [*registry.every_control(), *trimmed.values()]


def _policies(known: Inventory) -> list[Policy]:
    return [known.defaults, *(host.policy for host in known.hosts.values())]


def of_layer(layer: str, known: Inventory) -> list[Control]:
    """Return the records of one layer."""
    return [control for control in every(known) if control.layer == layer]


def _stands_for(control: Control, name: str) -> bool:
    return control.targets is not None and name.startswith(f"{control.id}:")


def control_record(control: Control, known: Inventory) -> dict[str, Any]:
    """Return everything about one control, in the form of the schema plimsoll.explain/1."""
    return {
        "id": control.id,
        "layer": control.layer,
        "kind": control.kind.value,
        "opt_in": is_opt_in(control.layer),
        "sets": _sets(control),
        "default": None if control.made else control.default,
        "accepts": control.value.describes,
        "values": values(control, known),
        "kept_in": kept_in(control),
        "in_force": in_force(control),
        "verified_by": verified_by(control),
        "undo": f"`{undo_command(control.layer)}` on the host. {control.undo()}".strip(),
        "waivers": [_waiver(waiver) for waiver in known.waivers if waiver.control == control.id],
        "why": dataclasses.asdict(control.why),
    }


def _sets(control: Control) -> str:
    if isinstance(control, Declaration):
        return control.sets
    if isinstance(control, Cmdline):
        return f"the arguments that {control.target} is started with ({control.variable})"
    if not control.name:
        return {
            Kind.UNIT_STATE: f"whether {control.target} is enabled, and whether it runs",
            Kind.PACKAGE: f"the package {control.target}",
        }.get(control.kind, control.target)
    of = ", ".join(control.possible) if isinstance(control, UnitProperty) and control.possible else control.target
    return f"{control.name} in [{control.section}] of {of}" if control.section else f"{control.name} of {of}"


def kept_in(control: Control) -> str:
    """Say where a setting is kept, so that it is there after a reboot."""
    if not control.file:
        return _NO_FILE.get(control.kind, "the unit's own links, by systemctl")
    return control.shown_file


_NO_FILE = {
    Kind.PACKAGE: "the package database",
    Kind.HEARTBEAT: "nothing: it is so, or not, while the unit runs",
}
_IN_FORCE = {
    Kind.SYSCTL: "at once: a deploy writes it below /proc/sys, and systemd-sysctl does at every boot",
    Kind.UNIT_STATE: "at once: a deploy calls systemctl, which also keeps it for the next boot",
    Kind.PACKAGE: "with a deploy, which installs the package; nothing else is upgraded or removed for it",
    Kind.CMDLINE: "at once: a deploy restarts the daemon if it runs with other arguments",
    Kind.MODULE_OPTION: "with the next boot: a deploy rebuilds the initramfs and reboots nothing",
    Kind.HEARTBEAT: "at once: a deploy has the running daemon read it anew, or be followed by its new version",
    Kind.DECLARATION: "with a deploy; what runs goes on as it is, and the next start goes by it",
    Kind.SESSION_SCORE: "for logins after the deploy, which restarts sshd's listener; open sessions go on as they are",
}
_ACTIVATION = {
    "daemon-reexec": "at once: a deploy has systemd re-execute itself, which stops nothing",
    "restart": "at once: a deploy restarts the daemon",
    "user-managers": "at once for user managers that run and can be reached; for others with the next login",
}


def in_force(control: Control) -> str:
    """Say when a setting takes effect, and what a deploy does for it."""
    if isinstance(control, ManagerProperty):
        return _ACTIVATION[control.activation[0][0]]
    if not isinstance(control, UnitProperty):
        return _IN_FORCE[control.kind]
    if control.name in CGROUP_FILE:
        return "at once: a deploy writes it into the unit's cgroup, and systemd does whenever the unit starts"
    if control.restarts:
        return "at once: a deploy restarts the unit"
    return "with the next start of the unit: a deploy restarts nothing for it"


# --- files ------------------------------------------------------------------------------------------


def _files(controls: Iterable[Control], policies: Sequence[Policy]) -> dict[str, list[str]]:
    """Return the files that are controls of their own, by id, with the controls that each of them keeps."""
    found: dict[str, list[str]] = {f"box/{_FILE}{file.path}": [] for file in render.box_files((), Policy())}
    for control in controls:
        for path in _paths(control, policies):
            found.setdefault(f"{control.layer}/{_FILE}{path}", []).append(control.id)
    return found


def _paths(control: Control, policies: Sequence[Policy]) -> set[str]:
    possible = control.possible if isinstance(control, UnitProperty) and control.possible else (control.target,)
    return {path for policy in policies for path in control.paths(policy, possible)}


def _file_record(name: str, keeps: list[str]) -> dict[str, Any]:
    layer, _, path = name.partition(f"/{_FILE}")
    reason = f"It keeps {', '.join(keeps)}." if keeps else "It belongs to the program itself."
    return {
        "id": name,
        "layer": layer,
        "kind": Kind.CONFIG_FILE.value,
        "opt_in": is_opt_in(layer),
        "sets": f"{path} as a whole: its content, its mode, and root as its owner",
        "kept_in": path,
        "in_force": "with a deploy, which writes it whole or not at all",
        "verified_by": "the hash of its content, its mode and its owner",
        "undo": f"`{undo_command(layer)}` on the host. The file is then as it was before the first deploy, or gone.",
        "keeps": keeps,
        "why": {"reason": f"{reason} Once edited, removed or opened to others, it no longer says what was decided."},
    }


# --- values -----------------------------------------------------------------------------------------


def values(control: Control, known: Inventory) -> list[dict[str, Any]]:
    """Return which value which hosts get: `{value, note, hosts, others}`, each value once.

    `value` is None where the policy leaves the setting alone or the host decides; `others` are the hosts that
    the inventory does not name.
    """
    found: dict[tuple[str | None, str], list[str]] = {}
    for name, host in known.hosts.items():
        found.setdefault(value_for(control, host.policy), []).append(name)
    others = value_for(control, known.defaults)
    found.setdefault(others, [])
    return [
        {"value": value, "note": note, "hosts": hosts, "others": (value, note) == others}
        for (value, note), hosts in found.items()
    ]


def value_for(control: Control, policy: Policy) -> tuple[str | None, str]:
    """Return the value that a policy gives a control, and where that comes from."""
    if control.id not in {each.id for each in registry.controls_for(policy)}:
        return None, "not named in trims" if control.layer == "trims" else f"the layer {control.layer} is off"
    if control.id in policy.values and policy.values[control.id] is None:
        return None, "left alone (null)"
    if control.made:
        return None, "made on the host, from the policy and what is installed there"
    given = control.id in policy.values
    value = control.value.parse(policy.values[control.id]) if given else control.default
    where = " where policy and host call for it" if control.applies else ""
    depends = ", unless the host needs another one" if control.choose else ""
    return value, f"{'from the policy' if given else 'the default'}{where}{depends}"


def value_lines(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what `values` found, for a person."""
    return [f"{_said(each)}: {'every host' if len(values) == 1 else ', '.join(_hosts(each))}" for each in values]


def _said(value: Mapping[str, Any]) -> str:
    return str(value["note"]) if value["value"] is None else f"{value['value']} ({value['note']})"


def _hosts(value: Mapping[str, Any]) -> list[str]:
    return [*value["hosts"], *(["hosts that are not in the inventory"] if value["others"] else [])]


def _waiver(waiver: Waiver) -> dict[str, Any]:
    return {"hosts": list(waiver.hosts), "reason": waiver.reason, "until": waiver.until.isoformat()}


def waiver_line(waiver: Mapping[str, Any]) -> str:
    """Return one entry of `waivers` for a person."""
    return f"{', '.join(waiver['hosts'])}, until {waiver['until']}: {waiver['reason']}"
