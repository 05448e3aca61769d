"""The first run applies everything, the second nothing, whoever makes it; on both releases."""

import pytest

from plimsoll.controls import registry
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

ON_BY_DEFAULT = [
    f"Layer {name}" for name in ("box", "kernel", "slices", "journald", "sshd", "user_manager", "earlyoom", "guard")
]
MANIFEST = (
    "find /etc /usr/local /var/lib/plimsoll -type f -printf '%p %m %U:%G %T@ %i\\n' | sort;"
    " systemctl list-unit-files --no-legend --no-pager;"
    " systemctl show -p MainPID ssh.service systemd-journald.service earlyoom.service;"
    " sysctl vm.min_free_kbytes kernel.sysrq"
)
"""Files with owner, time and inode, unit states, the daemons' process ids, and two values of the kernel."""


def test_the_first_run_changes_every_layer_that_is_on(either: Deployed) -> None:
    """Every layer that is on by default has something to do on a stock machine, and the opt-in ones do nothing."""
    assert either.run.changed() == ON_BY_DEFAULT
    assert either.run.failed() == []


def test_every_control_is_verified_live(either: Deployed) -> None:
    """After the first run the box finds every control as wanted, with controls of every layer that is on."""
    assert deploying.not_ok(either.machine) == {}
    layers = {control["layer"] for control in deploying.controls(either.machine).values()}
    assert layers == set(registry.LAYERS) - {"models", "recovery", "driver_option", "trims"}


def test_the_second_run_changes_nothing(either: Deployed) -> None:
    """A second run carries out every operation and changes nothing on the host."""
    before = either.machine.succeed(MANIFEST)
    assert deploying.deploy(either.machine).changed() == []
    assert either.machine.succeed(MANIFEST) == before


@pytest.mark.parametrize("user", ["admin", "root"])
def test_nothing_is_announced_after_the_first_run(either: Deployed, user: str) -> None:
    """A dry run announces no change and no conditional one, as a sudo user and as root."""
    assert deploying.plan(either.machine, user=user) == []
