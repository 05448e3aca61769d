"""Every kind of drift, made for real: the verdict, the file and the line; and no false alarm without one."""

import pytest

from lab.machine import Machine
from tests.vm import auditing, deploying, drifts
from tests.vm.deploying import OPTED_IN, Deployed, Policy
from tests.vm.drifts import Drift

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]


def judged_alike(machine: Machine, drift: Drift, policy: Policy | None) -> None:
    """Make a drift, audit, and mend it; what is said must be what is expected, and the rest ok."""
    try:
        machine.succeed(drift.make)
        ran = auditing.audit(machine, "--json", policy=policy)
        found = auditing.deviations(ran)
    finally:
        machine.succeed(drift.mend)
    shown = {i: said.split()[0] + " *" if drift.says.get(i, "").endswith(" *") else said for i, said in found.items()}
    assert shown == drift.says
    assert ran.code == (2 if {said.split()[0] for said in found.values()} - {"pending"} else 0)


def test_a_host_without_drift_ends_with_0(hardened: Deployed) -> None:
    """Right after a deploy over a sudo login, with a user manager running, there is nothing to say."""
    ran = auditing.audit(hardened.machine, "--json")
    assert auditing.deviations(ran) == {}
    assert ran.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("drift", drifts.DEFAULT_LAYERS, ids=lambda drift: drift.name)
def test_drift_is_named(hardened: Deployed, drift: Drift) -> None:
    """The audit says what has drifted, and which file and line decides."""
    judged_alike(hardened.machine, drift, None)


@pytest.mark.slow
@pytest.mark.parametrize("drift", drifts.OPT_IN_LAYERS, ids=lambda drift: drift.name)
def test_drift_of_opt_in_layers_is_named(opted_in: Deployed, drift: Drift) -> None:
    """The same for the layers that a policy has to ask for."""
    judged_alike(opted_in.machine, drift, OPTED_IN)


@pytest.mark.slow
def test_no_false_alarm(hardened: Deployed) -> None:
    """A reload of systemd, an upgrade of packages and a reboot change nothing that matters."""
    machine = hardened.machine
    machine.succeed("systemctl daemon-reload")
    assert auditing.audit(machine, "--json").code == 0
    machine.succeed("apt-get update && apt-get -y upgrade", timeout_s=deploying.DEPLOY_TIMEOUT_S)
    assert auditing.deviations(auditing.audit(machine, "--json")) == {}
    machine.reboot()
    ran = auditing.audit(machine, "--json")
    assert auditing.deviations(ran) == {}
    assert ran.code == 0
