"""Whether this host did anything else while a machine was measured."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from lab.errors import GuestError
from lab.progress import Progress

BUSY_SHARE = 0.15
"""Of all cores. One test run beside a machine takes half of two cores; an idle desktop takes a few hundredths."""
STOLEN_SHARE = 0.05
"""Of all cores: what a hypervisor above this host gave to somebody else."""
LOOK_S = 3.0
HERTZ = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of all cores since the boot: in all, busy, stolen, and busy with what belongs to the bench."""

    total_s: float
    busy_s: float
    stolen_s: float
    own_s: float


class Load(NamedTuple):
    """Shares of all cores between two looks."""

    foreign: float
    stolen: float

    def complaint(self) -> str:
        """Why a measurement under this load does not count; empty where it does."""
        if self.foreign > BUSY_SHARE:
            return f"this host was busy with other work: {self.foreign:.0%} of its cores"
        if self.stolen > STOLEN_SHARE:
            return f"this host did not get its cores: {self.stolen:.0%} were given to others"
        return ""


def parse_stat(text: str) -> tuple[float, float, float]:
    """Total, busy and stolen seconds of the first line of /proc/stat."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1:9]]
    idle, stolen = ticks[3] + ticks[4], ticks[7]
    return sum(ticks) / HERTZ, (sum(ticks) - idle - stolen) / HERTZ, stolen / HERTZ


def parse_process(text: str) -> float:
    """Seconds that a process has run, by its /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def usage(qemu_pid: int | None) -> Usage:
    """What the cores have done until now; everything of this process and its children is the bench's.

    Raises GuestError when the machine's QEMU has ended.
    """
    total_s, busy_s, stolen_s = parse_stat(Path("/proc/stat").read_text())
    own_s = sum(os.times()[:4])
    if qemu_pid is not None:
        try:
            own_s += parse_process(Path(f"/proc/{qemu_pid}/stat").read_text())
        except FileNotFoundError:
            raise GuestError(f"QEMU has ended (pid {qemu_pid})") from None
    return Usage(total_s, busy_s, stolen_s, own_s)


def between(before: Usage, after: Usage) -> Load:
    """The load between two looks."""
    total_s = max(after.total_s - before.total_s, 1 / HERTZ)
    foreign_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    return Load(max(0.0, foreign_s / total_s), (after.stolen_s - before.stolen_s) / total_s)


def await_quiet(timeout_s: float, progress: Progress) -> Load:
    """Wait until the host does nothing else; returns the last load, quiet or not."""
    deadline_s = time.monotonic() + timeout_s
    told = False
    while True:
        before = usage(None)
        time.sleep(LOOK_S)
        load = between(before, usage(None))
        if not load.complaint() or time.monotonic() >= deadline_s:
            return load
        if not told:
            progress.say(f"waiting: {load.complaint()}")
        told = True
