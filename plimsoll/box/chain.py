"""Everybody with a say: every line of every file that concerns a control, and what became of it. Pure."""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.box import cmdline
from plimsoll.box.model import Kind, Place, State, Wanted
from plimsoll.box.quantities import meaning
from plimsoll.box.resolve import (
    Assignment,
    FileText,
    Turn,
    ini_assignments,
    ini_list,
    ini_value,
    survives_reboot,
    turns,
)
from plimsoll.box.resolve_sysctl import (
    SysctlLine,
    parse_sysctl,
    read_at_boot,
    sysctl_key,
    sysctl_value,
    taken_back,
    tuned_lines,
)
from plimsoll.box.resolve_units import is_masked, main_files_looked_at, manager_files_in_order, unit_files_in_order

Role = Literal[
    "decides",
    "ours",
    "overridden",
    "hidden",
    "refused",
    "not read at boot",
    "set at run time",
    "unreadable",
]
"""What became of a line. `ours` is one of Plimsoll's that decides; `refused` one that systemd cannot read."""


@dataclass(frozen=True)
class Link:
    """A line with a say on a control; `line` is 0 and `value` may be None where the file as a whole has it."""

    file: str
    line: int
    value: str | None
    role: Role
    by: str = ""
    """The file that hides this one, where one does."""


Line = Assignment | SysctlLine
Find = Callable[[FileText], Sequence[Line]]
"""The lines of one file that concern a control."""


def chain(control: Wanted, state: State) -> list[Link]:
    """Return every line with a say on `control` after a reboot, in the order of reading.

    Empty where nothing was found, where no file decides, and for a state that is not in the expected form: the
    judgement says so.
    """
    find = _KINDS.get(control.kind)
    try:
        return find(control, state) if find else []
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return []


def _links(control: Wanted, those: Iterable[Turn], find: Find, winners: Iterable[Place]) -> list[Link]:
    found, deciding = [], set(winners)
    for turn in those:
        path = str(turn.file["path"])
        if "error" in turn.file:
            found.append(Link(path, 0, None, "unreadable"))
        for line in find(turn.file):
            role = _role(control, turn, line, deciding)
            found.append(Link(path, line.place.line, line.value, role, turn.hidden_by if role == "hidden" else ""))
    return found


def _role(control: Wanted, turn: Turn, line: Line, deciding: set[Place]) -> Role:
    if not survives_reboot(turn.file):
        return "not read at boot"
    if turn.hidden_by:
        return "hidden"
    if line.place in deciding:
        return "ours" if line.place.file == control.file else "decides"
    refused = isinstance(line, Assignment) and meaning(line.key, line.value) is None
    return "refused" if refused else "overridden"


def _turns(files: Sequence[FileText], hidden_by: str = "") -> list[Turn]:
    """Return the files by name, those that a reboot takes away in between: they hide nobody then."""
    kept = turns(f for f in files if survives_reboot(f))
    every = [Turn(turn.file, hidden_by or turn.hidden_by) for turn in kept]
    every += [Turn(f) for f in files if not survives_reboot(f)]
    return sorted(every, key=lambda turn: posixpath.basename(turn.file["path"]))


def _first_counts(files: Sequence[FileText]) -> list[Turn]:
    """Return fragments or main files, of which the first that is there after a reboot hides all others."""
    first = next((str(f["path"]) for f in files if survives_reboot(f)), "")
    return [Turn(f, "" if f["path"] == first else first) for f in files]


# --- one function a kind ----------------------------------------------------------------------------


def _sysctl(control: Wanted, state: State) -> list[Link]:
    files, path = state["sysctl_files"], sysctl_key(control.target)

    def find(file: FileText) -> list[SysctlLine]:
        return [line for line in parse_sysctl(file) if line.concerns(path)]

    read = read_at_boot(files)
    winner = sysctl_value(read, control.target).winner
    place = winner.place if winner else taken_back(read, control.target)
    ufw = [Turn(files["ufw"])] if files.get("ufw") else []
    found = _links(control, [*_turns(files["sysctl_d"]), *ufw], find, [place] if place else [])
    return [*found, *_not_at_boot(files, find), *_at_run_time(files, control.target)]


def _not_at_boot(files: Mapping[str, Any], find: Find) -> list[Link]:
    """Return the lines of /etc/sysctl.conf, which `sysctl --system` alone reads, unless a link has it read."""
    conf = files.get("etc_sysctl_conf")
    linked = any(f.get("link") in ("../sysctl.conf", "/etc/sysctl.conf") for f in files["sysctl_d"])
    lines = find(conf) if conf and not linked else []
    return [Link(line.place.file, line.place.line, line.value, "not read at boot") for line in lines]


def _at_run_time(files: Mapping[str, Any], key: str) -> list[Link]:
    lines = tuned_lines(files, key)
    return [Link(line.place.file, line.place.line, line.value, "set at run time") for line in lines]


def _ini(control: Wanted) -> Find:
    return lambda file: ini_assignments([file], control.section, control.name)


def _unit_turns(unit: Mapping[str, Any]) -> list[Turn]:
    hidden_by = next((link.file for link in _mask(unit)), "")
    return [*_first_counts(unit["fragments"]), *_turns(unit["drop_ins"], hidden_by)]


def _mask(unit: Mapping[str, Any]) -> list[Link]:
    there = [f for f in unit["fragments"] if survives_reboot(f)][:1] if is_masked(unit) else []
    return [Link(str(f["path"]), 0, "masked", "decides") for f in there]


def _unit_property(control: Wanted, state: State) -> list[Link]:
    unit = state["units"][control.target]
    winner = ini_value(unit_files_in_order(unit), control.section, control.name).winner
    deciding = [winner.place] if winner else []
    return [*_mask(unit), *_links(control, _unit_turns(unit), _ini(control), deciding)]


def _unit_state(control: Wanted, state: State) -> list[Link]:
    unit = state["units"][control.target]
    masks = _mask(unit)
    fragments = [t for t in _first_counts(unit["fragments"]) if survives_reboot(t.file)]
    rest = fragments[len(masks) :]
    found = [Link(t.file["path"], 0, None, "hidden" if t.hidden_by else "decides", t.hidden_by) for t in rest]
    return [*masks, *found]


def _manager_property(control: Wanted, state: State) -> list[Link]:
    name, files = control.target, state["manager_files"][control.target]
    version = state["manager"].get("Version", "")
    looked_at = main_files_looked_at(name, files, version)
    winner = ini_value(manager_files_in_order(name, files, version), control.section, control.name).winner
    never = (line for f in files["mains"] if f not in looked_at for line in _ini(control)(f))
    those = [*_first_counts(looked_at), *_turns(files["drop_ins"])]
    return [
        *(Link(line.place.file, line.place.line, line.value, "not read at boot") for line in never),
        *_links(control, those, _ini(control), [winner.place] if winner else []),
    ]


def _cmdline(control: Wanted, state: State) -> list[Link]:
    unit = state["units"][control.target]
    surviving = [line.place for line in ini_list(unit_files_in_order(unit), "Service", "ExecStart")]
    commands = _links(
        control, _unit_turns(unit), lambda file: ini_assignments([file], "Service", "ExecStart"), surviving
    )
    variables: list[Link] = []
    for variable in unit["environment"]["variables"].values():
        role: Role = "ours" if variable["file"] == control.file else "decides"
        variables.append(Link(variable["file"], variable["line"], variable["value"], role))
    return [*_mask(unit), *commands, *variables]


def _module_option(control: Wanted, state: State) -> list[Link]:
    booted = state["platform"]["cmdline"] or ""

    def find(file: FileText) -> list[Assignment]:
        return cmdline.module_options([file], "", control.target, control.name)

    at_boot = cmdline.module_options([], booted, control.target, control.name)
    those = _turns(state["modules"][control.target]["files"])
    read = [t.file for t in those if not t.hidden_by and survives_reboot(t.file)]
    hits = [*(line for file in read for line in find(file)), *at_boot]
    deciding = [line.place for line in hits[-1:]]
    booted_turn = Turn({"path": "/proc/cmdline"})
    return [
        *_links(control, those, find, deciding),
        *_links(control, [booted_turn], lambda _file: at_boot, deciding),
    ]


def _config_file(control: Wanted, state: State) -> list[Link]:
    file = state["files"].get(control.file, {})
    if "link" in file:
        return [Link(control.file, 0, f"a link to {file['link']}", "decides")]
    return [Link(control.file, 0, None, "ours")] if "sha256" in file else []


_KINDS: Mapping[Kind, Callable[[Wanted, State], list[Link]]] = {
    Kind.SYSCTL: _sysctl,
    Kind.UNIT_PROPERTY: _unit_property,
    Kind.SESSION_SCORE: _unit_property,
    Kind.UNIT_STATE: _unit_state,
    Kind.MANAGER_PROPERTY: _manager_property,
    Kind.CMDLINE: _cmdline,
    Kind.MODULE_OPTION: _module_option,
    Kind.CONFIG_FILE: _config_file,
    # kept in a file that nothing else has a say in, or in none
    Kind.HEARTBEAT: _config_file,
    Kind.DECLARATION: _config_file,
}
