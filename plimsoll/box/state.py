"""The live state of a host, read once, as JSON. Starts two processes (`systemctl show`), writes nothing.

Sections of what `read` returns: `platform`, `memory`, `sysctl` (value or error by key), `sysctl_files`,
`units`, `manager`, `manager_files` (system, user, journald), `processes`, `watchdogs`, `packages`, `files`
(those of ours), `modules`, `engines`, `room`, `ledger` (first values, our files), `proofs`,
`rollback_armed`, `heartbeat` (what the guard says of itself), `sshd_files`, `taken`. What could not be read is None
or carries an `error` text, and is judged `unknown`.
"""

import os
import re
import stat
import time
from typing import Any

from plimsoll.box import heartbeat, ledger, memory, platform, protections, units
from plimsoll.box.host import Host
from plimsoll.box.model import STATE_SCHEMA, Request
from plimsoll.box.resolve import is_glob, name_matches
from plimsoll.box.resolve_sshd import MAIN, SshdRefusesError, include_patterns
from plimsoll.box.resolve_sysctl import sysctl_key

SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
MANAGER_DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
MANAGERS = ("system", "user", "journald")
ALWAYS_READ_UNITS = (
    "ssh.service", "sshd.service", "ssh.socket", "systemd-journald.service", "earlyoom.service", "systemd-oomd.service",
)  # fmt: skip
TUNED_DIRECTORIES = ("/etc/tuned", "/etc/tuned/profiles", "/usr/lib/tuned", "/usr/lib/tuned/profiles")
MAX_TUNED_PROFILES = 16
MAX_SSHD_FILES = 64
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
    found_memory = memory.read(host, found_platform["driver"])
    packages = platform.packages(host, request.packages)
    state = {
        "schema": STATE_SCHEMA,
        "platform": found_platform,
        "memory": found_memory,
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
        "packages": packages,
        "files": {path: managed_file(host, path) for path in request.files},
        "modules": {name: module(host, name) for name in request.modules},
        "sshd_files": sshd_files(host),
        "ledger": ledger.summary(host),
        "proofs": ledger.read_json(host, PROOFS) or {},
        "rollback_armed": host.exists(ROLLBACK),
        "heartbeat": heartbeat.read(host),
        "protections": protections.read(host, running, found_memory, found_platform["driver"]["version"], packages),
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
    """Return the files that can set a sysctl: `sysctl_d` in directory order; apart from them what others read.

    `etc_sysctl_conf`; `ufw` where it is on; `tuned`, the profiles that are active, one that is included first.
    """
    paths = units.conf_paths(host, _distinct(host, SYSCTL_DIRECTORIES))
    return {
        "sysctl_d": [file for path in paths if (file := host.file(path))],
        "etc_sysctl_conf": host.file("/etc/sysctl.conf"),
        "ufw": _ufw_file(host),
        "tuned": tuned_profiles(host),
    }


def _ufw_file(host: Host) -> dict[str, Any] | None:
    if "ENABLED=yes" not in (host.text_or_none("/etc/ufw/ufw.conf") or ""):
        return None
    chosen = re.search(r"^IPT_SYSCTL=(.*)$", host.text_or_none("/etc/default/ufw") or "", re.MULTILINE)
    return host.file(chosen[1].strip("\"' ") if chosen else "/etc/ufw/sysctl.conf")


def tuned_profiles(host: Host) -> list[dict[str, Any]]:
    """Return the profiles that tuned has active and those that they include, in the order of their effect."""
    found: dict[str, dict[str, Any]] = {}
    waiting = (host.text_or_none("/etc/tuned/active_profile") or "").split()[::-1]
    while waiting and len(found) < MAX_TUNED_PROFILES:
        name = waiting.pop(0)
        files = (host.file(f"{directory}/{name}/tuned.conf") for directory in TUNED_DIRECTORIES)
        file = None if "/" in name or name in found else next((f for f in files if f), None)
        if file is not None:
            found[name] = file
            included = re.search(r"^\s*include\s*=(.*)$", file.get("text", ""), re.MULTILINE)
            waiting = [*(re.split(r"[\s,;]+", included[1].strip())[::-1] if included else []), *waiting]
    return list(found.values())[::-1]


def _distinct(host: Host, directories: tuple[str, ...]) -> list[str]:
    """Drop a directory that is another name of one before it (/lib on a merged system)."""
    by_real: dict[str, str] = {}
    for directory in directories:
        by_real.setdefault(os.path.realpath(host.path(directory)), directory)
    return list(by_real.values())


def manager_files(host: Host, name: str) -> dict[str, Any]:
    """Return `{mains, drop_ins}` of system.conf, user.conf or journald.conf, the most important directory first."""
    mains = [host.file(f"{d}/{name}.conf") for d in MANAGER_DIRECTORIES]
    directories = [f"{d}/{name}.conf.d" for d in _distinct(host, MANAGER_DIRECTORIES)]
    drop_ins = [host.file(path) for path in units.conf_paths(host, directories)]
    return {"mains": [m for m in mains if m], "drop_ins": [d for d in drop_ins if d]}


def managed_file(host: Host, path: str) -> dict[str, Any]:
    """Return what a file is: `{absent}`, `{link}`, `{error}`, or its text, mode, uid, gid, sha256 and two times."""
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
    import hashlib  # noqa: PLC0415  # 2 ms of 60, which a host without files of ours is spared

    return {
        "text": content.decode("utf-8", "replace") if len(content) < MAX_SHOWN_BYTES else None,
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "uid": found.st_uid,
        "gid": found.st_gid,
        "sha256": hashlib.sha256(content).hexdigest(),
        "changed_s": found.st_mtime,
        # an old file that was put back keeps its time, and not that of its inode
        "replaced_s": max(found.st_mtime, found.st_ctime),
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
    paths = units.conf_paths(host, _distinct(host, directories))
    files = [file for path in paths if (file := host.file(path))]
    return {"loaded": host.exists(f"/sys/module/{name}"), "files": files}


def sshd_files(host: Host) -> list[dict[str, Any]]:
    """Return sshd_config and every file that it can include, each once, the main file first.

    At most MAX_SSHD_FILES; one more is an error in its place.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting = [MAIN]
    while waiting:
        path = waiting.pop(0)
        file = None if path in found else host.file(path)
        if file is None:
            continue
        if len(found) == MAX_SSHD_FILES:
            found[path] = {"path": path, "error": f"not read: more than {MAX_SSHD_FILES} files are included"}
            break
        found[path] = file
        waiting.extend(p for pattern in _includes(path, file.get("text", "")) for p in expand(host, pattern))
    return list(found.values())


def _includes(path: str, text: str) -> list[str]:
    try:
        return include_patterns(path, text)
    except SshdRefusesError:
        return []


def expand(host: Host, pattern: str) -> list[str]:
    """Return the paths on `host` that a pattern stands for, sorted as glob(3) does; none for one that is relative."""
    if not pattern.startswith("/"):
        return []
    found = [""]
    for part in pattern.replace("[^", "[!").split("/")[1:]:
        if is_glob(part):
            found = [f"{base}/{name}" for base in found for name in host.names(base or "/") if name_matches(name, part)]
        else:
            found = [f"{base}/{part}" for base in found]
    # what is not there, or is no directory although a slash follows it; a link to nowhere is there
    return sorted(path for path in found if os.path.lexists(host.path(path)))
