"""Whose a cgroup is: a container's, a unit's, a scope's or a login session's, and which are never touched. Pure.

What counts is where a process is. A name that a process gives itself counts for nothing, and a unit of a user's own
manager that is called as one of the system's is not the system's.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from plimsoll.box import texts

MAX_SHOWN = 120
"""Characters of a name that comes from somebody else."""


@dataclass(frozen=True)
class Place:
    """The outermost container, unit or scope around a cgroup; what is created below it belongs to it."""

    cgroup: str
    kind: str
    """`container`, `unit`, `scope`, `session`."""
    name: str
    whole: bool
    """Whether all of it is stopped together; otherwise single process groups of it are."""
    identity: str = ""
    """A container's 64 digits; empty where there are none."""
    owner: int | None = None
    """The user whose own manager it is under; None for the system's."""
    never: str | None = None
    """Why nothing in it is ever stopped."""


def _any(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(each) for each in globs))


_SYSTEM = _any((
    "init.scope", "systemd-*.service", "dbus.service", "dbus-broker.service", "polkit.service", "ssh.service",
    "sshd.service", "ssh@*.service", "sshd@*.service", "sshd-*@*.service", "dropbear*.service", "rescue.service",
    "emergency.service", "accounts-daemon.service", "rsyslog.service", "syslog-ng.service", "auditd.service",
    "chrony.service", "chronyd.service", "udisks2.service", "multipathd.service", "plimsoll-*.service",
    "earlyoom.service", "nohang*.service", "qemu-guest-agent.service",
    # the network, without which nobody can be let in
    "NetworkManager*.service", "networking.service", "network.service", "wpa_supplicant*.service", "iwd.service",
    "connman.service", "dhcpcd*.service", "dhclient*.service", "ifup@*.service", "netplan-*.service",
    "tailscaled.service", "snap.tailscale.*.service", "zerotier-one.service", "wg-quick@*.service",
    "openvpn*.service", "cloudflared*.service", "netbird*.service", "firewalld.service", "nftables.service",
    "avahi-daemon.service", "dnsmasq.service", "unbound.service", "ModemManager.service", "rpcbind.service",
    # those who start containers and machines, and without whom those cannot be managed
    "docker.service", "containerd.service", "podman.service", "crio.service", "kubelet.service", "k3s*.service",
    "snap.docker.*.service", "libvirtd.service", "virt*.service", "lxc*.service", "lxd*.service", "incus*.service",
    "snap.lxd.*.service",
    # those who hold the GPU and compute nothing
    "nvidia-*.service", "dcgm*.service", "gdm*.service", "lightdm.service", "sddm.service", "display-manager.service",
    "xdm.service", "greetd.service", "weston*.service", "getty@*.service", "serial-getty@*.service",
    "console-getty.service", "container-getty@*.service", "lxc.monitor*",
))  # fmt: skip
"""The system manager's own units that must go on, whatever they hold."""
_STARTERS = _any((
    "cron.service", "crond.service", "cronie.service", "anacron.service", "atd.service", "fcron.service",
    "rc-local.service", "slurmd.service", "slurmstepd.scope",
))  # fmt: skip
"""Units in whose cgroup others' programs run: those are stopped, and the unit goes on."""
_SHELLS_IN = _any((
    "session-*.scope", "app-*.scope", "app-*.service", "snap.*.scope", "tmux-spawn-*.scope", "vte-spawn-*.scope",
    "screen-*.scope", "flatpak-*.scope",
))  # fmt: skip
"""Under a user: a login, a window, an editor with terminals in it. They must survive what was started from them."""
_CONTAINER = re.compile(r"(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?")
"""docker-ID.scope, ID (below /docker), libpod-ID.scope, cri-containerd-ID.scope, SLICE:cri-containerd:ID."""
_CONMON = re.compile(r".*conmon.*")
_USER_MANAGER = re.compile(r"user@([0-9]{1,10})\.service")
_LXC_PARENTS = ("lxc", "lxc.payload", "lxc.payloads")
_VIRTUAL_MACHINE = re.compile(r"machine-(?:qemu|vbox|xen|firecracker|cloud).*\.scope")
_UNIT = re.compile(r".+\.(service|scope|socket|mount|swap)")
_DELETED = " (deleted)"


@lru_cache(maxsize=4096)
def place_of(cgroup: str) -> Place:
    """Return what a cgroup's path, from the root of the hierarchy, belongs to."""
    parts = cgroup.removesuffix(_DELETED).split("/")[1:]
    owner: int | None = None
    above: Place | None = None
    for index, part in enumerate(parts):
        path = "/" + "/".join(parts[: index + 1])
        container = _container(path, part, parts[index - 1] if index else "", owner)
        if container is not None:
            return container
        if above is not None or part.endswith(".slice"):
            continue
        if not _all_slices(parts[:index], owner):
            continue
        manager = _USER_MANAGER.fullmatch(part) if owner is None else None
        if manager is not None:
            owner = int(manager[1])
        elif owner is None and _SYSTEM.fullmatch(part):
            above = Place(path, "unit", part, whole=False, never=f"belongs to the system: {part}")
        elif _UNIT.fullmatch(part):
            return _unit(path, part, owner)
    return above or Place(cgroup, "session", parts[-1] or "/", whole=False, owner=owner)


def _all_slices(parts: Iterable[str], owner: int | None) -> bool:
    """Say whether a manager put what follows there: others may create cgroups of any name in what is theirs."""
    return all(part.endswith(".slice") or (owner is not None and part == f"user@{owner}.service") for part in parts)


def _container(path: str, part: str, parent: str, owner: int | None) -> Place | None:
    found = _CONTAINER.fullmatch(part)
    if found and not _CONMON.fullmatch(part):
        return Place(path, "container", found[1][:12], whole=True, identity=found[1], owner=owner)
    machine = _machine(part, parent)
    return Place(path, "container", machine, whole=True, owner=owner) if machine and owner is None else None


def _machine(part: str, parent: str) -> str | None:
    """Return the name of a container that has a whole system in it (LXC, nspawn), None for anything else."""
    if part.startswith("lxc.payload.") or parent in _LXC_PARENTS:
        return part.removeprefix("lxc.payload.")
    if parent != "machine.slice":
        return None
    nspawn = re.fullmatch(r"systemd-nspawn@(.+)\.service", part)
    registered = None if _VIRTUAL_MACHINE.fullmatch(part) else re.fullmatch(r"machine-(.+)\.scope", part)
    found = nspawn or registered
    return found[1] if found else None


def _unit(path: str, part: str, owner: int | None) -> Place:
    if owner is None and _VIRTUAL_MACHINE.fullmatch(part):
        never = "a virtual machine: what runs in it is not seen"
        return Place(path, "scope", part, whole=False, never=never)
    in_people = path.startswith("/user.slice/")
    if (in_people and _SHELLS_IN.fullmatch(part)) or (owner is None and _STARTERS.fullmatch(part)):
        return Place(path, "session", part, whole=False, owner=owner)
    if owner is not None and part == "init.scope":
        return Place(path, "session", part, whole=False, owner=owner)
    kind = "scope" if part.endswith(".scope") else "unit"
    return Place(path, kind, part, whole=True, owner=owner)


def is_users_manager(place: Place) -> bool:
    """Say whether a user's own manager runs there; who put anything else there did it to be taken for that."""
    return place.owner is not None and place.name == "init.scope"


def printable(text: str) -> str:
    """Return a name that breaks no record and no terminal: nothing but printable characters, and not too long."""
    return texts.printable(text, MAX_SHOWN)
