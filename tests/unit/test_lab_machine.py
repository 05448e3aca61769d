"""Names, records, ssh files and the wire of the out-of-band shell."""

import base64
import importlib.util
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner

from lab import machine, paths, sshfiles
from lab.cli import cli
from lab.errors import GuestError, UsageError
from lab.keys import keys
from lab.machine import Machine
from lab.shell import Shell
from lab.snapshot import Spec

# above any pid that a kernel gives
NOBODY = 2**22 + 1
Answers = Callable[[dict[str, Any]], list[bytes]]


@pytest.fixture(autouse=True)
def own_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test has a lab directory of its own."""
    monkeypatch.setenv(paths.LAB_DIR_VARIABLE, str(tmp_path / "lab"))


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Callable[[Answers], Path]]:
    """Stand in for the machine's end of the shell; returns the socket."""
    server = socket.socket(socket.AF_UNIX)
    # longer than a socket's address may be
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    def serve(answers: Answers) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                for reply in answers(json.loads(line)):
                    connection.sendall(reply)

    def start(answers: Answers) -> Path:
        (tmp_path / "s").symlink_to(deep)
        server.bind(str(tmp_path / "s" / "shell.sock"))
        server.listen()
        threading.Thread(target=serve, args=(answers,), daemon=True).start()
        return deep / "shell.sock"

    yield start
    server.close()


def reply(number: object, out: bytes = b"", rc: int | None = 0) -> bytes:
    """One line as the guest sends it."""
    encoded = base64.b64encode(out).decode()
    return json.dumps({"id": number, "rc": rc, "out": encoded, "err": ""}).encode() + b"\n"


def test_replies_to_others_are_passed_over(guest: Callable[[Answers], Path]) -> None:
    """What was torn by a reset or meant for an earlier caller does not become the answer."""
    socket_path = guest(lambda asked: [b'orn": 1}\n', reply(0, b"stale"), reply(asked["id"], b"mine")])
    shell = Shell(socket_path)
    assert shell.run("echo", timeout_s=5).out == "mine"
    shell.close()


def test_silent_machine_is_a_timeout(guest: Callable[[Answers], Path]) -> None:
    """A machine that does not answer ends the wait at the command's time and the grace after it."""
    shell = Shell(guest(lambda _: []))
    asked_s = time.monotonic()
    with pytest.raises(TimeoutError):
        shell.run("true", timeout_s=0.2, grace_s=0.2)
    assert 0.3 < time.monotonic() - asked_s < 5
    shell.close()


def test_late_answers_count(guest: Callable[[Answers], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that answers the first question only when the second was asked has answered."""
    monkeypatch.setattr("lab.shell.ASK_AGAIN_S", 0.2)
    asked: list[int] = []

    def answer_the_previous(request: dict[str, Any]) -> list[bytes]:
        asked.append(request["id"])
        return [reply(asked[0], b"boot\n")] if len(asked) == 2 else []

    shell = Shell(guest(answer_the_previous))
    assert shell.await_boot_id(time.monotonic() + 10) == "boot"
    shell.close()


def test_no_socket_is_an_error(tmp_path: Path) -> None:
    """Without a QEMU the error names the socket."""
    with pytest.raises(GuestError, match=r"cannot connect to .*/shell\.sock"):
        Shell(tmp_path / "shell.sock").run("true", timeout_s=1)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "..", "a" * 64])
def test_names_that_are_no_host_names(name: str) -> None:
    """A name becomes a directory and a host name, so it has to be one."""
    with pytest.raises(UsageError, match="is no host name"):
        machine.directory_of(name)


def written_down(name: str, *, dies_with_us: bool, owner_pid: int) -> Path:
    """The directory of a machine whose QEMU has ended."""
    directory = machine.directory_of(name)
    directory.mkdir(parents=True)
    record = machine.Record(
        name=name,
        release="trixie",
        memory_mib=1536,
        ubuntu_ssh=False,
        port=4022,
        pid=NOBODY,
        dies_with_us=dies_with_us,
        boot_command=[],
        owner_pid=owner_pid,
    )
    record.save(directory)
    return directory


def test_record_of_a_dead_machine_is_none() -> None:
    """A machine whose QEMU has ended does not run, and what it left can be removed."""
    directory = written_down("gx10", dies_with_us=False, owner_pid=os.getpid())
    assert machine.record_of("gx10") is None
    assert machine.running() == []
    machine.forget("gx10")
    assert not directory.exists()


def test_orphans_are_removed() -> None:
    """What a killed process left is removed; what belongs to a living one, or to nobody, stays."""
    orphan = written_down("a", dies_with_us=True, owner_pid=NOBODY)
    owned = written_down("b", dies_with_us=True, owner_pid=os.getpid())
    lasting = written_down("c", dies_with_us=False, owner_pid=NOBODY)
    machine.forget_orphans()
    assert [path.exists() for path in (orphan, owned, lasting)] == [False, True, True]


def test_machine_that_would_end_with_a_thread() -> None:
    """A machine tied to this process is refused outside its main thread, where it would die too early."""
    caught: list[Exception] = []

    def restore() -> None:
        try:
            Machine.restore(Spec(), "gx10")
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=restore)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_ssh_config_is_self_contained() -> None:
    """The block names everything absolutely, and the known host key is that of the lab's machines."""
    home = sshfiles.write_home("gx10", 4022, "operator", keys())
    config = (home / ".ssh" / "config").read_text()
    options = dict(line.strip().split(" ", 1) for line in config.splitlines())
    assert options["Host"] == "gx10"
    assert options["HostName"] == "127.0.0.1"
    assert options["Port"] == "4022"
    assert options["User"] == "operator"
    assert options["StrictHostKeyChecking"] == "yes"
    assert options["IdentityFile"] == f'"{keys().user}"'
    assert options["UserKnownHostsFile"] == f'"{home / ".ssh" / "known_hosts"}"'
    assert keys().user.stat().st_mode & 0o077 == 0
    known = (home / ".ssh" / "known_hosts").read_text()
    assert known == f"[127.0.0.1]:4022 {keys().host_public()}\n"
    sshfiles.remove_homes("gx10")
    assert not home.exists()


def test_ssh_config_for_an_unknown_user() -> None:
    """A user that the machine does not have is refused with those it has, and nothing is written."""
    with pytest.raises(UsageError, match="choose root, admin, operator"):
        sshfiles.write_home("gx10", 4022, "nobody", keys())
    assert not paths.home_dir("gx10", "nobody").exists()


@pytest.mark.parametrize("command", cli.commands.values(), ids=list(cli.commands))
def test_every_option_says_what_it_is_for(command: click.Command) -> None:
    """No option of the lab's commands stands in their help without a word."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


def test_commands_for_a_machine_that_does_not_run() -> None:
    """`ssh-config` says how to start it; `down` says that it is down and succeeds."""
    runner = CliRunner()
    asked = runner.invoke(cli, ["ssh-config", "--name", "absent"])
    assert isinstance(asked.exception, UsageError)
    assert str(asked.exception) == "no machine absent is running: python -m lab up --name absent"
    down = runner.invoke(cli, ["down", "--name", "absent"])
    assert down.exit_code == 0
    assert "absent is not running" in down.stderr


def guest_shell() -> ModuleType:
    """The program that runs in the guest, as a module."""
    path = Path(machine.__file__).parent / "guest" / "shell.py"
    spec = importlib.util.spec_from_file_location("guest_shell", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_guest_answers_no_torn_line() -> None:
    """Half a request, or something else that is JSON, gets no answer and does not end the shell."""
    module = guest_shell()
    assert module.answer(b'{"id": 1, "cm') == b""
    assert module.answer(b"17") == b""
