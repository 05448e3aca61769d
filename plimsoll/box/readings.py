"""What a host has for one control: live, persisted, and who decides. One function a kind, all pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box import cmdline, declarations, heartbeat, scores
from plimsoll.box.model import OWN_UNITS, Kind, Place, State, Wanted
from plimsoll.box.quantities import parse_bytes, parse_span_us
from plimsoll.box.resolve import Effective, after_reboot, ini_value, unreadable
from plimsoll.box.resolve_sysctl import read_at_boot, sysctl_key, sysctl_others, sysctl_value, taken_back
from plimsoll.box.resolve_units import manager_files_in_order, unit_files_in_order


@dataclass(frozen=True)
class Reading:
    """What was found for one control. `unknown` and `unsupported` are reasons, and end the matter."""

    live: str | None = None
    persisted: str | None = None
    decided_by: Place | None = None
    ours_present: bool = False
    """Whether our own file is there, so that another one that decides shadows it."""
    live_right: bool | None = None
    """Set where more than the value must hold; None leaves it to the comparison of `live`."""
    pending: str = ""
    """What has yet to happen if the persisted value is right and the live one is not."""
    drift: str = ""
    """Why the live value is wrong, where more can be said than the value."""
    note: str = ""
    unknown: str = ""
    unsupported: str = ""


def reading(control: Wanted, state: State) -> Reading:
    """Return what `state` has for a control; raises KeyError and the like for a malformed state."""
    return READERS[control.kind](control, state)


def _ours_present(control: Wanted, state: State) -> bool:
    return "sha256" in state["files"].get(control.file, {})


def _kept(control: Wanted, state: State, found: Effective) -> dict[str, Any]:
    winner = found.winner
    return {
        "persisted": winner.value if winner else None,
        "decided_by": winner.place if winner else None,
        "ours_present": _ours_present(control, state),
    }


def _sysctl(control: Wanted, state: State) -> Reading:
    live = state["sysctl"].get(control.target, {"error": "was not read"})
    if live.get("absent"):
        return Reading(unsupported=f"this kernel has no {control.target}")
    if "error" in live:
        return Reading(unknown=f"/proc/sys/{sysctl_key(control.target)}: {live['error']}")
    files = state["sysctl_files"]
    read = read_at_boot(files)
    if unreadable(read):
        return Reading(live=live["value"], unknown=unreadable(read))
    kept = _kept(control, state, sysctl_value(read, control.target))
    kept["decided_by"] = kept["decided_by"] or taken_back(read, control.target)
    return Reading(live=live["value"], note=_others(control, files), **kept)


def _others(control: Wanted, files: Mapping[str, Any]) -> str:
    """Name the other files with a say: even one that loses today wins for `sysctl --system` or after a rename."""
    places = [p for p in sysctl_others(files, control.target) if p.file != control.file]
    return "also set in " + ", ".join(f"{p.file}:{p.line}" for p in places) if places else ""


def _unit_unknown(control: Wanted, state: State) -> str:
    unit = state["units"].get(control.target, {"error": "was not read"})
    return str(unit["error"]) if "error" in unit else unreadable(unit_files_in_order(unit))


def _hidden(state: State) -> str:
    """Say why the processes of others cannot be seen; empty if they can."""
    hidden = state["platform"].get("pid1", "") is None
    return "the processes of others are hidden (/proc is mounted with hidepid): read as root" if hidden else ""


def _unit_property(control: Wanted, state: State) -> Reading:
    needs_process = control.name not in CGROUP_FILE
    if unknown := _unit_unknown(control, state) or (_hidden(state) if needs_process else ""):
        return Reading(unknown=unknown)
    unit = state["units"][control.target]
    # a unit of ours that is not there yet comes with the same layer
    if unit["show"].get("LoadState") == "not-found" and not control.target.startswith(OWN_UNITS):
        return Reading(unsupported=f"{control.target} is not on this host")
    kept = _kept(control, state, ini_value(unit_files_in_order(unit), control.section, control.name))
    if control.name in CGROUP_FILE:
        return _cgroup_value(control, unit, kept, state)
    if control.target == "user@.service":
        return _user_manager_score(state, kept)
    return _process_score(control, unit["process"], kept, state)


def _process_score(
    control: Wanted, process: Mapping[str, Any] | None, kept: Mapping[str, Any], state: State
) -> Reading:
    if process is None:
        return Reading(pending=f"{control.target} is not running", **kept)
    live = str(process["oom_score_adj"])
    if not scores.is_older_than(process, control.file, state):
        return Reading(live=live, drift=f"{control.target} was started with it, and has {live} now", **kept)
    return Reading(live=live, pending=f"{control.target} was started before it was set: restart it", **kept)


CGROUP_FILE = {
    "MemoryMin": "memory.min",
    "MemoryLow": "memory.low",
    "CPUWeight": "cpu.weight",
    "IOWeight": "io.weight",
}
"""systemd's name of a resource property -> the cgroup v2 file that holds what is in force."""


def _cgroup_value(control: Wanted, unit: Mapping[str, Any], kept: Mapping[str, Any], state: State) -> Reading:
    name = CGROUP_FILE[control.name]
    chain = unit["cgroup"]
    if not chain:
        if unit["show"].get("ActiveState") == "active":
            return Reading(unsupported="there is no cgroup v2 hierarchy", **kept)
        return Reading(pending=f"{control.target} is not running", **kept)
    raw = chain[0].get(name)
    if raw is None:
        controller = name.partition(".")[0]
        if controller in str(chain[0].get("cgroup.controllers")).split() or not _offered(state, controller):
            return Reading(unsupported=f"this kernel has no {name}", **kept)
        return Reading(drift=f"the {controller} controller is not enabled for {control.target}", **kept)
    own = raw.split()[-1]
    if not name.startswith("memory."):
        return Reading(live=own, **kept)
    return _protection(own, [(c["path"], c.get(name)) for c in chain[1:]], control, kept)


def _offered(state: State, controller: str) -> bool:
    return controller in str(state.get("cgroup_controllers")).split()


def _protection(own: str, ancestors: list[tuple[str, str | None]], control: Wanted, kept: Mapping[str, Any]) -> Reading:
    """Protection counts only as far as every ancestor has it: a unit's memory.min under a slice with 0 is nothing."""
    wanted = parse_bytes(control.value) or 0
    weak = [(p, v) for p, v in ancestors if v is not None and _bytes_of(v) < min(wanted, _bytes_of(own))]
    if weak:
        path, value = weak[0]
        drift = f"not effective: its ancestor {path.rpartition('/')[2]} has only {value}"
        return Reading(live=own, live_right=False, drift=drift, **kept)
    return Reading(live=own, live_right=_bytes_of(own) == wanted, **kept)


def _bytes_of(text: str) -> float:
    return float("inf") if text == "max" else float(text)


def _manager_property(control: Wanted, state: State) -> Reading:
    version = state["manager"].get("Version", "")
    texts = manager_files_in_order(control.target, state["manager_files"][control.target], version)
    if unreadable(texts):
        return Reading(unknown=unreadable(texts))
    kept = _kept(control, state, ini_value(texts, control.section, control.name))
    if control.target in ("user", "journald") and _hidden(state):
        return Reading(unknown=_hidden(state))
    if control.target == "user":
        return _user_default(control, state, kept)
    if control.target == "journald":
        return _journald(control, state, kept)
    return _runtime_watchdog(control, state, kept)


def _journald(control: Wanted, state: State, kept: Mapping[str, Any]) -> Reading:
    """Say whether journald runs with its files: no interface shows its values, so its start time stands for them."""
    unit = state["units"]["systemd-journald.service"]
    if "error" in unit or unit["process"] is None:
        return Reading(unknown=unit.get("error") or "systemd-journald is not running")
    file = state["files"].get(control.file, {})
    if "changed_s" in file and scores.started_unix_s(unit["process"], state) < file["changed_s"]:
        return Reading(pending="systemd-journald was started before its file was written: restart it", **kept)
    return Reading(live=kept["persisted"], **kept)


def _runtime_watchdog(control: Wanted, state: State, kept: Mapping[str, Any]) -> Reading:
    if not state["manager"]:
        return Reading(unknown="the system manager does not answer")
    if not state["watchdogs"]:
        return Reading(unsupported="there is no watchdog device", **kept)
    live = state["manager"].get(control.name.replace("Sec", "USec"))
    active = [w for w in state["watchdogs"] if w["state"] == "active"]
    if not active:
        return Reading(live=live, live_right=False, drift="no watchdog device is open", **kept)
    device = active[0]
    note = f"{device['identity']} runs with a timeout of {device['timeout']} s"
    wanted_us = parse_span_us(control.value)
    return Reading(live=live, live_right=parse_span_us(live or "") == wanted_us, note=note, **kept)


def _user_default(control: Wanted, state: State, kept: Mapping[str, Any]) -> Reading:
    """Derive what a user manager gives to a new process: nobody may be started just to look."""
    waiting = scores.managers_with_old_default(state, control.file, int(control.value))
    if waiting:
        names = ", ".join(waiting)
        return Reading(pending=f"the user manager of {names} runs with its old default until the next login", **kept)
    return Reading(live=kept["persisted"], note=scores.preferred_victims(state, int(control.value)), **kept)


def _user_manager_score(state: State, kept: Mapping[str, Any]) -> Reading:
    managers = scores.user_managers(state)
    if not managers:
        return Reading(live=kept["persisted"], note="no user manager is running", **kept)
    worst = max(int(m["oom_score_adj"]) for m in managers)
    return Reading(live=str(worst), pending="takes effect with the next login", **kept)


def _session_score(control: Wanted, state: State) -> Reading:
    if unknown := _unit_unknown(control, state) or _hidden(state):
        return Reading(unknown=unknown)
    unit = state["units"][control.target]
    kept = _kept(control, state, ini_value(unit_files_in_order(unit), control.section, control.name))
    kept["persisted"] = kept["persisted"] or "0"
    listener = unit["process"]
    if listener is None:
        return Reading(pending=f"{control.target} is not running", **kept)
    if listener["oom_score_adj"] != scores.LISTENER_SCORE:
        drift = f"the listener has {listener['oom_score_adj']}, not {scores.LISTENER_SCORE}"
        return Reading(live=str(listener["oom_score_adj"]), live_right=False, drift=drift, **kept)
    new, old = scores.session_scores(listener, state)
    if any(score < 0 for score in old) and not any(score < 0 for score in new):
        return Reading(live=str(min(old)), pending="sessions from before the restart keep their score", **kept)
    if not new:
        inherited = unit["show"].get("OOMScoreAdjust", "0")
        return Reading(live=inherited, note="derived: no login since sshd was started", **kept)
    return Reading(live=str(min(new)), **kept)


STATES = {
    "enabled": frozenset({"enabled", "static", "alias", "generated", "indirect"}),
    "disabled": frozenset({"disabled", "masked", "static", "indirect"}),
    "masked": frozenset({"masked"}),
}
"""A wanted enablement -> the UnitFileState values that fulfil it; what ends in -runtime is gone after a reboot."""


def _unit_state(control: Wanted, state: State) -> Reading:
    """Compare `ENABLEMENT ACTIVITY`, for example `enabled active` or `masked inactive`."""
    unit = state["units"].get(control.target, {"error": "was not read"})
    if "error" in unit:
        return Reading(unknown=unit["error"])
    show = unit["show"]
    enablement, activity = control.value.split()
    if show.get("LoadState") == "not-found":
        if activity == "inactive":
            return Reading(live=control.value, persisted=control.value, note=f"{control.target} is not on this host")
        return Reading(drift=f"there is no unit {control.target}")
    is_active = "active" if show.get("ActiveState") in ("active", "activating", "reloading") else "inactive"
    file_state = show.get("UnitFileState") or "static"
    kept = enablement if file_state in STATES[enablement] else file_state
    return Reading(
        live=f"{kept} {is_active}" if is_active == activity else f"{enablement} {is_active}",
        live_right=is_active == activity,
        persisted=f"{kept} {activity}",
        drift=f"{control.target} is {show.get('ActiveState')}",
    )


def _package(control: Wanted, state: State) -> Reading:
    packages = state["packages"]
    if packages is None:
        return Reading(unsupported="this host does not use dpkg")
    version = packages.get(control.target)
    if version is None:
        return Reading(drift=f"the package {control.target} is not installed")
    return Reading(live=control.value, persisted=control.value, note=f"version {version}")


def _config_file(control: Wanted, state: State) -> Reading:
    file = state["files"].get(control.file, {"error": "was not read"})
    if "error" in file:
        return Reading(unknown=f"{control.file}: {file['error']}")
    place = Place(control.file, 0)
    if file.get("absent"):
        return Reading(drift=f"{control.file} is missing", decided_by=place)
    if "link" in file:
        return Reading(drift=f"{control.file} is a link to {file['link']}", decided_by=place)
    live = f"{file['sha256']} {file['mode']}"
    other = "its content is not what is wanted: changed, or of another version"
    what = other if file["sha256"] != control.value.split()[0] else f"its mode is {file['mode']}"
    owned = (file["uid"], file["gid"]) == (0, 0)
    drift = f"{control.file}: {what if live != control.value else 'its owner is not root'}"
    right = live == control.value and owned
    return Reading(live=live, persisted=live if owned else "", live_right=right, drift=drift, decided_by=place)


def _cmdline(control: Wanted, state: State) -> Reading:
    if unknown := _unit_unknown(control, state) or _hidden(state):
        return Reading(unknown=unknown)
    unit = state["units"][control.target]
    if unit["show"].get("LoadState") == "not-found":
        return Reading(drift=f"there is no unit {control.target}")
    if "error" in unit["environment"]:
        return Reading(unknown=unit["environment"]["error"])
    wanted = json.loads(control.value)
    kept, place = cmdline.persisted_arguments(unit)
    base: dict[str, Any] = {
        "persisted": control.value if kept == wanted else cmdline.shown(kept),
        "decided_by": place,
        "ours_present": _ours_present(control, state),
    }
    process = unit["process"]
    if process is None:
        return Reading(drift=f"{control.target} is not running", **base)
    live = process["argv"][1:]
    shown = control.value if live == wanted else cmdline.shown(live)
    if not scores.is_older_than(process, control.file, state):
        other = "not the arguments of its files: a file in /run, or somebody by hand, decides until the next boot"
        return Reading(live=shown, drift=f"{control.target} runs with {cmdline.shown(live)}, {other}", **base)
    return Reading(live=shown, pending=f"{control.target} runs with older arguments: restart it", **base)


def _module_option(control: Wanted, state: State) -> Reading:
    module = state["modules"][control.target]
    pools = state["platform"]["driver"]["system_memory_pools"]
    if not module["loaded"] or pools is None:
        return Reading(unsupported=f"the loaded driver has no {control.name}, or none is loaded")
    files = after_reboot(module["files"])
    if unreadable(files):
        return Reading(unknown=unreadable(files))
    booted = state["platform"]["cmdline"] or ""
    hits = cmdline.module_options(files, booted, control.target, control.name)
    kept = _kept(control, state, Effective(hits[-1] if hits else None))
    return Reading(live=str(pools), pending="takes effect with the next boot", **kept)


def _heartbeat(control: Wanted, state: State) -> Reading:
    """Compare what the running daemon says of itself, and the kernel of it, with what is wanted of it."""
    if unknown := _unit_unknown(control, state) or _hidden(state):
        return Reading(unknown=unknown)
    process = state["units"][control.target]["process"]
    if process is None:
        return Reading(drift=f"{control.target} is not running", persisted=control.value)
    said = state.get("heartbeat")
    if said is not None and "error" in said:
        return Reading(unknown=str(said["error"]))
    if said is None or said["pid"] != process["pid"]:
        return Reading(drift=f"{control.target} runs and has not said how it is", persisted=control.value)
    live, right, drift = heartbeat.compare(control, said, state)
    return Reading(live=live, live_right=right, drift=drift, persisted=control.value)


def _declaration(control: Wanted, state: State) -> Reading:
    """Compare what a file of ours declares, whatever else is wrong with it: its bytes are a control of their own."""
    file = state["files"].get(control.file, {"error": "was not read"})
    place = Place(control.file, 0)
    if file.get("absent"):
        return Reading(drift=f"{control.file} is missing", decided_by=place)
    text = file.get("text")
    if text is None:
        return Reading(unknown=f"{control.file}: {file.get('error', 'is not a file of ours')}")
    try:
        right = declarations.same(control.name, control.value, text)
    except (ValueError, RecursionError) as error:
        return Reading(drift=f"{control.file} cannot be understood: {error}", decided_by=place)
    live = control.value if right else "something else"
    drift = f"{control.file} says something else"
    return Reading(live=live, live_right=right, persisted=live, drift=drift, decided_by=place)


READERS: Mapping[Kind, Callable[[Wanted, State], Reading]] = {
    Kind.SYSCTL: _sysctl,
    Kind.UNIT_PROPERTY: _unit_property,
    Kind.MANAGER_PROPERTY: _manager_property,
    Kind.UNIT_STATE: _unit_state,
    Kind.PACKAGE: _package,
    Kind.CONFIG_FILE: _config_file,
    Kind.CMDLINE: _cmdline,
    Kind.MODULE_OPTION: _module_option,
    Kind.SESSION_SCORE: _session_score,
    Kind.HEARTBEAT: _heartbeat,
    Kind.DECLARATION: _declaration,
}
