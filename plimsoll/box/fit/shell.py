r"""Shell scripts, as far as they say what is started: variables, arrays, conditions, functions, files read in. Pure.

Nothing is run. What only a run would tell (`$(…)`, a variable that a condition sets) stays in the words as it is
written, so that whoever needs the value can say that it is not known, and where.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plimsoll.box.fit.shell_expand import Scope, Values, expand
from plimsoll.box.fit.shell_words import ShellError, Token, tokens

__all__ = ["Command", "ShellError", "commands"]

MAX_TEXT = 1 << 20
MAX_DEPTH = 8


@dataclass(frozen=True)
class Command:
    """One simple command, expanded; `environment` are the assignments before it, and what was exported."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    conditional: bool
    """Whether it depends on a condition or a loop."""
    directory: str
    """Where it is started."""
    missing: tuple[str, ...] = ()
    """Files that were to be read in before, and were not there: what they set is not known."""
    unsure: Mapping[str, int] = field(default_factory=dict)
    """Variables that stay in the words because a condition may have set them, with the line where it does."""


@dataclass(frozen=True)
class Setting:
    """Where a script is started, and with what."""

    path: str = "script.sh"
    directory: str = "/"
    arguments: Sequence[str] = ()
    decides: Callable[[str], bool] = lambda _flag: False
    """Whether a flag decides about what is wanted, so that it may not be taken for added where that is not known."""
    sees_files: bool = True
    """Whether a file that `source` does not find is not there; False in a container, which has files of its own."""


# --- statements -------------------------------------------------------------------------------------

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPENS = ("if", "for", "while", "until", "case", "select")
_CLOSES = ("fi", "done", "esac")
_BETWEEN = ("then", "else", "elif", "do", "{", "}", "!", "time", "function", "in")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\$\{?(\w+|[@*])")
_SILENT = (":", "set", "trap", "echo", "printf", "return", "exit", "[", "[[", "test", "shift", "unset", "true")
_DECLARES = ("export", "local", "declare", "readonly", "typeset")
_REDIRECTS = re.compile(r"[0-9]*[<>].*|&>>?")


def commands(
    text: str,
    variables: Mapping[str, str],
    source: Callable[[str], str | None] = lambda _path: None,
    setting: Setting = Setting(),
) -> list[Command]:
    """Return the commands of a script in their order; `source` returns the text of a file that it reads in.

    Raises ShellError for what is no script.
    """
    return _prepared(text, variables, source, setting).run(text)


def variables(text: str, given: Mapping[str, str]) -> dict[str, Values]:
    """Return the variables that a text sets, without those that were given; raises ShellError."""
    runner = _prepared(text, given, lambda _path: None, Setting())
    before = set(runner.scope.values)
    runner.run(text)
    return {name: values for name, values in runner.scope.values.items() if name not in before}


def _prepared(
    text: str, variables: Mapping[str, str], source: Callable[[str], str | None], setting: Setting
) -> "_Runner":
    if len(text) > MAX_TEXT:
        raise ShellError(0, f"is longer than {MAX_TEXT} characters")
    values: dict[str, Values] = {name: (value,) for name, value in variables.items()}
    values |= {"0": (setting.path,), "BASH_SOURCE": (setting.path,), "PWD": (setting.directory,)}
    values |= {str(index): (word,) for index, word in enumerate(setting.arguments[:9], 1)}
    values["@"] = tuple(setting.arguments)
    return _Runner(Scope(values, directory=setting.directory), source, setting, 0)


@dataclass
class _Branch:
    """One `if`, loop or `case` that is open. Of a branch it is known that it runs, that it does not, or neither."""

    word: str
    runs: bool | None = None
    has_run: bool | None = False
    """Whether a branch before has run."""
    asks: bool = False
    """Whether what comes next is the condition."""


class _Runner:
    """Goes through a script; `depth` counts the files that were read in."""

    def __init__(self, scope: Scope, source: Callable[[str], str | None], setting: Setting, depth: int) -> None:
        self.scope = scope
        self.source = source
        self.setting = setting
        self.depth = depth
        self.branches: list[_Branch] = []
        self.braces: list[bool] = []
        self.function_begins = False
        self.everything_exported = False
        self.found: list[Command] = []
        self.last_test: bool | None = None
        self.joined = ""

    def run(self, text: str) -> list[Command]:
        """Return the commands of a text; raises ShellError."""
        statement: list[Token] = []
        skip_target = False
        for token in tokens(text):
            if token.kind == "word" and skip_target:
                skip_target = False
            elif token.kind == "word":
                statement.append(token)
            elif token.kind == "op" and _REDIRECTS.fullmatch(token.text):
                skip_target = True
            else:
                goes_on = not statement and self.joined in ("&&", "||")
                self._statement(statement, token)
                self.joined = self.joined if goes_on else token.text
                statement = []
        return self.found

    @property
    def conditional(self) -> bool:
        """Whether it is not known if what comes next is run."""
        return any(branch.runs is None for branch in self.branches) or self._after() is None

    @property
    def dead(self) -> bool:
        """Whether it is known that what comes next is not run."""
        return any(branch.runs is False for branch in self.branches) or self._after() is False

    def _after(self) -> bool | None:
        """Say whether what follows `&&` or `||` runs; True for all else."""
        if self.joined not in ("&&", "||"):
            return True
        if self.last_test is None:
            # `cd x && run` runs as a rule, and `run || exit` does not go on
            return True if self.joined == "&&" and not self.tested else None
        return self.last_test is (self.joined == "&&")

    tested = False
    """Whether the command before was a test."""

    def _statement(self, words: list[Token], ended_by: Token) -> None:
        while words and words[0].text in (*_OPENS, *_CLOSES, *_BETWEEN):
            if self._keyword(words.pop(0), words):
                return
        if ended_by.text == "(" and len(words) == 1:
            self.function_begins = True
            return
        if not words:
            return
        asked = next((branch for branch in reversed(self.branches) if branch.asks), None)
        if words[0].text in ("[", "[[", "test"):
            self.tested, self.last_test = True, self._truth(words)
            if asked is not None:
                asked.runs = self.last_test if ended_by.text in (";", "\n") else None
            return
        if asked is None and not self.dead:
            self._run(words)
        self.tested, self.last_test = False, None

    def _keyword(self, first: Token, rest: list[Token]) -> bool:
        """Follow a keyword; say whether nothing else of its statement matters."""
        word = first.text
        if word in _OPENS:
            self.branches.append(_Branch(word, asks=word in ("if", "while", "until")))
            if word in ("for", "select") and rest:
                self.scope.unsure[rest[0].text] = first.line
            self.joined = ""
            return word in ("for", "select", "case")
        if word in _CLOSES and self.branches:
            self.branches.pop()
        elif word in ("then", "do", "else", "elif") and self.branches:
            self._turn(self.branches[-1], word)
        elif word == "{":
            self.braces.append(self.function_begins)
            self.scope.functions += self.function_begins
            self.function_begins = False
        elif word == "}" and self.braces:
            self.scope.functions -= self.braces.pop()
        return word == "function"

    def _turn(self, branch: _Branch, word: str) -> None:
        branch.asks = word == "elif"
        self.joined = ""
        if branch.word != "if":
            branch.runs = None
        elif word == "then":
            if branch.has_run:
                branch.runs = False
            elif branch.has_run is None and branch.runs:
                branch.runs = None
        elif word == "else":
            before = _either(branch.has_run, branch.runs)
            branch.runs = None if before is None else not before
        else:
            branch.has_run, branch.runs = _either(branch.has_run, branch.runs), None

    def _truth(self, words: list[Token]) -> bool | None:
        """Return what a test of texts comes to; None where only a run would tell."""
        inner = [expand(token.text, self.scope) for token in words[1:] if token.text not in ("]", "]]")]
        texts = [" ".join(each) for each in inner]
        if any("$" in text or "`" in text for text in texts):
            return None
        if len(texts) == 2 and texts[0] in ("-n", "-z"):  # noqa: PLR2004  # an operator and a text
            return bool(texts[1]) is (texts[0] == "-n")
        if len(texts) == 2 and texts[0] in ("-f", "-r", "-s"):  # noqa: PLR2004  # an operator and a file
            is_there = self.source(posixpath.join(self.scope.directory, texts[1])) is not None
            return is_there or (False if self.setting.sees_files else None)
        if len(texts) == 3 and texts[1] in ("=", "==", "!="):  # noqa: PLR2004  # two texts with an operator between
            return None if re.search(r"[*?\[]", texts[2]) else (texts[0] == texts[2]) is (texts[1] != "!=")
        return None

    # --- what changes variables, and what is started ---

    def _run(self, words: list[Token]) -> None:
        before: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0].text)):
            token = words.pop(0)
            alone = all(_ASSIGNMENT.fullmatch(each.text) for each in words)
            name, new, is_list = self._value(match)
            if alone:
                self._set(name, new, token.line, added=bool(match[2]), is_list=is_list)
            else:
                before[name] = " ".join(new)
        if words:
            self._command(words, before)

    def _value(self, match: re.Match[str]) -> tuple[str, Values, bool]:
        """Return the name, the value, and whether it is a list."""
        if not match[3].startswith("("):
            return match[1], (" ".join(expand(match[3], self.scope)),), False
        inside = [token.text for token in tokens(match[3][1:-1]) if token.kind == "word"]
        return match[1], tuple(word for each in inside for word in expand(each, self.scope)), True

    def _set(self, name: str, new: Values, line: int, *, added: bool = False, is_list: bool = False) -> None:
        old = self.scope.values.get(name)
        if added and old is not None:
            new = (*old, *new) if is_list else ("".join((*old, *new)),)
        if sum(map(len, new), len(new)) > MAX_TEXT:
            raise ShellError(line, f"a variable longer than {MAX_TEXT} characters")
        if self.conditional and old != new and not self._only_adds(old, new):
            self.scope.unsure[name] = line
        elif not self.conditional and not added:
            self.scope.unsure.pop(name, None)
        self.scope.values[name] = new
        if self.everything_exported:
            self.scope.exported.add(name)

    def _only_adds(self, old: Values | None, new: Values) -> bool:
        """Say whether a value has only got flags at its end that decide nothing: those may be taken for added."""
        before, after = " ".join(old or ()).split(), " ".join(new).split()
        if old is None or after[: len(before)] != before:
            return False
        added = after[len(before) :]
        flags = [word.partition("=")[0] for word in added if word.startswith("-")]
        there = {word.partition("=")[0] for word in before}
        return added[:1] == flags[:1] and not any(self.setting.decides(flag) or flag in there for flag in flags)

    def _command(self, written: list[Token], before: dict[str, str]) -> None:
        first = written[0].text
        if first in _DECLARES:
            self._declare(first, written[1:])
            return
        words = [word for token in written for word in expand(token.text, self.scope)]
        if not words:
            return
        if words[:2] in (["set", "-a"], ["set", "+a"]) or words[1:] == ["-o", "allexport"]:
            self.everything_exported = "+a" not in words
        elif words[0] in (".", "source") and len(words) > 1:
            self._source(words[1])
        elif words[0] == "eval" and len(words) > 1 and self.depth < MAX_DEPTH:
            line = written[0].line
            self.found += [replace(each, line=line) for each in self._inner().run(" ".join(words[1:]))]
        elif words[0] == "cd" and len(words) > 1 and "$" not in words[-1]:
            self.scope.directory = posixpath.normpath(posixpath.join(self.scope.directory, words[-1]))
            self.scope.values["PWD"] = (self.scope.directory,)
        elif words[0] not in _SILENT:
            exported = {name: " ".join(self.scope.values.get(name, ())) for name in self.scope.exported}
            found = Command(
                tuple(words),
                {**exported, **before},
                written[0].line,
                self.conditional,
                self.scope.directory,
                tuple(self.scope.missing),
                self._unsure(words),
            )
            self.found.append(found)

    def _unsure(self, words: Sequence[str]) -> dict[str, int]:
        named = (match[1] for word in words for match in _NAMED.finditer(word))
        return {name: self.scope.unsure[name] for name in named if name in self.scope.unsure}

    def _declare(self, kind: str, written: list[Token]) -> None:
        for token in written:
            match = _ASSIGNMENT.fullmatch(token.text)
            if match:
                name, new, is_list = self._value(match)
                self._set(name, new, token.line, is_list=is_list)
            name = match[1] if match else token.text
            if kind == "export" and _NAME.fullmatch(name):
                self.scope.exported.add(name)

    def _source(self, path: str) -> None:
        if self.depth >= MAX_DEPTH:
            return
        text = self.source(posixpath.join(self.scope.directory, path))
        if text is None:
            # what activates an environment of Python sets no flags
            self.scope.missing += [] if posixpath.basename(path) in ("activate", "conda.sh") else [path]
        else:
            self.found += self._inner().run(text)

    def _inner(self) -> "_Runner":
        """Return what goes through a text within this one: with the same variables, under the same conditions."""
        inner = _Runner(self.scope, self.source, self.setting, self.depth + 1)
        inner.everything_exported = self.everything_exported
        inner.branches = [_Branch("if", runs=None)] if self.conditional else []
        return inner


def _either(one: bool | None, other: bool | None) -> bool | None:
    """Say whether one of two is true; None where that is not known."""
    return True if one or other else None if one is None or other is None else False
