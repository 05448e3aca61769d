"""The edge to the machine: files below a root, and the few commands that have no file to read instead."""

import errno
import os
import select
import signal
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NOT_FOUND = 127
TIMED_OUT = 124
"""As the shell and timeout(1) have them."""
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
        """Run a command with a C locale and wait for it; never raises for what the command does.

        What it starts in its turn and leaves running is not waited for.
        """
        try:
            return _run(argv, self.environment, timeout_s, (given or "").encode())
        except FileNotFoundError:
            return Ran(NOT_FOUND, "", f"{argv[0]}: not found")
        except OSError as error:
            return Ran(TIMED_OUT, "", f"{argv[0]}: {error.strerror or error}")


def _run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float, given: bytes) -> Ran:
    """Run a command on files in memory: without `subprocess`, whose import takes a fifth of the time of a reading."""
    stdin, stdout, stderr = files = [os.memfd_create(f"plimsoll-{name}") for name in ("stdin", "stdout", "stderr")]
    try:
        os.write(stdin, given)
        os.lseek(stdin, 0, os.SEEK_SET)
        pid = _spawn(argv, environment, [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)])
        code = _wait(pid, timeout_s)
        if code is None:
            return Ran(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout_s:g} s")
        return Ran(code, _written(stdout), _written(stderr))
    finally:
        for file in files:
            os.close(file)


def _spawn(argv: Sequence[str], environment: Mapping[str, str], actions: list[tuple[int, int, int]]) -> int:
    """Start the first program of that name in the environment's PATH. Raises OSError where there is none."""
    directories = [""] if "/" in argv[0] else os.get_exec_path(environment)
    problem = OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    for directory in directories:
        try:
            return os.posix_spawn(
                os.path.join(directory, argv[0]), list(argv), environment,
                # Python ignores these two, and a child would go on doing so
                file_actions=actions, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )  # fmt: skip
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            problem = error
    raise problem


def _wait(pid: int, timeout_s: float) -> int | None:
    """Return a child's exit code, negative for a signal; None, and it is killed, if it does not end in time."""
    ended = False
    descriptor = os.pidfd_open(pid)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        ended = bool(waiting.poll(timeout_s * 1000))
    finally:
        os.close(descriptor)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if ended else None


def _written(file: int) -> str:
    """Return what a child has written to a file in memory, wherever it has left the offset."""
    content = b""
    while chunk := os.pread(file, MAX_TEXT_BYTES, len(content)):
        content += chunk
    return content.decode("utf-8", "replace")
