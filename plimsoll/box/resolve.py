"""Which file decides: the precedence rules of sysctl.d, unit drop-ins and systemd's own .conf files. Pure.

Input are the texts of candidate files as `plimsoll.box.state` reads them: a list of mappings with
`path` and either `text`, `masked` (a link to /dev/null) or `error`, most important directory first.
Rules: sysctl.d(5), systemd.unit(5), systemd-system.conf(5) of systemd 252 to 257.
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


def in_order(files: Iterable[FileText]) -> list[FileText]:
    """Return the files that are read, in the order in which they are read.

    A file hides those of the same name in less important directories, and names sort across all of
    them. Hidden and masked files do not appear.
    """
    chosen: dict[str, FileText] = {}
    for file in files:
        chosen.setdefault(posixpath.basename(file["path"]), file)
    return [chosen[name] for name in sorted(chosen) if not chosen[name].get("masked")]


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
    start, joined = 0, ""
    for number, raw in enumerate(lines_of(text), 1):
        # A comment inside a continued line is skipped and does not end it (systemd.syntax(7)); an empty line does.
        if raw.lstrip(BLANKS).startswith(("#", ";")):
            continue
        start = start or number
        joined += raw.removeprefix("\ufeff") if number == 1 else raw
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1] + " "
            continue
        yield start, joined.strip(BLANKS)
        start, joined = 0, ""
    yield start, joined.strip(BLANKS)


def ini_value(files: Sequence[FileText], section: str, key: str) -> Effective:
    """Return what decides `key` when `files` are read one after the other.

    The last assignment wins that systemd does not refuse: after a refused one the value before it stays.
    """
    every = (a for f in files for a in parse_ini(f) if (a.section, a.key) == (section, key))
    return _last_wins([a for a in every if meaning(key, a.value) is not None])


def _last_wins(hits: Sequence[Assignment]) -> Effective:
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


# --- sysctl.d ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SysctlLine:
    """A line of a sysctl.d file; `value` is None where a bare `-key` only excludes a key from globs."""

    key: str
    value: str | None
    place: Place

    @property
    def is_glob(self) -> bool:
        """Say whether the key is a pattern over /proc/sys."""
        return any(c in self.key for c in "*?[")


def sysctl_key(written: str) -> str:
    """Return a key in the form of its path below /proc/sys, whichever separator it was written with.

    The first separator decides: after a dot, dots separate and a slash stands for a literal dot.
    """
    first = re.search(r"[./]", written)
    if first is not None and first.group() == ".":
        written = written.translate(str.maketrans("./", "/."))
    return "/".join(part for part in written.split("/") if part not in ("", "."))


def parse_sysctl(file: FileText) -> list[SysctlLine]:
    """Return the settings of one sysctl.d file; lines that systemd-sysctl skips are skipped."""
    found = []
    for number, raw in enumerate(lines_of(file.get("text") or ""), 1):
        line = raw.strip(BLANKS)
        key, equals, value = line.partition("=")
        if not line or line.startswith(("#", ";")) or not (equals or line.startswith("-")):
            continue
        path = sysctl_key(key.removeprefix("-").strip(BLANKS))
        found.append(SysctlLine(path, value.strip(BLANKS) if equals else None, Place(file["path"], number)))
    return found


def sysctl_value(files: Sequence[FileText], key: str) -> Effective:
    """Return what systemd-sysctl leaves in `key` (dotted or with slashes) after reading `files` in this order.

    An explicit key beats every pattern, wherever it stands; of explicit lines the last one wins; a bare
    `-key` keeps patterns away, and takes back what was set before it.
    """
    path = sysctl_key(key)
    lines = [line for file in files for line in parse_sysctl(file)]
    hits = [line for line in lines if not line.is_glob and line.key == path]
    if not hits:
        hits = [line for line in _patterns(lines) if _matches(path, line.key)]
    elif hits[-1].value is None:
        return Effective(None)
    return _last_wins([Assignment("", key, line.value, line.place) for line in hits if line.value is not None])


def _patterns(lines: Iterable[SysctlLine]) -> list[SysctlLine]:
    """Return the patterns in the order in which they are applied.

    One that is repeated with the same value keeps its first place, with another value it takes the new one; a
    bare `-pattern` takes back the same pattern (seen with systemd-sysctl 252).
    """
    kept: dict[str, SysctlLine] = {}
    for line in lines:
        known = kept.get(line.key)
        if line.is_glob and (known is None or known.value != line.value):
            kept.pop(line.key, None)
            kept[line.key] = line
    return list(kept.values())


def _matches(path: str, pattern: str) -> bool:
    """Match as glob(3) does on a path: no wildcard crosses a slash, and `[^…]` excludes as `[!…]` does."""
    parts, wanted = path.split("/"), pattern.replace("[^", "[!").split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def sysctl_everywhere(files: Iterable[FileText], key: str) -> list[Place]:
    """Return every line of `files` that names `key` itself, for a report of who else has a say."""
    path = sysctl_key(key)
    return [line.place for file in files for line in parse_sysctl(file) if line.key == path]


# --- units ------------------------------------------------------------------------------------------

UNIT_DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Where units and their drop-ins are looked for, the most important first (systemd.unit(5))."""


def drop_in_directories(unit: str) -> list[str]:
    """Return the names of the drop-in directories of a unit, the most specific first, its type's last.

    For `a-b@c.service`: its own, its template's, those of its dashed prefixes, its type's.
    """
    stem, _, suffix = unit.rpartition(".")
    names = [f"{unit}.d"]
    prefix, at, instance = stem.partition("@")
    if at and instance:
        names.append(f"{prefix}@.{suffix}.d")
    while "-" in prefix.rstrip("-"):
        prefix = prefix.rstrip("-").rpartition("-")[0] + "-"
        names.append(f"{prefix}{at}.{suffix}.d" if at else f"{prefix}.{suffix}.d")
    return [*names, f"{suffix}.d"]


def unit_files_in_order(unit_files: Mapping[str, Any]) -> list[FileText]:
    """Return the fragment and then the drop-ins of a unit in the order in which systemd reads them after a reboot."""
    fragments = [f for f in unit_files["fragments"] if survives_reboot(f)]
    first = [f for f in fragments[:1] if not f.get("masked")]
    return [*first, *after_reboot(unit_files["drop_ins"])]
