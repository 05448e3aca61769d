"""What machine this is: release, kernels, driver, board, watchdogs, packages. Every figure None where not to be had."""

import os
import re
import shlex
from typing import Any

from plimsoll.box.host import Host

_PACKAGE = re.compile(r"Package: (.+)")
_PACKAGE_VERSION = re.compile(r"^Version: (\S+)$", re.MULTILINE)
_INSTALLED = re.compile(r"^Status: \S+ \S+ installed$", re.MULTILINE)
_MEM_TOTAL = re.compile(r"^MemTotal:\s+(\d+)", re.MULTILINE)
_NVIDIA_MODULE = re.compile(r"(^|/)nvidia\.ko(\.\w+)?:", re.MULTILINE)
_MEMORY_POOLS = re.compile(r"^EnableSystemMemoryPools:\s*(\d+)", re.MULTILINE)

PACKAGES_WATCHED = ("earlyoom", "systemd", "openssh-server", "systemd-oomd", "nvidia-sbsa-gwdt-options")


def parse_release(text: str) -> dict[str, str]:
    """Return KEY=value lines as a mapping; of a repeated key (DGX_OTA_VERSION) the last, which is current."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip("\ufeff \t\r").partition("=")
        name = key.strip().removeprefix("export ")
        if equals and not name.startswith("#"):
            found[name.strip()] = _unquoted(value.strip())
    return found


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def parse_dpkg_status(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those of `names` that are installed, from /var/lib/dpkg/status."""
    found = {}
    # a pattern that begins with plain text is found many times as fast as the file is split into its paragraphs
    for named in _PACKAGE.finditer(text):
        at_line_start = text[named.start() - 1 : named.start()] in ("", "\n")
        if named[1] not in names or not at_line_start:
            continue
        paragraph = _paragraph(text, named.start())
        version = _PACKAGE_VERSION.search(paragraph)
        if version and _INSTALLED.search(paragraph):
            found[named[1]] = version[1]
    return found


def _paragraph(text: str, position: int) -> str:
    """Return what lies around a position between empty lines."""
    start, end = max(text.rfind("\n\n", 0, position), 0), text.find("\n\n", position)
    return text[start:] if end == -1 else text[start:end]


def read(host: Host) -> dict[str, Any]:
    """Return the platform section of a state."""
    mem_total = _MEM_TOTAL.search(host.text_or_none("/proc/meminfo") or "")
    uname = os.uname()
    return {
        "os_release": parse_release(host.text_or_none("/etc/os-release") or ""),
        "dgx_release": parse_release(host.text_or_none("/etc/dgx-release") or ""),
        "hostname": host.text_or_none("/proc/sys/kernel/hostname"),
        "kernel": host.text_or_none("/proc/sys/kernel/osrelease"),
        "next_kernel": next_kernel(host),
        "kernels": kernels(host),
        "cmdline": host.text_or_none("/proc/cmdline"),
        "architecture": uname.machine,
        "boot_id": host.text_or_none("/proc/sys/kernel/random/boot_id"),
        "mem_total_kib": int(mem_total[1]) if mem_total else None,
        "board_vendor": host.text_or_none("/sys/class/dmi/id/board_vendor"),
        "board_name": host.text_or_none("/sys/class/dmi/id/board_name"),
        "product_name": host.text_or_none("/sys/class/dmi/id/product_name"),
        "bios_version": host.text_or_none("/sys/class/dmi/id/bios_version"),
        "bios_date": host.text_or_none("/sys/class/dmi/id/bios_date"),
        "pid1": host.text_or_none("/proc/1/comm"),
        "systemd_running": host.exists("/run/systemd/system"),
        "container": container(host),
        "cgroup2": host.exists("/sys/fs/cgroup/cgroup.controllers"),
        "encrypted_root": encrypted_root(host),
        "reboot_required": host.exists("/run/reboot-required"),
        "driver": driver(host),
        "euid": os.geteuid(),
    }


def next_kernel(host: Host) -> str | None:
    """Return the release of the kernel that boots next, None where it cannot be told.

    What the boot menu was told to choose goes first; without that it is what the default link names.
    """
    chosen = _menu_choice(host)
    if not _FIRST_ENTRY.fullmatch(chosen):
        named = [each["release"] for each in kernels(host) if each["release"] in chosen]
        return max(named, key=len, default=None)
    return _linked_kernel(host)


_FIRST_ENTRY = re.compile(r"|0|gnulinux-simple-.*|[^0-9>]+")
"""The menu's first entry, by number, name or title: it starts what the default link names."""
_DEFAULT_ENTRY = re.compile(r"""^\s*set default=["']?([^"'\n$]+)["']?\s*$""", re.MULTILINE)
_KEPT_ENTRY = re.compile(r"^(next_entry|saved_entry)=(.+)$", re.MULTILINE)


def _menu_choice(host: Host) -> str:
    """Return the entry of GRUB's menu that was chosen for the next boot, else its default; empty where unknown.

    grub.cfg names an entry itself, or says that the one that grubenv keeps is to be used.
    """
    menu = host.text_or_none("/boot/grub/grub.cfg") or ""
    kept = dict(_KEPT_ENTRY.findall(host.text_or_none("/boot/grub/grubenv") or ""))
    if 'set default="${next_entry}"' in menu and kept.get("next_entry"):
        return str(kept["next_entry"]).strip()
    if 'set default="${saved_entry}"' in menu and kept.get("saved_entry"):
        return str(kept["saved_entry"]).strip()
    named = _DEFAULT_ENTRY.findall(menu)
    return str(named[-1]).strip() if named else ""


def kernels(host: Host) -> list[dict[str, Any]]:
    """Return the kernels in /boot: `{release, nvidia_module}`; the module's presence is None where unknown."""
    names = (name for name in host.names("/boot") if name.startswith("vmlinuz-"))
    releases = (name.removeprefix("vmlinuz-") for name in names)
    return [{"release": release, "nvidia_module": has_nvidia_module(host, release)} for release in releases]


def has_nvidia_module(host: Host, release: str) -> bool | None:
    """Say whether depmod knows a module `nvidia` for a kernel; None where it has no list."""
    known = host.text_or_none(f"/lib/modules/{release}/modules.dep")
    return None if known is None else _NVIDIA_MODULE.search(known) is not None


def _linked_kernel(host: Host) -> str | None:
    for link in ("/vmlinuz", "/boot/vmlinuz"):
        try:
            target = os.readlink(host.path(link))
        except OSError:
            continue
        return target.rpartition("vmlinuz-")[2] or None
    return None


def container(host: Host) -> str | None:
    """Return the container technology this runs in, None on a machine of its own."""
    named = host.text_or_none("/run/systemd/container")
    if named:
        return named
    return "docker" if host.exists("/.dockerenv") else None


def encrypted_root(host: Host) -> bool | None:
    """Say whether crypttab(5) asks for a passphrase at boot (no key in its third field); None where unreadable."""
    if not host.exists("/etc/crypttab"):
        return False
    text = host.text_or_none("/etc/crypttab")
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    unattended = ("tpm2-device", "fido2-device", "keyscript=", "/dev/urandom", "/dev/random", "noauto")
    asking = (row for row in rows if not any(u in " ".join(row) for u in unattended))
    return any((row[2:3] or ["none"])[0] in ("none", "-") for row in asking)


def driver(host: Host) -> dict[str, Any]:
    """Return the NVIDIA driver: its version, flavour, firmware and pool parameter, None where not to be had.

    `firmware` is what the GPU runs, `firmware_files` are the versions that lie ready for the next time it is
    started: the driver takes none of another version than its own.
    """
    banner = host.text_or_none("/proc/driver/nvidia/version") or ""
    version = _DRIVER_VERSION.search(banner)
    params = host.text_or_none("/proc/driver/nvidia/params")
    pools = _MEMORY_POOLS.search(params or "")
    return {
        "version": version[1] if version else None,
        "open_module": "Open Kernel Module" in banner if version else None,
        "firmware": gsp_firmware(host),
        "firmware_files": firmware_files(host),
        "params": params,
        "system_memory_pools": int(pools[1]) if pools else None,
    }


_DRIVER_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_FIRMWARE_VERSION = re.compile(r"^GPU Firmware:\s*\b(\d{3}\.\d+(?:\.\d+)?)\b", re.MULTILINE)
FIRMWARE_DIRECTORIES = ("/lib/firmware/nvidia", "/lib/firmware/updates/nvidia")


def gsp_firmware(host: Host) -> str | None:
    """Return the version of the firmware that the GPU's own processor runs; None while it runs none."""
    base = "/proc/driver/nvidia/gpus"
    texts = (host.text_or_none(f"{base}/{gpu}/information") or "" for gpu in host.names(base))
    found = map(_FIRMWARE_VERSION.search, texts)
    return next((match[1] for match in found if match), None)


def firmware_files(host: Host) -> list[str]:
    """Return the versions of which GSP firmware is installed."""
    found = ((d, name) for d in FIRMWARE_DIRECTORIES for name in host.names(d) if _DRIVER_VERSION.fullmatch(name))
    return sorted({name for d, name in found if any(n.startswith("gsp") for n in host.names(f"{d}/{name}"))})


def watchdogs(host: Host) -> list[dict[str, str | None]]:
    """Return each hardware watchdog: name, identity, state (active means opened), timeout in seconds."""
    base = "/sys/class/watchdog"
    fields = ("identity", "state", "timeout", "max_timeout", "nowayout", "bootstatus")
    return [{"name": n, **{f: host.text_or_none(f"{base}/{n}/{f}") for f in fields}} for n in host.names(base)]


def packages(host: Host, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return installed versions by package name; None on a host without dpkg."""
    try:
        content = host.content("/var/lib/dpkg/status")
    except OSError:
        return None
    # what is looked for is ASCII; with the names of maintainers as UTF-8 it would be a text of four bytes a character
    return parse_dpkg_status(content.decode("latin-1"), (*names, *PACKAGES_WATCHED))
