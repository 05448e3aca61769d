"""The host's end of the out-of-band root shell (the guest's end is guest/shell.py)."""

import base64
import itertools
import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from lab.errors import GuestError
from lab.sockets import JsonLines

# what a reply may take beyond the command's own time: starved machines answer late
GRACE_S = 30.0
ASK_AGAIN_S = 5.0


class Result(NamedTuple):
    """A finished command; `rc` is None where its time ran out and it was killed."""

    rc: int | None
    out: str
    err: str


class Shell:
    """Runs commands as root over the virtio port, one at a time, with no need of network or sshd."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lines: JsonLines | None = None
        self._numbers = itertools.count(time.time_ns())

    def close(self) -> None:
        """Let go of the port, so that another process can have it."""
        if self._lines:
            self._lines.close()
        self._lines = None

    def run(self, cmd: str, timeout_s: float, stdin: bytes = b"", grace_s: float = GRACE_S) -> Result:
        """Run `cmd` in bash. Raises TimeoutError when the machine itself does not answer."""
        deadline_s = time.monotonic() + timeout_s + grace_s
        number = self._ask(cmd, timeout_s, stdin, deadline_s)
        return self._reply_to({number}, deadline_s)

    def await_boot_id(self, deadline_s: float) -> str:
        """Wait until the machine answers; return its boot id. Raises TimeoutError at the deadline.

        It is asked again and again, because a question put while it resets is lost; the answer to any of them
        will do, because a slow machine may answer the first when the third has been asked.
        """
        numbers = set()
        while True:
            numbers.add(self._ask("cat /proc/sys/kernel/random/boot_id", ASK_AGAIN_S, b"", deadline_s))
            try:
                return self._reply_to(numbers, min(deadline_s, time.monotonic() + ASK_AGAIN_S)).out.strip()
            except TimeoutError:
                if time.monotonic() >= deadline_s:
                    raise

    def _ask(self, cmd: str, timeout_s: float, stdin: bytes, deadline_s: float) -> int:
        if self._lines is None:
            self._lines = JsonLines(self._socket)
        number = next(self._numbers)
        encoded = base64.b64encode(stdin).decode()
        self._lines.send({"id": number, "cmd": cmd, "timeout_s": timeout_s, "stdin": encoded}, deadline_s)
        return number

    def _reply_to(self, numbers: AbstractSet[int], deadline_s: float) -> Result:
        if self._lines is None:
            raise GuestError("the connection has been closed")
        while True:
            reply = self._lines.receive(deadline_s)
            # replies to what an earlier caller gave up on are not ours
            if reply.get("id") in numbers:
                return _result(reply)


def _result(reply: dict[str, Any]) -> Result:
    out, err = (base64.b64decode(reply[name]).decode(errors="replace") for name in ("out", "err"))
    return Result(reply["rc"], out, err)
