"""After a kill: wait until the victim is really gone, get the driver's pool back, sweep up, and tell others.

All of it is for a thread of its own. A dead process is no memory yet: 114 GB stayed stranded where the pool was emptied
before its last process had ended, which took 10 s.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plimsoll.box.guard import spawn
from plimsoll.box.guard.act import Ready, release
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.guard.patience import Patient
from plimsoll.box.guard.shm import Removed, Shared, SharedMemory
from plimsoll.box.host import Host

DROP_CACHES = "/proc/sys/vm/drop_caches"
DROP_TIMEOUT_S = 60.0
"""To empty a pool took 6.1 s at the most; a child that waits in the kernel for longer is left alone."""
GONE_TIMEOUT_S = 300.0
"""A teardown of minutes was seen; until it is over, nothing can come back."""
HELP_EVERY_S = 2.0
"""Who was killed and runs gives its own memory back first of all; only one that is stuck needs help."""
_LOOK_AGAIN_MS = 500
"""A removed cgroup wakes nobody that waits for its events."""
STRANDED_KIB = KIB_PER_GIB
STRANDED_EVERY_S = 5.0


@dataclass(frozen=True)
class Dropped:
    """What emptying the driver's pool has brought."""

    came_back_kib: int | None = None
    """By how much available memory rose; None where it is not known."""
    took_s: float = 0.0
    problem: str | None = None


@dataclass(frozen=True)
class Aftermath:
    """All that happened after a kill; seconds since it was followed."""

    gone_s: float | None
    """When the last process was gone; None where it was still there at the deadline."""
    released: int
    """Processes of which the kernel took the memory back at once."""
    dropped: Dropped | None
    """None where the pool was not emptied, because the victim was still there."""
    came_back_kib: int | None
    removed: Removed = field(default_factory=Removed)


Available = Callable[[], int | None]
"""What reads available memory, in KiB."""


def follow(
    host: Host,
    victim: Ready,
    available: Available,
    shared: tuple[SharedMemory, frozenset[Shared]] | None = None,
    timeout_s: float = GONE_TIMEOUT_S,
) -> Aftermath:
    """Follow a victim to its end, and get back what it held; closes the descriptors of `victim`.

    `shared` is what it had mapped in /dev/shm before it was killed.
    """
    began_s, before = time.monotonic(), available()
    released: set[int] = set()
    try:
        gone = _until_gone_with_help(victim, timeout_s, released)
    finally:
        for descriptor in victim.descriptors:
            os.close(descriptor)
    if not gone:
        return Aftermath(None, len(released), None, _rise(before, available()))
    gone_s = time.monotonic() - began_s
    dropped = drop_pool(host, available)
    removed = shared[0].remove(shared[1]) if shared else Removed()
    return Aftermath(gone_s, len(released), dropped, _rise(before, available()), removed)


def _until_gone_with_help(victim: Ready, timeout_s: float, released: set[int]) -> bool:
    """Wait, and have the kernel take back the memory of those that were killed and do not come to it themselves."""
    deadline_s = time.monotonic() + timeout_s
    helper: Patient[int, int] = Patient(release)
    while not until_gone(victim, min(HELP_EVERY_S, deadline_s - time.monotonic())):
        if time.monotonic() >= deadline_s:
            return False
        # No thread can be started where there is no memory for its stack.
        with contextlib.suppress(RuntimeError):
            released |= helper.read(set(victim.pidfds.values()) - released).keys()
    return True


def until_gone(victim: Ready, timeout_s: float) -> bool:
    """Wait until a cgroup is empty, or all of a group's processes have ended; False at the deadline."""
    deadline_s = time.monotonic() + timeout_s
    if victim.events is not None:
        return _until_empty(victim.events, deadline_s)
    waiting = set(victim.pidfds.values())
    poll = select.poll()
    for each in waiting:
        poll.register(each, select.POLLIN)
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left_s * 1000):
            poll.unregister(descriptor)
            waiting.discard(descriptor)
    return not waiting


def _until_empty(events: int, deadline_s: float) -> bool:
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    while _is_populated(events):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        poll.poll(min(left_s * 1000, _LOOK_AGAIN_MS))
    return True


def _is_populated(events: int) -> bool:
    """Read `cgroup.events`; a cgroup that was removed was empty."""
    try:
        return b"populated 1" in os.pread(events, 256, 0)
    except OSError:
        return False


def drop_pool(host: Host, available: Available, timeout_s: float = DROP_TIMEOUT_S) -> Dropped:
    """Have the kernel ask every shrinker for all it has: 2 is enough for the driver's pool, 3 takes the models' files.

    From a child: it may wait in the kernel for the driver's lock, and nobody shall wait with it for longer.
    """
    before, began_s = available(), time.monotonic()
    ran = spawn.run(("/bin/sh", "-c", 'echo 2 >"$1"', "sh", host.path(DROP_CACHES)), timeout_s)
    problem = None if ran.code == 0 else f"drop_caches: {ran.problem}"
    return Dropped(_rise(before, available()), time.monotonic() - began_s, problem)


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def run_hook(command: Sequence[str], record: Mapping[str, Any], timeout_s: float) -> str | None:
    """Run the operator's command with a record as JSON on its standard input; return what went wrong, if anything."""
    if not command:
        return None
    ran = spawn.run(command, timeout_s, given=json.dumps(record).encode())
    return None if ran.code == 0 else f"hook {command[0]}: {ran.problem}"


# --- what nobody holds ------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What the driver keeps at one moment, and who may be using it."""

    at_s: float
    regime: str
    misc_kib: int | None
    """Counted reclaimable and no slab: all that is pooled in regime C."""
    driver_kib: int | None
    """In use and in no bucket: what is pooled in regime B, and what the driver needs itself."""
    anybody_computes: bool
    told: Mapping[int, int | None] | None
    """What nvidia-smi last said, by process."""

    @property
    def kib(self) -> int | None:
        """How much of it may be nobody's; None where that cannot be told. In regime A the driver keeps nothing."""
        if self.anybody_computes or self.told:
            return None
        if self.regime == "C":
            return self.misc_kib
        # In no bucket is also what somebody uses of whom only nvidia-smi knows.
        return self.driver_kib if self.regime == "B" and self.told is not None else None


@dataclass(frozen=True)
class Stranded:
    """What is remembered of memory that the driver keeps for nobody; KiB."""

    asked_s: float | None = None
    needs_kib: int = 0
    """What it kept when it was asked for it: that it needs itself."""


def is_stranded(stranded: Stranded, kept: Kept) -> bool:
    """Say whether the driver's pool is to be emptied: nobody uses the GPU, and the driver keeps memory."""
    if kept.kib is None or (stranded.asked_s is not None and kept.at_s - stranded.asked_s < STRANDED_EVERY_S):
        return False
    return kept.kib - stranded.needs_kib >= STRANDED_KIB


def reclaimed(stranded: Stranded, before: Kept, after: Kept) -> Stranded:
    """Return what is remembered after the pool was emptied: what did not come back is not asked for again."""
    left = after.kib if after.kib is not None else stranded.needs_kib
    return Stranded(before.at_s, left)


def looked(stranded: Stranded, kept: Kept) -> Stranded:
    """Return what is remembered after a look: what it needs is never more than what it keeps."""
    if kept.kib is None or kept.kib >= stranded.needs_kib:
        return stranded
    return Stranded(stranded.asked_s, kept.kib)
