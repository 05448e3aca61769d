"""Files of presets for llama-server, as llama.cpp reads them: sections, options with and without a value. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll.box.fit.flags import Flag
from plimsoll.box.fit.llama_flags import TABLE
from plimsoll.box.fit.model import CannotTellError, Place

DEFAULT = "default"
"""The model for which the keys before the first section are."""
SHARED = "*"
_NOT_OPTIONS = ("version", "load-on-startup", "stop-timeout")
_HEADER = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_VARIABLE = "LLAMA_ARG_"
_TRUE, _FALSE = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")
_FLAGS: Mapping[str, Flag] = {name: flag for flag in TABLE.flags for name in (flag.name, *flag.other_names)}
_VARIABLES: Mapping[str, str] = {flag.variable: flag.name for flag in TABLE.flags if flag.variable}
MODELS = ("--model", "--hf-repo", "--model-url", "--docker-repo")
"""Options that name a model."""
_OF_THE_ROUTER = (
    "--models-max", "--models-dir", "--models-preset", "--model", "--hf-repo", "--mmproj", "--alias", "-a",
)  # fmt: skip
"""What a router's own command line says for no other model; each has a value."""


@dataclass
class Section:
    """One section: the line of its head, and its options by the name that stands for both ways of a switch."""

    line: int
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The words of each, none for a switch that is off and has no flag for that."""
    refused: list[str] = field(default_factory=list)
    """Keys that llama.cpp does not take, with the reason."""


def sections(text: str, path: str) -> dict[str, Section]:
    """Return the sections by their name; raises CannotTellError for a line that llama.cpp refuses."""
    found: dict[str, Section] = {}
    current = Section(1)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        head = _HEADER.fullmatch(line)
        key, equals, value = line.partition("=")
        if not line or line[0] in "#;":
            continue
        if head:
            current = found[head[1].strip()] = Section(number)
        elif not equals:
            raise CannotTellError(f"{Place(path, number)}: is neither a [section] nor `key = value`: llama.cpp refuses")
        elif key.strip() not in _NOT_OPTIONS:
            if not found:
                found[DEFAULT] = current
            _put(current, key.strip(), re.split(r"[;#]", value, maxsplit=1)[0].strip(), Place(path, number))
    return found


def _put(section: Section, key: str, value: str, place: Place) -> None:
    name = _name(key)
    if name is None and "_" in key and _name(key.replace("_", "-")):
        section.refused.append(f"{place}: llama.cpp takes no {key} in presets: write {key.replace('_', '-')}")
        return
    # of what is not known here it cannot be said whether it takes a value: written in one word it takes no other
    words = (f"--{key}={value}",) if name is None or name in TABLE.lists else _words(name, value)
    section.options[canonical(name or f"--{key}")] = words


def _name(key: str) -> str | None:
    """Return the flag that a key stands for, by its name without dashes or its variable; None for none."""
    if key in _VARIABLES:
        return _VARIABLES[key]
    if key.startswith(_VARIABLE):
        key = key.removeprefix(_VARIABLE).lower().replace("_", "-")
    written = next((name for name in (f"--{key}", f"-{key}") if _is_known(name)), None)
    return _FLAGS[written].name if written is not None and written in _FLAGS else written


def _is_known(name: str) -> bool:
    return name in _FLAGS or name in TABLE.switches or name in TABLE.values or name in TABLE.lists


def _is_switch(name: str) -> bool:
    return name in TABLE.switches or (name in _FLAGS and _FLAGS[name].switch is not None)


def _other_way(name: str) -> str:
    """Return the flag that undoes a switch, empty where there is none."""
    other = f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name.removeprefix('--')}"
    return other if _is_switch(other) else ""


def canonical(written: str) -> str:
    """Return one name for all that set the same option: other names of a flag, and both ways of a switch."""
    name = written.replace("_", "-") if written.startswith("--") else written
    name = _FLAGS[name].name if name in _FLAGS else name
    return _other_way(name) or name if name.startswith("--no-") else name


def _words(name: str, value: str) -> tuple[str, ...]:
    """Return the words of an option: one that has a value keeps it, a switch becomes bare or its other way."""
    if not _is_switch(name):
        return (name, value)
    plain = value.lower()
    # of `no-…` everything but a yes is the other way
    is_off = plain not in _TRUE if name.startswith("--no-") and _other_way(name) else plain in _FALSE
    if not is_off:
        return (name,)
    return (_other_way(name),) if _other_way(name) else ()


def beneath(words: Sequence[str], options: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the words of options, without those that a command line sets: it goes before every section."""
    given = {canonical(word.partition("=")[0]) for word in words if word.startswith("-")}
    return [word for name, each in options.items() if name not in given for word in each]


def for_each_model(words: Sequence[str]) -> list[str]:
    """Return the flags of a router that hold for each of its models."""
    found: list[str] = []
    skip = False
    for word in words:
        dropped = not skip and canonical(word) in _OF_THE_ROUTER
        if not skip and not dropped:
            found.append(word)
        skip = dropped
    return found
