"""The last resort: when it stops telling systemd that all is well, and when it must not."""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import last_resort, locking
from plimsoll.box.guard.config import load as load_config
from plimsoll.box.guard.handover import Notifier
from plimsoll.box.guard.last_resort import (
    DAY_S,
    STALLED_S,
    Deadlines,
    Kept,
    LastResort,
    Watch,
    Writer,
    begun,
    deadlines,
    disorder,
    may_restart,
    watch,
)
from plimsoll.box.host import Host
from plimsoll.controls import kernel, recovery
from tests.unit.builders import write_tree

NOW_S = 1_800_000_000.0
HIGH, LOW = 60.0, 1.0


def _after(samples: Sequence[float | None], period_s: float = 5.0) -> Watch:
    found = Watch()
    for sample in samples:
        found = watch(found, sample, period_s)
    return found


# --- the count --------------------------------------------------------------------------------------


def test_a_stall_of_300_s_is_the_end() -> None:
    """Full pressure for 300 s, whatever its level above 10 %, ends it; 295 s do not."""
    assert not _after([10.0] * 59).is_over
    assert _after([10.0] * 60).is_over


def test_one_low_sample_does_not_reset_it() -> None:
    """A single sample below 10 % costs its own seconds twice, and no more."""
    broken = [HIGH] * 50 + [9.8] + [HIGH] * 11
    assert _after(broken).is_over
    assert not _after(broken[:-1]).is_over


def test_a_healthy_load_is_none() -> None:
    """45 % for three minutes, again and again with as long a pause, never comes near."""
    assert not _after(([45.0] * 36 + [LOW] * 36) * 20).is_over


def test_a_moments_relief_is_no_rescue() -> None:
    """Once over, half of the count must drain before systemd is told again that all is well."""
    over = _after([HIGH] * 100)
    assert over.stalled_s == STALLED_S
    assert _after([HIGH] * 100 + [LOW] * 29).is_over
    assert not _after([HIGH] * 100 + [LOW] * 30).is_over


def test_what_cannot_be_read_changes_nothing() -> None:
    """An unknown level is neither a stall nor the end of one, and time that stands still counts for nothing."""
    before = Watch(100.0)
    assert watch(before, None, 5.0) == before
    assert watch(before, HIGH, 0.0) == before
    assert watch(before, HIGH, -5.0) == before


@given(st.lists(st.one_of(st.none(), st.floats(min_value=0, max_value=100)), max_size=200))
def test_nobody_is_restarted_before_so_much_time_was_stalled(samples: list[float | None]) -> None:
    """Whatever the samples, it is over only after 300 s of high ones."""
    if _after(samples).is_over:
        assert sum(5.0 for each in samples if each is not None and each >= 10) >= STALLED_S


# --- restarts ---------------------------------------------------------------------------------------


def test_at_most_two_a_day() -> None:
    """A third restart within a day is not allowed, and allowed again when the first is a day old."""
    kept = Kept(restarts_s=(NOW_S - 1000, NOW_S - 500))
    assert not may_restart(kept, NOW_S)
    assert may_restart(kept, NOW_S + DAY_S - 999)
    assert may_restart(Kept(restarts_s=(NOW_S - 500,)), NOW_S)


def test_a_clock_that_was_set_back_allows_no_more() -> None:
    """Restarts that lie ahead of the clock count as well; those that lie days ahead do not block for ever."""
    assert not may_restart(Kept(restarts_s=(NOW_S + 1000, NOW_S + 500)), NOW_S)
    assert may_restart(Kept(restarts_s=(NOW_S + 9 * DAY_S, NOW_S + 8 * DAY_S)), NOW_S)


def test_a_boot_that_ended_as_it_should_is_none() -> None:
    """After a shutdown nothing is counted and nothing marked."""
    assert begun(Kept("a", clean=True), "b", NOW_S) == (Kept("b", clean=False), False)


def test_the_first_start_of_all_is_no_unclean_boot() -> None:
    """Where nothing was kept nobody knows of a boot before."""
    assert begun(Kept(), "b", NOW_S) == (Kept("b", clean=False), False)


def test_an_unclean_boot_counts_whoever_caused_it() -> None:
    """A power cut or a panic counts as a restart; one of our own, which was written down before, only once."""
    assert begun(Kept("a", clean=False), "b", NOW_S)[0].restarts_s == (NOW_S,)
    own = Kept("a", clean=False, restarts_s=(NOW_S - 60,), recorded=True)
    found, unclean = begun(own, "b", NOW_S)
    assert (found.restarts_s, found.recorded, unclean) == ((NOW_S - 60,), False, True)


def test_a_start_within_the_same_boot_is_no_boot() -> None:
    """A program that crashed and was started again does not take itself for a new boot."""
    before = Kept("a", clean=False, restarts_s=(NOW_S,), recorded=True)
    assert begun(before, "a", NOW_S) == (before, False)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"schema": "x"}', '{"schema": "plimsoll.last-resort/1"}', "[" * 50_000]
)
def test_a_damaged_state_allows_no_restart(text: str, tmp_path: Path) -> None:
    """Who does not know how often it has restarted the box does not restart it."""
    write_tree(tmp_path, {last_resort.PATH: text})
    assert not may_restart(last_resort.load(Host(str(tmp_path))), time.time())


def test_the_state_survives(tmp_path: Path) -> None:
    """What was written is read as it was."""
    host, kept = Host(str(tmp_path)), Kept("a", clean=False, restarts_s=(1.0, 2.0), recorded=True)
    assert last_resort.load(host) == Kept()
    last_resort.save(host, kept)
    assert last_resort.load(host) == kept


# --- the loop ---------------------------------------------------------------------------------------


class _Notifier(Notifier):
    def __init__(self) -> None:
        super().__init__({})
        self.pings = 0

    def ping(self) -> bool:
        self.pings += 1
        return True


class _Loop:
    """A loop over a machine that is a directory."""

    def __init__(self, root: Path, kept: Kept) -> None:
        self.host = Host(str(root))
        self.notifier = _Notifier()
        self.said: list[str] = []
        self.writer = Writer(self.host, self.said.append)
        self.writer.start()
        self.loop = LastResort(self.notifier, kept, self.writer)

    def run(self, level: float, number: int, now_s: float = NOW_S) -> int:
        """Take so many samples, and return how often systemd was told."""
        return sum(self.loop.step(level, 5.0, now_s) for _ in range(number))


def test_systemd_is_told_until_it_is_over(tmp_path: Path) -> None:
    """59 high samples and 59 pings; from then on none, with the restart on disk before."""
    found = _Loop(tmp_path, Kept("a", clean=False))
    assert found.run(HIGH, 59) == 59
    assert found.run(HIGH, 10) == 0
    assert found.notifier.pings == 59
    assert last_resort.load(found.host) == Kept("a", clean=False, restarts_s=(NOW_S,), recorded=True)
    assert len(found.said) == 1


def test_a_box_that_comes_back_is_spared(tmp_path: Path) -> None:
    """When the stall ends before systemd has acted it is told again; the restart that was written down counts once."""
    found = _Loop(tmp_path, Kept("a", clean=False))
    found.run(HIGH, 60)
    assert found.run(LOW, 40) == 11
    found.run(HIGH, 60)
    assert found.loop.kept.restarts_s == (NOW_S,)
    assert found.run(HIGH, 5) == 0


def test_a_third_time_is_refused_and_said(tmp_path: Path) -> None:
    """With two restarts behind it systemd goes on being told, and the reason is said once."""
    kept = Kept("a", clean=False, restarts_s=(NOW_S - 2, NOW_S - 1))
    found = _Loop(tmp_path, kept)
    assert found.run(HIGH, 100) == 100
    found.writer.wait(5)
    assert len(found.said) == 1
    assert "2 restarts within a day are enough" in found.said[0]
    assert found.loop.kept == kept


def test_a_disk_that_is_stuck_does_not_save_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that never ends holds the ending of the pings up for a moment only."""
    monkeypatch.setattr(last_resort, "WRITE_WITHIN_S", 0.05)
    stuck = threading.Event()
    monkeypatch.setattr(last_resort, "save", lambda *_: stuck.wait(20))
    found = _Loop(tmp_path, Kept("a", clean=False))
    assert found.run(HIGH, 70) == 59
    stuck.set()


def test_a_disk_that_is_full_does_not_save_the_box(tmp_path: Path) -> None:
    """A write that fails is said, and the pings end."""
    write_tree(tmp_path, {"/var/lib/plimsoll": "a file where the directory belongs"})
    found = _Loop(tmp_path, Kept("a", clean=False))
    assert found.run(HIGH, 70) == 59
    assert "not written down" in found.said[0]


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unclean boot before leaves a mark; the end of the unit leaves a boot that ended as it should."""
    monkeypatch.setattr(locking, "lock", list)
    monkeypatch.setattr(locking, "prepare", list)
    files = {"/proc/sys/kernel/random/boot_id": "b\n", "/proc/pressure/memory": "full avg10=1.00 total=5\n"}
    write_tree(tmp_path, files)
    host = Host(str(tmp_path))
    last_resort.save(host, Kept("a", clean=False))
    assert last_resort.held_back(host) is None
    stopped = threading.Event()
    stopped.set()
    said: list[str] = []
    assert last_resort.run(host, {}, stopped, said.append) == 0
    assert "did not end as it should" in (last_resort.held_back(host) or "")
    kept = last_resort.load(host)
    assert (kept.boot_id, kept.clean, len(kept.restarts_s)) == ("b", True, 1)


def test_the_pressure_is_read(tmp_path: Path) -> None:
    """The ten-second share of everybody stalled; None where there is no such file."""
    path = "/proc/pressure/memory"
    write_tree(tmp_path, {path: "some avg10=50.00 avg60=1.00 total=9\nfull avg10=12.34 avg60=1.00 total=5\n"})
    found = last_resort.Pressure(Host(str(tmp_path)))
    assert found.full_avg10() == 12.34
    assert last_resort.Pressure(Host(str(tmp_path / "nowhere"))).full_avg10() is None
    os.close(found._descriptor)


# --- the order of deadlines -------------------------------------------------------------------------

ORDERED = Deadlines(guard_stall_s=240.0, hung_task_s=120.0, panic_s=20, hardware_s=60.0)


def test_what_we_set_is_in_order() -> None:
    """The defaults of all layers together: hardware 60 s, guard 240 s, panic 260 s, last resort 300 s."""
    defaults = {c.target: c.default for c in (*kernel.CONTROLS, *recovery.CONTROLS)}
    sysctls: dict[str, str | None] = {key: defaults[key] for key in last_resort.SYSCTLS}
    stall_s = load_config("", "guard.toml", 120 << 20).settings.stall_s
    hardware = next(c.default for c in recovery.CONTROLS if c.name == "RuntimeWatchdogSec").removesuffix("s")
    found = deadlines(sysctls, hardware, stall_s)
    assert found == ORDERED
    assert disorder(found) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"guard_stall_s": 300.0}, "the guard's stall.for_s (300 s) must be below 300 s"),
        ({"hung_task_s": 140.0}, "only after up to 300 s"),
        ({"panic_s": 60}, "only after up to 300 s"),
        ({"panic_s": 0}, "the box would wait for ever"),
        ({"hardware_s": 300.0}, "the hardware watchdog (300 s) must be below 300 s"),
    ],
)
def test_each_wrong_order_is_told(change: dict[str, Any], words: str) -> None:
    """Every deadline that comes too late is named with what to do."""
    (found,) = disorder(replace(ORDERED, **change))
    assert words in found


def test_what_is_not_armed_is_in_no_ones_way() -> None:
    """Without panic, watchdog or stall rule there is nothing to be ordered."""
    assert disorder(Deadlines(None, None, None, None)) == []
    assert disorder(replace(ORDERED, panic_s=-1)) == []


def test_live_deadlines(tmp_path: Path) -> None:
    """They are read from the kernel and from the watchdog that is open; what is switched off is None."""
    base = "/proc/sys/kernel"
    files = {f"{base}/hung_task_timeout_secs": "120\n", f"{base}/hung_task_panic": "1\n", f"{base}/panic": "20\n"}
    dogs = {"watchdog0/state": "inactive", "watchdog0/timeout": "9", "watchdog1/state": "active"}
    dogs["watchdog1/timeout"] = "60"
    write_tree(tmp_path, {**files, **{f"/sys/class/watchdog/{name}": f"{text}\n" for name, text in dogs.items()}})
    host = Host(str(tmp_path))
    assert last_resort.live_deadlines(host, 240.0) == ORDERED
    write_tree(tmp_path, {f"{base}/hung_task_panic": "0\n"})
    assert last_resort.live_deadlines(host, None).hung_task_s is None
    write_tree(tmp_path, {f"{base}/hung_task_panic": "1\n", f"{base}/hung_task_timeout_secs": "0\n"})
    assert last_resort.live_deadlines(host, None).hung_task_s is None


def test_the_state_is_json(tmp_path: Path) -> None:
    """The state can be read by a person."""
    host = Host(str(tmp_path))
    last_resort.save(host, Kept("a"))
    assert json.loads(host.text(last_resort.PATH))["boot_id"] == "a"
