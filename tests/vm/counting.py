"""What a machine's kernel counts of the driver's memory, and whether it complains."""

from lab.machine import Machine
from plimsoll.box import memory


def complaints(machine: Machine) -> str:
    """Return what the kernel prints about a broken invariant."""
    return machine.run(r"dmesg | grep -E 'WARNING|\bBUG\b|Oops|INFO: task|Bad page|general protection'").out


def exact(machine: Machine) -> dict[str, int]:
    """Return /proc/meminfo in KiB, after what each processor still keeps to itself has been added."""
    return memory.parse_meminfo(machine.succeed("cat /proc/sys/vm/stat_refresh; cat /proc/meminfo"))


def misc_kib(meminfo: dict[str, int]) -> int:
    """Return what is counted reclaimable and is no slab."""
    found = memory.misc_reclaimable_kib(meminfo)
    assert found is not None
    return found
