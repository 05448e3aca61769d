"""The first run applies everything, the second nothing, whoever makes it."""

from collections.abc import Iterator

import pytest

from lab.machine import Machine
from lab.snapshot import Spec
from plimsoll.controls import registry
from tests.vm import deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

ON_BY_DEFAULT = [f"Layer {n}" for n in ("box", "kernel", "slices", "journald", "sshd", "user_manager", "earlyoom")]


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine that nothing was done to, one of each release."""
    with deploying.started("idempotence", Spec(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def first(machine: Machine) -> deploying.Run:
    """Return the first deploy."""
    return deploying.deploy(machine)


def test_the_first_run_changes_every_layer_that_is_on(first: deploying.Run) -> None:
    """Every layer that is on by default has something to do on a stock machine, and the opt-in ones do nothing."""
    assert first.changed() == ON_BY_DEFAULT
    assert first.failed() == []


@pytest.mark.usefixtures("first")
def test_every_control_is_verified_live(machine: Machine) -> None:
    """After the first run the box finds every control as wanted, with a control of every layer among them."""
    assert deploying.not_ok(machine) == {}
    layers = {control["layer"] for control in deploying.controls(machine).values()}
    assert layers == set(registry.LAYERS) - {"recovery", "driver_option", "trims"}


@pytest.mark.usefixtures("first")
def test_the_second_run_changes_nothing(machine: Machine) -> None:
    """A second run carries out every operation and changes nothing on the host."""
    before = machine.succeed(MANIFEST)
    assert deploying.deploy(machine).changed() == []
    assert machine.succeed(MANIFEST) == before


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("user", ["admin", "root"])
def test_nothing_is_announced_after_the_first_run(machine: Machine, user: str) -> None:
    """A dry run announces no change and no conditional one, as a sudo user and as root."""
    assert deploying.plan(machine, user=user) == []


MANIFEST = (
    "find /etc /usr/local /var/lib/plimsoll -type f -printf '%p %m %U:%G %T@ %i\\n' | sort;"
    " systemctl list-unit-files --no-legend --no-pager;"
    " systemctl show -p MainPID ssh.service systemd-journald.service earlyoom.service;"
    " sysctl vm.min_free_kbytes kernel.sysrq"
)
"""Files with owner, time and inode, unit states, the daemons' process ids, and two values of the kernel."""
