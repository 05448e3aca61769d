"""The box as an admission sees it: memory, the lines, what is announced, who holds what, and the port. One look."""

import os
import re
import time
from collections.abc import Mapping, Sequence

from plimsoll.box import memory, platform
from plimsoll.box.errors import UsageError
from plimsoll.box.guard import configured
from plimsoll.box.guard.model import Reservation
from plimsoll.box.guard.processes import Scan
from plimsoll.box.guard.reserve import ReservationError, Store
from plimsoll.box.host import Host
from plimsoll.box.serve import holders
from plimsoll.box.serve.model import Running, Situation

_BLOCK_2MIB, _BLOCK_32MIB = 2 << 20, 32 << 20
_LISTENING = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", re.MULTILINE)
_ZONE = re.compile(r"Node\s+\d+,\s+zone\s+\S+\s+((?:\d+\s*)+)")


def look(
    host: Host, port: int | None = None, running: Sequence[Running] = (), *, with_driver: bool = False
) -> Situation:
    """Return the box as it is now. `with_driver` asks nvidia-smi too, which takes its time.

    Raises UsageError where /proc/meminfo does not say how much memory there is, and ConfigError for a guard.toml that
    the guard would refuse.
    """
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    if not meminfo.get("MemTotal"):
        raise UsageError("/proc/meminfo does not say how much memory there is: nothing can be admitted")
    config = configured.load(host).config
    driver = platform.driver(host)
    regime = memory.regime(meminfo, driver)
    reservations, refused = _reservations(host, config.reserve_groups)
    scanned = holders.scan(host, config.gpu_devices)
    held = holders.of_scan(host, scanned, with_driver=with_driver)
    free_2mib, free_32mib = free_blocks(host.text_or_none("/proc/buddyinfo") or "", os.sysconf("SC_PAGE_SIZE"))
    return Situation(
        at_s=time.monotonic(),
        mem_total_kib=meminfo["MemTotal"],
        available_kib=memory.available_kib(meminfo, to_driver=bool(driver["version"])),
        regime=regime["regime"],
        regime_basis=regime["basis"],
        lines=config.settings.lines,
        backstop_kib=_backstop_kib(host, meminfo, scanned),
        reservations=reservations,
        holders=held.holders,
        running=tuple(running),
        free_2mib_blocks=free_2mib,
        free_32mib_blocks=free_32mib,
        pool_kib=held.pool_kib,
        port_taken=None if port is None else is_taken(host, port),
        problems=(*memory.inconsistencies(meminfo), *refused, *held.problems),
    )


def _backstop_kib(host: Host, meminfo: Mapping[str, int], scanned: Scan) -> int | None:
    """Return where earlyoom acts, if it runs: what it goes by is not looked up for nothing."""
    if all(each.comm != "earlyoom" for each in scanned.processes):
        return None
    from plimsoll.box.cli_reserve import backstop_kib  # noqa: PLC0415  # a tenth of the time of an admission

    return backstop_kib(host, meminfo)


def _reservations(host: Host, groups: tuple[str, ...]) -> tuple[tuple[Reservation, ...], tuple[str, ...]]:
    try:
        return Store(host, groups).read()
    except (OSError, ReservationError) as error:
        return (), (f"what others have announced: {error}",)


def free_blocks(buddyinfo: str, page_bytes: int) -> tuple[int | None, int | None]:
    """Return how many blocks of 2 and of 32 MiB are free in one piece, by /proc/buddyinfo; None where it says nothing.

    Where the kernel keeps no blocks as large as that (4 MiB is the largest with pages of 4 KiB), as many as the largest
    kept ones amount to: they may lie side by side, or not.
    """
    zones = [[int(each) for each in match[1].split()] for match in _ZONE.finditer(buddyinfo)]
    if not zones:
        return None, None
    return _blocks(zones, page_bytes, _BLOCK_2MIB), _blocks(zones, page_bytes, _BLOCK_32MIB)


def _blocks(zones: Sequence[Sequence[int]], page_bytes: int, size: int) -> int:
    found = 0
    for counts in zones:
        least = min(size, page_bytes << (len(counts) - 1))
        found += sum(
            count * (page_bytes << order) for order, count in enumerate(counts) if page_bytes << order >= least
        )
    return found // size


def is_taken(host: Host, port: int) -> bool | None:
    """Say whether something listens on a TCP port of any address of this box; None where that cannot be read."""
    tables = [host.text_or_none(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if tables[0] is None:
        return None
    return any(int(number, 16) == port for text in tables if text for number in _LISTENING.findall(text))
