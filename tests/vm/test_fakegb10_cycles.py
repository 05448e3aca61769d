"""The stand-in driver is loaded, used, killed under and unloaded a hundred times, and nothing is left of it."""

import os
from collections.abc import Iterator

import pytest

from lab import fakegb10
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec
from tests.vm.counting import complaints, exact, misc_kib

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400)]


@pytest.fixture(params=["trixie", pytest.param("bookworm", marks=pytest.mark.slow)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine of each release that has the module and its programs, and nothing loaded."""
    with Machine.restore(Spec(request.param), f"cycles-{os.getpid()}") as restored:
        fakegb10.install(restored, Progress(quiet=True))
        yield restored


CYCLES = """
import os, signal, subprocess, sys
sys.path.insert(0, "{directory}")
import fakegb10
for _ in range({count}):
    subprocess.run(["insmod", "{directory}/{module}", "teardown_percent_per_s=0"], check=True)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        device = fakegb10.Device()
        size = device.alloc(48 << 20, engine="vmm") + device.alloc(16 << 20, engine="plain")
        device.map(size)
        os.write(writing, b"x")
        signal.pause()
    assert os.read(reading, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    subprocess.run(["rmmod", "fakegb10"], check=True)
"""


def test_a_hundred_cycles_leave_nothing_behind(machine: Machine) -> None:
    """Load, take, map, kill, unload, a hundred times: counters and free memory are what they were."""
    machine.succeed("dmesg --clear")
    # the first few warm up the kernel's own caches
    before, after = (left_after(machine, cycles) for cycles in (5, 100))
    assert misc_kib(after) == misc_kib(before)
    # 64 MiB are held in each: one that stayed would be seen
    assert unaccounted_kib(after) - unaccounted_kib(before) < 16 * 1024
    assert after["SUnreclaim"] - before["SUnreclaim"] < 4 * 1024
    machine.fail("test -e /dev/fakegb10 || test -e /proc/driver/nvidia || test -e /proc/driver/fakegb10")
    assert complaints(machine) == ""


ACCOUNTED = (
    "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables", "SecPageTables",
    "Percpu",
)  # fmt: skip


def unaccounted_kib(meminfo: dict[str, int]) -> int:
    """Return what is neither free nor somebody's: services go on meanwhile, and take some of what is free."""
    return meminfo["MemTotal"] - sum(meminfo.get(name, 0) for name in ACCOUNTED)


def left_after(machine: Machine, cycles: int) -> dict[str, int]:
    """Return /proc/meminfo after so many cycles, without what can be dropped."""
    script = CYCLES.format(directory=fakegb10.IN_GUEST, module=fakegb10.MODULE, count=cycles)
    result = machine.run("python3 -", 1200, script.encode())
    assert (result.rc, result.err) == (0, "")
    machine.succeed("sync; echo 3 >/proc/sys/vm/drop_caches")
    return exact(machine)
