"""Writing a file so that a reset leaves the old one or the new one, never a part of either."""

import os

TEMPORARY_SUFFIX = ".plimsoll-tmp"
"""No daemon reads a name with this ending: drop-in directories are read for *.conf only."""


def stage(path: str, content: bytes, mode: int, owner: tuple[int, int] = (0, 0)) -> str:
    """Write `content` beside `path`, with its mode and owner, synced; return the temporary path. Raises OSError.

    A process that is not root writes files of its own (a test does).
    """
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(21, "is a directory where a file belongs", path)
    import tempfile  # noqa: PLC0415  # 3 ms of the 60 of a reading, which imports this module and writes nothing

    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=TEMPORARY_SUFFIX, dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def put_in_place(temporary: str, path: str) -> None:
    """Give a staged file its real name and wait until that is on disk."""
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def write_atomically(path: str, content: bytes, mode: int, owner: tuple[int, int] = (0, 0)) -> None:
    """Replace a file as a whole; raises OSError and leaves the old one."""
    put_in_place(stage(path, content, mode, owner), path)


def sync_directory(directory: str) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def missing_directories(directory: str) -> list[str]:
    """Return what of a directory's path is not there yet, the outermost first."""
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return list(reversed(missing))


def make_directories(directory: str) -> list[str]:
    """Create what is missing of a directory's path, 0755; return what was created, the outermost first."""
    missing = missing_directories(directory)
    for path in missing:
        os.mkdir(path, 0o755)
    return missing


def sweep(path: str) -> None:
    """Remove the temporary files that a run which was cut off left beside `path`."""
    directory, name = os.path.split(path)
    if not os.path.isdir(directory):
        return
    for found in os.listdir(directory):
        if found.startswith(f".{name}.") and found.endswith(TEMPORARY_SUFFIX):
            os.unlink(f"{directory}/{found}")
