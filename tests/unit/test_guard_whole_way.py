"""From a running program to its end: found by what it has open, stopped, followed, and its memory asked back."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll.box.guard.act import Hand, Result
from plimsoll.box.guard.aftermath import follow
from plimsoll.box.guard.discovery import Discovery
from plimsoll.box.guard.gpu import Asking
from plimsoll.box.guard.model import Sample, Verb
from plimsoll.box.guard.reserve import Store
from plimsoll.box.guard.scout import Scout
from plimsoll.box.host import Host
from tests.unit.builders import write_tree
from tests.unit.guard_trees import ID
from tests.unit.guarding import ARMED, kib
from tests.unit.real_processes import CGROUP2, cgroup

GPU = "/dev/urandom"
"""Stands for the GPU's device file: nothing else has it open that is placed in the test's cgroup."""
ENGINE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = os.open(sys.argv[1], os.O_RDONLY)
child = os.fork()
print(os.getpid(), flush=True) if child else None
time.sleep(60)
"""


@pytest.fixture
def container() -> Iterator[Path]:
    """Make a cgroup as a container has it."""
    with cgroup(f"docker-{os.getpid():08x}{ID[8:]}.scope") as path:
        yield path


@pytest.fixture
def engine(container: Path) -> Iterator[int]:
    """Start a program of two processes there, which has the GPU open, ignores SIGTERM and is no child of the test's."""
    start = f"(echo $(sh -c 'echo $PPID') >{container}/cgroup.procs; exec {sys.executable} -c '{ENGINE}' {GPU}) &"
    shell = subprocess.Popen(("/bin/sh", "-c", start), stdout=subprocess.PIPE)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    shell.wait()
    yield pid
    (container / "cgroup.kill").write_text("1")
    shell.communicate()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return this machine as a box has its files, with a drop_caches of its own and no reservations."""
    assert CGROUP2 is not None
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").symlink_to(CGROUP2)
    (tmp_path / "proc").mkdir()
    for name in ("meminfo", "self", *(each.name for each in Path("/proc").iterdir() if each.name.isdecimal())):
        (tmp_path / "proc" / name).symlink_to(f"/proc/{name}")
    write_tree(tmp_path, {"/proc/sys/vm/drop_caches": "", "/proc/sys/kernel/random/boot_id": "boot\n"})
    return Host(str(tmp_path))


def test_the_whole_way(container: Path, engine: int, host: Host) -> None:
    """A container is found, asked to go, killed in milliseconds, seen to be gone, and its memory is asked back."""
    hand = Hand(host)
    scout = Scout(host, ARMED, Discovery(host, (GPU,)), hand, Store(host), Asking())
    found = scout.round(Sample(time.monotonic(), kib(20)))
    victim = next(each for each in found.known.workloads if each.cgroup == f"/{container.name}")
    assert (victim.kind, victim.holds_gpu, len(victim.processes)) == ("container", True, 2)

    assert hand.stop(victim, Verb.TERM).signalled == 1, "the main process alone is asked"
    os.kill(engine, 0)
    began_s = time.perf_counter()
    assert hand.stop(victim, Verb.KILL).result is Result.SIGNALLED
    took_s = time.perf_counter() - began_s
    after = follow(host, hand.watch(victim), lambda: kib(20), timeout_s=10)

    assert took_s < 0.05, "ten times what it takes, on a machine that is busy"
    assert after.gone_s is not None
    assert "populated 0" in (container / "cgroup.events").read_text()
    assert Path(host.path("/proc/sys/vm/drop_caches")).read_text() == "2\n"
    assert hand.stop(victim, Verb.KILL).result is Result.VANISHED
    hand.close()
