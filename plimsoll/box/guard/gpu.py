"""What the driver holds, and for whom: asked of nvidia-smi in advance, and computed from /proc/meminfo. Edge and core.

nvidia-smi was seen blocked for 491 to 737 s while a box was stuck. So it is asked in peace time, one at a time, and
what it last said is kept.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.box.guard import spawn
from plimsoll.box.guard.worker import Worker
from plimsoll.box.host import Ran

_QUESTION = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
QUERY = ("/bin/sh", "-c", f"exec {_QUESTION} 2>/dev/null")
"""Without its warnings, which would stand among the answers."""
TIMEOUT_S = 10.0
_KIB_PER_MIB = 1 << 10
_BUCKETS = (
    "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable", "SUnreclaim", "KernelStack",
    "PageTables", "SecPageTables", "Percpu", "Bounce",
)  # fmt: skip
"""What of memory the kernel tells the use of. KReclaimable is not among them: it may hold the driver's memory."""
_NEEDED = ("MemTotal", "MemFree", "Cached", "AnonPages", "SReclaimable", "SUnreclaim")


@dataclass(frozen=True)
class Told:
    """What nvidia-smi last said: KiB by process, None where it does not say how much; and when it was asked."""

    by_pid: Mapping[int, int | None] | None = None
    """None: it was never answered."""
    asked_s: float = 0.0
    problem: str | None = None
    """Why there is no newer answer."""


class AnswerError(ValueError):
    """What nvidia-smi printed is no list of processes."""


def parse(text: str) -> dict[int, int | None]:
    """Return KiB by process; what is in brackets ([N/A], [Insufficient Permissions]) is unknown, and is not 0.

    Raises AnswerError for anything that is no list. A process that is listed more than once has the sum.
    """
    found: dict[int, int | None] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("No running processes"):
            continue
        pid, comma, amount = line.partition(",")
        if not comma or not pid.strip().isdecimal() or len(pid.strip()) > 10:  # noqa: PLR2004  # pid_max has 7 digits
            raise AnswerError(f"not a process and its memory: {line[:80]!r}")
        number, kib = int(pid), _kib(amount.strip())
        before = found.get(number, 0)
        found[number] = None if kib is None or before is None else before + kib
    return found


def _kib(amount: str) -> int | None:
    if amount.isdecimal() and len(amount) <= 12:  # noqa: PLR2004  # MiB: no machine has more
        return int(amount) * _KIB_PER_MIB
    if amount.startswith("[") and amount.endswith("]"):
        return None
    raise AnswerError(f"not an amount: {amount[:80]!r}")


class Asking:
    """Asks nvidia-smi in a thread of its own, one question at a time; nothing here waits."""

    def __init__(self, command: Sequence[str] = QUERY, timeout_s: float = TIMEOUT_S) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._worker: Worker[float] = Worker("nvidia-smi", self._answer, limit=1)
        self._is_busy = False
        self._stuck = 0
        """How many children had been given up when the last question was; 0: it was answered, or has ended."""
        self.told = Told()
        """What is known now."""

    def start(self) -> None:
        """Start the thread that asks."""
        self._worker.start()

    def ask(self) -> bool:
        """Ask; False while an earlier question has no answer, or its child cannot even be ended."""
        if self._is_busy:
            return False
        if self._stuck and spawn.reap() >= self._stuck:
            return False
        self._stuck = 0
        self._is_busy = True
        return self._worker.put(time.monotonic())

    def _answer(self, asked_s: float) -> None:
        try:
            before = spawn.reap()
            ran = spawn.run(self._command, self._timeout_s)
            left = spawn.reap()
            self._stuck = left if left > before else 0
            self.told = self._understood(ran, asked_s)
        finally:
            self._is_busy = False

    def _understood(self, ran: Ran, asked_s: float) -> Told:
        if ran.code != 0:
            reason = ran.err or f"ended with {ran.code}"
            return Told(self.told.by_pid, self.told.asked_s, f"nvidia-smi: {reason}")
        try:
            return Told(parse(ran.out), asked_s)
        except AnswerError as error:
            return Told(self.told.by_pid, self.told.asked_s, f"nvidia-smi: {error}")


def driver_held_kib(meminfo: Mapping[str, int]) -> int | None:
    """Return what is in use and in no bucket of the kernel's, which on these boxes is the driver's; None if unknown.

    It holds what a process uses, what the driver keeps pooled, and some GiB at most that it needs itself. In regime C
    a part of it is counted as KReclaimable, which is why only slab is taken off here.
    """
    if any(name not in meminfo for name in _NEEDED):
        return None
    huge = meminfo.get("HugePages_Total", 0) * meminfo.get("Hugepagesize", 0)
    known = sum(meminfo.get(name, 0) for name in _BUCKETS) + meminfo.get("Hugetlb", huge)
    return max(0, meminfo["MemTotal"] - known)
