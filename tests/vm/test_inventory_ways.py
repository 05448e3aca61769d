"""The ways in: by alias as root, by sudo with and without a password, by inventory, and on the box itself."""

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machine import Machine
from lab.snapshot import Spec
from tests.vm import deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

DRIFT = "sysctl -q kernel.sysrq=438"
SYSRQ = "/proc/sys/kernel/sysrq"


@pytest.mark.parametrize(
    ("user", "arguments"),
    [("root", []), ("admin", []), ("operator", ["--data", "_sudo_password=plimsoll"])],
)
def test_everybody_who_may_become_root_can_deploy(hardened: Deployed, user: str, arguments: list[str]) -> None:
    """Root, a user with sudo and one whose sudo wants a password each mend a value that has drifted."""
    machine = hardened.machine
    machine.succeed(DRIFT)
    run = deploying.pyinfra(machine, "-y", "--json", *arguments, machine.name, "deploy.py", user=user)
    assert run.code == 0, run.err
    assert run.changed() == ["Layer kernel"]
    assert machine.read(SYSRQ).strip() == "1"
    assert "password=plimsoll" not in run.err.lower()


@pytest.mark.slow
def test_a_wrong_password_changes_nothing(hardened: Deployed) -> None:
    """With a wrong password the host is left out of the run, and nothing on it is changed."""
    machine = hardened.machine
    machine.succeed(DRIFT)
    try:
        wrong = ["-y", "--json", "--data", "_sudo_password=wrong", machine.name, "deploy.py"]
        run = deploying.pyinfra(machine, *wrong, user="operator")
        assert run.code == 1, run.err
        assert machine.read(SYSRQ).strip() == "438"
    finally:
        machine.succeed("sysctl -q kernel.sysrq=1")


def test_a_group_of_the_inventory(hardened: Deployed) -> None:
    """`inventory/hosts.py` with a group deploys to the hosts of that group under their policy."""
    machine = hardened.machine
    machine.succeed(DRIFT)
    run = deploying.pyinfra(machine, "-y", "--json", "inventory/hosts.py", "deploy.py", "--limit", "spark")
    assert run.code == 0, run.err
    assert run.hosts() == deploying.OPERATIONS
    assert run.changed() == ["Layer kernel"]


def test_an_unknown_host_key_is_refused(hardened: Deployed) -> None:
    """A host whose key is not known is not connected to, and its key is not taken over."""
    machine = hardened.machine
    home = machine.write_home("admin")
    known = home / ".ssh" / "known_hosts"
    kept = known.read_text()
    known.write_text("")
    try:
        run = connect_with(home, machine)
        assert run.returncode == 1, run.stderr
        assert "host key" in run.stderr.lower()
        assert known.read_text() == ""
    finally:
        known.write_text(kept)


def connect_with(home: Path, machine: Machine) -> subprocess.CompletedProcess[str]:
    """Run a dry run with this HOME as it is."""
    return subprocess.run(
        [deploying.PYINFRA, "--dry", "--json", machine.name, "deploy.py"],
        cwd=deploying.ROOT,
        env=deploying.environment(home, deploying.ROOT / "lab" / "hosts.yml"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


RELEASE_WITH_THIS_PYTHON = {(3, 11): "bookworm", (3, 13): "trixie"}
"""The packages of this environment run in a machine whose Python is of the same version."""
LEFT_OUT = ("mypy", "mypyc", "ruff", "pip", "setuptools", "__pycache__")


@pytest.fixture
def local() -> Iterator[Machine]:
    """Yield a machine that has this repository and the packages it needs in /opt/plimsoll."""
    release = RELEASE_WITH_THIS_PYTHON.get(sys.version_info[:2])
    if release is None:
        pytest.skip("no release of the lab has this version of Python")
    with deploying.started("local", Spec(release)) as machine:
        copy_to(machine, Path(str(pytest.__file__)).parents[1], "packages")
        for name in ("deploy.py", "config.py", "plimsoll", "facts", "templates", "group_data", "inventory"):
            copy_to(machine, deploying.ROOT / name, ".")
        yield machine


def copy_to(machine: Machine, source: Path, target: str) -> None:
    """Copy a file or a directory below /opt/plimsoll of the machine, over ssh."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(source, f"{target}/{source.name}" if target == "." else target, filter=wanted)
    config = machine.write_home("root") / ".ssh" / "config"
    unpack = "mkdir -p /opt/plimsoll && tar -xz --no-same-owner -C /opt/plimsoll"
    command = ["ssh", "-F", str(config), machine.name, unpack]
    subprocess.run(command, input=buffer.getvalue(), check=True, capture_output=True, timeout=600)


def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what only development needs."""
    return None if any(part in LEFT_OUT or part.startswith("ruff") for part in entry.name.split("/")) else entry


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_on_the_box_itself(local: Machine) -> None:
    """`pyinfra @local deploy.py` on the box hardens it, says that a login could not be proven, and is idempotent."""
    local.put("/opt/plimsoll/hosts.yml", deploying.inventory_text("@local", {}))
    command = (
        "cd /opt/plimsoll && PLIMSOLL_INVENTORY=/opt/plimsoll/hosts.yml "
        "PYTHONPATH=/opt/plimsoll:/opt/plimsoll/packages python3 -m pyinfra {} @local deploy.py 2>&1"
    )
    first = local.succeed(command.format("-y"), timeout_s=900)
    assert re.search(r"keys were exchanged with sshd on .*\b127\.0\.0\.1 port 22", first), first
    assert "whether a login works is unknown" in first
    assert deploying.not_ok(local) == {}
    assert '"hosts_with_change": ["@local"]' not in local.succeed(command.format("--dry --json"), timeout_s=900)
