"""Who holds memory on this box now, and whether what a model had is back: clean, still held, or only a reboot helps.

A process that is gone is no memory that is back: to take down 87 GiB takes longer than two seconds, and ranks that
nobody started anew hold a GPU's memory without a server that they belong to.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from plimsoll.box import memory, platform
from plimsoll.box.errors import BoxError
from plimsoll.box.guard import configured
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.guard.places import place_of, printable
from plimsoll.box.guard.processes import GPU_DEVICES, Scan, Scanner, Seen, read_stat
from plimsoll.box.host import Host
from plimsoll.box.serve.model import Holder

LARGE_KIB = KIB_PER_GIB // 4
"""What a process must have in memory to be named although it does not use the GPU."""
MAX_HOLDERS = 32
MAX_NAMED = 5
REBOOT = "only a reboot gives it back; a GPU that shares the box's memory cannot be reset"
GPU_IDLE_KIB = KIB_PER_GIB
"""Idle graphics cards show 3 to 99 MiB in use; one whose rank had not gone showed 94 GiB."""
_GPUS = "nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits"
_KIB_PER_MIB = 1 << 10
_RANK = re.compile(r"(?:vllm|sglang|ray|trtllm)::", re.IGNORECASE)
_SPAWNED = "multiprocessing."
"""Of `python -c "from multiprocessing.spawn import spawn_main; ..."`, which is how ranks are started."""


@dataclass(frozen=True)
class Gpu:
    """One graphics card; None where it does not say what is in use, as one that shares the box's memory."""

    index: int
    used_kib: int | None


@dataclass(frozen=True)
class Held:
    """All that holds memory, as far as it could be seen."""

    holders: tuple[Holder, ...] = ()
    """The largest first."""
    pool_kib: int | None = None
    """What the driver would give back at most; None while somebody holds the GPU, and it cannot be told apart."""
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()


class Kind(StrEnum):
    """What it comes to after a stop."""

    CLEAN = "clean"
    HELD = "still held"
    REBOOT_REQUIRED = "reboot required"


@dataclass(frozen=True)
class Verdict:
    """What it comes to, and by whom or what the memory is held."""

    kind: Kind
    said: str


# --- deciding: pure ----------------------------------------------------------------------------------------


def level_kib(meminfo: Mapping[str, int], available_kib: int | None) -> int | None:
    """Return what to compare before and after: what is available, and what programs have of their own.

    So a browser that was opened meanwhile is no leak of the model. None where either is not known.
    """
    anonymous = meminfo.get("AnonPages")
    return None if available_kib is None or anonymous is None else available_kib + anonymous


def tolerance_kib(footprint_kib: int) -> int:
    """Return by how much memory may differ from what it was and count as back.

    A part of the footprint, since small models run beside small noise: 1/16, from 64 MiB to 2 GiB.
    """
    return min(2 * KIB_PER_GIB, max(KIB_PER_GIB // 16, footprint_kib // 16))


def verdict(
    held: Held,
    baseline_kib: int | None,
    now_kib: int | None,
    within_kib: int,
    ours: Collection[int] = (),
    *,
    timed_out: bool = False,
) -> Verdict:
    """Return whether a model's memory is back, against the level before its start.

    `ours` are the model's processes; `timed_out`: there was time enough, and the driver's pool was emptied.
    """
    own = [each for each in held.holders if each.pid in ours]
    if own:
        return _stuck(own, "", timed_out=timed_out)
    cards = [each for each in held.gpus if (each.used_kib or 0) >= GPU_IDLE_KIB]
    if cards and not any(each.holds_gpu for each in held.holders):
        said = ", ".join(f"GPU {each.index}: {_gib(each.used_kib or 0)}" for each in cards)
        return _nobodys(f"{said} in use, and no process has the GPU open", timed_out=timed_out)
    if baseline_kib is None or now_kib is None:
        return Verdict(Kind.HELD, "its processes are gone; whether its memory is back is not known: no figure")
    orphans = [each for each in held.holders if each.orphan]
    missing_kib = baseline_kib - now_kib
    if missing_kib <= within_kib:
        beside = f"; not its own, and in the way: {_by(orphans)}" if orphans else ""
        return Verdict(
            Kind.CLEAN, f"its memory is back: {_gib(max(0, missing_kib))} less than before its start{beside}"
        )
    said = f"{_gib(missing_kib)} are missing against the level before its start"
    return _stuck(orphans, f"{said}; ", timed_out=timed_out) if orphans else _missing(held, said, timed_out=timed_out)


def _stuck(holders: Sequence[Holder], said: str, *, timed_out: bool) -> Verdict:
    """Return the verdict on processes that should be gone."""
    if any(each.state != "D" for each in holders):
        numbers = " ".join(str(each.pid) for each in holders)
        return Verdict(Kind.HELD, f"{said}{_by(holders)}; end them by their numbers: kill -KILL {numbers}")
    waits = f"{said}{_by(holders)}; no signal ends who waits in the kernel"
    return Verdict(Kind.REBOOT_REQUIRED, f"{waits}: {REBOOT}") if timed_out else Verdict(Kind.HELD, waits)


def _missing(held: Held, said: str, *, timed_out: bool) -> Verdict:
    users = [each for each in held.holders if each.holds_gpu]
    if users:
        return Verdict(Kind.HELD, f"{said}; the GPU is held by others too: {_by(users)}")
    if held.pool_kib and not timed_out:
        return Verdict(Kind.HELD, f"{said}; the driver keeps up to {_gib(held.pool_kib)} pooled")
    largest = f"; the largest programs are {_by(held.holders[:3])}" if held.holders else ""
    return _nobodys(f"{said}, and nobody holds the GPU{largest}", timed_out=timed_out)


def _nobodys(said: str, *, timed_out: bool) -> Verdict:
    """Return the verdict on memory that nobody has: the driver may still be at it, or has lost it."""
    return Verdict(Kind.REBOOT_REQUIRED, f"{said}: {REBOOT}") if timed_out else Verdict(Kind.HELD, said)


def _by(holders: Sequence[Holder]) -> str:
    return ", ".join(describe(each) for each in holders[:MAX_NAMED])


def describe(holder: Holder) -> str:
    """Return a holder for people: name, process, amount, and what is odd about it."""
    amount = "" if holder.held_kib is None else f", {_gib(holder.held_kib)}"
    odd = [
        *(["has the GPU open"] if holder.holds_gpu else []),
        *(["its server is gone"] if holder.orphan else []),
        *(["waits in the kernel (D)"] if holder.state == "D" else []),
    ]
    return f"{holder.name} (pid {holder.pid}{amount}{''.join(f'; {each}' for each in odd)})"


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"


# --- reading -----------------------------------------------------------------------------------------------


def look(host: Host, *, with_driver: bool = True, gpu_devices: Sequence[str] | None = None) -> Held:
    """Return who holds memory now. The driver is asked in a child that is given up after 10 s: it was seen to hang.

    `gpu_devices` are the device files (globs) that count as the GPU; None: those of guard.toml. A fault of that file is
    a problem here, and no error: a stop that has begun goes on.
    """
    devices, problems = (gpu_devices, ()) if gpu_devices is not None else _gpu_devices(host)
    found = of_scan(host, scan(host, devices), with_driver=with_driver)
    return replace(found, problems=(*found.problems, *problems))


def _gpu_devices(host: Host) -> tuple[Sequence[str], tuple[str, ...]]:
    try:
        return configured.load(host).config.gpu_devices, ()
    except (BoxError, OSError) as error:
        first = str(error).splitlines()[0]
        return GPU_DEVICES, (f"{first}: the GPU's device files are the NVIDIA driver's",)


def scan(host: Host, gpu_devices: Sequence[str]) -> Scan:
    """Return all processes, each with those of the device files (globs) that it has open."""
    return Scanner(host, gpu_devices).scan(0.0, thorough=True)


def of_scan(host: Host, scanned: Scan, *, with_driver: bool) -> Held:
    """Return who of all processes holds memory."""
    told, cards, problems = _ask_driver(host) if with_driver else ({}, (), [])
    by_pid = {each.pid: each for each in scanned.processes}
    titles = _titles(host, scanned.processes)
    found = [_holder(host, each, by_pid, told, titles) for each in scanned.processes]
    kept = [each for each in found if each.holds_gpu or each.orphan or (each.held_kib or 0) >= LARGE_KIB]
    kept.sort(key=lambda each: (-(each.held_kib or 0), each.pid))
    used = any(each.holds_gpu for each in kept)
    return Held(tuple(kept[:MAX_HOLDERS]), None if used else pool_kib(host), cards, (*scanned.problems, *problems))


def pool_kib(host: Host) -> int | None:
    """Return what the driver keeps pooled at most, while nobody holds the GPU; None where it cannot be told."""
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    regime = memory.regime(meminfo, platform.driver(host))["regime"]
    if regime == "C":
        return memory.misc_reclaimable_kib(meminfo)
    if regime == "B":
        from plimsoll.box.guard.gpu import driver_held_kib  # noqa: PLC0415  # an admission mostly does without it

        return driver_held_kib(meminfo)
    return 0 if regime == "A" else None


def _holder(
    host: Host, seen: Seen, by_pid: Mapping[int, Seen], told: Mapping[int, int | None], titles: Mapping[str, str]
) -> Holder:
    in_driver = told.get(seen.pid)
    matters = bool(seen.devices) or seen.pid in told or seen.engine is not None
    stat = read_stat(host, seen.pid) if matters else None
    return Holder(
        seen.pid,
        titles.get(seen.cgroup) or _name(seen),
        max(seen.resident_kib, in_driver or 0),
        stat.state if stat is not None else "",
        bool(seen.devices) or seen.pid in told,
        _is_orphan(seen, by_pid),
        seen.start_ticks,
    )


def _is_orphan(seen: Seen, by_pid: Mapping[int, Seen]) -> bool:
    """Say whether it is a rank of a server, and none of those that started it is left."""
    first = " ".join(seen.argv[:3])
    is_rank = bool(_RANK.match(seen.comm) or _RANK.match(first)) or (bool(seen.devices) and _SPAWNED in first)
    parent = by_pid.get(seen.ppid)
    # a rank whose parent is the manager of its system or of its container has lost the one that started it
    return is_rank and (parent is None or parent.pid == 1 or (parent.engine is None and _is_manager(parent)))


def _is_manager(seen: Seen) -> bool:
    return seen.comm in ("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit") or seen.comm.startswith(
        ("containerd-shim", "conmon")
    )


def _titles(host: Host, processes: Sequence[Seen]) -> dict[str, str]:
    """Return what cgroups are called: by their unit, or the name of their container."""
    places = {cgroup: place_of(cgroup) for cgroup in {each.cgroup for each in processes}}
    known: Mapping[tuple[int | None, str], str] = {}
    if any(each.identity for each in places.values()):
        from plimsoll.box.guard import names  # noqa: PLC0415  # as above

        known = names.read(host, {})[0]
    return {
        cgroup: printable(known.get((place.owner, place.identity[:12]), place.name))
        for cgroup, place in places.items()
        if place.kind in ("container", "unit", "scope") and place.never is None
    }


def _name(seen: Seen) -> str:
    return printable(seen.comm)


def _ask_driver(host: Host) -> tuple[Mapping[int, int | None], tuple[Gpu, ...], list[str]]:
    """Return KiB by process, and what each card has in use; and why not, where there is a driver."""
    if not host.exists("/proc/driver/nvidia/version"):
        return {}, (), []
    from plimsoll.box.guard import gpu, spawn  # noqa: PLC0415  # as above

    problems: list[str] = []
    answers = []
    for question in (gpu.QUERY[2], f"exec {_GPUS} 2>/dev/null"):
        ran = spawn.run(("/bin/sh", "-c", question), gpu.TIMEOUT_S, environment=host.environment)
        answers.append(ran.out if ran.code == 0 else "")
        problems += [f"nvidia-smi: {ran.err or f'ended with {ran.code}'}"] if ran.code else []
    try:
        told = gpu.parse(answers[0])
    except gpu.AnswerError as error:
        told = {}
        problems.append(f"nvidia-smi: {error}")
    return told, parse_gpus(answers[1]), list(dict.fromkeys(problems))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the cards that nvidia-smi lists; what is in brackets is not known, other lines are left out."""
    rows = (re.fullmatch(r"\s*(\d{1,4}),\s*(\d{1,12}|\[[^\]]*\])\s*", line) for line in text.splitlines())
    return tuple(
        Gpu(int(row[1]), int(row[2]) * _KIB_PER_MIB if row[2].isdecimal() else None) for row in rows if row is not None
    )
