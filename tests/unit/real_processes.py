"""Real processes and a real cgroup, for tests of what is done to them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plimsoll.box.guard.model import Process
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.host import Host

CGROUP2 = next(
    (Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2] == "cgroup2"),
    None,
)
HERE = Host()
Start = Callable[..., Process]


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Start programs, and end them with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str) -> Process:
        child = subprocess.Popen(argv or ("sleep", "60"), stdout=subprocess.PIPE, start_new_session=True)
        running.append(child)
        return identity(child.pid)

    yield begin
    for child in running:
        child.kill()
        child.communicate()


def identity(pid: int) -> Process:
    """Return a running process by its number and start."""
    stat = read_stat(HERE, pid)
    assert stat is not None
    return Process(pid, stat.start_ticks)


@contextlib.contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """Make a cgroup in the kernel's own tree; the test is skipped where none can be made."""
    if CGROUP2 is None or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup2 that is mounted")
    path = CGROUP2 / name
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield path
    finally:
        for each in (*path.glob("*/"), path):
            if each.is_dir():
                rmdir(each)


def rmdir(path: Path) -> None:
    """Remove a cgroup once its dead are gone."""
    deadline_s = time.monotonic() + 5
    while path.exists() and time.monotonic() < deadline_s:
        try:
            path.rmdir()
        except OSError:
            time.sleep(0.01)
