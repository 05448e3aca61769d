"""What this host offers: its architecture, its tools, its package source."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.errors import HostError, UsageError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# mkfs.ext4 and mkswap lie where an ordinary user's PATH does not look
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
RELEASES = ("trixie", "bookworm")


@dataclass(frozen=True)
class Architecture:
    """What depends on the processor."""

    debian: str
    kernel_package: str
    qemu: str
    qemu_package: str
    machine: str
    emulated_cpu: str
    console: str

    @property
    def user_emulator(self) -> str:
        """What runs its programs on a host of another architecture."""
        return f"{self.qemu.replace('-system', '')}-static"


ARCHITECTURES = {
    # the generic kernel package, because the cloud one lacks the i6300esb watchdog
    "x86_64": Architecture(
        debian="amd64",
        kernel_package="linux-image-amd64",
        qemu="qemu-system-x86_64",
        qemu_package="qemu-system-x86",
        # i440fx: q35 brings a second watchdog of its own
        machine="pc",
        # Without cmpxchg16b: QEMU 7.2 takes the flags before it from a register that it has not yet written (seen
        # 10^6 times of 10^6), and an interrupt right after it brings them back. One boot in some forty died of that.
        emulated_cpu="Nehalem,-cx16",
        console="ttyS0",
    ),
    "aarch64": Architecture(
        debian="arm64",
        kernel_package="linux-image-arm64",
        qemu="qemu-system-aarch64",
        qemu_package="qemu-system-arm",
        machine="virt",
        emulated_cpu="cortex-a72",
        console="ttyAMA0",
    ),
}


def architecture(machine: str = "") -> Architecture:
    """The table's row for a processor as `uname -m` calls it, by default this host's. Raises HostError."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise HostError(f"the lab runs on {' and '.join(ARCHITECTURES)}; this host is {machine}")
    return ARCHITECTURES[machine]


def check_tools(machine: str = "") -> None:
    """Raises HostError that names every package missing here for machines of this architecture."""
    arch = architecture(machine)
    tools = {
        "apt-get": "apt",
        arch.qemu: arch.qemu_package,
        "qemu-img": "qemu-utils",
        "mmdebstrap": "mmdebstrap",
        "mkfs.ext4": "e2fsprogs",
        "ssh": "openssh-client",
        "ssh-keygen": "openssh-client",
        "setpriv": "util-linux",
    }
    if arch != architecture():
        tools |= {arch.user_emulator: "qemu-user-static", "arch-test": "arch-test"}
    if os.geteuid() != 0:
        tools["newuidmap"] = "uidmap"
    missing = {package for tool, package in tools.items() if not shutil.which(tool, path=SEARCH_PATH)}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    if missing:
        packages = " ".join(sorted(missing))
        raise HostError(f"the lab needs packages that this host lacks: apt-get install {packages}")


def check_release(release: str) -> None:
    """Raises UsageError for a release that the lab does not know."""
    if release not in RELEASES:
        raise UsageError(f"no release {release!r} in the lab: choose {' or '.join(RELEASES)}")


INDEX_FORMAT = "$(ORIGIN)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)"
POCKET = re.compile(r"-(?:updates|security)$")
# under any of these names a mirror offers the releases of the lab as well
SUITES = frozenset({*RELEASES, "oldstable", "stable", "testing", "unstable", "sid"})


def sources_for(release: str, index_lines: Iterable[str]) -> list[str]:
    """One-line apt sources for `release`, from the host's own index targets (INDEX_FORMAT).

    Only what calls itself Debian counts. Without any, the list is empty.
    """
    found: dict[str, None] = {}
    for line in index_lines:
        origin, suite, component, uri = line.strip().split("|")
        pocket = "".join(POCKET.findall(suite)[:1])
        if origin == "Debian" and component == "main" and suite.removesuffix(pocket) in SUITES:
            found[f"deb {uri} {release}{pocket} main"] = None
    return list(found)


def package_sources(release: str) -> list[str]:
    """One-line apt sources for `release` where this host gets its own packages; empty on another distribution.

    Raises HostError on a Debian host that does not know its source yet.
    """
    command = ["apt-get", "indextargets", "--format", INDEX_FORMAT, "Created-By: Packages"]
    targets = subprocess.run(command, capture_output=True, text=True, check=True)
    sources = sources_for(release, targets.stdout.splitlines())
    if not sources and platform.freedesktop_os_release().get("ID") == "debian":
        raise HostError("apt knows no Debian archive on this host: check its sources and run apt-get update")
    return sources


def proxy_settings() -> list[str]:
    """The host's apt proxies, as apt.conf lines."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    return proxies_in(dump.stdout.splitlines())


def proxies_in(dump_lines: Iterable[str]) -> list[str]:
    """The lines of `apt-config dump` that set a proxy."""
    return [line for line in dump_lines if re.match(r"Acquire::https?::Proxy(::\S+)? ", line)]
