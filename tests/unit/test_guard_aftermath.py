"""After a kill: when a victim is gone, what comes back, what it left in shared memory, and what nobody holds."""

import errno
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard import shm
from plimsoll.box.guard.act import Hand, Ready
from plimsoll.box.guard.aftermath import (
    DROP_CACHES,
    STRANDED_EVERY_S,
    Kept,
    Stranded,
    drop_pool,
    follow,
    is_stranded,
    looked,
    reclaimed,
    run_hook,
    until_gone,
)
from plimsoll.box.guard.model import KIB_PER_GIB, Process
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.guard.shm import Shared, SharedMemory, parse_maps
from plimsoll.box.guard.workloads import Target
from plimsoll.box.host import Host
from tests.unit.guarding import workload

GIB = KIB_PER_GIB
HERE = Host()


class Seeing(Host):
    """This machine, without those processes that a test may not look at."""

    def names(self, directory: str) -> list[str]:
        """Leave out what cannot be looked at; a guard would have to leave everything alone."""
        return [name for name in super().names(directory) if directory != "/proc" or may_look_at(name)]


def may_look_at(name: str) -> bool:
    """Say whether the kernel lets this process look at another one, or it is gone."""
    try:
        with Path(f"/proc/{name}/maps").open("rb"):
            return True
    except PermissionError:
        return False
    except OSError:
        return True


NOBODY = Target((), "")


def identity(pid: int) -> Process:
    """Return a running process by its number and start."""
    stat = read_stat(HERE, pid)
    assert stat is not None
    return Process(pid, stat.start_ticks)


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start programs, and end them with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        running.append(child)
        return child

    yield begin
    for child in running:
        child.kill()
        child.communicate()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return this machine with a drop_caches of its own."""
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / DROP_CACHES[1:]).touch()
    return Host(str(tmp_path))


def group_of(*children: "subprocess.Popen[bytes]") -> Ready:
    """Return the descriptors of a group of processes."""
    one = workload(whole_cgroup=False, processes=tuple(identity(each.pid) for each in children))
    return Hand(HERE).watch(one)


# --- gone -------------------------------------------------------------------------------------------


def test_a_group_is_gone_with_its_last_process(host: Host, start: Start) -> None:
    """The pool is emptied after the last process of a group has ended, and not before."""
    first, last = start("sleep", "60"), start("sleep", "60")
    victim = group_of(first, last)
    caches = Path(host.path(DROP_CACHES))
    written: list[str] = []
    first.kill()

    def end_the_last() -> None:
        written.append(caches.read_text())
        last.kill()

    timer = threading.Timer(0.2, end_the_last)
    timer.start()
    levels = iter([10, 10, 90, 95])
    after = follow(host, victim, lambda: next(levels) * GIB)
    timer.join()
    assert written == [""]
    assert caches.read_text() == "2\n"
    assert after.gone_s is not None
    assert after.gone_s >= 0.15
    assert after.dropped is not None
    assert (after.dropped.came_back_kib, after.dropped.problem) == (80 * GIB, None)
    assert after.came_back_kib == 85 * GIB


def test_one_that_does_not_go(host: Host, start: Start) -> None:
    """While a victim is still there nothing is emptied: what it gives back later would be stranded."""
    victim = group_of(start("sleep", "60"))
    after = follow(host, victim, lambda: 10 * GIB, timeout_s=0.1)
    assert (after.gone_s, after.dropped) == (None, None)
    assert Path(host.path(DROP_CACHES)).read_text() == ""


def test_descriptors_are_closed(host: Host, start: Start) -> None:
    """Whatever comes of it, the victim's descriptors are closed."""
    victim = group_of(start("sleep", "60"))
    follow(host, victim, lambda: None, timeout_s=0.01)
    for each in victim.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)


def test_a_cgroup_that_empties(tmp_path: Path) -> None:
    """A cgroup is gone once its events say so."""
    events = tmp_path / "cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    descriptor = os.open(events, os.O_RDONLY)
    assert not until_gone(Ready(None, {}, NOBODY, descriptor), 0.05)
    events.write_text("populated 0\nfrozen 0\n")
    assert until_gone(Ready(None, {}, NOBODY, descriptor), 0.05)
    os.close(descriptor)


def test_a_cgroup_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup that was removed was empty."""

    def removed(*_: object) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "pread", removed)
    with Path("/dev/null").open("rb") as file:
        assert until_gone(Ready(None, {}, NOBODY, file.fileno()), 0.0)


def test_a_real_cgroup_wakes_who_waits(start: Start) -> None:
    """The kernel tells at once that a cgroup has become empty."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    base = next((Path(row[1]) for row in mounts if row[2] == "cgroup2"), None)
    if base is None or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup2 that is mounted")
    group = base / f"plimsoll-test-aftermath-{os.getpid()}"
    group.mkdir()
    try:
        child = start("sleep", "60")
        (group / "cgroup.procs").write_text(str(child.pid))
        descriptor = os.open(group / "cgroup.events", os.O_RDONLY)
        assert not until_gone(Ready(None, {}, NOBODY, descriptor), 0.01)
        threading.Timer(0.1, child.kill).start()
        began_s = time.monotonic()
        assert until_gone(Ready(None, {}, NOBODY, descriptor), 10)
        assert time.monotonic() - began_s < 5
        os.close(descriptor)
        child.wait()
    finally:
        group.rmdir()


def test_drop_that_fails(tmp_path: Path) -> None:
    """A pool that cannot be emptied is said, and nothing is claimed to have come back."""
    dropped = drop_pool(Host(str(tmp_path)), lambda: None)
    assert dropped.came_back_kib is None
    assert dropped.problem is not None


def test_drop_that_hangs(host: Host) -> None:
    """A write that blocks is given up after its time."""
    caches = Path(host.path(DROP_CACHES))
    caches.unlink()
    os.mkfifo(caches)
    began_s = time.monotonic()
    dropped = drop_pool(host, lambda: 1, timeout_s=0.2)
    assert time.monotonic() - began_s < 5
    assert dropped.problem is not None


# --- hooks ------------------------------------------------------------------------------------------


def test_hook_gets_the_record(tmp_path: Path) -> None:
    """A hook reads the record as JSON, and is an ordinary program to the OOM killer."""
    out = tmp_path / "out"
    command = ("/bin/sh", "-c", f"sleep 0.1; cat >{out}; cat /proc/self/oom_score_adj >>{out}")
    assert run_hook(command, {"victim": "a\n\x1b[31m"}, 5) is None
    text, score = out.read_text().rsplit("}", 1)
    assert json.loads(text + "}") == {"victim": "a\n\x1b[31m"}
    assert score == "0\n"


@pytest.mark.parametrize(("script", "said"), [("exit 3", "exit code 3"), ("exec sleep 60", "not done in 0.2 s")])
def test_hook_that_fails(script: str, said: str) -> None:
    """A hook that fails or takes too long is said, and holds up nobody."""
    problem = run_hook(("/bin/sh", "-c", script), {}, 0.2)
    assert problem is not None
    assert said in problem


def test_no_hook() -> None:
    """Without a hook nothing is run."""
    assert run_hook((), {}, 1) is None


# --- shared memory ----------------------------------------------------------------------------------


def test_maps() -> None:
    """Only what lies in /dev/shm and was not removed counts, whatever its name holds."""
    text = (
        b"7f00-7f01 rw-s 00000000 00:1a 42                         /dev/shm/nccl-a b\n"
        b"7f01-7f02 rw-s 00000000 00:1a 43                         /dev/shm/gone (deleted)\n"
        b"7f02-7f03 r--p 00000000 fd:01 44                         /usr/lib/dev/shm/x\n"
        b"7f03-7f04 rw-p 00000000 00:00 0 \n"
        b"garbage\n"
    )
    assert parse_maps(text, 7) == {Shared(os.makedev(0, 0x1A), 42, "nccl-a b", 7)}


@given(st.binary(max_size=300))
def test_any_maps(text: bytes) -> None:
    """Whatever a maps file holds, it is read."""
    parse_maps(text, 0)


MAPPER = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 1 << 20)
kept = mmap.mmap(fd, 1 << 20)
kept[:4096] = b"x" * 4096
os.close(fd)
print(1, flush=True)
time.sleep(60)
"""


@pytest.fixture
def shared_file() -> Iterator[Path]:
    """Return a path in /dev/shm that is gone after the test."""
    path = Path(f"/dev/shm/plimsoll-test-{os.getpid()}")  # noqa: S108  # it is what is tested
    yield path
    path.unlink(missing_ok=True)


def mapped_by_victim(path: Path, start: Start) -> tuple[SharedMemory, frozenset[Shared], "subprocess.Popen[bytes]"]:
    """Start a program that maps a file; return what was seen of it."""
    child = start(sys.executable, "-c", MAPPER, str(path))
    assert child.stdout is not None
    child.stdout.readline()
    memory = SharedMemory(Seeing())
    return memory, memory.mapped([identity(child.pid)]), child


def test_what_the_dead_leave(shared_file: Path, start: Start) -> None:
    """A file that only the victim had mapped is removed, with its size."""
    memory, files, child = mapped_by_victim(shared_file, start)
    assert [each.name for each in files] == [shared_file.name]
    child.kill()
    child.wait()
    removed = memory.remove(files)
    assert (removed.names, removed.kib, removed.left) == ((shared_file.name,), 4, ())
    assert not shared_file.exists()


def test_what_others_use_stays(shared_file: Path, start: Start) -> None:
    """What another process has mapped, or only open, stays."""
    memory, files, child = mapped_by_victim(shared_file, start)
    child.kill()
    child.wait()
    with shared_file.open("r+b") as file:
        assert memory.remove(files).left == ((shared_file.name, "others use it"),)
        mapped = mmap.mmap(file.fileno(), 4096)
    assert memory.remove(files).left == ((shared_file.name, "others use it"),)
    mapped.close()
    assert memory.remove(files).names == (shared_file.name,)


def test_another_file_of_the_name_stays(shared_file: Path, start: Start) -> None:
    """A file that was made anew under the name is not the victim's; nor is a link, or another user's file."""
    memory, files, child = mapped_by_victim(shared_file, start)
    child.kill()
    child.wait()
    (one,) = files
    assert memory.remove({replace(one, uid=12345)}).left == ((one.name, "belongs to another user"),)
    assert memory.remove({replace(one, name=f"../shm/{one.name}")}).left == ((f"../shm/{one.name}", NO_PATH),)
    second = shared_file.with_name(f"{one.name}-2")
    os.link(shared_file, second)
    try:
        assert memory.remove(files).left == ((one.name, "not a regular file with one name"),)
        shared_file.unlink()
        shared_file.symlink_to(second)
        assert memory.remove(files).left == ((one.name, "another file has its name now"),)
    finally:
        second.unlink()


NO_PATH = "not a path below /dev/shm"


def test_one_process_that_cannot_be_looked_at(shared_file: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one process cannot be looked at, nothing is removed: it may be using it."""
    memory, files, child = mapped_by_victim(shared_file, start)
    child.kill()
    child.wait()
    monkeypatch.setattr(shm.SharedMemory, "_used", lambda _self, pid: None if pid == os.getpid() else set())
    memory = SharedMemory(HERE)
    assert memory.remove(files).left == (
        (shared_file.name, f"it cannot be told whether process {os.getpid()} uses it"),
    )
    assert shared_file.exists()


def test_a_containers_own_shared_memory() -> None:
    """Files of a container's own /dev/shm, another file system, are not looked for in this host's."""
    assert SharedMemory(HERE).remove({Shared(os.makedev(0, 0), 1, "x", 0)}) == shm.Removed()


def test_a_later_process_of_the_number(start: Start) -> None:
    """What a later process with the victim's number has mapped is not the victim's."""
    child = start("sleep", "60")
    found = identity(child.pid)
    assert SharedMemory(HERE).mapped([Process(found.pid, found.start_ticks + 1)]) == frozenset()


# --- what nobody holds ------------------------------------------------------------------------------


def kept(regime: str = "C", **others: object) -> Kept:
    """Return 100 GiB that the driver keeps while nobody computes, but for what is said otherwise."""
    fields: dict[str, object] = {
        "at_s": 100.0,
        "regime": regime,
        "misc_kib": 100 * GIB if regime == "C" else 0,
        "driver_kib": 102 * GIB,
        "anybody_computes": False,
        "told": {},
    }
    return Kept(**{**fields, **others})  # type: ignore[arg-type]  # a test may give any of its fields


@pytest.mark.parametrize(
    ("what", "stranded"),
    [
        (kept("C"), True),
        (kept("C", told=None), True),
        (kept("B"), True),
        (kept("B", told=None), False),
        (kept("A"), False),
        (kept("unknown"), False),
        (kept("C", anybody_computes=True), False),
        (kept("B", told={10: None}), False),
        (kept("C", misc_kib=GIB - 1), False),
        (kept("C", misc_kib=None), False),
        (kept("B", driver_kib=None), False),
    ],
)
def test_stranded(what: Kept, stranded: object) -> None:
    """Memory is stranded where the driver keeps a GiB that nobody can be using; where it cannot be told, it is not."""
    assert is_stranded(Stranded(), what) is stranded


def test_stranded_is_not_asked_for_all_the_time() -> None:
    """What the driver needs itself is asked for once, and only what it keeps beyond that later."""
    own = kept("B", driver_kib=3 * GIB)
    assert is_stranded(Stranded(), own)
    after = reclaimed(Stranded(), own, own)
    for at_s in (101.0, 200.0, 10_000.0):
        assert not is_stranded(after, own._replace(at_s=at_s))
    more = kept("B", at_s=200.0, driver_kib=5 * GIB)
    assert is_stranded(after, more)


def test_stranded_again_only_after_a_while() -> None:
    """The pool is not emptied more often than every five seconds."""
    after = reclaimed(Stranded(), kept(), kept(misc_kib=0))
    assert not is_stranded(after, kept(at_s=100.0 + STRANDED_EVERY_S - 0.1))
    assert is_stranded(after, kept(at_s=100.0 + STRANDED_EVERY_S))


def test_what_the_driver_needs_may_become_less() -> None:
    """A driver that was loaded anew needs less than before: what it then keeps beyond that is asked for."""
    after = reclaimed(Stranded(), kept("B", driver_kib=8 * GIB), kept("B", driver_kib=8 * GIB))
    assert not is_stranded(after, kept("B", at_s=200.0, driver_kib=5 * GIB))
    less = looked(after, kept("B", at_s=300.0, driver_kib=GIB))
    assert is_stranded(less, kept("B", at_s=400.0, driver_kib=5 * GIB))
