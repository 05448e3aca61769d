"""The guard as a process, over a tree that looks like a machine: it starts, tells, reloads, and stops."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.guard import config, daemon, records
from plimsoll.box.heartbeat import STATUS
from tests.unit.builders import write_tree

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from plimsoll.box.errors import BoxError
from plimsoll.box.guard import daemon
from plimsoll.box.host import Host
try:
    sys.exit(daemon.run(Host(sys.argv[2]), sys.argv[3]))
except BoxError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
MEMINFO = (
    "MemTotal: 127533056 kB\nMemFree: 40000000 kB\nMemAvailable: 90000000 kB\nBuffers: 0 kB\nCached: 50000000 kB\n"
    "Shmem: 0 kB\nAnonPages: 1000000 kB\nSwapFree: 0 kB\nKReclaimable: 300000 kB\nSReclaimable: 300000 kB\n"
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a tree with what the guard reads, and places for what it writes."""
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0 total=0\n",
        "/proc/sys/kernel/random/boot_id": "12345678-1234-1234-1234-123456789abc\n",
        "/proc/self/status": "VmLck:\t  20480 kB\n",
        config.PATH: "[hooks]\ncommand = []\n",
        "/usr/program": "a program",
    }
    write_tree(tmp_path, files)
    for directory in ("/var/log/plimsoll", "/var/lib/plimsoll/guard", "/run/plimsoll", "/sys/fs/cgroup"):
        (tmp_path / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return tmp_path


def started(machine: Path) -> "subprocess.Popen[str]":
    """Start a guard over the tree."""
    command = [sys.executable, "-I", "-c", PROGRAM, str(ROOT), str(machine), str(machine / "usr/program")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def guard(machine: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yield a guard that has told of itself."""
    with started(machine) as process:
        until(lambda: status(machine) is not None, process)
        yield process
        process.kill()


def until(is_so: Callable[[], bool], process: "subprocess.Popen[str]", within_s: float = WAIT_S) -> None:
    """Wait for something to be so while a process runs."""
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def status(machine: Path) -> dict[str, Any] | None:
    """Return the guard's status, None while there is none."""
    file = machine / STATUS.lstrip("/")
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def kinds(machine: Path) -> list[str]:
    """Return the kinds of the records so far."""
    file = machine / records.PATH.lstrip("/")
    text = file.read_text() if file.exists() else ""
    return [each["kind"] for each in records.read_records(text).records]


def test_it_tells_what_it_sees(machine: Path, guard: "subprocess.Popen[str]") -> None:
    """The status has memory as the tree says, the floor armed, and the process itself."""
    found = status(machine)
    assert found is not None
    assert found["available_bytes"] == 90000000 * 1024
    assert found["guard"]["pid"] == guard.pid
    assert found["guard"]["locked_bytes"] == 20480 * 1024
    assert {each["rule"]: each["armed"] for each in found["rules"]} == {
        "floor": True, "rate": False, "slow": False, "stall": False,
    }  # fmt: skip


def test_it_stops_when_told_and_says_so(machine: Path, guard: "subprocess.Popen[str]") -> None:
    """SIGTERM ends it with 0, and the last record is that."""
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(WAIT_S) == 0
    assert kinds(machine)[-1] == "stop"


def test_a_faulty_file_changes_nothing(machine: Path, guard: "subprocess.Popen[str]") -> None:
    """A reload of a file with a misspelt key is told with its line, and the guard goes on by what it had."""
    before = status(machine)
    (machine / config.PATH.lstrip("/")).write_text("[lines]\nfloor_gb = 1\n")
    guard.send_signal(signal.SIGHUP)
    until(lambda: any("guard.toml:2" in each for each in (status(machine) or {})["guard"]["problems"]), guard)
    after = status(machine)
    assert before is not None
    assert after is not None
    assert after["lines"] == before["lines"]
    assert after["guard"]["config_sha256"] == before["guard"]["config_sha256"]
    assert "warning" in kinds(machine)


def test_a_changed_file_is_gone_by(machine: Path, guard: "subprocess.Popen[str]") -> None:
    """A reload of a good file gives other lines."""
    (machine / config.PATH.lstrip("/")).write_text("[lines]\nfloor_gib = 2.5\n")
    guard.send_signal(signal.SIGHUP)
    until(lambda: (status(machine) or {})["lines"]["floor_bytes"] == round(2.5 * (1 << 30)), guard)
    assert "config" in kinds(machine)


@pytest.mark.usefixtures("guard")
def test_there_is_only_one(machine: Path) -> None:
    """A second guard on the same machine is refused, to be tried again later, and writes nothing."""
    with started(machine) as second:
        assert second.wait(WAIT_S) == daemon.RunningError.exit_code
        assert second.stderr is not None
        assert "already" in second.stderr.read()


@pytest.mark.usefixtures("guard")
def test_a_hook_that_starts_a_guard_is_no_successor(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has the guard's environment, but not its lock: it is refused as any other."""
    monkeypatch.setenv(daemon.LOCK_VARIABLE, "0")
    with started(machine) as second:
        assert second.wait(WAIT_S) == daemon.RunningError.exit_code


def test_below_the_floor_it_says_that_there_is_nobody(machine: Path, guard: "subprocess.Popen[str]") -> None:
    """Memory that falls below the floor with nobody on the GPU is one record, and kills nobody."""
    low = MEMINFO.replace("MemAvailable: 90000000", "MemAvailable: 1000000")
    (machine / "proc/meminfo").write_text(low)
    until(lambda: "decision" in kinds(machine), guard)
    assert guard.poll() is None
    assert kinds(machine).count("signalled") == 0


def test_a_faulty_file_at_the_start_is_an_error(machine: Path) -> None:
    """Without a configuration that can be used it does not guess: exit code 4, with the line."""
    (machine / config.PATH.lstrip("/")).write_text("[lines]\nfloor_gib = 'three'\n")
    with started(machine) as process:
        assert process.wait(WAIT_S) == config.ConfigError.exit_code
        assert process.stderr is not None
        assert "guard.toml:2" in process.stderr.read()
