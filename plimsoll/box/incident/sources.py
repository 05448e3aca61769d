"""The edge: files, pipes and the box's own logs as streams of bytes. Nothing is written, nothing is changed."""

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from plimsoll.box.errors import UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident import reader
from plimsoll.box.incident.model import Findings
from plimsoll.box.incident.scan import BLOCK_BYTES

KERNEL_LOGS = "/var/log"
PSTORE = ("/var/lib/systemd/pstore", "/sys/fs/pstore")
MAX_FILES = 200
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("journalctl", "-k", "-b", "all", "-o", "json", "--no-pager"),
    (
        "journalctl",
        "-o",
        "json",
        "--no-pager",
        "-u",
        "earlyoom.service",
        "-u",
        "systemd-oomd.service",
        "-u",
        "plimsoll-guard.service",
    ),
    ("dmesg",),
    ("last", "-x", "--time-format", "iso", "reboot", "shutdown"),
)
"""After kern.log, which kept lines that the journal lost."""
_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


def read_paths(paths: Sequence[str], progress: Callable[[str], None]) -> list[Findings]:
    """Return the findings of files, directories and `-`; raises UsageError for what is not there at all."""
    found = []
    for path in paths:
        if path == "-":
            found.append(reader.read("standard input", _blocks(sys.stdin.buffer)))
            continue
        for file in _files(path):
            progress(file)
            found.append(read_file(file))
    return found


def _files(path: str) -> list[str]:
    if os.path.isdir(path):
        inside = sorted(os.path.join(path, name) for name in os.listdir(path))
        return [each for each in inside if os.path.isfile(each)][:MAX_FILES]
    if not os.path.exists(path):
        raise UsageError(f"{path}: no such file; name a log, a directory of logs, or - for standard input")
    return [path]


def read_file(path: str, shown: str | None = None) -> Findings:
    """Return the findings of one file, compressed or not; a problem is in them, not raised."""
    name = shown or path
    try:
        with open(path, "rb", buffering=0) as raw, _plain(raw) as file:
            return reader.read(name, _blocks(file), os.fstat(raw.fileno()).st_mtime)
    except (OSError, EOFError, lzma.LZMAError) as error:
        return Findings(file=name, problem=getattr(error, "strerror", None) or str(error))


def _plain(raw: IO[bytes]) -> IO[bytes]:
    if not raw.seekable():
        return raw
    magic = raw.read(2)
    raw.seek(0)
    opener = _OPENERS.get(magic)
    return raw if opener is None else opener(raw)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def read_box(host: Host, progress: Callable[[str], None]) -> tuple[list[Findings], dict[str, str]]:
    """Return the findings of this box, and what could not be read, with why."""
    found, unread = [], {}
    for path in box_files(host):
        progress(path)
        found.append(read_file(host.path(path), path))
    if not any(each.file.startswith(f"{KERNEL_LOGS}/kern.log") for each in found):
        unread[f"{KERNEL_LOGS}/kern.log"] = (
            "there is none: only rsyslog writes it, and it keeps what a stalled journal loses"
        )
    for command in COMMANDS if not host.root else ():
        name = " ".join(command[:4])
        progress(name)
        answer, problem = _read_command(command, name, host)
        found += [] if answer is None else [answer]
        if problem:
            unread[name] = problem
    return found, unread


def box_files(host: Host) -> list[str]:
    """Return the box's own files: kern.log and its older ones, the guard's records, pstore."""
    logs = [f"{KERNEL_LOGS}/{name}" for name in host.names(KERNEL_LOGS) if name.startswith("kern.log")]
    own = [f"/var/log/plimsoll/{name}" for name in host.names("/var/log/plimsoll")]
    crashes = [f"{directory}/{name}" for directory in PSTORE for name in _below(host, directory)]
    return [*logs, *own, *crashes][:MAX_FILES]


def _below(host: Host, directory: str) -> list[str]:
    """Return the names of files in a directory and one below: systemd-pstore makes a directory a crash."""
    names = []
    for name in host.names(directory):
        inside = host.names(f"{directory}/{name}")
        names += [f"{name}/{each}" for each in inside] if inside else [name]
    return names


def _read_command(command: Sequence[str], name: str, host: Host) -> tuple[Findings | None, str | None]:
    try:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=host.environment)
    except OSError as error:
        return None, error.strerror or str(error)
    with running:
        assert running.stdout is not None and running.stderr is not None  # noqa: S101, PT018  # pipes were asked for
        found = reader.read(name, _blocks(running.stdout))
        said = running.stderr.read().decode("utf-8", "replace").strip().splitlines()
    if running.returncode:
        return (found if found.bytes else None), said[-1] if said else f"exit code {running.returncode}"
    return found, None
