"""The edge to the machine: files below a root, and the few commands that have no file to read instead."""

import errno
import os
import stat
import subprocess
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT_BYTES = 16 << 20
"""Nothing that is read here is larger (/var/lib/dpkg/status of a desktop: 2-3 MB)."""
_CHUNK_BYTES = 64 << 10
"""/proc/sys allocates a buffer as large as what is asked for, and refuses 4 MiB with ENOMEM."""


def _open_regular(path: str) -> tuple[int, int]:
    """Open what can be read without waiting for anybody, and without an effect as opening a watchdog has.

    Returns the descriptor, and the size of what is on a disk; 0 of what the kernel makes up.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), found.st_size


@dataclass(frozen=True)
class Ran:
    """What became of a command: its exit code (127: not found, 124: timed out) and both outputs."""

    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """Return the last line that says what went wrong."""
        lines = (self.err or self.out).strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


@dataclass(frozen=True)
class Host:
    """A machine whose files lie below `root` ("" for the running one)."""

    root: str = ""
    environment: dict[str, str] = field(default_factory=lambda: {**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": ""})

    def path(self, path: str) -> str:
        """Return where `path` of that machine is found here."""
        return self.root + path

    def content(self, path: str) -> bytes:
        """Return a file's bytes, up to MAX_TEXT_BYTES; raises OSError, for a device or a FIFO too."""
        descriptor, size = _open_regular(self.path(path))
        try:
            # no file object, which costs half as much again, and no pieces of what is on a disk: joining those of
            # a package database of 0.8 MB took 3 ms of 90
            at_once = min(size, MAX_TEXT_BYTES) or _CHUNK_BYTES
            content = b""
            while len(content) < MAX_TEXT_BYTES and (chunk := os.read(descriptor, at_once)):
                content += chunk
        finally:
            os.close(descriptor)
        return content

    def text(self, path: str) -> str:
        """Return a file's text, bytes that are not UTF-8 replaced; raises OSError."""
        return self.content(path).decode("utf-8", "replace")

    def text_or_none(self, path: str) -> str | None:
        """Return a file's text without its last newline, None where it cannot be read."""
        try:
            return self.text(path).rstrip("\n")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Say whether `path` exists, links followed."""
        return os.path.exists(self.path(path))

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty where there is none or it cannot be read."""
        try:
            return sorted(os.listdir(self.path(directory)))
        except OSError:
            return []

    def file(self, path: str) -> dict[str, Any] | None:
        """Return `{path, text}`, `{path, masked: true}` or `{path, error}`; None where nothing is there."""
        real = self.path(path)
        if not os.path.lexists(real):
            return None
        if os.path.realpath(real) == "/dev/null":
            return {"path": path, "masked": True}
        try:
            found: dict[str, Any] = {"path": path, "text": self.text(path)}
            if os.path.islink(real):
                found["link"] = os.readlink(real)
        except (FileNotFoundError, IsADirectoryError):
            # A link to nowhere, or a directory of that name, still hides its namesakes (seen with systemd 252).
            return {"path": path, "masked": True}
        except OSError as error:
            return {"path": path, "error": error.strerror or str(error)}
        return found

    def run(self, *argv: str, timeout_s: float = 20, given: str | None = None) -> Ran:
        """Run a command with a C locale and wait for it; never raises for what the command does."""
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, input=given,
                env=self.environment, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            return Ran(127, "", f"{argv[0]}: not found")
        except (subprocess.TimeoutExpired, OSError) as error:
            return Ran(124, "", f"{argv[0]}: {error}")
        return Ran(done.returncode, done.stdout, done.stderr)
