"""Files that the operator's commands write: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
READABLE = 0o644


def write_atomically(file: Path, text: str, mode: int = PRIVATE, errors: str = "surrogateescape") -> None:
    """Replace `file` atomically, keeping its mode and owner; a new one has `mode`, a new directory 0700.

    A half of a character that is no text is written as the byte it came from (`errors`, as in str.encode).
    Raises OSError, and then the old one is untouched.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
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
