"""QEMU: its command line, and the process that runs it."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.accel import Accelerator
from lab.errors import GuestError, LabError
from lab.host import Architecture
from lab.qmp import Monitor

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


def disk_node(backing_disk: Path) -> dict[str, object]:
    """The machine's own disk file over the image it began as.

    Flushes are obeyed: a write that the guest has flushed survives QEMU's death, one that it has not may be
    lost. The image's place is given here because the cache may have moved since the file was made.
    """
    backing = {"driver": "file", "filename": str(backing_disk)}
    return {
        "driver": "qcow2",
        "node-name": "root",
        "file": {"driver": "file", "filename": DISK, "cache": {"direct": False, "no-flush": False}},
        "backing": {"driver": "qcow2", "read-only": True, "file": {**backing, "read-only": True}},
    }


def command_line(hardware: Hardware, name: str, ssh_port: int) -> list[str]:
    """QEMU's argument list to boot the disk of a machine whose directory is the working directory."""
    arch, accelerator = hardware.arch, hardware.accelerator
    kernel_options = f"root=/dev/vda rw console={arch.console} psi=1 quiet mitigations=off"
    return [
        arch.qemu,
        *("-name", name, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", arch.machine, *accelerator.options(arch)),
        *("-smp", str(hardware.cpus), "-m", str(hardware.memory_mib)),
        *("-kernel", str(hardware.kernel), "-initrd", str(hardware.initrd), "-append", kernel_options),
        *("-blockdev", json.dumps(disk_node(hardware.backing_disk))),
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


# what this process has started, kept so that it can be waited for
_children: dict[int, subprocess.Popen[bytes]] = {}


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


def end_all(directory: Path) -> None:
    """Kill every QEMU that runs in a directory, recorded or not."""
    for process in Path("/proc").glob("[0-9]*"):
        end(int(process.name), directory)


def start(command: list[str], directory: Path, *, dies_with_us: bool) -> int:
    """Start QEMU in `directory`, wait until its monitor answers, return its pid.

    With `dies_with_us` the kernel kills it when this process ends, however it ends.
    Raises LabError with what QEMU printed when it does not come to that.
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
    try:
        await_monitor(process, directory)
    except (GuestError, TimeoutError) as error:
        process.kill()
        status = process.wait(END_TIMEOUT_S)
        raise LabError(f"QEMU did not start (exit {status}); it printed: {log_tail(directory)}") from error
    _children[process.pid] = process
    return process.pid


def await_monitor(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until QEMU answers, which it does once a snapshot is restored. Raises GuestError when it ended."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not (directory / QMP_SOCKET).exists():
        if process.poll() is not None:
            raise GuestError("QEMU has ended")
        if time.monotonic() >= deadline_s:
            raise TimeoutError
        time.sleep(0.02)  # QEMU makes the socket when it has read its options: no event tells of it
    Monitor(directory / QMP_SOCKET).close()


def log_tail(directory: Path) -> str:
    """The last lines that QEMU itself printed."""
    lines = (directory / QEMU_LOG).read_text(errors="replace").splitlines()
    return "\n".join(lines[-10:]) or "it printed nothing"


def console_tail(directory: Path) -> str:
    """The last lines on the machine's console, introduced."""
    lines = (directory / SERIAL_LOG).read_text(errors="replace").splitlines()
    return "its console:\n" + "\n".join(lines[-30:])


def power_off(pid: int, directory: Path) -> None:
    """Let QEMU write out what it holds and end, without asking the guest."""
    with open_process(pid) as descriptor, Monitor(directory / QMP_SOCKET) as monitor:
        monitor.command("quit")
        await_end(pid, descriptor)


def end(pid: int, directory: Path) -> None:
    """Kill QEMU as a power cut would, and wait until it is gone; a pid that is not ours is left alone."""
    if not is_ours(pid, directory):
        return
    with open_process(pid) as descriptor:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await_end(pid, descriptor)


@contextmanager
def open_process(pid: int) -> Iterator[int]:
    """A pidfd: stays with this process, whoever gets its number next."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def await_end(pid: int, descriptor: int) -> None:
    """Wait for the process behind a pidfd; collect its status if this process started it."""
    if not select.select([descriptor], [], [], END_TIMEOUT_S)[0]:
        raise LabError(f"QEMU (pid {pid}) has not ended in {END_TIMEOUT_S:.0f} s")
    if process := _children.pop(pid, None):
        process.wait()
