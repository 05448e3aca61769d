"""KVM where a guest really boots on it, software emulation everywhere else."""

import enum
import os
import subprocess
import tempfile
from pathlib import Path

from lab.host import Architecture
from lab.paths import lab_dir, locked

# a kernel that boots on KVM at all is there within 2 s
PROBE_TIMEOUT_S = 10.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KVM = Path("/dev/kvm")
# The kernel's own words once it has done all that needs no root file system.
BOOTED = b"Unable to mount root fs"


class Accelerator(enum.Enum):
    """What runs the guest's instructions."""

    KVM = "kvm"
    TCG = "tcg"

    def options(self, arch: Architecture) -> list[str]:
        """QEMU's options for it."""
        if self is Accelerator.KVM:
            return ["-accel", "kvm", "-cpu", "host"]
        return ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", arch.emulated_cpu]


def accelerator(arch: Architecture, kernel: Path) -> Accelerator:
    """The verdict of a real boot, asked once for each boot of this host.

    A /dev/kvm that opens proves nothing: under some hypervisors the guest hangs before its kernel starts.
    """
    if not os.access(KVM, os.R_OK | os.W_OK):
        return Accelerator.TCG
    remembered = lab_dir() / f"accelerator-{BOOT_ID.read_text().strip()}"
    with locked(lab_dir() / "accelerator.lock"):
        if not remembered.exists():
            verdict = Accelerator.KVM if boots_on_kvm(arch, kernel) else Accelerator.TCG
            remembered.write_text(verdict.value)
        return Accelerator(remembered.read_text())


def boots_on_kvm(arch: Architecture, kernel: Path) -> bool:
    """Boot the kernel without a root file system and look for its last words on the console."""
    command = [
        arch.qemu,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", arch.machine, *Accelerator.KVM.options(arch), "-m", "256"),
        *("-kernel", str(kernel), "-append", f"console={arch.console} panic=-1"),
        *("-serial", "stdio"),
    ]
    with tempfile.TemporaryFile() as console:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.DEVNULL,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        console.seek(0)
        return BOOTED in console.read()
