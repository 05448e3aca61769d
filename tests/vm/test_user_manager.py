"""What a terminal or a desktop starts is no longer the kernel's first choice."""

import pytest

from lab.machine import Machine
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

MANAGER = "systemctl show -p MainPID --value user@1000.service"
PROBE = "systemd-run --user --quiet --wait --pipe cat /proc/self/oom_score_adj"
KEEPS_ITS_OWN = "echo 300 >/proc/self/oom_score_adj; exec sleep infinity"


def test_a_running_manager_starts_processes_at_0(hardened: Deployed) -> None:
    """What a running user manager starts had 200 before and has 0 after; the manager was not restarted."""
    assert hardened.before["started by admin's manager"] == "200"
    assert hardened.after["started by admin's manager"] == "0"
    assert hardened.after["admin's manager"] == hardened.before["admin's manager"]


def test_a_login_starts_processes_at_0(hardened: Deployed) -> None:
    """From a login of admin, a process of the user manager has 0, in its own and in its background slice."""
    found = hardened.machine.ssh(f"{PROBE}; {PROBE.replace('--user', '--user --slice=background.slice')}")
    assert found.stdout.split() == ["0", "0"], found.stderr


def test_a_new_manager_starts_processes_at_0(hardened: Deployed) -> None:
    """A user manager that starts after the deploy, with its first login, gives 0 too."""
    found = hardened.machine.ssh(PROBE, user="operator")
    assert found.stdout.split() == ["0"], found.stderr


def test_a_score_that_a_process_chose_is_reported_and_kept(hardened: Deployed) -> None:
    """A process that sets 300 for itself keeps it, is named in the report, and is no drift."""
    machine = hardened.machine
    unit = ["systemd-run --user --machine=admin@.host --unit=editor --quiet", f"sh -c '{KEEPS_ITS_OWN}'"]
    machine.succeed(" ".join(unit))
    try:
        pid = machine.wait_until_succeeds("pgrep -u admin -x sleep").strip()
        machine.wait_until_succeeds(f"grep -qx 300 /proc/{pid}/oom_score_adj")
        found = deploying.controls(machine)["user_manager/DefaultOOMScoreAdjust"]
        assert found["verdict"] == "ok"
        assert f"sleep (pid {pid}) has 300" in found["reason"]
        assert deploying.plan(machine) == []
        assert machine.read(f"/proc/{pid}/oom_score_adj").strip() == "300"
    finally:
        machine.succeed("systemctl --user --machine=admin@.host stop editor")


@pytest.mark.slow
def test_a_manager_that_lost_its_score_is_repaired(hardened: Deployed) -> None:
    """A manager put back to 100 by hand is reported as waiting for the next login, and the next deploy repairs it."""
    machine = hardened.machine
    machine.succeed(f"echo 100 >/proc/$({MANAGER})/oom_score_adj")
    assert set(deploying.not_ok(machine)) == {
        "user_manager/OOMScoreAdjust",
        "user_manager/DefaultOOMScoreAdjust",
    }
    assert deploying.deploy(machine).changed() == ["Layer user_manager"]
    assert machine.succeed(deploying.WATCHED["started by admin's manager"]).strip() == "0"


@pytest.mark.slow
def test_the_users_own_session_is_untouched(machine: Machine) -> None:
    """What runs under a user manager while a deploy changes it goes on running."""
    machine.succeed("systemd-run --user --machine=admin@.host --unit=work --quiet sleep infinity")
    before = machine.succeed("systemctl --user --machine=admin@.host show -p MainPID --value work").strip()
    deploying.deploy(machine)
    after = machine.succeed("systemctl --user --machine=admin@.host show -p MainPID,ActiveState --value work").split()
    assert sorted(after) == sorted([before, "active"])
