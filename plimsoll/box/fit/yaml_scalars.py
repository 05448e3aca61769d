"""The texts of YAML: comments, folding, escapes, and where a form in brackets or quotes ends. Pure."""

import re
from collections.abc import Iterator

from plimsoll.box.fit.yaml_nodes import YamlError


def uncommented(text: str) -> str:
    """Return a text without the comment at its end; a `#` counts after a blank and outside of quotes."""
    quote = ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (not index or text[index - 1] in " [{,:"):
            quote = character
        elif character == "#" and (not index or text[index - 1] in " \t"):
            return text[:index].rstrip(" \t")
    return text


def plain_text(rest: str, line: int) -> str:
    """Return a text without quotes up to a comment; raises YamlError for one that would be something else."""
    end = re.search(r"\s#", rest)
    text = rest[: end.start()].rstrip(" ") if end else rest
    if re.search(r":(?=\s|$)", text):
        raise YamlError(line, f"{text[:40]!r} has a colon that would begin a value: put it in quotes")
    if "\t" in text:
        raise YamlError(line, f"{text[:40]!r} has a tab: put it in quotes")
    return text


def block_text(lines: list[str], style: str, chomping: str) -> str:
    """Return the text of a block: as it is (`|`) or folded (`>`), with what `-` or `+` make of its end."""
    trailing = 0
    while lines and not lines[-1].strip(" "):
        lines = lines[:-1]
        trailing += 1
    text = "\n".join(lines) if style == "|" else _folded(lines)
    if not lines:
        return "\n" * trailing if chomping == "+" else ""
    return text + {"-": "", "": "\n", "+": "\n" * (trailing + 1)}[chomping]


def _folded(lines: list[str]) -> str:
    """Join lines by blanks: an empty line ends one, and what is indented further stays as it is."""
    empty = next((index for index, line in enumerate(lines) if line), len(lines))
    found, previous = "\n" * empty, ""
    for index, line in enumerate(lines[empty:]):
        apart = line[:1] in (" ", "\t") or previous[:1] in (" ", "\t")
        if not index:
            found += line
        elif not line:
            found += "\n"
        elif not previous:
            found += (
                "\n" if line[:1] in (" ", "\t") or _last_text(lines, empty + index)[:1] in (" ", "\t") else ""
            ) + line
        else:
            found += ("\n" if apart else " ") + line
        previous = line
    return found


def _last_text(lines: list[str], index: int) -> str:
    return next((each for each in reversed(lines[:index]) if each), "")


_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", "\n": "",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.|\n))", re.DOTALL)


def unquoted(written: str, line: int) -> str:
    """Return what is in quotes; the end of a line is a blank, an empty line the end of one."""
    inner = written[1:-1]
    folded = re.sub(r"[ \t]*\n((?:[ \t]*\n)*)[ \t]*", lambda m: "\n" * m[1].count("\n") or " ", inner)
    if written[0] == "'":
        return folded.replace("''", "'")
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*", r"\1", inner)
    folded = re.sub(r"[ \t]*\n((?:[ \t]*\n)*)[ \t]*", lambda m: "\n" * m[1].count("\n") or " ", joined)

    def escaped(match: re.Match[str]) -> str:
        number = match[1] or match[2] or match[3]
        if number:
            return chr(int(number, 16)) if int(number, 16) < 0x110000 else "\ufffd"  # noqa: PLR2004  # Unicode's end
        if match[4] not in _ESCAPES:
            raise YamlError(line, f"\\{match[4]} in quotes is not understood")
        return _ESCAPES[match[4]]

    return _ESCAPE.sub(escaped, folded)


def flow_end(text: str, line: int) -> int | None:
    """Return where the form at the beginning of `text` ends, None where it goes on."""
    depth = 0
    for start, end in parts_of(text):
        part = text[start]
        if part in "[{":
            depth += 1
        elif part in "]}":
            depth -= 1
        if end < 0:
            return None
        if depth <= 0:
            if depth < 0:
                raise YamlError(line, "a bracket is closed that was not opened")
            return end
    return None


def parts_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of quoted texts (an end of -1: not closed), and of every other character."""
    position = 0
    while position < len(text):
        character = text[position]
        begins = not position or text[position - 1] in " [{,:\n"
        if character in "'\"" and begins:
            pattern = r"'(?:''|[^'])*'" if character == "'" else r'"(?:\\.|[^"\\])*"'
            match = re.compile(pattern, re.DOTALL).match(text, position)
            yield position, match.end() if match else -1
            if match is None:
                return
            position = match.end()
        else:
            yield position, position + 1
            position += 1
