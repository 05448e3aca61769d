"""QEMU: its command line, and the process that runs it."""

import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab import qmp
from lab.accel import Accelerator
from lab.errors import LabError
from lab.host import Architecture

SNAPSHOT = "ready"
RESTORE = ("-loadvm", SNAPSHOT)
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0

# The names of the files in a machine's directory; QEMU runs in it, so that they need no path.
DISK = "root.qcow2"
SERIAL_LOG = "serial.log"
QEMU_LOG = "qemu.log"
SHELL_SOCKET = "shell.sock"
QMP_SOCKET = "qmp.sock"


@dataclass(frozen=True)
class Hardware:
    """What QEMU is told to emulate; a snapshot fits only the hardware it was taken from."""

    arch: Architecture
    accelerator: Accelerator
    memory_mib: int
    kernel: Path
    initrd: Path
    backing_disk: Path
    cpus: int = 2


def command_line(hardware: Hardware, name: str, ssh_port: int) -> list[str]:
    """QEMU's argument list to boot the disk of a machine whose directory is the working directory."""
    arch, accelerator = hardware.arch, hardware.accelerator
    disk = f"driver=qcow2,node-name=root,file.driver=file,file.filename={DISK}"
    # no file name in the overlay is followed: the cache may have been moved since
    backing = (
        "backing.driver=qcow2,backing.file.driver=file,backing.read-only=on,"
        f"backing.file.filename={hardware.backing_disk}"
    )
    kernel_options = f"root=/dev/vda rw console={arch.console} psi=1 quiet mitigations=off"
    return [
        arch.qemu,
        *("-name", name, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", arch.machine, *accelerator.options(arch)),
        *("-smp", str(hardware.cpus), "-m", str(hardware.memory_mib)),
        *("-kernel", str(hardware.kernel), "-initrd", str(hardware.initrd), "-append", kernel_options),
        # a write that the guest has flushed survives QEMU's death, one that it has not may be lost
        *("-blockdev", f"{disk},{backing},file.cache.direct=off,file.cache.no-flush=off"),
        *("-device", "virtio-blk-pci,drive=root,write-cache=on"),
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci"),
        *("-device", "i6300esb", "-action", "watchdog=reset"),
        *("-chardev", f"file,id=serial,path={SERIAL_LOG},append=on", "-serial", "chardev:serial"),
        *("-chardev", f"socket,id=shell,path={SHELL_SOCKET},server=on,wait=off"),
        *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=shell,name=lab.shell"),
        *("-qmp", f"unix:{QMP_SOCKET},server=on,wait=off"),
    ]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ours(pid: int, directory: Path) -> bool:
    """Whether `pid` is a QEMU that runs in `directory` (a number may have gone to another process)."""
    process = Path("/proc") / str(pid)
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")
        return (process / "cwd").readlink() == directory and b"qemu-system" in argv[0]
    except OSError:
        return False


def start(command: list[str], directory: Path, *, dies_with_us: bool) -> int:
    """Start QEMU in `directory`, wait until its monitor answers, return its pid.

    With `dies_with_us` the kernel kills it when this process ends, however it ends.
    Raises LabError with what QEMU printed when it ended instead.
    """
    for stale in (SHELL_SOCKET, QMP_SOCKET):
        (directory / stale).unlink(missing_ok=True)
    leash = ["setpriv", "--pdeathsig", "KILL"] if dies_with_us else []
    with (directory / QEMU_LOG).open("w") as log:
        process = subprocess.Popen(
            [*leash, *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise LabError(f"QEMU ended at once (exit {process.returncode}): {log_tail(directory)}")
        if (directory / QMP_SOCKET).exists() and is_ours(process.pid, directory):
            qmp.command(directory / QMP_SOCKET, "query-status")
            return process.pid
        time.sleep(0.05)  # QEMU makes the socket when it has read its options: no event tells of it
    end(process.pid, directory)
    raise LabError(f"QEMU did not open its monitor in {START_TIMEOUT_S:.0f} s: {log_tail(directory)}")


def log_tail(directory: Path) -> str:
    """The last lines that QEMU itself printed."""
    lines = (directory / QEMU_LOG).read_text(errors="replace").splitlines()
    return "\n".join(lines[-10:]) or "it printed nothing"


def end(pid: int, directory: Path) -> None:
    """Kill QEMU as a power cut would, and wait until it is gone; a pid that is not ours is left alone."""
    if not is_ours(pid, directory):
        return
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await_end(descriptor)
    finally:
        os.close(descriptor)
    reap(pid)


def await_end(descriptor: int) -> None:
    """Wait for the process behind a pidfd."""
    if not select.select([descriptor], [], [], END_TIMEOUT_S)[0]:
        raise LabError(f"QEMU is still there {END_TIMEOUT_S:.0f} s after SIGKILL")


def reap(pid: int) -> None:
    """Collect the status of a QEMU that this process started; another process's is not ours to collect."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
