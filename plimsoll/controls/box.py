"""Layer box: the program itself, what is wanted of this host as data, and the box's own checks of it."""

from plimsoll.box import model
from plimsoll.controls.record import UnitState, Why
from plimsoll.controls.values import Fixed

PROGRAM = model.PROGRAM
WRAPPER = "/usr/local/bin/plimsoll"
WANTED = "/etc/plimsoll/wanted.json"
UNITS = ("plimsoll-verify.service", "plimsoll-verify.timer", "plimsoll-verify.path", "plimsoll-serve@.service")
UNIT_DIRECTORY = "/etc/systemd/system"


def _watch(unit: str, reason: str) -> UnitState:
    return UnitState(
        id=f"box/{unit}",
        target=unit,
        default="enabled active",
        value=Fixed("enabled active"),
        why=Why(
            reason=reason,
            evidence="Settings were lost to package upgrades and reboots and found missing after the next freeze.",
            source="public reports of 2026",
            cost="A check takes about a second of one core.",
            risk="None: it reads, and tells whom the policy names.",
            skip_if="An audit from outside runs more often.",
        ),
    )


CONTROLS = (
    _watch("plimsoll-verify.timer", "The box judges itself two minutes after boot and once a day."),
    _watch("plimsoll-verify.path", "The box judges itself after every change of its packages."),
)
