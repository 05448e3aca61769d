"""Hosts with settings of their own: overridden by us where that is right, named where they win, never fought over."""

import json

import pytest

from lab.machine import Machine
from plimsoll.box.model import Verdict
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400)]

EARLYOOM_FILE = "/etc/default/earlyoom"
OWN_ARGUMENTS = 'EARLYOOM_ARGS="-r 3600 -m 10"\n'


def own_earlyoom(machine: Machine) -> None:
    """Give a machine an earlyoom that its owner has installed and set up."""
    machine.succeed("apt-get install -y earlyoom", timeout_s=deploying.DEPLOY_TIMEOUT_S)
    machine.put(EARLYOOM_FILE, OWN_ARGUMENTS)
    machine.succeed("systemctl restart earlyoom.service")


@pytest.mark.slow
def test_a_later_sysctl_file_wins_and_is_named(machine: Machine) -> None:
    """A file that sorts after ours is named with its line, the run fails for it, and the next one changes nothing."""
    machine.put("/etc/sysctl.d/zzz-admin.conf", "# mine\nkernel.sysrq = 16\n")
    run = deploying.failing_deploy(machine, breaking.WITHOUT_EARLYOOM)
    assert "kernel/kernel.sysrq: shadowed: /etc/sysctl.d/zzz-admin.conf:2 sets 16" in run.err
    assert machine.read("/etc/sysctl.d/zzz-admin.conf") == "# mine\nkernel.sysrq = 16\n"
    found = deploying.not_ok(machine)
    assert list(found) == ["kernel/kernel.sysrq"]
    before = breaking.manifest(machine)
    assert deploying.plan(machine, breaking.WITHOUT_EARLYOOM) == []
    deploying.failing_deploy(machine, breaking.WITHOUT_EARLYOOM)
    assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
@pytest.mark.machine(release="bookworm")
def test_sysctl_conf_of_debian_12_is_overridden_and_named(machine: Machine) -> None:
    """Debian 12 reads /etc/sysctl.conf as 99-sysctl.conf: ours wins, after a reboot too, and the other is named."""
    machine.put("/etc/sysctl.conf", "vm.min_free_kbytes=20000\nkernel.sysrq=0\n")
    machine.succeed("test -L /etc/sysctl.d/99-sysctl.conf; sysctl --system")
    deploying.deploy(machine, breaking.WITHOUT_EARLYOOM)
    found = deploying.controls(machine)["kernel/kernel.sysrq"]
    assert (found["verdict"], found["live"]) == (Verdict.OK, "1")
    assert "/etc/sysctl.d/99-sysctl.conf:2" in found["reason"]
    machine.reboot()
    assert machine.read("/proc/sys/vm/min_free_kbytes").strip() == "65536"
    assert deploying.not_ok(machine) == {}


@pytest.mark.slow
def test_an_earlyoom_that_was_there_is_taken_over_and_given_back(machine: Machine) -> None:
    """Its arguments are replaced and recorded; a revert gives back file and arguments, and keeps the package."""
    own_earlyoom(machine)
    before = breaking.manifest(machine)
    deploying.deploy(machine)
    assert deploying.not_ok(machine) == {}
    machine.succeed("plimsoll revert", timeout_s=300)
    assert machine.read(EARLYOOM_FILE) == OWN_ARGUMENTS
    assert machine.succeed("ps -C earlyoom -o args=").split()[1:] == ["-r", "3600", "-m", "10"]
    assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
def test_an_execstart_of_somebody_else_is_named(machine: Machine) -> None:
    """A drop-in that replaces earlyoom's command line wins: named with its line, exit 1, and nothing is fought over."""
    own_earlyoom(machine)
    override = "/etc/systemd/system/earlyoom.service.d/override.conf"
    machine.succeed(f"mkdir -p {override.rpartition('/')[0]}")
    machine.put(override, "[Service]\nExecStart=\nExecStart=/usr/bin/earlyoom -m 7\n")
    machine.succeed("systemctl daemon-reload; systemctl restart earlyoom.service")
    run = deploying.failing_deploy(machine)
    assert f"earlyoom/arguments: shadowed: {override}:3" in run.err
    pid = machine.succeed("systemctl show -p MainPID --value earlyoom.service")
    assert deploying.plan(machine) == []
    deploying.failing_deploy(machine)
    assert machine.succeed("systemctl show -p MainPID --value earlyoom.service") == pid


@pytest.mark.slow
def test_a_masked_unit_is_refused_with_its_name(machine: Machine) -> None:
    """A masked sshd or earlyoom is one refusal that says what to do; the machine is left as it is."""
    for unit, undo in (
        ("ssh.service", "systemctl unmask ssh.service"),
        ("earlyoom.service", "unmask earlyoom.service"),
    ):
        machine.succeed(f"systemctl mask {unit}")
        before = breaking.manifest(machine)
        run = deploying.failing_deploy(machine)
        assert f"{unit} is masked on this host" in run.err
        assert undo in run.err
        assert breaking.differences(before, breaking.manifest(machine)) == []
        machine.succeed(f"systemctl unmask {unit}")


@pytest.mark.slow
def test_another_killer_is_reported(machine: Machine) -> None:
    """systemd-oomd, which is active on the machine, is named before a deploy does anything."""
    machine.succeed("systemctl is-active systemd-oomd.service")
    said = deploying.pyinfra(machine, "--dry", machine.name, "deploy.py").err
    assert "another killer is active: systemd-oomd.service" in said


@pytest.mark.slow
def test_values_that_need_quoting_arrive_as_they_are(machine: Machine) -> None:
    """Quotes, dollars, backticks and spaces in a policy reach the host as data, and run no command there."""
    words = ["/usr/bin/logger", 'it\'s "so" $(touch /tmp/owned) `touch /tmp/owned` ; touch /tmp/owned', "%h\\n", "ä"]
    policy = {**breaking.WITHOUT_EARLYOOM, "verify": {"notify_command": words}}
    deploying.deploy(machine, policy)
    assert json.loads(machine.read("/etc/plimsoll/wanted.json"))["notify_command"] == words
    machine.succeed("sysctl -w kernel.sysrq=0")
    assert machine.run("plimsoll verify --notify").rc == 2
    assert "touch /tmp/owned ;" not in machine.succeed("ls /tmp")
    machine.fail("test -e /tmp/owned")
