"""Memory as the kernel accounts it, and which of the three driver accounting regimes is in force. Pure but for `read`.

A missing field is None and stays None through every sum: an unknown figure is never taken for zero.
"""

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
REGIME_C_MIN_KIB = 1 << 20
"""Below 1 GiB the difference of KReclaimable and SReclaimable says nothing: idle boxes show up to 0.3 GiB."""


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo as KiB (counts, such as HugePages_Total, as they are); odd lines are left out."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name.strip()] = int(words[0])
    return found


def parse_pressure(text: str) -> dict[str, dict[str, float]]:
    """Return a PSI file as `{"some": {"avg10": …, "total": …}, "full": …}`, percent and microseconds."""
    found = {}
    for line in text.splitlines():
        kind, *pairs = line.split()
        split = (pair.split("=", 1) for pair in pairs if "=" in pair)
        found[kind] = {key: float(value) for key, value in split}
    return found


def misc_reclaimable_kib(meminfo: Mapping[str, int]) -> int | None:
    """Return what is counted reclaimable but is no slab: KReclaimable - SReclaimable, None if either is missing."""
    if "KReclaimable" not in meminfo or "SReclaimable" not in meminfo:
        return None
    return meminfo["KReclaimable"] - meminfo["SReclaimable"]


def available_kib(meminfo: Mapping[str, int]) -> int | None:
    """Return MemAvailable less what only looks reclaimable and less CMA that ordinary allocations cannot use.

    CmaFree above CmaTotal (seen with kexec handover: 0 total, 940604 kB free) is inconsistent and is not
    subtracted.
    """
    misc = misc_reclaimable_kib(meminfo)
    if misc is None or "MemAvailable" not in meminfo:
        return None
    cma_free = meminfo.get("CmaFree", 0)
    usable_cma = cma_free if cma_free <= meminfo.get("CmaTotal", 0) else 0
    return meminfo["MemAvailable"] - misc - usable_cma


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
    """Return `{meminfo, vmstat, pressure, swaps, available_kib, regime}`; what cannot be read is None."""
    meminfo = parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    vmstat = dict(line.split(" ", 1) for line in (host.text_or_none("/proc/vmstat") or "").splitlines())
    pressure = host.text_or_none("/proc/pressure/memory")
    return {
        "meminfo": meminfo or None,
        "vmstat": {key: int(vmstat[key]) for key in VMSTAT_KEYS if key in vmstat},
        "pressure": None if pressure is None else parse_pressure(pressure),
        "swaps": _swaps(host),
        "available_kib": available_kib(meminfo),
        **regime(meminfo, driver),
    }


def _swaps(host: Host) -> list[dict[str, Any]] | None:
    text = host.text_or_none("/proc/swaps")
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines()[1:]]
    return [{"path": r[0], "type": r[1], "size_kib": int(r[2]), "used_kib": int(r[3])} for r in rows]
