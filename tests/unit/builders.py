"""A machine that is only a directory: files below a root, and a systemd that is a dictionary."""

import copy
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.host import Host, Ran
from plimsoll.box.model import Kind, Wanted

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files of root's are judged, and only root can make them")

MEMINFO = """\
MemTotal:       127533056 kB
MemFree:        100000000 kB
MemAvailable:   118000000 kB
AnonPages:        2000000 kB
KReclaimable:      600000 kB
SReclaimable:      500000 kB
CmaTotal:          131072 kB
CmaFree:            70000 kB
HugePages_Total:       0
"""
SYSCTLS = {
    "vm/min_free_kbytes": "45056",
    "vm/watermark_boost_factor": "15000",
    "kernel/sysrq": "438",
    "kernel/hung_task_timeout_secs": "120",
    "kernel/hung_task_warnings": "10",
    "kernel/hung_task_panic": "0",
    "kernel/softlockup_panic": "0",
    "kernel/panic_on_oops": "0",
    "kernel/panic": "0",
    "kernel/hostname": "box",
    "kernel/osrelease": "6.17.0-1014-nvidia",
    "kernel/random/boot_id": "b0071d",
}
CGROUP = {"memory.min": "0", "memory.low": "0", "memory.current": "1", "cpu.weight": "100", "io.weight": "default 100"}
RUNNING = ("ssh.service", "systemd-journald.service", "dbus.service", "systemd-logind.service")
PIDS = {"ssh.service": 700, "systemd-journald.service": 300}


def file(path: str, text: str) -> dict[str, Any]:
    """Return a readable file as a state holds it."""
    return {"path": path, "text": text}


def masked(path: str) -> dict[str, Any]:
    """Return a link to /dev/null as a state holds it."""
    return {"path": path, "masked": True}


def unreadable(path: str) -> dict[str, Any]:
    """Return a file that could not be read as a state holds it."""
    return {"path": path, "error": "Input/output error"}


def ours(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any of the fields, which differ in type
    """Return one of our own files as a state holds it."""
    kept = {"text": "", "mode": "0644", "uid": 0, "gid": 0, "sha256": "0" * 64, "changed_s": 0.0, "replaced_s": 0.0}
    return {**kept, **changes}


def unit(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    """Return a running unit as a state holds it; `show` is added to what systemctl says of it."""
    show = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", **changes.pop("show", {})}
    empty: dict[str, Any] = {
        "fragments": [],
        "drop_ins": [],
        "environment": {"variables": {}},
        "process": None,
        "cgroup": [],
    }
    return {"show": show, **empty, **changes}


def process(pid: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    """Return a process as a state holds it."""
    base = {"pid": pid, "comm": "x", "argv": ["x"], "oom_score_adj": 0, "ppid": 1, "uid": 0, "cgroup": "/x"}
    return {**base, "started_s": 10.0, **changes}


def state(**sections: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    """Return a state in which nothing is set and nothing is found, but for `sections`."""
    nothing: dict[str, Any] = {
        "sysctl": {},
        "sysctl_files": {"sysctl_d": [], "etc_sysctl_conf": None, "ufw": None},
        "units": {"systemd-journald.service": unit(process=process(300, comm="systemd-journal"))},
        "cgroup_controllers": "cpuset cpu io memory pids",
        "manager": {"Version": "257"},
        "manager_files": {name: {"mains": [], "drop_ins": []} for name in ("system", "user", "journald")},
        "processes": [],
        "watchdogs": [],
        "packages": {},
        "files": {},
        "modules": {},
        "platform": {"driver": {"system_memory_pools": None}, "cmdline": ""},
        "proofs": {},
        "taken": {"unix_s": 1_000_000.0, "uptime_s": 1000.0},
    }
    return copy.deepcopy({**nothing, **sections})


def sysctl(key: str, value: str, **changes: Any) -> Wanted:  # noqa: ANN401  # as above
    """Return a wanted kernel setting, kept in our own file."""
    fields = {"file": "/etc/sysctl.d/zz-plimsoll.conf", **changes}
    return Wanted(f"kernel/{key}", "kernel", Kind.SYSCTL, key, value, **fields)


def unit_property(unit_name: str, name: str, value: str, section: str = "Service") -> Wanted:
    """Return a wanted property of a unit, kept in our drop-in."""
    path = f"/etc/systemd/system/{unit_name}.d/plimsoll.conf"
    return Wanted(f"x/{name}", "x", Kind.UNIT_PROPERTY, unit_name, value, name=name, section=section, file=path)


def write_tree(root: Path, files: dict[str, str]) -> None:
    """Write files below `root`."""
    for path, text in files.items():
        real = root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)


def names_in(directory: Path) -> list[str]:
    """Return the sorted names in a directory."""
    return sorted(path.name for path in directory.iterdir())


def tree(root: Path) -> dict[str, tuple[str, str]]:
    """Return everything below `root`: path -> (mode, content or link target; `directory` for one)."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = f"{path.lstat().st_mode:o}"
        if path.is_symlink():
            found[str(path.relative_to(root))] = (mode, f"-> {path.readlink()}")
        else:
            content = "directory" if path.is_dir() else path.read_bytes().hex()
            found[str(path.relative_to(root))] = (mode, content)
    return found


@dataclass(frozen=True)
class FakeHost(Host):
    """A Host whose systemctl knows `units` and whose other commands do nothing and succeed."""

    units: dict[str, dict[str, str]] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    failing: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Commands (their first words) that fail, with what they say."""

    def run(self, *argv: str, timeout_s: float = 20, given: str | None = None) -> Ran:
        """Answer as systemctl would; everything else succeeds without a word."""
        del timeout_s, given
        self.calls.append(argv)
        for words, message in self.failing.items():
            if argv[: len(words)] == words:
                return Ran(1, "", message)
        if argv[:2] == ("systemctl", "show"):
            return self._show(argv)
        if argv[0] == "systemctl":
            self._change(argv[1], argv[-1])
        return Ran(0, "", "")

    def _show(self, argv: tuple[str, ...]) -> Ran:
        wanted = argv[argv.index("-p") + 1].split(",")
        if "--" not in argv:
            known = {"Version": "257.13", "DefaultOOMScoreAdjust": "0", "SystemState": "running"}
            return Ran(0, "".join(f"{k}={known.get(k, '')}\n" for k in wanted), "")
        blocks = (self._properties(name) for name in argv[argv.index("--") + 1 :])
        return Ran(0, "\n".join("".join(f"{k}={b.get(k, '')}\n" for k in wanted) for b in blocks), "")

    def _properties(self, name: str) -> dict[str, str]:
        nothing = {"Id": name, "Names": name, "LoadState": "not-found", "ActiveState": "inactive", "MainPID": "0"}
        return {**nothing, **self.units.get(name, {})}

    def _change(self, verb: str, name: str) -> None:
        unit_file = {"enable": "enabled", "disable": "disabled", "mask": "masked", "unmask": "disabled"}
        activity = {"start": "active", "stop": "inactive"}
        if verb in unit_file:
            self.units.setdefault(name, {"LoadState": "loaded"})["UnitFileState"] = unit_file[verb]
        if verb in activity:
            self.units.setdefault(name, {"LoadState": "loaded"})["ActiveState"] = activity[verb]
        if verb == "restart" and int(self.units.get(name, {}).get("MainPID", "0")):
            self._restart(name, int(self.units[name]["MainPID"]))

    def _restart(self, name: str, pid: int) -> None:
        """Give the unit's process a new start, and the score that the drop-in of ours has."""
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        drop_in = self.text_or_none(f"/etc/systemd/system/{name}.d/plimsoll.conf") or ""
        score = re.search(r"^OOMScoreAdjust=(.*)$", drop_in, re.MULTILINE)
        old = self.text(f"/proc/{pid}/oom_score_adj")
        comm = self.text(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")[0]
        # sshd's listener sets -1000 for itself, whatever it was started with
        kept = -1000 if comm == "sshd" else int(score[1] if score else old)
        files = process_files(pid, comm, score=kept, started=ticks)
        write_tree(Path(self.root), {path: text for path, text in files.items() if not path.endswith("cgroup")})


def process_files(pid: int, comm: str, *, score: int = 0, cgroup: str = "/", started: int = 1000) -> dict[str, str]:
    """Return the files of a process in /proc; `started` is in ticks since boot."""
    rest = " ".join(["S", "1", *["0"] * 17, str(started), "0"])
    return {
        f"/proc/{pid}/stat": f"{pid} ({comm}) {rest}\n",
        f"/proc/{pid}/cmdline": f"/usr/sbin/{comm}\0-D\0",
        f"/proc/{pid}/oom_score_adj": f"{score}\n",
        f"/proc/{pid}/cgroup": f"0::{cgroup}\n",
    }


def stock_files() -> dict[str, str]:
    """Return the files of a machine with 121.6 GiB on which nothing was ever done."""
    groups = ["system.slice", "user.slice", *(f"system.slice/{name}" for name in RUNNING)]
    cgroups = {f"/sys/fs/cgroup/{g}/{name}": f"{value}\n" for g in groups for name, value in CGROUP.items()}
    return {
        **{f"/proc/sys/{key}": f"{value}\n" for key, value in SYSCTLS.items()},
        **cgroups,
        **process_files(700, "sshd", score=-1000, cgroup="/system.slice/ssh.service"),
        **process_files(300, "systemd-journal", score=-250, cgroup="/system.slice/systemd-journald.service"),
        "/proc/meminfo": MEMINFO,
        "/proc/vmstat": "oom_kill 0\nnr_free_pages 5\n",
        "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777212\t0\t-2\n",
        "/proc/cmdline": "root=/dev/x quiet\n",
        "/proc/1/comm": "systemd\n",
        "/run/systemd/system/.keep": "",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "/var/lib/dpkg/status": "Package: systemd\nStatus: install ok installed\nVersion: 257.13-1\n",
        "/etc/os-release": "ID=debian\n",
    }


def stock_host(root: Path, **more_files: str) -> FakeHost:
    """Return a stock machine below `root`."""
    write_tree(root, {**stock_files(), **more_files})
    loaded = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
    units: dict[str, dict[str, str]] = {}
    for name in RUNNING:
        group = f"/system.slice/{name}"
        units[name] = {**loaded, "Id": name, "Names": name, "MainPID": str(PIDS.get(name, 0)), "ControlGroup": group}
    units["ssh.service"] |= {"Names": "ssh.service sshd.service", "OOMScoreAdjust": "0"}
    for name in ("system.slice", "user.slice"):
        units[name] = {**loaded, "Id": name, "Names": name, "UnitFileState": "static", "ControlGroup": f"/{name}"}
    for name in ("plimsoll-verify.timer", "plimsoll-verify.path"):
        units[name] = {"Id": name, "Names": name, "LoadState": "loaded", "ActiveState": "inactive"}
        units[name]["UnitFileState"] = "disabled"
    return FakeHost(root=str(root), units=units)
