"""What a written word of a shell comes to: variables, arrays, defaults, quotes, and paths that commands say. Pure.

What only a run would tell (`$(hostname)`, a variable that nobody sets) stays in the word as it is written.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll.box.fit.shell_words import ShellError, Token, dollar_end, quote_end, tokens

Values = tuple[str, ...]
"""What a variable holds: one text, or the elements of an array."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]")
_BRACED = re.compile(r"\$\{(?P<count>\#?)(?P<name>[A-Za-z_]\w*|[0-9@*])(?P<index>\[[^\]]*\])?(?P<rest>.*)\}", re.DOTALL)
_OPERATION = re.compile(r":?[-=+?]", re.DOTALL)
ARGUMENTS = (*"123456789", "@", "*")
MAX_STATEMENTS = 100_000
MAX_EXPANDED = 1 << 25


@dataclass
class Scope:
    """The variables so far. One that a condition may have set is in `unsure`, with the line."""

    values: dict[str, Values] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unsure: dict[str, int] = field(default_factory=dict)
    directory: str = "/"
    missing: list[str] = field(default_factory=list)
    """Files that could not be read in."""
    functions: dict[str, Sequence[Token]] = field(default_factory=dict)
    """Bodies of functions by their names."""
    called: set[str] = field(default_factory=set)
    opened: int = 0
    """How many conditions and loops were met."""
    statements: int = 0
    expanded: int = 0
    """Characters of all words so far: variables that hold each other would double for ever."""

    def get(self, name: str) -> Values | None:
        """Return what a variable holds, None for one that is not set or not sure."""
        return None if name in self.unsure else self.values.get("@" if name == "*" else name)

    def count(self, line: int) -> None:
        """Count a statement; raises ShellError where functions that call each other go on for too long."""
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise ShellError(line, f"runs more than {MAX_STATEMENTS} statements")

    def bind(self, arguments: Sequence[str]) -> None:
        """Set the arguments: `$1` to `$9`, and `$@`."""
        for name in ARGUMENTS:
            self.values.pop(name, None)
            self.unsure.pop(name, None)
        self.values |= {str(index): (word,) for index, word in enumerate(arguments[:9], 1)}
        self.values["@"] = tuple(arguments)

    def forget_arguments(self, line: int) -> None:
        """Take the arguments for not known from here on."""
        self.unsure |= dict.fromkeys(ARGUMENTS, line)

    def taken(self) -> tuple[dict[str, Values], dict[str, int]]:
        """Return the arguments as they are, to be given back."""
        return (
            {name: self.values[name] for name in ARGUMENTS if name in self.values},
            {name: self.unsure[name] for name in ARGUMENTS if name in self.unsure},
        )

    def give_back(self, kept: tuple[dict[str, Values], dict[str, int]]) -> None:
        """Set the arguments as they were taken."""
        self.bind(())
        self.values |= kept[0]
        self.unsure |= kept[1]


def expand(word: str, scope: Scope) -> list[str]:
    """Return the words that one written word comes to; what cannot be told stays as it is written."""
    pieces: list[str] = [""]
    for text, quoted, is_list in _pieces(word, scope):
        scope.expanded += sum(map(len, text))
        if scope.expanded > MAX_EXPANDED:
            raise ShellError(0, f"its words come to more than {MAX_EXPANDED} characters")
        if not is_list:
            pieces[-1] += text[0] if text else ""
            continue
        split = list(text) if quoted else [part for each in text for part in each.split()]
        if split:
            pieces[-1] += split[0]
            pieces += split[1:]
    return pieces if pieces != [""] or _has_quote(word) else []


def _has_quote(word: str) -> bool:
    return re.search(r"['\"]", word) is not None and not re.fullmatch(r'"\$\{?\w+\[@\]\}?"|"\$@"', word)


def _pieces(word: str, scope: Scope) -> Iterator[tuple[Values, bool, bool]]:
    """Yield `(texts, quoted, is_list)`: a list is split into words where it is not quoted."""
    position = 0
    while position < len(word):
        character = word[position]
        if character == "'":
            end = quote_end(word, position, 0)
            yield (word[position + 1 : end - 1],), True, False
        elif character == '"':
            end = quote_end(word, position, 0)
            yield from _in_double_quotes(word[position + 1 : end - 1], scope)
        elif character == "\\":
            end = position + 2
            yield (word[position + 1 : end].replace("\n", ""),), True, False
        elif character == "$":
            end = dollar_end(word, position, 0)
            written = word[position:end]
            found = (written[2:-1],) if written.startswith("$'") else _variable(written, scope)
            # what is not known stays one word, whatever it is made of
            yield found, written[1:2] == "'" or found == (written,), True
        elif character == "`":
            end = quote_end(word, position, 0)
            yield (word[position:end],), True, False
        else:
            match = re.compile(r"[^'\"\\$`]+").match(word, position)
            end = match.end() if match else position + 1
            text = word[position:end]
            home = scope.get("HOME")
            if position == 0 and home and re.match(r"~(/|$)", text):
                text = home[0] + text[1:]
            yield (text,), False, False
        position = end


def _in_double_quotes(text: str, scope: Scope) -> Iterator[tuple[Values, bool, bool]]:
    position = 0
    yield ("",), True, False
    while position < len(text):
        character = text[position]
        if character == "\\":
            end = position + 2
            after = text[position + 1 : end]
            yield (("" if after == "\n" else after) if after in '"\\$`\n' else text[position:end],), True, False
        elif character == "$":
            end = dollar_end(text, position, 0)
            written = text[position:end]
            listed = re.fullmatch(r"\$\{\w+\[@\].*\}|\$@", written, re.DOTALL) is not None
            found = _variable(written, scope)
            yield (found if listed else (" ".join(found),)), True, listed
        else:
            match = re.compile(r"[^\\$]+").match(text, position)
            end = match.end() if match else position + 1
            yield (text[position:end],), True, False
        position = end


def _variable(written: str, scope: Scope) -> Values:
    """Return what `$NAME`, `${NAME:-default}`, `$(pwd)` and the like come to; as written where that cannot be told."""
    if written.startswith("$(("):
        return _computed(written, scope)
    if written.startswith("$("):
        try:
            found = _substituted(written[2:-1], scope)
        except ShellError:
            found = None
        return (written,) if found is None else (found,)
    if _NAME.fullmatch(written[1:]) or written in ("$@", "$*"):
        found_values = scope.get(written[1:])
        return (written,) if found_values is None else found_values if written in ("$@", "$*") else found_values[:1]
    match = _BRACED.fullmatch(written)
    return (written,) if match is None else _braced(written, match, scope)


def _braced(written: str, match: re.Match[str], scope: Scope) -> Values:
    name, rest = match["name"], match["rest"]
    operation = _OPERATION.match(rest)
    if name in scope.unsure or match["count"] or (rest and operation is None):
        return (written,)
    found = _element(scope.get(name), (match["index"] or "")[1:-1])
    if operation is None:
        return (written,) if found is None else found
    empty = not found or (operation[0].startswith(":") and not any(found))
    kind, argument = operation[0][-1], rest[operation.end() :]
    if kind == "+":
        return () if empty else tuple(expand(argument, scope))
    if not empty:
        return found or ()
    if kind == "?":
        return (written,)
    value: Values = (" ".join(expand(argument, scope)),)
    if kind == "=":
        scope.values[name] = value
    return value


def _element(found: Values | None, index: str) -> Values | None:
    """Return what an index chooses of a variable: all of an array, one of it, or the first."""
    if found is None or index in ("@", "*"):
        return found
    if not index:
        return found[:1]
    return found[int(index) : int(index) + 1] if index.isdigit() else None


# --- what a command would say, where it is only about paths -----------------------------------------


def _substituted(text: str, scope: Scope) -> str | None:
    """Return what `pwd`, `dirname`, `basename`, `realpath` and `echo` say; None for any other command.

    `cd … && pwd` is how scripts find their own directory.
    """
    directory, said = scope.directory, None
    statement: list[str] = []
    for token in tokens(text):
        if token.kind == "word":
            statement += expand(token.text, scope)
            continue
        if token.kind == "op" and token.text not in ("&&", ";"):
            return None
        if statement:
            if any("$" in word or "`" in word for word in statement):
                return None
            moved, said = _path_command(statement, directory)
            if moved is None:
                return None
            directory, statement = moved, []
    return said


def _path_command(words: list[str], directory: str) -> tuple[str | None, str | None]:
    """Return the directory after a command, and what it says; no directory for one that is not known."""
    name, *rest = words
    operands = [word for word in rest if not word.startswith("-")]
    if name == "pwd":
        return directory, directory
    if not operands:
        return None, None
    path = posixpath.normpath(posixpath.join(directory, operands[0]))
    if name == "cd":
        return path, None
    answers = {
        "dirname": posixpath.dirname(operands[0]) or ".",
        "basename": posixpath.basename(operands[0]).removesuffix(operands[1] if len(operands) > 1 else ""),
        "realpath": path,
        "readlink": path if "-f" in rest else None,
        "echo": " ".join(rest),
    }
    return (directory, answers[name]) if answers.get(name) is not None else (None, None)


def _computed(written: str, scope: Scope) -> Values:
    """Return what arithmetic of whole numbers comes to, without running it."""
    inner = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda m: (scope.get(m[1]) or (m[0],))[0], written[3:-2])
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*(?:([-+*/])\s*([0-9]{1,15}))?\s*", inner)
    if match is None:
        return (written,)
    left, right = int(match[1]), int(match[3] or 0)
    if match[2] == "/" and not right:
        return (written,)
    found = {None: left, "+": left + right, "-": left - right, "*": left * right, "/": left // max(1, right)}
    return (str(found[match[2]]),)
