"""From the words of a command line to the engines that it starts: wrappers, shells, `docker run`, routers."""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from plimsoll.box import containers, engines
from plimsoll.box.fit import docker, handing, images
from plimsoll.box.fit.handing import Script
from plimsoll.box.fit.model import NO_GUARDS, CannotTellError, Guards, Launch, Mount, Place
from plimsoll.box.fit.shell_flow import Slots
from plimsoll.box.host import Host

if TYPE_CHECKING:
    from plimsoll.box.fit import shell

NAMES: Mapping[str, str] = {"vllm": "vllm", "sglang": "sglang", "ollama": "ollama", "llama-server": "llama.cpp"}
_LLAMA = ("llama-server", "llama-cpp", "llama-box", "llamafile")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
MAX_DEPTH = 12
MAX_SCRIPT_BYTES = 1 << 20
MAX_SHOWN = 200
"""Characters of a command in a message."""


@dataclass(frozen=True)
class Around:
    """What holds around a command line."""

    name: str = ""
    place: Place | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    homes: tuple[str, ...] = ()
    directory: str = "/"
    contained: bool = False
    guards: Guards = NO_GUARDS
    unknowns: tuple[str, ...] = ()
    exclusive: str = ""
    unsure: Mapping[str, Place] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Of a script."""
    scripts: tuple[str, ...] = ()
    """Those that this is inside of; one that starts itself again does not start another engine."""
    depth: int = 0

    def deeper(self) -> "Around":
        """Return the same one level down; raises CannotTellError when that goes on for ever."""
        if self.depth >= MAX_DEPTH:
            raise CannotTellError(f"{self.place or self.name}: starts something that starts something, too many times")
        return replace(self, depth=self.depth + 1)


def common_name(engine: str) -> str:
    """Return the name by which an engine is known here."""
    return "llama.cpp" if engine in _LLAMA else NAMES.get(engine, engine)


def launches(host: Host, words: Sequence[str], around: Around) -> list[Launch]:
    """Return the engines that a command line starts; none for one that starts none. Raises CannotTellError."""
    handed = _handed(words)
    if handed is not None:
        return _of_handed(host, handed, around)
    arguments = containers.client_arguments(words)
    if arguments is not None:
        return _client(host, arguments, around, _assigned(words))
    for command in map(handing.as_python, engines.commands(words)):
        if engines.program_name(command[0]) == "llama-swap":
            return _swap(host, command, around)
        by_script = _own_script(host, command, around)
        if by_script:
            return by_script
        before = words[: len(words) - len(command)]
        inner = replace(around, environment={**around.environment, **_assigned(before)})
        found = _handed_on(command) if by_script is not None else _engine(command) or _handed_on(command)
        if found is not None:
            return [_started(*found, inner)]
    return []


_CLIENTS = {"vllm": ("bench", "run-batch"), "sglang": ("bench_serving", "bench", "router")}
"""Subcommands and modules of an engine that serve no model."""


def _engine(command: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return which engine a command starts, with the command; None for clients and for anything else."""
    engine = engines.of_command(command)
    if engine is None or _is_client(engine, command):
        return None
    # its server in Python has flags and defaults of its own
    return ("llama-cpp-python" if _module(command).startswith("llama_cpp") else engine), command


def _is_client(engine: str, command: Sequence[str]) -> bool:
    """Say whether a command is of an engine's other programs, by its subcommand or its module."""
    return not {*command[1:2], *_module(command).split(".")}.isdisjoint(_CLIENTS.get(engine, ()))


def _module(command: Sequence[str]) -> str:
    """Return the module that Python is told to run, empty for none."""
    if not engines.program_name(command[0]).startswith("python"):
        return ""
    return next((command[i + 1] for i, word in enumerate(command[:4]) if word == "-m" and i + 1 < len(command)), "")


_PROGRAMS = ("vllm", "llama-server", "sglang", "python3", "python")


def _handed_on(command: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return the engine that an unknown launcher is given to start (`launch.sh exec vllm serve …`), None for none."""
    for index in range(1, len(command)):
        inner = command[index:]
        serves = engines.program_name(inner[0]) == "llama-server" or "serve" in inner[1:2] or "-m" in inner[1:2]
        if engines.program_name(inner[0]) in _PROGRAMS and serves and (found := _engine(inner)):
            return found
    return None


def _started(engine: str, command: Sequence[str], around: Around) -> Launch:
    """Return an engine that is started by its own program, or by a script that only its name tells of."""
    script = engines.interpreted_script(command) if engines.program_name(command[0]) in engines.SHELLS else ""
    script = script or (command[0] if command[0].endswith(".sh") else "")
    if script:
        why = f"{script} cannot be read here: with which flags it starts {engine} is not known"
        return _opaque(engine, why, around)
    return launch_of(engine, _after_program(command), around)


def _opaque(engine: str, why: str, around: Around) -> Launch:
    return replace(launch_of(engine, [], replace(around, unknowns=(*around.unknowns, why))), opaque=True)


def launch_of(engine: str, arguments: Sequence[str], around: Around) -> Launch:
    """Return one start of an engine with everything that is around it."""
    return Launch(
        common_name(engine), around.name or common_name(engine), tuple(arguments), around.environment, around.place,
        around.mounts, around.homes, around.directory, around.contained, around.guards, around.unknowns,
        unsure=around.unsure, exclusive=around.exclusive,
    )  # fmt: skip


def _assigned(words: Iterable[str]) -> dict[str, str]:
    """Return the variables that stand before a program."""
    found: dict[str, str] = {}
    for word in words:
        match = _ASSIGNMENT.fullmatch(word)
        if match:
            found[match[1]] = match[2]
        elif not word.startswith("-") and found:
            break
    return found


_SERVES = ("serve", "server", "start", "launch")


def _after_program(command: Sequence[str]) -> list[str]:
    """Return what follows the program, its interpreter, its module and `serve`."""
    words = list(command)
    first = engines.program_name(words.pop(0))
    if re.fullmatch(r"(?:python|pypy)[0-9.]*", first):
        words = _after_python(words)
    return words[1:] if words and words[0] in _SERVES else words


def _first_plain(words: Sequence[str]) -> int:
    return next((index for index, word in enumerate(words) if not word.startswith("-")), 0)


def _after_python(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-m":
            return words[1:]
        if option.startswith("-m"):
            return words
        if option in ("-X", "-W"):
            del words[:1]
    return words[1:]


# --- scripts ----------------------------------------------------------------------------------------


def _handed(words: Sequence[str]) -> Script | None:
    """Return the script that a command line gives to a shell, a terminal, a user or a machine; None for none.

    Not of a container: the shell then is in there, with its own files.
    """
    program = next((word for word in words if not _ASSIGNMENT.fullmatch(word)), "")
    wrapped = engines.is_wrapper(engines.program_name(program))
    for index, word in enumerate(words):
        name = engines.program_name(word)
        if name in engines.SHELLS:
            return handing.script(words, index)
        if (wrapped or word is program) and (found := handing.script(words, index)):
            return found
        if name in (*containers.CLIENTS, "docker-compose", "podman-compose") or not _may_stand_before(word):
            return None
    return None


class _ElsewhereError(CannotTellError):
    """An engine that starts on another machine."""


def _of_handed(host: Host, handed: Script, around: Around) -> list[Launch]:
    """Return what a script starts that a program is handed; raises CannotTellError for one of another machine."""
    inner = replace(
        around.deeper(), environment={**around.environment, **_assigned(handed.before)},
        arguments=handed.arguments[1:], contained=around.contained or bool(handed.machine),
        mounts=() if handed.machine else around.mounts,
    )  # fmt: skip
    found = from_script(host, handed.text, inner)
    if found and handed.machine:
        where = f"{around.place}: " if around.place else ""
        raise _ElsewhereError(f"{where}{found[0].engine} starts on {handed.machine}, another machine: ask there")
    return found


def _may_stand_before(word: str) -> bool:
    return word.startswith("-") or _ASSIGNMENT.fullmatch(word) is not None or bool(re.fullmatch(r"[\w./-]+", word))


def from_script(host: Host, text: str, around: Around) -> list[Launch]:
    """Return the engines that a shell script starts; raises CannotTellError for one that is not understood."""
    from plimsoll.box.fit import shell, tables  # noqa: PLC0415  # a tenth of the run time, and few starts are scripts

    file = around.place.file if around.place else around.name or "the script"

    def source(path: str) -> str | None:
        outside = _outside(_absolute(path, around.directory), around)
        return None if outside is None else host.text_or_none(outside)

    home = {"HOME": around.homes[0]} if around.homes else {}
    setting = shell.Setting(file, around.directory, around.arguments, tables.decides, not around.contained)
    try:
        found = shell.commands(text, {**home, **around.environment}, source, setting)
    except shell.ShellError as error:
        where = Place(file, error.line)
        raise CannotTellError(f"{where}: {error}: this is not understood as a shell script") from error
    started: list[Launch] = []
    elsewhere: list[_ElsewhereError] = []
    slots = Slots()
    latest: list[Launch] = []
    for number, command in enumerate(found):
        if latest and command.words[0].startswith("--"):
            note = f"{Place(file, command.line)}: {shell.torn_off(text, command.line)}"
            started[-1] = replace(started[-1], notes=(*started[-1].notes, note))
        latest = []
        try:
            latest = _of_script(host, command, file, around)
        except _ElsewhereError as error:
            elsewhere.append(error)
        started += [_in_branch(each, number, slots.place(command.alternatives), around) for each in latest]
    if elsewhere and not started:
        raise elsewhere[0]
    if elsewhere:
        started[0] = replace(started[0], notes=(*started[0].notes, *map(str, elsewhere)))
    # `vllm --version` and the like, which a script may ask before it starts anything
    telling = [each for each in started if each.arguments or each.opaque or each.engine == "ollama"]
    return telling or started


def _in_branch(launch: Launch, number: int, place: str, around: Around) -> Launch:
    """Return a launch that replaces those of other branches; what a command makes replace each other stays its own."""
    if launch.exclusive and launch.exclusive != around.exclusive:
        return replace(launch, exclusive=f"command {number} of {around.place or around.name}: {launch.exclusive}")
    if launch.exclusive or not place:
        return launch
    return replace(launch, exclusive=f"{around.name} {around.place or ''} condition {place}".strip())


def _of_script(host: Host, command: "shell.Command", file: str, around: Around) -> list[Launch]:
    """Return what one command of a script starts."""
    where = Place(file, command.line)
    inner = replace(
        around.deeper(), place=where, environment={**around.environment, **command.environment},
        directory=command.directory, arguments=(), unknowns=(*around.unknowns, *_missing(command, where)),
        unsure={**around.unsure, **{name: Place(file, line) for name, line in command.unsure.items()}},
    )  # fmt: skip
    found = launches(host, command.words, inner)
    if not command.conditional:
        return found
    note = f"{where}: starts under a condition only, taken to be met"
    return [replace(each, notes=(*each.notes, note)) for each in found]


def _missing(command: "shell.Command", where: Place) -> list[str]:
    return [
        f"{where}: {path} is read in before, and is not there: what it sets is not known" for path in command.missing
    ]


def _own_script(host: Host, command: Sequence[str], around: Around) -> list[Launch] | None:
    """Return what a script on this machine starts, where the command runs one; None for anything else."""
    path, text, arguments = _script_of(host, command, around)
    if text is None:
        return None
    if path in around.scripts:
        return []
    scripts = (*around.scripts, path)
    inner = replace(around.deeper(), place=Place(path), arguments=arguments, scripts=scripts)
    return from_script(host, text, inner)


def _script_of(host: Host, command: Sequence[str], around: Around) -> tuple[str, str | None, tuple[str, ...]]:
    """Return where the script lies that a command runs, its text and its arguments; no text where there is none."""
    words = list(command)
    if engines.program_name(words[0]) in engines.SHELLS:
        words = words[1 + _first_plain(words[1:]) :] if len(words) > 1 else []
    if not words or ("/" not in words[0] and words[0] == command[0]):
        return "", None, ()
    path = _outside(_absolute(words[0], around.directory), around)
    if path is None:
        return "", None, ()
    return path, script_text(host, path, by_shell=words[0] != command[0]), tuple(words[1:])


def _outside(path: str, around: Around) -> str | None:
    """Return where a file lies on this machine; None for one that is in a container alone."""
    return docker.outside(path, around.mounts) if around.contained else path


def script_text(host: Host, path: str, *, by_shell: bool = False) -> str | None:
    """Return the text of a shell script, None for any other file; `by_shell`: a shell is told to take it for one."""
    # a FIFO of that name would never end
    if not os.path.isfile(host.path(path)):
        return None
    try:
        with open(host.path(path), "rb") as file:
            content = file.read(MAX_SCRIPT_BYTES)
    except OSError:
        return None
    first = content.split(b"\n", 1)[0]
    is_script = first.startswith(b"#!") and re.search(rb"\b(ba|da|z|a|k)?sh\b", first) is not None
    if not is_script and not ((by_shell or path.endswith(".sh")) and b"\0" not in content):
        return None
    return content.decode("utf-8", "replace")


def _absolute(path: str, directory: str) -> str:
    return posixpath.normpath(posixpath.join(directory, path))


# --- containers -------------------------------------------------------------------------------------


def _client(host: Host, arguments: Sequence[str], around: Around, before: Mapping[str, str]) -> list[Launch]:
    """Return the engines that `docker run`, `exec` or `compose` starts."""
    first = next((word for word in arguments if not word.startswith("-")), "")
    if first == "compose":
        from plimsoll.box.fit import compose  # noqa: PLC0415  # half of what is here, and few commands need it

        environment = {**around.environment, **before}
        return compose.from_arguments(host, arguments, replace(around.deeper(), environment=environment))
    options, rest = docker.run_parts(arguments)
    runs = bool(rest)
    if not runs:
        options, rest = docker.exec_parts(arguments)
    environment, unknowns = docker.environment(host, options, around.directory, around.environment)
    inner = replace(
        around, environment=environment, mounts=mounts_of(options, around), contained=True,
        guards=docker.guards(arguments, options, around.guards) if runs else around.guards,
        directory=options.get("workdir", options.get("w", ["/"]))[-1],
        name=around.name or options.get("name", [""])[-1], unknowns=(*around.unknowns, *unknowns),
    )  # fmt: skip
    if not runs:
        return launches(host, rest[1:], inner.deeper())
    entrypoint = options["entrypoint"][-1:] if "entrypoint" in options else None
    return in_container(host, rest[0], entrypoint, rest[1:], inner)


def in_container(
    host: Host, image: str, entrypoint: Sequence[str] | None, command: Sequence[str], around: Around
) -> list[Launch]:
    """Return the engines that an image starts with an entry point (None: the image's own) and a command."""
    inner = around.deeper()
    if images.is_swap(image) and entrypoint is None:
        return _swap_image(host, image, command, inner)
    words = [*(entrypoint or ()), *command]
    started = launches(host, words, inner) if words else []
    engine = images.engine(image)
    if started or engine is None:
        return started
    if entrypoint is None:
        by_itself = _by_entry_point(engine, image, command, inner)
        if by_itself is not None:
            return by_itself
    if not words or not words[0]:
        taken = "is not known" if entrypoint is None else "is taken away"
        why = f"the entry point of {image} {taken} and no command is given: what it starts is not known"
    elif images.are_harmless(_programs(host, words, inner)):
        return []
    else:
        shown = " ".join(words)[:MAX_SHOWN]
        why = f"{shown} (in {image}) starts no model server that can be seen from here: what runs in it is not known"
    return [_opaque(engine, why, inner)]


def _by_entry_point(engine: str, image: str, command: Sequence[str], around: Around) -> list[Launch] | None:
    """Return what the entry point of an engine's image starts with a command; None where it is not known to start."""
    arguments = images.without_tool(image, command)
    if arguments is None:
        return []
    first = arguments[0] if arguments else ""
    if first in _SERVES:
        return [launch_of(engine, arguments[1:], around)]
    is_model = not images.is_program(first) and images.serves_itself(image)
    return [launch_of(engine, arguments, around)] if first.startswith("-") or is_model else None


def _programs(host: Host, words: Sequence[str], around: Around) -> list[str]:
    """Return the programs that a command runs, those of the script in it where that can be read."""
    from plimsoll.box.fit import shell  # noqa: PLC0415  # as above

    handed = _handed(words)
    text = handed.text if handed is not None else _script_of(host, words, around)[1]
    if text is None:
        return [command[0] for command in engines.commands(words)]
    try:
        return [command.words[0] for command in shell.commands(text, {})]
    except shell.ShellError:
        return list(words[:1])


def mounts_of(options: Mapping[str, list[str]], around: Around) -> tuple[Mount, ...]:
    """Return the directories that `docker run` mounts."""
    found = []
    for each in (*options.get("v", []), *options.get("volume", [])):
        found += mount(each, around.directory, around.homes)
    for each in options.get("mount", []):
        keys = dict(part.partition("=")[::2] for part in each.split(","))
        outside, inside = keys.get("source") or keys.get("src"), keys.get("target") or keys.get("dst")
        if keys.get("type") == "bind" and outside and inside:
            found.append(Mount(outside, inside))
    return tuple(found)


def mount(written: str, directory: str, homes: Sequence[str]) -> list[Mount]:
    """Return the mount that `OUTSIDE:INSIDE[:ro]` stands for; none for a volume that docker keeps itself."""
    parts = written.split(":")
    if len(parts) < 2 or not parts[1].startswith("/"):  # noqa: PLR2004  # both sides
        return []
    outside = parts[0]
    if outside.startswith("~") and homes:
        outside = homes[0] + outside[1:]
    if not outside.startswith(("/", "./", "../", "$")) and outside not in (".", ".."):
        return []
    outside = re.sub(r"\$\(pwd\)|\$\{?PWD\}?", directory, outside)
    return [Mount(_absolute(outside, directory), parts[1])]


# --- routers ----------------------------------------------------------------------------------------


def _swap(host: Host, command: Sequence[str], around: Around) -> list[Launch]:
    from plimsoll.box.fit import routers  # noqa: PLC0415  # few commands need it

    path = _absolute(images.configuration(command) or "config.yaml", around.directory)
    return routers.from_swap(host, docker.outside(path, around.mounts) or path, around.deeper())


def _swap_image(host: Host, image: str, command: Sequence[str], around: Around) -> list[Launch]:
    """Return the models of the configuration that the image of llama-swap is given by a mount."""
    from plimsoll.box.fit import routers  # noqa: PLC0415  # as above

    given = images.configuration(command)
    inside = [_absolute(given, images.SWAP_DIRECTORY)] if given else list(images.SWAP_CONFIGURATIONS)
    for path in inside:
        outside = docker.outside(path, around.mounts)
        if outside is not None and host.exists(outside):
            return routers.from_swap(host, outside, around)
    why = f"the configuration of {image} ({' or '.join(inside)}) is not mounted from here: its models are not known"
    return [_opaque("llama-swap", why, around)]


def homes(host: Host) -> tuple[str, ...]:
    """Return the home directories of this machine, the caller's own first."""
    own = os.environ.get("HOME", "/root")
    others = [f"/home/{name}" for name in host.names("/home")]
    return tuple(dict.fromkeys((own, *others, "/root")))
