"""Opt-in: a box that cannot be saved restarts by itself, and one that would not come back is refused."""

import pytest

from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

REBOOT_TIMEOUT_S = 600.0
"""A boot takes 30 s on an idle machine and was seen to take ten times that on a busy one."""
WATCHDOG = "/sys/class/watchdog/watchdog0"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kernel.hung_task_panic", "1"),
        ("kernel.softlockup_panic", "1"),
        ("kernel.panic_on_oops", "1"),
        ("kernel.panic", "1"),
    ],
)
def test_the_kernel_has_the_value(opted_in: Deployed, key: str, value: str) -> None:
    """The kernel has what the policy wants."""
    assert opted_in.machine.read(f"/proc/sys/{key.replace('.', '/')}").strip() == value


def test_the_watchdog_runs_with_its_time(opted_in: Deployed) -> None:
    """The device is open, runs with the time of the policy, and the report says which device that is."""
    machine = opted_in.machine
    assert machine.read(f"{WATCHDOG}/state").strip() == "active"
    assert machine.read(f"{WATCHDOG}/timeout").strip() == "15"
    found = deploying.controls(machine)["recovery/RuntimeWatchdogSec"]
    assert found["verdict"] == "ok"
    assert "i6300ESB" in found["reason"]
    assert "15 s" in found["reason"]


def test_a_crash_of_the_kernel_reboots(opted_in: Deployed) -> None:
    """A kernel that panics restarts by itself, and every control is in force again."""
    machine = opted_in.machine
    before = deploying.boot_id(machine)
    machine.succeed("sync; (sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &")
    deploying.await_another_boot(machine, before, REBOOT_TIMEOUT_S)
    assert unfinished(machine_verdicts(opted_in)) == {}


@pytest.mark.slow
def test_a_frozen_pid_1_trips_the_watchdog(opted_in: Deployed) -> None:
    """When PID 1 is frozen the hardware restarts the machine."""
    machine = opted_in.machine
    before = deploying.boot_id(machine)
    machine.succeed("sync; echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze")
    deploying.await_another_boot(machine, before, REBOOT_TIMEOUT_S)
    assert unfinished(machine_verdicts(opted_in)) == {}


@pytest.mark.slow
def test_a_hung_task_reboots(opted_in: Deployed) -> None:
    """A task that is stuck in the kernel for longer than the time-out ends in a restart."""
    machine = opted_in.machine
    before = deploying.boot_id(machine)
    machine.succeed("sync; sysctl -q kernel.hung_task_timeout_secs=3")
    deploying.leave_hanging(machine, 1)
    deploying.await_another_boot(machine, before, REBOOT_TIMEOUT_S)


def test_a_box_that_asks_for_a_passphrase_is_refused(opted_in: Deployed) -> None:
    """With an encrypted disk that somebody has to unlock the deploy is refused, with what to do, and does nothing."""
    machine = opted_in.machine
    machine.put("/etc/crypttab", "root UUID=0a1b none luks\n")
    try:
        refused = deploying.failing_deploy(machine, deploying.OPTED_IN)
        assert "/etc/crypttab asks for a passphrase at boot" in refused.err
        assert "switch the layer off" in refused.err
    finally:
        machine.succeed("rm /etc/crypttab")


def machine_verdicts(deployed: Deployed) -> dict[str, str]:
    """Return the verdict of every control."""
    return {i: c["verdict"] for i, c in deploying.controls(deployed.machine).items()}


def unfinished(verdicts: dict[str, str]) -> dict[str, str]:
    """Leave out what is as it should be, and what this machine cannot have."""
    return {i: v for i, v in verdicts.items() if v not in ("ok", "unsupported")}
