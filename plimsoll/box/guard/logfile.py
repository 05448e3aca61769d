"""A file that only grows, below a directory of root's, and is replaced by a new one at a size.

Nobody else can lead it elsewhere: neither the directory nor the file may be a link or another user's. Whatever goes
wrong raises OSError, and is tried again from the start with the next line.
"""

import errno
import os
import stat

from plimsoll.box.host import Host

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_OTHERS_MAY_WRITE = 0o022


class LogFile:
    """Appends whole lines; `max_bytes` is for the file and the one before it (`PATH.1`) together.

    `heading` is written whenever the file is opened: what stands before it may be of another boot or version.
    """

    def __init__(self, host: Host, path: str, max_bytes: int, heading: bytes = b"") -> None:
        self._directory, self._name = os.path.split(host.path(path))
        self._max_bytes = max_bytes // 2
        self._heading = heading
        self._descriptor = -1
        self._size = 0

    def append(self, lines: bytes, *, sync: bool = False) -> None:
        """Write lines, each with its newline; with `sync` return when they are on disk. Raises OSError."""
        try:
            self._have_room_for(len(lines))
            self._write(lines)
            if sync:
                os.fsync(self._descriptor)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _have_room_for(self, size: int) -> None:
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink and not self._is_full(size):
            return
        self.close()
        directory = _directory(self._directory)
        try:
            self._open(directory)
            if self._is_full(size):
                os.rename(self._name, f"{self._name}.1", src_dir_fd=directory, dst_dir_fd=directory)
                self.close()
                self._open(directory)
                os.fsync(directory)
        finally:
            os.close(directory)
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            # A reset or a full disk has left half a line.
            self._write(b"\n")
        if self._heading:
            self._write(self._heading)

    def _is_full(self, size: int) -> bool:
        return self._size > 0 and self._size + size > self._max_bytes

    def _open(self, directory: int) -> None:
        self._descriptor = _open_own(self._name, directory)
        self._size = os.fstat(self._descriptor).st_size

    def _write(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        self._size += written
        if written < len(data):
            raise OSError(errno.ENOSPC, "only a part was written", self._name)


def _directory(path: str) -> int:
    """Open the directory, made where it is missing; raises OSError where others could put something in its place."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        os.mkdir(path, 0o755)
        descriptor = os.open(path, flags)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MAY_WRITE:
        os.close(descriptor)
        raise PermissionError(
            errno.EPERM, "belongs to somebody else, or others may write to it: chown root, chmod 755", path
        )
    return descriptor


def _open_own(name: str, directory: int) -> int:
    descriptor = os.open(name, _APPEND, 0o600, dir_fd=directory)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "is not a plain file of root's alone: move it away", name)
    return descriptor
