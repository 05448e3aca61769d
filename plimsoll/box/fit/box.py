"""The box that is to hold it: what it has, what is free now and when it is empty, and the lines of the guard.

The running machine, a saved /proc/meminfo, or one of which only the size is known.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box import memory
from plimsoll.box.errors import UsageError
from plimsoll.box.fit import unified
from plimsoll.box.fit.model import GIB, KIB
from plimsoll.box.host import Host

REFERENCE_GIB = 121.6
"""MemTotal of a GB10 with 128 GiB, on which the lines were chosen."""
DEFAULT_LINES_GIB = (9.0, 8.0, 3.0)
IDLE_SHARE = 0.07
"""What is in use before any model: 115.7 and 113 GiB of 121.6 were free on two boxes (5 and 7 %), 107 to 111 on one
with a desktop (9 to 12 %), and 40 of 449 in use on a server (9 %)."""
PHYSICAL_BYTES: Mapping[str, int] = {"GB10": 128 * GIB}


@dataclass(frozen=True)
class Lines:
    """The guard's part of the ladder, in bytes of available memory."""

    slow_leave: int
    slow_enter: int
    floor: int
    basis: str


@dataclass(frozen=True)
class Box:
    """The memory of a machine, in bytes; None for what is not known."""

    name: str
    total: int
    available: int | None
    """Free for a model now, by the regime; None where it cannot be told."""
    at_most: int | None
    """What MemAvailable says where `available` cannot be told: no more than that is free."""
    empty: int
    """Free when no model runs."""
    empty_basis: str
    available_basis: str
    lines: Lines
    unified: bool | None
    """Whether the GPU has no memory of its own; None where that cannot be told."""
    regime: str = "unknown"
    regime_basis: str = ""
    live: bool = False
    kernel_reserve: int | None = None
    """What the kernel keeps for itself (vm.min_free_kbytes); MemAvailable is without it already."""
    notes: tuple[str, ...] = ()


def scaled_lines(total: int) -> Lines:
    """Return the default lines on a machine with `total` bytes."""
    share = total / (REFERENCE_GIB * GIB)
    leave, enter, floor = (round(each * GIB * share) for each in DEFAULT_LINES_GIB)
    return Lines(leave, enter, floor, "defaults, scaled to MemTotal")


def _empty(total: int) -> int:
    return total - round(total * IDLE_SHARE)


_EMPTY_BASIS = f"MemTotal less {IDLE_SHARE:.0%} that is in use before any model"


def of_size(size_gib: float) -> Box:
    """Return a machine of which only MemTotal is known, in GiB; nothing runs on it."""
    if not 0 < size_gib <= 1 << 20:
        raise UsageError(f"--mem-total-gib {size_gib}: no size of a machine's memory in GiB")
    total = round(size_gib * GIB)
    shared = True if total <= unified.UNIFIED_MAX_BYTES else None
    return Box(
        f"a machine of {size_gib:g} GiB", total, _empty(total), None, _empty(total), _EMPTY_BASIS,
        f"when no model runs: {_EMPTY_BASIS}", scaled_lines(total), shared,
    )  # fmt: skip


def of_meminfo(text: str, path: str) -> Box:
    """Return the machine of a saved /proc/meminfo."""
    meminfo = memory.parse_meminfo(text)
    if not meminfo.get("MemTotal"):
        raise UsageError(f"{path}: does not say MemTotal, so nothing can be judged by it; save all of /proc/meminfo")
    return _described(meminfo, path, {"version": "unknown"}, Host("/nonexistent"))


def of_host(host: Host) -> Box:
    """Return this machine; raises OSError where it has no /proc/meminfo."""
    meminfo = memory.parse_meminfo(host.text("/proc/meminfo"))
    if not meminfo.get("MemTotal"):
        raise UsageError("/proc/meminfo does not say MemTotal; judge another machine with --mem-total-gib")
    from plimsoll.box import platform  # noqa: PLC0415  # another machine is judged without it

    return _described(meminfo, "this machine", platform.driver(host), host)


def _described(meminfo: Mapping[str, int], name: str, driver: Mapping[str, Any], host: Host) -> Box:
    total = meminfo["MemTotal"] * KIB
    available = memory.available_kib(meminfo, to_driver=bool(driver.get("version")))
    regime = memory.regime(meminfo, driver)
    live = name == "this machine"
    if not live:
        regime = {
            "regime": regime["regime"] if regime["regime"] in ("C", "unknown") else "A or B",
            "basis": regime["basis"],
        }
    now = None if available is None else available * KIB
    empty = max(_empty(total), now or 0)
    return Box(
        name, total, now, _at_most(meminfo) if now is None else None, empty,
        "what is free now" if now == empty else _EMPTY_BASIS, _now_basis(now, regime), lines(host, total),
        unified.of_host(host, total), regime["regime"], regime["basis"], live, _reserve(host),
        tuple(_notes(meminfo, available)),
    )  # fmt: skip


def _now_basis(now: int | None, regime: Mapping[str, str]) -> str:
    return "not known" if now is None else f"free now (regime {regime['regime']}: {regime['basis']})"


def _reserve(host: Host) -> int | None:
    text = host.text_or_none("/proc/sys/vm/min_free_kbytes") or ""
    return int(text) * KIB if text.isascii() and text.isdigit() else None


def _at_most(meminfo: Mapping[str, int]) -> int | None:
    found = meminfo.get("MemAvailable")
    return None if found is None else found * KIB


def _notes(meminfo: Mapping[str, int], available: int | None) -> list[str]:
    found = [f"{each}; it is left out" for each in memory.inconsistencies(meminfo)]
    if available is None:
        missing = [name for name in ("MemAvailable", "KReclaimable", "SReclaimable") if name not in meminfo]
        found.append(f"available memory is not known: {', '.join(missing)} missing from meminfo")
    elif meminfo["MemAvailable"] - available > REPORTED_FROM_KIB:
        found.append(
            f"MemAvailable says {meminfo['MemAvailable'] / (1 << 20):.1f} GiB, of which "
            f"{(meminfo['MemAvailable'] - available) / (1 << 20):.1f} GiB cannot be had by a model"
        )
    return found


REPORTED_FROM_KIB = 1 << 20


def lines(host: Host, total: int) -> Lines:
    """Return the lines of the guard on a machine: those of its guard.toml, else the defaults.

    Raises BoxError for a file that the guard would refuse.
    """
    path = "/etc/plimsoll/guard.toml"
    text = host.text_or_none(path)
    if text is None:
        return scaled_lines(total)
    from plimsoll.box.guard import config  # noqa: PLC0415  # half of the run time, and few have the file

    found = config.load(text, path, total // KIB).settings.lines
    return Lines(found.slow_leave_kib * KIB, found.slow_enter_kib * KIB, found.floor_kib * KIB, path)


# --- where the memory of a box went -----------------------------------------------------------------

STRUCT_PAGE_BYTES = 64
PAGE_BYTES = 4096
_RANGE = re.compile(r"( *)([0-9a-f]{4,16})-([0-9a-f]{4,16}) : (.*)")


@dataclass(frozen=True)
class Account:
    """Where the difference between what was built in and MemTotal is; None for what only root sees."""

    physical: int | None
    system_ram: int | None
    reserved: int | None
    struct_pages: int | None
    kernel: int | None


def account(host: Host) -> Account:
    """Return what /proc/iomem says of this machine's memory."""
    board = f"{host.text_or_none('/sys/class/dmi/id/product_name')} {_gpu_models(host)}"
    physical = next((size for name, size in PHYSICAL_BYTES.items() if name in board), None)
    sums = parse_iomem(host.text_or_none("/proc/iomem") or "")
    ram = sums.get("System RAM")
    if not ram:
        return Account(physical, None, None, None, None)
    kernel = sum(sums.get(name, 0) for name in ("Kernel code", "Kernel data", "Kernel bss", "Kernel rodata"))
    return Account(physical, ram, sums.get("reserved", 0), ram // PAGE_BYTES * STRUCT_PAGE_BYTES, kernel)


def _gpu_models(host: Host) -> str:
    base = "/proc/driver/nvidia/gpus"
    return " ".join(host.text_or_none(f"{base}/{gpu}/information") or "" for gpu in host.names(base))


def parse_iomem(text: str) -> dict[str, int]:
    """Return the bytes of /proc/iomem by label; what is inside of another reservation counts once.

    Without root every address is 0, and then nothing is returned.
    """
    found: dict[str, int] = {}
    inside = ""
    for line in text.splitlines():
        match = _RANGE.fullmatch(line)
        if match is None:
            continue
        size = int(match[3], 16) - int(match[2], 16) + 1
        label = "reserved" if match[4].lower().startswith("reserved") else match[4]
        if not match[1]:
            inside = label
        elif label == "reserved" and inside == "reserved":
            continue
        found[label] = found.get(label, 0) + size
    return {} if set(found.values()) <= {1} or not found.get("System RAM", 0) > PAGE_BYTES else found
