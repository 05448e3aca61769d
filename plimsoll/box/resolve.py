"""Which file decides: the precedence rules of sysctl.d, unit drop-ins and systemd's own .conf files. Pure.

Input are the texts of candidate files as `plimsoll.box.state` reads them: a list of mappings with
`path` and either `text`, `masked` (a link to /dev/null) or `error`, most important directory first.
Rules: sysctl.d(5), systemd.unit(5), systemd-system.conf(5) of systemd 252 to 257.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box.model import Place

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


def parse_ini(file: FileText) -> list[Assignment]:
    r"""Return the assignments of a file in systemd's dialect: sections, `#` and `;` comments, `\` joins lines."""
    found: list[Assignment] = []
    section = ""
    for number, line in _joined_lines(file.get("text", "")):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            found.append(Assignment(section, key.strip(), value.strip(), Place(file["path"], number)))
    return found


def _joined_lines(text: str) -> Iterable[tuple[int, str]]:
    start, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        # A comment inside a continued line is skipped and does not end it (systemd.syntax(7)).
        if line.startswith(("#", ";")) or (not line and not parts):
            continue
        start = start or number
        if line.endswith("\\"):
            parts.append(line[:-1].rstrip())
            continue
        yield start, " ".join([*parts, line]).strip()
        start, parts = 0, []
    if parts:
        yield start, " ".join(parts).strip()


def ini_value(files: Sequence[FileText], section: str, key: str) -> Effective:
    """Return what decides `key` when `files` are read one after the other; the last assignment wins."""
    hits = [a for f in files for a in parse_ini(f) if (a.section, a.key) == (section, key)]
    return _last_wins(hits)


def _last_wins(hits: Sequence[Assignment]) -> Effective:
    if not hits:
        return Effective(None)
    winner = hits[-1]
    losers = tuple(a for a in reversed(hits[:-1]) if a.place.file != winner.place.file)
    return Effective(winner, losers)


def survives_reboot(file: FileText) -> bool:
    """Say whether a file is still there after a reboot: what lies in /run is not, unless it is generated anew."""
    path = str(file["path"])
    return not path.startswith("/run/") or path.startswith("/run/systemd/generator")


# --- sysctl.d ---------------------------------------------------------------------------------------

_SYSCTL_LINE = re.compile(r"(?P<ignore>-?)\s*(?P<key>[^=\s][^=]*?)\s*(?:=(?P<value>.*))?$")


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
    if first is None or first.group() == "/":
        return written.strip("/")
    return written.translate(str.maketrans("./", "/."))


def parse_sysctl(file: FileText) -> list[SysctlLine]:
    """Return the settings of one sysctl.d file; lines that systemd-sysctl skips are skipped."""
    found = []
    for number, raw in enumerate(file.get("text", "").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(("#", ";")):
            continue
        match = _SYSCTL_LINE.match(line)
        if match is None or (match["value"] is None and not match["ignore"]):
            continue
        value = None if match["value"] is None else match["value"].strip()
        found.append(SysctlLine(sysctl_key(match["key"]), value, Place(file["path"], number)))
    return found


def sysctl_value(files: Sequence[FileText], key: str) -> Effective:
    """Return what systemd-sysctl leaves in `key` (dotted or with slashes) after reading `files` in this order.

    An explicit key beats every pattern, wherever it stands; of patterns, and of explicit lines, the last
    one wins; a bare `-key` keeps patterns away.
    """
    path = sysctl_key(key)
    lines = [line for file in files for line in parse_sysctl(file)]
    explicit = [line for line in lines if not line.is_glob and line.key == path]
    if explicit:
        hits = [line for line in explicit if line.value is not None] if explicit[-1].value is not None else []
    else:
        hits = [line for line in lines if line.is_glob and line.value is not None and _matches(path, line.key)]
    return _last_wins([Assignment("", key, line.value or "", line.place) for line in hits])


def _matches(path: str, pattern: str) -> bool:
    """Match as glob(3) does on a path: no wildcard crosses a slash."""
    parts, wanted = path.split("/"), pattern.split("/")
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
    """Return the names of the drop-in directories of a unit, the most specific first.

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


def unit_files_in_order(unit_files: Mapping[str, Any], *, after_reboot: bool) -> list[FileText]:
    """Return the fragment and then the drop-ins of a unit in the order in which systemd reads them."""
    keep = survives_reboot if after_reboot else (lambda _file: True)
    fragments = [f for f in unit_files.get("fragments", ()) if keep(f)]
    first = [f for f in fragments[:1] if not f.get("masked")]
    return [*first, *in_order(f for f in unit_files.get("drop_ins", ()) if keep(f))]


# --- values -----------------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)B?$")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_UNIT_US = {
    "us": 1, "usec": 1, "ms": 1_000, "msec": 1_000, "": 1_000_000, "s": 1_000_000, "sec": 1_000_000,
    "second": 1_000_000, "seconds": 1_000_000, "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000,
    "minutes": 60_000_000, "h": 3_600_000_000, "hr": 3_600_000_000, "d": 86_400_000_000,
}  # fmt: skip


def parse_bytes(text: str) -> int | None:
    """Return a size in bytes as systemd reads it (base 1024), None for what is not a plain size."""
    match = _SIZE.match(text.strip())
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** " KMGTPE".index(match[2] or " "))


def parse_span_us(text: str) -> int | None:
    """Return a time span in microseconds as systemd reads it (`1min 30s`), None for what is not one."""
    parts = _SPAN.findall(text.strip().lower())
    if not parts or _SPAN.sub("", text.strip().lower()).strip() or any(u not in _UNIT_US for _, u in parts):
        return None
    return int(sum(float(number) * _UNIT_US[unit] for number, unit in parts))


def same_value(one: str | None, other: str | None) -> bool:
    """Say whether two spellings mean the same: blanks, sizes (`1G`, `1073741824`), spans (`60s`, `1min`)."""
    if one is None or other is None:
        return one is other
    if one.split() == other.split():
        return True
    for parse in (parse_bytes, parse_span_us):
        left, right = parse(one), parse(other)
        if left is not None and left == right:
            return True
    return False
