"""What a deploy set is in force after a reboot, with nobody looking after it."""

from collections.abc import Iterator

import pytest

from lab.machine import Machine
from lab.snapshot import Spec
from tests.vm import deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine that was deployed to and then rebooted, one of each release."""
    with deploying.hardened("reboot", spec=Spec(request.param)) as deployed:
        boot = deployed.read("/proc/sys/kernel/random/boot_id")
        deployed.reboot()
        assert deployed.read("/proc/sys/kernel/random/boot_id") != boot
        yield deployed


def test_every_control_is_in_force_after_a_reboot(machine: Machine) -> None:
    """After a reboot the box finds every control as wanted: values, cgroups, scores, arguments, units."""
    assert deploying.not_ok(machine) == {}


def test_nothing_is_announced_after_a_reboot(machine: Machine) -> None:
    """A dry run after a reboot announces no change: what was written to the kernel by hand is kept by files too."""
    assert deploying.plan(machine) == []


def test_a_login_after_a_reboot_can_be_killed(machine: Machine) -> None:
    """The listener of sshd has -1000, a login shell, its child, and what admin's user manager starts have 0."""
    shell = "cat /proc/self/oom_score_adj; sh -c 'cat /proc/self/oom_score_adj'"
    started = "systemd-run --user --quiet --wait --pipe cat /proc/self/oom_score_adj"
    assert machine.ssh(f"{shell}; {started}").stdout.split() == ["0", "0", "0"]
    listener = machine.succeed("systemctl show -p MainPID --value ssh.service").strip()
    assert machine.read(f"/proc/{listener}/oom_score_adj").strip() == "-1000"
