"""Protection is effective only as far as every ancestor has it; and where it is, no page is swapped out."""

import pytest

from lab.machine import Machine
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

CGROUP = "/sys/fs/cgroup"
MIB = 1 << 20
PROTECTED = {
    "system.slice": ("memory.min", 192),
    "system.slice/ssh.service": ("memory.min", 64),
    "system.slice/systemd-journald.service": ("memory.min", 64),
    "system.slice/dbus.service": ("memory.min", 12),
    "system.slice/systemd-logind.service": ("memory.min", 12),
    "system.slice/systemd-networkd.service": ("memory.min", 12),
    "system.slice/rsyslog.service": ("memory.min", 12),
    "system.slice/plimsoll-guard.service": ("memory.min", 16),
    "user.slice": ("memory.low", 64),
}
HOLDER = "import time; held = b'x' * (60 << 20); open('/run/%s', 'w').close(); time.sleep(3600)"
HOG = (
    "import itertools, time; held = [bytearray(b'x' * (16 << 20)) for _ in range(%d)];"
    "[m.__setitem__(slice(0, len(m), 4096), b'y' * (len(m) // 4096)) for m in itertools.cycle(held)]"
)


def protection_mib(machine: Machine, group: str) -> int:
    """Return what a cgroup has in force."""
    name, _ = PROTECTED[group]
    return int(machine.read(f"{CGROUP}/{group}/{name}")) // MIB


@pytest.mark.parametrize(
    "action",
    [
        "true",
        "systemctl daemon-reload",
        "systemctl restart ssh.service",
        "systemctl daemon-reexec",
    ],
)
def test_protection_is_in_force_up_the_tree(hardened: Deployed, action: str) -> None:
    """Every protected unit and its slice have their value in the kernel, and keep it through what systemd does."""
    hardened.machine.succeed(action)
    found = {group: protection_mib(hardened.machine, group) for group in PROTECTED}
    assert found == {group: mib for group, (_, mib) in PROTECTED.items()}
    assert hardened.before["system.slice memory.min"] == "0"


def start(machine: Machine, unit: str, code: str, *properties: str) -> None:
    """Start Python code as a unit."""
    machine.put(f"/run/{unit}.py", code)
    options = " ".join(properties)
    machine.succeed(f"systemd-run --quiet --unit={unit} {options} python3 /run/{unit}.py")


def test_a_protected_unit_keeps_its_pages_under_a_hog(hardened: Deployed) -> None:
    """Under a hog the pages of a protected unit stay, those of its unprotected twin go to swap."""
    machine = hardened.machine
    free_mib = int(machine.succeed("awk '/^MemAvailable/ {print $2}' /proc/meminfo")) // 1024
    # earlyoom would end the hog before the kernel had to take anybody's pages
    machine.succeed("systemctl stop earlyoom.service systemd-oomd.service systemd-oomd.socket")
    try:
        start(machine, "guarded", HOLDER % "guarded", "-p MemoryMin=64M")
        start(machine, "twin", HOLDER % "twin", "--slice=twin.slice")
        machine.wait_until_succeeds("test -e /run/guarded -a -e /run/twin")
        start(machine, "hog", HOG % (free_mib // 16), "--slice=hog.slice", "-p OOMScoreAdjust=1000")
        swapped = f"[ $(cat {CGROUP}/twin.slice/twin.service/memory.swap.current) -gt {4 * MIB} ]"
        machine.wait_until_succeeds(swapped, timeout_s=180)
        for unit in ("guarded", "ssh", "systemd-journald", "dbus"):
            assert machine.read(f"{CGROUP}/system.slice/{unit}.service/memory.swap.current").strip() == "0", unit
        assert machine.ssh("true").returncode == 0
    finally:
        machine.succeed("systemctl stop hog.service twin.service guarded.service")
        machine.succeed("systemctl start earlyoom.service systemd-oomd.socket systemd-oomd.service")
