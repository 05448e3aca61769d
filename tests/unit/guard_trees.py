"""Look-alikes of /proc and /sys/fs/cgroup for the guard's discovery, and processes as plain data."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.box.guard.processes import Seen

ID = "ab" * 32
OTHER_ID = "cd" * 32
MIB = 1 << 10
GIB = 1 << 20
UVM = frozenset({"/dev/nvidia0", "/dev/nvidia-uvm"})
GRAPHICS = frozenset({"/dev/nvidia0", "/dev/nvidiactl"})
DOCKER = f"/system.slice/docker-{ID}.scope"
SESSION = "/user.slice/user-1000.slice/session-3.scope"
USER_MANAGER = "/user.slice/user-1000.slice/user@1000.service"
_PIDS = itertools.count(1000)


def seen(cgroup: str, comm: str = "python3", **others: object) -> Seen:
    """Return a process that leads a group of its own, but for what is said otherwise."""
    pid = others.get("pid") or next(_PIDS)
    fields: dict[str, object] = {
        "pid": pid,
        "start_ticks": 100,
        "ppid": 2,
        "pgrp": pid,
        "comm": comm,
        "cgroup": cgroup,
        "uid": 1000,
        "resident_kib": 100 * MIB,
        "kernel_ticks": 0,
        "argv": (comm,),
    }
    return Seen(**{**fields, **others})  # type: ignore[arg-type]  # a test may give any of its fields


@dataclass
class Shown:
    """What /proc shows of a process that is in none."""

    pid: int
    comm: str
    cgroup: str
    argv: Sequence[str] = ()
    links: Sequence[str] = ()
    """What its open files are."""
    start: int = 100
    ppid: int = 1
    flags: int = 0
    state: str = "S"
    rss_kib: int = 4096
    kernel_ticks: int = 7

    def write(self, root: Path) -> Path:
        """Write it below a root; return its directory."""
        directory = root / "proc" / str(self.pid)
        (directory / "fd").mkdir(parents=True, exist_ok=True)
        pages = self.rss_kib * 1024 // os.sysconf("SC_PAGE_SIZE")
        ids = (self.state, self.ppid, self.pid, self.pid, 0, -1, self.flags)
        fields = [*ids, *[0] * 5, self.kernel_ticks, 0, 0, 20, 0, 1, 0, self.start, 0, pages, *[0] * 28]
        (directory / "stat").write_text(f"{self.pid} ({self.comm}) {' '.join(map(str, fields))}\n")
        (directory / "cgroup").write_text(f"0::{self.cgroup}\n")
        words = self.argv or (self.comm,)
        (directory / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        for number, link in enumerate(self.links):
            (directory / "fd" / str(number)).symlink_to(link)
        return directory
