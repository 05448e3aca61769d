"""What the dead leave in /dev/shm: memory that stays taken until somebody removes the file.

Removed is only what was seen mapped by the victim before it was killed, belongs to its user, and is mapped and open
nowhere any more. One process that cannot be looked at is enough for nothing to be removed.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from plimsoll.box.guard.model import Process
from plimsoll.box.guard.patience import Patient
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.host import Host

DIRECTORY = "/dev/shm"  # noqa: S108  # it is where programs share memory, and nothing is created there
MAX_MAPS_BYTES = 8 << 20
"""A process with 65530 mappings, the most that the kernel allows by default, has some 6 MB."""
_MAPPED = re.compile(
    rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+) +/dev/shm/([^\n]+?)( \(deleted\))?$", re.MULTILINE
)


@dataclass(frozen=True)
class Shared:
    """One file that a process has mapped; the device and the number tell it from another of its name."""

    device: int
    inode: int
    name: str
    """Its path below /dev/shm."""
    uid: int
    """Whose the process is."""


@dataclass(frozen=True)
class Removed:
    """What was removed, with its size, and what was left, with the reason."""

    names: tuple[str, ...] = ()
    kib: int = 0
    left: tuple[tuple[str, str], ...] = ()


def parse_maps(text: bytes, uid: int) -> frozenset[Shared]:
    """Return the files below /dev/shm that a process has mapped, without those that were removed already."""
    rows = _MAPPED.findall(text)
    return frozenset(
        Shared(os.makedev(int(major, 16), int(minor, 16)), int(inode), os.fsdecode(name), uid)
        for major, minor, inode, name, deleted in rows
        if not deleted
    )


class SharedMemory:
    """Remembers what processes have mapped there, and removes it after them; each method has one caller at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = Patient(self._mapped)
        self._after = Patient(self._used)

    def mapped(self, processes: Iterable[Process]) -> frozenset[Shared]:
        """Return what these processes have mapped now. It may take as long as the kernel takes: in advance only."""
        return frozenset().union(*self._before.read(processes).values())

    def remove(self, files: Iterable[Shared]) -> Removed:
        """Remove those that nobody uses any more."""
        wanted = sorted({each for each in files if self._is_ours(each)}, key=lambda each: each.name)
        if not wanted:
            return Removed()
        used, unseen = self._in_use()
        names, kib, left = [], 0, []
        for each in wanted:
            reason = unseen or ("others use it" if (each.device, each.inode) in used else None)
            freed = self._unlink(each) if reason is None else reason
            if isinstance(freed, int):
                names.append(each.name)
                kib += freed
            else:
                left.append((each.name, freed))
        return Removed(tuple(names), kib, tuple(left))

    def _is_ours(self, file: Shared) -> bool:
        """Say whether it lies in this host's /dev/shm: a container has its own, whose files go with it."""
        try:
            return os.stat(self._host.path(DIRECTORY)).st_dev == file.device
        except OSError:
            return False

    def _in_use(self) -> tuple[set[tuple[int, int]], str | None]:
        """Return what is in use by anybody, and why that is not all."""
        pids = [int(name) for name in self._host.names("/proc") if name.isdecimal()]
        found = self._after.read(pids)
        missing = [pid for pid in pids if pid not in found and self._is_alive(pid)]
        unseen = f"it cannot be told whether process {missing[0]} uses it" if missing else None
        return set().union(*found.values()), unseen

    def _is_alive(self, pid: int) -> bool:
        found = read_stat(self._host, pid)
        return found is not None and not found.is_dead

    def _mapped(self, process: Process) -> frozenset[Shared] | None:
        base = f"/proc/{process.pid}"
        try:
            uid = os.stat(self._host.path(base)).st_uid
            text = self._maps(process.pid)
        except OSError:
            return None
        found = read_stat(self._host, process.pid)
        return parse_maps(text, uid) if found and found.start_ticks == process.start_ticks else None

    def _maps(self, pid: int) -> bytes:
        with open(self._host.path(f"/proc/{pid}/maps"), "rb") as file:
            return file.read(MAX_MAPS_BYTES)

    def _used(self, pid: int) -> set[tuple[int, int]] | None:
        """Return what one process has mapped or open below /dev/shm; None where that cannot be seen."""
        try:
            mapped = {(each.device, each.inode) for each in parse_maps(self._maps(pid), 0)}
            directory = self._host.path(f"/proc/{pid}/fd")
            links = [f"{directory}/{name}" for name in os.listdir(directory)]
            return mapped | {found for link in links if (found := _opened(link)) is not None}
        except OSError:
            return None

    def _unlink(self, file: Shared) -> int | str:
        """Remove one file and return its KiB, or why it was left; no link on the way is followed."""
        *directories, name = file.name.split("/")
        if ".." in directories or name in ("", "..", "."):
            return "not a path below /dev/shm"
        opened = [os.open(self._host.path(DIRECTORY), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            for each in directories:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened.append(os.open(each, flags, dir_fd=opened[-1]))
            found = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            reason = _against(found, file)
            if reason is None:
                os.unlink(name, dir_fd=opened[-1])
            return reason or found.st_blocks // 2
        except OSError as error:
            return error.strerror or str(error)
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _against(found: os.stat_result, file: Shared) -> str | None:
    """Return why a file that has the name is not to be removed."""
    if (found.st_dev, found.st_ino) != (file.device, file.inode):
        return "another file has its name now"
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return "not a regular file with one name"
    return None if found.st_uid == file.uid else "belongs to another user"


def _opened(link: str) -> tuple[int, int] | None:
    """Return which file below /dev/shm an open one is, None for any other; raises PermissionError."""
    try:
        if not os.readlink(link).startswith(f"{DIRECTORY}/"):
            return None
        found = os.stat(link)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
