"""JSON lines over a Unix socket: how QEMU's monitor and the machine's own shell are spoken to."""

import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab.errors import GuestError


class JsonLines:
    """One connection. Every wait ends at its deadline with TimeoutError."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._pending = b""
        # a socket's path holds 107 bytes; through an open directory the length of its own path does not count
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
        except OSError as error:
            self._socket.close()
            raise GuestError(f"cannot connect to {path}: {error}") from error
        finally:
            os.close(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the other side keeps running."""
        self._socket.close()

    def send(self, message: dict[str, Any], deadline_s: float) -> None:
        """Write one message."""
        self._limit(deadline_s)
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline_s: float) -> dict[str, Any]:
        """Read one message; lines that are none (torn by a reset) are passed over.

        `deadline_s` is a reading of time.monotonic(). Raises TimeoutError, and GuestError when QEMU has gone.
        """
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if not newline:
                self._fill(deadline_s)
                continue
            self._pending = rest
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                return message

    def _fill(self, deadline_s: float) -> None:
        self._limit(deadline_s)
        received = self._socket.recv(1 << 20)
        if not received:
            raise GuestError("QEMU closed the connection")
        self._pending += received

    def _limit(self, deadline_s: float) -> None:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)
