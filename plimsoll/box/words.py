"""Words as systemd splits a line into them; in a module of its own, because all who know engines need no more."""

import re

_C_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_ESCAPE = re.compile(r"\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})|(?P<any>.))", re.DOTALL)
_WORD_PART = re.compile(
    r"""'(?P<single>(?:\\.|[^'\\])*)(?:'|\\?\Z)
    |"(?P<double>(?:\\.|[^"\\])*)(?:"|\\?\Z)
    |(?P<plain>(?:\\.|[^\ \t\n\r'"\\])+)
    |(?P<blank>[\ \t\n\r]+|\\\Z)""",
    re.DOTALL | re.VERBOSE,
)


def split_words(text: str, *, c_escapes: bool) -> list[str]:
    r"""Return the words of `text` as systemd splits them: quotes anywhere, and `\` counts inside both kinds.

    `c_escapes` is how ExecStart is read (`\x41`, `\t`; an unknown escape stays as it is); without it, as in the
    value of a variable, `\` is taken away and what follows stays.
    """
    words: list[list[str]] = []
    going_on = False
    for part in _WORD_PART.finditer(text):
        if part["blank"] is not None:
            going_on = False
            continue
        raw = next(t for t in (part["single"], part["double"], part["plain"]) if t is not None)
        piece = _ESCAPE.sub(_c_escape if c_escapes else _bare, raw)
        if not going_on:
            words.append([])
        words[-1].append(piece)
        going_on = True
    return ["".join(pieces) for pieces in words]


def _bare(match: re.Match[str]) -> str:
    return match[0][1:]


def _c_escape(match: re.Match[str]) -> str:
    if match["any"] is None:
        return chr(int(match["hex"], 16) if match["hex"] else int(match["octal"], 8))
    return _C_ESCAPES.get(match["any"], match["any"] if match["any"] in "\"'\\" else match[0])
