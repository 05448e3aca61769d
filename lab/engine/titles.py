"""What a process is called: its command line and its name, as the kernel shows them to everybody."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROLE = "LAB_ENGINE_ROLE"
"""The environment variable that says what a program that was started under another name has to do."""
PROGRAM = "LAB_ENGINE_PROGRAM"
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
_ARG_START = 48 - 3
"""Of /proc/PID/stat: the field's number, less the three that the name in brackets and what is before it make."""


def command(program: str, title: Sequence[str]) -> list[str]:
    """Return a command line that starts `program` in Python with as much room as the title needs, and no more.

    Where the title is shorter than that, /proc/PID/cmdline ends in several NUL, as it does with setproctitle.
    """
    short = [sys.executable, program]
    room = len(as_bytes(title)) - len(as_bytes(short)) - 1
    return [*short, "-" * room] if room > 0 else short


def as_bytes(words: Sequence[str]) -> bytes:
    """Return a command line as it lies in memory."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def environment(program: str, role: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that tells a program its role."""
    return {**os.environ, ROLE: json.dumps(role), PROGRAM: program}


def become(program: str, title: Sequence[str], role: Mapping[str, Any]) -> NoReturn:
    """Start `program` anew in this process, with room for the title; it then calls `take`."""
    argv = command(program, title)
    os.execve(argv[0], argv, environment(program, role))


def take(title: Sequence[str], name: str) -> None:
    """Put the title over the command line that this process was started with, and tell the kernel its name."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(text) for text in fields[_ARG_START : _ARG_START + 2])
    text = as_bytes(title)[: end - start - 1].ljust(end - start, b"\0")
    ctypes.memmove(start, text, len(text))
    prctl(PR_SET_NAME, name.encode()[:15])


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it has ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int | bytes) -> None:
    """Change something of this process itself. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
