"""A host that cannot get a package now: its layer waits, everything else is done, and a later run completes it."""

import pytest

from lab.machine import Machine
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(3600)]

TAKE_AWAY = (
    "mkdir /run/apt; mv /etc/apt/sources.list* /run/apt/; mv /var/lib/apt/lists /run/apt/lists;"
    "mkdir -p /etc/apt/sources.list.d /var/lib/apt/lists/partial; mv /var/cache/apt/archives/earlyoom* /run/apt/"
)
GIVE_BACK = (
    "rm -r /var/lib/apt/lists /etc/apt/sources.list.d; mv /run/apt/sources.list* /etc/apt/;"
    "mkdir -p /etc/apt/sources.list.d; "
    "mv /run/apt/lists /var/lib/apt/lists; mv /run/apt/earlyoom* /var/cache/apt/archives/"
)
LOCKER = """
import fcntl, signal
files = [open(f"/var/lib/dpkg/{name}", "w") for name in ("lock-frontend", "lock")]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/locked", "w").close()
signal.pause()
"""


def hold_lock(machine: Machine) -> None:
    """Let another package manager be at work, until the unit `locker` is stopped."""
    machine.put("/run/locker.py", LOCKER)
    machine.succeed("systemd-run --unit=locker python3 /run/locker.py")
    machine.wait_until_succeeds("test -e /run/locked")


def verdicts(machine: Machine) -> dict[str, str]:
    """Return layer -> verdicts of what is not ok."""
    found: dict[str, str] = {}
    for control in deploying.controls(machine).values():
        if control["verdict"] != "ok":
            found.setdefault(control["layer"], control["verdict"])
    return found


def test_without_a_package_source_only_that_layer_waits(machine: Machine) -> None:
    """No source and no cached package: earlyoom is pending with nothing of it written, exit 0; later it completes."""
    machine.succeed(TAKE_AWAY)
    run = deploying.deploy(machine)
    assert "pending" in run.err
    assert verdicts(machine) == {"earlyoom": "pending"}
    machine.fail("ls /etc/default/earlyoom")
    assert machine.run("plimsoll verify").rc == 0
    assert machine.run("plimsoll verify --strict").rc == 2
    machine.succeed(GIVE_BACK)
    assert deploying.deploy(machine).changed() == ["Layer earlyoom"]
    breaking.assert_converged(machine)


def test_a_package_manager_that_is_at_work_is_waited_for(machine: Machine) -> None:
    """The lock is held until apt has begun to wait for it, and for 5 s more: the deploy waits, and completes."""
    hold_lock(machine)
    machine.put("/run/release.sh", "until pgrep -f download-only; do sleep 1; done; sleep 5; systemctl stop locker\n")
    machine.succeed("systemd-run --unit=release sh /run/release.sh")
    deploying.deploy(machine)
    assert deploying.not_ok(machine) == {}


def test_a_lock_that_is_never_released_leaves_the_layer_pending(machine: Machine) -> None:
    """The lock stays held: after the time to wait the layer is pending and names the lock; the rest is done."""
    hold_lock(machine)
    deploying.deploy(machine)
    assert verdicts(machine) == {"earlyoom": "pending"}
    assert "lock" in " ".join(deploying.not_ok(machine).values())
    machine.succeed("systemctl stop locker")
    assert deploying.deploy(machine).changed() == ["Layer earlyoom"]
