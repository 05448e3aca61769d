"""The whole way for real: OpenSSH, pyinfra and deploy.py, against an sshd of which each port is a host."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import zipapp
from plimsoll.fleet import cli
from plimsoll.fleet.rollout import command as rollout_command
from plimsoll.fleet.rollout import steps
from tests.loopback import await_port
from tests.unit.rollout_fakes import ANSWERS, Fakes, phases, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.skipif(SSHD is None or os.geteuid() != 0, reason="needs sshd (openssh-server), and root to log in as"),
    pytest.mark.timeout(1800),
]
HOST = rf"""
fakes=${{0%/*}}
set -- $SSH_CONNECTION
host=$fakes/hosts/$(cat "$fakes/ports/$4") command=$SSH_ORIGINAL_COMMAND
case $command in *'id -u;'*) id -u ;; esac
{ANSWERS}
case $command in
*apply*)
    cat >/dev/null
    echo begin >>"$host/ledger"
    [ -e "$host/deploy" ] && . "$host/deploy"
    case $command in *memfd*) ;; *) cp "$host/after.json" "$host/state.json" ;; esac
    echo end >>"$host/ledger" ;;
*) exec sh -c "$command" ;;
esac
"""
"""Answers every command of a login: which host it is, is told by the port that was connected to."""
MOST_PORTS = 16
"""That one sshd listens on (MAX_LISTEN_SOCKS)."""
LAYERS = ["begin", "end"] * 2
"""What the deploy of both layers leaves."""
QUICK = ("--yes", "--soak", "0s", "--json")


@dataclass(frozen=True)
class Fleet:
    """Hosts behind one sshd."""

    fakes: Fakes
    config: Path

    def rollout(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Run the command in this process; returns its exit code, its summary, and all of its output."""
        code = cli.run(["rollout", *arguments])
        out = capsys.readouterr().out
        return code, summary(out), out


@contextlib.contextmanager
def served(directory: Path, names: list[str]) -> Iterator[Fleet]:
    """Run sshd with a port for each name; sessions that were stopped are killed at the end."""
    fakes = Fakes.make(directory, *names, program=zipapp.build())
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    (directory / "ports").mkdir()
    for name, port in ports.items():
        (directory / "ports" / str(port)).write_text(name)
    write_files(directory, ports)
    Path("/run/sshd").mkdir(exist_ok=True)
    with contextlib.ExitStack() as running:
        for file in sorted(directory.glob("sshd_config.*")):
            running.enter_context(serving(file))
        try:
            for port in ports.values():
                await_port(port, limit_s=60)
            yield Fleet(fakes, directory / "config")
        finally:
            for file in directory.glob("hosts/*/stopped"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


@contextlib.contextmanager
def serving(config: Path) -> Iterator[None]:
    """Run an sshd with this configuration."""
    assert SSHD is not None
    with subprocess.Popen([SSHD, "-D", "-q", "-f", str(config)]) as process:
        try:
            yield
        finally:
            process.terminate()


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(number)]


def write_files(directory: Path, ports: dict[str, int]) -> None:
    """Write keys, and the configuration of both sides."""
    for name in ("host", "login", "other"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(command, check=True)
    (directory / "host.sh").write_text(HOST)
    numbers = list(ports.values())
    for number in range(0, len(numbers), MOST_PORTS):
        listen = "".join(f"ListenAddress 127.0.0.1:{port}\n" for port in numbers[number : number + MOST_PORTS])
        (directory / f"sshd_config.{number}").write_text(
            f"{listen}HostKey {directory}/host\nAuthorizedKeysFile {directory}/login.pub\nPidFile none\n"
            f"StrictModes no\nUsePAM no\nMaxStartups 200\nPermitRootLogin yes\nForceCommand sh {directory}/host.sh\n"
        )
    key = (directory / "host.pub").read_text()
    (directory / "known_hosts").write_text("".join(f"[127.0.0.1]:{port} {key}" for port in ports.values()))
    (directory / "config").write_text(
        "".join(f"Host {name}\n HostName 127.0.0.1\n Port {port}\n" for name, port in ports.items())
        + f"Host *\n User root\n IdentityFile {directory}/login\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {directory}/known_hosts\n StrictHostKeyChecking yes\n"
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a rollout leaves below the test's directory, and wait for nothing longer than needed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(tmp_path / "hosts.yml"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(rollout_command, "LIMITS", steps.Limits(deploy_s=600, lost_s=1, proof_s=120))


def change_key(directory: Path, name: str) -> None:
    """Let known_hosts have another key of one host than it shows."""
    port = next(file.name for file in (directory / "ports").iterdir() if file.read_text() == name)
    lines = (directory / "known_hosts").read_text().splitlines()
    other = f"[127.0.0.1]:{port} {(directory / 'other.pub').read_text()}"
    kept = [line for line in lines if not line.startswith(f"[127.0.0.1]:{port} ")]
    (directory / "known_hosts").write_text("\n".join([*kept, other]))


def test_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both hosts are deployed to once, what was said is in their logs, and afterwards nothing is left to do."""
    with served(tmp_path, ["a", "b"]) as fleet:
        code, found, out = fleet.rollout(capsys, "-F", str(fleet.config), *QUICK)
        assert code == 0, found
        assert [phases(out, name) for name in "ab"] == [["locking", "applying", "verifying", "soaking", "done"]] * 2
        assert [fleet.fakes.ledger(name) for name in "ab"] == [LAYERS] * 2
        assert "Layer kernel" in Path(found["hosts"]["a"]["log"]).read_text()
        assert not any(map(fleet.fakes.is_locked, "ab"))
        code, found, _out = fleet.rollout(capsys, "-F", str(fleet.config), *QUICK)
        assert (code, {host["phase"] for host in found["hosts"].values()}) == (0, {"unchanged"})


TROUBLES = {
    "dies": ("kill -9 $PPID; sleep 60", "its connection was lost"),
    "hangs": ("echo $PPID >$host/stopped; kill -STOP $PPID; sleep 600", "the deploy had not ended after 45 s"),
    "has no room": ("echo 'plimsoll: /etc/x: No space left on device' >&2; exit 1", "its disk is full"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_host_in_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """It ends as one line, and nobody else is touched."""
    script, reason = TROUBLES[trouble]
    if trouble == "hangs":
        monkeypatch.setattr(rollout_command, "LIMITS", steps.Limits(deploy_s=45, lost_s=1, proof_s=60))
    with served(tmp_path, ["a", "b"]) as fleet:
        fleet.fakes.write("a", "deploy", script)
        code, found, _out = fleet.rollout(capsys, "-F", str(fleet.config), *QUICK)
        assert code == 2
        assert found["hosts"]["a"]["detail"].startswith(reason), found
        assert found["hosts"]["a"]["detail"].endswith("a fresh login works")
        assert fleet.fakes.ledger("b") == []


def test_a_host_with_another_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is left out with the reason before anything begins, and holds up nobody."""
    with served(tmp_path, ["a", "b"]) as fleet:
        change_key(tmp_path, "a")
        code, found, _out = fleet.rollout(capsys, "-F", str(fleet.config), *QUICK)
        assert code == 3
        assert "known_hosts" in found["hosts"]["a"]["detail"]
        assert [found["hosts"][name]["phase"] for name in "ab"] == ["left_out", "done"]


@pytest.mark.slow
def test_fifty_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary that fails spares 49; mended, three in trouble of their own delay and spoil none of the other 47."""
    names = [f"host{number:02}" for number in range(50)]
    monkeypatch.setattr(rollout_command, "LIMITS", steps.Limits(deploy_s=300, lost_s=1, proof_s=120))
    with served(tmp_path, names) as fleet:
        fleet.fakes.write("host00", "deploy", "exit 1")
        options = ("--batch", "16", "--max-failures", "3", "-F", str(fleet.config))
        code, found, _out = fleet.rollout(capsys, *QUICK, *options)
        assert (code, found["stopped"]) == (2, "the canary host00 failed")
        assert [name for name in names[1:] if fleet.fakes.ledger(name)] == []
        (fleet.fakes.host("host00") / "deploy").unlink()
        for name, (script, _reason) in zip(["host10", "host20", "host30"], TROUBLES.values(), strict=True):
            fleet.fakes.write(name, "deploy", script)
        code, found, _out = fleet.rollout(capsys, "--resume", "--json")
        assert code == 2
        failed = {name for name, host in found["hosts"].items() if host["phase"] != "done"}
        assert failed == {"host10", "host20", "host30"}
        assert {tuple(fleet.fakes.ledger(name)) for name in names[1:] if name not in failed} == {tuple(LAYERS)}
