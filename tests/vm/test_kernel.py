"""The kernel's reserve and its reports: values read from the kernel, and what they change in it."""

import pytest

from lab import qemu
from lab.machine import Machine, directory_of
from lab.qmp import Monitor
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

HUNG_TASKS = 12
"""The kernel's own limit is 10 reports, then it is silent for the rest of the boot."""
SHORT_TIMEOUT_S = 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vm.min_free_kbytes", "65536"),
        ("vm.watermark_boost_factor", "0"),
        ("kernel.sysrq", "1"),
        ("kernel.hung_task_timeout_secs", "120"),
        ("kernel.hung_task_warnings", "-1"),
    ],
)
def test_the_kernel_has_the_value(hardened: Deployed, key: str, value: str) -> None:
    """The kernel has what the policy wants."""
    path = f"/proc/sys/{key.replace('.', '/')}"
    assert hardened.machine.read(path).strip() == value


def test_the_zones_keep_the_reserve(hardened: Deployed) -> None:
    """The watermarks of all zones add up to the reserve, which was smaller before."""
    assert int(hardened.before["the zones' reserve in KiB"]) < 50_000
    assert int(hardened.after["the zones' reserve in KiB"]) == pytest.approx(65_536, rel=0.01)


def press_sysrq(machine: Machine, key: str) -> None:
    """Press Alt-SysRq and a key on the machine's keyboard."""
    keys = [{"type": "qcode", "data": code} for code in ("alt", "sysrq", key)]
    with Monitor(directory_of(machine.name) / qemu.QMP_SOCKET) as monitor:
        monitor.command("send-key", {"keys": keys})


def test_the_keyboard_gets_a_memory_report(hardened: Deployed) -> None:
    """Alt-SysRq-M at the console prints the state of memory; with Debian's own value the kernel refuses."""
    machine = hardened.machine
    machine.succeed("sysctl -q kernel.sysrq=438; dmesg --clear")
    press_sysrq(machine, "m")
    machine.wait_until_succeeds("dmesg | grep -q 'This sysrq operation is disabled'", timeout_s=20)
    machine.succeed("sysctl -q kernel.sysrq=1; dmesg --clear")
    press_sysrq(machine, "m")
    machine.wait_until_succeeds("dmesg | grep -q 'sysrq: Show Memory' && dmesg | grep -q Mem-Info", timeout_s=20)


@pytest.mark.slow
def test_hung_tasks_are_reported_without_end(hardened: Deployed) -> None:
    """Twelve tasks stuck in the kernel are twelve reports, and the limit of ten is not counted down."""
    machine = hardened.machine
    deploying.leave_hanging(machine, HUNG_TASKS)
    try:
        machine.succeed(f"dmesg --clear; sysctl -q kernel.hung_task_timeout_secs={SHORT_TIMEOUT_S}")
        reports = f"[ $(dmesg | grep -c 'blocked for more than') -ge {HUNG_TASKS} ]"
        machine.wait_until_succeeds(reports, timeout_s=60)
        assert machine.read("/proc/sys/kernel/hung_task_warnings").strip() == "-1"
    finally:
        machine.succeed("sysctl -q kernel.hung_task_timeout_secs=120; fsfreeze -u /mnt; umount --lazy /mnt")


def test_a_later_file_that_wins_is_named_with_its_line(hardened: Deployed) -> None:
    """A file that sorts after ours shadows it: the report names file and line, and a deploy fails with them."""
    machine = hardened.machine
    machine.put("/etc/sysctl.d/zzz-own.conf", "# ours\nkernel.sysrq = 0\n")
    try:
        assert "/etc/sysctl.d/zzz-own.conf:2" in deploying.not_ok(machine)["kernel/kernel.sysrq"]
        refused = deploying.failing_deploy(machine)
        assert "kernel/kernel.sysrq: shadowed: /etc/sysctl.d/zzz-own.conf:2" in refused.err
    finally:
        machine.succeed("rm /etc/sysctl.d/zzz-own.conf")
    assert deploying.not_ok(machine) == {}


def test_a_value_lost_is_drift_and_comes_back(hardened: Deployed) -> None:
    """A value changed by hand is drift, is all that the next deploy changes, and is then as wanted again."""
    machine = hardened.machine
    machine.succeed("sysctl -q vm.watermark_boost_factor=15000")
    assert deploying.not_ok(machine).keys() == {"kernel/vm.watermark_boost_factor"}
    assert deploying.deploy(machine).changed() == ["Layer kernel"]
    assert machine.read("/proc/sys/vm/watermark_boost_factor").strip() == "0"


@pytest.mark.slow
def test_the_reserve_is_never_below_the_kernels_own(hardened: Deployed) -> None:
    """A policy that wants less than the kernel chose leaves the kernel's own value wanted."""
    policy = {"values": {"kernel/vm.min_free_kbytes": 1024}}
    run = deploying.pyinfra(hardened.machine, "--dry", hardened.machine.name, "deploy.py", policy=policy)
    own_kib = int(hardened.before["the zones' reserve in KiB"])
    announced = [line for line in run.err.splitlines() if "kernel: sysctl vm.min_free_kbytes" in line]
    assert len(announced) == 1, run.err
    assert int(announced[0].split()[-1]) == pytest.approx(own_kib, rel=0.01)
