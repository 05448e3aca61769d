"""Layer journald: the minutes before a stall must reach the disk, and the writer must outlive the shooting."""

from plimsoll.controls.record import DROP_IN, ManagerProperty, UnitProperty, Why
from plimsoll.controls.values import Integer, Size, Span
from plimsoll.controls.weights import weights

UNIT = "systemd-journald.service"
CONF = "/etc/systemd/journald.conf.d/plimsoll.conf"
RESTART = (("restart", UNIT),)

CONTROLS = (
    ManagerProperty(
        id="journald/SyncIntervalSec",
        target="journald",
        section="Journal",
        name="SyncIntervalSec",
        file=CONF,
        activation=RESTART,
        default="5s",
        value=Span(1, 300),
        why=Why(
            reason="journald syncs every five minutes, and a power cycle loses what came since. The minutes "
            "before a wedge are the ones that explain it.",
            evidence="With the default a journal ended 39 minutes before the power was cut. With 5 s a line "
            "written 6 s before a hard reset is there afterwards.",
            source="field report of July 2026; tested with a reset in a virtual machine",
            cost="One fsync of the journal every 5 s while something is logged.",
            risk="More writes on a worn disk.",
            skip_if="The journal lies on slow flash.",
        ),
    ),
    ManagerProperty(
        id="journald/SystemMaxUse",
        target="journald",
        section="Journal",
        name="SystemMaxUse",
        file=CONF,
        activation=RESTART,
        default="2G",
        value=Size(),
        why=Why(
            reason="A night of driver errors must neither fill the disk nor push out the boots before it.",
            evidence="920 driver lines in one minute were seen; 4,286 in three weeks on a healthy box.",
            source="public reports of 2026",
            cost="Up to 2 GiB of disk.",
            risk="Older entries go when the cap is reached.",
            skip_if="You keep more on purpose.",
        ),
    ),
    UnitProperty(
        id="journald/OOMScoreAdjust",
        target=UNIT,
        section="Service",
        name="OOMScoreAdjust",
        file=DROP_IN,
        restarts=True,
        default="-1000",
        value=Integer(-1000, 0),
        why=Why(
            reason="The writer of the evidence must not be the victim.",
            evidence="The OOM killer took dbus-daemon, pipewire and wireplumber one after the other while the engine "
            "that held 100 GB showed 32 MB of RSS.",
            source="field report from an ASUS Ascent GX10, July 2026",
            cost="None: journald uses tens of MiB.",
            risk="None known.",
            skip_if="Never, as far as is known.",
        ),
    ),
    UnitProperty(
        id="journald/MemoryMin",
        target=UNIT,
        section="Service",
        name="MemoryMin",
        file=DROP_IN,
        default="256M",
        value=Size(),
        why=Why(
            reason="journald must not wait for its own pages to come back from disk.",
            evidence="In a wedge the journal fell silent first, while rsyslog still wrote.",
            source="field report from an ASUS Ascent GX10, July 2026",
            cost="Nothing while idle.",
            risk="None known.",
            skip_if="Never, as far as is known.",
        ),
    ),
    *weights("journald", UNIT, "Its writing goes on while every core is in reclaim.", "None known."),
)
