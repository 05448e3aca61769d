"""Where the lab keeps its things: all below one directory, and nothing anywhere else."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAB_DIR_VARIABLE = "PLIMSOLL_LAB_DIR"


def lab_dir() -> Path:
    """The lab's directory: $PLIMSOLL_LAB_DIR, else .lab at the root of the repository."""
    chosen = os.environ.get(LAB_DIR_VARIABLE)
    return Path(chosen).resolve() if chosen else Path(__file__).resolve().parent.parent / ".lab"


def images_dir() -> Path:
    """The cache of images, by the hash of their inputs."""
    return lab_dir() / "images"


def machines_dir() -> Path:
    """One directory for each machine that exists."""
    return lab_dir() / "machines"


def home_dir(name: str, user: str) -> Path:
    """The HOME for commands that are to find the machine by its name."""
    return lab_dir() / "home" / f"{name}-{user}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if absent); waits for whoever holds it.

    The lock file stays: deleting it would let two holders lock two different files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
