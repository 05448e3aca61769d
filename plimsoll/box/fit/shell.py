r"""Shell scripts, as far as they say what is started: variables, arrays, conditions, functions, files read in. Pure.

Nothing is run. What only a run would tell (`$(…)`, a variable that a condition sets) stays in the words as it is
written, so that whoever needs the value can say that it is not known, and where.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plimsoll.box.fit.shell_expand import Scope, Values, expand
from plimsoll.box.fit.shell_flow import Branch, alternatives, both, either
from plimsoll.box.fit.shell_words import ShellError, Token, definition, tokens

__all__ = ["Command", "ShellError", "commands", "torn_off"]

MAX_TEXT = 1 << 20
MAX_DEPTH = 8
MAX_NESTED = 100


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
    alternatives: tuple[tuple[int, int], ...] = ()
    """Of which `if` and `case` it is in which branch, where it is not known which one runs; the outermost first."""


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
_LOOPS = ("for", "while", "until", "select")
_ENDS_PATTERN = (";;", ";&", ";;&")
_BETWEEN = ("then", "else", "elif", "do", "{", "}", "!", "time")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\$\{?(\w+|[@*])")
_FILLS = ("read", "mapfile", "readarray", "getopts", "let")
"""Builtins after which the variables that they name are not known."""
_SILENT = (":", "set", "trap", "echo", "printf", "return", "exit", "[", "[[", "test", "unset", "true")
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
    runner = _prepared(text, variables, source, setting)
    try:
        runner.run(text)
        return runner.with_uncalled()
    except RecursionError as error:
        raise ShellError(1, "quotes or variables within hundreds of others") from error


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
    scope = Scope(values, directory=setting.directory)
    scope.bind(setting.arguments)
    return _Runner(scope, source, setting, 0)


class _Runner:
    """Goes through a script; `depth` counts the files that were read in."""

    def __init__(self, scope: Scope, source: Callable[[str], str | None], setting: Setting, depth: int) -> None:
        self.scope = scope
        self.source = source
        self.setting = setting
        self.depth = depth
        self.branches: list[Branch] = []
        self.patterns: list[tuple[str, str]] = []
        self.everything_exported = False
        self.found: list[Command] = []
        self.last_test: bool | None = None
        self.negated = False
        self.joined = ""

    def run(self, text: str) -> list[Command]:
        """Return the commands of a text; raises ShellError."""
        return self.walk(list(tokens(text)))

    def walk(self, listed: Sequence[Token]) -> list[Command]:
        """Return the commands of the words and operators of a text; raises ShellError."""
        statement: list[Token] = []
        skip_target = False
        after = 0
        for index, token in enumerate(listed):
            if index < after:
                continue
            defined = None if statement else definition(listed, index)
            if defined is not None:
                name, body, after = defined
                if not self.dead:
                    self.scope.functions[name] = body
                continue
            if token.kind == "word" and token.text in _LOOPS and not statement:
                self._loop(listed, index)
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
                if token.text in _ENDS_PATTERN and self.branches and self.branches[-1].word == "case":
                    self.branches[-1].ends_pattern(token.text)
        return self.found

    def with_uncalled(self) -> list[Command]:
        """Return what was found, with what functions start that a name which is not known may call."""
        if any(command.words[0].startswith(("$", "`")) for command in self.found):
            self.branches = [Branch("if")]
            for name in [name for name in self.scope.functions if name not in self.scope.called]:
                self._call(name, None)
        return self.found

    def _loop(self, listed: Sequence[Token], index: int) -> None:
        """Take no argument for known in a loop that shifts them."""
        depth = 0
        for token in listed[index:]:
            depth += (token.text in _LOOPS) - (token.text == "done")
            if token.text == "shift":
                self.scope.forget_arguments(token.line)
            if not depth:
                return

    @property
    def conditional(self) -> bool:
        """Whether it is not known if what comes next is run."""
        return any(branch.state is None for branch in self.branches) or self._after() is None

    @property
    def dead(self) -> bool:
        """Whether it is known that what comes next is not run."""
        return any(branch.state is False for branch in self.branches) or self._after() is False

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
        self.scope.count(ended_by.line)
        while words:
            if self.branches and self.branches[-1].awaits and words[0].text != "esac":
                self._pattern(self.branches[-1], words, ended_by)
                return
            if words[0].text not in (*_OPENS, *_CLOSES, *_BETWEEN):
                break
            if self._keyword(words.pop(0), words):
                return
        if words:
            self._simple(words)
            self.negated = False

    def _simple(self, words: list[Token]) -> None:
        """Follow a statement without keywords: a test, or commands."""
        is_test = words[0].text in ("[", "[[", "test")
        truth = self._truth(words) if is_test else None
        truth = not truth if self.negated and truth is not None else truth
        if self.joined in ("&&", "||"):
            before = self.last_test if self.tested else True if self.joined == "&&" else None
            truth = (both if self.joined == "&&" else either)(before, truth)
        if not is_test and not self.dead:
            self._run(words)
        asked = self.branches[-1] if self.branches and self.branches[-1].asks else None
        if asked is not None:
            asked.runs = truth
        if is_test:
            self.tested, self.last_test = True, truth
        elif self.joined not in ("&&", "||") or self.last_test is (self.joined == "&&"):
            self.tested, self.last_test = False, None

    def _keyword(self, first: Token, rest: list[Token]) -> bool:
        """Follow a keyword; say whether nothing else of its statement matters."""
        word = first.text
        if word in _OPENS:
            self._open(word, first.line, rest)
            return word in ("for", "select")
        if word in _CLOSES and self.branches:
            self.branches.pop()
            self.tested, self.last_test = False, None
        elif word in ("then", "do", "else", "elif") and self.branches:
            self.branches[-1].turns(word)
            self.joined = ""
        elif word == "!":
            self.negated = not self.negated
        return False

    def _open(self, word: str, line: int, rest: list[Token]) -> None:
        """Open an `if`, a loop or a `case`."""
        if len(self.branches) >= MAX_NESTED:
            raise ShellError(line, f"conditions and loops within more than {MAX_NESTED} others")
        self.joined = ""
        self.scope.opened += 1
        number = self.scope.opened if word in ("if", "case") else 0
        branch = Branch(word, number, asks=word in ("if", "while", "until"))
        if word in ("for", "select") and rest:
            self.scope.unsure[rest[0].text] = line
        if word == "case":
            text = " ".join(expand(rest.pop(0).text, self.scope)) if rest else "$"
            branch.subject = None if "$" in text or "`" in text else text
            branch.awaits = True
            self.patterns = []
        self.branches.append(branch)

    def _pattern(self, branch: Branch, words: list[Token], ended_by: Token) -> None:
        """Follow the patterns of a `case`, which end with a bracket."""
        self.patterns += [(each.text, " ".join(expand(each.text, self.scope))) for each in words if each.text != "in"]
        if ended_by.text == ")":
            branch.meets(self.patterns)
            self.patterns = []
            self.joined = ""

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
        if not self._about_arguments(words, written[0].line) and not self._about_surroundings(words, written[0].line):
            exported = {name: " ".join(self.scope.values.get(name, ())) for name in self.scope.exported}
            found = Command(
                tuple(words),
                {**exported, **before},
                written[0].line,
                self.conditional,
                self.scope.directory,
                tuple(self.scope.missing),
                self._unsure(words),
                alternatives(self.branches),
            )
            self.found.append(found)

    def _about_arguments(self, words: list[str], line: int) -> bool:
        """Follow what changes the arguments, or calls a function with its own; say whether it was that."""
        if words[0] in _FILLS:
            self.scope.unsure |= dict.fromkeys((word for word in words[1:] if word.isidentifier()), line)
        elif words[0] == "shift":
            self._shift(words, line)
        elif words[:2] == ["set", "--"]:
            self._set_arguments(tuple(words[2:]), line)
        elif words[0] in self.scope.functions:
            self._call(words[0], words[1:])
        else:
            return False
        return True

    def _about_surroundings(self, words: list[str], line: int) -> bool:
        """Follow what changes the directory or reads more commands; say whether it was that, or does nothing here."""
        if words[:2] in (["set", "-a"], ["set", "+a"]) or words[1:] == ["-o", "allexport"]:
            self.everything_exported = "+a" not in words
        elif words[0] in (".", "source") and len(words) > 1:
            self._source(words[1])
        elif words[0] == "eval" and len(words) > 1 and self.depth < MAX_DEPTH:
            self.found += [replace(each, line=line) for each in self._inner().run(" ".join(words[1:]))]
        elif words[0] == "cd" and len(words) > 1 and "$" not in words[-1]:
            self.scope.directory = posixpath.normpath(posixpath.join(self.scope.directory, words[-1]))
            self.scope.values["PWD"] = (self.scope.directory,)
        else:
            return words[0] in _SILENT or words[:2] in (["command", "-v"], ["command", "-V"])
        return True

    def _call(self, name: str, arguments: Sequence[str] | None) -> None:
        """Run a function; None for arguments that are not known."""
        self.scope.called.add(name)
        if self.depth >= MAX_DEPTH:
            return
        kept = self.scope.taken()
        self.scope.bind(arguments or ())
        if arguments is None:
            self.scope.forget_arguments(0)
        self.found += self._inner().walk(self.scope.functions[name])
        self.scope.give_back(kept)

    def _shift(self, words: Sequence[str], line: int) -> None:
        by = int(words[1]) if len(words) > 1 and words[1].isdecimal() and len(words[1]) <= 9 else len(words) == 1  # noqa: PLR2004  # as many digits as never matter
        self._set_arguments((self.scope.get("@") or ())[by:], line)

    def _set_arguments(self, arguments: Values, line: int) -> None:
        known = self.scope.get("@") is not None and not self.conditional
        self.scope.bind(arguments)
        if not known:
            self.scope.forget_arguments(line)

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
        inner.branches = [*self.branches, *([Branch("if")] if self._after() is None else [])]
        return inner


def torn_off(text: str, line: int) -> str:
    """Say why a line that begins with a flag is a command of its own."""
    before = text.splitlines()[max(0, line - 2) : line - 1]
    why = ""
    if before and re.search(r"\\[ \t]+$", before[0]):
        why = ": the `\\` before it is followed by a blank"
    elif before and before[0].lstrip().startswith("#"):
        why = ": a line with # ends the command before it"
    return f"this line is not part of the command before it{why}"
