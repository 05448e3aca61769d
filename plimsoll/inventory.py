"""The inventory: hosts, groups, their policy, and waivers, read from one YAML file.

Whatever is wrong with the file is one InventoryError with a line, raised before anything is connected to.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from plimsoll import yaml_lines
from plimsoll.box import model
from plimsoll.policy import KERNEL_RESERVE, Model, Policy, as_mapping, as_tuple, nearest, wrong

EXIT_INVALID = 4
# pyinfra's own group of every host, and the one it names after the file inventory/hosts.py
_RESERVED_GROUPS = ("all", "hosts")
_HOST_NAME = re.compile(r"@local|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SPOKEN_BOOLS = ("on", "off", "yes", "no", "y", "n", "true", "false")


class InventoryError(Exception):
    """The inventory cannot be used; str() is the one message for the operator."""

    def __init__(self, message: str, file: Path, line: int | None) -> None:
        self.message = message
        self.file = file
        self.line = line
        where = str(file) if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {message}")


class ValueSpec(Protocol):
    """What a control accepts as its value."""

    def parse(self, raw: object) -> str:
        """Return the value as it is written to the host; raises ValueError saying what is wanted."""
        ...


@dataclass(frozen=True, slots=True)
class Waiver:
    """A control that hosts are excused from, for a reason, up to and including a day."""

    control: str
    hosts: tuple[str, ...]
    reason: str
    until: date

    def holds(self, today: date) -> bool:
        """Whether the waiver has not run out."""
        return today <= self.until


@dataclass(frozen=True, slots=True)
class Host:
    """One host with its merged policy; `known` is False for a host that has only the defaults."""

    name: str
    groups: tuple[str, ...]
    policy: Policy
    waivers: tuple[Waiver, ...]
    address: str | None = None
    port: int | None = None
    user: str | None = None
    known: bool = True

    def waiver_for(self, control: str) -> model.Waiver | None:
        """Return the waiver of a control in the form that travels to the host; the last one in the file counts."""
        found = [waiver for waiver in self.waivers if waiver.control == control]
        return model.Waiver(found[-1].reason, found[-1].until.isoformat()) if found else None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All hosts of a file, by name, and the groups as lists of host names, in the order of the file."""

    path: Path
    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]
    defaults: Policy
    waivers: tuple[Waiver, ...]
    clusters: tuple[str, ...] = ()
    """The groups whose hosts serve one model together, so that one of them is touched at a time."""

    def host(self, name: str) -> Host:
        """Find a host by the name pyinfra has for it; one that is not in the file has the defaults.

        `@local` is looked up as that, then as this machine's host name; `@ssh/NAME` is NAME.
        """
        plain = name.removeprefix("@ssh/")
        names = [plain, socket.gethostname()] if plain == "@local" else [plain]
        for each in names:
            if each in self.hosts:
                return self.hosts[each]
        waivers = tuple(waiver for waiver in self.waivers if "all" in waiver.hosts)
        return Host(plain, (), self.defaults, waivers, known=False)


def parse_date(value: object) -> date:
    """Return the day that a text names; raises pydantic's error for anything but YYYY-MM-DD."""
    if isinstance(value, str) and _ISO_DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise wrong(f"must be a day that exists, as YYYY-MM-DD, not {value!r}")


def not_blank(value: str) -> str:
    """Return the text; raises pydantic's error if there is none."""
    if not value.strip():
        raise wrong("must not be blank")
    return value


def _not_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise wrong("must name hosts, groups or all")
    return names


def _one_word(value: str) -> str:
    if not re.fullmatch(r"[^\s\x00-\x1f\x7f]+", value) or value.startswith("-"):
        raise wrong(f"must be one word that does not begin with '-', not {value!r}")
    return value


Text = Annotated[str, AfterValidator(not_blank)]
Word = Annotated[str, AfterValidator(_one_word)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class _HostEntry(Model):
    address: Word | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: Word | None = None
    policy: Policy = Policy()


class _GroupEntry(Model):
    hosts: Names = ()
    cluster: bool = False
    policy: Policy = Policy()


class _WaiverEntry(Model):
    control: str
    hosts: Annotated[Names, AfterValidator(_not_empty)]
    reason: Text
    until: Annotated[date, BeforeValidator(parse_date)]


class _File(Model):
    defaults: Policy = Policy()
    groups: Annotated[dict[str, _GroupEntry], BeforeValidator(as_mapping)] = Field(default_factory=dict)
    hosts: Annotated[dict[str, _HostEntry], BeforeValidator(as_mapping)] = Field(default_factory=dict)
    waivers: Annotated[tuple[_WaiverEntry, ...], BeforeValidator(as_tuple)] = ()


class _Level(NamedTuple):
    """One place that holds policy: where it stands and what it says, unmerged."""

    path: yaml_lines.Path
    raw: Mapping[str, Any]


def load(path: Path) -> Inventory:
    """Read and check an inventory. Raises InventoryError for whatever is wrong with it."""
    return _Reader(path).inventory()


class _Reader:
    """One reading of one file: everything that can fail knows where it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = self._parse()
        self.file = self._file()

    def inventory(self) -> Inventory:
        self._check_names()
        self._check_controls()
        defaults = self._policy(None)
        groups = {name: tuple(dict.fromkeys(entry.hosts)) for name, entry in self.file.groups.items()}
        waivers = tuple(Waiver(entry.control, entry.hosts, entry.reason, entry.until) for entry in self.file.waivers)
        hosts = {name: self._host(name, waivers) for name in self.file.hosts}
        clusters = tuple(name for name, entry in self.file.groups.items() if entry.cluster)
        return Inventory(self.path, hosts, groups, defaults, waivers, clusters)

    def _parse(self) -> yaml_lines.Document:
        try:
            return yaml_lines.parse(self.path.read_bytes())
        except FileNotFoundError:
            message = "there is no such file: create it, or set PLIMSOLL_INVENTORY to the right one"
            raise InventoryError(message, shown(self.path), None) from None
        except OSError as error:
            raise InventoryError(f"cannot be read: {error.strerror or error}", shown(self.path), None) from None
        except yaml_lines.YamlError as error:
            raise InventoryError(error.message, shown(self.path), error.line) from None

    def _fail(self, path: yaml_lines.Path, message: str) -> NoReturn:
        raise InventoryError(message, shown(self.path), self.document.line(path))

    def _file(self) -> _File:
        if self.document.value is None:
            self._fail((), f"is empty; the keys are {', '.join(_File.model_fields)}")
        try:
            return _File.model_validate(self.document.value, context={"one_level": True})
        except ValidationError as error:
            self._fail(*self._first(error))

    def _first(self, error: ValidationError) -> tuple[yaml_lines.Path, str]:
        """Describe the error that stands first in the file."""
        found = [describe(each) for each in error.errors(include_url=False)]
        return min(found, key=lambda each: self.document.line(each[0]))

    def _check_names(self) -> None:
        hosts, groups = self.file.hosts, self.file.groups
        for name in hosts:
            if not _HOST_NAME.fullmatch(name):
                self._fail(("hosts", name), f"{name!r} is no host name: letters, digits, '.', '_' and '-'")
        for name, group in groups.items():
            self._check_group_name(name)
            self._check_known(("groups", name, "hosts"), group.hosts, set(hosts), "host")
        for index, waiver in enumerate(self.file.waivers):
            known = {*hosts, *groups, "all"}
            self._check_known(("waivers", index, "hosts"), waiver.hosts, known, "host or group")

    def _check_group_name(self, name: str) -> None:
        if name in _RESERVED_GROUPS:
            self._fail(("groups", name), f"the group name {name!r} is taken by pyinfra: choose another")
        if name in self.file.hosts:
            self._fail(("groups", name), f"{name!r} is a host as well as a group: rename one of them")
        if not _GROUP_NAME.fullmatch(name):
            self._fail(("groups", name), f"{name!r} is no group name: a-z first, then a-z, 0-9, '_' and '-'")

    def _check_known(self, path: yaml_lines.Path, names: tuple[str, ...], known: set[str], what: str) -> None:
        for index, name in enumerate(names):
            if name not in known:
                message = f"unknown {what} {name!r} in {_dotted(path)}; {nearest(name, known)}"
                self._fail((*path, index), message)

    def _levels(self, host: str | None) -> Iterator[_Level]:
        """Yield where the policy of `host` comes from, the weakest first; None is a host not in the file."""
        yield self._level(("defaults",))
        if host is not None:
            for name, group in self.file.groups.items():
                if host in group.hosts:
                    yield self._level(("groups", name, "policy"))
            yield self._level(("hosts", host, "policy"))

    def _level(self, path: yaml_lines.Path) -> _Level:
        value: Any = self.document.value
        for key in path:
            value = (value or {}).get(key)
        return _Level(path, value or {})

    def _every_level(self) -> list[_Level]:
        paths: list[yaml_lines.Path] = [("defaults",)]
        paths += [("groups", name, "policy") for name in self.file.groups]
        paths += [("hosts", name, "policy") for name in self.file.hosts]
        return [self._level(path) for path in paths]

    def _check_controls(self) -> None:
        specs = _value_specs()
        levels = self._every_level()
        for level in levels:
            for control, raw in (level.raw.get("values") or {}).items():
                self._check_value((*level.path, "values"), control, raw, specs)
        # a unit becomes a control by being named for trimming
        trims = {f"trims/{unit}" for level in levels for unit in level.raw.get("trims") or ()}
        for index, waiver in enumerate(self.file.waivers):
            if waiver.control not in {*specs, *trims}:
                hint = nearest(waiver.control, {*specs, *trims})
                self._fail(("waivers", index, "control"), f"unknown control {waiver.control!r}; {hint}")

    def _check_value(self, path: yaml_lines.Path, control: str, raw: object, specs: Mapping[str, ValueSpec]) -> None:
        where = (*path, control)
        if control not in specs:
            self._fail(where, f"unknown control {control!r} in {_dotted(path)}; {nearest(control, specs)}")
        if raw is None:
            return
        try:
            specs[control].parse(raw)
        except ValueError as error:
            self._fail(where, f"{control} in {_dotted(path)}: {error}")

    def _policy(self, host: str | None) -> Policy:
        """Merge the levels of `host` and check them as a whole."""
        levels = list(self._levels(host))
        merged: dict[str, Any] = {}
        for level in levels:
            merged = _merge(merged, level.raw)
        try:
            return Policy.model_validate(merged, context={"kernel_reserve_kib": _kernel_reserve_kib()})
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            whose = "" if host is None else f" (policy of {host})"
            self._fail(self._origin(levels, details.get("ctx", {}).get("paths", ())), details["msg"] + whose)

    def _origin(self, levels: list[_Level], paths: tuple[yaml_lines.Path, ...]) -> yaml_lines.Path:
        """Find where the strongest level sets one of `paths`: the line that made the whole invalid."""
        for level in reversed(levels):
            for path in paths:
                if (*level.path, *path) in self.document.lines:
                    return *level.path, *path
        return levels[-1].path

    def _host(self, name: str, waivers: tuple[Waiver, ...]) -> Host:
        entry = self.file.hosts[name]
        groups = tuple(group for group, members in self.file.groups.items() if name in members.hosts)
        names = {name, *groups, "all"}
        mine = tuple(waiver for waiver in waivers if names & set(waiver.hosts))
        return Host(name, groups, self._policy(name), mine, entry.address, entry.port, entry.user)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; anything else, a list too, is replaced. An empty section changes nothing."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping):
            result[key] = _merge(old, value or {})
        else:
            result[key] = value
    return result


def _dotted(path: yaml_lines.Path) -> str:
    return ".".join(str(key) for key in path) or "the file"


_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
}


def describe(error: Any) -> tuple[yaml_lines.Path, str]:  # noqa: ANN401 - pydantic's TypedDict, keys vary by type
    """Put one of pydantic's errors into a path and a sentence."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    # pydantic's mark of a mapping's key, as opposed to its value
    path = tuple(part for part in error["loc"] if part != "[key]")
    if kind == "unknown_key":
        key = context["key"]
        return (*path, key), f"unknown key {key!r} in {_dotted(path)}; {context['hint']}"
    if kind == "missing":
        return path, f"{_dotted(path[:-1])} lacks the key {path[-1]!r}"
    if kind == "plimsoll":
        return path, f"{_dotted(path)}: {error['msg']}"
    if kind in _WANTED:
        return path, f"{_dotted(path)} must be {_WANTED[kind]}, not {_yaml(value)}{_advice(kind, value)}"
    message = error["msg"].replace("Input should", "must")
    return path, f"{_dotted(path)} {message}, not {_yaml(value)}"


def _yaml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _advice(kind: str, value: object) -> str:
    if kind == "bool_type" and isinstance(value, str) and value.lower() in _SPOKEN_BOOLS:
        return ": write true or false"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return ": put it in quotes"
    if kind in {"int_type", "float_type"} and isinstance(value, str) and re.fullmatch(r"[\d.]+", value):
        return ": leave out the quotes"
    return ""


def shown(path: Path) -> Path:
    """Shorten a path for messages to the form that the operator would type."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def _value_specs() -> Mapping[str, ValueSpec]:
    # here and not above: the controls import the policy, and tests put their own in place
    from plimsoll.controls import registry  # noqa: PLC0415

    return registry.value_specs()


def _kernel_reserve_kib() -> int:
    """Return what the kernel is made to keep for itself where the policy names no other value."""
    from plimsoll.controls import registry  # noqa: PLC0415 - as above

    return next(int(each.default) for each in registry.every_control() if each.id == KERNEL_RESERVE)


def inventory_path() -> Path:
    """Locate the inventory: PLIMSOLL_INVENTORY, or inventory/hosts.yml of this repository."""
    override = os.environ.get("PLIMSOLL_INVENTORY")
    if override:
        return Path(override)
    return Path(__file__).resolve().parent.parent / "inventory" / "hosts.yml"


_load_once = cache(load)


def load_or_exit() -> Inventory:
    """Load the inventory, once a process; on a bad one print the message and exit with status 4."""
    try:
        return _load_once(inventory_path())
    except InventoryError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        raise SystemExit(EXIT_INVALID) from None
