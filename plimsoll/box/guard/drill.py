"""A bounded over-commit that shows whether the guard acts. What takes the memory is a workload as any other.

It runs in a transient unit, so that all of the guard's way is walked: found by its cgroup, chosen by its growth,
stopped by `cgroup.kill`. It takes memory as an engine does, from the driver, quickly while there is plenty and slowly
near the lines. If the guard has not acted when memory is a third below its floor, it gives everything back.
"""

import ctypes
import dataclasses
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll.box import memory
from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule
from plimsoll.box.host import Host

UNIT = "plimsoll-drill.service"
ABORTED, NO_DEVICE, WAS_TAKEN = 10, 11, 12
"""Exit codes of the one that takes memory: the guard did not act; no device; all of it was taken without that."""
STEP_MIB = 64
SLOW_STEP_S = 0.1
"""640 MiB/s near the lines: the rate rule looks half a second ahead, and none of it is a race."""
FAST_STEP_S = 0.005
MARGIN = 1 / 3
"""Of the floor, below which it gives up: 1 GiB of 3, still twice what was in flight at the slower step."""
_MIB = 1 << 20
FAKE_DEVICE = "/dev/fakegb10"
"""What stands in for the driver in the project's own virtual machines."""


class DeviceError(Exception):
    """There is no device to take memory from, or it refuses; the message says which, and why."""


class Device(Protocol):
    """What memory is taken from; it is given back when the process ends."""

    def take(self, size: int) -> bool:
        """Take so many bytes and touch them; False where the driver has no more."""


# --- the two devices --------------------------------------------------------------------------------


class FakeGb10:
    """The stand-in: memory outside every list of the kernel's, held by an open file."""

    _ALLOC = struct.Struct("=QQQII")
    """Bytes, bytes a second (0: at once), what was got, kind (1: as vLLM takes it), 0."""
    _REQUEST = 3 << 30 | _ALLOC.size << 16 | ord("G") << 8 | 0x10

    def __init__(self, path: str = FAKE_DEVICE) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"{path}: {error.strerror}") from error

    def take(self, size: int) -> bool:
        """Take whole pages."""
        got = 0
        while got < size:
            request = bytearray(self._ALLOC.pack(size - got, 0, 0, 1, 0))
            try:
                fcntl.ioctl(self._descriptor, self._REQUEST, request)
            except InterruptedError:
                continue
            except OSError:
                return False
            got += self._ALLOC.unpack(request)[2]
        return True


class Cuda:
    """The driver's own library, without its toolkit: the first GPU's primary context."""

    _SUCCESS = 0

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError(f"libcuda.so.1: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def take(self, size: int) -> bool:
        """Allocate and touch."""
        address = ctypes.c_uint64()
        if self._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) != self._SUCCESS:
            return False
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")
        return True

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != self._SUCCESS:
            raise DeviceError(f"{name} failed with {code}")


def open_device() -> Device:
    """Return the machine's device: the driver's, else the stand-in's; raises DeviceError with what is wrong of both."""
    try:
        return Cuda()
    except DeviceError as cuda:
        try:
            return FakeGb10()
        except DeviceError as fake:
            raise DeviceError(f"no GPU to take memory from: {cuda}; {fake}") from fake


# --- how much, how fast, and when to give up --------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a drill does, in KiB of available memory."""

    take_kib: int
    abort_below_kib: int
    slow_below_kib: int
    step_kib: int


def plan(lines: Lines, available_kib: int, wanted_kib: int | None) -> Plan:
    """Return what to take: as much as was asked for, else enough to come to where it gives up."""
    abort_below = round(lines.floor_kib * (1 - MARGIN))
    return Plan(
        take_kib=available_kib - abort_below if wanted_kib is None else wanted_kib,
        abort_below_kib=abort_below,
        # fast no further than where the rate rule could first see it
        slow_below_kib=round(lines.slow_leave_kib * 1.5),
        # so that several fit between the floor and where it gives up, on a small machine too
        step_kib=min(STEP_MIB << 10, max(1 << 10, lines.floor_kib // 16)),
    )


def reaches(found: Plan, lines: Lines, available_kib: int, armed: frozenset[Rule]) -> str:
    """Return why nobody could be expected to act on the plan, empty for one that comes below an armed line."""
    lowest = available_kib - found.take_kib
    line = lines.slow_enter_kib if Rule.SLOW in armed else lines.floor_kib
    if lowest < line:
        return ""
    needed = (available_kib - line) / KIB_PER_GIB
    return (
        f"{found.take_kib / KIB_PER_GIB:.3g} GiB would not bring memory below an armed line: at least {needed:.3g} GiB"
    )


def take(found: Plan, device: Device, available_kib: Callable[[], int | None], pause: Callable[[float], None]) -> int:
    """Take memory until somebody ends this process; return ABORTED or WAS_TAKEN if nobody does.

    An unknown level counts as too low: it gives up.
    """
    taken = 0
    while taken < found.take_kib:
        level = available_kib()
        if level is None or level < found.abort_below_kib:
            return ABORTED
        if not device.take(found.step_kib * 1024):
            return WAS_TAKEN
        taken += found.step_kib
        pause(FAST_STEP_S if level > found.slow_below_kib else SLOW_STEP_S)
    return WAS_TAKEN


def level(host: Host) -> int | None:
    """Return what is available in KiB, None where that is not known."""
    meminfo = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "")
    return memory.available_kib(meminfo, to_driver=host.exists("/proc/driver/nvidia/version"))


def hold(pause: Callable[[float], None] = time.sleep, for_s: float = 15.0) -> None:
    """Keep what was taken for as long as a rule may take: 2 s of the slow rule and 10 s after its SIGTERM."""
    pause(for_s)


# --- whether to begin, and what came of it ----------------------------------------------------------


def refusal(status: Mapping[str, Any] | None, problem: str, *, beside: bool) -> str:
    """Return why a drill is not begun now, empty for nothing: without a guard that acts it would only do harm."""
    if status is None:
        return f"the guard cannot be relied on: {problem}"
    if not any(each["rule"] == Rule.FLOOR.value and each["armed"] for each in status["rules"]):
        return "the floor is not armed, so that the guard would only say what it would do: plimsoll guard arm floor"
    if status["stopping"] is not None:
        return "the guard is stopping a workload right now"
    others = [each["name"] for each in status["candidates"] if each["verdict"] in ("next", "possible")]
    if others and not beside:
        return f"a model runs that could be stopped in its place ({', '.join(others)}): stop it, or say --beside"
    return ""


def acted(records: Iterable[Mapping[str, Any]], boot_id: str, since_s: float) -> Mapping[str, Any] | None:
    """Return the guard's first record of stopping the drill since then (monotonic clock); None if there is none."""
    for each in records:
        victim = each.get("victim") or {}
        of_drill = str(victim.get("cgroup", "")).rpartition("/")[2] == UNIT
        in_time = each.get("boot_id") == boot_id and float(each.get("at_s", 0.0)) >= since_s
        if of_drill and in_time and each.get("armed") is True and each.get("verb") in ("term", "kill"):
            return each
    return None


@dataclass(frozen=True)
class Outcome:
    """What came of a drill; KiB of available memory, seconds."""

    before_kib: int
    lowest_kib: int
    after_kib: int | None
    took_s: float
    record: Mapping[str, Any] | None
    worker_code: int

    @property
    def exit_code(self) -> int:
        """0: the guard acted; 2: it did not, and the drill gave up; 3: that cannot be told."""
        if self.record is not None:
            return GOOD
        return DRIFT if self.worker_code == ABORTED else UNKNOWN

    def lines(self) -> list[str]:
        """Return what a person is told."""
        after = "unknown" if self.after_kib is None else _gib(self.after_kib)
        course = f"{_gib(self.before_kib)} available before, {_gib(self.lowest_kib)} at the lowest, {after} after"
        return [self._verdict(), f"{course}; {self.took_s:.1f} s"]

    def _verdict(self) -> str:
        if self.record is not None:
            return f"the guard acted: {self.record.get('text', '')}"
        if self.worker_code == ABORTED:
            return "THE GUARD DID NOT ACT: the drill gave its memory back by itself, below the floor"
        if self.worker_code == WAS_TAKEN:
            return "cannot tell: the memory was taken, or the driver gave no more, and no line was reached in time"
        if self.worker_code == NO_DEVICE:
            return f"cannot tell: there is no GPU to take memory from; journalctl -u {UNIT} says more"
        return f"cannot tell: the drill ended with {self.worker_code}, and the guard has no record of it"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"schema": "plimsoll.drill/1", **dataclasses.asdict(self), "exit_code": self.exit_code}


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"
