"""The last resort: a box on which everybody has stalled on memory for minutes restarts, without anybody's help.

A unit of its own, opt-in, that shares nothing with the guard. It reads PSI full avg10 every few seconds and counts: up
while that is 10 % or more, down while it is not, so that one low sample takes away its own seconds and no more. At
300 s it stops telling systemd that all is well, and the unit's `FailureAction=reboot-immediate` acts. It begins again
only once half of the count has drained, so that a moment's relief does not save a box that nobody can log in to.

How far the level can be trusted: of 19,804 samples of one box the healthy ones went up to 98.5 % and the frozen ones
down to 48.8 %. What told them apart was duration: 2 to 3 minutes at the most, against 292 minutes at the least.

At most two restarts a day. What happened is written and synced before the last ping, and at every start it is seen
whether the boot before ended as it should: one that did not counts as a restart, whoever caused it, and leaves a mark
on which no model is started by itself.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.box import memory
from plimsoll.box.errors import GOOD
from plimsoll.box.guard import locking, whole
from plimsoll.box.guard.handover import Notifier
from plimsoll.box.host import Host

PATH = "/var/lib/plimsoll/last-resort/state.json"
MARK = "/run/plimsoll/unclean-boot"
"""There, until the next boot or until somebody removes it, after a boot that did not end as it should."""
SCHEMA = "plimsoll.last-resort/1"
PRESSURE = "/proc/pressure/memory"
PERIOD_S = 5.0
FULL_PERCENT = 10.0
STALLED_S = 300.0
WATCHDOG_S = 120
"""WatchdogSec of the unit: a process with locked memory that reads one file of /proc is not held up for so long."""
MAX_A_DAY = 2
DAY_S = 24 * 3600.0
WRITE_WITHIN_S = 10.0
"""On a wedged box a write may never end; the restart does not depend on it."""


@dataclass(frozen=True)
class Watch:
    """How long everybody has stalled by now, and whether systemd is still to be told that all is well."""

    stalled_s: float = 0.0
    is_over: bool = False


def watch(before: Watch, full_avg10: float | None, elapsed_s: float) -> Watch:
    """Return the count after one more sample; one that could not be taken changes nothing."""
    if full_avg10 is None or elapsed_s <= 0:
        return before
    step_s = elapsed_s if full_avg10 >= FULL_PERCENT else -elapsed_s
    # Not counted beyond where it acts: the way back must not grow with the length of the stall.
    stalled_s = min(max(0.0, before.stalled_s + step_s), STALLED_S)
    return Watch(stalled_s, stalled_s > STALLED_S / 2 if before.is_over else stalled_s >= STALLED_S)


# --- what is kept over a boot -----------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """The boot that the state is of, whether it ended as it should, and the restarts of the last days (Unix time)."""

    boot_id: str = ""
    clean: bool = True
    restarts_s: tuple[float, ...] = ()
    recorded: bool = False
    """Whether this boot's own restart is among them already."""


def begun(before: Kept, boot_id: str, now_s: float) -> tuple[Kept, bool]:
    """Return the state at a start, and whether the boot before ended uncleanly.

    A start within the same boot, after a crash of this program, is neither.
    """
    if before.boot_id == boot_id:
        return replace(before, clean=False), False
    unclean = bool(before.boot_id) and not before.clean
    counted = () if before.recorded or not unclean else (now_s,)
    recent = tuple(each for each in before.restarts_s if abs(now_s - each) < DAY_S)
    return Kept(boot_id, clean=False, restarts_s=(*recent, *counted)), unclean


def may_restart(kept: Kept, now_s: float) -> bool:
    """Say whether there were fewer than two within a day of now, on either side: a clock may have been set back."""
    return sum(1 for each in kept.restarts_s if abs(now_s - each) < DAY_S) < MAX_A_DAY


def load(host: Host) -> Kept:
    """Return what was kept; as if there had been nothing where it cannot be read: then a restart is the less allowed.

    A state that is there and damaged counts as two restarts of just now.
    """
    try:
        return _from_json(json.loads(host.text(PATH)))
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Kept(restarts_s=(time.time(),) * MAX_A_DAY)


def _from_json(data: Any) -> Kept:  # noqa: ANN401  # whatever the file holds is checked here
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
    restarts_s = tuple(float(each) for each in data["restarts_s"])
    return Kept(str(data["boot_id"]), data["clean"] is True, restarts_s, data["recorded"] is True)


def save(host: Host, kept: Kept) -> None:
    """Write it, whole or not at all, and wait until it is on disk; raises OSError."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "boot_id": kept.boot_id,
        "clean": kept.clean,
        "restarts_s": list(kept.restarts_s),
        "recorded": kept.recorded,
    }
    whole.write(host, PATH, json.dumps(data).encode(), 0o600, sync=True)


def held_back(host: Host) -> str | None:
    """Return why no model is to be started by itself in this boot; None where nothing is in the way."""
    return host.text_or_none(MARK)


def _mark(host: Host) -> None:
    text = f"the boot before did not end as it should; look why, then remove {MARK} or start the model by hand\n"
    whole.write(host, MARK, text.encode(), 0o644, sync=False)


# --- the order of deadlines -------------------------------------------------------------------------


@dataclass(frozen=True)
class Deadlines:
    """Who acts when on a box that is stuck, in seconds; None for what is not armed."""

    guard_stall_s: float | None
    """The guard's stall rule, before any restart."""
    hung_task_s: float | None
    """kernel.hung_task_timeout_secs with hung_task_panic on: a task may be found only one interval later."""
    panic_s: int | None
    """kernel.panic: 0 waits for ever, below 0 restarts at once."""
    hardware_s: float | None
    """The timeout of the watchdog that PID 1 keeps."""


def disorder(found: Deadlines) -> list[str]:
    """Return what stands in the wrong order, each with what to do; empty where all is well.

    The milder goes first: hardware watchdog (only PID 1's death), the guard's stall rule (one workload), a panic over
    hung tasks (with its evidence in the log), the last resort.
    """
    wrong = []
    if found.guard_stall_s is not None and found.guard_stall_s >= STALLED_S:
        wrong.append(f"the guard's stall.for_s ({found.guard_stall_s:g} s) must be below {STALLED_S:g} s")
    if found.hung_task_s is not None:
        wrong += _panic_disorder(found.hung_task_s, found.panic_s)
    if found.hardware_s is not None and found.hardware_s >= STALLED_S:
        wrong.append(f"the hardware watchdog ({found.hardware_s:g} s) must be below {STALLED_S:g} s")
    return wrong


def _panic_disorder(hung_task_s: float, panic_s: int | None) -> list[str]:
    if panic_s == 0:
        return ["kernel.hung_task_panic is on and kernel.panic is 0: after a panic the box would wait for ever"]
    latest_s = 2 * hung_task_s + max(panic_s or 0, 0)
    if latest_s < STALLED_S:
        return []
    return [
        (
            f"a panic over hung tasks restarts only after up to {latest_s:g} s, the last resort after {STALLED_S:g} s: "
            "lower kernel.hung_task_timeout_secs or kernel.panic"
        )
    ]


def deadlines(sysctls: Mapping[str, str | None], hardware_s: str | None, guard_stall_s: float | None) -> Deadlines:
    """Return the deadlines in force, from the values of kernel settings and of the watchdog's sysfs file."""
    interval = _whole(sysctls.get("kernel.hung_task_timeout_secs"))
    panics = _whole(sysctls.get("kernel.hung_task_panic"))
    return Deadlines(
        guard_stall_s=guard_stall_s,
        # an interval of 0 switches the check off
        hung_task_s=float(interval) if interval and panics else None,
        panic_s=_whole(sysctls.get("kernel.panic")),
        hardware_s=float(hardware_s) if hardware_s and hardware_s.isascii() and hardware_s.isdigit() else None,
    )


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


SYSCTLS = ("kernel.hung_task_timeout_secs", "kernel.hung_task_panic", "kernel.panic")


def live_deadlines(host: Host, guard_stall_s: float | None) -> Deadlines:
    """Return the deadlines as they are on this host now."""
    found = {key: host.text_or_none(f"/proc/sys/{key.replace('.', '/')}") for key in SYSCTLS}
    base = "/sys/class/watchdog"
    active = [name for name in host.names(base) if host.text_or_none(f"{base}/{name}/state") == "active"]
    hardware = host.text_or_none(f"{base}/{active[0]}/timeout") if active else None
    return deadlines(found, hardware, guard_stall_s)


# --- the program ------------------------------------------------------------------------------------


class Pressure:
    """PSI full avg10, through a descriptor that is opened once."""

    def __init__(self, host: Host) -> None:
        self._path = host.path(PRESSURE)
        self._descriptor = -1

    def full_avg10(self) -> float | None:
        """Return the share in percent; None where it cannot be read."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._descriptor, 512, 0).decode("ascii", "replace")
        except OSError:
            return None
        return memory.parse_pressure(text).get("full", {}).get("avg10")


class LastResort:
    """The loop's state; `step` is one round."""

    def __init__(self, notifier: Notifier, kept: Kept, writer: "Writer") -> None:
        self._notifier = notifier
        self.kept = kept
        self._writer = writer
        self._watch = Watch()
        self._refused = False

    def step(self, full_avg10: float | None, elapsed_s: float, now_s: float) -> bool:
        """Count one sample, and tell systemd that all is well if it is; say whether it was told."""
        before, self._watch = self._watch, watch(self._watch, full_avg10, elapsed_s)
        if self._watch.is_over and not before.is_over:
            self._over(now_s)
        if not self._watch.is_over:
            self._refused = False
        if self._watch.is_over and not self._refused:
            return False
        self._notifier.ping()
        return True

    def _over(self, now_s: float) -> None:
        # One that was allowed, and from which the box came back by itself, is allowed still.
        if not self.kept.recorded and not may_restart(self.kept, now_s):
            self._refused = True
            self._writer.write(None, f"not restarted: {MAX_A_DAY} restarts within a day are enough")
            return
        if not self.kept.recorded:
            self.kept = replace(self.kept, restarts_s=(*self.kept.restarts_s, now_s), recorded=True)
        self._writer.write(self.kept, "systemd is not told any more that all is well, and restarts the box")
        self._writer.wait(WRITE_WITHIN_S)


class Writer(threading.Thread):
    """Writes down and says what happens; started in time, since a wedged box has no memory for a new thread."""

    def __init__(self, host: Host, say: Callable[[str], None]) -> None:
        super().__init__(name="writer", daemon=True)
        self._host = host
        self._say = say
        self._there = threading.Event()
        self._done = threading.Event()
        self._job: tuple[Kept | None, str] = (None, "")

    def write(self, kept: Kept | None, text: str) -> None:
        """Have a state written, and a line said; waits for neither."""
        self._job = (kept, text)
        self._done.clear()
        self._there.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until that is done, and say whether it is."""
        return self._done.wait(timeout_s)

    def run(self) -> None:
        """Do what comes, for ever."""
        while self._there.wait():
            self._there.clear()
            kept, text = self._job
            try:
                if kept is not None:
                    save(self._host, kept)
                self._say(f"everybody has stalled on memory for {STALLED_S:g} s: {text}")
            except OSError as error:
                self._say(f"{text}; {PATH}: {error.strerror}: that is not written down")
            self._done.set()


def run(host: Host, environment: Mapping[str, str], stopped: threading.Event, say: Callable[[str], None]) -> int:
    """Watch until `stopped`, then note that the boot ended as it should. Raises OSError where nothing can be kept."""
    for problem in locking.prepare():
        say(problem)
    boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id") or ""
    kept, unclean = begun(load(host), boot_id, time.time())
    save(host, kept)
    if unclean:
        _mark(host)
        say(f"the boot before did not end as it should: {MARK}")
    notifier, pressure, writer = Notifier(environment), Pressure(host), Writer(host, say)
    writer.start()
    for problem in [*disorder(live_deadlines(host, None)), *locking.lock()]:
        say(problem)
    loop = LastResort(notifier, kept, writer)
    notifier.ready("watching")
    before_s = time.monotonic()
    while not stopped.wait(PERIOD_S):
        at_s = time.monotonic()
        loop.step(pressure.full_avg10(), at_s - before_s, time.time())
        before_s = at_s
    save(host, replace(loop.kept, clean=True))
    notifier.close()
    return GOOD
