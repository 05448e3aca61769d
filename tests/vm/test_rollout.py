"""A rollout over two machines: the canary fails, or loses its power, and the other one is spared until it is mended."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.vm import breaking, deploying

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.machine import Machine

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(3600)]

PLIMSOLL = (sys.executable, "-c", "from plimsoll.fleet.cli import main; main()")
DIRECTORY = "/etc/sysctl.d"
OURS = f"{DIRECTORY}/zz-plimsoll.conf"
LEDGER = "/var/lib/plimsoll/ledger.json"


@dataclass(frozen=True)
class Fleet:
    """Two machines, and a HOME in which both are known."""

    canary: Machine
    second: Machine
    home: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a rollout over both."""
        config = [] if "--resume" in arguments else ["-F", str(self.home / ".ssh/config")]
        return [*PLIMSOLL, "rollout", "--json", *config, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin a rollout, and do not wait for its end."""
        environment = deploying.environment(self.home, self.home / "hosts.yml")
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command(*arguments), env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a rollout to its end; returns its exit code and its summary."""
        with self.start(*arguments) as process:
            return finished(process)


def finished(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Wait for the end of a rollout; returns its exit code and its summary."""
    out, err = process.communicate(timeout=2 * deploying.DEPLOY_TIMEOUT_S)
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert last["event"] == "summary", err
    return process.returncode, last


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Start two machines that nothing was done to."""
    with deploying.started("canary") as canary, deploying.started("second") as second:
        (tmp_path / ".ssh").mkdir(mode=0o700)
        configs = [(machine.write_home() / ".ssh/config").read_text() for machine in (canary, second)]
        (tmp_path / ".ssh/config").write_text("\n".join(configs))
        texts = [deploying.inventory_text(machine.name, breaking.WITHOUT_EARLYOOM) for machine in (canary, second)]
        hosts = [yaml.safe_load(text)["hosts"] for text in texts]
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"hosts": {**hosts[0], **hosts[1]}}))
        yield Fleet(canary, second, tmp_path)


def assert_untouched(machine: Machine) -> None:
    """Assert that nothing of ours was ever written there."""
    machine.fail(f"ls {OURS}")
    machine.fail(f"ls {LEDGER}")


def assert_done(fleet: Fleet) -> None:
    """Assert that both are as they should be, that nobody holds them, and that another rollout finds nothing to do."""
    for machine in (fleet.canary, fleet.second):
        breaking.assert_converged(machine, breaking.WITHOUT_EARLYOOM)
        machine.succeed("flock -n /run/plimsoll/operator.lock true")
    before = [machine.read(LEDGER) for machine in (fleet.canary, fleet.second)]
    code, found = fleet.run("--yes")
    assert code == 0
    assert {host["phase"] for host in found["hosts"].values()} == {"unchanged"}
    assert [machine.read(LEDGER) for machine in (fleet.canary, fleet.second)] == before


def test_a_canary_that_fails_spares_the_others(fleet: Fleet) -> None:
    """A file cannot be written on the canary: one line says so, the second is not touched; mended, both are done."""
    canary, second = fleet.canary, fleet.second
    canary.succeed(f"mount --bind {DIRECTORY} {DIRECTORY} && mount -o remount,bind,ro {DIRECTORY}")
    code, found = fleet.run("--yes", "--soak", "10s", "--canary", canary.name)
    assert code == 2
    assert found["stopped"] == f"the canary {canary.name} failed"
    detail = found["hosts"][canary.name]["detail"]
    assert DIRECTORY in detail
    assert detail.endswith("a fresh login works")
    assert found["hosts"][second.name]["phase"] == "waiting"
    assert_untouched(second)
    canary.succeed(f"umount {DIRECTORY} && flock -n /run/plimsoll/operator.lock true")
    code, found = fleet.run("--resume")
    assert (code, found["resumable"]) == (0, False), found["hosts"]
    assert_done(fleet)


def test_a_canary_that_loses_power_in_the_middle(fleet: Fleet) -> None:
    """One line says that it was lost, the second is not touched, and going on brings both to their end."""
    canary, second = fleet.canary, fleet.second
    with fleet.start("--yes", "--soak", "10s", "--canary", canary.name) as process:
        canary.wait_until_succeeds(f"test -e {LEDGER}", deploying.DEPLOY_TIMEOUT_S)
        canary.crash()
        code, found = finished(process)
    assert code == 2
    detail = found["hosts"][canary.name]["detail"]
    assert "its connection was lost" in detail
    # according to how long its boot takes
    assert "it has restarted meanwhile" in detail or "a fresh login does not work now" in detail
    assert_untouched(second)
    breaking.assert_login(canary)
    code, found = fleet.run("--resume")
    assert code == 0, found["hosts"]
    assert_done(fleet)
