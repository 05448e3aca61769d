"""The host's end of the out-of-band root shell (the guest's end is guest/shell.py)."""

import base64
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

from lab.errors import GuestError
from lab.sockets import JsonLines

# what a reply may take beyond the command's own time: starved machines answer late
GRACE_S = 30.0


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
        number = next(self._numbers)
        deadline_s = time.monotonic() + timeout_s + grace_s
        lines = self._connected()
        encoded = base64.b64encode(stdin).decode()
        lines.send({"id": number, "cmd": cmd, "timeout_s": timeout_s, "stdin": encoded}, deadline_s)
        while True:
            reply = lines.receive(deadline_s)
            # replies to what an earlier caller gave up on are not ours
            if reply.get("id") == number:
                return _result(reply)

    def _connected(self) -> JsonLines:
        if self._lines is None:
            self._lines = JsonLines(self._socket)
        return self._lines


def _result(reply: dict[str, Any]) -> Result:
    out, err = (base64.b64decode(reply[name]).decode(errors="replace") for name in ("out", "err"))
    return Result(reply["rc"], out, err)


def await_answer(shell: Shell, deadline_s: float) -> str:
    """Wait until the machine answers; return its boot id. Raises TimeoutError at the deadline."""
    while True:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        try:
            # asked again and again: what is asked while the machine resets gets no answer
            return shell.run("cat /proc/sys/kernel/random/boot_id", timeout_s=2, grace_s=1).out.strip()
        except TimeoutError:
            continue
        except GuestError:
            shell.close()
            raise
