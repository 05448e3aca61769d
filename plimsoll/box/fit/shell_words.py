"""Shell scripts as words and operators: quotes, brackets, here-documents, comments. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class ShellError(Exception):
    """A script that is none, or is cut off; `line` is where that shows."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Token:
    """A word as it is written, an operator, or the end of a line."""

    kind: str
    """`word`, `op`, or `end`."""
    text: str
    line: int


_OPERATORS = re.compile(r"&&|\|\||;;&?|;&|;|&>>?|[0-9]*(?:>>|>\||>&|<&|<>|>)|[0-9]*<<<|&|\||\(|\)|[0-9]*<")
_HERE = re.compile(r"[0-9]*<<(-?)[ \t]*(['\"]?)([^\s'\"|;&<>]+)\2")
_BLANK = re.compile(r"[ \t\r]+|\\\r?\n")


def tokens(text: str) -> Iterator[Token]:
    """Yield the words and operators of a script; raises ShellError for what is not closed."""
    position, line = 0, 1
    waiting: list[tuple[str, bool]] = []
    while position < len(text):
        if match := _BLANK.match(text, position):
            line += match[0].count("\n")
            position = match.end()
        elif text[position] == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif text[position] == "\n":
            yield Token("end", "\n", line)
            position, line = position + 1, line + 1
            for mark, tabs in waiting:
                position, line = _past_document(text, position, line, mark, tabs)
            waiting = []
        elif match := _HERE.match(text, position):
            waiting.append((match[3], bool(match[1])))
            position = match.end()
        elif match := _OPERATORS.match(text, position):
            yield Token("op", match[0], line)
            position = match.end()
        else:
            end = _word_end(text, position, line)
            yield Token("word", text[position:end], line)
            line += text.count("\n", position, end)
            position = end
    yield Token("end", "\n", line)


def _past_document(text: str, position: int, line: int, mark: str, tabs: bool) -> tuple[int, int]:
    """Return where a here-document's last line ends."""
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        content = text[position:end]
        position, line = end + 1, line + 1
        if (content.lstrip("\t") if tabs else content) == mark:
            return min(position, len(text)), line
    raise ShellError(line, f"the here-document {mark} does not end")


_PLAIN = re.compile(r"[^\s'\"\\$`();&|<>]+")


def _word_end(text: str, position: int, line: int) -> int:
    """Return where the word that begins at `position` ends."""
    while position < len(text) and text[position] not in " \t\r\n;&|<>)":
        character = text[position]
        if match := _PLAIN.match(text, position):
            position = match.end()
            if text[position : position + 1] == "(" and text[position - 1] == "=":
                position = _closing(text, position, line)
        elif character == "\\":
            position += 2
        elif character in "'\"`":
            position = quote_end(text, position, line)
        elif character == "$":
            position = dollar_end(text, position, line)
        elif character == "(":
            return position
        else:
            position += 1
    return min(position, len(text))


def quote_end(text: str, start: int, line: int) -> int:
    """Return the end of the quoted text that begins at `start`."""
    quote, position = text[start], start + 1
    while position < len(text):
        character = text[position]
        if character == quote:
            return position + 1
        if character == "\\" and quote != "'":
            position += 2
        elif character == "$" and quote == '"':
            position = dollar_end(text, position, line)
        else:
            position += 1
    raise ShellError(line, f"a {quote} is not closed")


def dollar_end(text: str, position: int, line: int) -> int:
    """Return the end of what the dollar sign at `position` begins."""
    following = text[position + 1 : position + 2]
    if following in ("{", "("):
        return _closing(text, position + 1, line)
    if following == "'":
        return quote_end(text, position + 1, line)
    match = re.compile(r"\$(?:\w+|[#?@*$!-])?").match(text, position)
    return match.end() if match else position + 1


_CLOSING = {"{": "}", "(": ")"}


def _closing(text: str, position: int, line: int) -> int:
    """Return the end of what the bracket at `position` opens; quotes and here-documents inside are gone past."""
    open_at, depth = text[position], 0
    waiting: list[tuple[str, bool]] = []
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
        elif character in "'\"" and not (character == "'" and open_at == "{"):
            position = quote_end(text, position, line)
        elif open_at == "(" and character == "#" and text[position - 1] in " \t\n":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif open_at == "(" and (match := _HERE.match(text, position)) and text[position - 1] != "<":
            waiting.append((match[3], bool(match[1])))
            position = match.end()
        elif character == "\n" and waiting:
            position += 1
            for mark, tabs in waiting:
                position, _ = _past_document(text, position, line, mark, tabs)
            waiting = []
        else:
            depth += (character == open_at) - (character == _CLOSING[open_at])
            position += 1
            if not depth:
                return position
    raise ShellError(line, f"a {open_at} is not closed")


# --- functions --------------------------------------------------------------------------------------


def definition(listed: Sequence[Token], index: int) -> tuple[str, Sequence[Token], int] | None:
    """Return the name and the body of the function that is defined at `index`, and what follows; None for none."""
    begin = index + (listed[index].text == "function")
    brackets = [token.text for token in listed[begin + 1 : begin + 3]] == ["(", ")"]
    if (begin == index and not brackets) or begin >= len(listed) or listed[begin].kind != "word":
        return None
    start = begin + (3 if brackets else 1)
    while start < len(listed) and listed[start].kind == "end":
        start += 1
    pair = {"{": ("word", "}"), "(": ("op", ")")}.get(listed[start].text if start < len(listed) else "")
    if pair is None:
        return None
    depth = 0
    for position in range(start, len(listed)):
        token = listed[position]
        if token.kind == pair[0]:
            depth += (token.text == listed[start].text) - (token.text == pair[1])
        if not depth:
            return listed[begin].text, [*listed[start + 1 : position], Token("end", "\n", token.line)], position + 1
    raise ShellError(listed[start].line, f"a {listed[start].text} is not closed")
