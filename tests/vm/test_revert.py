"""`plimsoll revert`: everything as it was, by a manifest of the whole machine."""

import json

import pytest

from lab.machine import Machine
from plimsoll.box import ledger
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400)]
REVERT = "plimsoll revert"
REVERT_TIMEOUT_S = 300


def revert(machine: Machine, *arguments: str) -> list[str]:
    """Revert, and return what was said, a line each."""
    return machine.succeed(" ".join([REVERT, *arguments]), REVERT_TIMEOUT_S).splitlines()


@pytest.mark.parametrize(
    "policy",
    [breaking.WITHOUT_EARLYOOM, pytest.param({}, marks=pytest.mark.slow)],
    ids=["without a package", "with a package"],
)
def test_everything_is_as_before(machine: Machine, policy: deploying.Policy) -> None:
    """Files, units, sysctls, cgroups, scores, packages are as before a deploy; a dry revert had said each line."""
    before = breaking.manifest(machine)
    deploying.deploy(machine, policy)
    deployed = breaking.manifest(machine)
    assert breaking.differences(before, deployed) != []
    announced = revert(machine, "--dry")
    assert breaking.differences(deployed, breaking.manifest(machine)) == []
    machine.succeed("ip link set dev $(ls /sys/class/net | grep -v lo) down")
    assert revert(machine) == announced
    assert breaking.differences(before, breaking.manifest(machine)) == []
    ours = "/var/lib/plimsoll /usr/local/lib/plimsoll /var/cache/plimsoll"
    assert machine.succeed(f"ls -d {ours} 2>/dev/null; true") == ""


@pytest.mark.slow
def test_everything_is_as_before_after_every_layer_and_a_second_time(machine: Machine) -> None:
    """With every opt-in layer on, apply -> revert -> apply -> revert leaves the machine as it was, both times."""
    deploying.add_bus_activated_unit(machine)
    before = breaking.manifest(machine)
    for _round in range(2):
        breaking.apply_on_box(machine, deploying.OPTED_IN)
        revert(machine)
        assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
def test_layers_go_back_one_by_one_and_only_once(machine: Machine) -> None:
    """A layer that is reverted is gone and the others stay; a second revert finds nothing; together they are all."""
    before = breaking.manifest(machine)
    breaking.apply_on_box(machine)
    assert "vm.min_free_kbytes = 45056" in revert(machine, "--layer", "kernel")
    assert revert(machine, "--layer", "kernel") == ["nothing to put back"]
    assert {i.partition("/")[0] for i in deploying.not_ok(machine)} == {"kernel"}
    for layer in ("earlyoom", "sshd", "journald", "slices", "user_manager"):
        revert(machine, "--layer", layer)
    result = machine.run(f"{REVERT} --layer box")
    assert (result.rc, "revert all, without --layer" in result.err) == (4, True)
    assert machine.run(f"{REVERT} --layer kernle").rc == 4
    revert(machine)
    assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
def test_what_somebody_else_changed_is_kept_and_said(machine: Machine) -> None:
    """A file that was edited after a deploy stays, with what is beside it; the rest goes; the next deploy has it."""
    before = breaking.manifest(machine)
    breaking.apply_on_box(machine)
    edited = "/etc/systemd/system/user.slice.d/plimsoll.conf"
    machine.succeed(f"echo '# mine' >>{edited}; echo 1 >/etc/plimsoll/mine")
    announced = revert(machine, "--dry")
    said = revert(machine)
    assert said == announced
    assert f"kept: {edited} was changed by somebody else since and is left as it is" in said
    changed = {line.split(":")[0] for line in breaking.differences(before, breaking.manifest(machine))}
    directories = {f"files {edited.rpartition('/')[0]}", "files /etc/plimsoll"}
    assert changed == {f"files {edited}", "files /etc/plimsoll/mine", *directories}


DAMAGES = {
    "torn": "truncate -s -20 {}",
    "empty": "truncate -s 0 {}",
    "one character": "sed -i '0,/kernel/s//Kernel/' {}",
    "another value": "sed -i 's/45056/99999/' {}",
    "not JSON": "echo hello >{}",
    "a list": "echo '[]' >{}",
    "another schema": "sed -i 's,plimsoll.ledger/1,plimsoll.ledger/2,' {}",
    "binary": "head -c 4096 /dev/urandom >{}",
    "a directory": "rm {}; mkdir {}",
}


@pytest.mark.slow
def test_a_damaged_ledger_is_an_error_and_changes_nothing(machine: Machine) -> None:
    """However the ledger is damaged, revert, apply and a deploy say so once and leave the machine as it is."""
    plans = breaking.layer_plans(machine)
    assert breaking.program(machine, "apply", stdin=plans.pop("box")).rc == 0
    assert breaking.program(machine, "apply", stdin=plans["kernel"]).rc == 0
    machine.succeed(f"cp -a {ledger.PATH} /run/whole")
    before = breaking.manifest(machine)
    for name, command in DAMAGES.items():
        machine.succeed(command.format(ledger.PATH, ledger.PATH))
        machine.fail(f"diff -r {ledger.PATH} /run/whole")
        refused = [
            machine.run(REVERT),
            machine.run(f"{REVERT} --layer kernel"),
            machine.run(f"{REVERT} --dry"),
            breaking.program(machine, "apply", stdin=plans["slices"]),
        ]
        assert [r.rc for r in refused] == [4, 4, 4, 4], name
        assert all(len(r.err.splitlines()) == 1 and ledger.PATH in r.err for r in refused), name
        machine.succeed(f"rm -rf {ledger.PATH}; cp -a /run/whole {ledger.PATH}")
    assert breaking.differences(before, breaking.manifest(machine)) == []
    machine.succeed(f"echo {{}} >{ledger.PATH}")
    assert ledger.PATH in deploying.failing_deploy(machine).err
    machine.succeed(f"cp -a /run/whole {ledger.PATH}")
    assert json.loads(machine.read(ledger.PATH))["entries"] != []
    assert "vm.min_free_kbytes = 45056" in revert(machine)
