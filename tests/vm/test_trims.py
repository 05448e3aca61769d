"""Opt-in: a unit that is trimmed stays away, even when somebody asks for it over D-Bus, and comes back on revert."""

import pytest

from lab.machine import Machine
from tests.vm import deploying
from tests.vm.deploying import BUS_NAME, BUS_UNIT, Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

BUS = "org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus"
ASK = f"busctl --timeout=5 call {BUS} StartServiceByName su {BUS_NAME} 0"


def state_of_unit(machine: Machine) -> list[str]:
    """Return enablement and activity of the unit."""
    return machine.succeed(f"systemctl is-enabled {BUS_UNIT}; systemctl is-active {BUS_UNIT} || true").split()


def test_a_bus_activated_unit_stays_away(opted_in: Deployed) -> None:
    """The unit is masked and stopped, and a call to its D-Bus name does not start it."""
    machine = opted_in.machine
    assert state_of_unit(machine) == ["masked", "inactive"]
    machine.fail(ASK)
    assert state_of_unit(machine) == ["masked", "inactive"]


@pytest.mark.slow
def test_stopping_and_disabling_would_not_do(machine: Machine) -> None:
    """A unit that is only disabled and stopped comes back with the next call: that is why it is masked."""
    deploying.add_bus_activated_unit(machine)
    machine.succeed(f"systemctl disable --now {BUS_UNIT}")
    machine.run(ASK)
    assert state_of_unit(machine) == ["disabled", "active"]


def test_a_unit_that_is_not_there_is_ok(opted_in: Deployed) -> None:
    """A unit of the list that the machine does not have is ok, and the report says so."""
    found = deploying.controls(opted_in.machine)["trims/no-such-unit.service"]
    assert found["verdict"] == "ok"
    assert "no-such-unit.service is not on this host" in found["reason"]


def test_revert_brings_it_back(opted_in: Deployed) -> None:
    """Reverting the layer starts and enables the unit again; the next deploy takes it away once more."""
    machine = opted_in.machine
    machine.succeed("plimsoll revert --layer trims")
    assert state_of_unit(machine) == ["enabled", "active"]
    assert deploying.not_ok(machine).keys() >= {f"trims/{BUS_UNIT}"}
    assert "Layer trims" in deploying.deploy(machine, deploying.OPTED_IN).changed()
    assert state_of_unit(machine) == ["masked", "inactive"]


def test_a_unit_that_cannot_be_masked_is_refused(opted_in: Deployed) -> None:
    """A unit whose own file lies where its mask would have to be is refused by name, and is not even stopped."""
    machine = opted_in.machine
    machine.put("/etc/systemd/system/own.service", "[Service]\nExecStart=sleep infinity\n")
    machine.succeed("systemctl daemon-reload && systemctl start own.service")
    try:
        refused = deploying.failing_deploy(machine, {**deploying.OPTED_IN, "trims": ["own.service"]})
        assert "trims: own.service cannot be masked" in refused.err
        assert machine.succeed("systemctl is-active own.service").strip() == "active"
    finally:
        machine.succeed("systemctl stop own.service; rm /etc/systemd/system/own.service; systemctl daemon-reload")
