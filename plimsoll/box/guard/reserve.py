"""Reservations: what a load has announced that it will take, so that it is not killed for doing so.

One file each in /run/plimsoll/reservations, which only root, or members of a named group, can write. Times in them
are of the monotonic clock, which nobody sets, and hold for one boot.
"""

import fcntl
import grp
import json
import math
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from plimsoll.box.errors import INTERNAL, BoxError, UsageError
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Reservation, Sample
from plimsoll.box.guard.places import printable
from plimsoll.box.host import Host

DIRECTORY = "/run/plimsoll/reservations"
SCHEMA = "plimsoll.reservation/1"
MAX_FILES = 64
MAX_FILE_BYTES = 4096
MAX_WITHIN_S = 6 * 3600.0
"""A load of 45 minutes is the longest that was seen."""
MAX_SELECTOR = 1024
GONE_AFTER_S = 10.0
"""A workload that is missing for less may be starting again, or was not seen in one look."""
_NAME = re.compile(r"[0-9a-f]{16}\.json")
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_NUMBERS = ("allocate_kib", "made_s", "until_s", "available_at_start_kib", "steady_line_kib")


class ReservationError(BoxError):
    """The reservations cannot be read or written as they must be."""

    exit_code = INTERNAL


# --- pure -------------------------------------------------------------------------------------------


def admit(
    wanted: Reservation, sample: Sample, lines: Lines, others: Iterable[Reservation], backstop_kib: int | None = None
) -> str | None:
    """Return why an announcement cannot be kept, None where it can.

    `backstop_kib` is the level of available memory at which another killer acts (earlyoom), None where there is none.
    """
    if sample.available_kib is None:
        return "it is not known how much memory is available"
    announced = sum(each.remaining_kib(sample) for each in others if each.id != wanted.id)
    # Of a load that has begun, what it has taken is gone already.
    takes = max(0, wanted.allocate_kib - max(0, wanted.available_at_start_kib - sample.available_kib))
    left = sample.available_kib - announced - takes
    beside = f", less {_gib(announced)} announced by others" if announced else ""
    sum_is = f"{_gib(sample.available_kib)} available{beside}, less {_gib(takes)}, is {_gib(left)}"
    if left < lines.floor_kib:
        return f"{sum_is}: below the floor of {_gib(lines.floor_kib)}"
    ladder = _against_ladder(wanted.steady_line_kib, lines, backstop_kib)
    if ladder is None and left < wanted.steady_line_kib:
        return f"{sum_is}: below its steady line of {_gib(wanted.steady_line_kib)}, where it would be stopped"
    return ladder


def _against_ladder(steady_kib: int, lines: Lines, backstop_kib: int | None) -> str | None:
    steady = f"the steady line of {_gib(steady_kib)} must lie"
    if steady_kib <= lines.floor_kib:
        return f"{steady} above the floor of {_gib(lines.floor_kib)}"
    if steady_kib > lines.slow_enter_kib:
        return f"{steady} at or below the slow line of {_gib(lines.slow_enter_kib)}"
    if backstop_kib is not None and steady_kib <= backstop_kib:
        return f"{steady} above {_gib(backstop_kib)}, where earlyoom acts"
    return None


def parse(content: Mapping[str, Any], boot_id: str) -> Reservation | None:
    """Return a file's reservation, None for one of an earlier boot; raises ValueError naming what is wrong."""
    if content.get("schema") != SCHEMA:
        raise ValueError(f"schema {content.get('schema')!r}, expected {SCHEMA}")
    texts = {key: content.get(key) for key in ("id", "workload", "boot_id")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{key} is not a text")
    numbers = {key: _number(key, content.get(key)) for key in _NUMBERS}
    if texts["boot_id"] != boot_id:
        return None
    found = Reservation(
        id=str(texts["id"]),
        workload=str(texts["workload"]),
        allocate_kib=round(numbers["allocate_kib"]),
        made_s=numbers["made_s"],
        until_s=numbers["until_s"],
        available_at_start_kib=round(numbers["available_at_start_kib"]),
        steady_line_kib=round(numbers["steady_line_kib"]),
    )
    wrong = against(found)
    if wrong is not None:
        raise ValueError(wrong)
    return found


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{key} is not a number from 0")
    return float(value)


def against(reservation: Reservation) -> str | None:
    """Return what makes a reservation unusable whatever memory there is, None where nothing does."""
    if not _IDENTITY.fullmatch(reservation.id):
        return "its id is not 16 hexadecimal digits"
    if len(reservation.workload) > MAX_SELECTOR or not reservation.workload.isprintable():
        return f"the workload's name has more than {MAX_SELECTOR} characters, or some that cannot be printed"
    if reservation.allocate_kib <= 0:
        return "nothing is to be allocated"
    if not 0 < reservation.until_s - reservation.made_s <= MAX_WITHIN_S:
        return f"its time is not above 0 and at most {MAX_WITHIN_S:g} s"
    return None


@dataclass(frozen=True)
class Keeping:
    """The reservations that hold, and when each one's workload was last there, by id."""

    reservations: tuple[Reservation, ...] = ()
    seen_s: Mapping[str, float] = field(default_factory=dict)
    ended: tuple[tuple[str, str], ...] = ()
    """Those that ended with this look, by id, with the reason."""


def keep(before: Keeping, found: Iterable[Reservation], selectors: frozenset[str], at_s: float) -> Keeping:
    """Return which of the reservations that were found hold: until their workload is gone, or has not come in time.

    `selectors` are those of all workloads that are there now.
    """
    kept, seen_s, ended = [], {}, []
    for each in found:
        last_s = at_s if each.workload in selectors else before.seen_s.get(each.id)
        reason = _ended(each, last_s, at_s)
        if reason is not None:
            ended.append((each.id, reason))
            continue
        kept.append(each)
        if last_s is not None:
            seen_s[each.id] = last_s
    return Keeping(tuple(kept), seen_s, tuple(ended))


def _ended(reservation: Reservation, seen_s: float | None, at_s: float) -> str | None:
    name = printable(reservation.workload)
    if seen_s is None:
        return f"{name} was not started in time" if at_s > reservation.until_s else None
    return f"{name} is gone" if at_s - seen_s > GONE_AFTER_S else None


def _gib(kib: float) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"


# --- files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """The directory of reservations, as it is on this host."""

    host: Host
    groups: tuple[str, ...] = ()
    """Groups whose members may reserve, beside root; the directory belongs to the first."""

    @property
    def boot_id(self) -> str:
        """What tells this boot from others."""
        return self.host.text_or_none("/proc/sys/kernel/random/boot_id") or ""

    def create(self) -> None:
        """Make the directory, or mend its owner and mode; raises ReservationError where something else is there."""
        path = self.host.path(DIRECTORY)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        with self._opened(check=False) as directory:
            group = self._group_ids()[:1]
            os.fchown(directory, os.geteuid(), group[0] if group else os.getegid())
            # Members read what others have reserved, and cannot take it away.
            os.fchmod(directory, 0o3770 if group else 0o700)

    def read(self) -> tuple[tuple[Reservation, ...], tuple[str, ...]]:
        """Return all reservations of this boot, the oldest first, and what was not taken for one, with the reason."""
        if not os.path.lexists(self.host.path(DIRECTORY)):
            return (), ()
        found: list[Reservation] = []
        problems: list[str] = []
        with self._opened() as directory:
            names = sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
            if len(names) > MAX_FILES:
                problems.append(f"{DIRECTORY}: {len(names)} files, only the first {MAX_FILES} count")
            for name in names[:MAX_FILES]:
                try:
                    reservation = parse(self._content(directory, name), self.boot_id)
                    if reservation is not None and f"{reservation.id}.json" != name:
                        raise ValueError("its id is not its name")  # noqa: TRY301  # one way to report all of them
                except FileNotFoundError:
                    continue
                except (OSError, ValueError, RecursionError) as error:
                    problems.append(f"{DIRECTORY}/{name}: {error}")
                else:
                    found += [reservation] if reservation is not None else []
        return tuple(sorted(found, key=lambda each: each.made_s)), tuple(problems)

    def add(self, wanted: Reservation, may: Callable[[Sequence[Reservation]], str | None]) -> str | None:
        """Write a reservation, unless `may`, given those that there are, says why not: then return that."""
        with self._opened() as directory:
            fcntl.flock(directory, fcntl.LOCK_EX)
            present, _ = self.read()
            reason = may(present)
            if reason is None and len(present) >= MAX_FILES:
                reason = f"there are {MAX_FILES} reservations already"
            if reason is None:
                self._write(directory, wanted)
            return reason

    def remove(self, identity: str) -> bool:
        """Remove a reservation; False where there is none of that id."""
        if not _IDENTITY.fullmatch(identity):
            raise UsageError(f"{printable(identity)!r} is no reservation's id, which has 16 hexadecimal digits")
        if not os.path.lexists(self.host.path(DIRECTORY)):
            return False
        with self._opened() as directory:
            try:
                os.unlink(f"{identity}.json", dir_fd=directory)
            except FileNotFoundError:
                return False
        return True

    @contextmanager
    def _opened(self, *, check: bool = True) -> Iterator[int]:
        path = self.host.path(DIRECTORY)
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ReservationError(f"{DIRECTORY}: {error.strerror}") from error
        try:
            found = os.fstat(directory)
            if found.st_uid != self._root_uid():
                raise ReservationError(f"{DIRECTORY}: belongs to user {found.st_uid}, not to root; remove it")
            if check and found.st_mode & (stat.S_IWOTH | (0 if self.groups else stat.S_IWGRP)):
                raise ReservationError(f"{DIRECTORY}: others may write to it (mode {found.st_mode & 0o7777:04o})")
            yield directory
        finally:
            os.close(directory)

    def _root_uid(self) -> int:
        """Whose the directory must be: root's, on the running machine."""
        return 0 if not self.host.root else os.stat(self.host.root).st_uid

    def _content(self, directory: int, name: str) -> Mapping[str, Any]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=directory)
        try:
            self._check(os.fstat(descriptor))
            text = os.read(descriptor, MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("is no JSON object")  # noqa: TRY004  # all that is wrong with a file is a ValueError
        return content

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ValueError("is not a regular file with one name")
        if found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes")
        if found.st_uid != self._root_uid() and not self._is_member(found.st_uid):
            raise ValueError(f"belongs to user {found.st_uid}, who may not reserve")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others may write to it")

    def _group_ids(self) -> list[int]:
        found = []
        for name in self.groups:
            with suppress(KeyError):
                found.append(grp.getgrnam(name).gr_gid)
        return found

    def _is_member(self, uid: int) -> bool:
        """Say whether a user may reserve: only a member could have created a file in the group's directory."""
        if not self.groups:
            return False
        with suppress(KeyError):
            user = pwd.getpwuid(uid)
            return bool({*os.getgrouplist(user.pw_name, user.pw_gid)} & {*self._group_ids()})
        return False

    def _write(self, directory: int, wanted: Reservation) -> None:
        content = {"schema": SCHEMA, "boot_id": self.boot_id, **asdict(wanted)}
        temporary = f".{wanted.id}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o640, dir_fd=directory)
        try:
            os.write(descriptor, json.dumps(content).encode())
        finally:
            os.close(descriptor)
        os.rename(temporary, f"{wanted.id}.json", src_dir_fd=directory, dst_dir_fd=directory)


def new(
    selector: str, allocate_kib: int, within_s: float, at_s: float, available_kib: int, steady_line_kib: int
) -> Reservation:
    """Return a reservation that begins now; raises UsageError for one that makes no sense on any host."""
    wanted = Reservation(
        os.urandom(8).hex(), selector, allocate_kib, at_s, at_s + within_s, available_kib, steady_line_kib
    )
    wrong = against(wanted)
    if wrong is not None:
        raise UsageError(f"reserve: {wrong}")
    return wanted
