"""The live state of a host, read once, as JSON. Starts two processes (`systemctl show`), writes nothing.

Sections of what `read` returns: `platform`, `memory`, `sysctl` (value or error by key), `sysctl_files`,
`units`, `manager`, `manager_files` (system, user, journald), `processes`, `watchdogs`, `packages`, `files`
(those of ours), `modules`, `engines`, `room`, `ledger` (first values, our files), `proofs`,
`rollback_armed`, `sshd_files`, `taken`. What could not be read is None or carries an `error` text, and is judged
`unknown`.
"""

import hashlib
import os
import stat
import time
from typing import Any

from plimsoll.box import ledger, memory, platform, units
from plimsoll.box.host import Host
from plimsoll.box.model import STATE_SCHEMA, Request
from plimsoll.box.resolve import sysctl_key

SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
MANAGER_DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
MANAGERS = ("system", "user", "journald")
ALWAYS_READ_UNITS = (
    "ssh.service", "sshd.service", "ssh.socket", "systemd-journald.service", "earlyoom.service", "systemd-oomd.service",
)  # fmt: skip
MAX_SHOWN_BYTES = 64 << 10
"""The text of a managed file travels for the sake of a diff; the program itself, which is larger, does not."""
PROOFS = "/run/plimsoll/proofs.json"
"""What a change was seen to do and cannot be read again; gone with the boot that it was seen in."""
ROLLBACK = "/etc/systemd/system/plimsoll-rollback.service"
"""There from before sshd is touched until a fresh login was proven."""


def read(request: Request, host: Host | None = None) -> dict[str, Any]:
    """Return the state of `host` (the running machine by default) as far as `request` and the sections above go."""
    host = host or Host()
    started = time.monotonic()
    found_platform = platform.read(host)
    running = units.processes(host)
    state = {
        "schema": STATE_SCHEMA,
        "platform": found_platform,
        "memory": memory.read(host, found_platform["driver"]),
        "sysctl": {key: _sysctl(host, key) for key in request.sysctls},
        "sysctl_files": sysctl_files(host),
        "units": units.read(host, sorted({*request.units, *ALWAYS_READ_UNITS})),
        "cgroup_controllers": host.text_or_none(f"{units.CGROUP}/cgroup.controllers"),
        "manager": units.manager(host),
        "manager_files": {name: manager_files(host, name) for name in MANAGERS},
        "processes": [units.shortened(p) for p in running if units.matters(p)],
        "engines": [units.shortened(p) for p in running if units.is_engine(p)],
        "room": {path: room(host, path) for path in ("/etc", "/var/lib")},
        "watchdogs": platform.watchdogs(host),
        "packages": platform.packages(host, request.packages),
        "files": {path: managed_file(host, path) for path in request.files},
        "modules": {name: module(host, name) for name in request.modules},
        "sshd_files": sshd_files(host),
        "ledger": ledger.summary(host),
        "proofs": ledger.read_json(host, PROOFS) or {},
        "rollback_armed": host.exists(ROLLBACK),
    }
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    took_ms = round((time.monotonic() - started) * 1000)
    return {**state, "taken": {"unix_s": time.time(), "uptime_s": uptime_s, "took_ms": took_ms}}


def _sysctl(host: Host, key: str) -> dict[str, Any]:
    try:
        return {"value": " ".join(host.text(f"/proc/sys/{sysctl_key(key)}").split())}
    except FileNotFoundError:
        return {"absent": True}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def sysctl_files(host: Host) -> dict[str, Any]:
    """Return the files that can set a sysctl: `sysctl_d` in directory order, `etc_sysctl_conf` and `ufw` apart."""
    directories = _distinct(host, SYSCTL_DIRECTORIES)
    paths = [f"{d}/{n}" for d in directories for n in host.names(d) if n.endswith(".conf")]
    ufw_on = "ENABLED=yes" in (host.text_or_none("/etc/ufw/ufw.conf") or "")
    return {
        "sysctl_d": [file for path in paths if (file := host.file(path))],
        "etc_sysctl_conf": host.file("/etc/sysctl.conf"),
        "ufw": host.file("/etc/ufw/sysctl.conf") if ufw_on else None,
    }


def _distinct(host: Host, directories: tuple[str, ...]) -> list[str]:
    """Drop a directory that is another name of one before it (/lib on a merged system)."""
    by_real: dict[str, str] = {}
    for directory in directories:
        by_real.setdefault(os.path.realpath(host.path(directory)), directory)
    return list(by_real.values())


def manager_files(host: Host, name: str) -> dict[str, Any]:
    """Return `{main, drop_ins}` of system.conf, user.conf or journald.conf; systemd reads the first main file only."""
    mains = (host.file(f"{d}/{name}.conf") for d in MANAGER_DIRECTORIES)
    paths = [f"{d}/{name}.conf.d" for d in _distinct(host, MANAGER_DIRECTORIES)]
    drop_ins = [host.file(f"{d}/{n}") for d in paths for n in host.names(d) if n.endswith(".conf")]
    return {"main": next((m for m in mains if m), None), "drop_ins": [d for d in drop_ins if d]}


def managed_file(host: Host, path: str) -> dict[str, Any]:
    """Return what a file is: `{text, mode, uid, gid, sha256, changed_s}`, `{absent}`, `{link}` or `{error}`."""
    try:
        found = os.lstat(host.path(path))
        if stat.S_ISLNK(found.st_mode):
            return {"link": os.readlink(host.path(path))}
        if not stat.S_ISREG(found.st_mode):
            return {"error": "is not a regular file"}
        content = host.content(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"absent": True}
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {
        "text": content.decode("utf-8", "replace") if len(content) < MAX_SHOWN_BYTES else None,
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "uid": found.st_uid,
        "gid": found.st_gid,
        "sha256": hashlib.sha256(content).hexdigest(),
        "changed_s": found.st_mtime,
    }


def room(host: Host, path: str) -> dict[str, Any]:
    """Return whether the file system below `path` can be written to, and how many bytes are free there."""
    try:
        found = os.statvfs(host.path(path))
    except OSError as error:
        return {"error": error.strerror or str(error)}
    read_only = bool(found.f_flag & os.ST_RDONLY)
    return {"read_only": read_only, "free_bytes": found.f_bavail * found.f_frsize}


def module(host: Host, name: str) -> dict[str, Any]:
    """Return `{loaded, files}`: whether a module is loaded, and the modprobe.d files that can set its options."""
    directories = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d")
    paths = [f"{d}/{n}" for d in _distinct(host, directories) for n in host.names(d) if n.endswith(".conf")]
    files = [file for path in paths if (file := host.file(path))]
    return {"loaded": host.exists(f"/sys/module/{name}"), "files": files}


def sshd_files(host: Host) -> list[dict[str, Any]]:
    """Return sshd_config and what lies in sshd_config.d, in the order of Debian's Include (first value wins)."""
    base = "/etc/ssh/sshd_config"
    paths = [f"{base}.d/{n}" for n in host.names(f"{base}.d") if n.endswith(".conf")]
    return [file for path in (*paths, base) if (file := host.file(path))]
