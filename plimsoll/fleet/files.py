"""Files that the operator's commands write: whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
READABLE = 0o644
_LONGEST_PREFIX = 40
"""Of a temporary file's name: the whole may have 255 bytes, as the name of the file itself."""


def unwritable(file: Path) -> str:
    """Return why a report cannot be put at `file`, which may be a link; empty for a new or a regular file.

    A device or a FIFO is never written to: replacing it by a file would break it for everybody.
    """
    if str(file) == "-":
        return "is no file: what is not written to one goes to standard output by itself"
    real = real_path(file)
    try:
        if not real.parent.is_dir():
            return f"there is no directory {real.parent}: create it first"
        if not os.access(real.parent, os.W_OK | os.X_OK):
            return f"no file can be made in {real.parent}: permission denied"
        return "" if stat.S_ISREG(real.lstat().st_mode) else "is not a regular file: name another one"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)


def real_path(file: Path) -> Path:
    """Return the file that a name leads to, links followed; one of links that lead nowhere is returned as it is."""
    return Path(os.path.realpath(file))


def write_atomically(file: Path, text: str, mode: int = PRIVATE, errors: str = "surrogateescape") -> None:
    """Replace `file` atomically, keeping its mode and owner; a new one has `mode`, a new directory 0700.

    A half of a character that is no text is written as the byte it came from (`errors`, as in str.encode).
    Raises OSError, and then the old one is untouched.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:_LONGEST_PREFIX]}.")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            if file.exists():
                found = file.stat()
                os.fchown(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, found.st_mode & 0o7777)
            else:
                os.fchmod(descriptor, mode)
            temporary.write(text.encode("utf-8", errors))
            temporary.flush()
            os.fsync(descriptor)
        Path(name).replace(file)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
