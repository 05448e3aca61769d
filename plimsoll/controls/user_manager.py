"""Layer user_manager: what a terminal or a desktop starts is no longer the kernel's first choice."""

from plimsoll.controls.record import ManagerProperty, UnitProperty, Why
from plimsoll.controls.values import Fixed

_WHY_NOT_ANOTHER = "An engine that shall go first is better given a positive score of its own."

CONTROLS = (
    UnitProperty(
        id="user_manager/OOMScoreAdjust",
        target="user@.service",
        section="Service",
        name="OOMScoreAdjust",
        file="/etc/systemd/system/user@.service.d/plimsoll.conf",
        default="0",
        value=Fixed("0"),
        why=Why(
            reason="A user manager runs at 100 and, being unprivileged, cannot start anything below that.",
            evidence="With DefaultOOMScoreAdjust=0 alone `systemctl --user show` says 0 and a new process has 100.",
            source="Debian 13 virtual machine, systemd 257",
            cost="None.",
            risk=_WHY_NOT_ANOTHER,
            skip_if="Desktop programs shall die before the engine.",
        ),
    ),
    ManagerProperty(
        id="user_manager/DefaultOOMScoreAdjust",
        target="user",
        section="Manager",
        name="DefaultOOMScoreAdjust",
        file="/etc/systemd/user.conf.d/plimsoll.conf",
        activation=(("user-managers", "0"),),
        default="0",
        value=Fixed("0"),
        why=Why(
            reason="systemd gives what users start a score of 200, and system services 0: on a box that exists to "
            "serve a model, a model server started from a terminal is the first to go.",
            evidence="A llama-server with 31.7 GB of RSS and a score of 200 was killed at the request of a 28 MB "
            "vendor service; later an editor at 300 in its place.",
            source="field report from a DGX Spark, 2026",
            cost="None.",
            risk="What sets its own score (Electron programs use 300) keeps it. A process that is running keeps "
            f"its old one. {_WHY_NOT_ANOTHER}",
            skip_if="Desktop programs shall die before the engine.",
        ),
    ),
)
