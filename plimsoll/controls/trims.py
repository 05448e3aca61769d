"""Layer trims (opt-in list): units that a headless box does without. Stopped and masked, with their companions."""

from plimsoll.controls.record import UnitState, Why
from plimsoll.controls.values import Fixed
from plimsoll.policy import Policy

COMPANIONS = {
    "dgx-dashboard.service": ("dgx-dashboard-admin.service",),
    "cups.service": ("cups.socket", "cups.path", "cups-browsed.service"),
    "avahi-daemon.service": ("avahi-daemon.socket",),
    "fwupd.service": ("fwupd-refresh.timer", "fwupd-refresh.service"),
    "snapd.service": ("snapd.socket", "snapd.seeded.service"),
    "docker.service": ("docker.socket",),
    "bluetooth.service": ("dbus-org.bluez.service",),
    "apt-daily.service": ("apt-daily.timer",),
    "apt-daily-upgrade.service": ("apt-daily-upgrade.timer",),
}
"""A unit that is trimmed -> what would start it again: sockets, timers, and units that come by a D-Bus name."""
WHY = Why(
    reason="A service that nobody uses holds memory and may be what asks for the page that tips the box over. It is "
    "masked, not only disabled: a unit that is activated over D-Bus comes back otherwise.",
    evidence="NVIDIA's dashboard held about 380 MiB and was the process that invoked the OOM killer.",
    source="field reports from a DGX Spark and an ASUS Ascent GX10, 2026",
    cost="What the unit did.",
    risk="With the DGX dashboard's admin service off, the update check upgrades itself when asked whether there "
    "are updates. fwupd brings firmware, and Tailscale may be a snap: both stay unless they are named.",
    skip_if="You use what the unit does. The list is empty by default.",
)


def units(policy: Policy) -> list[str]:
    """Return the units of the policy's list with their companions, each once."""
    named = [unit for trim in policy.trims for unit in (trim, *COMPANIONS.get(trim, ()))]
    return list(dict.fromkeys(named))


def controls(policy: Policy) -> tuple[UnitState, ...]:
    """Return a control for every unit to be trimmed; a unit that a host does not have is ok there."""
    fixed = Fixed("masked inactive")
    return tuple(
        UnitState(id=f"trims/{unit}", target=unit, default=fixed.value, value=fixed, why=WHY) for unit in units(policy)
    )
