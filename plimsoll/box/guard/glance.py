"""One look at memory, at who would be stopped by the guard and at who by the kernel, where no guard tells it.

Whoever runs it sees what he may see: what is missing is said.
"""

import dataclasses
import os
import time
from typing import Any

from plimsoll.box import memory
from plimsoll.box.errors import BoxError
from plimsoll.box.guard import config, configured
from plimsoll.box.guard.discovery import Discovery
from plimsoll.box.guard.gpu import Told
from plimsoll.box.guard.model import Known, Reservation, State
from plimsoll.box.guard.reserve import ReservationError, Store
from plimsoll.box.guard.sampler import Sampler
from plimsoll.box.guard.status import Seen
from plimsoll.box.host import Host

MAX_KERNEL_CANDIDATES = 5
NO_DRIVER = "how much of the GPU's memory each holds is asked of the driver by a running guard only"


def look(host: Host) -> tuple[Seen, list[str]]:
    """Return what there is to see now, and what could not be looked at. Nothing is armed: nobody would act."""
    found, problems = _config(host)
    sampler = Sampler(host)
    at_s = time.monotonic()
    sample = sampler.sample(at_s)
    basis = sampler.basis
    sampler.close()
    discovered = Discovery(host, found.gpu_devices, found.protect, found.prefer).look(
        at_s, Told(problem=NO_DRIVER), sample.available_kib
    )
    reservations, refused = _reservations(host)
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    seen = Seen(
        unix_s=time.time(),
        settings=dataclasses.replace(found.settings, armed=frozenset()),
        state=State(at_s, sample.available_kib),
        sample=sample,
        basis=basis,
        mem_total_kib=meminfo.get("MemTotal"),
        mem_available_kib=meminfo.get("MemAvailable"),
        known=Known(discovered.workloads, reservations, at_s),
    )
    not_root = [] if os.geteuid() == 0 else ["without root the open files of other users' processes are not seen"]
    return seen, [*problems, *not_root, *discovered.problems, *refused]


def _config(host: Host) -> tuple[config.Config, list[str]]:
    """Return the host's configuration; what the defaults are where that cannot be had, and why."""
    try:
        loaded = configured.load(host)
    except OSError as error:
        problem = f"{config.PATH}: {error.strerror}: the lines are the defaults"
    except BoxError as error:
        problem = f"{str(error).splitlines()[0]}: the lines are the defaults"
    else:
        return loaded.config, [] if loaded.sha256 else [f"there is no {config.PATH}: the lines are the defaults"]
    return config.load("", config.PATH, configured.mem_total_kib(host) or config.REFERENCE_KIB), [problem]


def _reservations(host: Host) -> tuple[tuple[Reservation, ...], list[str]]:
    try:
        found, problems = Store(host).read()
    except (OSError, ReservationError) as error:
        return (), [f"reservations: {error}"]
    return found, list(problems)


def kernel_candidates(host: Host) -> tuple[list[dict[str, Any]], list[str]]:
    """Return whom the kernel's OOM killer would take, by its own figure, the first one first; and what was not seen.

    Resident memory, swap and page tables count for it, and oom_score_adj; what the driver holds does not.
    """
    found: list[dict[str, Any]] = []
    hidden = 0
    for name in host.names("/proc"):
        if not name.isdigit():
            continue
        score = _whole(host.text_or_none(f"/proc/{name}/oom_score"))
        adjusted = _whole(host.text_or_none(f"/proc/{name}/oom_score_adj"))
        if score is None or adjusted is None:
            # it may also have ended meanwhile, which is no news
            hidden += host.exists(f"/proc/{name}")
            continue
        comm = host.text_or_none(f"/proc/{name}/comm") or "?"
        found.append({"pid": int(name), "name": comm, "oom_score": score, "oom_score_adj": adjusted})
    found.sort(key=lambda each: (-each["oom_score"], each["pid"]))
    problems = [f"the scores of {hidden} processes cannot be read"] if hidden else []
    return found[:MAX_KERNEL_CANDIDATES], problems


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
