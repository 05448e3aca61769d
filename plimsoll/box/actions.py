"""The steps that change a running system beyond its files. Each says first what it is going to overwrite.

An action is a name and string arguments, so that a plan is plain data. `observe` returns the ledger
entries for what an action touches; `perform` acts, and raises ActionError with what to do.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box import files, ledger, managers
from plimsoll.box.errors import BoxError
from plimsoll.box.host import Host
from plimsoll.box.model import PROGRAM
from plimsoll.box.resolve_sysctl import sysctl_key

LOCK_TIMEOUT_S = 120
"""How long apt waits for another package manager; an unattended upgrade of a few packages takes less."""
SSHD_UNITS = ("ssh.service", "sshd.service")
SSHD_SOCKET = "ssh.socket"
NEVER_MOVED = re.compile(r"(lib)?nvidia|linux-(image|headers|modules|nvidia)|cuda|dgx|mlnx|doca")
"""Installing a small daemon must not drag a driver, a kernel or NVIDIA's own kit to another version."""


class ActionError(BoxError):
    """A step failed; the message says which, why, and what to do."""


class Pending(Exception):  # noqa: N818  # not an error: the step can be done later
    """A step cannot be done now and may succeed later; the rest of the layer waits for it."""


Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Action:
    """How one action is observed and performed; `order` is its place among the actions of a plan."""

    order: int
    perform: Callable[..., str]
    observe: Callable[..., Entries] = lambda _host, *_args: []


def _must(host: Host, *argv: str, timeout_s: float = 90) -> str:
    ran = host.run(*argv, timeout_s=timeout_s)
    if ran.code != 0:
        raise ActionError(f"{' '.join(argv)}: {ran.problem}")
    return ran.out


# --- values in the kernel ---------------------------------------------------------------------------


def _write_value(host: Host, path: str, value: str) -> None:
    try:
        with open(host.path(path), "w", encoding="ascii") as file:
            file.write(value)
    except OSError as error:
        raise ActionError(f"{path}: writing {value}: {error.strerror}") from error


def _observe_sysctl(host: Host, key: str, _value: str) -> Entries:
    old = host.text_or_none(f"/proc/sys/{sysctl_key(key)}")
    return [{"kind": "sysctl", "key": key, "old": old}] if old is not None else []


def _sysctl(host: Host, key: str, value: str) -> str:
    _write_value(host, f"/proc/sys/{sysctl_key(key)}", value)
    return f"{key} = {value}"


def _observe_cgroup(host: Host, path: str, _value: str) -> Entries:
    old = host.text_or_none(path)
    return [{"kind": "cgroup", "key": path, "old": old.split()[-1] if old else None}]


def _cgroup(host: Host, path: str, value: str) -> str:
    """Write a cgroup file, switching its controller on down the path where systemd has not needed it so far."""
    directory, name = os.path.split(path)
    if not host.exists(path):
        _enable_controller(host, directory, name.partition(".")[0])
    if not host.exists(path):
        return f"this kernel has no {name}: left out"
    _write_value(host, path, value)
    return f"{path} = {value}"


def _enable_controller(host: Host, directory: str, controller: str) -> None:
    parts = directory.removeprefix("/sys/fs/cgroup").strip("/").split("/")
    for depth in range(len(parts)):
        parent = "/".join(["/sys/fs/cgroup", *parts[:depth]])
        if controller not in (host.text_or_none(f"{parent}/cgroup.subtree_control") or "").split():
            _write_value(host, f"{parent}/cgroup.subtree_control", f"+{controller}")


# --- units ------------------------------------------------------------------------------------------


def unit_state(host: Host, unit: str) -> dict[str, str]:
    """Return `{enablement, activity}` of a unit as systemd names them, empty strings where it does not know it.

    Raises ActionError if systemd does not answer: what cannot be seen must not be recorded as absent.
    """
    out = _must(host, "systemctl", "show", "-p", "UnitFileState,ActiveState,LoadState", "--", unit)
    found = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return {"enablement": found.get("UnitFileState", ""), "activity": found.get("ActiveState", "")}


def _observe_unit(host: Host, unit: str) -> Entries:
    return [{"kind": "unit", "key": unit, "old": unit_state(host, unit)}]


def _systemctl(verb: str, *options: str) -> Callable[..., str]:
    def perform(host: Host, *units: str) -> str:
        _must(host, "systemctl", verb, *options, *units)
        return f"systemctl {verb} {' '.join(units)}".strip()

    return perform


def _enable(host: Host, unit: str) -> str:
    """Enable a unit that its package has not enabled already.

    The reload after the files of a layer has come before. Without --no-reload another follows, and two more where the
    unit has a script in /etc/init.d (each takes 4 s under emulation).
    """
    if unit_state(host, unit)["enablement"] == "enabled":
        return f"{unit} is enabled"
    return _systemctl("enable", "--no-reload")(host, unit)


BOOT_LINKS = "/etc/systemd/system/multi-user.target.wants"


def _boot_link(host: Host, unit: str) -> tuple[str, str]:
    fragment = _must(host, "systemctl", "show", "-p", "FragmentPath", "--", unit).partition("=")[2].strip()
    if not fragment:
        raise ActionError(f"{unit} has no unit file: it cannot be started at boot")
    return f"{BOOT_LINKS}/{unit}", fragment


def _observe_boot_link(host: Host, unit: str) -> Entries:
    path, fragment = _boot_link(host, unit)
    old = ledger.observe_file(host, path)
    return [{"kind": "link", "key": path, "old": old, "ours": [f"link to {fragment}"], "after": ["daemon-reload"]}]


def _start_at_boot(host: Host, unit: str) -> str:
    """Have a unit started at boot by the link alone that `systemctl enable` makes, without its aliases.

    Enabling ssh.service makes the alias sshd.service too. Where another unit names that one, systemd has it
    loaded as not found, and loses the running daemon with the next reload: its listener stays, a second one
    is started beside it (seen with systemd 257 and Ubuntu's arrangement).
    """
    path, fragment = _boot_link(host, unit)
    files.make_directories(host.path(BOOT_LINKS))
    if not os.path.lexists(host.path(path)):
        os.symlink(fragment, host.path(path))
        files.sync_directory(host.path(BOOT_LINKS))
    _must(host, "systemctl", "daemon-reload")
    return f"{unit} is started at boot"


def set_unit(host: Host, unit: str, verbs: Sequence[str]) -> None:
    """Carry out systemctl verbs on a unit; never leaves sshd with nobody who listens. Raises ActionError."""
    for verb in verbs:
        if (verb, unit.endswith(".socket")) == ("start", True):
            _start_socket(host, unit)
            continue
        if verb == "stop" and unit in SSHD_UNITS and unit_state(host, SSHD_SOCKET)["activity"] != "active":
            raise ActionError(f"{unit} is left running: {SSHD_SOCKET} does not listen, so that no login would work")
        _must(host, "systemctl", verb, "--", unit)


def retire_unit(host: Host, unit: str, verbs: Sequence[str]) -> None:
    """Carry out verbs on a unit that goes for good, and clear what systemd remembers of it; raises ActionError."""
    triggers = host.run("systemctl", "show", "-p", "Triggers", "--value", "--", unit).out.split()
    set_unit(host, unit, verbs)
    for service in triggers:
        host.run("systemctl", "stop", "--", service)
        host.run("systemctl", "reset-failed", "--", service)
    # a persistent timer keeps a stamp of its last run, a daemon of ours what it has learnt; records stay
    host.run("systemctl", "clean", "--what=state", "--", unit)


def _start_socket(host: Host, socket: str) -> None:
    """Start a socket whose service holds the port: the service stops for that moment, and runs again afterwards."""
    triggers = _must(host, "systemctl", "show", "-p", "Triggers", "--value", "--", socket).split()
    running = [service for service in triggers if unit_state(host, service)["activity"] == "active"]
    if set(running) & set(SSHD_UNITS):
        _sshd_check(host)
    for service in running:
        _must(host, "systemctl", "stop", "--", service)
    try:
        _must(host, "systemctl", "start", "--", socket)
    finally:
        for service in running:
            _must(host, "systemctl", "start", "--", service)


def _sshd_program(host: Host) -> str:
    # Without its run directory, which a stopped unit has taken away, sshd refuses even to check.
    os.makedirs(host.path("/run/sshd"), mode=0o755, exist_ok=True)
    return next((p for p in ("/usr/sbin/sshd", "/usr/bin/sshd") if host.exists(p)), "sshd")


def _sshd_check(host: Host) -> str:
    """Refuse to go on with a configuration that sshd would not start with: the next login would find nobody."""
    ran = host.run(_sshd_program(host), "-t")
    if ran.code != 0:
        raise ActionError(f"sshd -t refuses the configuration: {ran.problem}. Repair it; sshd was not restarted.")
    return "sshd -t: the configuration is valid"


def listening_ports(lines: str) -> set[str]:
    """Return the ports of `Listen` lines of systemctl (`[::]:22 (Stream)`) or of `sshd -T` (`port 22`)."""
    sockets = re.findall(r":(\d+) \(Stream\)|^(\d+) \(Stream\)", lines, re.MULTILINE)
    daemons = re.findall(r"^port (\d+)$", lines, re.MULTILINE)
    return {port for pair in sockets for port in pair if port} | set(daemons)


def _observe_retire(host: Host, socket: str, service: str) -> Entries:
    return [*_observe_unit(host, socket), *_observe_unit(host, service)]


def _retire_socket(host: Host, socket: str, service: str) -> str:
    """Hand the port over from the socket to the daemon, in the order that Ubuntu's links demand.

    Disabling removes the link by which the service requires the socket, daemon-reload makes systemd forget
    it; only then can the socket be stopped without taking sshd along.
    """
    of_socket = listening_ports(_must(host, "systemctl", "show", "-p", "Listen", "--value", socket))
    of_daemon = listening_ports(_must(host, _sshd_program(host), "-T"))
    if not of_socket <= of_daemon:
        only = ", ".join(sorted(of_socket - of_daemon))
        raise ActionError(
            f"{socket} listens on port {only}, which sshd_config does not have; nothing was changed. Add "
            f"`Port {only}` to a file in /etc/ssh/sshd_config.d, or leave the socket (sshd.retire_socket: false)."
        )
    steps = (("disable", socket), ("daemon-reload",), ("start", service), ("stop", socket), ("restart", service))
    for step in steps:
        _must(host, "systemctl", *step)
    return f"{service} listens on port {', '.join(sorted(of_daemon))} by itself; {socket} is retired"


# --- packages ---------------------------------------------------------------------------------------


ABSENT = "absent"
CONFIGURATION_ONLY = "config-files"
"""dpkg's word for a package that was removed and not purged."""


def package_status(host: Host, package: str) -> str:
    """Return dpkg's status of a package (`installed`, `config-files`, `half-configured`, …), or `absent`."""
    ran = host.run("dpkg-query", "-W", "-f", "${db:Status-Status}", package)
    return ran.out if ran.code == 0 and ran.out != "not-installed" else ABSENT


def _observe_install(host: Host, package: str) -> Entries:
    status = package_status(host, package)
    return [{"kind": "package", "key": package, "old": status}] if status in (ABSENT, CONFIGURATION_ONLY) else []


def moved_packages(simulation: str) -> list[str]:
    """Return the packages that an `apt-get --simulate` run would install, upgrade or remove."""
    return re.findall(r"^(?:Inst|Remv) (\S+)", simulation, re.MULTILINE)


def _apt(host: Host, *arguments: str, timeout_s: float = LOCK_TIMEOUT_S + 480) -> Any:  # noqa: ANN401  # Ran
    options = ("-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}", "-o", "Dpkg::Options::=--force-confold")
    environment = {**host.environment, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}
    quiet = dataclasses.replace(host, environment=environment)
    return quiet.run("apt-get", "-qq", *options, "--no-install-recommends", *arguments, timeout_s=timeout_s)


def _fetch(host: Host, package: str) -> str:
    """Download a package and what it needs; raises Pending where no source can be reached.

    Nothing of its layer is written before this has worked.
    """
    simulated = _apt(host, "--simulate", "install", package)
    if simulated.code != 0:
        _apt(host, "update", timeout_s=180)
        simulated = _apt(host, "--simulate", "install", package)
    if simulated.code != 0:
        raise Pending(f"the package {package} is not to be had: {simulated.problem}")
    unwanted = [p for p in moved_packages(simulated.out) if NEVER_MOVED.match(p)]
    if unwanted:
        raise ActionError(f"installing {package} would also change {', '.join(unwanted)}: refused")
    done = _apt(host, "--download-only", "-y", "install", package)
    if done.code != 0:
        raise Pending(f"the package {package} could not be fetched: {done.problem}")
    return f"fetched {package}"


def _install(host: Host, package: str) -> str:
    done = _apt(host, "-y", "install", package)
    if "Could not get lock" in done.err:
        raise Pending(f"another package manager is at work: {done.problem}")
    if done.code != 0:
        raise ActionError(f"the package {package} was fetched but could not be installed: {done.problem}")
    return f"installed {package}"


def remove_package(host: Host, package: str, old: str) -> str:
    """Remove a package that we installed, its configuration included if there was none before.

    Raises ActionError if more would go.
    """
    verb = "purge" if old == ABSENT else "remove"
    ran = _apt(host, "--simulate", verb, package)
    others = [p for p in moved_packages(ran.out.replace("Purg ", "Remv ")) if p != package]
    if ran.code == 0 and not others:
        ran = _apt(host, "-y", verb, package)
    if ran.code != 0 or others:
        why = f"{', '.join(others)} would be removed too" if others else ran.problem
        raise ActionError(f"the package {package} was not removed: {why}")
    return f"removed the package {package}"


def _initramfs(host: Host) -> str:
    _must(host, "update-initramfs", "-u", timeout_s=540)
    return "rebuilt the initramfs"


def _watchdog(host: Host) -> str:
    """Take back what somebody told the running manager over D-Bus, which it keeps even through daemon-reexec."""
    path, interface = "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"
    _must(
        host,
        "busctl",
        "set-property",
        "org.freedesktop.systemd1",
        path,
        interface,
        "RuntimeWatchdogUSec",
        "t",
        _INFINITY,
    )
    return "the watchdog runs with its configured time"


_INFINITY = str(2**64 - 1)
"""systemd's word for no value of its own: the configured one counts (seen with 257)."""


HAND_OVER_TIMEOUT_S = 120
"""A successor is made ready first, and waits until nobody is being stopped: 80 s at the most."""


def _renew(host: Host, unit: str) -> str:
    """Have a unit of ours that runs go by its new file; one that does not, or is not there any more, need not."""
    if unit_state(host, unit)["activity"] != "active":
        return f"{unit} does not run: nothing to restart"
    _must(host, "systemctl", "restart", "--", unit)
    return f"systemctl restart {unit}"


def _hand_over(host: Host, unit: str) -> str:
    """Have a running daemon of ours read its configuration anew, or be followed by its new version, without a gap."""
    if unit_state(host, unit)["activity"] != "active":
        return f"{unit} does not run: nothing to hand over"
    ran = host.run("systemctl", "reload", "--", unit, timeout_s=HAND_OVER_TIMEOUT_S)
    if ran.code == 0:
        return f"systemctl reload {unit}"
    _must(host, "systemctl", "restart", "--", unit)
    return f"systemctl restart {unit}, since reload failed: {ran.problem}"


PYTHON = "/usr/bin/python3"
"""The one that the installed program runs with, whichever one runs this."""


def _precompile(host: Host) -> str:
    """Keep the installed program compiled; where it was taken away, nothing. Without that it only starts slower."""
    if not host.exists(PROGRAM):
        from plimsoll.box import compiled  # noqa: PLC0415  # 10 ms, which no other action needs

        return compiled.forget(host)
    ran = host.run(PYTHON, "-I", PROGRAM, "precompile", timeout_s=300)
    return ran.out.strip() if ran.code == 0 else f"the program is not kept compiled and starts slower: {ran.problem}"


def _user_managers(host: Host, score: str) -> str:
    return managers.apply_score(host, int(score))


ACTIONS: dict[str, Action] = {
    "fetch": Action(0, _fetch),
    "install": Action(1, _install, _observe_install),
    "sysctl": Action(2, _sysctl, _observe_sysctl),
    "precompile": Action(3, _precompile),
    "daemon-reload": Action(3, _systemctl("daemon-reload")),
    "cgroup": Action(4, _cgroup, _observe_cgroup),
    "daemon-reexec": Action(5, _systemctl("daemon-reexec")),
    "watchdog": Action(6, _watchdog),
    "sshd-check": Action(6, _sshd_check),
    "retire-socket": Action(6, _retire_socket, _observe_retire),
    "disable": Action(7, _systemctl("disable"), _observe_unit),
    "start-at-boot": Action(7, _start_at_boot, _observe_boot_link),
    "enable": Action(8, _enable, _observe_unit),
    "stop": Action(9, _systemctl("stop"), _observe_unit),
    "mask": Action(10, _systemctl("mask"), _observe_unit),
    # before a start: what is only then started goes by its files anyway
    "renew": Action(10, _renew),
    "hand-over": Action(10, _hand_over),
    "start": Action(11, _systemctl("start"), _observe_unit),
    "restart": Action(12, _systemctl("restart")),
    "try-restart": Action(13, _systemctl("try-restart")),
    "user-managers": Action(14, _user_managers),
    "initramfs": Action(15, _initramfs),
}
"""Every action by its name; the number is its place among those of one plan."""


def known(action: Sequence[str]) -> Action:
    """Return what an action of a plan stands for; raises ActionError for a name that this version does not know."""
    if not action or action[0] not in ACTIONS:
        raise ActionError(f"unknown action {list(action)}: this plimsoll is older than the plan; deploy again")
    return ACTIONS[action[0]]
