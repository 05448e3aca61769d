"""Opt-in: the driver's option is written only where the driver is; elsewhere it is said to be unsupported."""

import pytest

from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]


def test_without_the_driver_nothing_is_written(opted_in: Deployed) -> None:
    """On a machine without the driver the control is unsupported, its file is not written, no initramfs is built."""
    machine = opted_in.machine
    found = deploying.controls(machine)["driver_option/NVreg_EnableSystemMemoryPools"]
    assert found["verdict"] == "unsupported"
    machine.fail("test -e /etc/modprobe.d/plimsoll.conf")
    if opted_in.run is not None:
        assert "Layer driver_option" not in opted_in.run.changed()
