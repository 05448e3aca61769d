"""The disk image: Debian packages and the lab's own files, cached by a hash of everything that goes in."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lab import host
from lab.errors import LabError
from lab.keys import Keys, keys, public_half
from lab.paths import images_dir, locked
from lab.progress import Progress

GUEST = Path(__file__).parent / "guest"
DISK_BYTES = 4 * 1024**3
# "I: installing remaining packages inside the chroot...", without what names a temporary directory
HEADLINE = re.compile(r"I: ([^/]+)\.\.\.")

PACKAGES = (
    "apt",
    "ca-certificates",
    "dbus",
    "dbus-user-session",
    "initramfs-tools",
    "iproute2",
    "kmod",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "python3",
    "rsyslog",
    "sudo",
    "systemd",
    "systemd-oomd",
    "systemd-sysv",
    "udev",
    "zstd",
)
# By release: what only machines with containers have. Since trixie Docker's command is a package of its own.
CONTAINER_PACKAGES = {
    "bookworm": ("docker.io", "iptables", "podman"),
    "trixie": ("docker-cli", "docker.io", "iptables", "podman"),
}
# Only for an image of another architecture, whose programs are emulated while it is built: packing the initrd well took
# most of 14 minutes. And its kernel need not have the watchdog's driver, without which loading modules would fail.
FOREIGN_HOOKS = (
    '--essential-hook=echo COMPRESSLEVEL=1 >>"$1"/etc/initramfs-tools/conf.d/lab',
    (
        '--customize-hook=ls "$1"/usr/lib/modules/*/kernel/drivers/watchdog | grep -q i6300esb '
        '|| sed -i /i6300esb/d "$1"/etc/modules-load.d/lab.conf'
    ),
)
# A third of the tree, of no use to a machine without a screen, a sound card or a radio.
LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    *(
        f"{lib}/modules/*/kernel/{part}/*"
        for lib in ("/lib", "/usr/lib")
        for part in (
            "drivers/gpu",
            "drivers/infiniband",
            "drivers/media",
            "drivers/net/ethernet",
            "drivers/net/wireless",
            "drivers/staging",
            "net/bluetooth",
            "net/wireless",
            "sound",
        )
    ),
)


@dataclass(frozen=True)
class Inputs:
    """Everything an image is made from."""

    release: str
    arch: host.Architecture
    sources: tuple[str, ...]
    proxies: tuple[str, ...]
    overlay: bytes
    more_packages: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages but the kernel's."""
        return PACKAGES + self.more_packages

    @property
    def hooks(self) -> tuple[str, ...]:
        """What is done only to an image of another architecture than this host's."""
        return FOREIGN_HOOKS if self.arch != host.architecture() else ()

    def digest(self) -> str:
        """Names the image: 16 hexadecimal digits over all inputs."""
        described = json.dumps(
            [
                self.release,
                self.arch.debian,
                self.arch.kernel_package,
                self.sources,
                self.proxies,
                self.packages,
                LEFT_OUT,
                DISK_BYTES,
                (GUEST / "make-disk.sh").read_text(),
                *self.hooks,
            ]
        )
        return hashlib.sha256(described.encode() + self.overlay).hexdigest()[:16]


@dataclass(frozen=True)
class Image:
    """A whole image in the cache."""

    directory: Path
    release: str

    @property
    def disk(self) -> Path:
        """The root file system, qcow2, never written to again."""
        return self.directory / "root.qcow2"

    @property
    def kernel(self) -> Path:
        """The kernel that QEMU loads itself."""
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The small initrd that belongs to the kernel."""
        return self.directory / "initrd.img"


def inputs_for(release: str, machine: str = "", more_packages: tuple[str, ...] = ()) -> Inputs:
    """Collect what an image of `release` is made from on this host; `machine` is its architecture, by default ours."""
    host.check_release(release)
    return Inputs(
        release=release,
        arch=host.architecture(machine),
        sources=tuple(host.package_sources(release)),
        proxies=tuple(host.proxy_settings()),
        overlay=overlay_tar(keys()),
        more_packages=more_packages,
    )


def overlay_tar(pairs: Keys) -> bytes:
    """The lab's own files as a tar archive: root's, and the same bytes for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(overlay_files(pairs)):
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return buffer.getvalue()


def overlay_files(pairs: Keys) -> Iterator[tuple[str, Path]]:
    """Name in the guest, and file on the host."""
    overlay = GUEST / "overlay"
    for path in overlay.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(overlay)), path
    yield "usr/local/lib/lab/shell.py", GUEST / "shell.py"
    yield "usr/local/lib/lab/install.sh", GUEST / "install.sh"
    yield "etc/lab/authorized_key", public_half(pairs.user)
    yield "etc/lab/ssh_host_ed25519_key", pairs.host
    yield "etc/lab/ssh_host_ed25519_key.pub", public_half(pairs.host)


def ensure_image(release: str, progress: Progress, machine: str = "", more_packages: tuple[str, ...] = ()) -> Image:
    """The image of `release`, built if the cache has none; `machine` and `more_packages` make images of their own.

    Raises HostError (tools are missing) and LabError (a tool failed, with its last lines).
    """
    inputs = inputs_for(release, machine, more_packages)
    image = Image(images_dir() / inputs.digest(), release)
    if image.directory.exists():
        return image
    host.check_tools(machine)
    with locked(image.directory.with_suffix(".lock")):
        if not image.directory.exists():
            progress.say(f"building the {release} image {image.directory.name} (once, a minute or two)")
            build(inputs, image, progress)
    return image


def build(inputs: Inputs, image: Image, progress: Progress) -> None:
    """Build beside the cache; the image appears whole or not at all. The caller holds the image's lock."""
    with scratch_directory(image.directory.with_suffix(".building")) as work:
        root_tar = work / "root.tar"
        overlay = work / "overlay.tar"
        overlay.write_bytes(inputs.overlay)
        run_tool(mmdebstrap_command(inputs, overlay, root_tar), progress)
        progress.say("writing the disk")
        made = work / "image"
        made.mkdir()
        extract_boot_files(root_tar, made)
        make_disk(root_tar, work / "root.raw", progress)
        convert = ["qemu-img", "convert", "-O", "qcow2", str(work / "root.raw"), str(made / "root.qcow2")]
        run_tool(convert, progress)
        made.rename(image.directory)


@contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """A directory for unfinished work; what a killed run left there is removed first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def mmdebstrap_command(inputs: Inputs, overlay: Path, root_tar: Path) -> list[str]:
    """The argument list that makes the root file system as a tar archive."""
    return [
        "mmdebstrap",
        "--variant=minbase",
        f"--architectures={inputs.arch.debian}",
        f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        f"--include={','.join((*inputs.packages, inputs.arch.kernel_package))}",
        # the machine can install packages without asking the network first
        "--skip=cleanup/apt",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={line}" for line in inputs.proxies),
        # before the kernel is installed: its initrd is made by these files
        f"--essential-hook=tar-in {overlay} /",
        *inputs.hooks,
        '--customize-hook=chroot "$1" /usr/local/lib/lab/install.sh',
        inputs.release,
        str(root_tar),
        *inputs.sources,
    ]


def run_tool(
    command: list[str], progress: Progress, stdin: BinaryIO | None = None, keep_open: tuple[int, ...] = ()
) -> None:
    """Run a tool to its end; mmdebstrap's own headlines are passed on as progress.

    Raises LabError with the end of what it printed.
    """
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=keep_open,
        env={**os.environ, "PATH": host.SEARCH_PATH},
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            tail.append(line)
            if headline := HEADLINE.fullmatch(line.rstrip()):
                progress.say(f"  {headline[1]}")
    if process.returncode:
        raise LabError(f"{command[0]} failed (exit {process.returncode}); its last lines:\n{''.join(tail)}")


def extract_boot_files(root_tar: Path, into: Path) -> None:
    """Take the kernel and its initrd out of the archive."""
    wanted = {"./boot/vmlinuz-": "vmlinuz", "./boot/initrd.img-": "initrd.img"}
    with tarfile.open(root_tar) as tar:
        for entry in tar:
            for prefix, name in wanted.items():
                content = tar.extractfile(entry) if entry.name.startswith(prefix) else None
                if content:
                    with (into / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    absent = [name for name in wanted.values() if not (into / name).exists()]
    if absent:
        raise LabError(f"the root file system has no {' and no '.join(absent)} in /boot")


def make_disk(root_tar: Path, disk: Path, progress: Progress) -> None:
    """An ext4 file system from a tar archive, without mounting anything.

    As an ordinary user it runs in mmdebstrap's user namespace, where the owners in the archive exist. The
    disk is handed over as an open file: that namespace's root cannot walk into the caller's directories.
    """
    namespace = [] if os.geteuid() == 0 else ["mmdebstrap", "--unshare-helper"]
    script = (GUEST / "make-disk.sh").read_text()
    with disk.open("wb") as file, root_tar.open("rb") as tar:
        file.truncate(DISK_BYTES)
        disk.chmod(0o666)
        descriptor = file.fileno()
        command = [*namespace, "/bin/sh", "-c", script, "make-disk", str(descriptor)]
        run_tool(command, progress, stdin=tar, keep_open=(descriptor,))
