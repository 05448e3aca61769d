"""What the real pyinfra makes of inventory/, group_data/ and config.py."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYINFRA = Path(sys.executable).with_name("pyinfra")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return a socket that gx10's ssh alias leads to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _pyinfra(home: Path, inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HOME": str(home),
        "PLIMSOLL_INVENTORY": str(inventory),
        "PYINFRA_PROGRESS": "off",
    }
    return subprocess.run(
        [PYINFRA, "-y", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _alias(home: Path, server: socket.socket) -> None:
    config = home / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text(f"Host gx10\n  HostName 127.0.0.1\n  Port {server.getsockname()[1]}\n")


@pytest.mark.parametrize("hosts", ["gx10", "inventory/hosts.py", "@local"])
def test_invalid_inventory_ends_before_connecting(tmp_path: Path, listener: socket.socket, hosts: str) -> None:
    """Whichever way the hosts are named: exit code 4, one message, and nobody was connected to."""
    _alias(tmp_path, listener)
    bad = tmp_path / "bad.yml"
    bad.write_text("hosts: {gx10: {port: yes}}\n")
    done = _pyinfra(tmp_path, bad, hosts, "exec", "--", "true")
    assert done.returncode == 4
    own = [line for line in done.stderr.splitlines() if line and not line.startswith("--> Loading")]
    assert own == [f'plimsoll: {bad}:1: hosts.gx10.port must be a whole number, not "yes"']
    assert done.stdout == ""
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


CONNECTION = ("ssh_hostname", "ssh_port", "ssh_user")

INVENTORY = """\
groups:
  spark: {hosts: [b, a]}
  canary: {hosts: [a]}
hosts:
  b: {address: 192.0.2.2, port: 2222, user: admin}
  a:
  lone:
"""


def _debug(tmp_path: Path, hosts: str) -> dict[str, dict[str, Any]]:
    """Return what pyinfra's debug-inventory says of each host: its groups and its data."""
    good = tmp_path / "good.yml"
    good.write_text(INVENTORY)
    done = _pyinfra(tmp_path, good, hosts, "debug-inventory")
    assert done.returncode == 0, done.stderr
    blocks = (done.stdout + done.stderr).split("\n[")[1:]
    return dict(_host(block) for block in blocks)


def _host(block: str) -> tuple[str, dict[str, Any]]:
    groups = re.search(r"^--> Groups: (.*)$", block, re.MULTILINE)
    data = re.search(r"^\{$.*^\}$", block, re.MULTILINE | re.DOTALL)
    assert data
    return block.partition("]")[0], {
        "groups": groups[1].split(", ") if groups else [],
        "data": json.loads(data[0]),
    }


def test_inventory_file_hands_over_hosts_and_groups(tmp_path: Path) -> None:
    """inventory/hosts.py gives pyinfra every host, its groups, and only the connection data that is given."""
    found = _debug(tmp_path, "inventory/hosts.py")
    assert {name: set(host["groups"]) for name, host in found.items()} == {
        "a": {"canary", "hosts", "spark"},
        "b": {"hosts", "spark"},
        "lone": {"hosts"},
    }
    own = {name: {key for key in host["data"] if key in CONNECTION} for name, host in found.items()}
    assert own == {"a": set(), "b": set(CONNECTION), "lone": set()}
    assert [found["b"]["data"][key] for key in CONNECTION] == ["192.0.2.2", 2222, "admin"]


@pytest.mark.parametrize("hosts", ["inventory/hosts.py", "localhost", "@local"])
def test_every_host_gets_the_connection_settings(tmp_path: Path, hosts: str) -> None:
    """A host from the file and one named on the command line are connected to in the same way."""
    found = _debug(tmp_path, hosts)
    assert found
    for host in found.values():
        assert host["data"]["ssh_strict_host_key_checking"] == "yes"
        assert host["data"]["ssh_paramiko_connect_kwargs"]["channel_timeout"] == 30
        assert host["data"]["_timeout"] == 120
        assert "load_or_exit" not in host["data"]


def test_configuration_is_in_force(tmp_path: Path) -> None:
    """A box that takes a minute to let one in is waited for: pyinfra itself has the setting."""
    good = tmp_path / "good.yml"
    good.write_text(INVENTORY)
    deploy = tmp_path / "deploy.py"
    deploy.write_text("from pyinfra import config\nprint('wait', config.CONNECT_TIMEOUT)\n")
    done = _pyinfra(tmp_path, good, "@local", str(deploy))
    assert done.returncode == 0, done.stderr
    assert "wait 60" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["gx11", "deploy.py"],
        ["gx11", "audit.py"],
        ["inventory/hosts.py", "deploy.py", "--limit", "sparc"],
        ["inventory/hosts.py", "exec", "--exclude", "a", "--exclude", "spark", "--exclude", "lone", "--", "true"],
    ],
)
def test_a_run_that_means_no_host_is_no_success(tmp_path: Path, arguments: list[str]) -> None:
    """A host or group that there is none of ends with 4 and says so, where pyinfra itself would exit with 0."""
    good = tmp_path / "good.yml"
    good.write_text(INVENTORY)
    done = _pyinfra(tmp_path, good, *arguments)
    assert done.returncode == 4, done.stderr
    assert "plimsoll: no host was meant, and nothing was done" in done.stderr


def test_an_interrupt_is_no_success(tmp_path: Path, listener: socket.socket) -> None:
    """Ctrl-C while a host is waited for ends with 130, where pyinfra itself would exit with 0."""
    _alias(tmp_path, listener)
    good = tmp_path / "good.yml"
    good.write_text("hosts: {gx10: {}}\n")
    environment = {**os.environ, "HOME": str(tmp_path), "PLIMSOLL_INVENTORY": str(good), "PYINFRA_PROGRESS": "off"}
    command = [str(PYINFRA), "-y", "gx10", "exec", "--", "true"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        listener.settimeout(60)
        connection, _peer = listener.accept()
        with connection:
            run.send_signal(signal.SIGINT)
            _out, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"plimsoll: interrupted" in said
