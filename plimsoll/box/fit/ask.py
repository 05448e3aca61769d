"""From what a person asks to estimates: which source, which engines, one estimate each."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from plimsoll.box import engines
from plimsoll.box.errors import UsageError
from plimsoll.box.fit import flags, starting
from plimsoll.box.fit.context import Context
from plimsoll.box.fit.model import CannotTellError, Estimate, Launch, Place
from plimsoll.box.fit.starting import MAX_SHOWN, Around
from plimsoll.box.host import Host
from plimsoll.box.observing import regular_text

if TYPE_CHECKING:
    from plimsoll.box.fit.units import Started

ESTIMATORS: Mapping[str, str] = {
    "vllm": "plimsoll.box.fit.vllm",
    "sglang": "plimsoll.box.fit.sglang",
    "llama.cpp": "plimsoll.box.fit.llama",
    "ollama": "plimsoll.box.fit.ollama",
}
"""The module of each engine; it has a function `estimate`."""


@dataclass(frozen=True)
class Question:
    """Where a command line is to be found; one of these."""

    command: tuple[str, ...] = ()
    compose: tuple[str, ...] = ()
    unit: str = ""
    pid: int | None = None


def launches(host: Host, question: Question) -> list[Launch]:
    """Return the engines that are asked about, at least one. Raises CannotTellError, and UsageError for no question."""
    homes = starting.homes(host)
    around = Around(homes=homes, directory=_here(host))
    if question.compose:
        from plimsoll.box.fit import compose  # noqa: PLC0415  # not every question is about one

        file, *services = question.compose
        found = compose.from_file(host, _absolute(file), services, replace(around, environment=_own_environment(host)))
        return _some(found, file)
    if question.unit or question.pid is not None:
        return _of_units(host, question, around)
    found = _of_command(host, question.command, around)
    file = _file_of(question.command)
    if not found and file and not os.path.exists(host.path(_absolute(file))):
        raise CannotTellError(f"{file[:MAX_SHOWN]}: there is no such file here; give its path on this machine")
    return _some(found, " ".join(question.command)[:MAX_SHOWN])


_FILE = re.compile(r"\S+\.(?:sh|bash|ya?ml|service|container|env|ini|conf|toml|txt)|\S*/\S*")


def _file_of(command: tuple[str, ...]) -> str:
    """Return the file that a command names, alone or for a shell; empty where it names none."""
    by_shell = engines.program_name(command[0]) in engines.SHELLS
    file = next((word for word in command[1:] if not word.startswith("-")), "") if by_shell else command[0]
    return file if _FILE.fullmatch(file) else ""


def _of_units(host: Host, question: Question, around: Around) -> list[Launch]:
    from plimsoll.box.fit import units  # noqa: PLC0415  # as above

    homes = around.homes
    if question.unit:
        return _some(_of_started(host, units.of_name(host, question.unit, homes), around), question.unit)
    started = [units.of_process(host, question.pid or 0)]
    return _some(_of_started(host, started, around), f"process {question.pid}")


def _here(host: Host) -> str:
    return os.getcwd() if not host.root else "/"


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _own_environment(host: Host) -> dict[str, str]:
    return {name: value for name, value in host.environment.items() if name not in ("LC_ALL", "SYSTEMD_PAGER")}


def _some(found: list[Launch], what: str) -> list[Launch]:
    if not found:
        raise CannotTellError(f"{what}: starts no model server that is known here, so there is nothing to add up")
    return found


def _of_started(host: Host, started: list["Started"], around: Around) -> list[Launch]:
    found = []
    for each in started:
        inner = replace(
            around, name=each.name, place=each.place, environment=each.environment, directory=each.directory,
            guards=each.guards, unknowns=each.unknowns, mounts=each.mounts,
            homes=tuple(dict.fromkeys((each.home, *around.homes))),
        )  # fmt: skip
        found += starting.launches(host, each.words, inner)
    return found


# --- a command, or a file that holds one ------------------------------------------------------------


def _of_command(host: Host, command: tuple[str, ...], around: Around) -> list[Launch]:
    if not command:
        raise UsageError("fit: no command; write it after --, or use --compose, --unit or --pid")
    inner = replace(around, environment=_own_environment(host))
    if len(command) > 1:
        return starting.launches(host, command, inner)
    if os.path.isfile(host.path(_absolute(command[0]))):
        return _of_file(host, _absolute(command[0]), inner)
    return starting.from_script(host, command[0], inner)


def _of_file(host: Host, path: str, around: Around) -> list[Launch]:
    """Return what a file starts: a script, a unit, a compose file, a configuration of llama-swap, or presets."""
    try:
        text = regular_text(host, path)
    except (OSError, ValueError) as error:
        raise CannotTellError(f"{path}: {error}") from error
    inner = replace(around, directory=os.path.dirname(path), place=Place(path), scripts=(path,))
    for fits, read in _KINDS:
        if fits(path, text):
            return read(host, path, text, inner)
    found = [] if path.endswith(".env") else starting.from_script(host, text, inner)
    if found or text.startswith("#!"):
        return found
    from plimsoll.box.fit import profile  # noqa: PLC0415  # few files are one

    return profile.from_text(text, inner)


def _unit_file(host: Host, path: str, text: str, around: Around) -> list[Launch]:
    from plimsoll.box.fit import units  # noqa: PLC0415  # as above

    if _has_line(text, "[Container]"):
        words = units.of_quadlet(text, path, around.homes)
        return starting.launches(host, words, replace(around, name=os.path.basename(path)))
    files = [{"path": path, "text": text}]
    return _of_started(host, units.of_files(files, os.path.basename(path), host, around.homes), around)


def _yaml_file(host: Host, path: str, text: str, around: Around) -> list[Launch]:
    from plimsoll.box.fit import compose, routers  # noqa: PLC0415  # as above

    if _has_line(text, "models:") and not _has_line(text, "services:"):
        return routers.from_swap_text(host, text, path, around)
    if not _has_line(text, "services:") and _has_line(text, "model:"):
        return routers.from_recipe_text(host, text, path, around)
    return compose.from_text(host, text, path, (), around)


def _presets_file(_host: Host, path: str, _text: str, around: Around) -> list[Launch]:
    router = Launch(
        "llama.cpp", os.path.basename(path), ("--models-preset", path), around.environment, around.place,
        homes=around.homes, directory=around.directory,
    )  # fmt: skip
    return [router]


def _is_unit(text: str) -> bool:
    """Say whether a text is a unit; a script may hold one that it writes."""
    return _has_line(text, "[Service]") and not text.startswith("#!")


def _has_line(text: str, begins: str) -> bool:
    return any(line.startswith(begins) for line in text.splitlines())


_Reader = Callable[[Host, str, str, Around], list[Launch]]
_KINDS: tuple[tuple[Callable[[str, str], bool], _Reader], ...] = (
    (lambda path, text: path.endswith((".service", ".container")) or _is_unit(text), _unit_file),
    (lambda path, _text: path.endswith((".yml", ".yaml")), _yaml_file),
    (lambda path, _text: path.endswith(".ini"), _presets_file),
)


# --- estimates --------------------------------------------------------------------------------------


def estimates(found: list[Launch], context: Context) -> list[Estimate]:
    """Return one estimate for each engine; a router's models each have their own."""
    return [estimate for launch in found for estimate in _with_models(launch, context)]


def _with_models(launch: Launch, context: Context) -> list[Estimate]:
    """Return the estimate of an engine; of a router those of its models, as many as it loads at a time."""
    presets, directory = _router(launch, "--models-preset"), _router(launch, "--models-dir")
    if not presets and not directory:
        return [one(launch, context)]
    from plimsoll.box.fit import routers  # noqa: PLC0415  # few commands need it

    try:
        models = routers.from_presets(context.host, launch, presets) if presets else []
        models += routers.from_directory(context.host, launch, directory) if directory else []
    except CannotTellError as error:
        return [Estimate(launch, unknowns=(*launch.unknowns, str(error)))]
    most = _models_max(launch)
    each = sorted((one(model, context) for model in models), key=lambda estimate: -estimate.steady.likely)
    return each[:most] if most else each


def _router(launch: Launch, flag: str) -> str:
    """Return what a flag of llama-server as a router is set to, empty where it is not."""
    if launch.engine != "llama.cpp":
        return ""
    words = launch.arguments
    named = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == flag), "")
    variable = flag.removeprefix("--").replace("-", "_").upper()
    return named or launch.environment.get(f"LLAMA_ARG_{variable}", "")


DEFAULT_MODELS_MAX = 4
"""Of llama-server as a router; 0 stands for all."""


def _models_max(launch: Launch) -> int:
    named = _router(launch, "--models-max")
    return int(named) if named.isdigit() else DEFAULT_MODELS_MAX


def one(launch: Launch, context: Context) -> Estimate:
    """Return the estimate of one engine; one that is not known here is all unknown."""
    module = ESTIMATORS.get(launch.engine)
    if launch.opaque:
        return Estimate(launch, unknowns=launch.unknowns)
    if module is None:
        why = f"what the flags of {launch.engine} say about memory is not known here"
        return Estimate(launch, unknowns=(*launch.unknowns, why))
    found = import_module(module).estimate(_with_unresolved(launch), context)
    assert isinstance(found, Estimate)  # noqa: S101  # what every estimator returns, said to mypy
    return found


_ONE_WORD = re.compile(r"(?:[^$`]|\$\w+|\$\{\w+\})+")


def _with_unresolved(launch: Launch) -> Launch:
    """Return a launch with the words of it that are not known: any flag may stand in one."""
    from plimsoll.box.fit import tables  # noqa: PLC0415  # not every question is about an engine that has one

    table = tables.TABLES.get(launch.engine)
    if table is None:
        return launch
    read = flags.read(table, launch.arguments, {}, launch.place)
    words = read.unresolved
    if launch.engine == "vllm" and words[:1] == read.positional[:1] and read.get("--model") is None:
        words = words[1:] if words and _ONE_WORD.fullmatch(words[0]) else words
    unknowns = (*launch.unknowns, *(_unresolved(launch, word) for word in words))
    return replace(launch, unknowns=unknowns, notes=(*launch.notes, *read.notes))


def _unresolved(launch: Launch, word: str) -> str:
    at = next((f" (a condition sets it: {place})" for name, place in launch.unsure.items() if name in word), "")
    where = f"{launch.place}: " if launch.place else ""
    return f"{where}what {word[:MAX_SHOWN]} stands for is not known here{at}, and it may hold any flag"
