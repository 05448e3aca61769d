"""The stand-in driver in a real kernel, of both releases: what it holds, how that is counted, and how it goes."""

import os
import re
import time
from collections.abc import Iterator

import pytest

from lab import fakegb10
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec
from plimsoll.box import memory

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(2400)]

HELD_MIB = 512
HELD_KIB = HELD_MIB * 1024
SLACK_KIB = 128 * 1024
"""What else happens meanwhile: a Python and its files, and the low watermark, 56 MiB of which MemAvailable spares."""
SAID = "/run/engine"
SOFT = re.compile(
    r"NVRM: (?:GPU0 )?nvCheckOkFailedNoLog: Check failed: Out of memory \[NV_ERR_NO_MEMORY\] \(0x00000051\)"
)
HARD = re.compile(r"NVRM: (?:GPU0 )?_iovaspaceCreateMappingDataFromMemDesc: failed to allocate 0x[0-9a-f]+ bytes")
FAST_TEARDOWN = {"teardown_percent_per_s": 0}
POLL_S = 0.5


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine of each release that has the module and its programs, and nothing loaded."""
    with Machine.restore(Spec(request.param), f"fakegb10-{os.getpid()}") as restored:
        fakegb10.install(restored, Progress(quiet=True))
        yield restored


@pytest.fixture
def driver(machine: Machine) -> Iterator[Machine]:
    """Yield the machine with the module loaded; at the end it can be unloaded, and the kernel found nothing wrong."""
    machine.succeed("dmesg --clear")
    fakegb10.load(machine, **FAST_TEARDOWN)
    yield machine
    machine.run("systemctl kill --signal=KILL engine.service")
    fakegb10.unload(machine)
    assert complaints(machine) == ""


def complaints(machine: Machine) -> str:
    """Return what the kernel prints about a broken invariant."""
    return machine.run(r"dmesg | grep -E 'WARNING|\bBUG\b|Oops|INFO: task|Bad page|general protection'").out


def start(machine: Machine, arguments: str, until: str = "holding") -> int:
    """Start the guest's program as a unit, wait until it says `until`, return its process id."""
    await_gone(machine)
    out = f"--property=StandardOutput=truncate:{SAID}"
    machine.succeed(
        f"rm -f {SAID}; systemd-run --quiet --collect --unit=engine {out} fakegb10 {arguments}", timeout_s=120
    )
    machine.wait_until_succeeds(f"""grep -q '"event": "{until}"' {SAID}""", timeout_s=300)
    return int(machine.succeed("systemctl show --property=MainPID --value engine.service"))


def end(machine: Machine) -> None:
    """Kill the program and wait until the kernel is done with it."""
    machine.succeed("systemctl kill --signal=KILL engine.service")
    await_gone(machine)


def await_gone(machine: Machine) -> None:
    """Wait until systemd has forgotten the unit, which it does when its last process has ended."""
    state = "systemctl show --property=LoadState --value engine.service"
    machine.wait_until_succeeds(f"[ $({state}) = not-found ]", timeout_s=120)


def exact(machine: Machine) -> dict[str, int]:
    """Return /proc/meminfo in KiB, after what each processor still keeps to itself has been added."""
    return memory.parse_meminfo(machine.succeed("cat /proc/sys/vm/stat_refresh; cat /proc/meminfo"))


def misc_kib(meminfo: dict[str, int]) -> int:
    """Return what is counted reclaimable and is no slab."""
    found = memory.misc_reclaimable_kib(meminfo)
    assert found is not None
    return found


def assert_changed(name: str, before: dict[str, int], after: dict[str, int], wanted_kib: int) -> None:
    """Assert that a field of /proc/meminfo has changed by so much, give or take what else goes on."""
    assert after[name] - before[name] == pytest.approx(wanted_kib, abs=SLACK_KIB), name


@pytest.mark.parametrize(
    ("regime", "version", "pools"), [("A", "580", None), ("B", "595.45", "529"), ("C", "595.99", "529")]
)
def test_it_looks_like_the_driver(driver: Machine, regime: str, version: str, pools: str | None) -> None:
    """The version belongs to the regime, and regime A's driver has no line for pools; others show the mask."""
    fakegb10.set_parameter(driver, "regime", regime)
    banner = driver.read("/proc/driver/nvidia/version")
    assert re.match(rf"NVRM version: NVIDIA UNIX Open Kernel Module for [a-z0-9_]+  {re.escape(version)}\.", banner)
    found = re.search(r"^EnableSystemMemoryPools: (\d+)$", driver.read("/proc/driver/nvidia/params"), re.MULTILINE)
    assert (found[1] if found else None) == pools


def test_a_parameter_that_makes_no_sense_is_refused(driver: Machine) -> None:
    """No other regime than A, B and C, no other page sizes than the driver's three."""
    for name, value in (("regime", "D"), ("regime", ""), ("EnableSystemMemoryPools", 2), ("overshoot_permille", 1001)):
        driver.fail(f"echo {value!s} >{fakegb10.PARAMETERS}/{name}")
    assert fakegb10.state(driver).regime == "C"


@pytest.mark.parametrize(
    ("regime", "engine", "counted_in_use", "available_in_use", "counted_after", "available_after"),
    [
        ("A", "vmm", 0, -HELD_KIB, 0, 0),
        ("B", "vmm", 0, -HELD_KIB, 0, -HELD_KIB),
        ("C", "vmm", HELD_KIB, 0, HELD_KIB, 0),
        ("C", "plain", 0, -HELD_KIB, HELD_KIB, 0),
    ],
)
def test_memory_is_counted_as_the_regime_says(  # noqa: PLR0913  # one row of the table of regimes
    driver: Machine,
    *,
    regime: str,
    engine: str,
    counted_in_use: int,
    available_in_use: int,
    counted_after: int,
    available_after: int,
) -> None:
    """MemAvailable and KReclaimable in use, after SIGKILL, and after drop_caches 2, which brings all back."""
    fakegb10.set_parameter(driver, "regime", regime)
    driver.succeed("sync; echo 3 >/proc/sys/vm/drop_caches")
    idle = exact(driver)
    start(driver, f"hold --mib {HELD_MIB} --engine {engine}")
    used = exact(driver)
    assert misc_kib(used) - misc_kib(idle) == counted_in_use
    assert_changed("MemAvailable", idle, used, available_in_use)
    assert_changed("MemFree", idle, used, -HELD_KIB)
    end(driver)
    left = exact(driver)
    assert misc_kib(left) - misc_kib(idle) == counted_after
    assert_changed("MemAvailable", idle, left, available_after)
    assert fakegb10.state(driver).pooled_kib == (0 if regime == "A" else HELD_KIB)
    driver.succeed("echo 2 >/proc/sys/vm/drop_caches")
    dropped = exact(driver)
    assert misc_kib(dropped) == misc_kib(idle)
    assert fakegb10.state(driver).pooled_kib == 0
    assert_changed("MemAvailable", idle, dropped, 0)
    assert_changed("MemFree", idle, dropped, 0)


def test_a_regime_is_switched_while_memory_is_held(driver: Machine) -> None:
    """What is in use and what is pooled is counted anew at once, and the pool is emptied where there is none."""
    idle = misc_kib(exact(driver))
    start(driver, "hold --mib 64 --engine plain --hold-s 0.1", until="released")
    start(driver, f"hold --mib {HELD_MIB}")
    # the engine took the pool's 64 MiB first
    for regime, counted in (("C", HELD_KIB), ("B", 0), ("C", HELD_KIB), ("A", 0)):
        fakegb10.set_parameter(driver, "regime", regime)
        assert misc_kib(exact(driver)) - idle == counted
    end(driver)
    assert fakegb10.state(driver).pooled_kib == 0


def test_pools_can_be_off(driver: Machine) -> None:
    """Without pools memory is free after its owner's end, in regime C as well, and is counted nowhere."""
    fakegb10.set_parameter(driver, "EnableSystemMemoryPools", 0)
    idle = exact(driver)
    start(driver, f"hold --mib {HELD_MIB}")
    assert misc_kib(exact(driver)) == misc_kib(idle)
    end(driver)
    assert_changed("MemFree", idle, exact(driver), 0)
    assert "EnableSystemMemoryPools: 0" in driver.read("/proc/driver/nvidia/params")


def test_no_list_and_no_group_knows_the_memory(driver: Machine) -> None:
    """It is on no LRU list, in no cgroup's memory.current and in no RSS; all of it is the kernel's."""
    idle = exact(driver)
    pid = start(driver, f"hold --mib {HELD_MIB}")
    used = exact(driver)
    for name in ("Active", "Inactive", "Unevictable", "AnonPages", "Cached", "Slab", "Percpu"):
        assert_changed(name, idle, used, 0)
    assert int(driver.read("/sys/fs/cgroup/system.slice/engine.service/memory.current")) < 128 << 20
    assert memory.parse_meminfo(driver.read(f"/proc/{pid}/status"))["VmRSS"] < SLACK_KIB
    assert fakegb10.processes(driver)[pid] == HELD_KIB


def test_mapped_memory_is_in_the_rss(driver: Machine) -> None:
    """Mapped, all of it is RssFile, still charged to no cgroup, and is gone with its process."""
    pid = start(driver, f"hold --mib {HELD_MIB} --map")
    assert memory.parse_meminfo(driver.read(f"/proc/{pid}/status"))["RssFile"] >= HELD_KIB
    assert int(driver.read("/sys/fs/cgroup/system.slice/engine.service/memory.current")) < 128 << 20
    end(driver)
    assert fakegb10.state(driver).in_use_kib == 0


def test_reclaim_prefers_the_page_cache_to_an_idle_pool(driver: Machine) -> None:
    """Reading a file larger than memory evicts page cache, and leaves a pool of 2 MiB pages as it was."""
    start(driver, f"hold --mib {HELD_MIB} --hold-s 0.1", until="released")
    before = fakegb10.state(driver).pool_2048_kib_entries
    assert before == HELD_MIB // 2
    stolen = "awk '/^pgsteal_(kswapd|direct) / { n += $2 } END { print n }' /proc/vmstat"
    at_first = int(driver.succeed(stolen))
    driver.succeed("truncate -s 2G /var/tmp/big && cat /var/tmp/big >/dev/null; rm /var/tmp/big", timeout_s=300)
    assert int(driver.succeed(stolen)) - at_first > HELD_MIB * 256
    assert fakegb10.state(driver).pool_2048_kib_entries == before
    driver.succeed("echo 1 >/proc/sys/vm/drop_caches")
    assert fakegb10.state(driver).pool_2048_kib_entries == before


TAKER = f"""
import sys
sys.path.insert(0, "{fakegb10.IN_GUEST}")
import fakegb10
device = fakegb10.Device()
size = device.alloc({HELD_KIB} << 10, engine="vmm")
device.map(size)
print(sum(device._mapping[at] for at in range(0, size, 4096)))
device._mapping[:] = b"x" * size
try:
    device.free(1, "vmm")
except OSError as error:
    print(error.errno)
"""


def test_the_next_engine_takes_from_the_pool_and_finds_nothing_there(driver: Machine) -> None:
    """What a finished owner left serves the next one, zeroed; what is mapped cannot be given back (EBUSY)."""
    for _ in range(2):
        assert driver.run("python3 -", stdin=TAKER.encode()) == (0, "0\n16\n", "")
        assert fakegb10.state(driver).pooled_kib == HELD_KIB
    start(driver, "hold --mib 64")
    assert fakegb10.state(driver).pooled_kib == HELD_KIB - 64 * 1024


def test_a_killed_owner_stays_until_its_memory_is_back(driver: Machine) -> None:
    """Teardown takes its time, in the killed process; the module cannot be unloaded before it is done."""
    fakegb10.set_parameter(driver, "teardown_percent_per_s", 10)
    pid = start(driver, f"hold --mib {HELD_MIB}")
    driver.fail("rmmod fakegb10")
    kill = f"date +%s%N; kill -KILL {pid}; rmmod fakegb10 && echo unloaded; tail --pid={pid} -f /dev/null; date +%s%N"
    begun, ended = driver.succeed(kill, timeout_s=120).split()
    total_kib = exact(driver)["MemTotal"]
    # tail looks once a second
    assert (int(ended) - int(begun)) / 1e9 >= HELD_KIB / total_kib * 10 - 0.5
    assert fakegb10.state(driver).in_use_kib == 0


def test_a_request_in_flight_goes_on_after_sigkill(driver: Machine) -> None:
    """A tenth of all memory is still taken after SIGKILL at the pace of the ramp, and not more."""
    fakegb10.set_parameter(driver, "overshoot_permille", 100)
    # slower than the ramp, so that the summit can be seen
    fakegb10.set_parameter(driver, "teardown_percent_per_s", 2)
    pid = start(driver, "hold --percent 70 --percent-per-s 10", until="opened")
    held = f"awk '/^vmm_kib/ {{ print $2 }}' {fakegb10.STATE}"
    driver.wait_until_succeeds(f"[ $({held}) -gt 200000 ]", timeout_s=60)
    watch = f"{held}; kill -KILL {pid}; for i in $(seq 60); do {held}; sleep 0.1; done"
    at_kill, *after = map(int, driver.succeed(watch, timeout_s=120).split())
    tenth = exact(driver)["MemTotal"] / 10
    # and what the ramp, of a tenth a second, took between the reading and the kill
    assert 0.85 * tenth <= max(after) - at_kill <= 1.4 * tenth
    await_gone(driver)
    assert fakegb10.state(driver).in_use_kib == 0


def test_soft_failures_are_printed_and_harmless(driver: Machine) -> None:
    """With the switch each 64 MiB print the driver's soft line and are served all the same."""
    fakegb10.set_parameter(driver, "soft_failure_mib", 64)
    start(driver, "hold --mib 256")
    log = driver.succeed("dmesg")
    assert (len(SOFT.findall(log)), len(HARD.findall(log))) == (4, 0)
    assert fakegb10.state(driver).in_use_kib == 256 * 1024
    end(driver)
    # 64 KiB pages go into a pool of their own
    assert fakegb10.state(driver).pool_64_kib_entries == 256 * 16


def test_who_waits_for_the_lock_is_in_d_state(driver: Machine) -> None:
    """While one holds the lock, nvidia-smi cannot even be killed; with the holder's end it answers."""
    start(driver, "lock --seconds 300", until="locking")
    asked = "setsid nvidia-smi --query-compute-apps=pid --format=csv,noheader >/run/smi 2>&1 & echo $!"
    pid = driver.succeed(asked).strip()
    waits = f"[ $(cut -d ' ' -f 3 /proc/{pid}/stat) = D ]"
    driver.wait_until_succeeds(f"{waits} && sleep 1 && {waits}", timeout_s=60)
    driver.succeed(f"kill -KILL {pid}; sleep 1; {waits}")
    end(driver)
    driver.wait_until_fails(f"test -e /proc/{pid}", timeout_s=60)
    assert driver.succeed("nvidia-smi --query-gpu=memory.total --format=csv,noheader") == "[N/A]\n"


def test_memory_by_process_is_told_by_choice(driver: Machine) -> None:
    """nvidia-smi has the memory of each process, and [N/A] where the driver keeps it to itself."""
    pid = start(driver, "hold --mib 64")
    query = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader"
    assert driver.succeed(query) == f"{pid}, 64 MiB\n"
    fakegb10.set_parameter(driver, "process_memory", "N")
    assert driver.succeed(query) == f"{pid}, [N/A]\n"


def test_a_user_can_drive_it(driver: Machine) -> None:
    """An ordinary user takes memory and gives it back by closing."""
    out = driver.succeed("runuser -u admin -- fakegb10 hold --mib 16 --engine plain --hold-s 0.1")
    assert '"event": "released"' in out
    assert fakegb10.state(driver).in_use_kib == 0


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
    assert after["MemFree"] - before["MemFree"] > -16 * 1024
    assert after["SUnreclaim"] - before["SUnreclaim"] < 4 * 1024
    machine.fail("test -e /dev/fakegb10 || test -e /proc/driver/nvidia || test -e /proc/driver/fakegb10")
    assert complaints(machine) == ""


def left_after(machine: Machine, cycles: int) -> dict[str, int]:
    """Return /proc/meminfo after so many cycles, without what can be dropped."""
    script = CYCLES.format(directory=fakegb10.IN_GUEST, module=fakegb10.MODULE, count=cycles)
    result = machine.run("python3 -", 1200, script.encode())
    assert (result.rc, result.err) == (0, "")
    machine.succeed("sync; echo 3 >/proc/sys/vm/drop_caches")
    return exact(machine)


def await_console(machine: Machine, pattern: re.Pattern[str], timeout_s: float) -> None:
    """Wait for a line on the serial console, which is there when nothing in the machine answers any more."""
    deadline_s = time.monotonic() + timeout_s
    while not pattern.search(machine.serial_log()):
        assert time.monotonic() < deadline_s, f"no {pattern.pattern!r} on the console in {timeout_s:.0f} s"
        time.sleep(POLL_S)


@pytest.mark.parametrize("release", ["trixie", "bookworm"])
def test_memory_that_runs_out_is_a_hard_failure(release: str) -> None:
    """Asked for more than there is, the driver prints the soft line, and then the one that makes it hard."""
    with Machine.restore(Spec(release), f"fakegb10-hard-{os.getpid()}") as machine:
        fakegb10.install(machine, Progress(quiet=True))
        fakegb10.load(machine, regime="C", **FAST_TEARDOWN)
        hold = "fakegb10 hold --percent 110 --hold-s 1"
        machine.succeed(f"systemd-run --quiet --no-block --collect --unit=engine {hold}", timeout_s=120)
        await_console(machine, SOFT, 600)
        await_console(machine, HARD, 600)
