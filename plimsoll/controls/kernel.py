"""Layer kernel: the reserve that keeps the kernel able to move, and what it says when it cannot."""

from plimsoll.box.model import State
from plimsoll.controls.record import Sysctl, Why
from plimsoll.controls.values import Integer
from plimsoll.policy import Policy

FILE = "/etc/sysctl.d/zz-plimsoll.conf"
"""Sorts after every file that begins with a digit, 99-sysctl.conf included, which is what systemd-sysctl goes by."""


def _never_below_the_kernels_own(value: str, policy: Policy, state: State) -> str:
    """Return the larger of the policy's reserve and what the kernel chose for this machine, in KiB."""
    del policy
    own = state["ledger"]["sysctls"].get("vm.min_free_kbytes") or state["sysctl"]["vm.min_free_kbytes"].get("value")
    return str(max(int(value), int(own or 0)))


CONTROLS = (
    Sysctl(
        id="kernel/vm.min_free_kbytes",
        target="vm.min_free_kbytes",
        file=FILE,
        default="262144",
        value=Integer(1024, 4 << 20, "KiB"),
        choose=_never_below_the_kernels_own,
        why=Why(
            reason="The kernel keeps this much free for allocations that cannot wait. At its own choice, 45 MB on "
            "a 121.6 GiB box, network and disk have almost nothing left once the driver has taken the rest.",
            evidence="A box that stopped answering reported free:41640kB min:44924kB. With 256 MiB the reserve "
            "was not touched in over-commit tests; MemFree stayed at 3.6 GiB.",
            source="field report from an ASUS Ascent GX10, driver 595, July and October 2026",
            cost="About 0.2 GiB that models cannot have. 1 GiB cost 1.2 GiB of MemAvailable in the same tests.",
            risk="vLLM compares free memory with its share of the total before it loads: 4 GiB lowered "
            "MemAvailable by 6.2 GiB and made that check fail. The value is never set below the kernel's own.",
            skip_if="You already reserve more, or a model needs the last 0.2 GiB.",
        ),
    ),
    Sysctl(
        id="kernel/vm.watermark_boost_factor",
        target="vm.watermark_boost_factor",
        file=FILE,
        default="0",
        value=Integer(0, 15000),
        why=Why(
            reason="After fragmentation the kernel raises its watermarks for a while and evicts page cache, which "
            "on these boxes is the mapped model weights.",
            evidence="The default of 15000 allows a boost to 1.5 times the high watermark; with a large reserve "
            "that is gigabytes. Evicted weights are read from disk again.",
            source="Documentation/admin-guide/sysctl/vm.rst; field reports of 2026",
            cost="None measured.",
            risk="Large contiguous allocations may fail a little more often.",
            skip_if="You need transparent huge pages more than page cache.",
        ),
    ),
    Sysctl(
        id="kernel/kernel.sysrq",
        target="kernel.sysrq",
        file=FILE,
        default="1",
        value=Integer(0, 511),
        why=Why(
            reason="All of sysrq: from a shell or console that still works, a memory report (m), a manual OOM "
            "kill (f) or a reboot (s, u, b) needs no new process.",
            evidence="Debian's default of 438 leaves out the dumps (bit 8) and the signals (bit 64), which the "
            "manual OOM kill is one of.",
            source="Documentation/admin-guide/sysrq.rst; Debian 13, kernel 6.12",
            cost="None.",
            risk="Whoever sits at the keyboard or serial console can reboot without a login.",
            skip_if="Strangers have access to the console.",
        ),
    ),
    Sysctl(
        id="kernel/kernel.hung_task_timeout_secs",
        target="kernel.hung_task_timeout_secs",
        file=FILE,
        default="120",
        value=Integer(30, 3600, "seconds"),
        why=Why(
            reason="A task that is stuck in the kernel this long is reported, with who holds the lock.",
            evidence="In every wedge with a surviving log these lines named the blocked tasks, at 122, 245 and "
            "368 s; the driver's owner of the lock is in them.",
            source="public kernel logs of GB10 boxes, 2026",
            cost="None.",
            risk="With the recovery layer the same time-out leads to a panic.",
            skip_if="Slow network file systems block tasks for minutes in normal work.",
        ),
    ),
    Sysctl(
        id="kernel/kernel.hung_task_warnings",
        target="kernel.hung_task_warnings",
        file=FILE,
        default="-1",
        value=Integer(-1, 1_000_000),
        why=Why(
            reason="The kernel stops reporting hung tasks after ten. A wedge uses them up in its first minutes.",
            evidence="kernel/hung_task.c counts down from 10 and is silent from then on until a reboot.",
            source="Linux 6.12, kernel/hung_task.c",
            cost="Log lines during a stall.",
            risk="A task that hangs for ever fills the log by one report every two minutes.",
            skip_if="Never, as far as is known.",
        ),
    ),
)
