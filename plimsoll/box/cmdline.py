"""What a unit's command line comes out as: EnvironmentFile, ExecStart with its resets, and systemd's quoting. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from plimsoll.box.model import Place
from plimsoll.box.resolve import Assignment, FileText, ends_in_backslash, ini_list
from plimsoll.box.resolve_units import unit_files_in_order
from plimsoll.box.words import split_words


def shown(arguments: Sequence[str] | None) -> str | None:
    """Return an argument list in the one form that two of them are compared in."""
    return None if arguments is None else json.dumps(list(arguments))


# --- EnvironmentFile --------------------------------------------------------------------------------

_KEY = re.compile(r"[ \t\n\r]*(?:[#;][^\n\r]*|(?P<key>[^\n\r][^=\n\r]*|)(?P<equals>=?))")
_QUOTED = re.compile(r"[ \t]*(?:'(?P<single>[^']*)(?:'|\Z)|\"(?P<double>(?:\\.|[^\"\\])*)(?:\"|\\?\Z))", re.DOTALL)
_PLAIN = re.compile(r"[ \t]*((?:\\.|[^\\\n\r])*)\\?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_environment_file(text: str) -> dict[str, tuple[str, int]]:
    r"""Return the variables of an EnvironmentFile with the line each begins on (the last one wins).

    systemd's dialect, which is not the shell's: quotes count only at the start of a value, a value may go on
    after them (`"a" # b` is `a# b`), there is no `export` and no `$`; `\` joins lines, but not after a comment
    (systemd 254; before that it did). A file with a NUL or with a value that is not UTF-8 sets nothing.
    """
    found = {}
    position = 0
    while match := _KEY.match(text, position):
        position = match.end()
        if match["equals"]:
            start, (value, position) = match.start("key"), _value(text, position)
            found[match["key"].rstrip()] = (value, text.count("\n", 0, start) + 1)
        elif position == len(text):
            break
    if "\0" in text or any("\ufffd" in key + value for key, (value, _line) in found.items()):
        return {}
    return {key: value for key, value in found.items() if _NAME.fullmatch(key)}


def _value(text: str, position: int) -> tuple[str, int]:
    """Return the value that begins at `position`, and where it ends."""
    value = ""
    while match := _QUOTED.match(text, position):
        position = match.end()
        value += match["single"] if match["double"] is None else _in_double_quotes(match["double"])
    plain = next(_PLAIN.finditer(text, position))
    return value + _without_quotes(plain[1]), plain.end()


def _in_double_quotes(text: str) -> str:
    r"""Take `\` away before what a shell needs it for, and a joined line's end with it; elsewhere it stays."""
    return re.sub(r"\\(.)", lambda m: "" if m[1] == "\n" else m[1] if m[1] in '"\\`$' else m[0], text, flags=re.DOTALL)


def _without_quotes(text: str) -> str:
    r"""Take every `\` away, and blanks at the end unless they were escaped."""
    kept, length = "", 0
    for escaped, plain in re.findall(r"\\(.)|([^\\])", text, re.DOTALL):
        kept += plain or ("" if escaped in "\n\r" else escaped)
        if escaped or plain not in " \t":
            length = len(kept)
    return kept[:length]


# --- units ------------------------------------------------------------------------------------------


def environment(files: Sequence[FileText], read: Callable[[str], FileText | None]) -> dict[str, Any]:
    """Return what the variables that a service's ExecStart names would be: `{variables: {name: {value, file, line}}}`.

    `read` returns an EnvironmentFile. Only named variables are taken: such files hold secrets. With `error` if
    a file could not be read.
    """
    command = effective_exec_start(files)
    names = set(_VARIABLE.findall(command.value)) if command else set()
    if not names:
        return {"variables": {}}
    found = dict(_inline_variables(files))
    for path in ini_list(files, "Service", "EnvironmentFile"):
        file = read(path.value.removeprefix("-")) or {}
        if "error" in file:
            return {"variables": {}, "error": f"{file['path']}: {file['error']}"}
        variables = parse_environment_file(file.get("text") or "")
        found |= {n: {"value": v, "file": file["path"], "line": line} for n, (v, line) in variables.items()}
    return {"variables": {name: found[name] for name in sorted(names & found.keys())}}


def _inline_variables(files: Iterable[FileText]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in ini_list(files, "Service", "Environment"):
        for word in split_words(line.value, c_escapes=True):
            name, _, value = word.partition("=")
            yield name, {"value": value, "file": line.place.file, "line": line.place.line}


def effective_exec_start(files: Iterable[FileText]) -> Assignment | None:
    """Return the ExecStart that runs, None for none or for two of them, which systemd refuses for a daemon."""
    lines = ini_list(files, "Service", "ExecStart")
    return lines[0] if len(lines) == 1 else None


def persisted_arguments(unit: Mapping[str, Any]) -> tuple[list[str] | None, Place | None]:
    """Return the arguments that the unit would be started with after a reboot, and the place that decides them.

    An ExecStart that names no variable decides by itself.
    """
    exec_start = effective_exec_start(unit_files_in_order(unit))
    if exec_start is None:
        return None, None
    program, *words = split_words(exec_start.value, c_escapes=True)
    prefix = program[: len(program) - len(program.lstrip(_PREFIXES))]
    variables = {} if ":" in prefix else unit["environment"]["variables"]
    place = exec_start.place
    arguments: list[str] = []
    for word in (w.replace("%%", "%") for w in words["@" in prefix :]):
        arguments.extend([word] if ":" in prefix else _expanded(word, variables))
        for name in set(_VARIABLE.findall(word)) & variables.keys():
            place = Place(variables[name]["file"], variables[name]["line"])
    return arguments, place


_PREFIXES = "-@:+!|"
"""What may stand before a program in ExecStart: `:` leaves variables alone, `@` gives the first argument as name."""
_VARIABLE = re.compile(r"\$\{?(\w+)")


def _expanded(word: str, variables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Expand as systemd does: `$NAME` alone becomes words, `${NAME}` stays one, `$$` is a dollar sign."""
    values = {name: str(variable["value"]) for name, variable in variables.items()}
    if re.match(r"\$[^{$]", word):
        return split_words(values.get(word[1:], ""), c_escapes=False)
    return [re.sub(r"\$(?:(\$)|\{(\w+)\})", lambda m: m[1] or values.get(m[2], ""), word)]


# --- modules ----------------------------------------------------------------------------------------


def module_options(files: Iterable[FileText], kernel_cmdline: str, module: str, option: str) -> list[Assignment]:
    """Return every place that sets `option` of `module`: modprobe.d in its order, then the kernel's command line.

    `-` and `_` are the same in the names of modules and options. The last place wins.
    """
    module = module.replace("-", "_")
    found: list[Assignment] = []
    for file in files:
        for number, line in _modprobe_lines(file.get("text") or ""):
            command, _, rest = line.partition(" ")
            # Not str.split, for which a no-break space is a blank as well.
            name, *words = re.findall(r"[^ \t\r\v\f]+", rest) or [""]
            if (command, name.replace("-", "_")) == ("options", module):
                found.extend(_options(words, option, Place(file["path"], number)))
    booted = (w.partition(".") for w in kernel_cmdline.split())
    words = [rest for name, _, rest in booted if name.replace("-", "_") == module]
    return [*found, *_options(words, option, Place("/proc/cmdline", 1))]


def _modprobe_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the lines with their numbers; `\` at the end joins lines, and a tab is a blank."""
    start, joined = 1, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.replace("\t", " ")
        if ends_in_backslash(line):
            joined.append(line[:-1])
            continue
        yield start, "".join([*joined, line]).strip(" \r")
        start, joined = number + 1, []
    yield start, "".join(joined).strip(" \r")


def _options(words: Iterable[str], option: str, place: Place) -> list[Assignment]:
    split = (word.partition("=") for word in words)
    return [
        Assignment("", option, value.strip('"'), place) for name, _, value in split if name.replace("-", "_") == option
    ]
