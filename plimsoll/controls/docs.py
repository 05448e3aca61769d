"""`make docs`: the pages that are made from the records and the policy, so that they cannot say something else.

docs/settings.md is made as a whole. In other pages only what stands between `<!-- made: NAME -->` and
`<!-- end: NAME -->` is; the rest is written by hand and kept.
"""

import importlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from plimsoll.box.guard import config as guard_config
from plimsoll.box.model import Kind
from plimsoll.box.readings import CGROUP_FILE
from plimsoll.box.revert import PROGRAM_LAYER
from plimsoll.box.serve import keys as served_keys
from plimsoll.controls import earlyoom, registry, trims
from plimsoll.controls.record import Control, Declaration, UnitProperty, Why
from plimsoll.policy import Policy

DOCS = Path(__file__).resolve().parents[2] / "docs"
SETTINGS = "settings.md"
REFERENCE_MIB = 124_518
"""MemTotal of a box with 121.6 GiB, for worked figures."""
_MIB_PER_GIB = 1024

# --- how a control is verified ----------------------------------------------------------------------

_BY_KIND = {
    Kind.SYSCTL: "the value below /proc/sys, and which file decides it at the next boot",
    Kind.UNIT_STATE: "what systemd says of the unit now, and whether it is enabled, disabled or masked",
    Kind.PACKAGE: "the package database",
    Kind.CMDLINE: "the arguments in /proc/PID/cmdline of the running daemon, and those it would be started with next",
    Kind.MODULE_OPTION: "/proc/driver/nvidia/params of the loaded driver, and the options in modprobe.d",
    Kind.DECLARATION: "what the file says, read back as its reader does",
    Kind.SESSION_SCORE: "oom_score_adj of sshd's listener (-1000) and of the login sessions started since",
}
_BY_HEARTBEAT = {
    "program": "the hash of the program that the running process says it was started from",
    "configuration": "the hash of the file that the running process says it goes by, against the file's",
    "memory": "VmLck of the running process",
    "sample": "the time of its last sample, less than 10 s ago",
}
_BY_MANAGER = {
    "system": "the property of PID 1, and a watchdog device that is open, with its real timeout",
    "user": "each running user manager's own score, and a process that was really started through it by the deploy",
    "journald": "the file that decides, and that journald was started after it was written; it shows no values",
}


def verified_by(control: Control) -> str:
    """Say, for a person, what verify looks at for a control."""
    if control.kind is Kind.MANAGER_PROPERTY:
        return _BY_MANAGER[control.target]
    if control.kind is Kind.HEARTBEAT:
        return _BY_HEARTBEAT[control.name]
    if control.kind is not Kind.UNIT_PROPERTY:
        return _BY_KIND[control.kind]
    file = CGROUP_FILE.get(control.name)
    if file is None:
        return "oom_score_adj of the running process, and the drop-in that decides"
    ancestors = ", with every ancestor's, since less above it takes it away" if file.startswith("memory.") else ""
    return f"{file} of the unit's cgroup{ancestors}, and the drop-in that decides"


# --- docs/settings.md -------------------------------------------------------------------------------

_SETTINGS_HEAD = """\
# Settings

Every control, layer by layer in the order of a deploy: what it sets, why, on what evidence, at what cost, and
how to undo it. Made by `make docs` from the records in `plimsoll/controls/`; do not edit it here.

- **Another value**: `values: {ID: VALUE}` in the inventory; `null` leaves the setting alone
  ([inventory.md](inventory.md)).
- **A deviation for a while**: a waiver in the inventory, with a reason and an end date.
- **Undo**: `sudo plimsoll revert --layer LAYER` on the box restores the files of a layer and the values that were
  there before the first deploy; without `--layer` everything ([recovery.md](recovery.md)).
- Every file that a layer writes is a control of its own, `LAYER/file:PATH`: it is drift if somebody edits or
  removes it, opens it to others, or replaces it by a link.
- Figures are from the source named with them. No GB10 has been touched by this project.
"""


def settings_page() -> str:
    """Return docs/settings.md as a whole."""
    parts = [_SETTINGS_HEAD, _index()]
    for layer in registry.LAYERS:
        parts.append(_layer_head(layer))
        parts.extend(_entry(control) for control in registry.every_control() if control.layer == layer)
    return "\n".join([*parts, _trims()])


def layer_summary(layer: str) -> str:
    """Return what a layer is for, in one sentence: the first line of its module."""
    text = importlib.import_module(f"plimsoll.controls.{layer}").__doc__ or ""
    return text.splitlines()[0].partition(": ")[2]


def is_opt_in(layer: str) -> bool:
    """Say whether a deploy leaves the layer out unless the policy asks for it."""
    return not registry.layer_is_on(layer, Policy())


def _layer_head(layer: str) -> str:
    how = "Off unless the policy asks for it." if is_opt_in(layer) else "On by default."
    if layer == PROGRAM_LAYER:
        how = "Always on."
    summary = layer_summary(layer)
    return f"## {layer}\n\n{summary[0].upper()}{summary[1:]} {how}\n"


def _index() -> str:
    rows = [f"| [{c.id}](#{anchor(c.id)}) | {_default(c)} | {_file(c)} |" for c in registry.every_control()]
    return "\n".join(["| control | default | file |", "|---|---|---|", *rows, ""])


def anchor(heading: str) -> str:
    """Return the fragment by which a heading is linked to, as common Markdown renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _entry(control: Control) -> str:
    return f"### {control.id}\n\n{_facts(control)}\n\n{_reasons(control.why)}\n"


def _facts(control: Control) -> str:
    rows = {
        "sets": _sets(control),
        "default": _default(control),
        "accepts": control.value.describes,
        "kept in": _file(control),
        "verified by": verified_by(control),
        "undo": f"`{undo_command(control.layer)}`. {control.undo()}".rstrip(),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def undo_command(layer: str) -> str:
    """Return what is typed on the box to undo a layer; the program's own goes with all the others only."""
    return "sudo plimsoll revert" if layer == PROGRAM_LAYER else f"sudo plimsoll revert --layer {layer}"


def _sets(control: Control) -> str:
    if isinstance(control, Declaration):
        return control.sets
    targets = _targets(control)
    shown = f"`{control.name}`" if control.name else f"`{control.target}`"
    section = f" in `[{control.section}]`" if control.section else ""
    of = f" of {targets}" if control.name else ""
    return f"{shown}{section}{of}"


def _targets(control: Control) -> str:
    possible = control.possible if isinstance(control, UnitProperty) else ()
    if possible:
        return f"each that runs of {', '.join(f'`{unit}`' for unit in possible)}"
    return f"`{control.target}`"


def _default(control: Control) -> str:
    if isinstance(control, Declaration):
        return "none"
    return "made on the host" if control.made else f"`{control.default}`"


def _file(control: Control) -> str:
    if not control.file:
        return _NO_FILE.get(control.kind, "the unit's own links")
    return f"`{control.shown_file}`"


_NO_FILE = {
    Kind.PACKAGE: "the package database",
    Kind.HEARTBEAT: "nothing: it is so, or not, while the unit runs",
}


def _reasons(why: Why) -> str:
    return "\n".join(
        [
            f"**Why.** {why.reason}  ",
            f"**Evidence.** {why.evidence} Source: {why.source}.  ",
            f"**Cost.** {why.cost}  ",
            f"**Risk.** {why.risk}  ",
            f"**Skip it if.** {why.skip_if}",
        ]
    )


def _trims() -> str:
    rows = [f"| `{unit}` | {', '.join(f'`{c}`' for c in found)} |" for unit, found in trims.COMPANIONS.items()]
    return "\n".join(
        [
            "### trims/UNIT\n",
            "One control for each unit that the policy's list `trims` names, and for its companions: what would start",
            "it again.\n",
            _reasons(trims.WHY),
            "\n| a unit that is named | goes together with |",
            "|---|---|",
            *rows,
            "",
        ]
    )


# --- tables in pages written by hand ----------------------------------------------------------------


def earlyoom_table() -> str:
    """Return where earlyoom fires on the reference box: idle, and while a driver holds memory, by version."""
    rows = [
        "| earlyoom | arguments | the percentage is of | idle | the driver holds 60 GiB | the driver holds 100 GiB |",
        "|---|---|---|---:|---:|---:|",
    ]
    for version, of in (("1.7", "MemTotal"), ("1.8.2", "MemAvailable + AnonPages")):
        term, kill = earlyoom.percentages(Policy(), _state(version, 0))
        points = [_firing_point(version, held_gib) for held_gib in (0, 60, 100)]
        rows.append(f"| {version} | `-m {term},{kill}` | {of} | {' | '.join(f'{p:.2f} GiB' for p in points)} |")
    return "\n".join(rows)


def _state(version: str, held_gib: int) -> dict[str, Any]:
    total_kib = REFERENCE_MIB * 1024
    user_kib = total_kib - held_gib * _MIB_PER_GIB * 1024
    meminfo = {"MemTotal": total_kib, "MemAvailable": user_kib, "AnonPages": 0}
    return {"packages": {"earlyoom": version}, "memory": {"meminfo": meminfo, "regime": "A"}}


def _firing_point(version: str, held_gib: int) -> float:
    point = earlyoom.firing_point(Policy(), _state(version, held_gib))
    if point is None:
        raise ValueError("the figures of the reference box lack a field")
    return point.now_kib / (1 << 20)


def earlyoom_arguments() -> str:
    """Return the command lines of both versions, as `ps` would show them."""
    lines = [shlex.join(["earlyoom", *earlyoom.arguments(Policy(), _state(v, 0))]) for v in ("1.7", "1.8.2")]
    return "\n".join(["```", *(f"{line}   # {v}" for line, v in zip(lines, ("1.7", "1.8.2"), strict=True)), "```"])


def layers_table() -> str:
    """Return the layers in the order of a deploy, with what they are for."""
    rows = ["| layer | applied | what for |", "|---|---|---|"]
    for layer in registry.LAYERS:
        applied = "always" if layer == PROGRAM_LAYER else "opt-in" if is_opt_in(layer) else "by default"
        rows.append(f"| [{layer}](settings.md#{layer}) | {applied} | {layer_summary(layer).rstrip('.')} |")
    return "\n".join(rows)


def guard_keys() -> str:
    """Return every key of guard.toml, as the guard itself describes them."""
    return _key_table(guard_config.describe())


def model_keys() -> str:
    """Return every key of a model's file, as `plimsoll serve` itself describes them."""
    return _key_table(served_keys.describe())


def _key_table(described: Iterable[guard_config.Row]) -> str:
    rows = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{row.key}` | {row.accepts} | {row.default} | {row.means} |" for row in described]
    return "\n".join(rows)


# What a key means; its type, range and default are read from the policy's own model.
_MEANING = {
    "values.CONTROL": "another value for one control of [settings.md](settings.md), in the form given there; null "
    "leaves that setting alone",
    "ladder.slow_leave_gib": "the slow line is left above this",
    "ladder.slow_enter_gib": "the slow line; earlyoom must lie below it",
    "ladder.floor_gib": "the lowest line; the kernel's reserve must lie below it",
    "ladder.reference_gib": "MemTotal of the box that the lines are given for; they are scaled to each host's",
    "earlyoom.term_percent": "below this percentage earlyoom sends SIGTERM; null: by the installed version",
    "earlyoom.kill_percent": "below this percentage SIGKILL; needs term_percent",
    "earlyoom.prefer": "POSIX extended regular expressions for process names, cut at 15 characters as the kernel does",
    "guard.mode": "how the guard's rules stand: auto arms each once that is known to be harmless, observe only says "
    "what it would do, armed acts from the start ([guard.md](guard.md#arming))",
    "guard.rules.floor": "the same for one rule; null: as guard.mode",
    "guard.rules.rate": "the same for one rule",
    "guard.rules.slow": "the same for one rule",
    "guard.rules.stall": "the same for one rule; with auto it observes",
    "guard.protect": "what the guard never stops: `cgroup:PATTERN`, `unit:PATTERN` (a container's name too) or "
    "`command:PATTERN`, a shell's patterns",
    "guard.prefer": "what it stops before others, in the same form",
    "guard.gpu_devices": "device files by which a holder of the GPU is known, a shell's patterns; empty: the NVIDIA "
    "driver's",
    "guard.attributed_min_mib": "who holds less of the GPU's memory, and did not grow by as much, is not stopped; "
    "null: 1024",
    "guard.fallback_min_gib": "where nobody holds the GPU, the largest container is stopped if it has this much; "
    "null: 8",
    "guard.hook_command": "run on the box after it has acted, with the record on its standard input; the first word "
    "is an absolute path",
    "guard.metrics_file": "written once a second in a form that node_exporter's textfile collector takes; null: none",
    "guard.reserve_groups": "groups whose members may announce a load, besides root",
    "guard.last_resort": "restart the box after minutes in which everybody stalled on memory, at most twice a day",
    "models.NAME": "a model that `plimsoll serve` runs, by its name ([serve.md](serve.md))",
    "serve.operators": "groups whose members may start and stop models without a password, besides root",
    "sshd.retire_socket": "disable ssh.socket and let sshd listen by itself; refused for a port only the socket has",
    "trims": "units, with their suffix, to be stopped and masked together with what would start them again",
    "verify.notify_command": "run on the box when verify finds something bad, with the audit document on its "
    "standard input; the first word is an absolute path",
}


def policy_table() -> str:
    """Return every key of a policy with type, range, default and meaning."""
    schema = Policy.model_json_schema()
    rows = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{key}` | {_accepts(found)} | {_shown(found)} | {_meaning(key)} |" for key, found in _keys(schema, schema)
    ]
    return "\n".join(rows)


def _keys(section: Mapping[str, Any], whole: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, found in section["properties"].items():
        key = f"{prefix}{name}"
        if "$ref" in found:
            yield from _keys(whole["$defs"][found["$ref"].rpartition("/")[2]], whole, f"{key}.")
        elif "additionalProperties" in found:
            yield f"{key}.{_ANY_NAME[key]}", found["additionalProperties"]
        else:
            yield key, found


_ANY_NAME = {"values": "CONTROL", "models": "NAME"}
"""What stands in a key's place where any name may."""


def _meaning(key: str) -> str:
    section, _, name = key.partition(".")
    return layer_summary(name).rstrip(".") if section == "layers" else _MEANING[key]


_TYPES = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "text"}


def _accepts(found: Mapping[str, Any]) -> str:
    if "$ref" in found:
        return "a mapping: the sections and keys of [serve.md](serve.md#keys)"
    if "anyOf" in found:
        return ", ".join(_accepts(each) for each in found["anyOf"])
    if "enum" in found:
        return ", ".join(found["enum"])
    if found["type"] == "array":
        return f"a list of {_TYPES[found['items']['type']]}"
    return _TYPES.get(found["type"], str(found["type"])) + _range(found)


def _range(found: Mapping[str, Any]) -> str:
    if "exclusiveMinimum" in found:
        return f" above {found['exclusiveMinimum']}"
    return f" from {_figure(found['minimum'])} to {_figure(found['maximum'])}" if "minimum" in found else ""


def _figure(number: float) -> str:
    return str(round(number) if number == round(number) else number)


def _shown(found: Mapping[str, Any]) -> str:
    return f"`{json.dumps(found['default'])}`" if "default" in found else ""


# --- writing ----------------------------------------------------------------------------------------

MADE: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "inventory.md": {"policy": policy_table},
    "guard.md": {"keys": guard_keys},
    "serve.md": {"keys": model_keys},
    "how-it-works.md": {
        "layers": layers_table,
        "earlyoom": earlyoom_table,
        "earlyoom-arguments": earlyoom_arguments,
    },
}
"""The parts of pages that are made here: page -> name of the part -> its maker."""


def filled(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with its made parts as they are now; raises ValueError for a part that has no place in it."""
    for name, make in parts.items():
        begin, end = f"<!-- made: {name} -->\n", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the part {name} must have one place: {begin.strip()} … {end}")
        before, rest = text.split(begin)
        text = f"{before}{begin}{make()}\n{end}{rest.split(end)[1]}"
    return text


def pages(directory: Path = DOCS) -> dict[Path, str]:
    """Return every page that is made, wholly or in parts, as it should be now."""
    made = {directory / name: filled((directory / name).read_text(), parts) for name, parts in MADE.items()}
    return {directory / SETTINGS: settings_page(), **made}


def main() -> None:
    """Write what has changed, and name it."""
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
