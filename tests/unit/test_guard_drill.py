"""The drill: what it takes, when it gives up, when it is not begun, and what it says came of it."""

import argparse
import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.guest import fakegb10
from plimsoll.box import cli_drill, heartbeat
from plimsoll.box.errors import UsageError
from plimsoll.box.guard import drill, records
from plimsoll.box.guard.drill import ABORTED, NO_DEVICE, UNIT, WAS_TAKEN, Outcome, Plan, acted, plan, reaches, refusal
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule
from plimsoll.box.host import Ran
from plimsoll.policy import Ladder
from tests.unit.builders import FakeHost, write_tree

LINES = Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
FLOOR = frozenset({Rule.FLOOR})
PLENTY = 118 * KIB_PER_GIB


@dataclass
class Box:
    """Memory that a device takes from."""

    available_kib: int | None
    refuses_below_kib: int = 0
    pauses_s: list[float] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def take(self, size: int) -> bool:
        """Give it away, unless the driver finds no more."""
        assert self.available_kib is not None
        if self.available_kib - size // 1024 < self.refuses_below_kib:
            return False
        self.taken.append(size)
        self.available_kib -= size // 1024
        return True

    def level(self) -> int | None:
        """What is left."""
        return self.available_kib


def _drilled(box: Box, found: Plan) -> int:
    return drill.take(found, box, box.level, box.pauses_s.append)


# --- what it takes ----------------------------------------------------------------------------------


def test_it_gives_up_below_the_floor() -> None:
    """Without a guard it ends a third below the floor, and not a step further."""
    box = Box(PLENTY)
    found = plan(LINES, PLENTY, None)
    assert _drilled(box, found) == ABORTED or box.available_kib == found.abort_below_kib
    assert box.available_kib is not None
    assert found.abort_below_kib == 2 * KIB_PER_GIB
    assert found.abort_below_kib - found.step_kib <= box.available_kib <= LINES.floor_kib


@given(
    st.integers(min_value=1 << 20, max_value=1 << 30),
    st.one_of(st.none(), st.integers(min_value=1, max_value=1 << 30)),
    st.floats(min_value=0.2, max_value=0.99),
)
def test_it_never_goes_on_below_where_it_gives_up(total_kib: int, wanted_kib: int | None, share: float) -> None:
    """On no machine, and whatever was asked for, does it take more than one step below that level."""
    here = Ladder().scaled(total_kib)
    lines = Lines(here.floor_kib, here.slow_enter_kib, here.slow_leave_kib)
    available = round(total_kib * share)
    found = plan(lines, available, wanted_kib)
    steps = (available - found.abort_below_kib) // found.step_kib
    # every step is looked at, so that millions of them say nothing more
    box = Box(available if steps < 20_000 else found.abort_below_kib + 20_000 * found.step_kib)
    _drilled(box, found)
    assert box.available_kib is not None
    assert box.available_kib >= found.abort_below_kib - found.step_kib
    assert found.abort_below_kib < lines.floor_kib
    assert found.abort_below_kib - found.step_kib > 0


def test_it_is_slow_near_the_lines() -> None:
    """Above one and a half times the slow line it hurries, below it the rules have time to look between steps."""
    box = Box(20 * KIB_PER_GIB)
    found = plan(LINES, 20 * KIB_PER_GIB, None)
    _drilled(box, found)
    slow = box.pauses_s.count(drill.SLOW_STEP_S)
    assert box.pauses_s == [drill.FAST_STEP_S] * (len(box.pauses_s) - slow) + [drill.SLOW_STEP_S] * slow
    assert slow * found.step_kib == pytest.approx(found.slow_below_kib - found.abort_below_kib, abs=2 * found.step_kib)


def test_an_unknown_level_is_too_low() -> None:
    """Who cannot see how much is left takes nothing more."""
    assert _drilled(Box(None), plan(LINES, PLENTY, None)) == ABORTED


def test_a_driver_that_has_no_more_ends_it() -> None:
    """That is no proof of anything, and told apart from giving up."""
    assert _drilled(Box(PLENTY, refuses_below_kib=50 * KIB_PER_GIB), plan(LINES, PLENTY, None)) == WAS_TAKEN


def test_what_was_asked_for_is_taken() -> None:
    """An amount is taken to the step, and not more."""
    box = Box(PLENTY)
    found = plan(LINES, PLENTY, 30 * KIB_PER_GIB)
    assert _drilled(box, found) == WAS_TAKEN
    assert sum(box.taken) == 30 << 30


@pytest.mark.parametrize(
    ("gib", "armed", "words"),
    [
        (30, FLOOR, "at least 115 GiB"),
        (114, FLOOR, "at least 115 GiB"),
        (112, FLOOR | {Rule.SLOW}, ""),
        (116, FLOOR, ""),
    ],
)
def test_what_reaches_no_armed_line_is_refused(gib: int, armed: frozenset[Rule], words: str) -> None:
    """A drill at whose end nobody could be expected to act is said to be none, with what is needed."""
    found = reaches(plan(LINES, PLENTY, gib * KIB_PER_GIB), LINES, PLENTY, armed)
    assert words in found
    assert bool(found) is bool(words)


# --- the devices ------------------------------------------------------------------------------------


def test_the_stand_ins_requests_are_the_labs() -> None:
    """The drill speaks to the device as the lab's own program does."""
    assert drill.FakeGb10._ALLOC.format == fakegb10.ALLOC.format
    assert drill.FakeGb10._REQUEST == fakegb10.IOC_ALLOC
    assert drill.FAKE_DEVICE == fakegb10.DEVICE
    assert fakegb10.ENGINES[1] == "vmm"


def test_memory_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that got less than asked for, or was interrupted, is repeated for the rest; no memory is no error."""
    (tmp_path / "device").touch()
    device = drill.FakeGb10(str(tmp_path / "device"))
    answers: list[Callable[[int], int]] = [lambda n: n // 2, lambda _: (_ for _ in ()).throw(InterruptedError()), int]
    asked: list[int] = []

    def ioctl(_descriptor: int, _request: int, buffer: bytearray) -> None:
        wanted = fakegb10.ALLOC.unpack(buffer)[0]
        asked.append(wanted)
        got = answers.pop(0)(wanted)
        struct.pack_into("=QQQ", buffer, 0, wanted, 0, got)

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    assert device.take(1000)
    assert asked == [1000, 500, 500]
    answers.append(lambda _: (_ for _ in ()).throw(OSError(12, "no memory")))
    assert not device.take(1000)
    os.close(device._descriptor)


class _Library:
    """libcuda, as far as the drill uses it; `failing` maps a function to its code."""

    def __init__(self, failing: dict[str, int]) -> None:
        self.failing = failing
        self.called: list[str] = []
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:  # noqa: ANN401  # ctypes values
            self.called.append(name)
            if name == "cuMemAlloc_v2":
                self.sizes.append(arguments[1].value)
            return self.failing.get(name, 0)

        return call


def _with_cuda(monkeypatch: pytest.MonkeyPatch, **failing: int) -> _Library:
    library = _Library(failing)
    monkeypatch.setattr("ctypes.CDLL", lambda _name: library)
    return library


def test_memory_of_the_gpu_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first GPU's primary context is made current; what is allocated is written to and waited for."""
    library = _with_cuda(monkeypatch)
    assert drill.open_device().take(64 << 20)
    begin = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert library.called == [*begin, "cuMemAlloc_v2", "cuMemsetD8_v2", "cuCtxSynchronize"]
    assert library.sizes == [64 << 20]


def test_a_gpu_without_memory_left_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's out of memory (2) is the driver having no more; another failure is told by its function."""
    _with_cuda(monkeypatch, cuMemAlloc_v2=2)
    assert not drill.Cuda().take(1)
    _with_cuda(monkeypatch, cuMemsetD8_v2=700)
    with pytest.raises(drill.DeviceError, match="cuMemsetD8_v2 failed with 700"):
        drill.Cuda().take(1)


def test_a_machine_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways that were tried are named."""
    monkeypatch.setattr(drill, "FAKE_DEVICE", "/nowhere")
    monkeypatch.setattr(drill.FakeGb10.__init__, "__defaults__", ("/nowhere",))
    with pytest.raises(drill.DeviceError, match=r"libcuda\.so\.1.*; /nowhere: No such file"):
        drill.open_device()


# --- when it is not begun ---------------------------------------------------------------------------


def _status(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any of the keys
    rules = [{"rule": rule.value, "armed": rule is Rule.FLOOR} for rule in Rule]
    return {"rules": rules, "stopping": None, "candidates": [], **changes}


def test_a_guard_that_is_well_lets_it_begin() -> None:
    """With the floor armed and no model beside it there is no reason against it."""
    assert refusal(_status(), "", beside=False) == ""
    assert refusal(_status(candidates=[{"name": "display", "verdict": "spared"}]), "", beside=False) == ""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "cannot be relied on: its last sample is old"),
        (_status(rules=[{"rule": "floor", "armed": False}, {"rule": "slow", "armed": True}]), "the floor is not armed"),
        (_status(stopping={"name": "x"}), "is stopping a workload right now"),
        (_status(candidates=[{"name": "qwen", "verdict": "next"}]), "a model runs that could be stopped"),
    ],
)
def test_it_is_not_begun(status: dict[str, Any] | None, words: str) -> None:
    """Without a guard that would act on the drill, and on nobody else, it would only do harm."""
    assert words in refusal(status, "its last sample is old", beside=False)


def test_a_model_beside_it_is_the_operators_risk() -> None:
    """With --beside a model is no reason against it."""
    assert refusal(_status(candidates=[{"name": "qwen", "verdict": "next"}]), "", beside=True) == ""


# --- what came of it --------------------------------------------------------------------------------


def _record(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any of the keys
    victim = {"cgroup": f"/system.slice/{UNIT}"}
    return {"boot_id": "b", "at_s": 50.0, "armed": True, "verb": "kill", "victim": victim, "text": "floor", **changes}


def test_the_guards_record_is_the_proof() -> None:
    """The first record of stopping the drill counts."""
    assert acted([_record(text="one"), _record(text="two")], "b", 40.0) == _record(text="one")


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "a"},
        {"at_s": 30.0},
        {"armed": False},
        {"verb": "reclaim"},
        {"victim": None},
        {"victim": {"cgroup": "/system.slice/docker-1.scope"}},
        {"victim": {"cgroup": f"/system.slice/{UNIT}/x"}},
    ],
)
def test_what_is_no_proof(change: dict[str, Any]) -> None:
    """Another boot, an earlier time, what was only observed, or somebody else's end proves nothing."""
    assert acted([_record(**change)], "b", 40.0) is None


@pytest.mark.parametrize(
    ("record", "code", "expected", "words"),
    [
        (_record(), 255, 0, "the guard acted: floor"),
        (_record(), ABORTED, 0, "the guard acted"),
        (None, ABORTED, 2, "DID NOT ACT"),
        (None, WAS_TAKEN, 3, "cannot tell"),
        (None, NO_DEVICE, 3, "no GPU"),
        (None, 1, 3, "ended with 1"),
    ],
)
def test_outcomes(record: dict[str, Any] | None, code: int, expected: int, words: str) -> None:
    """Only a record is a success; giving up is a failure; all else is not known."""
    found = Outcome(PLENTY, KIB_PER_GIB, None, 5.0, record, code)
    assert found.exit_code == expected
    assert words in found.lines()[0]
    assert json.loads(json.dumps(found.to_json()))["exit_code"] == expected


# --- the command ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrillHost(FakeHost):
    """A machine on which a drill ends as `ends` says."""

    ends: Callable[["DrillHost"], int] = lambda _host: ABORTED

    def run(self, *argv: str, timeout_s: float = 20, given: str | None = None) -> Ran:
        """Run the transient unit."""
        ran = super().run(*argv, timeout_s=timeout_s, given=given)
        return Ran(self.ends(self), "", "") if argv[0] == "systemd-run" else ran


def _box(root: Path, ends: Callable[[DrillHost], int], *, floor: bool = True) -> DrillHost:
    meminfo = f"MemTotal: {122 << 20} kB\nMemAvailable: {PLENTY} kB\nKReclaimable: 1 kB\nSReclaimable: 1 kB\n"
    guard = {"pid": 1, "program_sha256": "", "config_sha256": "", "sampled_monotonic_s": time.monotonic()}
    status = _status(rules=[{"rule": "floor", "armed": floor}], schema=heartbeat.STATUS_SCHEMA, guard=guard)
    files = {"/proc/meminfo": meminfo, heartbeat.STATUS: json.dumps(status), "/etc/plimsoll/guard.toml": ""}
    write_tree(root, {**files, "/proc/sys/kernel/random/boot_id": "b\n"})
    return DrillHost(root=str(root), ends=ends)


def _asked(host: DrillHost, **options: Any) -> int:  # noqa: ANN401  # those of the command
    known = {"gib": None, "beside": False, "json": False, "take_kib": None, **options}
    return cli_drill.drill(argparse.Namespace(**known), host, b"")


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


def _killed(host: DrillHost) -> int:
    record = _record(at_s=time.monotonic() + 1, schema=records.SCHEMA)
    write_tree(Path(host.root), {records.PATH: json.dumps(record) + "\n"})
    return 255


def test_a_guard_that_acts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workload runs in its own unit; the guard's record makes it a success."""
    host = _box(tmp_path, _killed)
    assert _asked(host) == 0
    assert "the guard acted" in capsys.readouterr().out
    call = next(call for call in host.calls if call[0] == "systemd-run")
    assert call[call.index("--unit") + 1] == UNIT
    assert call[-2] == "--take-kib"
    assert PLENTY - 3 * KIB_PER_GIB < int(call[-1]) < PLENTY


def test_a_guard_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a record, and with the workload having given up, it is exit code 2."""
    assert _asked(_box(tmp_path, lambda _: ABORTED)) == 2
    assert "DID NOT ACT" in capsys.readouterr().out


def test_a_guard_that_observes_is_not_drilled(tmp_path: Path) -> None:
    """It is refused for now, and nothing is run."""
    host = _box(tmp_path, _killed, floor=False)
    with pytest.raises(cli_drill.NotNowError, match="the floor is not armed") as raised:
        _asked(host)
    assert raised.value.exit_code == 75
    assert not [call for call in host.calls if call[0] == "systemd-run"]


def test_too_little_is_refused(tmp_path: Path) -> None:
    """An amount that reaches no line is a usage error."""
    with pytest.raises(UsageError, match="would not bring memory below"):
        _asked(_box(tmp_path, _killed), gib=5.0)


def test_the_workload_without_a_device_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs in the unit ends with a code of its own where there is nothing to take memory from."""
    host = _box(tmp_path, _killed)
    assert _asked(host, take_kib=1000) == NO_DEVICE
    assert "no GPU to take memory from" in capsys.readouterr().err
