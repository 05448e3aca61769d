"""The files of a layer, from its wanted controls and the templates. Pure but for reading the templates."""

import functools
import hashlib
import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll import zipapp
from plimsoll.box import declarations
from plimsoll.box.guard import last_resort
from plimsoll.box.model import WANTED_SCHEMA, Kind, Wanted
from plimsoll.controls import box, earlyoom, guard, models
from plimsoll.controls.record import Action
from plimsoll.policy import Policy

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@dataclass(frozen=True)
class File:
    """A file as it shall be on the host; owner and group are root."""

    path: str
    content: bytes
    after: tuple[Action, ...] = ()
    mode: str = "0644"
    is_program: bool = False
    """The zipapp, which the host has from the command that runs it and need not be sent again."""
    check: str = ""
    """Who is asked on the host whether the file does, before it is put in place: `sudoers`, or nobody."""
    judged: bool = True
    """Whether verify compares it; the list of what is wanted cannot hold its own hash."""

    @functools.cached_property
    def sha256(self) -> str:
        """The hash of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    def wanted(self, layer: str) -> Wanted:
        """Return the control that the file itself is: that nobody has edited, removed or opened it."""
        value = f"{self.sha256} {self.mode}"
        return Wanted(f"{layer}/file:{self.path}", layer, Kind.CONFIG_FILE, self.path, value, file=self.path)


@functools.cache
def _environment() -> "jinja2.Environment":
    import jinja2  # noqa: PLC0415  # 0.04 s, which an audit has while its first hosts are asked

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  # configuration files, not HTML; every value comes from a checked record
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **names: object) -> bytes:
    return _environment().get_template(template).render(**names).encode()


_TEMPLATE_OF = {
    Kind.SYSCTL: "sysctl.conf.j2",
    Kind.UNIT_PROPERTY: "section.conf.j2",
    Kind.MANAGER_PROPERTY: "section.conf.j2",
    Kind.SESSION_SCORE: "section.conf.j2",
    Kind.CMDLINE: "earlyoom.j2",
    Kind.MODULE_OPTION: "modprobe.conf.j2",
    Kind.HEARTBEAT: "guard.toml.j2",
}


def layer_files(layer: str, wanted: Sequence[Wanted], after: Iterable[tuple[Wanted, tuple[Action, ...]]]) -> list[File]:
    """Return the files that keep the controls `wanted`, all of one layer; `after` says what follows a change."""
    follow: dict[str, dict[Action, None]] = {}
    for control, actions in after:
        follow.setdefault(control.file, {}).update(dict.fromkeys(actions))
    by_file: dict[str, list[Wanted]] = {}
    for control in wanted:
        if control.file and (control.kind in _TEMPLATE_OF or control.kind in _NAMED):
            by_file.setdefault(control.file, []).append(control)
    everything = tuple(wanted)
    return [
        File(path, _content(layer, tuple(group), everything), tuple(follow.get(path, ())), **_special(group[0]))
        for path, group in by_file.items()
    ]


_NAMED = (Kind.UNIT_STATE, Kind.DECLARATION)
"""Kinds whose files have templates of their own names."""
_SPECIAL: dict[str, dict[str, Any]] = {declarations.OPERATORS: {"mode": "0440", "check": declarations.SUDOERS}}
"""What a file has that is not as those of all others, by the name of its control."""


def _special(control: Wanted) -> dict[str, Any]:
    return _SPECIAL.get(control.name, {})


@functools.lru_cache(maxsize=256)
def _content(layer: str, group: tuple[Wanted, ...], wanted: tuple[Wanted, ...]) -> bytes:
    # the hosts of a fleet want much the same: drawing it anew for each was a tenth of the time that judging one takes
    sections: dict[str, list[Wanted]] = {}
    for control in group:
        sections.setdefault(control.section, []).append(control)
    if group[0].kind is Kind.UNIT_STATE:
        unit = posixpath.basename(group[0].file)
        return _render(f"{unit}.j2", layer=layer, program=box.PROGRAM, **guard.unit_names(wanted))
    if group[0].kind is Kind.DECLARATION:
        return _render(f"{group[0].name}.j2", layer=layer, controls=group, declared=_declared, as_model=_as_model)
    return _render(
        _TEMPLATE_OF[group[0].kind],
        layer=layer,
        sections=sections,
        controls=group,
        as_value=_environment_value,
        as_tables=guard.as_tables,
    )


def _declared(control: Wanted) -> Any:  # noqa: ANN401  # plain JSON types
    return json.loads(control.value)


def _as_model(control: Wanted) -> str:
    return models.toml(control.target, json.loads(control.value))


def _environment_value(control: Wanted) -> str:
    return earlyoom.environment_value(json.loads(control.value))


def box_files(wanted: Sequence[Wanted], policy: Policy) -> list[File]:
    """Return the program, its wrapper, its units, and the list of what is wanted."""
    listed = wanted_document(tuple(wanted), policy.verify.notify_command)
    return [*program_files(), File(box.WANTED, listed, judged=False)]


def program_files() -> tuple[File, ...]:
    """Return the program, its wrapper and its units, which are the same on every host."""
    return _program_files(zipapp.build())


@functools.lru_cache(maxsize=2)
def _program_files(program: bytes) -> tuple[File, ...]:
    reload = (("daemon-reload",),)
    names = {"layer": "box", "wrapper": box.WRAPPER, "unclean_mark": last_resort.MARK}
    units = [File(f"{box.UNIT_DIRECTORY}/{unit}", _render(f"{unit}.j2", **names), reload) for unit in box.UNITS]
    return (
        File(box.PROGRAM, program, (("precompile",),), is_program=True),
        File(box.WRAPPER, _render("plimsoll.sh.j2", layer="box", program=box.PROGRAM), mode="0755"),
        *units,
    )


@functools.lru_cache(maxsize=8)
def wanted_document(wanted: tuple[Wanted, ...], notify_command: tuple[str, ...]) -> bytes:
    """Return /etc/plimsoll/wanted.json: what the box judges itself by."""
    document = {
        "schema": WANTED_SCHEMA,
        "written_by": "plimsoll, from the inventory's policy for this host; undo: plimsoll revert",
        "notify_command": list(notify_command),
        "controls": [control.to_json() for control in wanted],
    }
    return (json.dumps(document, indent=1) + "\n").encode()
