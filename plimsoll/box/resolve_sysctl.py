"""Which line of which file decides a kernel setting: sysctl.d as systemd-sysctl reads it, ufw and tuned. Pure.

Rules: sysctl.d(5) of systemd 252 to 257. `sysctl --system` of procps is another reader: it ends with
/etc/sysctl.conf, which systemd-sysctl reads only where a link in sysctl.d leads there (seen on Debian 12 and 13).
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box.model import Place
from plimsoll.box.resolve import (
    BLANKS,
    Assignment,
    Effective,
    FileText,
    after_reboot,
    glob_matches,
    is_glob,
    last_wins,
    lines_of,
    parse_ini,
)

_SEPARATOR = re.compile(r"[./]")
MAX_KEPT_CHARACTERS = 64 << 10
"""Of a file whose lines are kept for the next setting that is looked for: Debian's largest has 4 KiB."""


@dataclass(frozen=True)
class SysctlLine:
    """A line of a sysctl.d file; `value` is None where a bare `-key` only excludes a key from globs."""

    key: str
    value: str | None
    place: Place

    @property
    def is_glob(self) -> bool:
        """Say whether the key is a pattern over /proc/sys."""
        return is_glob(self.key)

    def concerns(self, path: str) -> bool:
        """Say whether this line names `path`, by itself or by a pattern."""
        return glob_matches(path, self.key) if self.is_glob else self.key == path


def sysctl_key(written: str) -> str:
    """Return a key in the form of its path below /proc/sys, whichever separator it was written with.

    The first separator decides: after a dot, dots separate and a slash stands for a literal dot.
    """
    first = _SEPARATOR.search(written)
    if first is not None and first.group() == ".":
        written = written.translate(str.maketrans("./", "/."))
    return "/".join(part for part in written.split("/") if part not in ("", "."))


def parse_sysctl(file: FileText) -> Sequence[SysctlLine]:
    """Return the settings of one sysctl.d file; lines that systemd-sysctl skips are skipped."""
    text = file.get("text") or ""
    parse = _parsed if len(text) <= MAX_KEPT_CHARACTERS else _parsed.__wrapped__
    return parse(file["path"], text)


@functools.lru_cache(maxsize=64)
def _parsed(path: str, text: str) -> Sequence[SysctlLine]:
    found = []
    for number, raw in enumerate(lines_of(text), 1):
        line = raw.strip(BLANKS)
        key, equals, value = line.partition("=")
        if not line or line.startswith(("#", ";")) or not (equals or line.startswith("-")):
            continue
        name = sysctl_key(key.removeprefix("-").strip(BLANKS))
        found.append(SysctlLine(name, value.strip(BLANKS) if equals else None, Place(path, number)))
    return tuple(found)


def sysctl_value(files: Sequence[FileText], key: str) -> Effective:
    """Return what systemd-sysctl leaves in `key` (dotted or with slashes) after reading `files` in this order.

    An explicit key beats every pattern, wherever it stands; of explicit lines the last one wins; a bare
    `-key` keeps patterns away, and takes back what was set before it.
    """
    path = sysctl_key(key)
    lines = [line for file in files for line in parse_sysctl(file)]
    hits = [line for line in lines if not line.is_glob and line.key == path]
    if not hits:
        hits = [line for line in _patterns(lines) if line.concerns(path)]
    elif hits[-1].value is None:
        return Effective(None)
    return last_wins([Assignment("", key, line.value, line.place) for line in hits if line.value is not None])


def taken_back(files: Iterable[FileText], key: str) -> Place | None:
    """Return the last bare `-key` that concerns `key`: where nothing wins, it is what decides."""
    path = sysctl_key(key)
    lines = [line for file in files for line in parse_sysctl(file) if line.value is None and line.concerns(path)]
    return lines[-1].place if lines else None


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


def read_at_boot(files: Mapping[str, Any]) -> list[FileText]:
    """Return the files of a state's `sysctl_files` that are read at boot, in order: sysctl.d, then ufw's own."""
    return [*after_reboot(files["sysctl_d"]), *([files["ufw"]] if files.get("ufw") else [])]


def tuned_lines(files: Mapping[str, Any], key: str) -> list[Assignment]:
    """Return what tuned's active profile sets `key` to while the system runs, the profile's own lines last.

    By its default, `reapply_sysctl = 1`, tuned applies /etc/sysctl.d again after its profile: what is set there wins.
    """
    every = (line for file in files.get("tuned") or () for line in parse_ini(file) if line.section == "sysctl")
    return [line for line in every if sysctl_key(line.key) == sysctl_key(key)]


def sysctl_others(files: Mapping[str, Any], key: str) -> list[Place]:
    """Return every line that names `key` itself, of whoever reads it and whenever: who else has a say."""
    path = sysctl_key(key)
    conf = [files["etc_sysctl_conf"]] if files.get("etc_sysctl_conf") else []
    named = [line.place for file in [*files["sysctl_d"], *conf] for line in parse_sysctl(file) if line.key == path]
    return [*named, *(line.place for line in tuned_lines(files, key))]
