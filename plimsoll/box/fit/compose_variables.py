"""Variables of compose files: `${NAME:-default}` in texts, and env files in compose's own dialect. Pure."""

import re
from collections.abc import Mapping

MAX_DEPTH = 8
_NAME = re.compile(r"[A-Za-z_]\w*")


def interpolated(text: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """Return a text with `$NAME`, `${NAME:-default}`, `:+`, `:?` and `$$` filled in, as compose does.

    A variable that is not set and has no default stays as it is written: compose would take an empty text, and the
    command would silently be another one. Raises ValueError for what compose refuses.
    """
    if depth > MAX_DEPTH:
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


# --- env files --------------------------------------------------------------------------------------

_KEY = re.compile(r"(?:export[ \t]+)?([\w.\-\[\]]+)[ \t\r\f\v]*(?:([=:])[ \t\r\f\v]*|$)", re.ASCII)
_ESCAPE = re.compile(r'\\([abfnrtv$"\\])')
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "$": "$$"}
_AFTER_QUOTE = re.compile(r"[ \t\r]*(?:#.*)?")


def env_file(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a `.env` or an `env_file`; `known` is where it finds variables that it does not set.

    A name alone is taken from there. Raises ValueError with the line for what compose refuses.
    """
    found: dict[str, str] = {}
    rows = text.removeprefix("\ufeff").split("\n")
    position = 0
    while position < len(rows):
        first, row = position + 1, rows[position].strip()
        position += 1
        if not row or row.startswith("#"):
            continue
        match = _KEY.match(row)
        if match is None:
            raise ValueError(f"line {first}: {row[:40]!r} is no NAME=value: compose refuses the file")
        name, rest = match[1], row[match.end() :]
        if match[2] is None:
            found |= {name: known[name]} if name in known else {}
        elif rest[:1] in ('"', "'"):
            while (end := _quote_end(rest)) is None:
                if position >= len(rows):
                    raise ValueError(f"line {first}: a quote is not closed: compose refuses the file")
                rest, position = f"{rest}\n{rows[position]}", position + 1
            if not _AFTER_QUOTE.fullmatch(rest[end:]):
                raise ValueError(f"line {first}: {rest[end:][:40]!r} after a closed quote")
            inner = rest[1 : end - 1]
            found[name] = inner if rest[0] == "'" else _filled(_unescaped(inner), {**known, **found})
        else:
            found[name] = _filled(rest.partition(" #")[0].rstrip(), {**known, **found})
    return found


def _quote_end(text: str) -> int | None:
    """Return where a quoted value ends that begins a text, None where it goes on."""
    match = re.match(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""", text, re.DOTALL)
    return match.end() if match else None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    try:
        return interpolated(text, variables)
    except ValueError:
        # a password with a $ in it decides nothing; what does is not understood later
        return text
