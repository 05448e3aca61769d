"""Every process, cheaply: names and numbers in each round, open files and cgroups again only at intervals.

Reading 5,000 processes anew takes a quarter of a second of a core; most have not changed since the last round.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import NamedTuple

from plimsoll.box import engines
from plimsoll.box.guard.patience import Patient
from plimsoll.box.host import Host

GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm")
"""Device files of which an open one marks who uses the GPU."""
AGAIN_S = 30.0
"""After this time an old process is looked at again: it may have opened the GPU since. While memory falls: always."""
YOUNG_S = 60.0
"""For so long a process is looked at in every round: a model server opens the GPU seconds after its start."""
LOOKS_A_ROUND = 10_000
"""Processes that are looked at in one round (70 us each), those that matter before all others: a fork bomb has more."""
LINKS_A_ROUND = 60_000
"""Open files that are looked at in one round (3 to 4 us each); the rest is left for the next one."""
MAX_ARGUMENTS_BYTES = 4096
MAX_NAMED = 5
_KERNEL_THREAD = 0x00200000
_STAT_BYTES = 1024
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class Seen(NamedTuple):
    """One process as it was last looked at; its name and arguments are its own doing, and not to be trusted."""

    pid: int
    start_ticks: int
    ppid: int
    pgrp: int
    comm: str
    cgroup: str
    uid: int
    resident_kib: int
    kernel_ticks: int
    """Time that the kernel worked for it: to allocate memory is the kernel's work."""
    argv: tuple[str, ...] = ()
    engine: str | None = None
    devices: frozenset[str] | None = frozenset()
    """The GPU's device files that it has open; None where that cannot be read."""


@dataclass(frozen=True)
class Scan:
    """All processes but the kernel's own, and what could not be looked at."""

    processes: tuple[Seen, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Stat:
    """What `/proc/PID/stat` says of a process."""

    comm: str
    state: str
    ppid: int
    pgrp: int
    flags: int
    kernel_ticks: int
    threads: int
    start_ticks: int
    resident_kib: int

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only its number is left; where its first thread has, others may go on."""
        return self.state in "ZX" and self.threads <= 1


def parse_stat(text: bytes) -> Stat | None:
    """Return what a stat file says, None for what is none; a name may hold brackets, blanks and line ends."""
    name, bracket, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    try:
        numbers = [int(each) for each in fields[1:22]]
    except ValueError:
        return None
    if not bracket or len(numbers) < 21:  # noqa: PLR2004  # proc(5): rss is the 24th field
        return None
    return Stat(
        comm=name.decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        ppid=numbers[0],
        pgrp=numbers[1],
        flags=numbers[5],
        kernel_ticks=numbers[11],
        threads=numbers[16],
        start_ticks=numbers[18],
        resident_kib=numbers[20] * _PAGE_KIB,
    )


def read_stat(host: Host, pid: int) -> Stat | None:
    """Return what the kernel says of a process now, None when it is gone."""
    text = _bytes(host, f"/proc/{pid}/stat", _STAT_BYTES)
    return None if text is None else parse_stat(text)


def _bytes(host: Host, path: str, limit: int) -> bytes | None:
    try:
        descriptor = os.open(host.path(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@dataclass
class _Known:
    seen: Seen | None
    """None for a thread of the kernel."""
    first_s: float
    again_s: float = 0.0
    named: str | None = None
    """The name that it had when its arguments were read: with another one it runs another program."""
    matters: bool = False
    """Whether it uses the GPU or is a model server: such a one is looked at in every round."""


class Scanner:
    """Looks at all processes, again and again; one caller at a time."""

    def __init__(self, host: Host, gpu_devices: Sequence[str] = GPU_DEVICES) -> None:
        self._host = host
        self.mark_gpu_by(gpu_devices)
        self._known: dict[int, _Known] = {}
        self._arguments: Patient[int, tuple[str, ...]] = Patient(self._read_arguments)
        self._looks_left = self._links_left = self._put_off = 0

    def mark_gpu_by(self, devices: Sequence[str]) -> None:
        """Take an open one of these device files (globs) for use of the GPU."""
        self._is_gpu = re.compile("|".join(translate(each) for each in devices) or "(?!)")

    def scan(self, at_s: float, *, thorough: bool = False) -> Scan:
        """Return what runs now; `thorough` looks at every process's open files, whenever they were last looked at."""
        self._looks_left, self._links_left, self._put_off = LOOKS_A_ROUND, LINKS_A_ROUND, 0
        unnamed: list[int] = []
        found: dict[int, _Known] = {}
        for pid in self._in_order(self._pids()):
            known = self._known.get(pid)
            if known is None or thorough or at_s >= known.again_s or known.matters:
                known = self._look_if_time(pid, known, at_s, unnamed, thorough=thorough)
            if known is not None:
                found[pid] = known
        self._known = found
        self._name(unnamed)
        processes = tuple(each.seen for each in found.values() if each.seen is not None)
        return Scan(processes, tuple(self._problems(processes)))

    def _pids(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._host.path("/proc")) if name.isdecimal()]
        except OSError:
            return []

    def _in_order(self, pids: Iterable[int]) -> list[int]:
        """Return those first that matter, then the newest: where there is not time for all, these are worth it."""
        mattering = {pid for pid, known in self._known.items() if known.matters}
        return sorted(pids, key=lambda pid: (pid not in mattering, -pid))

    def _look_if_time(
        self, pid: int, known: _Known | None, at_s: float, unnamed: list[int], *, thorough: bool
    ) -> _Known | None:
        if self._looks_left <= 0:
            self._put_off += 1
            return known
        self._looks_left -= 1
        return self._look(pid, known, at_s, unnamed, thorough=thorough)

    def _look(
        self, pid: int, known: _Known | None, at_s: float, unnamed: list[int], *, thorough: bool
    ) -> _Known | None:
        stat = read_stat(self._host, pid)
        if stat is None or stat.is_dead:
            return None
        if stat.flags & _KERNEL_THREAD:
            return _Known(None, at_s, at_s + AGAIN_S)
        before = known.seen if known else None
        if known is None or before is None or before.start_ticks != stat.start_ticks:
            known, before = _Known(None, at_s), None
        if known.named != stat.comm:
            unnamed.append(pid)
        is_due = before is None or thorough or at_s >= known.again_s
        known.seen = self._details(pid, stat, before) if is_due else _counted(before, stat)
        if is_due:
            # Spread over time, so that no round has to look at all of them.
            is_young = at_s - known.first_s < YOUNG_S
            known.again_s = at_s if is_young or self._links_left <= 0 else at_s + AGAIN_S * (0.5 + pid % 16 / 32)
        if known.seen is None:
            return None
        known.matters = bool(known.seen.devices) or known.seen.engine is not None
        return known

    def _details(self, pid: int, stat: Stat, before: Seen | None) -> Seen | None:
        base = f"/proc/{pid}"
        try:
            uid = os.stat(self._host.path(base)).st_uid
            with open(self._host.path(f"{base}/cgroup"), "rb", buffering=0) as file:
                lines = file.read(8192).decode("utf-8", "surrogateescape").split("\n")
        except OSError:
            return None
        cgroup = next((line[3:] for line in lines if line.startswith("0::")), "")
        return Seen(
            pid=pid,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            pgrp=stat.pgrp,
            comm=stat.comm,
            cgroup=cgroup,
            uid=uid,
            resident_kib=stat.resident_kib,
            kernel_ticks=stat.kernel_ticks,
            argv=before.argv if before else (),
            engine=before.engine if before else None,
            devices=self._devices(pid, stat, before),
        )

    def _devices(self, pid: int, stat: Stat, before: Seen | None) -> frozenset[str] | None:
        if self._links_left <= 0:
            self._put_off += 1
            return before.devices if before else frozenset()
        directory = self._host.path(f"/proc/{pid}/fd")
        if stat.state in "ZX":
            directory = self._host.path(f"/proc/{pid}/task/{self._living_thread(pid)}/fd")
        try:
            names = os.listdir(directory)
        except PermissionError:
            return None
        except OSError:
            return frozenset()
        self._links_left -= len(names)
        try:
            return frozenset(link for name in names if self._is_gpu.match(link := _link(f"{directory}/{name}")))
        except PermissionError:
            # Without CAP_SYS_PTRACE they can be counted, but not followed.
            return None

    def _living_thread(self, pid: int) -> str:
        """Return a thread of a process whose first one has ended: that one has no open files any more."""
        try:
            threads = os.listdir(self._host.path(f"/proc/{pid}/task"))
        except OSError:
            threads = []
        return next((each for each in threads if each != str(pid)), str(pid))

    def _name(self, pids: Iterable[int]) -> None:
        for pid, argv in self._arguments.read(pids).items():
            known = self._known[pid]
            if known.seen is not None:
                engine = engines.of_process(known.seen.comm, argv)
                known.named = known.seen.comm
                known.seen = known.seen._replace(argv=argv, engine=engine)
                known.matters = bool(known.seen.devices) or engine is not None

    def _read_arguments(self, pid: int) -> tuple[str, ...] | None:
        text = _bytes(self._host, f"/proc/{pid}/cmdline", MAX_ARGUMENTS_BYTES)
        return None if text is None else tuple(text.decode("utf-8", "replace").rstrip("\0").split("\0"))

    def _problems(self, processes: Sequence[Seen]) -> Iterable[str]:
        hidden = [each.pid for each in processes if each.devices is None]
        if hidden:
            named = ", ".join(str(pid) for pid in hidden[:MAX_NAMED])
            yield f"open files of {len(hidden)} processes cannot be read: pid {named}"
        if self._put_off:
            yield f"{self._put_off} of very many processes, or their open files, are left for the next round"
        if self._arguments.stuck:
            named = ", ".join(str(pid) for pid in self._arguments.stuck)
            yield f"arguments cannot be read, the kernel does not answer: pid {named}"


def _counted(before: Seen | None, stat: Stat) -> Seen | None:
    if before is None:
        return None
    return before._replace(
        ppid=stat.ppid,
        pgrp=stat.pgrp,
        comm=stat.comm,
        resident_kib=stat.resident_kib,
        kernel_ticks=stat.kernel_ticks,
    )


def _link(path: str) -> str:
    """Return what an open file is, empty where it was closed meanwhile; raises PermissionError."""
    try:
        return os.readlink(path)
    except PermissionError:
        raise
    except OSError:
        return ""
