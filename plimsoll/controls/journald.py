"""Layer journald: the minutes before a stall must reach the disk, and the writer must outlive the shooting."""

from plimsoll.controls.record import ManagerProperty, UnitProperty, Why
from plimsoll.controls.values import Integer, Size, Span

UNIT = "systemd-journald.service"
CONF = "/etc/systemd/journald.conf.d/plimsoll.conf"
DROP_IN = "/etc/systemd/system/{unit}.d/plimsoll.conf"
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
    UnitProperty(
        id="journald/CPUWeight",
        target=UNIT,
        section="Service",
        name="CPUWeight",
        file=DROP_IN,
        default="1000",
        value=Integer(1, 10000),
        why=Why(
            reason="When every core is in reclaim, ten times the share of a normal unit.",
            evidence="99.5 % system time was measured during a wedge.",
            source="public report of a GB10 box, September 2026",
            cost="None while there is idle time.",
            risk="None known.",
            skip_if="Never, as far as is known.",
        ),
    ),
    UnitProperty(
        id="journald/IOWeight",
        target=UNIT,
        section="Service",
        name="IOWeight",
        file=DROP_IN,
        default="1000",
        value=Integer(1, 10000),
        why=Why(
            reason="Its writes go before those of a swap storm, where the disk's scheduler knows weights.",
            evidence="A kernel without an I/O cost model or BFQ has no io.weight; the control is then unsupported.",
            source="Documentation/admin-guide/cgroup-v2.rst",
            cost="None while the disk is idle.",
            risk="None known.",
            skip_if="Never, as far as is known.",
        ),
    ),
)
