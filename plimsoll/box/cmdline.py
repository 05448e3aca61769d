"""What a unit's command line comes out as: EnvironmentFile, ExecStart with its resets, and systemd's quoting. Pure."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plimsoll.box.model import Place
from plimsoll.box.resolve import Assignment, FileText, parse_ini, unit_files_in_order


def shown(arguments: Sequence[str] | None) -> str | None:
    """Return an argument list in the one form that two of them are compared in."""
    return None if arguments is None else json.dumps(list(arguments))


def parse_environment_file(text: str) -> dict[str, tuple[str, int]]:
    """Return the variables of an EnvironmentFile with the line each is on (the last one wins).

    Quotes as in a shell, no expansion of `$`; a value that cannot be read is left as it stands.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*([A-Za-z_]\w*)=(.*)$", line)
        if match:
            found[match[1]] = (_unquoted(match[2].strip()), number)
    return found


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value, comments=False))
    except ValueError:
        return value


def effective_exec_start(files: Iterable[FileText]) -> Assignment | None:
    """Return the ExecStart that runs: an empty one clears those before it."""
    current = None
    for file in files:
        for line in parse_ini(file):
            if (line.section, line.key) == ("Service", "ExecStart"):
                current = line if line.value else None
    return current


def persisted_arguments(
    unit: Mapping[str, Any], environment_path: str, environment_text: str | None
) -> tuple[list[str] | None, Place | None]:
    """Return the arguments that the unit would be started with after a reboot, and the place that decides them.

    A drop-in that replaces ExecStart without naming the variable decides by itself.
    """
    exec_start = effective_exec_start(unit_files_in_order(unit, after_reboot=True))
    if exec_start is None:
        return None, None
    words = _split(exec_start.value)
    variables = parse_environment_file(environment_text or "")
    place = exec_start.place
    arguments: list[str] = []
    for word in words[1:]:
        name = re.fullmatch(r"\$(\w+)", word)
        if name is None:
            arguments.append(word)
            continue
        value, line = variables.get(name[1], ("", 0))
        arguments.extend(_split(value))
        place = Place(environment_path, line) if environment_text is not None else place
    return arguments, place


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def module_options(files: Iterable[FileText], module: str, option: str) -> list[Assignment]:
    """Return every line of modprobe.d files that sets `option` of `module`, in the order in which they are read."""
    found: list[Assignment] = []
    for file in files:
        for number, line in enumerate(file.get("text", "").splitlines(), 1):
            words = line.split()
            if words[:2] != ["options", module]:
                continue
            values = [w.partition("=")[2] for w in words[2:] if w.partition("=")[0] == option]
            found.extend(Assignment("", option, value, Place(file["path"], number)) for value in values)
    return found
