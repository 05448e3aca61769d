"""Files that only set variables for a start that is elsewhere: recipes, `.env` files, profiles of a benchmark. Pure.

No command is in them, so that they are never a yes; but a budget in them that no box has is found all the same.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from plimsoll.box.fit import shell
from plimsoll.box.fit.architecture import words as set_of
from plimsoll.box.fit.model import Launch
from plimsoll.box.fit.starting import Around, launch_of
from plimsoll.box.fit.tables import TABLES

_MODELS = ("MODEL", "MODEL_ID", "MODEL_PATH", "MODEL_NAME", "HF_MODEL", "HF_MODEL_ID")
_DECISIVE = set_of(
    """--gpu-memory-utilization --kv-cache-memory-bytes --max-model-len --mem-fraction-static --hicache-size
    --context-length --ctx-size"""
)
"""Without one of these a file of variables says nothing about memory."""
_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)$", re.MULTILINE)


def from_text(text: str, around: Around) -> list[Launch]:
    """Return the engine whose flags a file of variables sets; none for a file that sets none that are known."""
    variables = _variables(text, around)
    engine, words = max(((each, _words(variables, each)) for each in TABLES), key=lambda found: len(found[1]))
    if _DECISIVE.isdisjoint(words):
        return []
    model = next((variables[name][0] for name in _MODELS if variables.get(name)), "")
    named = ["--model-path", model] if engine == "sglang" else ["-m", model] if engine == "llama.cpp" else [model]
    environment = {name: " ".join(values) for name, values in variables.items() if name.isupper()}
    why = f"{around.place}: sets flags and holds no command: what else the start says is not known"
    found = launch_of(engine, [*(named if model else ()), *words], around)
    return [replace(found, environment=environment, unknowns=(*around.unknowns, why))]


def _variables(text: str, around: Around) -> dict[str, tuple[str, ...]]:
    home = {"HOME": around.homes[0]} if around.homes else {}
    try:
        return shell.variables(text, home)
    except shell.ShellError:
        return {name: (value.strip().strip("'\""),) for name, value in _LINE.findall(text)}


def _words(variables: Mapping[str, tuple[str, ...]], engine: str) -> list[str]:
    """Return the flags of an engine that variables hold: lists of flags, and variables that are named after one."""
    names = {flag.name for flag in TABLES[engine].flags if flag.name.startswith("--")}
    found: list[str] = []
    for name, values in variables.items():
        listed = _listed(values)
        if names & {word.partition("=")[0] for word in listed}:
            found += listed
        elif flag := _named_after(name, names):
            found += [flag, " ".join(values)]
    return found


def _listed(values: Iterable[str]) -> list[str]:
    """Return the words of a list, or of a text that holds several flags."""
    words = list(values)
    if len(words) == 1 and words[0].lstrip().startswith("--"):
        try:
            return shlex.split(words[0])
        except ValueError:
            return words[0].split()
    return words


def _named_after(name: str, flags: Iterable[str]) -> str | None:
    """Return the flag that a variable is named after: `gpu_memory_utilization`, `TEXT_GPU_MEMORY_UTILIZATION`."""
    plain = name.lower().replace("_", "-")
    for flag in flags:
        bare = flag.removeprefix("--")
        if "-" in bare and (plain == bare or plain.endswith(f"-{bare}")):
            return flag
    return None
