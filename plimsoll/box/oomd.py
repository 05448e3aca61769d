"""Where systemd-oomd was told to kill for memory pressure, by file and line. Reads files, starts no process."""

import re

from plimsoll.box import units
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed
from plimsoll.box.resolve import in_order, ini_value
from plimsoll.box.resolve_units import UNIT_DIRECTORIES, unit_files_in_order

PRESSURE = "ManagedOOMMemoryPressure"
MAX_UNITS = 100
_WATCHED = re.compile(r"(.*\.slice|user@\.service)(?:\.d)?")
"""Slices, and the manager of a user, for which Ubuntu's desktop sets a limit of 50 %."""
_CONF_DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
DEFAULT_LIMIT = "60%"
"""DefaultMemoryPressureLimit of oomd.conf(5)."""


def read(host: Host, *, running: bool, found: Observed) -> None:
    """Observe each slice, and the user managers, in which systemd-oomd kills when tasks wait for memory."""
    names = (name for d in UNIT_DIRECTORIES for name in host.names(d))
    watched = dict.fromkeys(match[1] for name in names if (match := _WATCHED.fullmatch(name)))
    if len(watched) > MAX_UNITS:
        found.missed("slices", f"{len(watched)} of them, only the first {MAX_UNITS} were looked at for {PRESSURE}")
    for unit in sorted(watched)[:MAX_UNITS]:
        section = unit.rpartition(".")[2].capitalize()
        files = unit_files_in_order(units.files_of(host, unit), rebooted=False)
        winner = ini_value(files, section, PRESSURE).winner
        if winner is None or winner.value != "kill":
            continue
        limit = ini_value(files, section, f"{PRESSURE}Limit").winner
        # 0, as nothing at all, stands for the default.
        own = limit.value if limit and limit.value not in ("", "0", "0%") else ""
        fields = {"unit": unit, "value": winner.value, "limit": own or _default_limit(host), "oomd_running": running}
        found.saw("oomd_kill", unit, winner.place.file, winner.place.line, **fields)


def _default_limit(host: Host) -> str:
    mains = [file for d in _CONF_DIRECTORIES if (file := host.file(f"{d}/oomd.conf"))]
    drop_ins = (host.file(p) for p in units.conf_paths(host, [f"{d}/oomd.conf.d" for d in _CONF_DIRECTORIES]))
    files = [*mains[:1], *in_order([file for file in drop_ins if file])]
    winner = ini_value(files, "OOM", "DefaultMemoryPressureLimit").winner
    return winner.value if winner and winner.value else DEFAULT_LIMIT
