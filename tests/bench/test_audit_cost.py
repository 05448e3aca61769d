"""What an audit costs, next to what a bare command costs over the same connections.

Run by `make bench`, alone on its machine: `pytest tests/bench -s`. Needs an sshd; nothing of it outlives the run.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.loopback import await_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

BIN = Path(sys.executable).parent
HOSTS = 50
PARALLEL = 32
PAIRS = 5
MOST = 1.5
MOST_RSS_MIB = 200


@dataclass(frozen=True)
class Aliases:
    """Names for one sshd on the loopback interface."""

    config: Path
    names: list[str]
    environment: dict[str, str]

    def ssh(self, name: str) -> list[str]:
        """Return the command line of a bare command on that host."""
        return ["ssh", "-F", str(self.config), name, "true"]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def make_keys(directory: Path) -> None:
    """Make a key for the host and one for the login."""
    for name in ("host", "login"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(command, check=True)


def write_files(directory: Path, port: int) -> None:
    """Write the configuration of sshd, and the client's with all the names."""
    (directory / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/login.pub\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nMaxStartups 200\nPermitRootLogin yes\n"
        # as on a host: the system's Python, and not what this user's own shell puts before it
        f"SetEnv HOME={directory} PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    )
    (directory / ".ssh").mkdir()
    (directory / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {(directory / 'host.pub').read_text()}")
    (directory / ".ssh/config").write_text(
        f"Host host*\n HostName 127.0.0.1\n Port {port}\n IdentityFile {directory}/login\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {directory}/.ssh/known_hosts\n"
    )
    (directory / "hosts.yml").write_text("hosts: {}\n")


@pytest.fixture(scope="module")
def aliases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aliases]:
    """Start an sshd of our own, and give it many names."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert sshd is not None, "there is no sshd: install openssh-server"
    directory = tmp_path_factory.mktemp("sshd")
    port = free_port()
    make_keys(directory)
    write_files(directory, port)
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([sshd, "-D", "-q", "-f", str(directory / "sshd_config")]) as process:
        try:
            await_port(port, limit_s=10)
            # Python keeps what it has compiled, as it does for whoever types the command
            kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            environment = {
                **kept,
                "HOME": str(directory),
                "PLIMSOLL_INVENTORY": str(directory / "hosts.yml"),
            }
            yield Aliases(directory / ".ssh/config", [f"host{number:02}" for number in range(HOSTS)], environment)
        finally:
            process.terminate()


def seconds(action: Callable[[], object]) -> float:
    """Return how long something takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


def pairs(what: str, ours: Callable[[], object], bare: Callable[[], object]) -> float:
    """Run both in turn, each once before that, print all times, and return the median of their ratios."""
    ours()
    bare()
    measured = [(seconds(ours), seconds(bare)) for _ in range(PAIRS)]
    ratio = statistics.median(mine / theirs for mine, theirs in measured)
    listed = ", ".join(f"{mine:.2f}/{theirs:.2f}" for mine, theirs in measured)
    print(f"\n{what}: {ratio:.2f} times ({listed} s)")
    return ratio


def audit(aliases: Aliases, names: list[str]) -> None:
    """Audit hosts; that they were reached is what counts here, not what was found."""
    command = [str(BIN / "plimsoll"), "audit", "--json", "--parallel", str(PARALLEL), "-F", str(aliases.config), *names]
    done = subprocess.run(command, env=aliases.environment, capture_output=True, text=True, check=False)
    assert done.stdout.count('"reached": true') == len(names), done.stdout[-2000:] + done.stderr


def test_one_host(aliases: Aliases) -> None:
    """The audit of one host takes at most 1.5 times what pyinfra takes to run `true` there."""
    pyinfra = [str(BIN / "pyinfra"), "-y", aliases.names[0], "exec", "--", "true"]

    def bare() -> None:
        subprocess.run(pyinfra, env=aliases.environment, capture_output=True, check=True, cwd=aliases.config.parent)

    assert pairs("one host", lambda: audit(aliases, aliases.names[:1]), bare) <= MOST


def test_fifty_hosts(aliases: Aliases) -> None:
    """The audit of 50 hosts takes at most 1.5 times 50 bare commands at the same parallelism."""

    def bare() -> None:
        with ThreadPoolExecutor(PARALLEL) as pool:
            done = pool.map(lambda name: subprocess.run(aliases.ssh(name), check=True), aliases.names)
            assert len(list(done)) == HOSTS

    assert pairs("fifty hosts", lambda: audit(aliases, aliases.names), bare) <= MOST


def test_memory(aliases: Aliases) -> None:
    """The audit of 50 hosts stays below 200 MiB, its largest process counted."""
    command = [str(BIN / "plimsoll"), "audit", "--json", "-F", str(aliases.config), *aliases.names]
    with subprocess.Popen(command, env=aliases.environment, stdout=subprocess.DEVNULL) as process:
        _pid, _status, usage = os.wait4(process.pid, 0)
    print(f"\nlargest process: {usage.ru_maxrss / 1024:.0f} MiB")
    assert usage.ru_maxrss / 1024 <= MOST_RSS_MIB
