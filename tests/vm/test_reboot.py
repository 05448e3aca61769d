"""What a deploy set is in force after a reboot, with nobody looking after it; on both releases."""

import pytest

from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

PROBE = "cat /proc/self/oom_score_adj"


@pytest.fixture(scope="module")
def rebooted(either: Deployed) -> Deployed:
    """Return a machine that was deployed to and then rebooted."""
    before = deploying.boot_id(either.machine)
    either.machine.reboot()
    assert deploying.boot_id(either.machine) != before
    return either


def test_every_control_is_in_force_after_a_reboot(rebooted: Deployed) -> None:
    """After a reboot the box finds every control as wanted: values, cgroups, scores, arguments, units."""
    assert deploying.not_ok(rebooted.machine) == {}


def test_nothing_is_announced_after_a_reboot(rebooted: Deployed) -> None:
    """A dry run after a reboot announces no change: what was written to the kernel by hand is kept by files too."""
    assert deploying.plan(rebooted.machine) == []


def test_a_login_after_a_reboot_can_be_killed(rebooted: Deployed) -> None:
    """The listener of sshd has -1000, a login shell, its child, and what admin's user manager starts have 0."""
    machine = rebooted.machine
    probes = f"{PROBE}; sh -c '{PROBE}'; systemd-run --user --quiet --wait --pipe {PROBE}"
    assert machine.ssh(probes).stdout.split() == ["0", "0", "0"]
    listener = machine.succeed("systemctl show -p MainPID --value ssh.service").strip()
    assert machine.read(f"/proc/{listener}/oom_score_adj").strip() == "-1000"
