"""Units as systemd, their files, their cgroups and their processes have them: the four can all differ."""

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plimsoll.box import cmdline, engines, systemctl
from plimsoll.box.host import TIMED_OUT, Host, Ran
from plimsoll.box.resolve_units import UNIT_DIRECTORIES, drop_in_directories, unit_files_in_order
from plimsoll.box.systemctl import SHOW_TIMEOUT_S, parse_show

CGROUP = systemctl.CGROUP
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath", "DropInPaths", "MainPID",
    "ControlGroup", "NeedDaemonReload", "MemoryMin", "MemoryLow", "OOMScoreAdjust", "CPUWeight", "IOWeight", "Listen",
    "TriggeredBy", "Requires", "Accept", "BusName", "Type", "ActiveEnterTimestampMonotonic",
)  # fmt: skip
CGROUP_FILES = ("memory.min", "memory.low", "memory.current", "cpu.weight", "io.weight", "cgroup.controllers")
MANAGER_PROPERTIES = ("Version", "RuntimeWatchdogUSec", "DefaultOOMScoreAdjust", "SystemState", "FinishTimestamp")


def read(host: Host, names: Sequence[str]) -> dict[str, Any]:
    """Return `{unit: {show, fragments, drop_ins, process, cgroup}}`; `{unit: {error}}` where systemd does not answer.

    One systemctl process serves all units; everything else is read from files.
    """
    templates = {name: _unit(host, name, {}) for name in names if "@." in name}
    shown = [name for name in names if name not in templates]
    if not _systemd_runs(host):
        return templates | {name: {"error": "systemd does not run here"} for name in shown}
    if not shown:
        return templates
    ran = host.run("systemctl", "show", "-p", ",".join(PROPERTIES), "--", *shown, timeout_s=SHOW_TIMEOUT_S)
    blocks = parse_show(ran.out)
    if ran.code != 0 or len(blocks) != len(shown):
        return templates | {name: {"error": _no_answer(ran)} for name in shown}
    return templates | {name: _unit(host, name, show) for name, show in zip(shown, blocks, strict=True)}


def _systemd_runs(host: Host) -> bool:
    """Say whether there is anybody to ask (sd_booted(3)): systemctl does not ask either, and takes 4 ms to say so."""
    return host.exists("/run/systemd/system")


def _no_answer(ran: Ran) -> str:
    """Say why systemd's answer cannot be used, without the hundred words of the question."""
    late = ran.code == TIMED_OUT
    return f"systemctl show: {f'no answer in {SHOW_TIMEOUT_S} s' if late else ran.problem}"


def _unit(host: Host, name: str, show: dict[str, str]) -> dict[str, Any]:
    own = show.get("Id") or name
    pid = int(show.get("MainPID") or 0)
    group = show.get("ControlGroup") or default_cgroup(own)
    aliases = sorted(set(show.get("Names", "").split()) - {own})
    files = files_of(host, own, aliases)
    return {
        "show": show,
        **files,
        "environment": cmdline.environment(unit_files_in_order(files), host.file),
        "process": process(host, pid) if pid else None,
        "cgroup": cgroup_chain(host, group) if group else [],
    }


def files_of(host: Host, unit: str, aliases: Iterable[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return `{fragments, drop_ins}` of a unit, the most important first; an instance's own before its template's."""
    prefix, at, rest = unit.partition("@")
    names = dict.fromkeys([unit, f"{prefix}@.{rest.rpartition('.')[2]}"] if at else [unit])
    fragments = _files(host, [f"{d}/{name}" for name in names for d in UNIT_DIRECTORIES])
    return {"fragments": fragments, "drop_ins": drop_ins(host, unit, aliases)}


def default_cgroup(unit: str) -> str:
    """Return the cgroup of a slice, which `systemctl show` leaves empty until something runs in it."""
    return "/" + unit if unit.endswith(".slice") and "-" not in unit else ""


def drop_ins(host: Host, unit: str, aliases: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the drop-ins of a unit, those first that hide others of the same file name.

    Seen with systemd 252: what is given to an alias (sshd.service) counts for the unit as well; /etc goes before
    /usr/lib even if its directory is less specific, but what is for all units of the type comes last.
    """
    chains = [drop_in_directories(name) for name in (unit, *aliases)]
    specific = [f"{base}/{name}" for *names, _type in chains for base in UNIT_DIRECTORIES for name in names]
    by_type = [f"{base}/{chains[0][-1]}" for base in UNIT_DIRECTORIES]
    return _files(host, conf_paths(host, (*specific, *by_type)))


def conf_paths(host: Host, directories: Iterable[str]) -> list[str]:
    """Return the paths in directories that systemd and its like read: `*.conf`, and none that begins with a dot."""
    names = ((d, n) for d in directories for n in host.names(d))
    return [f"{d}/{n}" for d, n in names if n.endswith(".conf") and not n.startswith(".")]


def _files(host: Host, paths: Iterable[str]) -> list[dict[str, Any]]:
    seen: set[str] = set()
    found = []
    for path in (each for each in paths if os.path.lexists(host.path(each))):
        # /lib is a link to /usr/lib on a merged system: the same file must not count as two.
        real = os.path.realpath(host.path(posixpath.dirname(path))) + "/" + posixpath.basename(path)
        file = None if real in seen else host.file(path)
        if file is not None:
            seen.add(real)
            found.append(file)
    return found


def cgroup_chain(host: Host, group: str) -> list[dict[str, Any]]:
    """Return the cgroup and its ancestors below the root, itself first: `{path, memory.min, …}`, texts or None."""
    chain = []
    while group not in ("", "/"):
        directory = CGROUP + group
        if host.exists(directory):
            values = {name: host.text_or_none(f"{directory}/{name}") for name in CGROUP_FILES}
            chain.append({"path": directory, **values})
        group = posixpath.dirname(group)
    return chain


def process(host: Host, pid: int) -> dict[str, Any] | None:
    """Return a process's name, argv, score, parent, owner and start (seconds after boot); None when it is gone."""
    arguments = _arguments(host, pid)
    return None if arguments is None else _process(host, pid, arguments)


def _arguments(host: Host, pid: int) -> list[str] | None:
    try:
        return host.text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    except OSError:
        return None


def _process(host: Host, pid: int, arguments: list[str]) -> dict[str, Any] | None:
    try:
        # It may end between any two of these.
        name, _, rest = host.text(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
        fields = rest.split()
        return {
            "pid": pid,
            "comm": name,
            "argv": arguments,
            "oom_score_adj": int(host.text(f"/proc/{pid}/oom_score_adj")),
            "ppid": int(fields[1]),
            "uid": os.stat(host.path(f"/proc/{pid}")).st_uid,
            "cgroup": (host.text_or_none(f"/proc/{pid}/cgroup") or "").rpartition("::")[2],
            "started_s": int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        }
    except (OSError, ValueError, IndexError):
        return None


def processes(host: Host) -> list[dict[str, Any]]:
    """Return every process that could be read; kernel threads, which have no arguments, are left out."""
    pids = (int(name) for name in host.names("/proc") if name.isdigit())
    arguments = ((pid, _arguments(host, pid)) for pid in pids)
    # of a kernel thread, as half of all are on a large machine, nothing else is read
    found = (_process(host, pid, argv) for pid, argv in arguments if argv not in (None, [""]))
    return [p for p in found if p is not None]


def matters(item: dict[str, Any]) -> bool:
    """Say whether a verdict over scores needs this process: user managers, sshd's, and those of login sessions.

    Of what user managers started, those that the OOM killer would take before others.
    """
    preferred = "/user@" in item["cgroup"] and item["oom_score_adj"] > 0
    in_session = "/session-" in item["cgroup"]
    return preferred or in_session or str(item["comm"]).startswith("sshd") or is_user_manager(item)


def shortened(item: dict[str, Any]) -> dict[str, Any]:
    """Return a process with the beginning of its arguments only: the rest may be long, and may be secret."""
    return {**item, "argv": item["argv"][:2]}


def is_user_manager(item: Mapping[str, Any]) -> bool:
    """Say whether a process is some user's own systemd (argv `systemd --user`, in the cgroup init.scope)."""
    in_init_scope = str(item["cgroup"]).endswith(".service/init.scope")
    return in_init_scope and bool(item["comm"] == "systemd") and bool(item["pid"] != 1)


def is_engine(item: Mapping[str, Any]) -> bool:
    """Say whether a process is a model server, wherever it was started from."""
    return engines.of_process(item["comm"], item["argv"]) is not None


def manager(host: Host) -> dict[str, str]:
    """Return properties of the system manager; empty where it does not answer."""
    if not _systemd_runs(host):
        return {}
    ran = host.run("systemctl", "show", "-p", ",".join(MANAGER_PROPERTIES), timeout_s=SHOW_TIMEOUT_S)
    blocks = parse_show(ran.out)
    return blocks[0] if ran.code == 0 and blocks else {}
