"""What `make try` runs, and what it keeps away from."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import demo, machine
from lab.errors import HostError
from plimsoll.inventory import load


def test_environment_hides_the_users_own_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pyinfra of the lab sees the lab's home and inventory, and no key of the user's agent."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("HOME", "/home/me")
    found = demo.environment(Path("/lab/home"))
    assert found["HOME"] == "/lab/home"
    assert "SSH_AUTH_SOCK" not in found
    assert load(Path(found["PLIMSOLL_INVENTORY"])).host(demo.NAME).known


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the programs that the demo has run, the exit codes of which are 0 here."""
    programs: list[str] = []

    def _run(command: list[str | Path], **_: object) -> SimpleNamespace:
        programs.append(Path(command[0]).name)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", _run)
    monkeypatch.setattr(machine.Machine, "attach", lambda _: SimpleNamespace(write_home=lambda _: Path("/home")))
    return programs


def test_success_ends_with_what_to_type(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A demonstration that went well ends with the command for a real box."""
    assert demo.main() == 0
    assert ran[-1] == "pyinfra"
    assert capsys.readouterr().out.splitlines()[-1].strip() == ".venv/bin/pyinfra gx10 deploy.py"


def test_failed_deploy_is_not_called_success(
    ran: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When pyinfra fails so does the demonstration, and nobody is told to go on to a real box."""
    monkeypatch.setattr(demo, "deploy", lambda _: 1)
    assert demo.main() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "pyinfra failed with exit code 1" in err
    assert ran


def test_lab_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the lab is its message and its exit code."""

    def _up() -> None:
        raise HostError("install qemu")

    monkeypatch.setattr(demo, "up", _up)
    assert demo.main() == HostError.exit_code
    assert capsys.readouterr().err == "lab: install qemu\n"
