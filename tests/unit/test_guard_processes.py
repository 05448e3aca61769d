"""Reading processes: cheaply, in rounds, and by nothing that they say of themselves."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import processes
from plimsoll.box.guard.patience import Patient
from plimsoll.box.guard.processes import Scanner, parse_stat, read_stat
from plimsoll.box.host import Host
from tests.unit.guard_trees import DOCKER, SESSION, Shown


def test_stat_with_a_hostile_name(tmp_path: Path) -> None:
    """A name with brackets, blanks and line ends does not shift what follows it."""
    Shown(55, "a) R 1 (\nb", DOCKER, start=777, rss_kib=4096).write(tmp_path)
    stat = read_stat(Host(str(tmp_path)), 55)
    assert stat is not None
    assert (stat.comm, stat.start_ticks, stat.resident_kib, stat.threads) == ("a) R 1 (\nb", 777, 4096, 1)


@given(st.binary(max_size=200))
def test_garbage_in_stat(text: bytes) -> None:
    """Whatever a stat file holds, it is read or it is none."""
    parse_stat(text)


def test_scan(tmp_path: Path) -> None:
    """Processes come with their engine and GPU devices; threads of the kernel and the dead do not come."""
    Shown(10, "vllm", DOCKER, argv=["/usr/bin/vllm", "serve"], links=["/dev/nvidia0", "/dev/null"]).write(tmp_path)
    Shown(11, "kworker/0", "/", flags=0x00200000).write(tmp_path)
    Shown(12, "python3", "/", state="Z").write(tmp_path)
    (one,) = Scanner(Host(str(tmp_path))).scan(0.0).processes
    assert (one.pid, one.engine, one.devices, one.cgroup) == (10, "vllm", frozenset({"/dev/nvidia0"}), DOCKER)


def test_other_devices_mark_the_gpu(tmp_path: Path) -> None:
    """Which device files mark a holder is a setting."""
    Shown(10, "hog", DOCKER, links=["/dev/fakegb10"]).write(tmp_path)
    assert Scanner(Host(str(tmp_path))).scan(0.0).processes[0].devices == frozenset()
    assert Scanner(Host(str(tmp_path)), ("/dev/fakegb10",)).scan(0.0).processes[0].devices == frozenset(
        {"/dev/fakegb10"}
    )


def test_a_number_that_was_used_again(tmp_path: Path) -> None:
    """Nothing that was known of a process is told of a later one with its number."""
    directory = Shown(10, "vllm", DOCKER, links=["/dev/nvidia0"]).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    scanner.scan(0.0)
    (directory / "fd" / "0").unlink()
    Shown(10, "bash", SESSION, start=5000).write(tmp_path)
    (one,) = scanner.scan(1.0).processes
    assert (one.comm, one.engine, one.devices, one.cgroup, one.argv) == ("bash", None, frozenset(), SESSION, ("bash",))


def test_an_old_process_that_opens_the_gpu(tmp_path: Path) -> None:
    """A process that opens the GPU after hours is seen within half a minute, or at once while memory falls."""
    directory = Shown(10, "python3", SESSION).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    for at_s in (0.0, 100.0):
        scanner.scan(at_s)
    (directory / "fd" / "7").symlink_to("/dev/nvidia-uvm")
    assert not scanner.scan(101.0).processes[0].devices
    assert scanner.scan(102.0, thorough=True).processes[0].devices
    assert scanner.scan(131.0).processes[0].devices


def test_a_young_process_is_looked_at_in_every_round(tmp_path: Path) -> None:
    """A process that was just started is seen to open the GPU in the next round."""
    directory = Shown(10, "python3", SESSION).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    scanner.scan(0.0)
    (directory / "fd" / "7").symlink_to("/dev/nvidia-uvm")
    assert scanner.scan(0.5).processes[0].devices


def test_a_process_that_becomes_another_program(tmp_path: Path) -> None:
    """After exec the new program's name and arguments count."""
    Shown(10, "bash", SESSION).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    scanner.scan(0.0)
    Shown(10, "vllm", SESSION, argv=["vllm", "serve"]).write(tmp_path)
    assert scanner.scan(0.5).processes[0].engine == "vllm"


def test_unreadable_open_files_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel refuses a look at open files, it is not said that there are none."""
    Shown(10, "vllm", DOCKER).write(tmp_path)

    def refuse(path: str) -> list[str]:
        if path.endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return ["10"]

    monkeypatch.setattr(os, "listdir", refuse)
    scan = Scanner(Host(str(tmp_path))).scan(0.0)
    assert scan.processes[0].devices is None
    assert scan.problems == ("open files of 1 processes cannot be read: pid 10",)


def test_too_many_open_files_are_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends though there are more open files than it can look at; the next one goes on."""
    monkeypatch.setattr(processes, "LINKS_A_ROUND", 2)
    for pid in (10, 11):
        Shown(pid, "python3", DOCKER, links=["/dev/null", "/dev/nvidia0"]).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    first = scanner.scan(0.0)
    assert [bool(each.devices) for each in first.processes] == [True, False], "the newest first"
    assert first.problems == ("1 of very many processes, or their open files, are left for the next round",)


def test_a_fork_bomb_does_not_hide_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is not time for all processes, those that use the GPU are looked at, and the rest is said."""
    Shown(10, "vllm", DOCKER, links=["/dev/nvidia0"], rss_kib=4096).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    scanner.scan(0.0)
    monkeypatch.setattr(processes, "LOOKS_A_ROUND", 2)
    Shown(10, "vllm", DOCKER, rss_kib=8192).write(tmp_path)
    for pid in range(100, 110):
        Shown(pid, "bomb", SESSION).write(tmp_path)
    scan = scanner.scan(1.0)
    assert [(each.pid, each.resident_kib) for each in scan.processes] == [(10, 8192), (109, 4096)]
    assert scan.problems == ("9 of very many processes, or their open files, are left for the next round",)


def test_patience() -> None:
    """One read that never returns costs its time once, and is known to be stuck; all others are answered."""

    def read(item: int) -> int | None:
        if item == 3:
            time.sleep(5)
        return None if item == 4 else item * 2

    patient = Patient(read, patience_s=0.1)
    assert patient.read(range(6)) == {0: 0, 1: 2, 2: 4, 5: 10}
    assert patient.stuck == (3,)
    began_s = time.monotonic()
    assert patient.read(range(4)) == {0: 0, 1: 2, 2: 4}
    assert time.monotonic() - began_s < 0.1


def test_many_processes_are_cheap(tmp_path: Path) -> None:
    """5,000 processes would take less than a second of a core in the first round, and far less afterwards."""
    count = 500
    for pid in range(10, 10 + count):
        Shown(pid, "python3", f"/system.slice/docker-{pid:064x}.scope", links=["/dev/null"] * 4).write(tmp_path)
    scanner = Scanner(Host(str(tmp_path)))
    rounds = []
    for at_s in (0.0, 61.0, 62.0):
        began_s = time.process_time()
        assert len(scanner.scan(at_s).processes) == count
        rounds.append((time.process_time() - began_s) * 5000 / count)
    assert rounds[0] < 2.0, "twice the time, on a machine that is busy"
    assert rounds[2] < rounds[0] / 3


def test_own_process_is_found() -> None:
    """On the running machine a process is found by what it has open."""
    with Path(os.devnull).open("rb"):
        mine = next(each for each in Scanner(Host(), (os.devnull,)).scan(0.0).processes if each.pid == os.getpid())
    assert mine.devices == frozenset({os.devnull})
    assert mine.resident_kib > 4096
