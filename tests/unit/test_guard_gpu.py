"""What the driver tells of its memory, and what it holds by the kernel's own books."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import gpu
from plimsoll.box.guard.gpu import AnswerError, Asking, Told, driver_held_kib, parse
from plimsoll.box.host import Ran
from plimsoll.box.memory import parse_meminfo

MIB = 1 << 10
GIB = 1 << 20


def await_that(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Wait until something holds that another thread brings about."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.005)
    return False


def asking(script: str, timeout_s: float = 5.0) -> Asking:
    """Return one who asks a shell script instead of nvidia-smi."""
    found = Asking(("/bin/sh", "-c", script), timeout_s)
    found.start()
    return found


def test_answer() -> None:
    """Amounts are in MiB; one process may be listed for several contexts."""
    assert parse("123, 19135\n77, 3\n77, 4\n") == {123: 19135 * MIB, 77: 7 * MIB}


@pytest.mark.parametrize("amount", ["[N/A]", "[Insufficient Permissions]", "[Not Supported]", "[Unknown Error]"])
def test_unknown_is_not_nothing(amount: str) -> None:
    """What is in brackets is unknown, also beside a known amount of the same process."""
    assert parse(f"123, {amount}\n123, 5\n") == {123: None}


@pytest.mark.parametrize("text", ["", "\n", "No running processes found\n"])
def test_nobody(text: str) -> None:
    """An empty list is an answer: nobody computes."""
    assert parse(text) == {}


@pytest.mark.parametrize("text", ["Failed to initialize NVML: Unknown Error", "a, 5", "12, five", "12", "-3, 4", "1,²"])
def test_no_list(text: str) -> None:
    """What is no list of processes is never taken for an empty one."""
    with pytest.raises(AnswerError):
        parse(text)


@given(st.text(max_size=100))
def test_any_text(text: str) -> None:
    """Whatever is printed, it is understood or refused."""
    with contextlib.suppress(AnswerError):
        assert all(pid >= 0 for pid in parse(text))


def test_ask_and_collect() -> None:
    """The answer is there some time after the question, with the time of the question."""
    asker = asking("echo '12, 100'")
    before_s = time.monotonic()
    assert asker.told == Told()
    assert asker.ask()
    assert await_that(lambda: asker.told.by_pid is not None)
    assert asker.told.by_pid == {12: 100 * MIB}
    assert before_s <= asker.told.asked_s <= time.monotonic()


def test_one_question_at_a_time() -> None:
    """While there is no answer nobody else is asked."""
    asker = asking("sleep 0.2")
    assert asker.ask()
    assert not asker.ask()
    assert await_that(asker.ask)


def test_failure_keeps_what_was_known(tmp_path: Path) -> None:
    """An answer that does not come leaves the last one, and says so."""
    flag = tmp_path / "broken"
    asker = asking(f"[ -e {flag} ] && exit 9; echo '12, 100'")
    asker.ask()
    assert await_that(lambda: asker.told.by_pid is not None)
    known = asker.told
    flag.touch()
    assert await_that(asker.ask)
    assert await_that(lambda: asker.told.problem is not None)
    assert (asker.told.by_pid, asker.told.asked_s) == (known.by_pid, known.asked_s)
    assert asker.told.problem == "nvidia-smi: ended with 9"


def test_no_nvidia_smi() -> None:
    """Where there is no nvidia-smi, nothing is known, and that is said."""
    asker = Asking(("/nonexistent/nvidia-smi",), 5.0)
    asker.start()
    asker.ask()
    assert await_that(lambda: asker.told.problem is not None)
    assert asker.told.by_pid is None


def test_nvidia_smi_blocks() -> None:
    """One that does not answer in time is killed, and the next question is asked."""
    asker = asking("echo '12, 100'; exec sleep 60", timeout_s=0.1)
    asker.ask()
    assert await_that(lambda: asker.told.problem is not None)
    assert asker.told.by_pid is None, "a part of an answer is none"
    assert await_that(asker.ask)


class Stuck:
    """Children that are stuck in the kernel until the test says otherwise."""

    def __init__(self) -> None:
        self.left = 0

    def run(self, command: Sequence[str], *_: object) -> Ran:
        """Give up a child of this test's; a question of an earlier test may still be on its way."""
        if command[-1] == "exit 3":
            self.left = 1
        return Ran(124, "", "not done in time, and could not be ended")

    def reap(self) -> int:
        """Return how many are left."""
        return self.left


def test_nvidia_smi_that_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a child is stuck in the kernel there is no other one, however long that takes; then there is."""
    stuck = Stuck()
    monkeypatch.setattr(gpu, "spawn", stuck)
    asker = asking("exit 3")
    asker.ask()
    assert await_that(lambda: asker.told.problem is not None)
    assert not await_that(asker.ask, timeout_s=0.1)
    stuck.left = 0
    assert await_that(asker.ask)


def test_child_has_an_ordinary_score(tmp_path: Path) -> None:
    """The OOM killer sees nvidia-smi as any other program."""
    out = tmp_path / "score"
    asker = asking(f"sleep 0.1; cat /proc/self/oom_score_adj >{out}")
    asker.ask()
    assert await_that(lambda: asker.told.by_pid is not None)
    assert out.read_text() == "0\n"


MEMINFO = """\
MemTotal:          127535084 kB
MemFree:           102000000 kB
MemAvailable:      120000000 kB
Buffers:               10000 kB
Cached:             17000000 kB
SwapCached:            50000 kB
AnonPages:           4000000 kB
KReclaimable:        1500000 kB
SReclaimable:        1500000 kB
SUnreclaim:          1400000 kB
KernelStack:           40000 kB
PageTables:           100000 kB
SecPageTables:             0 kB
Percpu:                20000 kB
"""


def test_driver_holds_what_is_in_no_bucket() -> None:
    """What is neither free nor in any of the kernel's buckets is the driver's."""
    assert driver_held_kib(parse_meminfo(MEMINFO)) == 1_415_084
    held = MEMINFO.replace("MemFree:           102000000", "MemFree:            52000000")
    assert driver_held_kib(parse_meminfo(held)) == 51_415_084


def test_driver_memory_that_is_counted_reclaimable() -> None:
    """What the driver has booked as reclaimable is its own all the same."""
    booked = MEMINFO.replace("MemFree:           102000000", "MemFree:            52000000")
    booked = booked.replace("KReclaimable:        1500000", "KReclaimable:       51500000")
    assert driver_held_kib(parse_meminfo(booked)) == 51_415_084


@pytest.mark.parametrize("name", ["MemTotal", "MemFree", "AnonPages", "SReclaimable"])
def test_unknown_with_a_field_missing(name: str) -> None:
    """Without a bucket it is not known what is in none."""
    text = "".join(line for line in MEMINFO.splitlines(keepends=True) if not line.startswith(name))
    assert driver_held_kib(parse_meminfo(text)) is None


def test_huge_pages_are_not_the_drivers() -> None:
    """Reserved huge pages are in a bucket of their own."""
    huge = MEMINFO + "HugePages_Total:     100\nHugepagesize:       2048 kB\n"
    assert driver_held_kib(parse_meminfo(huge)) == 1_415_084 - 204_800
