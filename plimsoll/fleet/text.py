"""What a host said, made fit to be shown: by itself quick to load, for who needs no table."""

from __future__ import annotations

import json
import re
import shlex

_LONGEST = 2000
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def printable(value: object, limit: int = _LONGEST) -> str:
    r"""Return text on one line that any terminal, file or page can take, cut after `limit` characters of the value.

    Control and format characters (C0, C1, DEL, bidirectional controls, line separators), lone surrogates and
    what Unicode has not assigned become escapes such as \x1b.
    """
    text = str(value)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} more characters)"


def readable(value: object, limit: int = _LONGEST) -> str:
    """Return a control's value for a person: a command line as it is typed, a hash by its first digits."""
    if value is None:
        return "none"
    text = str(value)
    return printable(_SHA256.sub(r"\1…", _command_line(text) if len(text) <= limit else text), limit) or "nothing set"


def _command_line(text: str) -> str:
    if not text.startswith('["'):
        return text
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):  # a host may say anything, deeply nested lists included
        return text
    return shlex.join(words) if all(isinstance(word, str) for word in words) else text
