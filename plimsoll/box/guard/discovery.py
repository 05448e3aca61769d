"""What runs on this host and could be stopped: the reading around `workloads`, for a thread of its own.

It may take long, or for ever: the kernel answers nobody about a process that is stuck. So the guard decides on what
this has found last, and never waits for it.
"""

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plimsoll.box.guard import growth as growing
from plimsoll.box.guard import names as naming
from plimsoll.box.guard.config import Selector
from plimsoll.box.guard.gpu import Told, driver_held_kib
from plimsoll.box.guard.growth import Growth, Holding, Look
from plimsoll.box.guard.model import KIB_PER_GIB, Process, Workload
from plimsoll.box.guard.patience import Patient
from plimsoll.box.guard.places import place_of
from plimsoll.box.guard.processes import GPU_DEVICES, Scanner, Seen
from plimsoll.box.guard.workloads import Found, Target, Wishes, workloads
from plimsoll.box.host import Host
from plimsoll.box.memory import parse_meminfo
from plimsoll.box.units import CGROUP

NAMES_PATIENCE_S = 3.0
"""A home directory may be on a server that does not answer."""
NAMES_AGAIN_S = 10.0
"""A container is new or has a new name at most so often that its files are read again."""
_CHARGED = ("anon", "shmem")
"""Of memory.stat, what is no cache: to read a model's file is not to hold memory."""


@dataclass(frozen=True)
class Discovered:
    """All that one look found; KiB and seconds of the monotonic clock."""

    at_s: float
    workloads: tuple[Workload, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)
    """Who gets SIGTERM, by the workload's key."""
    computing: frozenset[str] = frozenset()
    """Keys of those that compute, protected ones included."""
    meminfo: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What could not be looked at, and why."""


class Discovery:
    """Looks again and again; one caller at a time."""

    def __init__(
        self,
        host: Host,
        gpu_devices: Sequence[str] = GPU_DEVICES,
        protect: tuple[Selector, ...] = (),
        prefer: tuple[Selector, ...] = (),
    ) -> None:
        self._host = host
        self._scanner = Scanner(host)
        self._wishes = Wishes(
            own_pid=os.getpid(),
            own_cgroup=_own_cgroup(host),
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
        )
        self._growth = Growth()
        self._names: naming.Found = {}
        self._names_for: frozenset[str] = frozenset()
        self._names_read_s = float("-inf")
        self._names_problems: tuple[str, ...] = ()
        self._naming = Patient(self._names_of, patience_s=NAMES_PATIENCE_S)
        self._listens: dict[Process, bool] = {}
        self.go_by(gpu_devices, protect, prefer)

    def go_by(
        self, gpu_devices: Sequence[str], protect: tuple[Selector, ...] = (), prefer: tuple[Selector, ...] = ()
    ) -> None:
        """Have the next look go by other wishes of the operator; from any thread."""
        self._scanner.mark_gpu_by(gpu_devices)
        self._wishes = replace(self._wishes, protect=protect, prefer=prefer)

    def look(
        self, at_s: float, told: Told, available_kib: int | None, reserved: frozenset[str] = frozenset(),
        *, thorough: bool = False,
    ) -> Discovered:  # fmt: skip
        """Return what could be stopped now; `thorough`: while memory falls, every process's open files are looked at.

        `reserved` are the selectors of reservations: what they mean is found though it may not use the GPU yet.
        """
        scan = self._scanner.scan(at_s, thorough=thorough)
        self._read_names(scan.processes, at_s)
        wishes = replace(self._wishes, names=self._names, reserved=reserved, told_s=told.asked_s, asleep_s=_asleep_s())
        found = self._found(scan.processes, told, wishes)
        meminfo = parse_meminfo(self._host.text_or_none("/proc/meminfo") or "")
        grown = self._grown(at_s, found, available_kib, driver_held_kib(meminfo))
        problems = (*scan.problems, *self._names_problems, *([told.problem] if told.problem else ()))
        problems += tuple(_virtual_machines(scan.processes))
        return Discovered(
            at_s,
            grown,
            {each.workload.key: each.target for each in found},
            frozenset(each.workload.key for each in found if each.computes),
            meminfo,
            (*problems, *_put_down(found, grown)),
        )

    def _found(self, processes: Sequence[Seen], told: Told, wishes: Wishes) -> tuple[Found, ...]:
        """Return the workloads, with somebody to ask to go who hears it."""
        still = _still(told, processes, wishes)
        found = workloads(processes, still, wishes)
        asked = {process for each in found if each.workload.holds_gpu for process in each.target.processes}
        self._listens = {each: self._hears(each) for each in asked}
        deaf = frozenset(process.pid for process, hears in self._listens.items() if not hears)
        return workloads(processes, still, replace(wishes, deaf=deaf)) if deaf else found

    def _hears(self, process: Process) -> bool:
        """Say whether SIGTERM reaches a process: not the first one of a container, unless it handles it."""
        known = self._listens.get(process)
        if known is not None:
            return known
        status = self._host.text_or_none(f"/proc/{process.pid}/status") or ""
        numbers = re.search(r"^NSpid:\s+(?:\d+\s+)+1$", status, re.MULTILINE)
        caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", status, re.MULTILINE)
        return numbers is None or caught is None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    def _grown(
        self, at_s: float, found: Sequence[Found], available_kib: int | None, driver_kib: int | None
    ) -> tuple[Workload, ...]:
        all_found = tuple(each.workload for each in found)
        if available_kib is not None:
            held = {each.workload.key: self._holding(each) for each in found if _uses_gpu(each.workload)}
            self._growth = growing.look(self._growth, Look(at_s, available_kib, driver_kib, held))
        computing = frozenset(each.workload.key for each in found if each.computes)
        told = growing.sole_holder(all_found, computing, self._growth)
        return growing.with_growth(told, self._growth)

    def _holding(self, found: Found) -> Holding:
        workload = found.workload
        charged = self._charged_kib(workload.cgroup) if workload.whole_cgroup else 0
        own_kib = max(workload.resident_kib, charged)
        return Holding(workload.attributed_kib, own_kib, found.kernel_s, workload.started_s, found.computes)

    def _charged_kib(self, cgroup: str) -> int:
        text = self._host.text_or_none(f"{CGROUP}{cgroup}/memory.stat") or ""
        rows = (line.split() for line in text.splitlines())
        return sum(int(row[1]) >> 10 for row in rows if len(row) == 2 and row[0] in _CHARGED and row[1].isdecimal())  # noqa: PLR2004  # a name and a value

    def _read_names(self, processes: Iterable[Seen], at_s: float) -> None:
        """Look up containers' names once there is one that has none yet."""
        places = [place for cgroup in {each.cgroup for each in processes} if (place := place_of(cgroup)).identity]
        identities = frozenset(place.identity for place in places)
        if identities <= self._names_for or at_s - self._names_read_s < NAMES_AGAIN_S:
            return
        homes = _homes(self._host, {place.owner for place in places if place.owner is not None})
        for names, problems in self._naming.read([tuple(homes.items())]).values():
            self._names, self._names_problems = names, problems
        self._names_for, self._names_read_s = identities, at_s

    def _names_of(self, homes: tuple[tuple[int, str], ...]) -> tuple[naming.Found, tuple[str, ...]]:
        return naming.read(self._host, dict(homes))


def _virtual_machines(processes: Iterable[Seen]) -> Iterable[str]:
    """Say that there are machines into which nobody looks."""
    count = sum(1 for each in processes if each.comm.startswith("qemu-system"))
    if count:
        yield f"what runs inside virtual machines is not seen, and {count} run here"


def _put_down(found: Iterable[Found], grown: Iterable[Workload]) -> Iterable[str]:
    """Say of whom it is not told how much of the GPU's memory it holds, and what is taken for that."""
    untold = {each.workload.key for each in found if each.workload.attributed_kib is None}
    for each in grown:
        if each.key in untold and each.attributed_kib is not None:
            amount = f"{each.attributed_kib / KIB_PER_GIB:.2f} GiB"
            yield f"{each.name} is the only one that computes: it is put down for all that the driver holds ({amount})"


def _uses_gpu(workload: Workload) -> bool:
    """Say whether its growth matters; that of a protected one as well, or it would be put to others."""
    return workload.holds_gpu or workload.engine is not None


def _still(told: Told, processes: Iterable[Seen], wishes: Wishes) -> Mapping[int, int | None] | None:
    """Return what the driver told, without processes that have ended since: their numbers may be others' now."""
    if told.by_pid is None:
        return None
    asked_ticks = (told.asked_s + wishes.asleep_s) * wishes.ticks_per_s
    listed = told.by_pid.keys()
    same = {each.pid for each in processes if each.pid in listed and each.start_ticks <= asked_ticks}
    return {pid: kib for pid, kib in told.by_pid.items() if pid in same}


def _asleep_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _own_cgroup(host: Host) -> str:
    text = host.text_or_none("/proc/self/cgroup") or ""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")


def _homes(host: Host, uids: set[int]) -> dict[int, str]:
    """Return the home directories of users as /etc/passwd has them."""
    rows = [line.split(":") for line in (host.text_or_none("/etc/passwd") or "").splitlines()] if uids else []
    known = ((row[2], row[5]) for row in rows if len(row) == 7)  # noqa: PLR2004  # passwd(5)
    pairs = {int(uid): home for uid, home in known if re.fullmatch(r"[0-9]{1,10}", uid) and home.startswith("/")}
    return {uid: home for uid, home in pairs.items() if uid in uids and home != "/"}
