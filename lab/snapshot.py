"""A booted machine, saved once for each arrangement and size, from which machines are restored."""

import hashlib
import json
import platform
import shlex
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab import host, qemu
from lab.accel import Accelerator, accelerator
from lab.errors import GuestError, UsageError
from lab.image import CONTAINER_PACKAGES, GUEST, Image, ensure_image, scratch_directory
from lab.paths import locked
from lab.progress import Progress
from lab.qmp import Monitor
from lab.shell import Result, Shell

# 50 s alone on two cores under software emulation, 150 s beside four other machines
COLD_BOOT_TIMEOUT_S = 600.0
# a machine below this does not finish booting with its services
LEAST_MEMORY_MIB = 512


@dataclass(frozen=True)
class Spec:
    """What a machine is: release, size, how its ssh is arranged, whether it has Docker and podman, its processor."""

    release: str = "trixie"
    memory_mib: int = 1536
    ubuntu_ssh: bool = False
    containers: bool = False
    arch: str = field(default_factory=platform.machine)

    def check(self) -> None:
        """Raises UsageError for what the lab cannot make."""
        host.check_release(self.release)
        if self.memory_mib < LEAST_MEMORY_MIB:
            raise UsageError(f"{self.memory_mib} MiB is too little memory: give {LEAST_MEMORY_MIB} or more")
        if self.ubuntu_ssh and self.release == "bookworm":
            raise UsageError(
                "bookworm's sshd takes no socket from systemd, so its ssh cannot be arranged as on Ubuntu 24.04: "
                "use trixie"
            )

    def scripts(self) -> list[Path]:
        """What runs in the machine before it is saved, in this order."""
        chosen = {"ubuntu-ssh.sh": self.ubuntu_ssh, "containers.sh": self.containers}
        return [GUEST / "first-boot.sh", *(GUEST / script for script, wanted in chosen.items() if wanted)]

    def packages(self) -> tuple[str, ...]:
        """What its image has beyond that of the others."""
        return CONTAINER_PACKAGES[self.release] if self.containers else ()


@dataclass(frozen=True)
class Snapshot:
    """A saved machine: the disk file that holds it, and the hardware that it fits."""

    disk: Path
    hardware: qemu.Hardware


def hardware_for(spec: Spec, image: Image) -> qemu.Hardware:
    """The hardware of a machine of this kind on this host."""
    arch = host.architecture(spec.arch)
    return qemu.Hardware(
        arch=arch,
        # KVM runs the host's own instructions only
        accelerator=accelerator(arch, image.kernel) if arch == host.architecture() else Accelerator.TCG,
        memory_mib=spec.memory_mib,
        kernel=image.kernel,
        initrd=image.initrd,
        backing_disk=image.disk,
    )


def digest(spec: Spec, hardware: qemu.Hardware) -> str:
    """Names a snapshot within its image: what it depends on beyond the image."""
    version = subprocess.run([hardware.arch.qemu, "--version"], capture_output=True, text=True, check=True)
    scripts = [script.read_text() for script in spec.scripts()]
    # neither where the cache lies nor the port is a property of the machine
    placed = replace(hardware, kernel=Path("vmlinuz"), initrd=Path("initrd"), backing_disk=Path("root"))
    command = qemu.command_line(placed, "saved", 0)
    cpu = Path("/proc/cpuinfo").read_text() if hardware.accelerator is Accelerator.KVM else ""
    model = [line for line in cpu.splitlines() if line.startswith("model name")][:1]
    return hashlib.sha256(json.dumps([version.stdout, scripts, command, model]).encode()).hexdigest()[:16]


def ensure_snapshot(spec: Spec, progress: Progress) -> Snapshot:
    """The saved machine for `spec`, made if the cache has none (a cold boot).

    Raises UsageError, HostError, and GuestError when the machine does not come up as it should.
    """
    spec.check()
    host.check_tools(spec.arch)
    image = ensure_image(spec.release, progress, spec.arch, spec.packages())
    hardware = hardware_for(spec, image)
    disk = image.directory / f"booted-{digest(spec, hardware)}.qcow2"
    with locked(disk.with_suffix(".lock")):
        if not disk.exists():
            progress.say(f"booting {describe(spec)} for the first time ({hardware.accelerator.value})")
            make(spec, hardware, disk, progress)
    return Snapshot(disk, hardware)


def describe(spec: Spec) -> str:
    """A machine's kind, for people."""
    foreign = spec.arch != platform.machine()
    more = {"ssh as on Ubuntu 24.04": spec.ubuntu_ssh, "containers": spec.containers, spec.arch: foreign}
    return ", ".join([spec.release, f"{spec.memory_mib} MiB", *(name for name, wanted in more.items() if wanted)])


def make(spec: Spec, hardware: qemu.Hardware, disk: Path, progress: Progress) -> None:
    """Cold-boot, prepare, settle, save; the snapshot appears whole or not at all."""
    with scratch_directory(disk.with_suffix(".booting")) as directory:
        overlay = directory / qemu.DISK
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(hardware.backing_disk)]
        subprocess.run([*create, str(overlay)], check=True)
        command = qemu.command_line(hardware, "saved", qemu.free_port())
        pid = qemu.start(command, directory, dies_with_us=True)
        try:
            prepare(spec, directory, progress)
            progress.say("saving the booted machine")
            with Monitor(directory / qemu.QMP_SOCKET) as monitor:
                monitor.save_snapshot(qemu.SNAPSHOT)
            qemu.power_off(pid, directory)
        except TimeoutError:
            raise GuestError(f"the first boot did not end in time; {qemu.console_tail(directory)}") from None
        except GuestError as error:
            raise GuestError(f"the first boot failed: {error}; {qemu.console_tail(directory)}") from error
        finally:
            qemu.end(pid, directory)
        overlay.rename(disk)


def prepare(spec: Spec, directory: Path, progress: Progress) -> None:
    """Run what belongs to the arrangement, reboot into the result, leave it quiet."""
    shell = Shell(directory / qemu.SHELL_SOCKET)
    shell.await_boot_id(time.monotonic() + COLD_BOOT_TIMEOUT_S)
    progress.say("the file systems are there, services are starting")
    await_settled(shell)
    progress.say("booted; preparing")
    for script in spec.scripts():
        required(shell, script.read_text())
    if spec.ubuntu_ssh:
        progress.say("rebooting into the arrangement of ssh")
        reboot(shell, directory, COLD_BOOT_TIMEOUT_S)
        await_settled(shell)
    required(shell, "sync; journalctl --sync")
    shell.close()


def await_settled(shell: Shell) -> None:
    """Wait until every start job is done. Raises GuestError naming the units that failed."""
    state = shell.run("systemctl is-system-running --wait", COLD_BOOT_TIMEOUT_S)
    if state.out.strip() != "running":
        failed = shell.run("systemctl --failed --no-legend --plain; journalctl -b -p err --no-pager", 30).out
        raise GuestError(f"the machine is {state.out.strip() or 'not answering'!r}:\n{failed}")


def required(shell: Shell, cmd: str, timeout_s: float = 120.0) -> Result:
    """Run a command that has to succeed. Raises GuestError with all that it printed."""
    result = shell.run(cmd, timeout_s)
    if result.rc != 0:
        how = f"did not end in {timeout_s:g} s" if result.rc is None else f"failed (exit {result.rc})"
        raise GuestError(f"{shlex.quote(cmd)} {how}:\n{result.out}{result.err}")
    return result


def reboot(shell: Shell, directory: Path, timeout_s: float) -> None:
    """Reboot in order and wait until the shell of the new boot answers. Raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    with Monitor(directory / qemu.QMP_SOCKET) as monitor:
        required(shell, "systemctl reboot --no-block")
        monitor.await_event("RESET", deadline_s)
    shell.await_boot_id(deadline_s)
