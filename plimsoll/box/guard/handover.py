"""How one version of the guard follows another without a moment in which nobody guards, and what systemd is told.

`systemctl restart` ends the old process before the new one has read its modules, checked itself and locked its memory.
A process that executes the new program in its own place has the same gap, and none to go back to if that program does
not come up. So the running guard starts its successor beside it and goes on. The successor leaves its parent, so that
systemd sees a child of its own, sets itself up, takes one sample, and says that it is ready. Only then does the
predecessor, between two samples and while nobody is being stopped, name it to systemd (`MAINPID=`), let it begin and
exit. The lock is a descriptor that the successor has inherited: it is held all along. So is a file in memory, in which
it is left whom the old guard has stopped of late: what is started again into the same wall is recognised by the new one
as well. A successor that fails or is too late is ended, and the old guard goes on and says so.

What it says on the channel, a line each: `here PID`, `ready PID`; what it is told: `yours`.
"""

import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from plimsoll.box.guard import spawn
from plimsoll.box.guard.model import CALM, Kill, State
from plimsoll.box.texts import printable

CHANNEL = "PLIMSOLL_TAKE_OVER"
"""The variable that names a successor's descriptors, its end of the channel first; without it a guard begins."""
READY_WITHIN_S = 60.0
"""A successor that is not ready by then is given up. Reading the program takes a second on an idle box."""
BEGIN_WITHIN_S = 600.0
"""How long a successor that is ready waits: its predecessor may be stopping a workload, which takes half a minute."""
_YOURS = b"yours\n"
_MAX_LINE = 64
_MAX_WILL_BYTES = 64 << 10


class Notifier:
    """The way to systemd: a socket that is opened once. What cannot be sent at once is lost, never waited for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def close(self) -> None:
        """Give the socket back; what is sent afterwards is lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, message: bytes) -> bool:
        """Send `KEY=value` lines; False where nobody listens or nobody has room."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto(message, self._address)
        except OSError:
            return False
        return True

    def ready(self, status: str) -> bool:
        """Say that the service has started, and what it does."""
        return self.send(f"READY=1\nSTATUS={printable(status)}\n".encode())

    def ping(self) -> bool:
        """Say that the main thread goes round; nothing is made anew for it."""
        return self.send(b"WATCHDOG=1")

    def follows(self, pid: int) -> bool:
        """Name the process that is the service from now on."""
        return self.send(b"MAINPID=%d\n" % pid)


def ping_every_s(environment: Mapping[str, str]) -> float | None:
    """Return how often systemd wants to be pinged at the least, half of WATCHDOG_USEC; None where it does not wait."""
    limit_us = environment.get("WATCHDOG_USEC", "")
    return int(limit_us) / 2e6 if limit_us.isascii() and limit_us.isdigit() and int(limit_us) > 0 else None


def may_hand_over(state: State) -> bool:
    """Say whether nothing is under way that a successor could not go on with; whom it stopped before, it is told."""
    return replace(state.mood, kills=()) == CALM


class Successor:
    """A guard that is being made ready beside the running one. Not for the main thread, but for `hand_over`."""

    def __init__(self, launcher: int, channel: socket.socket, will: int) -> None:
        self._launcher: int | None = launcher
        self._channel = channel
        self._will = open(will, "wb", buffering=0)  # noqa: SIM115  # for as long as the successor is known
        self._heard = b""
        self.pid: int | None = None
        """Its own, once it has left its parent; known to be ready only from `wait`."""

    def wait(self, timeout_s: float = READY_WITHIN_S) -> str:
        """Wait until it is ready; return what went wrong, empty for nothing. Then it is ended already."""
        deadline = select.poll()
        deadline.register(self._channel, select.POLLIN)
        while (line := self._line()) is None:
            # one silence of the whole time ends it: it says two lines, and each is a step forward
            if not deadline.poll(timeout_s * 1000):
                return self.give_up(f"was not ready in {timeout_s:g} s")
            more = self._receive()
            if not more:
                return self.give_up("ended before it was ready; its own lines in the journal say why")
            self._heard += more
        word, _, pid = line.partition(" ")
        if not pid.isascii() or not pid.isdigit():
            return self.give_up(f"said {line!r}")
        self.pid = int(pid)
        self._part_with_launcher()
        return "" if word == "ready" else self.wait(timeout_s)

    def hand_over(self, notifier: Notifier, kills: Sequence[Kill]) -> bool:
        """Tell systemd and the successor that it is its turn; False where it is gone. Waits for nobody.

        `kills` is what it is to remember.
        """
        if self.pid is None:
            return False
        os.pwrite(self._will.fileno(), json.dumps([list(kill) for kill in kills]).encode()[:_MAX_WILL_BYTES], 0)
        # Told first: what systemd reads afterwards from the new main process is then taken from it.
        notifier.follows(self.pid)
        try:
            self._channel.send(_YOURS, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            notifier.follows(os.getpid())
            return False
        return True

    def give_up(self, reason: str) -> str:
        """End it, and return the reason."""
        self._channel.close()
        self._will.close()
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        elif self._launcher is not None:
            os.kill(self._launcher, signal.SIGKILL)
        self._part_with_launcher()
        return reason

    def _part_with_launcher(self) -> None:
        if self._launcher is not None:
            os.waitpid(self._launcher, 0)
            self._launcher = None

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(_MAX_LINE)
        except ConnectionError:
            return b""

    def _line(self) -> str | None:
        line, newline, rest = self._heard.partition(b"\n")
        if not newline:
            return None
        self._heard = rest
        return line.decode("ascii", "replace")


def start(argv: Sequence[str], lock: int) -> Successor:
    """Start a successor that holds the lock too, from a thread that may wait; raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    will = os.memfd_create("plimsoll-kills", os.MFD_CLOEXEC)
    # Copies, since a child of another thread must not get them: they can be inherited for this moment only.
    handed = [os.dup(each) for each in (theirs.fileno(), lock, will)]
    try:
        for each in handed:
            os.set_inheritable(each, True)
        environment = {**os.environ, CHANNEL: ",".join(map(str, handed))}
        launcher = spawn.start(argv, environment, nothing, sys.stderr.fileno(), inherits=True)
    except OSError:
        ours.close()
        os.close(will)
        raise
    finally:
        for each in (*handed, nothing):
            os.close(each)
        theirs.close()
    return Successor(launcher, ours, will)


class Predecessor:
    """Whom a successor takes over from."""

    def __init__(self, channel: socket.socket, kept: Sequence[int]) -> None:
        self._channel = channel
        self._channel.settimeout(BEGIN_WITHIN_S)
        self.kept = tuple(kept)
        """The descriptors that it was started with, such as the lock's."""

    def ready(self) -> bool:
        """Say that everything is set up, and wait for the turn; False where it does not come: then it goes on."""
        try:
            self._say("ready")
            return self._channel.recv(_MAX_LINE) == _YOURS
        except OSError:
            return False

    def remembered(self) -> tuple[Kill, ...]:
        """Return whom it has stopped of late; nobody where it is of a version that does not say."""
        if len(self.kept) < len(("lock", "will")):
            return ()
        try:
            found = json.loads(os.pread(self.kept[1], _MAX_WILL_BYTES, 0))
            return tuple(Kill(str(name), float(at_s)) for name, at_s in found)
        except (OSError, ValueError, TypeError):
            return ()

    def _say(self, word: str) -> None:
        self._channel.sendall(f"{word} {os.getpid()}\n".encode())


def predecessor(environment: Mapping[str, str]) -> Predecessor | None:
    """Leave the parent process if this one is a successor, and return whom it succeeds; None for a first guard.

    To be called before anything else is set up: the process goes on as another one.
    """
    numbers = environment.get(CHANNEL, "")
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", numbers):
        return None
    if os.fork():
        os._exit(0)
    channel, *kept = map(int, numbers.split(","))
    for each in (channel, *kept):
        os.set_inheritable(each, False)
    found = Predecessor(socket.socket(fileno=channel), kept)
    found._say("here")  # noqa: SLF001  # the only other word of the same conversation
    return found
