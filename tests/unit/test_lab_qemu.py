"""QEMU's command line, its process, and the choice of what runs the guest."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import accel, qemu
from lab.accel import Accelerator
from lab.errors import LabError, UsageError
from lab.host import ARCHITECTURES
from lab.snapshot import Spec

HARDWARE = qemu.Hardware(
    ARCHITECTURES["x86_64"], Accelerator.TCG, 1536, Path("/i/vmlinuz"), Path("/i/initrd.img"), Path("/i/root.qcow2")
)

FakeQemu = Callable[[str], str]


@pytest.fixture
def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeQemu:
    """Put a shell script in the place of QEMU; returns its name."""

    def install(script: str) -> str:
        program = tmp_path / "bin" / "qemu-system-x86_64"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return program.name

    return install


def test_only_the_loopback_is_forwarded() -> None:
    """The one forwarded port is bound to 127.0.0.1 and leads to sshd."""
    command = qemu.command_line(HARDWARE, "gx10", 4022)
    assert [part for part in command if "hostfwd" in part] == ["user,id=net,hostfwd=tcp:127.0.0.1:4022-:22"]


def test_flushes_reach_the_disk() -> None:
    """A power cut must lose what was not flushed and nothing else; the shared image is never written to."""
    (text,) = [part for part in qemu.command_line(HARDWARE, "gx10", 4022) if "node-name" in part]
    disk = json.loads(text)
    assert disk["file"]["cache"]["no-flush"] is False
    assert disk["backing"]["file"]["filename"] == "/i/root.qcow2"
    assert disk["backing"]["read-only"] is True


def test_qemu_that_ends_at_once_is_reported(fake_qemu: FakeQemu, tmp_path: Path) -> None:
    """What QEMU printed before it ended, and its exit status, are in the error."""
    name = fake_qemu("echo no such device >&2; exit 3")
    with pytest.raises(LabError, match=r"exit 3.*no such device"):
        qemu.start([name], tmp_path, dies_with_us=False)


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    """A process that is no QEMU of this directory is not ours and is not killed."""
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as other:
        assert not qemu.is_ours(other.pid, tmp_path)
        qemu.end(other.pid, tmp_path)
        assert other.poll() is None
        other.kill()


def test_a_pid_of_nobody_is_not_ours(tmp_path: Path) -> None:
    """A recorded pid whose process has ended is not ours."""
    with subprocess.Popen(["true"]) as ended:
        pass
    assert not qemu.is_ours(ended.pid, tmp_path)


def test_kvm_is_used_where_a_kernel_boots(fake_qemu: FakeQemu) -> None:
    """The kernel's last words without a root file system prove that KVM works."""
    fake_qemu('echo "VFS: Unable to mount root fs on unknown-block(0,0)"')
    assert accel.boots_on_kvm(HARDWARE.arch, HARDWARE.kernel)


def test_kvm_that_fails_is_not_used(fake_qemu: FakeQemu) -> None:
    """A QEMU that ends without a word from the kernel proves nothing."""
    fake_qemu("exit 1")
    assert not accel.boots_on_kvm(HARDWARE.arch, HARDWARE.kernel)


def test_kvm_that_hangs_is_not_used(fake_qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that hangs is given up at the deadline."""
    fake_qemu("exec sleep 60")
    monkeypatch.setattr(accel, "PROBE_TIMEOUT_S", 0.5)
    assert not accel.boots_on_kvm(HARDWARE.arch, HARDWARE.kernel)


def test_bookworm_has_no_ubuntu_ssh() -> None:
    """The arrangement that bookworm's sshd cannot have is refused with what to do instead."""
    with pytest.raises(UsageError, match="use trixie"):
        Spec("bookworm", ubuntu_ssh=True).check()


def test_too_little_memory_is_refused() -> None:
    """A size that cannot boot is refused before anything is built."""
    with pytest.raises(UsageError, match="64 MiB is too little memory: give 512 or more"):
        Spec(memory_mib=64).check()
