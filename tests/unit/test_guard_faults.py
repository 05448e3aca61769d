"""A real engine is stopped by a real guard process, whatever else is broken; and the record says what happened."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.guard import config, records
from tests.unit.builders import write_tree
from tests.unit.guard_trees import Shown
from tests.unit.real_processes import CGROUP2, cgroup
from tests.unit.test_guard_daemon import MEMINFO, ROOT, machine, status, until

__all__ = ["machine"]
GPU = "/dev/urandom"
"""Stands for the GPU's device file."""
ENGINE = """
import os, sys
kept = os.open(sys.argv[1], os.O_RDONLY)
os.setuid(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
taken = bytearray(os.urandom(1) * (48 << 20))
print("has grown", flush=True)
sys.stdin.readline()
"""
PROGRAM = """
import os, sys, time
if sys.argv[1:] != ["guard"]:
    sys.exit("this one answers nothing")
sys.path.insert(0, {checkout!r})
from plimsoll.box.guard import daemon
from plimsoll.box.host import Host
clock = time.time
time.time = lambda: clock() - (86400 if os.path.exists({root!r} + "/set-back") else 0)
sys.exit(daemon.run(Host({root!r}), __file__))
"""
TOML = f"""
[victims]
gpu_devices = ["{GPU}"]
attributed_min_mib = 16
[hooks]
command = []
"""
LOG = "var/log/plimsoll"
WITHIN_S = 120.0
NOTHING: dict[str, Any] = {"candidates": []}


@dataclass
class Box:
    """A tree that looks like a machine, with one real engine in it, and who guards it."""

    root: Path
    engine: "subprocess.Popen[str]"
    cgroup: Path
    guard: "subprocess.Popen[str] | None" = None

    def begin(self, *within: str) -> None:
        """Start a guard, by another command if need be, and wait until it has seen the engine."""
        argv = [*within, sys.executable, "-I", str(self.program), "guard"]
        self.guard = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.until(lambda: any("holds the GPU" in each["reason"] for each in (self.status or NOTHING)["candidates"]))

    @property
    def program(self) -> Path:
        """What is installed."""
        return self.root / "usr/program"

    @property
    def status(self) -> dict[str, Any] | None:
        """What the guard that runs says of itself; None before it has."""
        found = status(self.root)
        return found if found and self.guard and found["guard"]["pid"] == self.guard.pid else None

    def until(self, is_so: Any) -> None:  # noqa: ANN401  # a function without arguments
        """Wait for something to be so while the guard runs."""
        assert self.guard is not None
        until(is_so, self.guard, WITHIN_S)

    def available(self, kib: int) -> None:
        """Have so much memory available from now on; whole at once, as the kernel tells it."""
        (self.root / "proc/meminfo").write_text(MEMINFO.replace("90000000", f"{kib:>8}"))

    def runs_out(self) -> None:
        """Have the engine grow while memory falls below the floor."""
        self.available(80000000)
        self._tell("has grown")
        self.available(1000000)

    def _tell(self, answer: str) -> None:
        assert self.engine.stdin is not None
        assert self.engine.stdout is not None
        self.engine.stdin.write("\n")
        self.engine.stdin.flush()
        assert self.engine.stdout.readline() == f"{answer}\n"

    def engine_is_killed(self) -> bool:
        """Say whether the engine has died of SIGKILL."""
        return self.engine.poll() == -signal.SIGKILL

    def records(self) -> list[dict[str, Any]]:
        """Return the records that are on the disk."""
        with suppress(FileNotFoundError):
            return records.read_records((self.root / LOG / "guard.jsonl").read_text()).records
        return []

    def has_record(self, kind: str, words: str = "") -> bool:
        """Say whether there is a record of that kind with these words in it."""
        return any(each["kind"] == kind and words in json.dumps(each) for each in self.records())


@pytest.fixture
def engine_uid() -> int:
    """Whose the engine is."""
    return 0


@pytest.fixture
def box(machine: Path, engine_uid: int) -> Iterator[Box]:
    """Yield a machine with an engine in a container's cgroup, above every line."""
    name = f"docker-{os.getpid():064x}.scope"
    with cgroup(name) as path, started(engine_uid) as engine:
        (path / "cgroup.procs").write_text(str(engine.pid))
        (machine / "sys/fs/cgroup").rmdir()
        assert CGROUP2 is not None
        (machine / "sys/fs/cgroup").symlink_to(CGROUP2)
        (machine / "proc" / str(engine.pid)).symlink_to(f"/proc/{engine.pid}")
        program = PROGRAM.format(checkout=str(ROOT), root=str(machine))
        write_tree(machine, {config.PATH: TOML, "/usr/program": program})
        made = Box(machine, engine, path)
        yield made
        if made.guard is not None:
            made.guard.kill()
            made.guard.communicate()


@contextmanager
def started(uid: int) -> Iterator["subprocess.Popen[str]"]:
    """Start an engine that has the GPU open, and end it with the test."""
    argv = [sys.executable, "-I", "-c", ENGINE, GPU, str(uid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline() == "ready\n"
            yield engine
        finally:
            engine.kill()


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a disk of 64 KiB there, and yield a file on it that fills it."""
    if subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64k,mode=0750", "tmpfs", directory), check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with suppress(OSError), (directory / "other").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield directory / "other"
    finally:
        subprocess.run(("umount", "-l", directory), check=True)


def test_a_full_disk_and_a_journal_that_has_stopped(box: Box) -> None:
    """The engine is killed all the same; once there is room, the file says how many records it lacks."""
    address = box.root / "run/systemd/journal/socket"
    address.parent.mkdir(parents=True)
    with small_disk(box.root / LOG) as other, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(address))
        box.begin()
        box.runs_out()
        box.until(box.engine_is_killed)
        box.until(lambda: any("No space left" in each for each in (box.status or {})["guard"]["problems"]))
        assert not box.has_record("signalled")
        other.unlink()
        box.available(90000000)
        assert box.guard is not None
        box.guard.send_signal(signal.SIGHUP)
        box.until(lambda: box.has_record("warning", "records before this one are not in"))


def test_a_log_directory_that_is_gone(box: Box) -> None:
    """It is made anew, for the record of the kill."""
    box.begin()
    for each in (box.root / LOG).iterdir():
        each.unlink()
    (box.root / LOG).rmdir()
    box.runs_out()
    box.until(box.engine_is_killed)
    box.until(lambda: box.has_record("signalled", '"rule": "floor"'))


def test_a_clock_that_is_set_back(box: Box) -> None:
    """A day back, it goes on to look, to write its status and its recording, and to kill."""
    box.begin()
    before_s = time.time()
    (box.root / "set-back").touch()
    box.until(lambda: (box.status or {})["unix_s"] < before_s - 80000)
    box.runs_out()
    box.until(box.engine_is_killed)
    box.until(lambda: box.has_record("signalled"))
    rows = (box.root / LOG / "memory.csv").read_text().splitlines()
    assert float(rows[-1].split(",")[0]) < before_s - 80000 < float(rows[2].split(",")[0])


@pytest.mark.parametrize("garbage", ["", "MemAvailable: -5 kB\n", "\0\xff\0", "MemFree: lots kB\nCached: 5 kB\n"])
def test_garbage_in_proc(garbage: str, box: Box) -> None:
    """While nothing can be understood nobody is killed, and that is said; when it can be again, the floor holds."""
    box.begin()
    (box.root / "proc/meminfo").write_text(garbage, encoding="latin-1")
    (box.root / "proc/pressure/memory").write_text("full avg10=\n")
    box.until(lambda: (box.status or {})["available_bytes"] is None)
    assert box.engine.poll() is None
    box.runs_out()
    box.until(box.engine_is_killed)
    box.until(lambda: box.has_record("signalled"))


def test_a_guard_that_was_killed(box: Box) -> None:
    """The next one begins at once, with what was left half written, and does what the first one would have done."""
    box.begin()
    assert box.guard is not None
    box.guard.kill()
    box.guard.communicate()
    for name in ("guard.jsonl", "memory.csv"):
        with (box.root / LOG / name).open("a") as file:
            file.write('{"schema": "plims')
    box.begin()
    box.runs_out()
    box.until(box.engine_is_killed)
    box.until(lambda: box.has_record("signalled"))
    assert [each["kind"] for each in box.records()].count("start") == 2


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing here starts a program with fewer rights")
@pytest.mark.parametrize("engine_uid", [65534])
def test_a_guard_that_may_not(box: Box) -> None:
    """What the kernel refuses is a record that says so, and the guard goes on to look."""
    (box.cgroup / "cgroup.kill").chmod(0)
    box.begin("setpriv", "--bounding-set=-kill,-dac_override")
    box.runs_out()
    box.until(lambda: box.has_record("signalled", '"outcome": "denied"'))
    assert box.engine.poll() is None
    box.available(90000000)
    box.until(lambda: (box.status or {})["available_bytes"] == 90000000 << 10)


def test_a_fork_bomb_beside_it(box: Box) -> None:
    """Among processes that come and go all the time, in /proc and for real, the engine is found and killed."""
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number = (number + 1) % 300
            directory = Shown(2_000_000 + number, "bomb", "/bomb.scope", ppid=1).write(box.root)
            for each in directory.iterdir():
                each.rmdir() if each.is_dir() else each.unlink()
            directory.rmdir()

    bomb = subprocess.Popen(("/bin/sh", "-c", "while :; do /bin/true & /bin/true & /bin/true & wait; done"))
    churning = threading.Thread(target=churn)
    churning.start()
    try:
        box.begin()
        box.runs_out()
        box.until(box.engine_is_killed)
        box.until(lambda: box.has_record("signalled"))
    finally:
        over.set()
        bomb.kill()
        bomb.wait()
        churning.join(WITHIN_S)


def test_five_thousand_processes(box: Box) -> None:
    """However many there are, the one that took the memory is killed."""
    for number in range(5000):
        directory = box.root / "proc" / str(3_000_000 + number)
        directory.mkdir()
        if number == 0:
            model = Shown(3_000_000, "sh", "/system.slice/others.service").write(box.root)
        else:
            for name in ("stat", "cgroup", "cmdline"):
                os.link(model / name, directory / name)
    box.begin()
    box.runs_out()
    box.until(box.engine_is_killed)
    box.until(lambda: box.has_record("signalled"))


def test_a_new_version_takes_over_from_one_that_has_just_killed(box: Box) -> None:
    """The old guard hands over once memory is back, and the new one looks on at once; nobody is left twice."""
    box.begin()
    box.runs_out()
    box.until(box.engine_is_killed)
    box.available(90000000)
    box.until(lambda: box.has_record("recovered"))
    with box.program.open("a") as file:
        file.write("# another version\n")
    assert box.guard is not None
    box.guard.send_signal(signal.SIGHUP)
    assert box.guard.wait(WITHIN_S) == 0
    before_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    successor = successor_of(box)
    try:
        assert successor["sampled_monotonic_s"] > before_s - 3
        assert [each["kind"] for each in box.records()].count("start") == 2
    finally:
        os.kill(successor["pid"], signal.SIGKILL)


def successor_of(box: Box) -> dict[str, Any]:
    """Wait until another guard than the box's tells of itself, and return what it says."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        found = status(box.root)
        if found is not None and box.guard is not None and found["guard"]["pid"] != box.guard.pid:
            return dict(found["guard"])
        time.sleep(0.02)
    raise AssertionError("nobody has taken over")
