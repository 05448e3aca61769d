"""Layer recovery (opt-in): a box that cannot be saved restarts by itself instead of waiting for a person."""

from plimsoll.controls.record import ManagerProperty, Sysctl, Why
from plimsoll.controls.values import Integer, Span

FILE = "/etc/sysctl.d/zz-plimsoll-recovery.conf"
_LOTTERY = (
    "On one box with this set there was no panic in freezes of 17 h 45, 5 h 55 and 5 h 32, but one on another "
    "night after 123 s: worth having, not a plan."
)


def _panic(key: str, reason: str, evidence: str) -> Sysctl:
    return Sysctl(
        id=f"recovery/{key}",
        target=key,
        file=FILE,
        default="1",
        value=Integer(0, 1),
        why=Why(
            reason=reason,
            evidence=evidence,
            source="public report of a GB10 box, September 2026; Linux 6.12",
            cost="Everything that runs is lost when it fires.",
            risk="False alarms: a slow GPU teardown, network file systems or slow disks block tasks for minutes.",
            skip_if="Unsaved work matters more than being reachable again, or the root disk asks for a passphrase.",
        ),
    )


CONTROLS = (
    _panic("kernel.hung_task_panic", "A task stuck in the kernel for two minutes ends in a restart.", _LOTTERY),
    _panic(
        "kernel.softlockup_panic",
        "A core that has not scheduled for 20 s ends in a restart.",
        "Reclaim reschedules, so a memory livelock does not trip it; driver faults do.",
    ),
    _panic(
        "kernel.panic_on_oops",
        "A kernel that has made a mistake restarts rather than going on with a lock held.",
        "An oops in a NIC tool was followed by stalls of every core.",
    ),
    Sysctl(
        id="recovery/kernel.panic",
        target="kernel.panic",
        file=FILE,
        default="20",
        value=Integer(1, 600, "seconds"),
        why=Why(
            reason="After a panic the kernel waits this long and restarts; 0, the default, waits for ever.",
            evidence="A forced crash restarts the virtual machine, and without this it stays down.",
            source="tested with sysrq c in a virtual machine",
            cost="None.",
            risk="A box that panics at every boot restarts in a loop.",
            skip_if="You read panics off the screen.",
        ),
    ),
    ManagerProperty(
        id="recovery/RuntimeWatchdogSec",
        target="system",
        section="Manager",
        name="RuntimeWatchdogSec",
        file="/etc/systemd/system.conf.d/plimsoll.conf",
        activation=(("daemon-reexec",), ("watchdog",)),
        default="60s",
        value=Span(10, 600),
        why=Why(
            reason="The hardware restarts the box when PID 1 has not answered for this long.",
            evidence="Frozen PID 1: the virtual machine restarts. It does not catch a livelock in which PID 1 lives: "
            "armed during two freezes of 17 h 45 and 5 h 55 it did not fire.",
            source="tested with QEMU's i6300esb; public report of a GB10 box, September 2026",
            cost="None.",
            risk="PID 1 can stall for tens of seconds under load. NVIDIA's package nvidia-sbsa-gwdt-options sets "
            "options of the same watchdog.",
            skip_if="The root disk asks for a passphrase, or another daemon owns the watchdog.",
        ),
    ),
)
