"""Compose files: services, variables with their defaults and `.env`, anchors, and what of it starts an engine."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plimsoll.box import containers
from plimsoll.box.fit import compose_command, compose_words, starting, unseen
from plimsoll.box.fit import yaml_subset as yaml
from plimsoll.box.fit.compose_command import Asked
from plimsoll.box.fit.compose_variables import env_file, interpolated
from plimsoll.box.fit.model import CannotTellError, Guards, Launch, Mount, Place
from plimsoll.box.fit.starting import Around
from plimsoll.box.host import Host

DEFAULT_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
OVERRIDES = tuple(f"{name}.override.{kind}" for name in ("compose", "docker-compose") for kind in ("yaml", "yml"))
MAX_EXTENDS = 8
MAX_INCLUDES = 50
MAX_SERVICES = 500


def from_file(host: Host, path: str, services: Sequence[str], around: Around) -> list[Launch]:
    """Return the engines of a compose file, or of some services with what they need; raises CannotTellError."""
    return _read(host, path, Asked(tuple(services)), around)


def from_text(host: Host, text: str, path: str, services: Sequence[str], around: Around) -> list[Launch]:
    """Return the same of the text of a compose file; raises CannotTellError."""
    return _asked_of(host, text, path, Asked(tuple(services)), around)


def _read(host: Host, path: str, asked: Asked, around: Around) -> list[Launch]:
    text = host.text_or_none(path)
    if text is None:
        raise CannotTellError(f"{path}: cannot be read; name a compose file")
    return _asked_of(host, text, path, asked, around)


def from_arguments(host: Host, arguments: Sequence[str], around: Around) -> list[Launch]:
    """Return what `docker compose [-f FILE] up [SERVICE ...]` starts; raises CannotTellError."""
    asked = compose_command.asked(arguments[list(arguments).index("compose") + 1 :])
    if asked is None:
        return []
    if len(asked.files) > 1:
        raise CannotTellError(
            f"{asked.files[1]}: several compose files that are laid over each other are not understood here"
        )
    directory = _beside(asked.project_directory, around.directory)
    candidates = asked.files or [name for name in DEFAULT_FILES if host.exists(_beside(name, directory))]
    if not candidates:
        raise CannotTellError(f"{directory}: no compose file in it; name one with --compose FILE")
    over = [name for name in OVERRIDES if not asked.files and host.exists(_beside(name, directory))]
    if over:
        raise CannotTellError(
            f"{_beside(over[0], directory)}: compose lays it over {candidates[0]}, which is not understood here"
        )
    return _read(host, _beside(candidates[0], around.directory if asked.files else directory), asked, around)


def _beside(name: str, directory: str) -> str:
    return posixpath.normpath(posixpath.join(directory, name))


def _asked_of(host: Host, text: str, path: str, asked: Asked, around: Around) -> list[Launch]:
    """Return what is asked for of a project that begins with a text; raises CannotTellError."""
    if re.search(r"^apiVersion:", text, re.MULTILINE) and re.search(r"^kind:", text, re.MULTILINE):
        raise CannotTellError(
            f"{path}: is a manifest of Kubernetes, which is not read here: ask about the command of its container"
        )
    directory = posixpath.dirname(path) or around.directory
    if asked.project_directory:
        directory = _beside(asked.project_directory, around.directory)
    project = _Project(host, around, asked, [])
    _add(project, document(text, path), path, directory, _variables(host, asked, directory, around))
    return _engines(project)


def _variables(host: Host, asked: Asked, directory: str, around: Around) -> dict[str, str]:
    """Return the variables of a project: those of `--env-file`, else of `.env`, and above them those of the asker."""
    found: dict[str, str] = {}
    for name in asked.env_files:
        path = _beside(name, around.directory)
        text = host.text_or_none(path)
        if text is None:
            raise CannotTellError(f"{path}: --env-file cannot be read, and compose starts nothing without it")
        found |= _of_env_file(text, path, {**found, **around.environment})
    if not asked.env_files:
        path = _beside(".env", directory)
        found = _of_env_file(host.text_or_none(path) or "", path, around.environment)
    return {**found, **around.environment}


def _of_env_file(text: str, path: str, known: Mapping[str, str]) -> dict[str, str]:
    try:
        return env_file(text, known)
    except ValueError as error:
        raise CannotTellError(f"{path}: {error}") from error


# --- which services ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    path: str
    directory: str
    variables: Mapping[str, str]
    services: yaml.Mapping


@dataclass(frozen=True)
class _Project:
    """A compose file with those that it includes."""

    host: Host
    around: Around
    asked: Asked
    files: list[_File]

    def of(self, name: str) -> _File | None:
        """Return the file that a service is in, None for one that is in none."""
        return next((file for file in self.files if name in file.services.items), None)

    @property
    def names(self) -> list[str]:
        """The names of all services."""
        return list(dict.fromkeys(name for file in self.files for name in file.services.items))

    @property
    def profiles(self) -> frozenset[str]:
        """The profiles that are asked for."""
        by_variable = self.files[-1].variables.get("COMPOSE_PROFILES", "")
        return self.asked.profiles | frozenset(each.strip() for each in by_variable.split(","))


def _add(
    project: _Project, found: yaml.Mapping, path: str, directory: str, variables: Mapping[str, str], depth: int = 0
) -> None:
    """Add a file to a project, those that it includes first; raises CannotTellError."""
    services = found.items.get("services")
    if not isinstance(services, yaml.Mapping) and "include" not in found.items:
        raise CannotTellError(f"{path}: has no services, so it starts nothing")
    if depth > MAX_EXTENDS or len(project.files) > MAX_INCLUDES:
        raise CannotTellError(f"{path}: includes something that includes something, too many times")
    file = _File(path, directory, variables, services if isinstance(services, yaml.Mapping) else yaml.Mapping(0))
    node = found.items.get("include")
    for each in node.items if isinstance(node, yaml.Sequence) else []:
        paths = each.items.get("path") if isinstance(each, yaml.Mapping) else each
        for name in _texts(paths):
            _add_included(project, file, _interpolated(name, file), depth + 1)
    project.files.append(file)


def _add_included(project: _Project, file: _File, name: str, depth: int) -> None:
    path = _beside(name, file.directory)
    text = project.host.text_or_none(path)
    if text is None:
        raise CannotTellError(f"{path}: is included by {file.path}, and cannot be read")
    directory = posixpath.dirname(path)
    dotenv = _beside(".env", directory)
    own = _of_env_file(project.host.text_or_none(dotenv) or "", dotenv, file.variables)
    _add(project, document(text, path), path, directory, {**own, **file.variables}, depth)


def _interpolated(text: str, file: _File) -> str:
    try:
        return interpolated(text, file.variables)
    except ValueError as error:
        raise CannotTellError(f"{file.path}: {error}") from error


def _texts(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.Sequence):
        return [each.text for each in node.items if isinstance(each, yaml.Scalar)]
    return [node.text] if isinstance(node, yaml.Scalar) else []


def _engines(project: _Project) -> list[Launch]:
    """Return the engines of the services that start; raises CannotTellError where there is none to tell about."""
    missing = next((name for name in project.asked.services if project.of(name) is None), "")
    if missing:
        path = project.files[-1].path
        raise CannotTellError(f"{path}: has no service {missing!r}; it has {', '.join(project.names)}")
    tried = _Tried()
    by_profile = []
    for name in _with_needed(project) if project.asked.services else project.names[:MAX_SERVICES]:
        if project.asked.services or _starts(project, name):
            tried.attempt(project, name)
        else:
            by_profile.append(name)
    if tried.found:
        return [*tried.found, *tried.failed]
    waiting = [name for name in by_profile if _Tried().attempt(project, name)]
    if tried.errors:
        raise tried.errors[0]
    if waiting:
        shown = f"{', '.join(waiting[:4])}{', …' if len(waiting) > 4 else ''}"  # noqa: PLR2004  # a line's worth
        path = project.files[-1].path
        raise CannotTellError(f"{path}: its {len(waiting)} engines start by profile only; name one: {shown}")
    return []


@dataclass
class _Tried:
    """What became of services that were read; one that is not understood does not hide the others."""

    found: list[Launch] = field(default_factory=list)
    failed: list[Launch] = field(default_factory=list)
    errors: list[CannotTellError] = field(default_factory=list)

    def attempt(self, project: _Project, name: str) -> bool:
        """Read a service; say whether it is an engine, or may be one."""
        file = project.of(name)
        before = len(self.found) + len(self.errors)
        try:
            self.found += [] if file is None else _service(project, file, name)
        except CannotTellError as error:
            why = f"the service {name} is not understood: {error}"
            self.errors.append(error)
            self.failed.append(Launch("unknown", name, (), unknowns=(why,), opaque=True))
        return len(self.found) + len(self.errors) > before


def _with_needed(project: _Project) -> list[str]:
    """Return the services that are asked for, and before each what it depends on, directly or not."""
    found: dict[str, None] = {}
    open_names = list(project.asked.services)
    while open_names and len(found) < MAX_SERVICES:
        name = open_names.pop(0)
        if name not in found:
            found[name] = None
            open_names += [] if project.asked.alone else _needed(project, name)
    return list(found)


def _needed(project: _Project, name: str) -> list[str]:
    """Return what a service depends on; not what it can do without and nobody asks for."""
    file = project.of(name)
    try:
        node = None if file is None else _extended(file, name, 0).items.get("depends_on")
    except CannotTellError:
        return []
    if not isinstance(node, yaml.Mapping):
        return _texts(node)
    optional = {other for other, how in node.items.items()
                if isinstance(how, yaml.Mapping) and _texts(how.items.get("required")) == ["false"]}  # fmt: skip
    return [other for other in node.items if other not in optional or _starts(project, other)]


def _starts(project: _Project, name: str) -> bool:
    """Say whether a service starts without being named."""
    file = project.of(name)
    try:
        profiles = None if file is None else _extended(file, name, 0).items.get("profiles")
    except CannotTellError:
        profiles = None
    return file is not None and (
        not _texts(profiles) or "*" in project.profiles or not project.profiles.isdisjoint(_texts(profiles))
    )


def document(text: str, path: str) -> yaml.Mapping:
    """Return the mapping that a YAML text holds; raises CannotTellError with its line for anything else."""
    try:
        found = yaml.parse(text)
    except yaml.YamlError as error:
        raise CannotTellError(f"{Place(path, error.line)}: {error}") from error
    if not isinstance(found, yaml.Mapping):
        raise CannotTellError(f"{path}: is no mapping, so no compose file")
    return found


# --- one service ------------------------------------------------------------------------------------


def _service(project: _Project, file: _File, name: str) -> list[Launch]:
    """Return the engine that a service starts; none for any other service. Raises CannotTellError."""
    around, asked = project.around, project.asked if name in project.asked.services else Asked()
    service = _extended(file, name, 0)
    reader = _Reader(file, service)
    image = reader.text("image")
    entrypoint = reader.words("entrypoint") if _is_said(service, "entrypoint") else None
    command = list(asked.command) or reader.words("command")
    if "--entrypoint" in asked.run:
        try:
            entrypoint, command = compose_words.split(asked.run["--entrypoint"][-1]), list(asked.command)
        except ValueError as error:
            raise CannotTellError(f"--entrypoint {asked.run['--entrypoint'][-1]}: {error}") from error
    place = Place(file.path, service.lines.get("command", service.line))
    environment = _environment(project.host, reader) | _pairs(asked.run.get("--env", ()), file.variables)
    inner = replace(
        around, name=name, place=place, environment=environment, contained=True,
        mounts=tuple(_mounts(reader, around)), guards=_guards(reader), directory=reader.text("working_dir") or "/",
        unknowns=(*around.unknowns, *reader.unknowns),
    )  # fmt: skip
    started = starting.in_container(project.host, image, entrypoint, command, inner)
    why = "" if started else unseen.image(image)
    return [Launch("unknown", name, (), place=place, unknowns=(why,), opaque=True)] if why else started


def _pairs(given: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `-e NAME=value` and `-e NAME`."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if equals or name in variables:
            found[name] = value if equals else variables[name]
    return found


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
            raise CannotTellError(f"{Place(self.file.path, scalar.line)}: {error}") from error

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
        place = Place(self.file.path, node.line)
        try:
            found = compose_words.split(self.fill(node))
        except ValueError as error:
            raise CannotTellError(f"{place}: {key}: {error}") from error
        self.unknowns += [
            f"{place}: {key}: compose keeps a blank or newline behind a backslash, and engines refuse the word {word!r}"
            for word in compose_words.odd_words(found)
        ]
        return found

    def env_files(self) -> Iterator[tuple[str, bool]]:
        """Yield the paths of env files, and whether each must be there."""
        node = self.service.items.get("env_file")
        for each in node.items if isinstance(node, yaml.Sequence) else [node]:
            path = each.items.get("path") if isinstance(each, yaml.Mapping) else each
            needed = not isinstance(each, yaml.Mapping) or _texts(each.items.get("required")) != ["false"]
            if isinstance(path, yaml.Scalar) and not path.is_null:
                yield self.fill(path), needed

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
    for name, needed in reader.env_files():
        path = _beside(name, reader.file.directory)
        text = host.text_or_none(path)
        if text is None and needed:
            reader.unknowns.append(f"{path}: env_file cannot be read")
        found |= _of_env_file(text or "", path, reader.file.variables)
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
