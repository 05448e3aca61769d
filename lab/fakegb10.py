"""The stand-in driver: built on this host for a machine's kernel, loaded into the machine, and read.

Building happens in a root file system of the machine's release, made for it and thrown away: the compiler is the
kernel's own, nothing is emulated, and the host needs no more than the lab does anyway. 40 s; in the machine, under
software emulation, it would be many minutes.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import host
from lab.errors import GuestError, HostError, LabError
from lab.image import GUEST, LEFT_OUT, run_tool, scratch_directory
from lab.machine import Machine
from lab.paths import images_dir, lab_dir, locked
from lab.progress import Progress

SOURCE = Path(__file__).with_suffix("")
MODULE = "fakegb10.ko"
ENGINE = "engine"
"""A model server's processes in C: see engine.c."""
IN_GUEST = "/usr/local/lib/lab"
# command in the machine, and the program it is a link to
PROGRAMS = {"fakegb10": "fakegb10.py", "nvidia-smi": "nvidia_smi.py"}
STATE = "/proc/driver/fakegb10/state"
PROCESSES = "/proc/driver/fakegb10/processes"
PARAMETERS = "/sys/module/fakegb10/parameters"
LOAD_TIMEOUT_S = 60.0
# a file that is being closed gives its memory back meanwhile, and the module waits for that
UNLOAD_TIMEOUT_S = 120.0

ARCHITECTURES = {
    # Debian's name: the kernel's name, and the prefix of the tools that build for it elsewhere
    "amd64": ("x86_64", "x86_64-linux-gnu-"),
    "arm64": ("arm64", "aarch64-linux-gnu-"),
}


@dataclass(frozen=True)
class Target:
    """What a module is built for: Debian release, kernel as `uname -r` says it, Debian's architecture."""

    release: str
    kernel: str
    debian: str

    def build_arguments(self, host_debian: str) -> list[str]:
        """The arguments of build.sh on a host of this architecture. Raises HostError for an unknown one."""
        if self.debian not in ARCHITECTURES:
            raise HostError(f"fakegb10 is built for {' and '.join(ARCHITECTURES)}, not for {self.debian}")
        arch, prefix = ARCHITECTURES[self.debian]
        return [self.kernel, self.debian, arch, *([prefix] if self.debian != host_debian else [])]

    def digest(self, sources: Mapping[str, bytes]) -> str:
        """Names a built module: 16 hexadecimal digits over the target and the sources."""
        described = [self.release, self.kernel, self.debian, {n: s.hex() for n, s in sources.items()}]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class State:
    """What the driver holds, KiB and entries, and how many allocations it has refused since it was loaded."""

    regime: str
    plain_kib: int
    vmm_kib: int
    pool_2048_kib_entries: int
    pool_64_kib_entries: int
    pool_4_kib_entries: int
    booked_kib: int
    refused: int

    @property
    def in_use_kib(self) -> int:
        """What open files hold."""
        return self.plain_kib + self.vmm_kib

    @property
    def pooled_kib(self) -> int:
        """What finished owners left."""
        return 2048 * self.pool_2048_kib_entries + 64 * self.pool_64_kib_entries + 4 * self.pool_4_kib_entries


def parse_state(text: str) -> State:
    """The driver's own figures. Raises GuestError for a text that is none of them, or lacks one."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return State(values.pop("regime"), **{name: int(value) for name, value in values.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise GuestError(f"{STATE} of the machine is not what this lab's driver prints ({error}):\n{text}") from error


def parse_processes(text: str) -> dict[int, int | None]:
    """KiB by process id; None where the driver does not tell."""
    rows = (line.split() for line in text.splitlines())
    return {int(pid): int(kib[0]) if kib else None for pid, *kib in rows}


def sources() -> dict[str, bytes]:
    """Everything that a module is built from, by name."""
    wanted = [path for path in sorted(SOURCE.iterdir()) if path.suffix in (".c", ".h", ".sh") or path.name == "Kbuild"]
    return {path.name: path.read_bytes() for path in wanted}


def build_command(
    target: Target, host_debian: str, into: Path, package_sources: Sequence[str], proxies: Sequence[str]
) -> list[str]:
    """The argument list that leaves what is built for `target` in the directory `into`; apt's lines are the host's."""
    arguments = target.build_arguments(host_debian)
    architectures = dict.fromkeys([host_debian, target.debian])
    return [
        "mmdebstrap",
        "--variant=apt",
        "--format=null",
        # the build installs packages itself
        "--skip=cleanup/apt",
        f"--architectures={','.join(architectures)}",
        f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT if pattern.startswith("/usr/share/")),
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={line}" for line in proxies),
        '--customize-hook=mkdir "$1/build"',
        f"--customize-hook=sync-in {shlex.quote(str(SOURCE))} /build",
        f'--customize-hook=chroot "$1" sh /build/build.sh {shlex.join(arguments)}',
        *(f"--customize-hook=download /build/{each} {shlex.quote(str(into / each))}" for each in (MODULE, ENGINE)),
        target.release,
        "/dev/null",
        *package_sources,
    ]


def ensure_built(target: Target, progress: Progress) -> Path:
    """The directory of the module and the engine for `target`, built if the cache has none.

    Raises HostError (a tool or the architecture is missing), LabError (it does not build, with the last lines).
    """
    directory = lab_dir() / "modules" / target.digest(sources())
    if not (directory / MODULE).exists():
        host.check_tools()
        with locked(directory.with_suffix(".lock")):
            if not directory.exists():
                build(target, directory, progress)
    return directory


def build(target: Target, directory: Path, progress: Progress) -> None:
    """Build beside the cache; the directory appears whole or not at all. The caller holds the lock."""
    progress.say(f"building fakegb10 for {target.kernel} (once, about a minute)")
    with scratch_directory(directory.with_suffix(".building")) as work:
        made = work / "module"
        made.mkdir()
        apt = host.package_sources(target.release), host.proxy_settings()
        try:
            run_tool(build_command(target, host.architecture().debian, made, *apt), progress)
        except LabError as error:
            if "Unable to locate package linux-headers" not in str(error):
                raise
            raise LabError(
                f"the archive has no headers for {target.kernel} any more: it is the kernel of an older image. "
                f"Remove {images_dir()} while no machine runs; the image is then built with the present kernel"
            ) from error
        made.rename(directory)


def target_of(machine: Machine) -> Target:
    """What a module for this machine has to be built for."""
    kernel, debian = machine.succeed("uname -r; dpkg --print-architecture").split()
    return Target(machine.release, kernel, debian)


def install(machine: Machine, progress: Progress) -> None:
    """Bring the module, the engine, `fakegb10` and `nvidia-smi` into the machine; nothing is loaded yet."""
    built = ensure_built(target_of(machine), progress)
    send(machine, f"{IN_GUEST}/{MODULE}", (built / MODULE).read_bytes(), "0644")
    send(machine, f"{IN_GUEST}/{ENGINE}", (built / ENGINE).read_bytes(), "0755")
    for command, program in PROGRAMS.items():
        send(machine, f"{IN_GUEST}/{program}", b"#!/usr/bin/python3\n" + (GUEST / program).read_bytes(), "0755")
        machine.succeed(f"ln -sf {IN_GUEST}/{program} /usr/local/bin/{command}")


def send(machine: Machine, path: str, content: bytes, mode: str) -> None:
    """Write a file of any content. Raises GuestError with what the machine said."""
    quoted = shlex.quote(path)
    result = machine.run(f"install -D -m {mode} /dev/stdin {quoted}", stdin=content)
    if result.rc != 0:
        raise GuestError(f"{machine.name}: cannot write {path}: {result.err.strip()}")


def load(machine: Machine, **parameters: str | int) -> None:
    """Load the module that `install` brought; parameters by their names in the README. Raises GuestError."""
    words = shlex.join(f"{name}={value}" for name, value in parameters.items())
    machine.succeed(f"insmod {IN_GUEST}/{MODULE} {words}", LOAD_TIMEOUT_S)
    # the device appears with the module, its mode when udev has seen it
    machine.succeed("udevadm settle", LOAD_TIMEOUT_S)


def unload(machine: Machine) -> None:
    """Take the module out, once nobody has the device open any more. Raises GuestError."""
    machine.wait_until_succeeds("rmmod fakegb10", UNLOAD_TIMEOUT_S)


def set_parameter(machine: Machine, name: str, value: str | int) -> None:
    """Change a parameter of the loaded module. Raises GuestError when the module refuses it."""
    machine.succeed(f"echo {shlex.quote(str(value))} >{PARAMETERS}/{shlex.quote(name)}")


def state(machine: Machine) -> State:
    """What the driver holds now."""
    return parse_state(machine.read(STATE))


def processes(machine: Machine) -> dict[int, int | None]:
    """KiB by process id; waits while somebody holds the driver's lock."""
    return parse_processes(machine.read(PROCESSES))
