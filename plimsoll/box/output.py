"""Output whose reader may leave before the end: `head`, a pager, a connection that is lost."""

import io
import os
import sys


class ReaderLeft(Exception):  # noqa: N818  # no error: nobody is there any more to tell
    """Nobody reads what a command that goes on for ever prints; it ends, and all is well."""


class _Stream(io.FileIO):
    has_reader = True

    def write(self, content: object) -> int | None:  # type: ignore[override]  # any buffer, as in the original
        """Write, or drop what nobody reads any more."""
        try:
            return super().write(content)  # type: ignore[arg-type]  # as above
        except BrokenPipeError:
            self.has_reader = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(content)  # type: ignore[arg-type]  # as above


def outlive_readers() -> None:
    """Drop what is written to standard output and error once their reader has gone.

    A change on a host is then not left half done, files are written, and a command ends with the exit code of what it
    found. Streams that a test or a caller has put in their place are left alone.
    """
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        # what is not Python's own would close its descriptor once it is forgotten
        if old is None or old is not getattr(sys, f"__{name}__"):
            continue
        old.flush()
        stream = io.BufferedWriter(_Stream(old.fileno(), "wb", closefd=False))
        lines = old.line_buffering or old.write_through
        # a name that a locale has no letters for, or that is no text at all, is no reason to end in the middle
        errors = "backslashreplace" if old.errors == "strict" else old.errors
        new = io.TextIOWrapper(stream, encoding=old.encoding, errors=errors, line_buffering=lines)
        setattr(sys, name, new)


def say(line: str) -> None:
    """Print a line at once; for commands that go on for ever. Raises ReaderLeft when nobody reads them any more."""
    print(line, flush=True)
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stream) and not raw.has_reader:
        raise ReaderLeft
