"""Replaces a file as a whole, with the kernel's own calls: whatever is imported by the guard is locked in memory."""

import os
from contextlib import suppress

from plimsoll.box.host import Host

_SUFFIX = ".plimsoll-tmp"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(host: Host, path: str, content: bytes, mode: int, *, sync: bool) -> None:
    """Give a file its new content or leave the old one; raises OSError. For a thread that may wait.

    With `sync` it is on disk then. What an ended process has left half-written beside it is removed.
    """
    directory, name = os.path.split(host.path(path))
    os.makedirs(directory, mode=0o755, exist_ok=True)
    _sweep(directory, name)
    # A successor may write the same file at the same time.
    temporary = f"{directory}/.{name}.{os.getpid()}{_SUFFIX}"
    descriptor = os.open(temporary, _NEW, 0o600)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)
            while content:
                content = content[file.write(content) :]
            if sync:
                os.fsync(descriptor)
        os.replace(temporary, f"{directory}/{name}")
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        _sync(directory)


def _sweep(directory: str, name: str) -> None:
    for found in os.listdir(directory):
        owner = found.removeprefix(f".{name}.").removesuffix(_SUFFIX)
        if found == f".{name}.{owner}{_SUFFIX}" and owner.isdigit() and not _is_another(int(owner)):
            with suppress(OSError):
                os.unlink(f"{directory}/{found}")


def _is_another(pid: int) -> bool:
    return pid != os.getpid() and os.path.exists(f"/proc/{pid}")


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
