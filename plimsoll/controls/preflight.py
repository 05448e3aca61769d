"""What must hold before the first touch: a deploy that cannot end well does not begin. Pure."""

from collections.abc import Iterator

from plimsoll.box.model import State
from plimsoll.box.protections import version_numbers
from plimsoll.box.quantities import parse_bytes
from plimsoll.controls import earlyoom, guard, registry, slices, sshd, trims
from plimsoll.policy import KERNEL_RESERVE, Policy

MIN_SYSTEMD = 250
"""The first whose user managers know DefaultOOMScoreAdjust. Debian 12 has 252, Ubuntu 24.04 has 255."""
MASKS = "/etc/systemd/system"
"""Where `systemctl mask` puts its links; it refuses where a file has the name already."""
MAX_SHARE = {"kernel": 16, "slices": 4}
"""The kernel's reserve may be a 16th of MemTotal, since nobody else can ever use it; protected memory a 4th, since
it is only what its units use anyway. The defaults are 0.2 and 1.4 % of a 121.6 GiB box."""
CHANGES_AT_LEAST_BYTES = 4 << 20


KILLERS = {
    "systemd-oomd.service": "it acts on pressure and swap, and was never seen to stop such a wedge",
    "nohang.service": "it goes by MemAvailable and swap, as earlyoom does",
    "nohang-desktop.service": "it goes by MemAvailable and swap, as earlyoom does",
    "bustd.service": "it goes by free memory and pressure, and cannot see what a driver holds",
    "oomd.service": "it goes by pressure and swap, every 5 s by default",
}
"""Who else may shoot on a host -> what it goes by (each one's own source or manual page, 2026)."""


def problems(policy: Policy, state: State) -> list[str]:
    """Return what forbids a deploy to this host, each with what to do; empty if nothing does.

    Of a host that is none of ours to harden, only that is said: the rest would be guesswork.
    """
    return list(_platform(state)) or [*_memory(policy, state), *_layers(policy, state)]


def _platform(state: State) -> Iterator[str]:
    platform = state["platform"]
    if not platform["systemd_running"]:
        yield f"PID 1 is {platform['pid1']}, not systemd: this host cannot be hardened by unit settings"
        return
    if platform["container"]:
        yield f"this is a container ({platform['container']}): kernel settings belong to its host; deploy there"
    if not platform["cgroup2"]:
        yield "there is no cgroup v2 hierarchy: boot without systemd.unified_cgroup_hierarchy=0"
    if platform["euid"] != 0:
        yield "the state was read without root: log in as root, or as a user who may use sudo"
    version = version_numbers(state["manager"].get("Version", "").split(" ")[0])
    if version and version[0] < MIN_SYSTEMD:
        yield f"systemd {version[0]} is too old: {MIN_SYSTEMD} or later is needed"
    yield from _room(state)
    if "error" in state["ledger"]:
        yield str(state["ledger"]["error"])


def _room(state: State) -> Iterator[str]:
    for path, found in state["room"].items():
        if found.get("error"):
            yield f"{path}: {found['error']}"
        elif found["read_only"]:
            yield f"{path} is mounted read-only: nothing can be kept there; remount it, then deploy again"
        elif found["free_bytes"] < CHANGES_AT_LEAST_BYTES:
            yield f"{path} has {found['free_bytes']} bytes free, {CHANGES_AT_LEAST_BYTES} are needed: make room"


def _memory(policy: Policy, state: State) -> Iterator[str]:
    total_kib = state["platform"]["mem_total_kib"]
    if total_kib is None:
        yield "/proc/meminfo has no MemTotal: no line can be checked against it"
        return
    values = {c.id: v for c in registry.controls_for(policy) if (v := _value(policy, c.id, c.default)) is not None}
    taken = {KERNEL_RESERVE: int(values.get(KERNEL_RESERVE, 0)) << 10}
    taken |= {i: parse_bytes(v) or 0 for i, v in values.items() if i.startswith("slices/") and "login" not in i}
    for control, size in taken.items():
        share = MAX_SHARE[control.partition("/")[0]]
        limit = total_kib * 1024 // share
        if size > limit:
            yield (
                f"{control} of {size >> 20} MiB is more than 1/{share} of this host's {total_kib >> 10} MiB: "
                f"set it in the inventory, to {limit >> 20} MiB at most"
            )
    yield from _children(values, state)


def _value(policy: Policy, control: str, default: str) -> str | None:
    value = policy.values.get(control, default)
    return None if value is None else str(value)


def _children(values: dict[str, str], state: State) -> Iterator[str]:
    """A slice must have what its units are promised, or the kernel shares out the shortfall among them."""
    own = values.get("slices/system.slice:MemoryMin")
    if own is None:
        return
    login = len(slices.login_units_in_use(state)) * (parse_bytes(values.get("slices/login:MemoryMin", "0")) or 0)
    units = sum(parse_bytes(values.get(f"{layer}/MemoryMin", "0")) or 0 for layer in ("sshd", "journald", "guard"))
    if (parse_bytes(own) or 0) < login + units:
        yield (
            f"slices/system.slice:MemoryMin is {own}, but its units are promised {(login + units) >> 20} MiB: "
            "raise it, or lower theirs"
        )


def _layers(policy: Policy, state: State) -> Iterator[str]:
    if policy.layers.sshd and not sshd.own_unit(state):
        yield "there is neither ssh.service nor sshd.service: switch the layer sshd off for this host"
    if _socket_would_lose(policy, state):
        yield (
            f"{sshd.SOCKET} starts a daemon for each connection and stops when ssh.service starts: set "
            "sshd.retire_socket: true to hand over to the service, or sshd/running: null to leave it so"
        )
    for unit in _masked(policy, state):
        yield f"{unit} is masked on this host: unmask it (systemctl unmask {unit}), or switch its layer off"
    for unit in _unmaskable(policy, state):
        yield (
            f"trims: {unit} cannot be masked, its own file is where the mask would have to be ({MASKS}/{unit}): "
            "move it to /usr/local/lib/systemd/system, or take it off the list"
        )
    for what, off in _restarting(policy):
        if state["platform"]["encrypted_root"] is not False:
            yield (
                f"{what} restarts the box by itself, but /etc/crypttab asks for a passphrase at boot (or cannot be "
                f"read): the box would not come back; set up unattended unlocking, or {off}"
            )
    running = state["units"]["earlyoom.service"].get("show", {}).get("ActiveState") == "active"
    if policy.layers.earlyoom and not running and earlyoom.would_fire_at_once(policy, state):
        yield f"{earlyoom.describe_firing_point(policy, state)}: it would kill at once; free memory first"


def _restarting(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield what restarts the box by itself, and how it is switched off."""
    if policy.layers.recovery:
        yield "the layer recovery", "switch the layer off"
    if policy.layers.guard and policy.guard.last_resort:
        yield "guard.last_resort", "leave it out"


def _unmaskable(policy: Policy, state: State) -> list[str]:
    shown = {unit: state["units"][unit].get("show", {}) for unit in trims.units(policy)}
    own = [u for u, show in shown.items() if show.get("FragmentPath") == f"{MASKS}/{u}"]
    return [unit for unit in own if shown[unit].get("LoadState") != "masked"]


def _socket_would_lose(policy: Policy, state: State) -> bool:
    """Say whether starting sshd would take the listening socket away, which only the policy may ask for."""
    accepts = state["units"][sshd.SOCKET].get("show", {}).get("Accept") == "yes"
    wanted = policy.values.get("sshd/running", "") is not None and not policy.sshd.retire_socket
    return policy.layers.sshd and wanted and accepts and sshd.socket_is_active(state)


def _masked(policy: Policy, state: State) -> list[str]:
    candidates = {"sshd": sshd.own_unit(state), "earlyoom": [earlyoom.UNIT], "guard": guard.units(policy)}
    units = [u for layer, names in candidates.items() if registry.layer_is_on(layer, policy) for u in names]
    return [u for u in units if state["units"][u].get("show", {}).get("LoadState") == "masked"]


def notes(policy: Policy, state: State) -> list[str]:
    """Return what a person should know of this host that is nobody's fault: swap, killers, engines, socket."""
    return list(_notes(policy, state))


def _notes(policy: Policy, state: State) -> Iterator[str]:
    swaps = state["memory"]["swaps"]
    if swaps is not None:
        sizes = ", ".join(f"{s['path']} {s['size_kib'] / (1 << 20):.1f} GiB" for s in swaps)
        yield f"swap: {sizes or 'none'}"
    yield f"accounting regime {state['memory']['regime']}: {state['memory']['basis']}"
    yield from state["memory"]["inconsistencies"]
    if policy.layers.earlyoom:
        yield earlyoom.describe_firing_point(policy, state)
    if policy.layers.guard:
        yield from guard.notes(policy, state)
    for unit, remark in KILLERS.items():
        if state["units"].get(unit, {}).get("show", {}).get("ActiveState") == "active":
            yield f"another killer is active: {unit}; {remark}"
    if sshd.socket_is_active(state) and not policy.sshd.retire_socket:
        yield "ssh.socket listens and passes its connections on; it is left as it is (sshd.retire_socket retires it)"
    for layer in _left_behind(policy, state):
        yield f"the layer {layer} is off, but this host still has it: sudo plimsoll revert --layer {layer}"
    yield from (f"engine running: {e['comm']} (pid {e['pid']}) in {e['cgroup']}" for e in state["engines"])


def _left_behind(policy: Policy, state: State) -> list[str]:
    applied = set(state["ledger"]["files"].values())
    return [layer for layer in registry.LAYERS if layer in applied and not registry.layer_is_on(layer, policy)]
