"""What a deploy costs, next to Ansible ensuring the same settings on the same machine, and next to a bare command.

Run by `make bench`, alone on its machine, in a virtual machine: `pytest tests/bench -s`. Ansible is as fast as its own
settings make it: pipelining, a connection that stays open between runs, no facts; and once more with mitogen.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from lab.snapshot import Spec
from plimsoll import inventory
from plimsoll.controls import plan
from plimsoll.fleet import gather
from tests.bench import settings
from tests.vm import deploying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lab.machine import Machine

pytestmark = [pytest.mark.bench, pytest.mark.vm, pytest.mark.timeout(7200)]

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
ANSIBLE = deploying.ROOT / ".lab" / "bench-venv" / "bin" / "ansible-playbook"
PAIRS = 3
HOSTS = 50
USER = "admin"

# How many times longer the other one may take at least, or we at most.
ANSIBLE_TIMES = 15
ANSIBLE_TIMES_ON_TEN = 50
MITOGEN_TIMES = 4
FIRST_APPLY_TIMES = 3
AUDIT_TIMES = 2


@dataclass(frozen=True)
class Fleet:
    """Names for one machine, and what every program needs to reach it by them."""

    home: Path
    names: list[str]
    environment: dict[str, str]
    variables: Path
    """What the playbook is given: the settings of a deploy to this machine."""

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a program to its end and return what it printed; it has to succeed."""
        done = subprocess.run(
            command,
            cwd=deploying.ROOT,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    # --- what is compared -----------------------------------------------------------------------

    def deploy(self, count: int) -> list[str]:
        """Deploy to so many hosts, and return the operations that changed something; all have to be processed."""
        hosts = self.names[0] if count == 1 else "inventory/hosts.py"
        limit = [] if count == 1 else [word for name in self.names[:count] for word in ("--limit", name)]
        document = json.loads(self.run(BIN / "pyinfra", "-y", "--json", *limit, hosts, "deploy.py"))
        run = deploying.Run(0, document, "")
        assert run.hosts() == deploying.OPERATIONS * count
        return run.changed()

    def ansible(self, count: int, *, mitogen: bool = False) -> str:
        """Run the playbook on so many hosts, and return its last lines."""
        strategy = {"ANSIBLE_STRATEGY_PLUGINS": str(mitogen_plugins()), "ANSIBLE_STRATEGY": "mitogen_linear"}
        return self.run(
            ANSIBLE,
            "--inventory",
            ",".join(self.names[:count]) + ",",
            "--extra-vars",
            f"@{self.variables}",
            HERE / "playbook.yml",
            **(strategy if mitogen else {}),
        )

    def bare(self) -> None:
        """Run a command that does nothing, over a connection of its own."""
        self.run("ssh", "-F", self.home / ".ssh/config", self.names[0], "true")


def mitogen_plugins() -> Path:
    """Return where mitogen keeps the strategies that Ansible is to use."""
    (found,) = ANSIBLE.parents[1].glob("lib/python3*/site-packages/ansible_mitogen/plugins/strategy")
    return found


# --- the machine ------------------------------------------------------------------------------------


def environment(home: Path, sockets: Path) -> dict[str, str]:
    """Return an environment in which each program knows the machine's names, and Ansible is at its fastest."""
    return {
        **deploying.environment(home, home / "hosts.yml"),
        # Python keeps what it has compiled, as it does for whoever types the command
        "PYTHONDONTWRITEBYTECODE": "",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": str(HOSTS),
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_SSH_ARGS": f"-F {home}/.ssh/config -o ControlMaster=auto -o ControlPersist=600",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
        "ANSIBLE_LOCAL_TEMP": str(sockets / "tmp"),
    }


def write_names(machine: Machine) -> tuple[Path, list[str]]:
    """Give the machine many names, in ssh's configuration and in an inventory; returns the home that knows them."""
    home = machine.write_home(USER)
    names = [f"host{number:02}" for number in range(HOSTS)]
    config = home / ".ssh/config"
    config.write_text(config.read_text().replace(f"Host {machine.name}\n", f"Host {' '.join(names)}\n", 1))
    policy = deploying.lab_policy()
    document = {"groups": {"all_of_them": {"hosts": names}}, "hosts": {name: {"policy": policy} for name in names}}
    (home / "hosts.yml").write_text(yaml.safe_dump(document))
    return home, names


def planned(home: Path, name: str) -> plan.HostPlan:
    """Return what a deploy would do to the machine."""
    host = inventory.load(home / "hosts.yml").host(name)
    answer = asyncio.run(gather.ask(host, gather.Ssh(home / ".ssh/config", 300)))
    assert answer.state is not None, answer.problem
    today = datetime.datetime.now().astimezone().date()
    return plan.host_plan(host.policy, answer.state, host.waiver_for, today)


def fleet_of(machine: Machine, directory: Path, sockets: Path) -> Fleet:
    """Return the names of a machine that nothing was done to yet."""
    home, names = write_names(machine)
    (directory / machine.name).mkdir()
    variables = settings.write(planned(home, names[0]), directory / machine.name)
    return Fleet(home, names, environment(home, sockets), variables)


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """Return a directory whose path is short enough for the sockets of Ansible's connections; they end with it."""
    directory = Path("/tmp") / f"plimsoll-bench-{os.getpid()}"  # noqa: S108  # a socket's path has 108 bytes at most
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        for socket in directory.glob("*"):
            if socket.is_socket():
                subprocess.run(
                    ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "x"], capture_output=True, check=False
                )
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def first_apply(tmp_path_factory: pytest.TempPathFactory, sockets: Path) -> Iterator[tuple[Fleet, float]]:
    """Return a machine after its first deploy, and the seconds that took."""
    with deploying.started("bench", Spec()) as machine:
        fleet = fleet_of(machine, tmp_path_factory.mktemp("deploy"), sockets)
        took_s = seconds(lambda: fleet.deploy(1))
        yield fleet, took_s


@pytest.fixture(scope="module")
def deployed(first_apply: tuple[Fleet, float]) -> Fleet:
    """Return a machine that is as it should be, for the deploy and for the playbook; both have run on it."""
    fleet, _took_s = first_apply
    assert fleet.deploy(1) == []
    assert "changed=0 " in fleet.ansible(1), "the playbook does not ensure what the deploy does"
    return fleet


# --- figures ----------------------------------------------------------------------------------------


def seconds(action: Callable[[], object]) -> float:
    """Return how long something takes."""
    started_s = time.monotonic()
    action()
    return time.monotonic() - started_s


def times(what: str, theirs: Callable[[], object], ours: Callable[[], object]) -> float:
    """Run both in turn, each once before that; returns the median of how many times longer theirs took."""
    theirs()
    ours()
    measured = [(seconds(theirs), seconds(ours)) for _ in range(PAIRS)]
    return told(what, measured)


def told(what: str, measured: Sequence[tuple[float, float]]) -> float:
    """Print the times of both, and return the median of their ratios."""
    ratio = statistics.median(theirs / ours for theirs, ours in measured)
    listed = ", ".join(f"{theirs:.2f}/{ours:.2f}" for theirs, ours in measured)
    print(f"\n{what}: {ratio:.1f} times ({listed} s)")
    return ratio


def test_ansible_on_one_host(deployed: Fleet) -> None:
    """Ansible takes at least 15 times as long as a deploy of one host that changes nothing."""
    found = times("ansible-core, one host", lambda: deployed.ansible(1), lambda: deployed.deploy(1))
    assert found >= ANSIBLE_TIMES


def test_mitogen_on_one_host(deployed: Fleet) -> None:
    """Ansible with mitogen takes at least 4 times as long."""
    found = times(
        "ansible and mitogen, one host", lambda: deployed.ansible(1, mitogen=True), lambda: deployed.deploy(1)
    )
    assert found >= MITOGEN_TIMES


def test_ansible_on_ten_hosts(deployed: Fleet) -> None:
    """On ten hosts Ansible takes at least 50 times as long."""
    found = times("ansible-core, ten hosts", lambda: deployed.ansible(10), lambda: deployed.deploy(10))
    assert found >= ANSIBLE_TIMES_ON_TEN


def test_fifty_hosts(deployed: Fleet) -> None:
    """A rollout to 50 hosts that changes nothing takes at most twice the time of their audit."""
    config = ["-F", str(deployed.home / ".ssh/config")]

    def audit() -> None:
        deployed.run(BIN / "plimsoll", "audit", "--json", *config)

    def rollout() -> None:
        deployed.run(BIN / "plimsoll", "rollout", "--yes", "--json", *config)

    assert times("a rollout by audits, fifty hosts", rollout, audit) <= AUDIT_TIMES


def test_the_distance_to_the_limit(deployed: Fleet) -> None:
    """A deploy that changes nothing is more than the bare command that it cannot do without: said, not judged."""
    assert times("a deploy by bare commands, one host", lambda: deployed.deploy(1), deployed.bare) > 1


def test_a_first_apply(
    first_apply: tuple[Fleet, float], tmp_path_factory: pytest.TempPathFactory, sockets: Path
) -> None:
    """On a machine that nothing was done to, Ansible takes at least 3 times as long."""
    _fleet, ours_s = first_apply
    with deploying.started("bench-ansible", Spec()) as machine:
        fleet = fleet_of(machine, tmp_path_factory.mktemp("ansible"), sockets)
        theirs_s = seconds(lambda: fleet.ansible(1))
    assert told("ansible-core, a first apply", [(theirs_s, ours_s)]) >= FIRST_APPLY_TIMES
