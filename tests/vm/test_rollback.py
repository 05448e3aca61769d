"""Nobody is locked out: the power fails, logins fail, the operator vanishes, or sshd's configuration is broken."""

import pytest

from lab.machine import Machine
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

DROP_IN = "/etc/systemd/system/ssh.service.d/plimsoll.conf"
ARMED = "test -e /etc/systemd/system/plimsoll-rollback.service"
REVERT_TIMEOUT_S = 180
STEPS = {
    "armed": ("after", "rollback arm"),
    "applied": ("after", r"plimsoll apply \|\|"),
    "proven": ("before", "rollback disarm"),
}
"""Where a deploy is cut off in the layer sshd: `applied` is before the proof of a login, `proven` after it."""


def assert_taken_back(machine: Machine) -> None:
    """Assert that the layer is gone from the host, that nothing is armed any more, and that a login works."""
    machine.wait_until_fails(ARMED, timeout_s=REVERT_TIMEOUT_S)
    machine.fail(f"ls {DROP_IN}")
    assert machine.succeed(breaking.LEFTOVERS) == ""
    breaking.assert_login(machine)


@pytest.mark.slow
def test_a_power_cut_at_each_step_takes_the_layer_back(machine: Machine) -> None:
    """Power fails when armed, applied, and proven but not disarmed: the host is reachable, the layer taken back."""
    for name, (moment, pattern) in STEPS.items():
        assert breaking.deploy_killed(machine, moment, pattern, 1, breaking.WITHOUT_EARLYOOM) == breaking.KILLED, name
        machine.succeed(ARMED)
        machine.crash()
        assert_taken_back(machine)
    deploying.deploy(machine, breaking.WITHOUT_EARLYOOM)
    breaking.assert_converged(machine, breaking.WITHOUT_EARLYOOM)


@pytest.mark.slow
def test_a_run_after_one_that_was_cut_off_proves_the_login(machine: Machine) -> None:
    """An operator dies between change and proof, all files are in place: the next run proves a login and disarms."""
    assert breaking.deploy_killed(machine, *STEPS["applied"], 1, breaking.WITHOUT_EARLYOOM) == breaking.KILLED
    machine.succeed(ARMED)
    assert "Layer sshd" in deploying.plan(machine, breaking.WITHOUT_EARLYOOM)
    assert "Layer sshd" in deploying.deploy(machine, breaking.WITHOUT_EARLYOOM).changed()
    breaking.assert_converged(machine, breaking.WITHOUT_EARLYOOM)


@pytest.mark.slow
def test_the_layer_goes_back_by_itself_when_the_operator_vanishes(machine: Machine) -> None:
    """Armed with a delay of 5 s and confirmed by nobody, the host takes the layer back and disarms itself."""
    plans = breaking.layer_plans(machine, breaking.WITHOUT_EARLYOOM)
    assert breaking.program(machine, "apply", stdin=plans["box"]).rc == 0
    assert breaking.program(machine, "apply", stdin=plans["slices"]).rc == 0
    assert breaking.program(machine, "apply", stdin=plans["sshd"]).rc == 0
    machine.succeed(f"ls {DROP_IN}; plimsoll rollback arm --delay-s 5")
    assert_taken_back(machine)
    machine.succeed("ls /etc/systemd/system/user.slice.d/plimsoll.conf")
    assert machine.succeed("cat /sys/fs/cgroup/system.slice/ssh.service/memory.min").strip() == "0"
    assert machine.succeed("plimsoll rollback disarm").strip() == "nothing was armed"


def deny_logins_once_armed(machine: Machine) -> None:
    """Let every new login of ordinary users fail from the moment at which a rollback is armed; open ones live on."""
    machine.put(
        "/etc/systemd/system/deny.path",
        "[Path]\nPathExists=/etc/systemd/system/plimsoll-rollback.service\n",
    )
    machine.put("/etc/systemd/system/deny.service", "[Service]\nType=oneshot\nExecStart=touch /etc/nologin\n")
    machine.succeed("sed -i '/^\\[Service/a RemainAfterExit=yes' /etc/systemd/system/deny.service")
    machine.succeed("systemctl daemon-reload; systemctl start deny.path")


@pytest.mark.slow
def test_a_login_that_fails_takes_the_layer_back_at_once(machine: Machine) -> None:
    """New logins fail after the change while the old connection lives: taken back at once, exit 1, SSH answers."""
    deny_logins_once_armed(machine)
    run = deploying.failing_deploy(machine, breaking.WITHOUT_EARLYOOM)
    machine.fail(ARMED)
    machine.succeed("test -e /etc/nologin; rm /etc/nologin; systemctl stop deny.path deny.service")
    assert "no fresh login" in run.err
    assert "the layer sshd was taken back" in run.err
    assert_taken_back(machine)
    deploying.deploy(machine, breaking.WITHOUT_EARLYOOM)
    breaking.assert_converged(machine, breaking.WITHOUT_EARLYOOM)


@pytest.mark.slow
def test_a_broken_configuration_of_sshd_is_refused_before_any_restart(machine: Machine) -> None:
    """A score on sshd asks for a restart, sshd_config is broken: refused by name, sshd runs on, nothing is armed."""
    machine.succeed("mkdir /etc/systemd/system/ssh.service.d")
    machine.put("/etc/systemd/system/ssh.service.d/zz-admin.conf", "[Service]\nOOMScoreAdjust=-1000\n")
    machine.succeed("systemctl daemon-reload; systemctl restart ssh.service")
    machine.put("/etc/ssh/sshd_config.d/broken.conf", "NoSuchKeyword yes\n")
    pid = machine.succeed("systemctl show -p MainPID --value ssh.service")
    run = deploying.failing_deploy(machine, breaking.WITHOUT_EARLYOOM)
    assert "sshd -t refuses the configuration" in run.err
    assert machine.succeed("systemctl show -p MainPID --value ssh.service") == pid
    assert_taken_back(machine)
    assert "-1000" in machine.read("/etc/systemd/system/ssh.service.d/zz-admin.conf")
