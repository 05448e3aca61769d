"""Which file decides about a unit, or about systemd itself: where both are looked for, and in what order. Pure.

Rules: systemd.unit(5) and systemd-system.conf(5) of systemd 252 to 257.
"""

import re
from collections.abc import Mapping
from typing import Any

from plimsoll.box.resolve import FileText, after_reboot, in_order, survives_reboot

UNIT_DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Where units and their drop-ins are looked for, the most important first (`systemd-analyze unit-paths`)."""


def drop_in_directories(unit: str) -> list[str]:
    """Return the names of the drop-in directories of a unit, the most specific first, its type's last.

    For `a-b@c.service`: its own, its template's and the dashed prefix of that, which has no `@`, then its own
    prefix as an instance and as a template (the order of systemd 252 and 257).
    """
    return [*_named(unit), f"{unit.rpartition('.')[2]}.d"]


def _named(unit: str) -> list[str]:
    stem, _, suffix = unit.rpartition(".")
    prefix, at, instance = stem.partition("@")
    names = [f"{unit}.d"]
    if instance:
        names += _named(f"{prefix}@.{suffix}")
    shorter = prefix.rstrip("-").rpartition("-")[0]
    if shorter:
        names += _named(f"{shorter}-{at + instance if instance else ''}.{suffix}")
    return list(dict.fromkeys(names))


def is_masked(unit_files: Mapping[str, Any], *, rebooted: bool = True) -> bool:
    """Say whether a unit is masked: the fragment that counts is a link to /dev/null, or is empty.

    Such a unit is never started. systemd 252 reads its drop-ins all the same, 257 does not.
    """
    there = [f for f in unit_files["fragments"] if survives_reboot(f) or not rebooted]
    return any(f.get("masked") or f.get("text") == "" for f in there[:1])


def unit_files_in_order(unit_files: Mapping[str, Any], *, rebooted: bool = True) -> list[FileText]:
    """Return the fragment and then the drop-ins of a unit in the order in which systemd reads them.

    After a reboot, or with `rebooted=False` as they are now.
    """
    fragments = [f for f in unit_files["fragments"] if survives_reboot(f) or not rebooted]
    first = [f for f in fragments[:1] if not f.get("masked")]
    return [*first, *(after_reboot if rebooted else in_order)(unit_files["drop_ins"])]


MAIN_FILE_ANYWHERE_SINCE = 256
"""The release of systemd from which on system.conf and journald.conf are looked for outside of /etc as well."""


def main_files_looked_at(name: str, files: Mapping[str, Any], version: str) -> list[FileText]:
    """Return the main files that systemd of this `version` (`257.13-1`) looks at; it reads the first that is there.

    user.conf counts in /etc alone (seen with systemd 252 and 257). A version that is not known counts as a new one.
    """
    number = re.match(r"[0-9]+", version)
    everywhere = name != "user" and (number is None or int(number[0]) >= MAIN_FILE_ANYWHERE_SINCE)
    return [f for f in files["mains"] if everywhere or f["path"].startswith("/etc/")]


def manager_files_in_order(
    name: str, files: Mapping[str, Any], version: str, *, rebooted: bool = True
) -> list[FileText]:
    """Return the main file and then the drop-ins of `system`, `user` or `journald` .conf as they are read.

    `files` is `{mains, drop_ins}`, each with the most important directory first. After a reboot, or with
    `rebooted=False` as they are now. A user's own ~/.config/systemd/user.conf is not among them.
    """
    mains = [f for f in main_files_looked_at(name, files, version) if survives_reboot(f) or not rebooted]
    # An empty one or a link to /dev/null hides the others.
    main = [f for f in mains[:1] if not f.get("masked")]
    return [*main, *(after_reboot if rebooted else in_order)(files["drop_ins"])]
