"""Stopping real processes: exactly those that were chosen, by what was opened in advance."""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.guard import act
from plimsoll.box.guard.act import Hand, Result, is_same, open_process, release, self_test, send
from plimsoll.box.guard.model import Process, Verb, Workload
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.guard.workloads import Target
from plimsoll.box.host import Host
from tests.unit.builders import NEEDS_ROOT
from tests.unit.guarding import workload
from tests.unit.real_processes import CGROUP2, HERE, Start, cgroup, rmdir, starting


def ignoring_term() -> list[str]:
    """Return a program that does not go by SIGTERM, and says when it is so far."""
    return [
        sys.executable,
        "-c",
        "import signal,time; signal.signal(15,signal.SIG_IGN); print(1,flush=1); time.sleep(60)",
    ]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs."""
    with starting() as begin:
        yield begin


def ended(process: Process) -> bool:
    """Wait until a child of ours has ended, as it does at once when it was killed."""
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        stat = read_stat(HERE, process.pid)
        if stat is None or stat.state in "ZX":
            return True
        time.sleep(0.005)
    return False


def lives(process: Process) -> bool:
    """Say whether a process still runs."""
    return is_same(HERE, process)


def group(*processes: Process, **others: object) -> Workload:
    """Return a login's process group."""
    fields: dict[str, object] = {"processes": processes, "whole_cgroup": False, "kind": "session", "key": "/s#pgrp=1@1"}
    return workload("job", **{**fields, **others})


def prepared(one: Workload, target: Target | None = None) -> Hand:
    """Return a hand that has everything open for one workload."""
    hand = Hand(HERE)
    hand.prepare([one], {one.key: target} if target else {})
    return hand


# --- process groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_advance", [True, False])
def test_kill_a_group(start: Start, *, in_advance: bool) -> None:
    """All of a group's processes are killed, and nobody else, whether it was prepared or not."""
    first, second, bystander = start(), start(), start()
    one = group(first, second)
    hand = prepared(one) if in_advance else Hand(HERE)
    outcome = hand.stop(one, Verb.KILL)
    assert (outcome.result, outcome.signalled) == (Result.SIGNALLED, 2)
    assert ended(first)
    assert ended(second)
    assert lives(bystander)
    hand.close()


def test_term_goes_to_the_main_process(start: Start) -> None:
    """SIGTERM goes to those who were chosen for it, and it is said why."""
    main, other = start(), start()
    one = group(other, main)
    hand = prepared(one, Target((main,), "the main one"))
    outcome = hand.stop(one, Verb.TERM)
    assert (outcome.result, outcome.signalled, outcome.how) == (Result.SIGNALLED, 1, "the main one")
    assert ended(main)
    assert lives(other)
    hand.close()


def test_one_that_ignores_term_is_killed(start: Start) -> None:
    """A process that ignores SIGTERM goes by SIGKILL."""
    stubborn = start(*ignoring_term())
    one = group(stubborn)
    hand = prepared(one)
    assert hand.stop(one, Verb.KILL).result is Result.SIGNALLED
    assert ended(stubborn)
    hand.close()


def test_a_number_that_another_process_has_now(start: Start) -> None:
    """A process that has the number of one that was chosen, and is not it, is left alone."""
    running = start()
    other = Process(running.pid, running.start_ticks - 1)
    for verb in (Verb.TERM, Verb.KILL):
        assert Hand(HERE).stop(group(other), verb).result is Result.VANISHED
        assert prepared(group(other)).stop(group(other), verb).result is Result.VANISHED
    assert isinstance(open_process(HERE, other), ProcessLookupError)
    assert lives(running)


def test_gone_between_choice_and_kill(start: Start) -> None:
    """What ended meanwhile is reported as gone, also where it was prepared, so that another can be chosen."""
    process = start()
    one = group(process)
    hand = prepared(one)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert hand.stop(one, Verb.KILL).result is Result.VANISHED
    assert Hand(HERE).stop(one, Verb.TERM).result is Result.VANISHED
    hand.close()


def test_a_dead_process_that_nobody_took_leave_of(start: Start) -> None:
    """A process that has ended is gone, though its parent keeps its number."""
    process = start()
    os.kill(process.pid, signal.SIGKILL)
    assert ended(process)
    assert not is_same(HERE, process)
    assert Hand(HERE).stop(group(process), Verb.KILL).result is Result.VANISHED


def test_a_part_is_gone(start: Start) -> None:
    """Where some of a group are gone, the others are killed and counted."""
    gone, left = start(), start()
    one = group(gone, left)
    hand = prepared(one)
    os.kill(gone.pid, signal.SIGKILL)
    assert ended(gone)
    assert hand.stop(one, Verb.KILL).result is Result.SIGNALLED
    assert ended(left)
    hand.close()


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (PermissionError(1, "x"), Result.DENIED),
        (ProcessLookupError(3, "x"), Result.VANISHED),
        (OSError(5, "x"), Result.FAILED),
    ],
)
def test_refused(start: Start, monkeypatch: pytest.MonkeyPatch, error: OSError, result: Result) -> None:
    """What the kernel answers to a signal is an outcome, never an exception."""
    process = start()

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    outcome = Hand(HERE).stop(group(process), Verb.KILL)
    assert outcome.result is result
    assert outcome.signalled == 0
    assert lives(process)


# --- cgroups ----------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return this machine with a look-alike of the cgroup tree, where a test can see what is written."""
    (tmp_path / "proc").symlink_to("/proc")
    (tmp_path / "sys/fs/cgroup/unit").mkdir(parents=True)
    return Host(str(tmp_path))


def unit(*processes: Process) -> Workload:
    """Return a unit that goes as a whole."""
    return workload("unit", key="/unit", cgroup="/unit", processes=processes)


def cgroup_file(host: Host, name: str, text: str = "") -> Path:
    """Write a file of the unit's cgroup."""
    path = Path(host.path(f"/sys/fs/cgroup/unit/{name}"))
    path.write_text(text)
    return path


def test_cgroup_kill(host: Host, start: Start) -> None:
    """A unit that was not prepared goes by one write to its cgroup.kill."""
    file = cgroup_file(host, "cgroup.kill")
    process = start()
    assert Hand(host).stop(unit(process), Verb.KILL) == act.Outcome(Result.SIGNALLED, "cgroup.kill")
    assert file.read_text() == "1"
    assert lives(process)


def test_cgroup_kill_in_advance(host: Host, start: Start) -> None:
    """A unit that was prepared is killed by descriptor at once, and by its cgroup.kill for what else is in it."""
    file = cgroup_file(host, "cgroup.kill")
    process = start()
    hand = Hand(host)
    hand.prepare([unit(process)], {})
    outcome = hand.stop(unit(process), Verb.KILL)
    assert (outcome.result, outcome.signalled) == (Result.SIGNALLED, 1)
    assert ended(process)
    hand.close()
    assert file.read_text() == "1"


def test_cgroup_kill_that_blocks(host: Host, start: Start) -> None:
    """Where the kernel takes its time over cgroup.kill, those known by descriptor are killed at once all the same."""
    file = Path(host.path("/sys/fs/cgroup/unit/cgroup.kill"))
    os.mkfifo(file)
    # a pipe that is full takes no byte until somebody reads
    reader = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    os.write(reader, bytes(fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)))
    process = start()
    hand = Hand(host)
    hand.prepare([unit(process)], {})
    began_s = time.perf_counter()
    assert hand.stop(unit(process), Verb.KILL).result is Result.SIGNALLED
    assert time.perf_counter() - began_s < 0.5
    assert ended(process)
    os.read(reader, 1 << 20)
    hand.close()
    os.close(reader)


def test_kernel_without_cgroup_kill(host: Host, start: Start) -> None:
    """Before 5.14 there is no cgroup.kill: every process in the cgroup and below it is killed by descriptor."""
    first, second = start(), start()
    cgroup_file(host, "cgroup.procs", f"{first.pid}\n")
    below = Path(host.path("/sys/fs/cgroup/unit/sub"))
    below.mkdir()
    (below / "cgroup.procs").write_text(f"{second.pid}\n")
    outcome = Hand(host).stop(unit(first), Verb.KILL)
    assert (outcome.result, outcome.signalled) == (Result.SIGNALLED, 2)
    assert ended(first)
    assert ended(second)


def test_cgroup_is_gone(host: Host, start: Start) -> None:
    """A cgroup that vanished between choice and kill is reported as gone."""
    process = start()
    Path(host.path("/sys/fs/cgroup/unit")).rmdir()
    assert Hand(host).stop(unit(process), Verb.KILL).result is Result.VANISHED
    assert lives(process)


def test_cgroup_of_the_same_name(host: Host, start: Start) -> None:
    """A unit that has only new processes since it was chosen is not killed for what the old ones did."""
    file = cgroup_file(host, "cgroup.kill")
    old = start()
    os.kill(old.pid, signal.SIGKILL)
    os.waitpid(old.pid, 0)
    assert Hand(host).stop(unit(old), Verb.KILL).result is Result.VANISHED
    assert file.read_text() == ""


def test_cgroup_that_may_not_be_written(host: Host, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPERM at cgroup.kill is an outcome of its own."""
    cgroup_file(host, "cgroup.kill")
    process = start()

    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "write", refuse)
    outcome = Hand(host).stop(unit(process), Verb.KILL)
    assert (outcome.result, outcome.detail) == (Result.DENIED, "Operation not permitted")


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    """Make a cgroup."""
    with cgroup(f"plimsoll-test-{os.getpid()}") as path:
        yield path


def real_host(tmp_path: Path) -> Host:
    """Return this machine, with its cgroup2 where a GB10 has it."""
    assert CGROUP2 is not None
    (tmp_path / "proc").symlink_to("/proc")
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").symlink_to(CGROUP2)
    return Host(str(tmp_path))


def test_real_cgroup_kill(tmp_path: Path, real_cgroup: Path, start: Start) -> None:
    """The kernel kills all of a cgroup and what is below it; once it is removed, the open file says that it is gone."""
    first, second, bystander = start(*ignoring_term()), start(), start()
    (real_cgroup / "sub").mkdir()
    (real_cgroup / "cgroup.procs").write_text(str(first.pid))
    (real_cgroup / "sub/cgroup.procs").write_text(str(second.pid))
    one = workload(cgroup=f"/{real_cgroup.name}", processes=(first, second))
    hand = Hand(real_host(tmp_path))
    hand.prepare([one], {})
    assert hand.stop(one, Verb.KILL).result is Result.SIGNALLED
    assert ended(first)
    assert ended(second)
    assert lives(bystander)
    hand.close()


def test_real_cgroup_kill_of_one_that_was_not_known(tmp_path: Path, real_cgroup: Path, start: Start) -> None:
    """What has come into a cgroup since it was prepared goes with it."""
    known, unknown = start(), start()
    for process in (known, unknown):
        (real_cgroup / "cgroup.procs").write_text(str(process.pid))
    one = workload(cgroup=f"/{real_cgroup.name}", processes=(known,))
    hand = Hand(real_host(tmp_path))
    hand.prepare([one], {})
    assert hand.stop(one, Verb.KILL).signalled == 1
    assert ended(known)
    assert ended(unknown)
    hand.close()


def test_real_cgroup_removed(tmp_path: Path, real_cgroup: Path, start: Start) -> None:
    """Who is in a new cgroup under the name of one that was prepared and removed is not killed."""
    known, newcomer = start(), start()
    one = workload(cgroup=f"/{real_cgroup.name}", processes=(known,))
    hand = Hand(real_host(tmp_path))
    hand.prepare([one], {})
    rmdir(real_cgroup)
    real_cgroup.mkdir()
    (real_cgroup / "cgroup.procs").write_text(str(newcomer.pid))
    hand.stop(one, Verb.KILL)
    hand.close()
    assert ended(known)
    assert lives(newcomer)


# --- preparing --------------------------------------------------------------------------------------


def open_descriptors() -> int:
    """Return how many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_preparing_keeps_few_open(host: Host, start: Start) -> None:
    """Only the likeliest are kept open, again and again without one descriptor more, and none is left in the end."""
    cgroup_file(host, "cgroup.kill")
    cgroup_file(host, "cgroup.events", "populated 1\n")
    before = open_descriptors()
    process = start()
    with_child = open_descriptors()
    hand = Hand(host)
    many = [replace(unit(process), key=f"/unit{number}") for number in range(20)]
    counts = []
    for _ in range(3):
        hand.prepare(many, {})
        counts.append(open_descriptors())
    assert counts[0] == counts[1] == counts[2] == with_child + 3 * act.MAX_PREPARED
    hand.close()
    assert open_descriptors() == with_child > before


def test_new_processes_are_prepared(start: Start) -> None:
    """A workload that has other processes than before is prepared for those."""
    first, second = start(), start()
    hand = prepared(group(first))
    hand.prepare([group(second)], {})
    assert hand.stop(group(second), Verb.KILL).signalled == 1
    assert ended(second)
    assert lives(first)
    hand.close()


def test_a_cgroup_that_was_made_anew_is_opened_anew(host: Host, start: Start) -> None:
    """A unit that was started again has another cgroup under the old name: that one is written to."""
    old_file = cgroup_file(host, "cgroup.kill")
    hand = Hand(host)
    hand.prepare([unit(start())], {})
    old_file.unlink()
    file = cgroup_file(host, "cgroup.kill")
    again = unit(start())
    hand.prepare([again], {})
    hand.stop(again, Verb.KILL)
    hand.close()
    assert file.read_text() == "1"


def test_what_is_being_watched_stays_open(start: Start) -> None:
    """A victim's descriptors outlive the preparation that they come from."""
    process = start()
    one = group(process)
    hand = prepared(one)
    watched = hand.watch(one)
    hand.close()
    assert len(watched.pidfds) == 1
    for each in watched.descriptors:
        os.fstat(each)
        os.close(each)


def test_watch_what_was_not_prepared(start: Start) -> None:
    """A victim that was not prepared is watched all the same, as far as it is still there."""
    process = start()
    watched = Hand(HERE).watch(group(process, Process(process.pid, 1)))
    assert set(watched.pidfds) == {process}
    for each in watched.descriptors:
        os.close(each)


def test_kill_is_quick(start: Start) -> None:
    """What is prepared is killed in milliseconds."""
    processes = [start() for _ in range(10)]
    one = group(*processes)
    hand = prepared(one)
    began_s = time.perf_counter()
    hand.stop(one, Verb.KILL)
    assert time.perf_counter() - began_s < 0.05, "ten times what it takes, on a machine that is busy"
    hand.close()


# --- memory, and the test of the path ---------------------------------------------------------------


@NEEDS_ROOT
def test_memory_is_taken_back(start: Start) -> None:
    """The kernel takes back the memory of a killed process; of one that lives it takes nothing."""
    program = "b=bytearray(64<<20); import time; print(1,flush=1); time.sleep(60)"
    process = start(sys.executable, "-c", program)
    living = open_process(HERE, process)
    assert isinstance(living, int)
    assert release(living) is None
    assert send(HERE, process, signal.SIGKILL) == 0
    release(living)
    assert ended(process)
    os.close(living)


@NEEDS_ROOT
def test_self_test(tmp_path: Path, real_cgroup: Path) -> None:
    """As root on a kernel of these boxes what a kill needs works, and nobody is killed by the test."""
    assert real_cgroup.is_dir()
    working = {each.what for each in self_test(real_host(tmp_path)) if each.problem is None}
    # Whether others' open files can be seen depends on a capability that a container may be without.
    assert working | {"open files of other processes"} == {
        "signal by descriptor",
        "signal others' processes",
        "open files of other processes",
        "cgroup.kill",
        "process_mrelease",
        "drop_caches",
    }


def test_self_test_says_what_does_not_work(tmp_path: Path) -> None:
    """What a kill needs and is not there is named, with the reason."""
    (tmp_path / "proc").mkdir()
    problems = {each.what: each.problem for each in self_test(Host(str(tmp_path)))}
    assert problems["cgroup.kill"] == "No such file or directory"
    assert problems["drop_caches"] == "No such file or directory"
    assert problems["signal by descriptor"] is not None
