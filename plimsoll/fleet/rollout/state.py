"""What a rollout leaves on the operator's machine: one journal, appended to, from which it can be resumed.

A line of the journal is on the disk before what follows from it is begun. One that was cut off by a kill or a full
disk has no end, and is dropped when the journal is opened again. Below `$XDG_STATE_HOME/plimsoll/rollout/FLEET`:
`fleet.lock`, `hosts/HOST.lock`, and for each rollout a directory with `journal.jsonl`, `logs/` and `reports/`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from plimsoll.fleet.report import HostReport
from plimsoll.fleet.rollout import progress
from plimsoll.fleet.rollout.model import Begin, Event, HostEvent, RunEvent, from_line, to_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.fleet.rollout.progress import Progress

PRIVATE_DIRECTORY = 0o700


class BusyError(Exception):
    """Another rollout of this fleet is at work on this machine."""


class JournalError(click.ClickException):
    """A journal cannot be used."""


def fleet_directory(inventory: Path) -> Path:
    """Return where everything about rollouts of this inventory is kept; made if there is none."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    fleet = hashlib.sha256(os.fsencode(os.path.realpath(inventory))).hexdigest()[:12]
    directory = Path(home) / "plimsoll/rollout" / fleet
    directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    return directory


def _open_lock(file: Path) -> int:
    file.parent.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def only_one(directory: Path, who: str) -> Iterator[None]:
    """Hold the fleet; raises BusyError, with who holds it, at once. The kernel lets go of it for who is killed."""
    descriptor = _open_lock(directory / "fleet.lock")
    try:
        _hold(descriptor, who)
        yield
    finally:
        os.close(descriptor)


def _hold(descriptor: int, who: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace") or "somebody"
        raise BusyError(f"a rollout of this fleet is under way: {holder}; wait for its end") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, who.encode(), 0)


def host_lock(directory: Path, host: str) -> int:
    """Return the descriptor of a host's lock, to be taken with flock: the host's deploy inherits it.

    Whoever is killed leaves a deploy behind that goes on to its end, and that a resumed rollout has to wait for.
    """
    return _open_lock(directory / "hosts" / f"{quote(host, safe='@')}.lock")


def _add(descriptor: int, line: bytes) -> None:
    before = os.fstat(descriptor).st_size
    if os.write(descriptor, line) != len(line):
        # what comes after half a line would be part of it
        os.ftruncate(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fdatasync(descriptor)


@dataclass(frozen=True)
class Journal:
    """One rollout's directory."""

    directory: Path

    @property
    def file(self) -> Path:
        """The journal itself: JSON lines."""
        return self.directory / "journal.jsonl"

    def log(self, host: str) -> Path:
        """Return the file that has everything that a host's deploy said."""
        return self.directory / "logs" / f"{quote(host, safe='@')}.log"

    def append(self, entry: Begin | Event) -> None:
        """Add a line, and return once it is on the disk; raises JournalError."""
        try:
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _add(descriptor, f"{to_line(entry)}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JournalError(f"{self.file}: {error.strerror}; nothing further is begun") from None

    def load(self) -> Progress:
        """Return where the rollout stands; raises JournalError."""
        self._drop_torn_line()
        entries = self._entries()
        begin = entries[0] if entries else None
        if not isinstance(begin, Begin):
            raise JournalError(f"{self.file} does not begin with a plan; begin a new rollout")
        return progress.of(begin, (entry for entry in entries if isinstance(entry, HostEvent | RunEvent)))

    def _entries(self) -> list[Begin | Event]:
        try:
            # by line feeds alone: a text may hold what Unicode takes for the end of a line
            lines = self.file.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
        except OSError as error:
            raise JournalError(f"{self.file}: {error.strerror}; begin a new rollout") from None
        return [self._entry(number, line) for number, line in enumerate(lines, 1)]

    def _entry(self, number: int, line: str) -> Begin | Event:
        try:
            return from_line(line)
        except ValueError:
            raise JournalError(f"{self.file}:{number} is no event; begin a new rollout") from None

    def _drop_torn_line(self) -> None:
        try:
            content = self.file.read_bytes()
        except OSError:
            return
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.truncate(self.file, whole)

    def keep_report(self, report: HostReport) -> None:
        """Keep what was found of a host, for the page at the end; raises OSError."""
        file = self._report(report.name)
        scratch = file.with_suffix(".new")
        # whole or not at all for who reads it; that it outlives a power cut is not worth 50 waits for the disk
        scratch.write_text(json.dumps(report.to_json()), encoding="utf-8")
        scratch.replace(file)

    def report(self, host: str) -> HostReport | None:
        """Return what was found of a host last, None for nothing."""
        try:
            return HostReport.from_json(host, json.loads(self._report(host).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _report(self, host: str) -> Path:
        return self.directory / "reports" / f"{quote(host, safe='@')}.json"


def create(fleet: Path, begin: Begin) -> Journal:
    """Make the directory of a new rollout, with its first line; raises OSError."""
    directory = fleet / begin.id
    directory.mkdir(mode=PRIVATE_DIRECTORY)
    for name in ("logs", "reports"):
        (directory / name).mkdir(mode=PRIVATE_DIRECTORY)
    journal = Journal(directory)
    journal.append(begin)
    return journal


def latest(fleet: Path) -> Journal | None:
    """Return the rollout that was begun last, None if none ever was; one that was cut off before its plan is none."""
    found = sorted(fleet.glob("*/journal.jsonl"), reverse=True)
    begun = (Journal(file.parent) for file in found if b"\n" in file.read_bytes())
    return next(begun, None)
