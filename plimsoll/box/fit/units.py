"""What a service unit starts: its files, its environment, and what limits it is thought to set."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.box import cmdline, containers, engines, units
from plimsoll.box.fit.model import NO_GUARDS, CannotTellError, Guards, Mount, Place
from plimsoll.box.host import Host
from plimsoll.box.resolve import Assignment, FileText, in_order, ini_list, parse_ini
from plimsoll.box.unit_settings import HOME_DIRECTORIES, LIMITS, USER_DIRECTORY
from plimsoll.box.words import split_words

NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")


@dataclass(frozen=True)
class Started:
    """One ExecStart: its words, its variables, and what is around it."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    place: Place
    directory: str
    home: str
    guards: Guards
    unknowns: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()


def environment_file(text: str) -> dict[str, str]:
    """Return the variables of an env file, without their lines."""
    return {name: value for name, (value, _line) in cmdline.parse_environment_file(text).items()}


def of_name(host: Host, name: str, homes: Sequence[str]) -> list[Started]:
    """Return what a unit starts; a name without a suffix is a service. Raises CannotTellError."""
    if "/" in name:
        text = host.text_or_none(name)
        if text is None:
            raise CannotTellError(f"{name}: cannot be read; give the name of a unit, or the path of its file")
        return of_files([{"path": name, "text": text}], posixpath.basename(name), host, homes)
    unit = name if name.endswith(".service") else f"{name}.service"
    if not NAME.fullmatch(unit):
        raise CannotTellError(f"{name!r} is no name of a unit")
    files = _files(host, unit, homes)
    if not files:
        raise CannotTellError(f"{unit}: there is no such unit on this machine; `systemctl list-unit-files` names them")
    return of_files(files, unit, host, homes)


def _files(host: Host, unit: str, homes: Sequence[str]) -> list[FileText]:
    """Return the files of a unit of the system, else of a user."""
    found = units.files_of(host, unit)
    files: list[FileText] = [*found["fragments"][:1], *in_order(found["drop_ins"])]
    if files:
        return files
    prefix, at, _rest = unit.partition("@")
    names = (unit, f"{prefix}@.service") if at else (unit,)
    for directory in (USER_DIRECTORY, *(f"{home}/{each}" for home in homes for each in HOME_DIRECTORIES)):
        path = next(
            (f"{directory}/{name}" for name in names if host.text_or_none(f"{directory}/{name}") is not None), ""
        )
        if path:
            directories = [f"{directory}/{name}.d" for name in reversed(names)]
            paths = [f"{each}/{name}" for each in directories for name in host.names(each) if name.endswith(".conf")]
            return [{"path": each, "text": host.text_or_none(each) or ""} for each in (path, *paths)]
    return []


def of_files(files: Sequence[FileText], unit: str, host: Host, homes: Sequence[str]) -> list[Started]:
    """Return what the files of a unit start, in their order. Raises CannotTellError for none and for a template."""
    if any(file.get("masked") for file in files[:1]):
        raise CannotTellError(f"{unit}: is masked, it starts nothing")
    settings = [line for file in files for line in parse_ini(file) if line.section == "Service"]
    if not settings:
        raise CannotTellError(f"{files[0]['path']}: has no [Service], so it starts nothing")
    commands = ini_list(files, "Service", "ExecStart")
    if not commands:
        raise CannotTellError(f"{files[0]['path']}: has no ExecStart, so it starts nothing")
    last = {line.key: line for line in settings}
    home, path = _home(last, files[0]["path"], homes), files[0]["path"]
    specifiers = _specifiers(unit, _home_of_the_manager(path, homes))
    environment, unknowns = _environment(files, host, specifiers)
    written = last["WorkingDirectory"].value.lstrip("-") if "WorkingDirectory" in last else "/"
    directory = _specified(written, specifiers)
    found = []
    for command in commands:
        words = _words(command, environment, specifiers)
        place = Place(command.place.file, command.place.line)
        if not words:
            continue
        if engines.is_template(words[0]):
            raise CannotTellError(f"{place}: {words[0]} is a placeholder that was not filled in: this is a template")
        found.append(Started(
            unit, tuple(words), environment, place, home if directory == "~" else directory, home,
            _guards(last, words), tuple(unknowns),
        ))  # fmt: skip
    return found


def _home(last: Mapping[str, Assignment], path: str, homes: Sequence[str]) -> str:
    """Return the home of the user that a unit runs as."""
    user = last["User"].value if "User" in last else ""
    if user:
        return next((home for home in homes if posixpath.basename(home) == user), f"/home/{user}")
    return _home_of_the_manager(path, homes)


_OWNER = re.compile(r"(/home/[^/]+|/root)/\.")


def _home_of_the_manager(path: str, homes: Sequence[str]) -> str:
    """Return what %h stands for: root's home for the system's units, whatever their User= says."""
    owner = _OWNER.match(path)
    if owner:
        return owner[1]
    return homes[0] if path.startswith(f"{USER_DIRECTORY}/") and homes else "/root"


def _specifiers(unit: str, home: str) -> dict[str, str]:
    """Return what `%x` stands for in the files of a unit; the instance of a template that has none stays unknown."""
    name = unit.removesuffix(".service")
    prefix, _at, instance = name.partition("@")
    found = {"%": "%", "h": home, "n": unit, "N": name, "p": prefix}
    return found | ({"i": instance, "I": _unescaped(instance)} if instance else {})


def _unescaped(instance: str) -> str:
    plain = instance.replace("-", "/")
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), plain)


def _environment(
    files: Sequence[FileText], host: Host, specifiers: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a unit; what its EnvironmentFile would say is unknown where that cannot be read."""
    found: dict[str, str] = {}
    unknowns: list[str] = []
    for line in ini_list(files, "Service", "Environment"):
        for word in split_words(_specified(line.value, specifiers), c_escapes=True):
            name, _, value = word.partition("=")
            found[name] = value
    for line in ini_list(files, "Service", "EnvironmentFile"):
        path = _specified(line.value.removeprefix("-"), specifiers)
        text = host.text_or_none(path)
        if text is not None:
            found |= environment_file(text)
        elif not line.value.startswith("-"):
            unknowns.append(f"{line.place.file}:{line.place.line}: EnvironmentFile {path} cannot be read")
    return found, unknowns


def _specified(text: str, specifiers: Mapping[str, str]) -> str:
    return re.sub(r"%([A-Za-z%])", lambda match: specifiers.get(match[1], match[0]), text)


_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")


def _words(command: Assignment, environment: Mapping[str, str], specifiers: Mapping[str, str]) -> list[str]:
    """Return the words of an ExecStart; a variable that is not known stays as it is written."""
    words = split_words(command.value, c_escapes=True)
    if not words:
        return []
    prefix = words[0][: len(words[0]) - len(words[0].lstrip("-@:+!|"))]
    words[0] = words[0][len(prefix) :]
    if "@" in prefix:
        del words[1:2]
    found: list[str] = []
    for word in (_specified(each, specifiers) for each in words):
        found += [word] if ":" in prefix else _expanded(word, environment)
    return found


def _expanded(word: str, environment: Mapping[str, str]) -> list[str]:
    alone = re.fullmatch(r"\$(\w+)", word)
    if alone and alone[1] in environment:
        return split_words(environment[alone[1]], c_escapes=False)

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0]) if match[1] else match[0]

    return [_VARIABLE.sub(value, word)]


def _guards(last: Mapping[str, Assignment], words: Sequence[str]) -> Guards:
    limits = [last[key] for key in LIMITS if key in last and last[key].value not in ("", "infinity")]
    restart = last.get("Restart")
    always = restart is not None and restart.value not in ("", "no")
    score = last.get("OOMScoreAdjust")
    return Guards(
        limits=tuple((each.key, each.value, Place(each.place.file, each.place.line)) for each in limits),
        restart=restart.value if restart and always else "",
        restart_place=Place(restart.place.file, restart.place.line) if restart and always else None,
        oom_score_adj=int(score.value) if score and re.fullmatch(r"-?[0-9]{1,4}", score.value) else None,
        client_only=containers.client_arguments(words) is not None,
    )


def of_quadlet(text: str, path: str, homes: Sequence[str]) -> list[str]:
    """Return the command line of podman that the text of a Quadlet file stands for; raises CannotTellError."""
    last: dict[str, str] = {}
    options: list[str] = []
    in_place = path.startswith(("/etc/", "/usr/", "/run/")) or _OWNER.match(path) is not None
    home = _home_of_the_manager(path, homes) if in_place or not homes else homes[0]
    specifiers = _specifiers(f"{posixpath.basename(path).removesuffix('.container')}.service", home)
    for line in parse_ini({"path": path, "text": text}):
        if line.section != "Container":
            continue
        last[line.key] = line.value
        option = _QUADLET.get(line.key)
        if line.key == "PodmanArgs":
            options += split_words(line.value, c_escapes=True)
        elif option:
            options += [part for word in split_words(line.value, c_escapes=True) for part in (option, word)]
    if not last.get("Image"):
        raise CannotTellError(f"{path}: its [Container] names no Image, so it starts nothing")
    command = split_words(last.get("Exec", ""), c_escapes=True)
    environment: dict[str, str] = {}
    for line in ini_list([{"path": path, "text": text}], "Service", "Environment"):
        pairs = split_words(_specified(line.value, specifiers), c_escapes=True)
        environment |= dict(each.partition("=")[::2] for each in pairs)
    # systemd sees all of it as one ExecStart
    words = [_specified(word, specifiers) for word in (*options, last["Image"], *command)]
    return ["podman", "run", *(each for word in words for each in _expanded(word, environment))]


_QUADLET = {"Environment": "-e", "EnvironmentFile": "--env-file", "Volume": "-v", "Entrypoint": "--entrypoint"}


MAX_PARENTS = 4
"""A process that has given itself a title (`VLLM::EngineCore`) is a child or grandchild of the one that was started."""


def of_process(host: Host, pid: int) -> Started:
    """Return what a running process was started with; raises CannotTellError where that cannot be seen."""
    for _ in range(MAX_PARENTS):
        words = _command_line(host, pid)
        if "::" not in words[0] or len(words) > 1:
            break
        parent = re.search(r"^PPid:\s*([1-9][0-9]*)$", host.text_or_none(f"/proc/{pid}/status") or "", re.MULTILINE)
        if parent is None:
            break
        pid = int(parent[1])
    environment, unknowns = _variables_of(host, pid)
    root = f"/proc/{pid}/root"
    return Started(
        f"pid {pid}", tuple(words), environment, Place(f"/proc/{pid}/cmdline"), environment.get("PWD", "/"),
        environment.get("HOME", "/root"), NO_GUARDS, unknowns, (Mount(root, "/"),) if host.names(root) else (),
    )  # fmt: skip


def _command_line(host: Host, pid: int) -> list[str]:
    try:
        content = host.content(f"/proc/{pid}/cmdline")
    except OSError as error:
        raise CannotTellError(f"process {pid}: {error.strerror or error}") from error
    words = [each.decode("utf-8", "replace") for each in content.rstrip(b"\0").split(b"\0")]
    if words in ([], [""]):
        raise CannotTellError(f"process {pid}: has no command line (a kernel thread, or one that ended)")
    return words


def _variables_of(host: Host, pid: int) -> tuple[dict[str, str], tuple[str, ...]]:
    try:
        content = host.content(f"/proc/{pid}/environ")
    except OSError:
        return {}, (f"the environment of process {pid} cannot be read: run this as root",)
    pairs = (each.decode("utf-8", "replace").partition("=") for each in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}, ()
