"""Routers, which start one of several models when it is asked for: llama-swap, and llama-server with presets."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from plimsoll.box.fit import compose, presets, starting, swap_sets
from plimsoll.box.fit import yaml_subset as yaml
from plimsoll.box.fit.model import CannotTellError, Launch, Place
from plimsoll.box.fit.starting import Around
from plimsoll.box.host import Host

MAX_MODELS = 500
MAX_MACRO_DEPTH = 10
PORT = "5800"
"""What llama-swap fills in first for ${PORT}; which one it is takes no memory."""


def from_swap(host: Host, path: str, around: Around) -> list[Launch]:
    """Return the models of a configuration of llama-swap; raises CannotTellError."""
    text = host.text_or_none(path)
    if text is None:
        raise CannotTellError(f"{path}: cannot be read: which models it starts is not known")
    return from_swap_text(host, text, path, around)


def from_swap_text(host: Host, text: str, path: str, around: Around) -> list[Launch]:
    """Return the models of the text of such a configuration; raises CannotTellError."""
    document = compose.document(text, path)
    models = document.items.get("models")
    if not isinstance(models, yaml.Mapping):
        raise CannotTellError(f"{path}: has no models, so it starts nothing")
    shared = _macros(document)
    shares = swap_sets.shares(document, path)
    found: list[Launch] = []
    for name, model in list(models.items.items())[:MAX_MODELS]:
        if isinstance(model, yaml.Mapping):
            share = shares.get(name, swap_sets.Share())
            started = _model(host, path, name, model, around, shared)
            found += [replace(each, exclusive=share.exclusive, mixes=share.mixes) for each in started]
    return found


def _macros(node: yaml.Mapping) -> dict[str, str]:
    macros = node.items.get("macros")
    if not isinstance(macros, yaml.Mapping):
        return {}
    return {name: each.text for name, each in macros.items.items() if isinstance(each, yaml.Scalar)}


def _model(
    host: Host, path: str, name: str, model: yaml.Mapping, around: Around, shared: Mapping[str, str]
) -> list[Launch]:
    command = model.items.get("cmd")
    if not isinstance(command, yaml.Scalar):
        return []
    macros = {"PORT": PORT, "MODEL_ID": name, **shared, **_macros(model), **_variables(around)}
    place = Place(path, command.line)
    # before macros are filled in: they may hold a # that begins no comment, and a comment may name what is not set
    text = _filled(_uncommented(command.text), macros, place)
    given = model.items.get("env")
    pairs = (
        [each.text for each in given.items if isinstance(each, yaml.Scalar)] if isinstance(given, yaml.Sequence) else []
    )
    environment = dict(_filled(each, macros, place).partition("=")[::2] for each in pairs)
    inner = replace(around, name=name, place=place, environment={**around.environment, **environment})
    started = starting.from_script(host, _one_command(_uncommented(text)), inner)
    return [replace(each, name=name, place=place) for each in started]


def _one_command(text: str) -> str:
    """Return a command over several lines as one: llama-swap needs no backslash for that."""
    return " ".join(line.rstrip().removesuffix("\\") for line in text.splitlines())


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


_MACRO = re.compile(r"\$\{([A-Za-z0-9_-]+|env\.[A-Za-z_]\w*)\}")


def _variables(around: Around) -> dict[str, str]:
    """Return the environment of llama-swap as macros: `${env.NAME}`."""
    home = {"HOME": around.homes[0]} if around.homes and not around.contained else {}
    return {f"env.{name}": value for name, value in {**home, **around.environment}.items()}


def _filled(text: str, macros: Mapping[str, str], place: Place) -> str:
    """Return a text with its `${macros}` filled in; raises CannotTellError for a cycle, or a variable without value."""
    for _ in range(MAX_MACRO_DEPTH):
        filled = _MACRO.sub(lambda match: macros.get(match[1], match[0]), text)
        if filled == text:
            break
        text = filled
    else:
        raise CannotTellError(f"{place}: macros that name each other")
    missing = next((match[1] for match in _MACRO.finditer(text) if match[1].startswith("env.")), "")
    if missing:
        raise CannotTellError(f"{place}: ${{{missing}}} is not set here, and llama-swap refuses what is not set")
    return text


# --- recipes ----------------------------------------------------------------------------------------

_RENAMED = {
    "tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size",
    "data_parallel": "data-parallel-size",
}  # fmt: skip
_RUNTIMES = {
    "vllm": "vllm serve",
    "sglang": "python3 -m sglang.launch_server --model-path",
    "llama-cpp": "llama-server -hf",
}


def from_recipe_text(host: Host, text: str, path: str, around: Around) -> list[Launch]:
    """Return what a recipe starts: a model, defaults, and a command with `{name}` for each; raises CannotTellError."""
    document = compose.document(text, path)
    model = _text(document, "model")
    if not model:
        raise CannotTellError(f"{path}: has neither services, models nor a model, so it starts nothing")
    node = document.items.get("defaults")
    defaults = {name: each.text for name, each in (node.items.items() if isinstance(node, yaml.Mapping) else ())
                if isinstance(each, yaml.Scalar)}  # fmt: skip
    command = document.items.get("command")
    place = Place(path, command.line if command else 0)
    given = document.items.get("env")
    environment = {name: each.text for name, each in (given.items.items() if isinstance(given, yaml.Mapping) else ())
                   if isinstance(each, yaml.Scalar)}  # fmt: skip
    inner = replace(around, name=model, place=place, environment={**around.environment, **environment})
    if isinstance(command, yaml.Scalar) and not command.is_null:
        values = {"model": model, **defaults}
        filled = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), command.text)
        return starting.from_script(host, filled, inner)
    runtime = _text(document, "runtime")
    program = _RUNTIMES.get(runtime) or _RUNTIMES.get(runtime.partition("-")[0])
    if program is None:
        raise CannotTellError(f"{path}: names no command, and a runtime that is not known here")
    flags = [word for name, value in defaults.items() for word in _as_flag(name, value)]
    return starting.launches(host, [*program.split(), model, *flags], inner)


def _text(node: yaml.Mapping, key: str) -> str:
    value = node.items.get(key)
    return value.text if isinstance(value, yaml.Scalar) and not value.is_null else ""


def _as_flag(name: str, value: str) -> list[str]:
    flag = f"--{_RENAMED.get(name, name.replace('_', '-'))}"
    if value.lower() in ("true", "false"):
        return [flag] if value.lower() == "true" else []
    return [flag, value]


# --- llama-server with presets ----------------------------------------------------------------------


def from_presets(host: Host, launch: Launch, path: str) -> list[Launch]:
    """Return one launch for every model of a file of presets; raises CannotTellError."""
    from plimsoll.box.fit.checkpoint import outside  # noqa: PLC0415  # together they would import each other

    real = outside(host, launch, path)
    if not os.path.isfile(real):
        raise CannotTellError(f"{path}: is not there: which models it offers is not known")
    try:
        with open(real, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError as error:
        raise CannotTellError(f"{path}: {error.strerror or error}: which models it offers is not known") from error
    return _presets(presets.sections(text, path), launch, path)


def _presets(sections: Mapping[str, presets.Section], launch: Launch, path: str) -> list[Launch]:
    """Return one launch for every section that is a model; raises CannotTellError for none."""
    own = presets.for_each_model(launch.arguments)
    shared = sections.get(presets.SHARED, presets.Section(0))
    found: list[Launch] = []
    notes: tuple[str, ...] = ()
    for name, section in sections.items():
        options = {**shared.options, **section.options}
        place = Place(path, section.line)
        if name == presets.DEFAULT and options.keys().isdisjoint(presets.MODELS):
            notes = (f"{place}: this is for a model called {name}, and names none: it holds for no other model",)
        elif name != presets.SHARED:
            refused = (*launch.unknowns, *shared.refused, *section.refused)
            words = (*own, *presets.beneath(own, options))
            found.append(replace(launch, name=name, arguments=words, place=place, unknowns=refused))
    if not found:
        raise CannotTellError(f"{path}: names no model in [brackets]")
    return [replace(each, notes=(*each.notes, *notes)) for each in found]


def from_directory(host: Host, launch: Launch, path: str) -> list[Launch]:
    """Return one launch for every GGUF model in a directory of a router; raises CannotTellError."""
    from plimsoll.box.fit.checkpoint import ggufs, outside  # noqa: PLC0415  # as above

    found = ggufs(outside(host, launch, path))
    if not found:
        raise CannotTellError(f"{path}: no GGUF model in it: which models it offers is not known")
    own = presets.for_each_model(launch.arguments)
    return [replace(launch, name=name, arguments=(*own, "-m", f"{path}/{name}")) for name in found]
