"""The edge: files, pipes and the box's own logs as streams of bytes. Nothing is written, nothing is changed."""

import bz2
import gzip
import lzma
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

from plimsoll.box.errors import UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident import reader
from plimsoll.box.incident.clocks import RING
from plimsoll.box.incident.model import Findings, Stamp
from plimsoll.box.incident.scan import BLOCK_BYTES

KERNEL_LOGS = "/var/log"
PSTORE = ("/var/lib/systemd/pstore", "/sys/fs/pstore")
MAX_FILES = 200
_TOO_MANY = f"only {MAX_FILES} files are read at once: name the others in a second call"
BOOTS_TIMEOUT_S = 60.0
TELL_BLOCKS = 32
"""Of 1 MiB; that is four times a second where a log is read at 130 MB/s."""
PROGRAMS = ("earlyoom", "systemd-oomd", "plimsoll", "plimsoll-guard", "dockerd", "containerd", "nohang", "raylet")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("journalctl", "-k", "-b", "all", "-o", "json", "--no-pager"),
    ("journalctl", "--no-pager", "-o", "json", *(f"SYSLOG_IDENTIFIER={name}" for name in PROGRAMS)),
    # what a manager says of its units; of notice and worse, because every start and stop is an info
    ("journalctl", "-p", "notice", "-o", "json", "--no-pager", "SYSLOG_IDENTIFIER=systemd"),
    ("dmesg",),
    ("last", "-x", "--time-format", "iso", "reboot", "shutdown"),
)
"""After kern.log, which kept lines that the journal lost."""
BOOTS = "journalctl -b, the ends of each boot"
MAX_BOOTS = 12
TAIL_LINES = "60"
"""Between the first word of an orderly stop and the last line of its boot lay 40 lines on a server with containers."""
_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
_ID = re.compile(r"\b[0-9a-f]{32}\b")


def read_paths(
    paths: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, Findings | None, str | None]]:
    """Yield files, directories and `-` as they have been read, as `read_box` does.

    Raises UsageError, before anything is read, for what is not there at all.
    """
    files = [file for path in paths for file in ([path] if path == "-" else _files(path))]
    for file in files[:MAX_FILES]:
        progress(file)
        if file == "-":
            yield file, reader.read("standard input", _blocks(sys.stdin.buffer)), None
        else:
            yield file, read_file(file, progress=progress), None
    if len(files) > MAX_FILES:
        yield f"{files[MAX_FILES]} and what follows", None, _TOO_MANY


def _files(path: str) -> list[str]:
    if os.path.isdir(path):
        inside = sorted(os.path.join(path, name) for name in os.listdir(path))
        return [each for each in inside if os.path.isfile(each)]
    if not os.path.exists(path):
        raise UsageError(f"{path}: no such file; name a log, a directory of logs, or - for standard input")
    return [path]


def read_file(path: str, shown: str | None = None, progress: Callable[[str], None] = lambda _text: None) -> Findings:
    """Return the findings of one file, compressed or not; a problem is in them, not raised."""
    name = shown or path
    try:
        with open(path, "rb", buffering=0) as raw, _plain(raw) as file:
            blocks = _counted(_blocks(file), lambda mib: progress(f"{name}: {mib} MiB"))
            return reader.read(name, blocks, os.fstat(raw.fileno()).st_mtime)
    except (OSError, EOFError, lzma.LZMAError) as error:
        return Findings(file=name, problem=getattr(error, "strerror", None) or str(error))


def _plain(raw: IO[bytes]) -> IO[bytes]:
    if not raw.seekable():
        return raw
    head = raw.read(6)
    raw.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    return raw if opener is None else opener(raw)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's blocks; raises OSError or EOFError, whatever packed it."""
    try:
        while block := file.read(BLOCK_BYTES):
            yield block
    except (zlib.error, lzma.LZMAError) as error:
        raise OSError(f"damaged: {error}") from error


def _counted(blocks: Iterator[bytes], tell: Callable[[int], None]) -> Iterator[bytes]:
    """Yield blocks, and tell now and then how many MiB they were."""
    for number, block in enumerate(blocks):
        if number and number % TELL_BLOCKS == 0:
            tell(number)
        yield block


def read_box(host: Host, progress: Callable[[str], None]) -> Iterator[tuple[str, Findings | None, str | None]]:
    """Yield each source of this box as it has been read: its name, what it holds, and why not all of it was read."""
    has_kernel_log = False
    files = box_files(host)
    for path in files[:MAX_FILES]:
        progress(path)
        has_kernel_log |= path.startswith(f"{KERNEL_LOGS}/kern.log")
        yield path, read_file(host.path(path), path, progress), None
    if len(files) > MAX_FILES:
        yield f"{files[MAX_FILES]} and what follows", None, _TOO_MANY
    if not has_kernel_log:
        why = "there is none: only rsyslog writes it, and it keeps what a stalled journal loses"
        yield f"{KERNEL_LOGS}/kern.log", None, why
    for command in COMMANDS if not host.root else ():
        name = _name(command)
        progress(name)
        yield name, *_read_command(command, name, host, progress)
    if not host.root:
        progress(BOOTS)
        yield BOOTS, *_read_boots(host)


def _name(command: Sequence[str]) -> str:
    return " ".join(command[:4])


def again(name: str, host: Host) -> Iterator[bytes]:
    """Yield the blocks of a source that was read before, by its name; nothing of one that is gone by now."""
    command = next((each for each in COMMANDS if _name(each) == name), None)
    try:
        if command is not None:
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=host.environment
            ) as running:
                assert running.stdout is not None  # noqa: S101  # a pipe was asked for
                yield from _blocks(running.stdout)
            return
        with open(host.path(name), "rb", buffering=0) as raw, _plain(raw) as file:
            yield from _blocks(file)
    except (OSError, EOFError, lzma.LZMAError):
        return


def box_files(host: Host) -> list[str]:
    """Return the box's own files: kern.log and its older ones, the guard's records, pstore."""
    logs = [f"{KERNEL_LOGS}/{name}" for name in host.names(KERNEL_LOGS) if name.startswith("kern.log")]
    own = [f"/var/log/plimsoll/{name}" for name in host.names("/var/log/plimsoll")]
    crashes = [f"{directory}/{name}" for directory in PSTORE for name in _below(host, directory)]
    return [*logs, *own, *crashes]


def _below(host: Host, directory: str) -> list[str]:
    """Return the names of files in a directory and one below: systemd-pstore makes a directory a crash."""
    names = []
    for name in host.names(directory):
        inside = host.names(f"{directory}/{name}")
        names += [f"{name}/{each}" for each in inside] if inside else [name]
    return names


def _read_command(
    command: Sequence[str], name: str, host: Host, progress: Callable[[str], None] = lambda _text: None
) -> tuple[Findings | None, str | None]:
    # no pipe: a journal with many damaged files has a line for each, and would wait for somebody to read them
    with os.fdopen(os.memfd_create("plimsoll-stderr"), "w+b") as said:
        try:
            running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=host.environment)
        except OSError as error:
            return None, error.strerror or str(error)
        with running:
            assert running.stdout is not None  # noqa: S101  # a pipe was asked for
            blocks = _counted(_blocks(running.stdout), lambda mib: progress(f"{name}: {mib} MiB"))
            found = reader.read(name, blocks)
        if name == RING:
            # what it counts from is the boot of this very machine
            found = replace(found, boots=(*found.boots, Stamp(time.time(), "date", 0, time.monotonic())))
        if not running.returncode:
            return found, None
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
        return (found if found.bytes else None), lines[-1] if lines else f"exit code {running.returncode}"


def _read_boots(host: Host) -> tuple[Findings | None, str | None]:
    """Return how the last boots began, and how the one before each of them had ended, by the whole journal."""
    listed = host.run("journalctl", "--list-boots", "--no-pager", timeout_s=BOOTS_TIMEOUT_S)
    if listed.code:
        return None, listed.problem
    boots = [found[0] for line in listed.out.splitlines() if (found := _ID.search(line))]
    older = f"only the last {MAX_BOOTS} of {len(boots)} boots are looked at" if len(boots) > MAX_BOOTS else None
    return reader.read(BOOTS, _seams(boots[-MAX_BOOTS:], host)), older


def _seams(boots: Sequence[str], host: Host) -> Iterator[bytes]:
    """Yield the first line of each boot, and its last ones, with journalctl's own mark before it."""
    for boot in boots:
        options = ("--no-pager", "-q", "-o", "short-iso", "-b", boot)
        yield f"-- Boot {boot} --\n".encode() + _first_line(("journalctl", *options), host)
        yield host.run("journalctl", *options, "-n", TAIL_LINES, timeout_s=BOOTS_TIMEOUT_S).out.encode()


def _first_line(command: Sequence[str], host: Host) -> bytes:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=host.environment) as running:
        assert running.stdout is not None  # noqa: S101  # a pipe was asked for
        line = running.stdout.readline()
        running.terminate()
    return line
