"""Machines that only the bench asks for: with containers, and of another architecture; what is brought into them."""

import io
import os
import platform
import shutil
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab import host, image
from lab.errors import GuestError, HostError
from lab.host import ARCHITECTURES
from lab.machine import Record
from lab.shell import Result
from lab.snapshot import Spec, describe
from lab.wedge import run as runner
from lab.wedge import ship
from lab.wedge.case import Case
from lab.wedge.places import PLACES
from lab.wedge.scenarios import SCENARIOS

OTHER = next(name for name in ARCHITECTURES if name != platform.machine())
INPUTS = image.Inputs("trixie", host.architecture(), ("deb copy:/srv/packages trixie main",), (), b"overlay")


def test_containers_are_an_image_of_their_own() -> None:
    """Only who asks for them gets the packages; the image of everybody else keeps its name."""
    with_containers = replace(INPUTS, more_packages=Spec(containers=True).packages())
    assert Spec().packages() == ()
    assert INPUTS.digest() == replace(INPUTS, more_packages=()).digest() != with_containers.digest()
    command = image.mmdebstrap_command(with_containers, Path("overlay.tar"), Path("root.tar"))
    (included,) = [word for word in command if word.startswith("--include=")]
    assert {"docker.io", "docker-cli", "podman", "openssh-server"} <= set(included.partition("=")[2].split(","))
    assert "docker-cli" not in Spec("bookworm", containers=True).packages()


def test_scripts_follow_what_was_asked_for() -> None:
    """A machine with containers gets its empty image before it is saved."""
    names = [script.name for script in Spec(containers=True).scripts()]
    assert names == ["first-boot.sh", "containers.sh"]
    assert [script.name for script in Spec(ubuntu_ssh=True).scripts()] == ["first-boot.sh", "ubuntu-ssh.sh"]


def test_another_architecture_is_built_with_its_own_hooks() -> None:
    """Its initrd is packed fast; an image of this host's own architecture has no such hook."""
    foreign = replace(INPUTS, arch=ARCHITECTURES[OTHER])
    command = image.mmdebstrap_command(foreign, Path("overlay.tar"), Path("root.tar"))
    assert f"--architectures={ARCHITECTURES[OTHER].debian}" in command
    hooks = [word for word in command if "-hook=" in word]
    assert any("COMPRESSLEVEL=1" in hook for hook in hooks)
    # after the lab's own files are there, whose end it is appended to
    assert "tar-in" in hooks[0]
    own = image.mmdebstrap_command(INPUTS, Path("overlay.tar"), Path("root.tar"))
    assert not any("COMPRESSLEVEL" in word for word in own)


@pytest.mark.parametrize("has_driver", [True, False])
def test_a_missing_watchdog_driver_is_not_asked_for(has_driver: bool, tmp_path: Path) -> None:  # a column
    """The hook drops the line of a module that the kernel does not have, and only that."""
    watchdogs = tmp_path / "usr/lib/modules/6.12/kernel/drivers/watchdog"
    watchdogs.mkdir(parents=True)
    (watchdogs / "softdog.ko.xz").touch()
    if has_driver:
        (watchdogs / "i6300esb.ko.xz").touch()
    listed = tmp_path / "etc/modules-load.d/lab.conf"
    listed.parent.mkdir(parents=True)
    listed.write_text((image.GUEST / "overlay/etc/modules-load.d/lab.conf").read_text())
    (hook,) = [hook for hook in image.FOREIGN_HOOKS if "i6300esb" in hook]
    subprocess.run(["sh", "-c", hook.partition("=")[2], "sh", str(tmp_path)], check=True)
    assert ("\ni6300esb\n" in listed.read_text()) is has_driver
    assert "virtio_console" in listed.read_text()


def test_tools_for_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """What emulates it, as a machine and as programs, is named with its packages; for this host's own it is not."""
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None if tool.startswith(("qemu-", "arch-")) else tool)
    with pytest.raises(HostError) as caught:
        host.check_tools(OTHER)
    assert {ARCHITECTURES[OTHER].qemu_package, "qemu-user-static", "arch-test"} <= set(str(caught.value).split())
    with pytest.raises(HostError) as caught:
        host.check_tools()
    assert "qemu-user-static" not in str(caught.value)
    assert ARCHITECTURES["aarch64"].user_emulator == "qemu-aarch64-static"


def test_a_kind_of_machine_is_described() -> None:
    """What is unusual about a machine is told, and what is usual is not."""
    assert describe(Spec()) == "trixie, 1536 MiB"
    assert describe(Spec(containers=True, arch=OTHER)) == f"trixie, 1536 MiB, containers, {OTHER}"


def test_a_record_knows_its_kind() -> None:
    """A machine that was started by an older lab, whose record lacks the new fields, is of the usual kind."""
    old = {"name": "a", "release": "trixie", "memory_mib": 1024, "ubuntu_ssh": True, "port": 1, "pid": 2}
    record = Record(**old, dies_with_us=False, boot_command=[])  # type: ignore[arg-type]  # as JSON gives it
    assert record.spec == Spec("trixie", 1024, ubuntu_ssh=True)
    assert replace(record, containers=True, arch=OTHER).spec == Spec("trixie", 1024, True, True, OTHER)


def test_each_place_gets_the_machine_that_it_needs() -> None:
    """Docker's and podman's places run where these are; all others on the usual machine."""
    needs = {name for name in PLACES if runner.spec_of(Case("stock", "ramp", "C", name)).containers}
    assert needs == {"container", "exec", "podman"}
    assert runner.spec_of(Case("stock", "ramp", "C", "unit", arch=OTHER)).arch == OTHER


# --- what is brought into a machine -----------------------------------------------------------------


def test_the_archive_has_all_that_it_needs(tmp_path: Path) -> None:
    """Python without site packages and without the repository can import it."""
    path = tmp_path / "engine.pyz"
    path.write_bytes(ship.archive())
    names = zipfile.ZipFile(io.BytesIO(ship.archive())).namelist()
    assert {"__main__.py", "lab/engine/main.py", "lab/guest/fakegb10.py"} <= set(names)
    script = f"import sys; sys.path.insert(0, {str(path)!r}); from lab.engine import main; print(main.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = shutil.which("python3", path="/usr/bin") or "python3"
    command = [python, "-I", "-S", "-c", script]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(path))


@pytest.mark.parametrize("place", PLACES)
def test_scripts_of_places_are_shell(place: str) -> None:
    """Each script is one that a shell can read, and has the command line in it."""
    script = PLACES[place].script.format(command="/usr/local/bin/vllm serve /models/ramp")
    subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "/usr/local/bin/vllm serve /models/ramp" in script
    assert "{" not in script


def test_a_unit_file_is_written_by_its_script(tmp_path: Path) -> None:
    """The system unit's file has the command line as it is."""
    script = PLACES["unit"].script.format(command="/usr/local/bin/vllm serve /m").partition(" && ")[0]
    file = tmp_path / "engine.service"
    subprocess.run(["bash", "-c", script.replace("/etc/systemd/system/engine.service", str(file))], check=True)
    assert file.read_text() == "[Service]\nExecStart=/usr/local/bin/vllm serve /m\n"


class FakeMachine:
    """A machine whose shell and ssh answer as they are told to."""

    def __init__(self, answer: object, out: str = "") -> None:
        self.answer = answer
        self.out = out
        self.asked: list[str] = []

    def run(self, cmd: str, _timeout_s: float) -> object:
        """Root's shell."""
        self.asked.append(cmd)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ssh(self, cmd: str, user: str, _timeout_s: float) -> object:
        """A login."""
        self.asked.append(f"{user}: {cmd}")
        return self.run(cmd, 0)

    def succeed(self, _cmd: str) -> str:
        """A command that prints."""
        return self.out


@pytest.mark.parametrize(
    ("place", "answer", "problem"),
    [
        ("unit", Result(0, "", ""), ""),
        ("unit", Result(1, "", "no such unit\n"), "the workload could not be started: no such unit"),
        ("unit", Result(None, "", ""), ""),
        ("unit", GuestError("the machine does not answer"), ""),
        ("shell", subprocess.CompletedProcess((), 255, "", "closed"), "the workload could not be started: closed"),
        ("shell", subprocess.TimeoutExpired((), 60), ""),
    ],
)
def test_a_start_that_fails_is_told_from_a_machine_that_freezes(place: str, answer: object, problem: str) -> None:
    """What a failing command says is kept; no answer at all is what the logins are there for."""
    machine = FakeMachine(answer)
    starter = runner.Starter(machine, PLACES[place], "/bin/vllm serve /m")  # type: ignore[arg-type]  # a fake
    starter.run()
    assert starter.problem == problem
    assert "/bin/vllm serve /m" in machine.asked[0]
    assert machine.asked[0].startswith("admin: ") is (place == "shell")


def test_the_two_clocks_are_compared() -> None:
    """The machine's clock may be ahead of the host's, or behind it."""
    for ahead_s in (-3.0, 100.0):
        machine = FakeMachine(None, f"{time.time() + ahead_s:.3f}\n")
        assert runner.clock_ahead_s(machine) == pytest.approx(ahead_s, abs=1)  # type: ignore[arg-type]  # a fake


def test_every_scenario_fits_into_its_window() -> None:
    """All of a scenario's phases, reading apart, are over before the logins end, and weights come first."""
    for name in SCENARIOS:
        plan = Case("stock", name, "C", "unit").plan()
        assert plan.timeline()[-1].at_s < runner.WINDOW_S, name
        assert plan.phases[0].read_percent > 0
        assert plan.read_percent / 100 >= runner.TOOK_SHARE
