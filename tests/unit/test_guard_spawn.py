"""A program is run, and ended in time, without keeping our other threads from running."""

import ctypes
import gc
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.guard import spawn

WAIT_S = 20.0


@pytest.mark.parametrize(
    ("argv", "code", "out"),
    [
        (("true",), 0, ""),
        (("sh", "-c", "exit 3"), 3, ""),
        (("sh", "-c", "kill -TERM $$"), -15, ""),
        (("cat",), 0, "given\n"),
        (("sh", "-c", "echo one; echo two >&2"), 0, "one\ntwo\n"),
        (("sh", "-c", "cat; sleep 60 & exit 0"), 0, "given\n"),
    ],
)
def test_a_program(argv: tuple[str, ...], code: int, out: str) -> None:
    """A program gets its input, and gives its exit code and what it said; its children are not waited for."""
    started_s = time.monotonic()
    ran = spawn.run(argv, WAIT_S, given=b"given\n")
    assert (ran.code, ran.out, ran.err) == (code, out, "")
    assert time.monotonic() - started_s < WAIT_S


@pytest.mark.parametrize("argv", [("/nowhere/true",), ("/etc",), ("true", "a\0b")])
def test_a_program_that_cannot_be_run(argv: tuple[str, ...]) -> None:
    """What cannot be started is 127, with the reason."""
    ran = spawn.run(argv, WAIT_S)
    assert ran.code == 127
    assert ran.err.startswith(f"{argv[0]}: ")


def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    """After the time it is killed with what it has started, and what it had said is kept."""
    mark = tmp_path / "pid"
    ran = spawn.run(("sh", "-c", f"sleep 600 & echo $! > {mark}; echo begun; trap '' TERM; sleep 600"), 0.5)
    assert (ran.code, ran.out) == (124, "begun\n")
    assert "0.5 s" in ran.err
    assert spawn.reap() == 0
    assert _has_gone(int(mark.read_text()))


def _has_gone(pid: int) -> bool:
    """Say whether a process ends soon; it is not our own child."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_what_a_program_inherits() -> None:
    """It has no descriptors of ours, the OOM score of any other, no signal blocked or ignored, and our variables."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    inheritable = os.dup(0)
    os.set_inheritable(inheritable, True)
    try:
        script = (
            "cat /proc/self/oom_score_adj; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; echo $X"
        )
        ran = spawn.run(("sh", "-c", script), WAIT_S, environment={"X": "y", "PATH": os.environ["PATH"]})
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        os.close(inheritable)
    score, descriptors, blocked, ignored, variable = ran.out.splitlines()
    # its three, and that of the directory
    assert (score, descriptors, variable) == ("0", "4", "y")
    assert int(blocked.split()[1], 16) == 0
    # of the C library's own two nobody else knows
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_output_without_end() -> None:
    """Of a program that says very much the beginning is kept."""
    ran = spawn.run(("sh", "-c", "head -c 2000000 /dev/zero; echo end"), WAIT_S)
    assert ran.code == 0
    assert len(ran.out) == spawn.MAX_OUTPUT_BYTES


class _SlowLoading(ctypes.CDLL):
    """A C library whose children wait, before they run their program, until somebody writes to a FIFO."""

    fifo = b""

    def __getitem__(self, name_or_ordinal: Any) -> Any:  # noqa: ANN401  # a C function, by its name
        found = super().__getitem__(name_or_ordinal)
        if name_or_ordinal != "posix_spawn_file_actions_init":
            return found

        def init(actions: Any) -> None:  # noqa: ANN401  # a C structure
            found(actions)
            self.posix_spawn_file_actions_addopen(actions, 9, self.fifo, os.O_RDONLY, 0)

        return init


def test_other_threads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a program is still being loaded, our other threads run: it is one of them that lets it go on here."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setattr(_SlowLoading, "fifo", os.fsencode(fifo))
    monkeypatch.setattr(spawn, "c_library", lambda: _SlowLoading(None))
    seen_loading = []

    def let_go() -> None:
        tick = threading.Event()
        for _ in range(round(WAIT_S / 0.002)):
            # this works once there is a reader, which is the child that waits
            with suppress(OSError):
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
                seen_loading.append(True)
                return
            tick.wait(0.002)

    # whatever becomes of the thread, the child goes on at some time
    instead = subprocess.Popen(("sh", "-c", f"sleep {WAIT_S}; : <> {fifo}"), process_group=0)
    thread = threading.Thread(target=let_go)
    thread.start()
    ran = spawn.run(("echo", "loaded"), 2 * WAIT_S)
    thread.join(WAIT_S)
    os.killpg(instead.pid, signal.SIGKILL)
    instead.wait()
    assert (ran.code, ran.out) == (0, "loaded\n")
    assert seen_loading


def left_by_children(number: int) -> int:
    """Return how many objects only a collector frees after so many children."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(number):
            spawn.run(("/bin/true",), 10.0, given=b"something")
        return gc.collect()
    finally:
        gc.enable()


def test_children_leave_nothing_that_adds_up() -> None:
    """The guard's collector is off: what every child left for a collector would fill its locked memory."""
    assert left_by_children(5) == left_by_children(1)
