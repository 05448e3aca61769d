"""A successor takes over from a running guard, or the running one goes on."""

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.guard import handover
from plimsoll.box.guard.handover import Notifier, may_hand_over, ping_every_s
from plimsoll.box.guard.hashes import sha256_of
from plimsoll.box.guard.model import CALM, Episode, Kill, State

WITHIN_S = 20.0
KILLS = (Kill("qwen \x1b[2J\n\udcff", 12.5), Kill("engine.service", 20.0))


@contextmanager
def _systemd(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        listener.settimeout(WITHIN_S)
        yield listener


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told(kind: str, tmp_path: Path) -> None:
    """Start, pings and the next main process arrive, on a socket with a path and on an abstract one."""
    address = str(tmp_path / "notify") if kind == "path" else f"@plimsoll-test-{os.getpid()}"
    with _systemd(address) as listener, closing(Notifier({"NOTIFY_SOCKET": address})) as notifier:
        assert notifier.ready("watching\nMAINPID=1")
        assert notifier.ping()
        assert notifier.follows(4711)
        told = [listener.recv(200) for _ in range(3)]
    assert told == [b"READY=1\nSTATUS=watching\\x0aMAINPID=1\n", b"WATCHDOG=1", b"MAINPID=4711\n"]


def test_nobody_to_tell_is_no_error(tmp_path: Path) -> None:
    """Without systemd, or after it is gone, a message is lost and the guard goes on."""
    assert not Notifier({}).ping()
    with closing(Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})) as notifier:
        assert not notifier.ping()


def test_a_systemd_that_does_not_listen_is_not_waited_for(tmp_path: Path) -> None:
    """With the socket's queue full a ping is lost at once."""
    address = str(tmp_path / "notify")
    with _systemd(address), closing(Notifier({"NOTIFY_SOCKET": address})) as notifier:
        assert not all([notifier.ping() for _ in range(10_000)])  # noqa: C419  # all of them are to be sent


@pytest.mark.parametrize(
    ("limit", "expected"), [("30000000", 15.0), ("", None), ("0", None), ("x", None), ("-5", None), ("²", None)]
)
def test_half_of_the_watchdogs_time(limit: str, expected: float | None) -> None:
    """The guard pings twice in the time that systemd waits; nonsense is taken for no watchdog."""
    assert ping_every_s({"WATCHDOG_USEC": limit}) == expected
    assert ping_every_s({}) is None


def test_which_program(tmp_path: Path) -> None:
    """A file is known by its content; one that cannot be read has no hash."""
    (tmp_path / "a").write_bytes(b"x")
    assert sha256_of(str(tmp_path / "a")) == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert sha256_of(str(tmp_path / "b")) is None


def test_nothing_is_handed_over_while_something_is_under_way() -> None:
    """An episode below a line is the running guard's to see through."""
    assert may_hand_over(State())
    assert may_hand_over(State(5.0, 100, mood=replace(CALM)))
    assert not may_hand_over(State(mood=replace(CALM, episodes=(Episode(8, 0.0),))))
    assert not may_hand_over(State(mood=replace(CALM, stalled_s=1.0, kills=KILLS)))


def test_whom_it_stopped_holds_nobody_up() -> None:
    """A guard that has stopped somebody hands over as soon as that is over: the successor is told of it."""
    assert may_hand_over(State(mood=replace(CALM, kills=KILLS)))


SUCCESSOR = """
    import os, sys
    from plimsoll.box.guard import handover
    before = handover.predecessor(os.environ)
    if before is None:
        print("first", flush=True)
    else:
        os.dup2(before.kept[0], 1)
        os.close(before.kept[0])
        {}
        print("begins" if before.ready() else "was left", os.getppid() != {}, flush=True)
        print(*before.remembered(), flush=True)
"""


@contextmanager
def _successor(does: str = "pass") -> Iterator[tuple[handover.Successor, int]]:
    """Start a successor that prints to a pipe, and yield it with the pipe's end."""
    read, write = os.pipe()
    code = textwrap.dedent(SUCCESSOR).format(does, os.getpid())
    found = handover.start([sys.executable, "-c", code], write)
    os.close(write)
    try:
        yield found, read
    finally:
        os.close(read)
        found.give_up("the test ends")


def _said(descriptor: int) -> str:
    with os.fdopen(os.dup(descriptor), encoding="ascii") as pipe:
        return pipe.read()


def test_a_successor_waits_until_it_is_its_turn(tmp_path: Path) -> None:
    """It says that it is ready, is named to systemd, begins only then, and is no child of its predecessor."""
    address = str(tmp_path / "notify")
    with _systemd(address) as listener, _successor() as (found, pipe):
        assert found.wait(WITHIN_S) == ""
        assert found.pid is not None
        with closing(Notifier({"NOTIFY_SOCKET": address})) as notifier:
            assert found.hand_over(notifier, ())
        assert listener.recv(100) == b"MAINPID=%d\n" % found.pid
        assert _said(pipe) == "begins True\n\n"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("sys.exit('no good')", "ended before it was ready"),
        ("before._channel.sendall(b'nonsense\\n'); before._channel.recv(1)", "said 'nonsense'"),
    ],
)
def test_a_successor_that_fails_is_given_up(does: str, words: str) -> None:
    """The reason is told, and nobody is handed over to."""
    with _successor(does) as (found, _pipe):
        assert words in found.wait(WITHIN_S)


def test_a_successor_that_is_too_late_is_ended() -> None:
    """It is killed, though it has left its parent."""
    with _successor("import time; time.sleep(600)") as (found, pipe):
        # its first word takes as long as Python does to start
        assert select.select([found._channel], [], [], WITHIN_S)[0]
        assert found.wait(0.5) == "was not ready in 0.5 s"
        assert found.pid is not None
        assert _said(pipe) == ""


def test_a_successor_whose_predecessor_has_gone_ends() -> None:
    """It does not begin by itself: systemd starts a guard anew then."""
    with _successor() as (found, pipe):
        assert found.wait(WITHIN_S) == ""
        found._channel.close()
        assert _said(pipe) == "was left True\n\n"


def test_a_successor_that_died_when_it_was_ready_is_not_handed_over_to(tmp_path: Path) -> None:
    """The running guard names itself again and goes on."""
    address = str(tmp_path / "notify")
    with _systemd(address) as listener, _successor() as (found, pipe):
        assert found.wait(WITHIN_S) == ""
        assert found.pid is not None
        os.kill(found.pid, signal.SIGKILL)
        _said(pipe)
        with closing(Notifier({"NOTIFY_SOCKET": address})) as notifier:
            assert not found.hand_over(notifier, KILLS)
        assert [listener.recv(100) for _ in range(2)][-1] == b"MAINPID=%d\n" % os.getpid()


def test_a_first_guard_follows_nobody() -> None:
    """Without the channel a guard begins at once, in its own process."""
    environment = {key: value for key, value in os.environ.items() if key != handover.CHANNEL}
    code = textwrap.dedent(SUCCESSOR).format("pass", 0)
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=WITHIN_S
    )
    assert ran.stdout == "first\n"


def test_a_successor_is_told_whom_the_one_before_has_stopped() -> None:
    """Names arrive as they are, whatever is in them, with their times."""
    with _successor() as (found, pipe):
        assert found.wait(WITHIN_S) == ""
        assert found.hand_over(Notifier({}), KILLS)
        assert _said(pipe) == f"begins True\n{KILLS[0]} {KILLS[1]}\n"


@pytest.mark.parametrize("left", [b"", b"nonsense", b"[5]", b'[["a", "b"]]', b'{"a": 1}', b"null"])
def test_a_will_that_cannot_be_read_is_none(left: bytes) -> None:
    """A guard that remembers nobody is better than none."""
    will = os.memfd_create("will")
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        os.pwrite(will, left, 0)
        assert handover.Predecessor(theirs, (0, will)).remembered() == ()
        assert handover.Predecessor(theirs, (0,)).remembered() == ()
    os.close(will)
