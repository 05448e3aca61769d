"""What looks on this host as if it protected it, whoever put it there. Reads files, starts no process.

`read` returns `{"observations": [...], "not_seen": [...]}`. An observation is a plain record: `kind`, `subject`
(what a person calls it), `file` and `line` (empty and 0 for a process), and the fields of its kind, which are all
there and None where unknown. FIELDS lists them. Whether anything is wrong with it is decided elsewhere.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plimsoll.box import containers, engines, oomd, podman, unit_settings, units
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed, is_on, variables

_REMOTE = re.compile(r"nfs|cifs|smb|fuse|9p|afs|autofs|ceph|glusterfs")
_UID = re.compile(r"[0-9]{1,10}")
_BYTES = re.compile(r"[0-9]{1,20}")

Process = Mapping[str, Any]

FIELDS: Mapping[str, tuple[str, ...]] = {
    "container": (
        "name", "id", "running", "uses_gpu", "engine", "memory_bytes", "memory_swap_bytes", "swap_forbidden",
        "swap_max_live", "mem_total_bytes", "restart", "restart_max", "ipc", "shm_bytes", "oom_score_adj",
        "skips_memory_check", "compose_file",
    ),
    "docker_client": (
        "pid", "unit", "client_limit_bytes", "limited_by", "container_seen", "memory_bytes", "restart",
        "oom_score_adj", "uses_gpu", "skips_memory_check",
    ),
    "unit_setting": (
        "unit", "scope", "setting", "value", "number", "restart_s", "runs", "engine", "uses_gpu",
        "mem_total_bytes",
    ),
    "engine": (
        "pid", "comm", "processes", "cgroup", "unit", "oom_score_adj", "memory_max_bytes", "limited_by",
        "limit_reported", "memory_current_bytes", "mem_total_bytes", "skips_memory_check",
    ),
    "earlyoom": (
        "pid", "version", "mem_term_percent", "swap_term_percent", "swap_total_kib", "swap_used_kib",
        "swap_used_needed_kib", "moving_denominator", "fires_now_kib", "fires_below_kib", "fires_below_percent",
        "firing", "absolute", "dryrun", "may_kill", "regime", "driver",
    ),
    "killer": (
        "pid", "name", "unit",
    ),
    "oomd_kill": (
        "unit", "value", "limit", "oomd_running",
    ),
    "ray": (
        "pid", "threshold", "refresh_ms", "enabled", "fires_at_kib",
    ),
}  # fmt: skip
"""The fields of each kind of observation, beside kind, subject, file and line."""

KILLERS = ("systemd-oomd", "nohang", "bustd", "oomd")
GUARDS = ("dgx-anti-oom", "gb10-memguard", "llm-guard-proxy", "memguard", "memwatch")
"""Published guards for these boxes, which know the driver's memory and kill engines by lines of their own."""
MOVING_DENOMINATOR_SINCE = (1, 8)
"""Since earlyoom 1.8 a percentage is one of MemAvailable + AnonPages, which shrinks as the driver takes memory."""
MAX_HOMES = 100
_NOBODY = 65534


def read(
    host: Host,
    running: Sequence[Process],
    memory: Mapping[str, Any],
    driver: str | None,
    packages: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the observations on `host`, and what could not be seen; never raises for what a file contains.

    `running` are all processes with their whole arguments (`units.processes`), `memory` is the section of that
    name of a state, `driver` the loaded NVIDIA driver's version, `packages` installed versions by name.
    """
    found = Observed()
    total_kib = (memory["meminfo"] or {}).get("MemTotal")
    total_bytes = None if total_kib is None else total_kib << 10
    homes = _homes(host, found)
    cgroups = {process["cgroup"] for process in running}
    docker = containers.read(host, homes, cgroups, total_bytes, found)
    podmans = podman.read(host, homes, cgroups, total_bytes, found)
    seen = {"docker": bool(docker) and all(docker.values()), "podman": bool(podmans) and all(podmans.values())}
    scopes = {*(f"docker-{each}.scope" for each in docker), *(f"libpod-{each}.scope" for each in podmans)}
    servers = [process for process in running if units.is_engine(process)]
    in_units = {_unit(process["cgroup"]) for process in servers if not process["cgroup"].startswith("/user.slice/")}
    limited = unit_settings.read(host, homes, in_units - {""}, total_bytes, found)
    _engines(host, servers, {*limited, *scopes}, total_bytes, found)
    for process in (each for each in running if each["comm"] in containers.CLIENTS):
        limit = _limit(host, process["cgroup"])
        containers.client(process, limit, found, container_seen=seen.get(process["comm"], False))
    _earlyoom(host, running, memory, driver, packages, found)
    _killers(running, found)
    oomd.read(host, running=any(each["comm"] == "systemd-oomd" for each in running), found=found)
    _ray(host, running, total_kib, found)
    return {"observations": found.observations, "not_seen": found.not_seen}


def _homes(host: Host, found: Observed) -> list[str]:
    """Return the home directories of people: those of /etc/passwd, and what lies in /home (users from a directory)."""
    rows = [line.split(":") for line in (host.text_or_none("/etc/passwd") or "").splitlines()]
    people = [row[5] for row in rows if len(row) == 7 and _is_person(row[2])]  # noqa: PLR2004  # passwd(5)
    homes = [*people, *(f"/home/{name}" for name in found.names(host, "/home", MAX_HOMES))]
    clean = dict.fromkeys(posixpath.normpath(home) for home in homes if home.startswith("/") and home != "/")
    mounts = [line.split(" ") for line in (host.text_or_none("/proc/mounts") or "").splitlines()]
    types = {row[1]: row[2] for row in mounts if len(row) > 2}  # noqa: PLR2004  # fstab(5)
    return [home for home in list(clean)[:MAX_HOMES] if _is_local(home, types, found)]


def _is_local(home: str, types: Mapping[str, str], found: Observed) -> bool:
    """Refuse a home on a file system whose server may not answer: waiting for it could not be ended."""
    path = home
    while path != "/" and path not in types:
        path = posixpath.dirname(path)
    if _REMOTE.match(types.get(path, "")):
        found.missed(home, f"is on {types[path]}, whose server may not answer")
        return False
    return True


def _is_person(uid: str) -> bool:
    number = int(uid) if _UID.fullmatch(uid) else _NOBODY
    return number == 0 or 1000 <= number < _NOBODY  # noqa: PLR2004  # the first uid of a person on Debian and Ubuntu


def _unit(cgroup: str) -> str:
    """Return the innermost service of a cgroup path, empty if there is none."""
    return next((part for part in reversed(cgroup.split("/")) if part.endswith(".service")), "")


def _limit(host: Host, cgroup: str) -> dict[str, Any]:
    """Return the lowest memory.max on the way from a cgroup to the root: `{memory_max_bytes, limited_by, unit}`."""
    lowest: tuple[int, str] | None = None
    path = cgroup
    while path not in ("", "/") and ".." not in path:
        text = (host.text_or_none(f"{units.CGROUP}{path}/memory.max") or "").strip()
        if _BYTES.fullmatch(text) and (lowest is None or int(text) < lowest[0]):
            lowest = int(text), path
        path = posixpath.dirname(path)
    found = {"memory_max_bytes": lowest[0] if lowest else None, "limited_by": lowest[1] if lowest else None}
    return found | {"unit": _unit(cgroup)}


def _engines(
    host: Host, servers: Sequence[Process], reported: Iterable[str], total_bytes: int | None, found: Observed
) -> None:
    """Observe model servers, those with the same cgroup and score as one: vLLM has a process for each rank and task."""
    groups: dict[tuple[str, int], list[Process]] = {}
    for process in servers:
        groups.setdefault((process["cgroup"], int(process["oom_score_adj"])), []).append(process)
    for (cgroup, score), members in groups.items():
        limit = _limit(host, cgroup)
        first, more = members[0], len(members) - 1
        current = (host.text_or_none(f"{units.CGROUP}{cgroup}/memory.current") or "").strip()
        found.saw(
            "engine",
            f"{first['comm']} (pid {first['pid']}{f' and {more} more' if more else ''})",
            pid=first["pid"],
            comm=first["comm"],
            processes=len(members),
            cgroup=cgroup,
            oom_score_adj=score,
            limit_reported=posixpath.basename(limit["limited_by"] or "") in set(reported),
            memory_current_bytes=int(current) if _BYTES.fullmatch(current) else None,
            mem_total_bytes=total_bytes,
            skips_memory_check=_skips_check(host, members, found),
            **limit,
        )


def _skips_check(host: Host, members: Sequence[Process], found: Observed) -> bool | None:
    """Say whether any was started with the variable that switches vLLM's check off; None if none could be looked at."""
    answers = []
    for process in members:
        with found.reading(f"environment of {process['comm']}"):
            value = variables(host, process["pid"], (containers.SKIP_CHECK,)).get(containers.SKIP_CHECK)
            answers.append(is_on(value))
    return any(answers) if answers else None


# --- killers ----------------------------------------------------------------------------------------

_SHORT = {"m": "mem", "s": "swap", "M": "mem_kib", "S": "swap_kib"}
_FLAGS = "gnpidhvk"
"""earlyoom's options without a value; `-r` and `-N`, `-P` and the long ones have one."""


def earlyoom_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """Return `{mem, swap, mem_kib, swap_kib}` (for SIGTERM; None where not given) and `dryrun`."""
    given: dict[str, Any] = {"mem": None, "swap": None, "mem_kib": None, "swap_kib": None, "dryrun": False}
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        given["dryrun"] |= word == "--dryrun"
        letters = word[1:] if word.startswith("-") and not word.startswith("--") else ""
        letters = letters.lstrip(_FLAGS)
        if letters[:1] in ("m", "s", "M", "S", "r", "N", "P"):
            value = letters[1:] or (words.pop(0) if words else "")
            if letters[0] in _SHORT:
                given[_SHORT[letters[0]]] = _first_number(value)
        elif word in ("--prefer", "--avoid", "--ignore") and words:
            words.pop(0)
    return given


def _first_number(value: str) -> float | None:
    match = re.match(r"(?=\.?[0-9])[0-9]{0,12}(?:\.[0-9]{0,6})?", value)
    return float(match[0]) if match else None


def _earlyoom(
    host: Host,
    running: Sequence[Process],
    memory: Mapping[str, Any],
    driver: str | None,
    packages: Mapping[str, str] | None,
    found: Observed,
) -> None:
    version = (packages or {}).get("earlyoom")
    for process in (each for each in running if each["comm"] == "earlyoom"):
        given = earlyoom_arguments(process["argv"])
        facts = firing_facts(given, memory, version)
        found.saw(
            "earlyoom",
            f"earlyoom (pid {process['pid']})",
            pid=process["pid"],
            version=version,
            absolute=given["mem_kib"] is not None,
            dryrun=given["dryrun"],
            may_kill=may_kill(host.text_or_none(f"/proc/{process['pid']}/status") or ""),
            regime=memory["regime"],
            driver=driver,
            **facts,
        )


_CAPABLE = re.compile(r"^CapEff:\s+([0-9a-f]+)", re.MULTILINE)
_CAP_KILL = 5
"""Of linux/capability.h."""


def may_kill(status: str) -> bool | None:
    """Return whether a process, by its /proc/PID/status, may send signals to those of others; None where not known."""
    found = _CAPABLE.search(status)
    return None if found is None else bool(int(found[1], 16) >> _CAP_KILL & 1)


def firing_facts(given: Mapping[str, Any], memory: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Return at which levels earlyoom would send SIGTERM as the host is now.

    Defaults are 10 % of both. `fires_now_kib` is the level as loaded now, `fires_below_kib` the one that is reached as
    a driver takes the rest, `firing` says both.
    """
    meminfo = memory["meminfo"] or {}
    total = meminfo.get("MemTotal")
    swap_total, swap_free = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    mem = _share(given["mem"], given["mem_kib"], total)
    swap = _share(given["swap"], given["swap_kib"], swap_total)
    moving = None if version is None else version_numbers(version) >= MOVING_DENOMINATOR_SINCE
    now, fires = firing_levels_kib(mem, meminfo, moving=moving)
    return {
        "mem_term_percent": mem,
        "swap_term_percent": swap,
        "swap_total_kib": swap_total,
        "swap_used_kib": None if swap_total is None or swap_free is None else swap_total - swap_free,
        "swap_used_needed_kib": None if swap_total is None else round(swap_total * (100 - swap) / 100),
        "moving_denominator": moving,
        "fires_now_kib": now,
        "fires_below_kib": fires,
        "fires_below_percent": None if fires is None or not total else fires * 100 / total,
        "firing": describe_firing(now, fires),
    }


def _share(percent: float | None, kib: float | None, total: int | None) -> float:
    """Return a threshold in percent; of two that are given the lower counts."""
    absolute = None if kib is None or not total else min(kib * 100 / total, 100.0)
    given = [min(each, 100.0) for each in (percent, absolute) if each is not None]
    return min(given, default=10.0)


def firing_levels_kib(
    percent: float, meminfo: Mapping[str, int], *, moving: bool | None
) -> tuple[int | None, int | None]:
    """Return the MemAvailable below which earlyoom sends SIGTERM, None where unknown: as loaded now, and in the end.

    Since 1.8 (`moving`) it compares MemAvailable with a share of MemAvailable + AnonPages: while a driver takes the
    rest, with a threshold of m %, the two meet at AnonPages * m / (100 - m).
    """
    total, available, anon = (meminfo.get(key) for key in ("MemTotal", "MemAvailable", "AnonPages"))
    if moving is None or total is None:
        return None, None
    if not moving:
        return (round(total * percent / 100),) * 2
    if anon is None:
        return None, None
    now = None if available is None else round((available + anon) * percent / 100)
    return now, round(anon * percent / (100 - percent)) if percent < 100 else total  # noqa: PLR2004  # per cent


def describe_firing(now_kib: int | None, reached_kib: int | None) -> str:
    """Say below which levels earlyoom sends SIGTERM: a deploy and an audit say it in these words."""
    now, reached = ("?" if kib is None else f"{kib / (1 << 20):.3g}" for kib in (now_kib, reached_kib))
    return f"below {now} GiB as loaded now, {reached} GiB once the driver has taken the rest"


def version_numbers(text: str) -> tuple[int, ...]:
    """Return a Debian version's numbers: `1.8.2-1` is (1, 8, 2)."""
    match = re.match(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+){0,3})", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _killers(running: Sequence[Process], found: Observed) -> None:
    for process in running:
        name = _killer(process["comm"], process["argv"])
        if name is not None:
            fields = {"pid": process["pid"], "name": name, "unit": _unit(process["cgroup"])}
            found.saw("killer", f"{name} (pid {process['pid']})", **fields)


def _killer(comm: str, argv: Sequence[str]) -> str | None:
    """Return which killer a process is, by its name or by that of the script that an interpreter runs."""
    script = engines.interpreted_script(argv)
    names = {comm, script, *(posixpath.splitext(each)[0] for each in (comm, script))}
    return next((name for name in (*KILLERS, *GUARDS) if name in names), None)


RAY_THRESHOLD = "RAY_memory_usage_threshold"
RAY_REFRESH = "RAY_memory_monitor_refresh_ms"
RAY_DEFAULTS = {RAY_THRESHOLD: "0.95", RAY_REFRESH: "250"}


def _ray(host: Host, running: Sequence[Process], total_kib: int | None, found: Observed) -> None:
    """Observe Ray's own memory monitor, which is part of each raylet and on unless switched off."""
    for process in (each for each in running if each["comm"] == "raylet"):
        with found.reading("environment of raylet"):
            set_to = RAY_DEFAULTS | variables(host, process["pid"], tuple(RAY_DEFAULTS))
            threshold, refresh = _first_number(set_to[RAY_THRESHOLD]), _first_number(set_to[RAY_REFRESH])
            limit = _limit(host, process["cgroup"])["memory_max_bytes"]
            # In a container with a limit it takes that for the whole.
            whole_kib = total_kib if total_kib is None or limit is None else min(total_kib, limit >> 10)
            fires = None if threshold is None or whole_kib is None else round(whole_kib * threshold)
            found.saw(
                "ray",
                f"raylet (pid {process['pid']})",
                pid=process["pid"],
                threshold=threshold,
                refresh_ms=refresh,
                enabled=None if refresh is None else refresh > 0,
                fires_at_kib=fires,
            )
