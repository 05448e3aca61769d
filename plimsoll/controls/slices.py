"""Layer slices: protection counts only as far as every ancestor has it, so the slices come before their units."""

from collections.abc import Mapping

from plimsoll.box.model import State
from plimsoll.controls.record import DROP_IN, UnitProperty, Why
from plimsoll.controls.values import Size

LOGIN_UNITS = (
    "dbus.service", "dbus-broker.service", "systemd-logind.service", "NetworkManager.service",
    "systemd-networkd.service", "wpa_supplicant.service", "rsyslog.service", "tailscaled.service",
    "snap.tailscale.tailscaled.service",
)  # fmt: skip
"""What a login over the network and the record of a night need besides sshd and journald."""


def login_units_in_use(state: State) -> list[str]:
    """Return those of LOGIN_UNITS that this host runs or starts at boot, each under its own name only.

    One that is stopped for a moment must not lose its drop-in to a deploy that comes by.
    """
    units = ((name, state["units"][name].get("show", {})) for name in LOGIN_UNITS)
    return [n for n, show in units if show.get("Id") == n and _is_in_use(show)]


def _is_in_use(show: Mapping[str, str]) -> bool:
    return show.get("ActiveState") == "active" or show.get("UnitFileState") == "enabled"


CONTROLS = (
    UnitProperty(
        id="slices/system.slice:MemoryMin",
        target="system.slice",
        section="Slice",
        name="MemoryMin",
        file=DROP_IN,
        default="768M",
        value=Size(),
        why=Why(
            reason="A unit's MemoryMin is worth nothing while the slice above it has 0, and on a stock system it has.",
            evidence="A unit with MemoryMin=64M and 60 MiB in use lost 9.6 MB to swap under a hog in another "
            "slice; with MemoryMin on system.slice it lost none.",
            source="Debian 13 virtual machine, kernel 6.12, systemd 257",
            cost="Nothing while idle: only memory that the units use is protected, at most this much.",
            risk="Set far above what the protected units use, the rest goes to other units of system.slice, "
            "containers included.",
            skip_if="Never without also dropping the units' own MemoryMin.",
        ),
    ),
    UnitProperty(
        id="slices/user.slice:MemoryLow",
        target="user.slice",
        section="Slice",
        name="MemoryLow",
        file=DROP_IN,
        default="1G",
        value=Size(),
        why=Why(
            reason="A shell that is logged in should stay usable: its pages are taken last.",
            evidence="Sessions live in user.slice, not below ssh.service, so sshd's protection does not reach them.",
            source="field report from an ASUS Ascent GX10, 2026",
            cost="Nothing while idle.",
            risk="A benchmark that was started from a shell shares the slice and takes most of the protection. "
            "Start long jobs with systemd-run --unit=NAME, which puts them into system.slice.",
            skip_if="Engines run from terminals on this box.",
        ),
    ),
    UnitProperty(
        id="slices/login:MemoryMin",
        target="dbus.service and others",
        targets=login_units_in_use,
        possible=LOGIN_UNITS,
        section="Service",
        name="MemoryMin",
        file=DROP_IN,
        default="32M",
        value=Size(),
        why=Why(
            reason="A login needs more than sshd: dbus and logind open the session, the network must answer, and "
            "rsyslog keeps the lines that the journal loses.",
            evidence="After a wedge /var/log/kern.log held lines that journald never wrote. Logins of two minutes "
            "were seen with sshd itself alive.",
            source="field report from an ASUS Ascent GX10, July 2026",
            cost="Nothing while idle; at most this much for each unit that is found.",
            risk="None known.",
            skip_if="Never, as far as is known.",
        ),
    ),
)
