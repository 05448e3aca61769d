"""pyinfra dies after its first, second, third … command: the host answers each time, and the last run is whole."""

import itertools

import pytest

from lab.machine import Machine
from tests.vm import breaking

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(7200)]


def test_a_deploy_that_is_cut_off_anywhere_can_be_repeated(machine: Machine) -> None:
    """SIGKILL after command k = 1, 2, 3 … on one machine: a login works after each, and the last run converges."""
    for count in itertools.count(1):
        code = breaking.deploy_killed(machine, "after", "", count)
        breaking.assert_login(machine)
        if code != breaking.KILLED:
            break
    # a run goes on where the one before it ended, so the chain is shorter than a whole run of some 15 commands
    assert count > 5
    # a command whose reader is gone is carried to its end
    machine.wait_until_succeeds("flock -n /run/plimsoll/lock true", timeout_s=300)
    breaking.assert_converged(machine)
