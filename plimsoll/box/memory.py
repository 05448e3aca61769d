"""Memory as the kernel accounts it, and which of the three driver accounting regimes is in force. Pure but for `read`.

A missing field is None and stays None through every sum: an unknown figure is never taken for zero.
"""

import re
from collections.abc import Mapping
from typing import Any

from plimsoll.box.host import Host

VMSTAT_KEYS = (
    "oom_kill",
    "nr_kernel_misc_reclaimable",
    "allocstall_normal",
    "pswpout",
    "compact_stall",
    "compact_fail",
)
_COUNT = re.compile(r"[0-9]+")
_PAIR = re.compile(r"([a-z0-9]+)=([0-9]+(?:\.[0-9]+)?)(?!\S)")
_SWAP = re.compile(r"(\S+)\s+(\S+)\s+([0-9]+)\s+([0-9]+)(?!\S)")
REGIME_C_MIN_KIB = 1 << 20
"""Below 1 GiB the difference of KReclaimable and SReclaimable says nothing: idle boxes show up to 0.3 GiB."""


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo as KiB (counts, such as HugePages_Total, as they are); odd lines are left out."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isascii() and words[0].isdigit():
            found[name.strip()] = int(words[0])
    return found


def locked_kib(host: Host, process: int | str = "self") -> int | None:
    """Return how much of a process's memory is locked, as the kernel counts it (VmLck); None where unknown."""
    return parse_meminfo(host.text_or_none(f"/proc/{process}/status") or "").get("VmLck")


def parse_pressure(text: str) -> dict[str, dict[str, float]]:
    """Return a PSI file as `{"some": {"avg10": …, "total": …}, "full": …}`, percent and microseconds."""
    found = {}
    for line in text.splitlines():
        kind, *rest = line.split() or [""]
        if kind in ("some", "full"):
            found[kind] = {key: float(value) for key, value in _PAIR.findall(" ".join(rest))}
    return found


def parse_vmstat(text: str) -> dict[str, int]:
    """Return those counters of /proc/vmstat that are used here; one that a kernel does not have is missing."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[0] in VMSTAT_KEYS and _COUNT.fullmatch(row[1])}  # noqa: PLR2004  # a name and a value


def parse_swaps(text: str) -> list[dict[str, Any]]:
    r"""Return the rows of /proc/swaps, sizes in KiB; a blank in a path is written `\040` there."""
    rows = [_SWAP.match(line) for line in text.splitlines()[1:]]
    found = (row.groups() for row in rows if row)
    return [{"path": p, "type": t, "size_kib": int(size), "used_kib": int(used)} for p, t, size, used in found]


def misc_reclaimable_kib(meminfo: Mapping[str, int]) -> int | None:
    """Return what is counted reclaimable but is no slab: KReclaimable - SReclaimable, None if either is missing."""
    if "KReclaimable" not in meminfo or "SReclaimable" not in meminfo:
        return None
    return meminfo["KReclaimable"] - meminfo["SReclaimable"]


def inconsistencies(meminfo: Mapping[str, int]) -> list[str]:
    """Return what in /proc/meminfo cannot be true; such figures are left out of every sum."""
    found = []
    free, total = meminfo.get("CmaFree", 0), meminfo.get("CmaTotal", 0)
    if free > total:
        found.append(f"CmaFree ({free} kB) exceeds CmaTotal ({total} kB): the kernel's accounting of CMA is off")
    misc = misc_reclaimable_kib(meminfo)
    if misc is not None and misc < 0:
        found.append(f"SReclaimable exceeds KReclaimable, which contains it, by {-misc} kB")
    return found


def available_kib(meminfo: Mapping[str, int], *, to_driver: bool = True) -> int | None:
    """Return MemAvailable less what only looks reclaimable and, to a driver that pins, less CMA, which it cannot use.

    To programs CMA is memory as any other: their pages can be moved away. CmaFree above CmaTotal (seen with kexec
    handover: 0 total, 940604 kB free) is inconsistent and is not subtracted. Never below 0, as MemAvailable is not.
    """
    misc = misc_reclaimable_kib(meminfo)
    if misc is None or "MemAvailable" not in meminfo:
        return None
    cma_free = meminfo.get("CmaFree", 0)
    movable_only = cma_free if to_driver and cma_free <= meminfo.get("CmaTotal", 0) else 0
    return max(0, meminfo["MemAvailable"] - max(0, misc) - movable_only)


def regime(meminfo: Mapping[str, int], driver: Mapping[str, Any]) -> dict[str, str]:
    """Return `{"regime": "A"|"B"|"C"|"unknown", "basis": why}` from what can be seen now.

    C is seen only while the driver holds memory; until then a driver with pools counts as B. A host without
    the driver is A: there is nothing to account for.
    """
    misc = misc_reclaimable_kib(meminfo)
    if misc is None:
        return {"regime": "unknown", "basis": "KReclaimable or SReclaimable is missing from /proc/meminfo"}
    if misc >= REGIME_C_MIN_KIB:
        return {"regime": "C", "basis": f"KReclaimable exceeds SReclaimable by {misc} KiB"}
    if not driver.get("version"):
        return {"regime": "A", "basis": "no NVIDIA driver is loaded"}
    pools = driver.get("system_memory_pools")
    if pools is None or pools == 0:
        return {"regime": "A", "basis": "the driver keeps no system memory pool"}
    return {"regime": "B", "basis": f"EnableSystemMemoryPools is {pools}; C shows itself only under load"}


def read(host: Host, driver: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{meminfo, vmstat, pressure, swaps, available_kib, inconsistencies, regime, basis}`; unknown is None."""
    meminfo = parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    pressure = host.text_or_none("/proc/pressure/memory")
    swaps = host.text_or_none("/proc/swaps")
    return {
        "meminfo": meminfo or None,
        "vmstat": parse_vmstat(host.text_or_none("/proc/vmstat") or ""),
        "pressure": None if pressure is None else parse_pressure(pressure),
        "swaps": None if swaps is None else parse_swaps(swaps),
        "available_kib": available_kib(meminfo, to_driver=bool(driver.get("version"))),
        "inconsistencies": inconsistencies(meminfo),
        **regime(meminfo, driver),
    }
