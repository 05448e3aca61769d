"""Which file decides: what sysctl.d, unit drop-ins and systemd's own .conf files have in common. Pure.

Input are the texts of candidate files as `plimsoll.box.state` reads them: a list of mappings with
`path` and either `text`, `masked` (a link to /dev/null) or `error`, most important directory first.
Rules: systemd.unit(5), systemd.syntax(7) of systemd 252 to 257. What is peculiar to one family of files
is in `resolve_sysctl`, `resolve_units` and `resolve_sshd`.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box.model import Place
from plimsoll.box.quantities import meaning

FileText = Mapping[str, Any]


@dataclass(frozen=True)
class Assignment:
    """One line of a configuration file that sets something; `value` has its surrounding blanks stripped."""

    section: str
    key: str
    value: str
    place: Place


@dataclass(frozen=True)
class Effective:
    """The assignment that wins, and those of other files that it overrides, the last one first."""

    winner: Assignment | None
    losers: tuple[Assignment, ...] = ()


@dataclass(frozen=True)
class Turn:
    """A candidate file in the order of reading; `hidden_by` is the path that hides it, empty where it is read."""

    file: FileText
    hidden_by: str = ""


def turns(files: Iterable[FileText]) -> list[Turn]:
    """Return every candidate file in the order in which it is, or would be, read.

    A file hides those of the same name in less important directories, and names sort across all of
    them. A masked file is hidden by itself.
    """
    first: dict[str, str] = {}
    found = []
    for file in files:
        path = str(file["path"])
        chosen = first.setdefault(posixpath.basename(path), path)
        found.append(Turn(file, chosen if chosen != path or file.get("masked") else ""))
    return sorted(found, key=lambda turn: posixpath.basename(turn.file["path"]))


def in_order(files: Iterable[FileText]) -> list[FileText]:
    """Return the files that are read, in the order in which they are read; hidden and masked ones do not appear."""
    return [turn.file for turn in turns(files) if not turn.hidden_by]


_LINE_END = re.compile(r"\r\n|\n\r?|\r|\0")
"""What ends a line for systemd; Python's splitlines would also split at form feeds and Unicode separators."""
BLANKS = " \t\r\n"
"""What systemd strips. A no-break space, as it comes with text copied from a web page, stays part of a value."""


def lines_of(text: str) -> list[str]:
    """Return the lines of a configuration file as systemd splits them."""
    return _LINE_END.split(text)


def parse_ini(file: FileText) -> list[Assignment]:
    r"""Return the assignments of a file in systemd's dialect: sections, `#` and `;` comments, `\` joins lines.

    systemd reads no further than a section header without its `]` or a line that is not UTF-8.
    """
    found: list[Assignment] = []
    section = ""
    for number, line in _joined_lines(file.get("text") or ""):
        broken_header = line.startswith("[") and not line.endswith("]")
        if broken_header or "\ufffd" in line:
            break
        if line.startswith("["):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            found.append(Assignment(section, key.strip(BLANKS), value.strip(BLANKS), Place(file["path"], number)))
    return found


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    start, joined = 0, list[str]()
    for number, raw in enumerate(lines_of(text), 1):
        # A comment inside a continued line is skipped and does not end it (systemd.syntax(7)); an empty line does.
        if raw.lstrip(BLANKS).startswith(("#", ";")):
            continue
        start = start or number
        line = raw.removeprefix("\ufeff") if number == 1 else raw
        if ends_in_backslash(line):
            joined.append(line[:-1] + " ")
            continue
        yield start, "".join([*joined, line]).strip(BLANKS)
        start, joined = 0, []
    yield start, "".join(joined).strip(BLANKS)


def ends_in_backslash(line: str) -> bool:
    r"""Say whether a line goes on in the next one: `\` at its end that no other `\` takes for itself."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def ini_assignments(files: Iterable[FileText], section: str, key: str) -> list[Assignment]:
    """Return every assignment of `key`, refused ones included, when `files` are read one after the other."""
    return [a for f in files for a in parse_ini(f) if (a.section, a.key) == (section, key)]


def ini_value(files: Sequence[FileText], section: str, key: str) -> Effective:
    """Return what decides `key` when `files` are read one after the other.

    The last assignment wins that systemd does not refuse: after a refused one the value before it stays.
    """
    every = ini_assignments(files, section, key)
    return last_wins([a for a in every if meaning(key, a.value) is not None])


def ini_list(files: Iterable[FileText], section: str, key: str) -> list[Assignment]:
    """Return the assignments of a setting that adds up which survive: an empty one clears those before it.

    Not of a dependency such as After: those only ever add up (systemd.unit(5)).
    """
    surviving: list[Assignment] = []
    for line in ini_assignments(files, section, key):
        if line.value:
            surviving.append(line)
        elif key not in DEPENDENCIES:
            surviving.clear()
    return surviving


DEPENDENCIES = frozenset({
    "After", "Before", "BindsTo", "Conflicts", "JoinsNamespaceOf", "OnFailure", "OnSuccess", "PartOf",
    "PropagatesReloadTo", "PropagatesStopTo", "ReloadPropagatedFrom", "Requires", "RequiresMountsFor",
    "Requisite", "StopPropagatedFrom", "Upholds", "Wants", "WantsMountsFor",
})  # fmt: skip
"""Settings of [Unit] that an empty assignment does not clear."""


def last_wins(hits: Sequence[Assignment]) -> Effective:
    """Return the last of `hits` as the winner, and those of other files as its losers."""
    if not hits:
        return Effective(None)
    winner = hits[-1]
    losers = tuple(a for a in reversed(hits[:-1]) if a.place.file != winner.place.file)
    return Effective(winner, losers)


def unreadable(files: Iterable[FileText]) -> str:
    """Return which of `files` could not be read and why, empty if all could: what it sets is then not known."""
    return next((f"{f['path']}: {f['error']}" for f in files if "error" in f), "")


def after_reboot(files: Iterable[FileText]) -> list[FileText]:
    """Return the files that are read after a reboot, in order: one in /run then no longer hides its namesake."""
    return in_order(file for file in files if survives_reboot(file))


def survives_reboot(file: FileText) -> bool:
    """Say whether a file is still there after a reboot: what lies in /run is not, unless it is generated anew."""
    path = str(file["path"])
    return not path.startswith("/run/") or path.startswith("/run/systemd/generator")


def glob_matches(path: str, pattern: str) -> bool:
    """Match a path as glob(3) does: no wildcard crosses a slash or begins a hidden name; `[^…]` is `[!…]`."""
    parts, wanted = path.split("/"), pattern.replace("[^", "[!").split("/")
    return len(parts) == len(wanted) and all(map(name_matches, parts, wanted))


def name_matches(name: str, pattern: str) -> bool:
    """Match a name without a slash as glob(3) does, but for `[^…]`, which is to be written `[!…]`."""
    hidden = name.startswith(".") and not pattern.startswith(".")
    # nearly all patterns are `*` and an ending: the general way makes an expression of each
    if pattern.startswith("*") and not is_glob(pattern[1:]):
        return not hidden and name.endswith(pattern[1:])
    return not hidden and fnmatch.fnmatchcase(name, pattern)


def is_glob(text: str) -> bool:
    """Say whether a text has a wildcard of glob(3)."""
    return any(c in text for c in "*?[")
