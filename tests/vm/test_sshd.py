"""Logins stay possible, and what they start stays killable; the listening socket is retired only when asked for."""

from collections.abc import Iterator

import pytest

from lab.machine import Machine
from lab.snapshot import Spec
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

SCORES = "cat /proc/self/oom_score_adj; sh -c 'cat /proc/self/oom_score_adj'"
LISTENER = "systemctl show -p MainPID --value ssh.service"
FOREIGN = "/etc/systemd/system/ssh.service.d/{}.conf"
UNKILLABLE = "[Service]\nOOMScoreAdjust=-1000\n"
RETIRE: deploying.Policy = {"sshd": {"retire_socket": True}}


@pytest.mark.parametrize("user", ["admin", "root"])
def test_a_login_and_its_children_can_be_killed(hardened: Deployed, user: str) -> None:
    """The listener has -1000, a login shell and its child have 0."""
    machine = hardened.machine
    assert machine.ssh(SCORES, user=user).stdout.split() == ["0", "0"]
    listener = machine.succeed(LISTENER).strip()
    assert machine.read(f"/proc/{listener}/oom_score_adj").strip() == "-1000"


def test_sshd_has_its_share(hardened: Deployed) -> None:
    """The cgroup of sshd has ten times the usual share of processor and disk."""
    machine = hardened.machine
    group = "/sys/fs/cgroup/system.slice/ssh.service"
    assert machine.read(f"{group}/cpu.weight").strip() == "1000"
    if deploying.controls(machine)["sshd/IOWeight:ssh.service"]["verdict"] == "ok":
        assert machine.read(f"{group}/io.weight").strip() == "default 1000"


def test_nothing_waits_to_take_the_layer_back(hardened: Deployed) -> None:
    """After a deploy that proved a login no way back is armed any more."""
    hardened.machine.fail("ls /etc/systemd/system/*rollback* /etc/systemd/system/*/*rollback*")
    hardened.machine.fail("systemctl is-active plimsoll-rollback.timer")


def put_drop_in(machine: Machine, name: str) -> None:
    """Give sshd the recipe that makes every login unkillable, and start it so."""
    machine.put(FOREIGN.format(name), UNKILLABLE)
    machine.succeed("systemctl daemon-reload && systemctl restart ssh.service")
    assert machine.ssh(SCORES).stdout.split() == ["-1000", "-1000"]


@pytest.mark.slow
def test_a_recipe_that_makes_logins_unkillable_is_taken_out_of_force(machine: Machine) -> None:
    """A drop-in of somebody else that gives sshd -1000 loses against ours: after the deploy a login has 0."""
    machine.succeed("mkdir -p /etc/systemd/system/ssh.service.d")
    put_drop_in(machine, "oom")
    deploying.deploy(machine)
    assert machine.ssh(SCORES).stdout.split() == ["0", "0"]
    assert machine.read(FOREIGN.format("oom")) == UNKILLABLE
    assert deploying.plan(machine) == []


@pytest.mark.slow
def test_a_recipe_that_wins_is_named(machine: Machine) -> None:
    """A drop-in that sorts after ours wins over it: the deploy fails and names it with its line."""
    machine.succeed("mkdir -p /etc/systemd/system/ssh.service.d")
    put_drop_in(machine, "zz-oom")
    refused = deploying.failing_deploy(machine)
    assert f"sshd/sessions:ssh.service: shadowed: {FOREIGN.format('zz-oom')}:2" in refused.err


LISTENERS = "pgrep --full --count '[[]listener[]]'"
"""How many daemons wait for connections: a second one means that systemd has lost the first."""


@pytest.fixture(scope="module")
def ubuntu() -> Iterator[Machine]:
    """Yield a machine whose ssh is arranged as on Ubuntu 24.04."""
    with deploying.started("ubuntu", Spec(ubuntu_ssh=True)) as machine:
        yield machine


def state_of(machine: Machine, unit: str) -> list[str]:
    """Return enablement and activity of a unit."""
    return machine.succeed(f"systemctl is-enabled {unit}; systemctl is-active {unit} || true").split()


@pytest.mark.slow
def test_a_port_that_only_the_socket_has_is_not_lost(ubuntu: Machine) -> None:
    """Asked to retire a socket with a port of its own, a deploy is refused with the port, and nothing is changed."""
    directory = "/etc/systemd/system/ssh.socket.d"
    ubuntu.succeed(f"mkdir -p {directory}")
    ubuntu.put(f"{directory}/port.conf", "[Socket]\nListenStream=2222\n")
    ubuntu.succeed("systemctl daemon-reload && systemctl restart ssh.socket")
    try:
        refused = deploying.failing_deploy(ubuntu, RETIRE)
        assert "2222" in refused.err
        assert state_of(ubuntu, "ssh.socket") == ["enabled", "active"]
        assert ubuntu.ssh("true").returncode == 0
    finally:
        ubuntu.succeed(f"rm -r {directory}; systemctl daemon-reload; systemctl restart ssh.socket")


@pytest.mark.slow
def test_the_socket_is_left_alone_by_default(ubuntu: Machine) -> None:
    """By default the socket goes on listening, and ssh.service is enabled and runs before anybody comes in."""
    deploying.deploy(ubuntu)
    assert state_of(ubuntu, "ssh.socket") == ["enabled", "active"]
    assert state_of(ubuntu, "ssh.service") == ["enabled", "active"]
    assert ubuntu.succeed(LISTENERS).strip() == "1"
    assert ubuntu.ssh(SCORES).stdout.split() == ["0", "0"]
    assert deploying.plan(ubuntu) == []


@pytest.mark.slow
def test_the_socket_is_retired_when_asked_for(ubuntu: Machine) -> None:
    """Asked to, a deploy hands the port to sshd itself: a login works at once, and after a reboot."""
    deploying.deploy(ubuntu, RETIRE)
    check_retired(ubuntu)
    ubuntu.reboot()
    check_retired(ubuntu)
    assert deploying.not_ok(ubuntu) == {}


def check_retired(machine: Machine) -> None:
    """Check that sshd runs by itself, and that a login works and can be killed."""
    assert state_of(machine, "ssh.socket") == ["disabled", "inactive"]
    assert state_of(machine, "ssh.service") == ["enabled", "active"]
    assert machine.succeed(LISTENERS).strip() == "1"
    assert machine.ssh(SCORES).stdout.split() == ["0", "0"]
