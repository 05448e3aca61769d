"""Who is killed first, for what runs already: oom_score_adj by root, and what the guard was told to spare."""

import errno
import os
from collections.abc import Iterable

from plimsoll.box.errors import BoxError, UsageError
from plimsoll.box.guard import configured
from plimsoll.box.guard.config import PATH
from plimsoll.box.host import Host
from plimsoll.box.serve.launch import Seen
from plimsoll.box.serve.model import Model

LEAST, MOST = -1000, 1000
NEVER = -1000
_WHY_DENIED = (
    "the kernel lets a process without CAP_SYS_RESOURCE raise a score, and never lower one below what it was given; "
    "use sudo"
)


def checked(adj: int, *, force: bool) -> int:
    """Return a score that may be given; raises UsageError."""
    if not LEAST <= adj <= MOST:
        raise UsageError(f"--adj {adj}: a score is a whole number from {LEAST} to {MOST}")
    if adj == NEVER and not force:
        raise UsageError(
            f"--adj {NEVER} makes the kernel kill everything else first, sshd's sessions included, for a process that "
            "is most of the machine; -500 is enough to come after what people run. With --force it is done"
        )
    return adj


def give(host: Host, model: Model, pids: Iterable[int]) -> list[str]:
    """Give a model's processes its score, where its file has one; return what could not be done."""
    if model.oom_score_adj == 0:
        return []
    return [problem for pid in pids if (problem := put(host, pid, model.oom_score_adj))]


def put(host: Host, pid: int, adj: int) -> str:
    """Set a process's score; return why it could not be, empty where it was, or where the process is gone."""
    try:
        descriptor = os.open(host.path(f"/proc/{pid}/oom_score_adj"), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(adj).encode())
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        why = _WHY_DENIED if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        return f"pid {pid}: its oom_score_adj stays {current(host, pid)}: {why}"
    return ""


def current(host: Host, pid: int) -> int | None:
    """Return a process's score, None where it is gone."""
    text = host.text_or_none(f"/proc/{pid}/oom_score_adj")
    return None if text is None else int(text)


def unprotected(host: Host, model: Model, seen: Seen) -> list[str]:
    """Return a note where a model's file says that the guard must not stop it, and the guard was not told so."""
    if model.guard_may_kill:
        return []
    try:
        spared = configured.load(host).config.protect
    except BoxError as error:
        return [f"whether the guard spares it, as its file wants, is not known: {error}"]
    if any(each.fits(seen.cgroup, seen.name, "") for each in spared if each.kind != "command"):
        return []
    wanted = f"add 'unit:{seen.name}' to victims.protect in {PATH}"
    return [f"its file says guard_may_kill = false, and the guard knows nothing of it: {wanted}"]
