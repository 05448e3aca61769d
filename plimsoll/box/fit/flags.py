"""How the flags of an engine are read: a table says what each means; what is in none is named. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll.box.fit import sizes
from plimsoll.box.fit.model import Place, Setting

UNRESOLVED = re.compile(r"\$\{?[A-Za-z0-9_(@*]|`|\{\{|__[A-Z_]{2,}__")
"""What is left in a text where a variable, a command or a template was not filled in."""


@dataclass(frozen=True)
class Flag:
    """A flag that decides about memory. `read` returns its value, None for a text that is none."""

    name: str
    unit: str
    read: Callable[[str], object]
    other_names: tuple[str, ...] = ()
    variable: str = ""
    """The environment variable that does the same; the command line goes before it."""
    switch: bool | None = None
    """What it sets to without a value; None where it takes one."""
    bare: str = ""
    """The value for which older builds take the flag alone; current ones refuse it."""


def whole(text: str) -> object:
    """Read a whole number."""
    return sizes.whole(text)


def count(text: str) -> object:
    """Read a count of at least 0."""
    number = sizes.whole(text)
    return number if number is not None and number >= 0 else None


def positive(text: str) -> object:
    """Read a count of at least 1."""
    number = sizes.whole(text)
    return number if number is not None and number >= 1 else None


def fraction(text: str) -> object:
    """Read a share above 0 and up to 1."""
    number = sizes.real(text)
    return number if number is not None and 0 < number <= 1 else None


def amount(text: str) -> object:
    """Read a number of at least 0."""
    number = sizes.real(text)
    return number if number is not None and number >= 0 else None


def human(text: str) -> object:
    """Read a count that may end in k or K."""
    return sizes.human(text)


def word(text: str) -> object:
    """Take a text as it is."""
    return text or None


def mapping(text: str) -> object:
    """Read a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def on_or_off(text: str) -> object:
    """Read what llama.cpp takes for yes and no."""
    plain = text.strip().lower()
    if plain in ("1", "on", "true", "enabled"):
        return True
    return False if plain in ("0", "off", "false", "disabled") else None


@dataclass(frozen=True)
class Table:
    """What an engine understands."""

    flags: tuple[Flag, ...]
    switches: frozenset[str]
    """Flags beside those, which take no value and no memory."""
    values: frozenset[str]
    """The same with a value."""
    lists: frozenset[str] = frozenset()
    """The same with any number of values."""
    abbreviates: bool = False
    """Whether the beginning of a name does for it (Python's argparse)."""
    dashes: bool = False
    """Whether `_` in a name is the same as `-`."""


@dataclass
class Read:
    """What was understood of a command line."""

    values: dict[str, Any] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    unknown_flags: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    """Words that are neither flags nor their values and were not filled in: each may hold any flag."""
    positional: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What works with some builds of the engine only."""

    def get(self, flag: str, default: Any = None) -> Any:  # noqa: ANN401  # a value is of its flag's type
        """Return what a flag was set to."""
        return self.values.get(flag, default)

    def put(self, flag: Flag, key: str, text: str, place: Place | None) -> None:
        """Keep one key of a flag that holds a mapping (`--speculative-config.method mtp`)."""
        before = self.get(flag.name) or {}
        value = sizes.whole(text)
        self.take(flag, json.dumps({**before, key: text if value is None else value}), place)

    def take(self, flag: Flag, text: str, place: Place | None) -> None:
        """Keep a flag's value, or say that it cannot be understood."""
        value = flag.read(text) if flag.switch is None or text else flag.switch
        if value is None:
            why = "is not known here" if UNRESOLVED.search(text) else f"is no {flag.unit}"
            where = f" ({place})" if place else ""
            self.unknowns.append(f"{flag.name} {text}{where}: this value {why}")
            self.values.pop(flag.name, None)
            return
        self.values[flag.name] = value
        self.settings = [each for each in self.settings if each.flag != flag.name]
        self.settings.append(Setting(flag.name, value, flag.unit, text, place))

    def take_alone(self, flag: Flag, written: str, place: Place | None) -> None:
        """Keep a flag that stands without the value it has to have."""
        where = f" ({place})" if place else ""
        if flag.bare:
            self.take(flag, flag.bare, place)
            self.notes.append(f"{written} without a value{where}: older builds read {flag.bare}, current ones refuse")
            return
        self.unknowns.append(f"{flag.name}{where}: its value is missing, another flag follows or nothing does")
        self.values.pop(flag.name, None)


def read(table: Table, words: Sequence[str], environment: Mapping[str, str], place: Place | None = None) -> Read:
    """Return what a command line and its environment come to for an engine."""
    found = Read()
    for flag in table.flags:
        if flag.variable and flag.variable in environment:
            found.take(flag, environment[flag.variable], place)
    by_name = {name: flag for flag in table.flags for name in (flag.name, *flag.other_names)}
    names = [*by_name, *table.switches, *table.values, *table.lists]
    position = 0
    while position < len(words):
        word_here = words[position]
        if word_here == "--" or not _is_flag(word_here):
            found.positional += [word_here] if word_here != "--" else []
            found.unresolved += [word_here] if UNRESOLVED.search(word_here) else []
            position += 1
            continue
        written, equals, value = word_here.partition("=")
        name = _resolved(table, written, names)
        after = list(_values(words, position + 1))
        following = _following(table, words, position + 1, names)
        base, dot, key = name.partition(".")
        if dot and base in by_name and by_name[base].read is mapping:
            found.put(by_name[base], key, value if equals else "".join(after[:1]), place)
            used = 0 if equals else min(1, len(after))
        elif name in by_name:
            used = _known(by_name[name], written, value if equals else None, following, found, place)
        else:
            used = _others(table, name, after, bool(equals) or following is None, found, written)
        position += 1 + used
    return found


def _is_flag(word_here: str) -> bool:
    """Say whether a word is a flag; `-1` is a value."""
    return len(word_here) > 1 and word_here[0] == "-" and not re.fullmatch(r"-[0-9.]+", word_here)


def _values(words: Sequence[str], start: int) -> Iterator[str]:
    for each in words[start:]:
        if _is_flag(each):
            return
        yield each


def _following(table: Table, words: Sequence[str], position: int, names: Sequence[str]) -> str | None:
    """Return the word that can be a flag's value; None at the end and for another flag that is known."""
    if position >= len(words):
        return None
    is_known = _is_flag(words[position]) and _resolved(table, words[position].partition("=")[0], names) in names
    return None if is_known else words[position]


def _known(flag: Flag, written: str, value: str | None, following: str | None, found: Read, place: Place | None) -> int:
    """Keep a flag that decides about memory; return how many words after it belong to it."""
    if value is not None or flag.switch is not None:
        found.take(flag, value or "", place)
        return 0
    if following is None:
        found.take_alone(flag, written, place)
        return 0
    found.take(flag, following, place)
    return 1


def _others(table: Table, name: str, after: list[str], has_value: bool, found: Read, written: str) -> int:
    """Return how many words after a flag that is in no table of memory belong to it; an unknown one is named."""
    if name in table.switches:
        return 0
    if name in table.values:
        return 0 if has_value else 1
    if name in table.lists:
        return 0 if has_value else len(after)
    if written.partition(".")[0] not in (*table.values, *(flag.name for flag in table.flags)):
        found.unknown_flags.append(written)
        # it may be a switch, and the word after it one that stands for flags
        found.unresolved += [] if has_value else [each for each in after[:1] if UNRESOLVED.search(each)]
    return 0 if has_value else min(1, len(after))


def _resolved(table: Table, written: str, names: Sequence[str]) -> str:
    before, dot, key = written.partition(".")
    name = before.replace("_", "-") + dot + key if table.dashes and written.startswith("--") else written
    if name in names or not table.abbreviates or not name.startswith("--"):
        return name
    begins = [each for each in names if each.startswith(name)]
    return begins[0] if len(begins) == 1 else name
