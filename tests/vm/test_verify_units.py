"""The box judges itself: exit codes, the document, the units that start it, and who is told."""

import json
import re

import pytest

from lab.machine import Machine
from tests.vm.deploying import TELL, TOLD, Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

KEYS = {"id", "layer", "verdict", "wanted", "live", "persisted", "decided_by", "reason"}
DRIFT = "sysctl -q kernel.sysrq=438"
MEND = "sysctl -q kernel.sysrq=1"
STARTED = "systemctl show -p ExecMainStartTimestampMonotonic --value plimsoll-verify.service"
INSTALL_SOMETHING = (
    "mkdir -p /run/something/DEBIAN && printf "
    "'Package: something\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\nDescription: x\\n' "
    ">/run/something/DEBIAN/control && dpkg-deb --build /run/something /run/something.deb && "
    "dpkg --install /run/something.deb"
)


def test_a_box_that_is_as_wanted_ends_with_0(hardened: Deployed) -> None:
    """Nothing but a count of what is ok is printed, and the exit code is 0."""
    code, out = hardened.machine.execute("plimsoll verify")
    assert (code, out.split()[1:]) == (0, ["ok"])


def test_drift_ends_with_2_and_a_line(hardened: Deployed) -> None:
    """A value that was changed is one line with its name and both values, and the exit code is 2."""
    machine = hardened.machine
    machine.succeed(DRIFT)
    try:
        code, out = machine.execute("plimsoll verify")
    finally:
        machine.succeed(MEND)
    assert code == 2
    assert out.splitlines()[0].split() == ["drifted", "kernel/kernel.sysrq", "the", "running", "system", "has", "438"]


def test_what_cannot_be_looked_at_ends_with_3(hardened: Deployed) -> None:
    """Without the list of what is wanted nothing is called ok: one message, exit code 3."""
    machine = hardened.machine
    machine.succeed("mv /etc/plimsoll/wanted.json /run/kept")
    try:
        result = machine.run("plimsoll verify --json")
    finally:
        machine.succeed("mv /run/kept /etc/plimsoll/wanted.json")
    assert (result.rc, result.out) == (3, "")
    assert "/etc/plimsoll/wanted.json is missing" in result.err


def test_a_control_that_cannot_be_read_is_unknown(hardened: Deployed) -> None:
    """Where systemd cannot be asked, what needs its answer is unknown with the reason, and the exit code is 3."""
    code, out = hardened.machine.execute("PATH=/nonexistent /usr/local/bin/plimsoll verify")
    assert code == 3
    assert re.search(r"^unknown +sshd/MemoryMin:ssh.service .*systemctl: not found", out, re.MULTILINE), out
    assert "kernel/kernel.sysrq" not in out


def test_the_document_has_its_keys(hardened: Deployed) -> None:
    """The JSON document names its schema, the host, and for every control the keys that programs rely on."""
    document = json.loads(hardened.machine.succeed("plimsoll verify --json"))
    assert document["schema"] == "plimsoll.audit/1"
    host = document["hosts"][hardened.machine.name]
    assert host["reached"] is True
    assert all(control.keys() >= KEYS for control in host["controls"])
    places = [c["decided_by"] for c in host["controls"] if c["id"] == "kernel/kernel.sysrq"]
    assert places[0]["file"] == "/etc/sysctl.d/zz-plimsoll.conf"
    assert places[0]["line"] > 0


def test_a_person_without_root_can_ask(hardened: Deployed) -> None:
    """An ordinary login gets verdicts without sudo, and never a good end for what it could not read."""
    machine = hardened.machine
    asked = machine.ssh("plimsoll verify --json")
    found = {c["id"]: c["verdict"] for c in json.loads(asked.stdout)["hosts"][machine.name]["controls"]}
    assert found["kernel/kernel.sysrq"] == "ok"
    assert asked.returncode == (3 if "unknown" in found.values() else 0)


def test_the_units_are_there(hardened: Deployed) -> None:
    """Timer and path unit are enabled and active; the timer has its next run two minutes after boot, and daily."""
    machine = hardened.machine
    units = "plimsoll-verify.timer plimsoll-verify.path"
    assert machine.succeed(f"systemctl is-enabled {units}").split() == ["enabled", "enabled"]
    assert machine.succeed(f"systemctl is-active {units}").split() == ["active", "active"]
    timers = machine.succeed("systemctl show -p TimersMonotonic,TimersCalendar plimsoll-verify.timer")
    assert "OnBootUSec=2min" in timers
    assert "OnCalendar=*-*-* 00:00:00" in timers


def await_a_run(machine: Machine, before: str) -> None:
    """Wait until the service was started again and has ended."""
    machine.wait_until_succeeds(f'[ "$({STARTED})" != {before} ]', timeout_s=180)
    ended = "systemctl show -p ActiveState --value plimsoll-verify | grep -Ex 'inactive|failed'"
    machine.wait_until_succeeds(ended, timeout_s=180)


def test_a_package_change_starts_it_and_somebody_is_told(opted_in: Deployed) -> None:
    """Installing a package makes the box judge itself; it had drifted, so the policy's command gets the document."""
    machine = opted_in.machine
    machine.succeed(f"rm -f {TOLD}; {DRIFT}")
    before = machine.succeed(STARTED).strip()
    try:
        machine.succeed(INSTALL_SOMETHING)
        await_a_run(machine, before)
    finally:
        machine.succeed(f"dpkg --purge something; {MEND}; systemctl reset-failed plimsoll-verify.service")
    arguments, _, document = machine.read(TOLD).partition("\n")
    assert arguments == "this box has drifted"
    (host,) = json.loads(document)["hosts"].values()
    drifted = [c["id"] for c in host["controls"] if c["verdict"] == "drifted"]
    assert drifted == ["kernel/kernel.sysrq"]


def test_nobody_is_told_of_a_box_that_is_as_wanted(opted_in: Deployed) -> None:
    """Without drift the command is not run."""
    machine = opted_in.machine
    machine.succeed(f"rm -f {TOLD}; systemctl start plimsoll-verify.service", timeout_s=180)
    machine.fail(f"test -e {TOLD}")


@pytest.mark.slow
def test_drift_and_a_command_that_fails_are_seen(opted_in: Deployed) -> None:
    """Drift leaves the unit failed with 2; when the policy's command cannot be run, the journal says so."""
    machine = opted_in.machine
    machine.succeed(f"mv {TELL} /run/tell; {DRIFT}")
    try:
        machine.fail("systemctl start plimsoll-verify.service", timeout_s=180)
    finally:
        machine.succeed(f"mv /run/tell {TELL}; {MEND}")
    assert machine.succeed("systemctl show -p ExecMainStatus --value plimsoll-verify").strip() == "2"
    assert "nobody could be told" in machine.succeed("journalctl --no-pager -o cat -u plimsoll-verify -n 20")
    machine.succeed("systemctl reset-failed plimsoll-verify.service")
