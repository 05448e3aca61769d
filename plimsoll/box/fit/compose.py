"""Compose files: services, variables with their defaults and `.env`, anchors, and what of it starts an engine."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plimsoll.box import containers
from plimsoll.box.fit import starting
from plimsoll.box.fit import yaml_subset as yaml
from plimsoll.box.fit.model import CannotTellError, Guards, Launch, Mount, Place
from plimsoll.box.fit.starting import Around
from plimsoll.box.fit.units import environment_file
from plimsoll.box.host import Host

DEFAULT_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
MAX_EXTENDS = 8
MAX_INCLUDES = 50
_STARTS = ("up", "run", "start", "create", "restart")


def from_file(host: Host, path: str, service: str, around: Around) -> list[Launch]:
    """Return the engines of a compose file, or of one service of it; raises CannotTellError."""
    text = host.text_or_none(path)
    if text is None:
        raise CannotTellError(f"{path}: cannot be read; name a compose file")
    return from_text(host, text, path, service, around)


def from_arguments(host: Host, arguments: Sequence[str], around: Around) -> list[Launch]:
    """Return what `docker compose [-f FILE] up [SERVICE]` starts; raises CannotTellError."""
    words = list(arguments)
    verb = next((i for i, word in enumerate(words) if word in _STARTS), None)
    if verb is None:
        return []
    named = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-f", "--file")]
    named += [word.partition("=")[2] for word in words if word.startswith("--file=")]
    if len(named) > 1:
        raise CannotTellError(
            f"{named[1]}: several compose files that are laid over each other are not understood here"
        )
    candidates = named or [name for name in DEFAULT_FILES if host.exists(_beside(name, around.directory))]
    if not candidates:
        raise CannotTellError(f"{around.directory}: no compose file in it; name one with --compose FILE")
    services = [word for word in words[verb + 1 :] if not word.startswith("-")]
    return from_file(host, _beside(candidates[0], around.directory), services[0] if services else "", around)


def _beside(name: str, directory: str) -> str:
    return posixpath.normpath(posixpath.join(directory, name))


def from_text(host: Host, text: str, path: str, service: str, around: Around) -> list[Launch]:
    """Return the engines of the text of a compose file; raises CannotTellError."""
    found = document(text, path)
    services = found.items.get("services")
    if not isinstance(services, yaml.Mapping) and "include" not in found.items:
        raise CannotTellError(f"{path}: has no services, so it starts nothing")
    directory = posixpath.dirname(path) or around.directory
    variables = {**environment_file(host.text_or_none(f"{directory}/.env") or ""), **around.environment}
    file = _File(path, directory, variables, services if isinstance(services, yaml.Mapping) else yaml.Mapping(0))
    if service and service in file.services.items:
        return _service(host, file, service, around)
    included = _included(host, found, file, service, around)
    if service:
        if included:
            return included
        raise _NoSuchServiceError(f"{path}: has no service {service!r}; it has {', '.join(file.services.items)}")
    return [*included, *_all(host, file, around)]


def _included(host: Host, found_in: yaml.Mapping, file: "_File", service: str, around: Around) -> list[Launch]:
    """Return the engines of the files that a file includes."""
    node = found_in.items.get("include")
    listed = node.items if isinstance(node, yaml.Sequence) else []
    names = [
        name for each in listed for name in _texts(each.items.get("path") if isinstance(each, yaml.Mapping) else each)
    ]
    found: list[Launch] = []
    for name in names[:MAX_INCLUDES]:
        path = _beside(interpolated(name, file.variables), file.directory)
        try:
            found += from_file(host, path, service, around.deeper())
        except _NoSuchServiceError:
            continue
    return found


def _texts(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.Sequence):
        return [each.text for each in node.items if isinstance(each, yaml.Scalar)]
    return [node.text] if isinstance(node, yaml.Scalar) else []


def _all(host: Host, file: "_File", around: Around) -> list[Launch]:
    """Return the engines that start without a profile; where all of them have one, what must be said."""
    chosen = set(file.variables.get("COMPOSE_PROFILES", "").split(","))
    names = list(file.services.items)
    found = [each for name in names if _starts(file, name, chosen) for each in _service(host, file, name, around)]
    waiting = [name for name in names if not _starts(file, name, chosen) and _service(host, file, name, around)]
    if not found and waiting:
        shown = f"{', '.join(waiting[:4])}{', …' if len(waiting) > 4 else ''}"  # noqa: PLR2004  # a line's worth
        raise CannotTellError(f"{file.path}: its {len(waiting)} engines start by profile only; name one: {shown}")
    return found


def _starts(file: "_File", name: str, chosen: set[str]) -> bool:
    """Say whether a service starts without being named."""
    service = _extended(file, name, 0)
    profiles = service.items.get("profiles")
    return profiles is None or bool(chosen & set(_texts(profiles)))


def document(text: str, path: str) -> yaml.Mapping:
    """Return the mapping that a YAML text holds; raises CannotTellError with its line for anything else."""
    try:
        found = yaml.parse(text)
    except yaml.YamlError as error:
        raise CannotTellError(f"{Place(path, error.line)}: {error}") from error
    if not isinstance(found, yaml.Mapping):
        raise CannotTellError(f"{path}: is no mapping, so no compose file")
    return found


class _NoSuchServiceError(CannotTellError):
    """A service that is not in this file; it may be in another."""


@dataclass(frozen=True)
class _File:
    path: str
    directory: str
    variables: Mapping[str, str]
    services: yaml.Mapping


def _service(host: Host, file: _File, name: str, around: Around) -> list[Launch]:
    service = _extended(file, name, 0)
    reader = _Reader(file, service)
    image = reader.text("image")
    command = reader.words("command")
    entrypoint = reader.words("entrypoint") if _is_said(service, "entrypoint") else None
    place = Place(file.path, service.lines.get("command", service.line))
    inner = replace(
        around, name=name, place=place, environment=_environment(host, reader), contained=True,
        mounts=tuple(_mounts(reader, around)), guards=_guards(reader), directory=reader.text("working_dir") or "/",
        unknowns=(*around.unknowns, *reader.unknowns),
    )  # fmt: skip
    return starting.in_container(host, image, entrypoint, command, inner)


def _is_said(service: yaml.Mapping, key: str) -> bool:
    """Say whether a key has a value, be it an empty list; `entrypoint:` alone is as good as nothing."""
    node = service.items.get(key)
    return node is not None and not (isinstance(node, yaml.Scalar) and node.is_null and not node.quoted)


def _extended(file: _File, name: str, depth: int) -> yaml.Mapping:
    """Return a service with what it extends laid below it; another file is not looked at."""
    service = file.services.items.get(name)
    if not isinstance(service, yaml.Mapping):
        raise CannotTellError(f"{file.path}: the service {name!r} is no mapping")
    extends = service.items.get("extends")
    if extends is None:
        return service
    line = service.lines["extends"]
    base = extends.text if isinstance(extends, yaml.Scalar) else ""
    if isinstance(extends, yaml.Mapping):
        target = extends.items.get("service")
        base = target.text if isinstance(target, yaml.Scalar) and "file" not in extends.items else ""
    if base not in file.services.items or depth >= MAX_EXTENDS:
        raise CannotTellError(f"{file.path}:{line}: extends something that is not in this file, or itself")
    below = _extended(file, base, depth + 1)
    found = yaml.Mapping(service.line, dict(below.items), dict(below.lines))
    for key, value in service.items.items():
        found.items[key], found.lines[key] = _laid_over(below.items.get(key), value), service.lines[key]
    del found.items["extends"]
    return found


def _laid_over(below: yaml.Node | None, above: yaml.Node) -> yaml.Node:
    if isinstance(below, yaml.Mapping) and isinstance(above, yaml.Mapping):
        return yaml.Mapping(above.line, {**below.items, **above.items}, {**below.lines, **above.lines})
    return above


class _Reader:
    """Values of one service, with variables filled in."""

    def __init__(self, file: _File, service: yaml.Mapping) -> None:
        self.file = file
        self.service = service
        self.unknowns: list[str] = []

    def fill(self, scalar: yaml.Scalar) -> str:
        """Return a text with its variables filled in; raises CannotTellError for one that must be set and is not."""
        try:
            return interpolated(scalar.text, self.file.variables)
        except ValueError as error:
            raise CannotTellError(f"{self.file.path}:{scalar.line}: {error}") from error

    def text(self, key: str) -> str:
        """Return one value, empty where there is none."""
        node = self.service.items.get(key)
        return self.fill(node) if isinstance(node, yaml.Scalar) and not node.is_null else ""

    def words(self, key: str) -> list[str]:
        """Return a command: a list as it is, a text as its words."""
        node = self.service.items.get(key)
        if isinstance(node, yaml.Sequence):
            return [self.fill(each) for each in node.items if isinstance(each, yaml.Scalar)]
        if not isinstance(node, yaml.Scalar) or node.is_null:
            return []
        try:
            return shlex.split(self.fill(node))
        except ValueError as error:
            raise CannotTellError(f"{self.file.path}:{node.line}: {key}: {error}") from error

    def texts(self, key: str) -> Iterator[str]:
        """Yield the texts of a list, or the one text."""
        node = self.service.items.get(key)
        for each in node.items if isinstance(node, yaml.Sequence) else [node]:
            if isinstance(each, yaml.Scalar) and not each.is_null:
                yield self.fill(each)
            elif isinstance(each, yaml.Mapping) and isinstance(each.items.get("path"), yaml.Scalar):
                path = each.items["path"]
                yield self.fill(path) if isinstance(path, yaml.Scalar) else ""

    def pairs(self, key: str) -> Iterator[tuple[str, str | None]]:
        """Yield names and values, from a mapping or a list of `NAME=value`; None for a name alone."""
        node = self.service.items.get(key)
        if isinstance(node, yaml.Mapping):
            for name, value in node.items.items():
                if isinstance(value, yaml.Scalar):
                    yield name, None if value.is_null else self.fill(value)
        elif isinstance(node, yaml.Sequence):
            for each in node.items:
                if isinstance(each, yaml.Scalar):
                    name, equals, text = self.fill(each).partition("=")
                    yield name, text if equals else None


def _environment(host: Host, reader: _Reader) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in reader.texts("env_file"):
        path = _beside(name, reader.file.directory)
        text = host.text_or_none(path)
        if text is None:
            reader.unknowns.append(f"{path}: env_file cannot be read")
        found |= environment_file(text or "")
    for name, value in reader.pairs("environment"):
        if value is not None:
            found[name] = value
        elif name in reader.file.variables:
            found[name] = reader.file.variables[name]
    return found


def _mounts(reader: _Reader, around: Around) -> Iterator[Mount]:
    node = reader.service.items.get("volumes")
    for each in node.items if isinstance(node, yaml.Sequence) else []:
        if isinstance(each, yaml.Scalar):
            yield from starting.mount(reader.fill(each), reader.file.directory, around.homes)
        elif isinstance(each, yaml.Mapping):
            source, target = each.items.get("source"), each.items.get("target")
            if isinstance(source, yaml.Scalar) and isinstance(target, yaml.Scalar):
                yield from starting.mount(
                    f"{reader.fill(source)}:{reader.fill(target)}", reader.file.directory, around.homes
                )


def _guards(reader: _Reader) -> Guards:
    limits = _limits(reader.service)
    memory = reader.text("mem_limit") or (reader.fill(limits) if limits else "")
    restart = reader.text("restart")
    score = reader.text("oom_score_adj")
    return Guards(
        memory_bytes=containers.size_bytes(memory) if memory else None,
        restart="" if restart in ("", "no", "false") else restart,
        restart_place=Place(reader.file.path, reader.service.lines.get("restart", 0)) if restart else None,
        shm_bytes=containers.size_bytes(reader.text("shm_size")) if reader.text("shm_size") else None,
        ipc_host=reader.text("ipc") == "host",
        oom_score_adj=int(score) if re.fullmatch(r"-?[0-9]{1,4}", score) else None,
    )


def _limits(service: yaml.Mapping) -> yaml.Scalar | None:
    """Return `deploy.resources.limits.memory`, None where it is not said."""
    node: yaml.Node | None = service
    for key in ("deploy", "resources", "limits", "memory"):
        node = node.items.get(key) if isinstance(node, yaml.Mapping) else None
    return node if isinstance(node, yaml.Scalar) else None


# --- variables --------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_]\w*")


def interpolated(text: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """Return a text with `$NAME`, `${NAME:-default}`, `:+`, `:?` and `$$` filled in, as compose does.

    A variable that is not set and has no default stays as it is written: compose would take an empty text, and the
    command would silently be another one. Raises ValueError for what compose refuses.
    """
    if depth > MAX_EXTENDS:
        raise ValueError("variables with defaults that have defaults: nested too deeply")
    found, position = "", 0
    while position < len(text):
        start = text.find("$", position)
        if start < 0:
            return found + text[position:]
        found += text[position:start]
        piece, position = _variable(text, start, variables, depth)
        found += piece
    return found


def _variable(text: str, start: int, variables: Mapping[str, str], depth: int) -> tuple[str, int]:
    """Return what the variable at `start` comes to, and where it ends."""
    after = text[start + 1 : start + 2]
    if after == "$":
        return "$", start + 2
    if after == "{":
        end = _closing(text, start + 1)
        return _braced(text[start + 2 : end - 1], variables, depth), end
    match = _NAME.match(text, start + 1)
    if match is None:
        raise ValueError(f"{text[start : start + 20]!r}: a $ that begins no variable is written $$")
    return variables.get(match[0], match.string[start : match.end()]), match.end()


def _closing(text: str, position: int) -> int:
    depth = 0
    for index in range(position, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if not depth:
            return index + 1
    raise ValueError("a ${ is not closed")


def _braced(inner: str, variables: Mapping[str, str], depth: int) -> str:
    match = _NAME.match(inner)
    if match is None:
        raise ValueError(f"${{{inner[:20]}}} is no variable")
    name, rest = match[0], inner[match.end() :]
    value = variables.get(name)
    operation = re.match(r":?[-+?]", rest)
    if not rest:
        return "${" + name + "}" if value is None else value
    if operation is None:
        raise ValueError(f"${{{inner[:40]}}} is not understood")
    empty = value is None or (operation[0][0] == ":" and not value)
    argument = rest[operation.end() :]
    kind = operation[0][-1]
    if kind == "?" and empty:
        raise ValueError(f"{name} must be set: {argument or 'it has no default'}")
    if kind == "+":
        return "" if empty else interpolated(argument, variables, depth + 1)
    return interpolated(argument, variables, depth + 1) if empty else str(value)
