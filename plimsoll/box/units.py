"""Units as systemd, their files, their cgroups and their processes have them: the four can all differ."""

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any

from plimsoll.box.host import Host
from plimsoll.box.resolve import UNIT_DIRECTORIES, drop_in_directories

CGROUP = "/sys/fs/cgroup"
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath", "DropInPaths", "MainPID",
    "ControlGroup", "NeedDaemonReload", "MemoryMin", "MemoryLow", "OOMScoreAdjust", "CPUWeight", "IOWeight", "Listen",
    "TriggeredBy", "Requires", "Accept", "BusName", "Type", "ActiveEnterTimestampMonotonic",
)  # fmt: skip
CGROUP_FILES = ("memory.min", "memory.low", "memory.current", "cpu.weight", "io.weight", "cgroup.controllers")
MANAGER_PROPERTIES = ("Version", "RuntimeWatchdogUSec", "DefaultOOMScoreAdjust", "SystemState", "FinishTimestamp")


def parse_show(text: str) -> list[dict[str, str]]:
    """Return `systemctl show` output as one mapping a unit; a repeated property keeps its values a line each."""
    blocks = []
    for paragraph in text.strip().split("\n\n"):
        found: dict[str, str] = {}
        for line in paragraph.splitlines():
            key, equals, value = line.partition("=")
            if equals:
                found[key] = f"{found[key]}\n{value}" if key in found else value
        if found:
            blocks.append(found)
    return blocks


def read(host: Host, names: Sequence[str]) -> dict[str, Any]:
    """Return `{unit: {show, fragments, drop_ins, process, cgroup}}`; `{unit: {error}}` where systemd does not answer.

    One systemctl process serves all units; everything else is read from files.
    """
    templates = {name: _unit(host, name, {}) for name in names if "@." in name}
    shown = [name for name in names if name not in templates]
    if not shown:
        return templates
    ran = host.run("systemctl", "show", "-p", ",".join(PROPERTIES), "--", *shown)
    blocks = parse_show(ran.out)
    if ran.code != 0 or len(blocks) != len(shown):
        return {name: {"error": f"systemctl show: {ran.problem}"} for name in shown}
    return templates | {name: _unit(host, name, show) for name, show in zip(shown, blocks, strict=True)}


def _unit(host: Host, name: str, show: dict[str, str]) -> dict[str, Any]:
    own = show.get("Id") or name
    pid = int(show.get("MainPID") or 0)
    group = show.get("ControlGroup") or default_cgroup(own)
    return {
        "show": show,
        "fragments": _files(host, [f"{d}/{own}" for d in UNIT_DIRECTORIES]),
        "drop_ins": drop_ins(host, own),
        "process": process(host, pid) if pid else None,
        "cgroup": cgroup_chain(host, group) if group else [],
    }


def default_cgroup(unit: str) -> str:
    """Return the cgroup of a slice, which `systemctl show` leaves empty until something runs in it."""
    return "/" + unit if unit.endswith(".slice") and "-" not in unit else ""


def drop_ins(host: Host, unit: str) -> list[dict[str, Any]]:
    """Return the drop-ins of a unit, the most important directory first, the most specific name before the type's."""
    found = []
    for name in drop_in_directories(unit):
        for base in UNIT_DIRECTORIES:
            directory = f"{base}/{name}"
            found.extend(_files(host, [f"{directory}/{n}" for n in host.names(directory) if n.endswith(".conf")]))
    return found


def _files(host: Host, paths: Iterable[str]) -> list[dict[str, Any]]:
    seen: set[str] = set()
    found = []
    for path in paths:
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
    stat = host.text_or_none(f"/proc/{pid}/stat")
    raw = host.text_or_none(f"/proc/{pid}/cmdline")
    score = host.text_or_none(f"/proc/{pid}/oom_score_adj")
    if stat is None or raw is None or score is None:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return {
        "pid": pid,
        "comm": name,
        "argv": raw.rstrip("\0").split("\0"),
        "oom_score_adj": int(score),
        "ppid": int(fields[1]),
        "uid": os.stat(host.path(f"/proc/{pid}")).st_uid,
        "cgroup": (host.text_or_none(f"/proc/{pid}/cgroup") or "").rpartition("::")[2],
        "started_s": int(fields[19]) / os.sysconf("SC_CLK_TCK"),
    }


def processes(host: Host) -> list[dict[str, Any]]:
    """Return every process that could be read; kernel threads, which have no arguments, are left out."""
    found = (process(host, int(name)) for name in host.names("/proc") if name.isdigit())
    return [p for p in found if p is not None and p["argv"] != [""]]


def matters(item: dict[str, Any]) -> bool:
    """Say whether a verdict over scores needs this process: user managers, sshd's, and those of login sessions."""
    return "/session-" in item["cgroup"] or str(item["comm"]).startswith("sshd") or is_user_manager(item)


def shortened(item: dict[str, Any]) -> dict[str, Any]:
    """Return a process with the beginning of its arguments only: the rest may be long, and may be secret."""
    return {**item, "argv": item["argv"][:2]}


def is_user_manager(item: dict[str, Any]) -> bool:
    """Say whether a process is some user's own systemd (argv `systemd --user`, in the cgroup init.scope)."""
    in_init_scope = str(item["cgroup"]).endswith(".service/init.scope")
    return in_init_scope and bool(item["comm"] == "systemd") and bool(item["pid"] != 1)


ENGINES = re.compile(r"vllm|VLLM::|llama-server|ollama|sglang|tritonserver|trtllm")
"""Names of model servers, as they appear in a process name (cut at 15 characters) or its first two arguments."""


def is_engine(item: dict[str, Any]) -> bool:
    """Say whether a process is a model server, wherever it was started from."""
    return ENGINES.search(" ".join([item["comm"], *item["argv"][:2]])) is not None


def manager(host: Host) -> dict[str, str]:
    """Return properties of the system manager; empty where it does not answer."""
    ran = host.run("systemctl", "show", "-p", ",".join(MANAGER_PROPERTIES))
    blocks = parse_show(ran.out)
    return blocks[0] if ran.code == 0 and blocks else {}
