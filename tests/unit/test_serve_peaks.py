"""High-water marks, each with what it does not see; and whether what grows is warming up or leaking."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.box.guard.recording import HEADER
from plimsoll.box.host import Host
from plimsoll.box.serve.peaks import Growth, Point, footprint_kib, peaks, recorded, trend
from tests.unit.serving import kib

BEGAN_S = 1_782_900_000
BOOT = "# plimsoll.recording/1 boot=b1 mem_total_kib=127506841"


def series(minutes: int, level_gib: Callable[[float], float], every_s: int = 30) -> list[Point]:
    """Return points whose level is a function of the minute."""
    return [Point(float(at_s), kib(level_gib(at_s / 60))) for at_s in range(0, minutes * 60 + 1, every_s)]


def warming(minute: float) -> float:
    """Return what a mixture of 512 experts held: from 28 to 34.6 GiB in 39 minutes, and 34.5 from then on."""
    return 28 + 6.6 * min(1.0, minute / 39) - (0.1 if minute > 60 else 0)


def test_a_working_set_that_warms_up_is_no_leak() -> None:
    """The growth of the first 39 minutes was taken for a leak; a longer window says that it stopped."""
    found = trend(series(100, warming))
    assert found.verdict is Growth.WARMING_UP
    assert "it was warming up: in 1.7 h from 28." in found.said
    assert "A restart would only have it grow again" in found.said


def test_the_first_minutes_of_it_are_not_called_a_leak() -> None:
    """While it still grows nobody can tell; that is said, with when to look again."""
    found = trend(series(39, warming))
    assert found.verdict is Growth.UNKNOWN
    assert "look again after 90 minutes" in found.said


def test_growth_that_does_not_slow_down_is_a_leak() -> None:
    """A GiB an hour for six hours is a leak, at that pace."""
    found = trend(series(360, lambda minute: 80 + minute / 60))
    assert found.verdict is Growth.LEAKING
    assert abs(found.kib_per_h - kib(1)) < kib(0.02)
    assert "1.00 GiB an hour" in found.said


def test_a_leak_after_a_warm_up_is_seen() -> None:
    """What goes on growing after the working set is there is a leak nevertheless."""
    found = trend(series(600, lambda minute: warming(minute) + 3 * minute / 60))
    assert found.verdict is Growth.LEAKING


def test_slowing_growth_is_not_decided() -> None:
    """What grows more slowly than before, and has not stopped, is neither."""
    found = trend(series(120, lambda minute: 40 + 10 * (1 - 0.5 ** (minute / 40))))
    assert found.verdict is Growth.UNKNOWN
    assert "more slowly than before" in found.said


def test_what_stays_is_steady_whatever_requests_do() -> None:
    """Single requests that take some GiB for a moment are no growth; a fall is none either."""
    found = trend(series(120, lambda minute: 87 + (5 if minute % 10 == 0 else 0.1 * (minute % 2))))
    assert found.verdict is Growth.STEADY
    assert trend(series(120, lambda minute: 87 - minute / 60)).verdict is Growth.STEADY


@pytest.mark.parametrize("points", [[], [Point(0, 1)], series(29, lambda _minute: 5), [Point(0, 1), Point(9000, 2)]])
def test_too_little_is_not_judged(points: list[Point]) -> None:
    """Half an hour of points is needed, and not just its ends."""
    assert trend(points).verdict is Growth.UNKNOWN


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 1 << 27), min_size=60, max_size=120),
    st.integers(0, 1 << 31),
)
def test_it_does_not_matter_when_it_began(levels: list[int], began_s: int) -> None:
    """The verdict is by the time that passed, and not by the clock."""
    points = [Point(60.0 * index, level) for index, level in enumerate(levels)]
    moved = [Point(each.at_s + began_s, each.footprint_kib) for each in points]
    assert trend(points).verdict is trend(moved).verdict


def test_a_footprint_is_the_largest_difference() -> None:
    """It is never below nothing, and unknown where either figure is."""
    assert footprint_kib(kib(111), kib(9)) == kib(102)
    assert footprint_kib(kib(5), kib(9)) == 0
    assert footprint_kib(None, kib(9)) is None
    assert footprint_kib(kib(9), None) is None


# --- reading -----------------------------------------------------------------------------------------------


def row(unix_s: int, available_gib: float) -> str:
    """Return a line of the recording."""
    return f"{unix_s},{unix_s - BEGAN_S + 100}.00,{kib(available_gib)},1,0,0,0,0,0,0,A,,"


def record(root: Path, name: str, *lines: str) -> None:
    """Write a file of the recording."""
    directory = root / "var/log/plimsoll"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("\n".join([BOOT, HEADER, *lines, ""]))


def test_every_mark_is_told_with_what_it_misses(tmp_path: Path) -> None:
    """Lowest available memory, the cgroup's peak, and the processes' high water are different figures of one model."""
    record(tmp_path, "memory.csv", row(BEGAN_S - 10, 2), row(BEGAN_S, 100), row(BEGAN_S + 1, 11), row(BEGAN_S + 2, 20))
    group = tmp_path / "sys/fs/cgroup/system.slice/qwen.service"
    group.mkdir(parents=True)
    (group / "memory.peak").write_text(f"{kib(34) << 10}\n")
    for pid, high in ((7, 29), (8, 1)):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\tpython3\nVmHWM:\t  {kib(high)} kB\nVmRSS:\t 5 kB\n")
    found = peaks(Host(str(tmp_path)), "/system.slice/qwen.service", (7, 8, 9), BEGAN_S, kib(111))
    assert {each.name: each.kib for each in found} == {
        "lowest available memory": kib(100),
        "memory.peak": kib(34),
        "VmHWM": kib(30),
    }
    assert all(each.does_not_see for each in found)


def test_marks_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    """No recording, no cgroup, no process: nothing is called 0."""
    assert [each.kib for each in peaks(Host(str(tmp_path)), "", (), BEGAN_S, kib(111))] == [None, None, None]


def test_the_recording_is_read_from_both_files_since_a_time(tmp_path: Path) -> None:
    """What was rotated away belongs to it, and what is torn, unknown or of before does not."""
    record(tmp_path, "memory.csv.1", row(BEGAN_S - 1, 1), row(BEGAN_S, 100))
    record(tmp_path, "memory.csv", row(BEGAN_S + 1, 90), "torn,", f"{BEGAN_S + 2},1.00,,1,0,0,0,0,0,0,A,,", "\0\0")
    host = Host(str(tmp_path))
    assert recorded(host, BEGAN_S, kib(110)) == [Point(BEGAN_S, kib(10)), Point(BEGAN_S + 1, kib(20))]
    assert recorded(host, BEGAN_S, kib(110), BEGAN_S) == [Point(BEGAN_S, kib(10))]
    assert recorded(Host(str(tmp_path / "none")), BEGAN_S, kib(110)) == []


@pytest.mark.parametrize("since", [BEGAN_S, BEGAN_S + 2_345, BEGAN_S + 4_999, BEGAN_S + 9_999])
def test_a_long_recording_is_found_into(since: int, tmp_path: Path) -> None:
    """Wherever a time lies in a large file, all rows from it on are there, and each once."""
    record(tmp_path, "memory.csv", *(row(BEGAN_S + second, 50) for second in range(5_000)))
    found = recorded(Host(str(tmp_path)), since, kib(110))
    assert [int(each.at_s) for each in found] == list(range(since, BEGAN_S + 5_000))
