"""Stopping a workload: signals to its processes by descriptor, and one write to its `cgroup.kill`.

Everything that a kill needs is opened in advance, by `prepare`, in another thread: at the moment of killing nothing
may be opened that need not be, and nothing is asked of dockerd or systemd, which then do not answer.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.box.guard.model import Process, Verb, Workload
from plimsoll.box.guard.processes import read_stat
from plimsoll.box.guard.spawn import c_library
from plimsoll.box.guard.worker import Worker
from plimsoll.box.guard.workloads import Target
from plimsoll.box.host import Host
from plimsoll.box.units import CGROUP

MAX_PREPARED = 8
"""Workloads for which everything is kept open: the likeliest victims."""
MAX_PIDFDS = 32
"""Processes of one workload that are held by descriptor: systemd lets a service have 1024 of them."""
_KILL_PASSES = 3
"""Without `cgroup.kill` a process that forks meanwhile is found in the next pass."""
_MRELEASE = 448
"""process_mrelease(2), the same number on all architectures."""
_LIBC = c_library()


class Result(StrEnum):
    """What came of it; only SIGNALLED has somebody who goes."""

    SIGNALLED = "signalled"
    VANISHED = "vanished"
    """It was gone already, or others are there now."""
    DENIED = "denied"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What was done, to how many processes (0 for a cgroup as a whole), and what stood in the way."""

    result: Result
    how: str
    signalled: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Ready:
    """What is open for one workload."""

    cgroup_kill: int | None
    pidfds: Mapping[Process, int]
    target: Target
    events: int | None = None
    """Its `cgroup.events`, which says when it is empty."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that is to be closed."""
        return (*(each for each in (self.cgroup_kill, self.events) if each is not None), *self.pidfds.values())


class Hand:
    """Stops workloads. `prepare` is for one background thread, `stop` for the main one.

    Signals by descriptor wait for nobody. A write to `cgroup.kill` may: it needs a lock of the kernel's that is held
    while a login's or a unit's cgroup is made, which allocates. So who is known by descriptor is killed first, and a
    thread of its own does the rest.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._ready: dict[str, Ready] = {}
        # Held for a moment: who is being stopped must not have its descriptors closed.
        self._lock = threading.Lock()
        self._rest: Worker[int] = Worker("cgroup-kill", _kill_rest, MAX_PREPARED)
        self._has_thread = False

    def prepare(self, workloads: Sequence[Workload], targets: Mapping[str, Target]) -> None:
        """Open what is needed to stop these, the likeliest first, and close what was open for others."""
        if not self._has_thread:
            self._rest.start()
            self._has_thread = True
        wanted = {each.key: each for each in workloads[:MAX_PREPARED]}
        fresh = {key: self._refreshed(each, targets.get(key)) for key, each in wanted.items()}
        with self._lock:
            old, self._ready = self._ready, fresh
        kept = {descriptor for ready in fresh.values() for descriptor in ready.descriptors}
        for descriptor in {each for ready in old.values() for each in ready.descriptors} - kept:
            os.close(descriptor)

    def _refreshed(self, workload: Workload, target: Target | None) -> Ready:
        """Return what is open for a workload, with its new processes and without those that ended."""
        old = self._ready.get(workload.key)
        chosen = target or Target(workload.processes[:1], "its first process")
        wanted = dict.fromkeys((*chosen.processes, *workload.processes))
        pidfds = {}
        for process in list(wanted)[:MAX_PIDFDS]:
            descriptor = old.pidfds.get(process) if old else None
            if descriptor is not None and not _ended(descriptor):
                pidfds[process] = descriptor
            elif isinstance(opened := open_process(self.host, process), int):
                pidfds[process] = opened
        kill = events = None
        if workload.whole_cgroup:
            same = old is not None and bool(old.pidfds.keys() & pidfds.keys())
            directory = self.host.path(f"{CGROUP}{workload.cgroup}")
            kill = old.cgroup_kill if old and same else _open_or_none(f"{directory}/cgroup.kill", os.O_WRONLY)
            events = old.events if old and same else _open_or_none(f"{directory}/cgroup.events", os.O_RDONLY)
        return Ready(kill, pidfds, chosen, events)

    def close(self) -> None:
        """Close everything, and end the thread once nothing is left to kill."""
        self.prepare((), {})
        self._rest.stop(timeout_s=1.0)

    def stop(self, workload: Workload, verb: Verb) -> Outcome:
        """Send SIGKILL to all of a workload, or SIGTERM to its main processes. Returns at once, and never raises."""
        with self._lock:
            ready = self._ready.get(workload.key)
            try:
                if ready is not None and ready.pidfds and all(map(_ended, ready.pidfds.values())):
                    ready = None
                return self._kill(workload, ready) if verb is Verb.KILL else self._term(workload, ready)
            except OSError as error:
                return Outcome(_result(error), "stopped on the way", detail=_detail(error))

    def _term(self, workload: Workload, ready: Ready | None) -> Outcome:
        target = ready.target if ready else Target(workload.processes[:1], "its first process: it was not prepared")
        return self._signal(target.processes, signal.SIGTERM, ready, target.why)

    def _kill(self, workload: Workload, ready: Ready | None) -> Outcome:
        if not workload.whole_cgroup:
            return self._signal(workload.processes, signal.SIGKILL, ready, "processes of the group, by descriptor")
        if ready is None and not self._is_there(workload):
            return Outcome(Result.VANISHED, "cgroup.kill", detail="none of its processes is left")
        if ready is not None and ready.cgroup_kill is not None and ready.pidfds:
            how = "its processes by descriptor, and cgroup.kill for the rest"
            first = self._signal(ready.pidfds, signal.SIGKILL, ready, how)
            if first.result is Result.SIGNALLED and self._rest.put(os.dup(ready.cgroup_kill)):
                return first
        try:
            self._write_kill(workload, ready)
        except OSError as error:
            # ENODEV: the cgroup that was opened is gone; who is in a new one of its name was not chosen.
            if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
                return Outcome(_result(error), "cgroup.kill", detail=_detail(error))
            return self._kill_each(workload)
        return Outcome(Result.SIGNALLED, "cgroup.kill")

    def _write_kill(self, workload: Workload, ready: Ready | None) -> None:
        if ready is not None and ready.cgroup_kill is not None:
            os.write(ready.cgroup_kill, b"1")
            return
        descriptor = os.open(self.host.path(f"{CGROUP}{workload.cgroup}/cgroup.kill"), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)

    def _is_there(self, workload: Workload) -> bool:
        """Say whether any process of it is left; another one with its number, or its cgroup's name, is not it."""
        if not workload.processes:
            return os.path.isdir(self.host.path(f"{CGROUP}{workload.cgroup}"))
        return any(is_same(self.host, process) for process in workload.processes[:MAX_PIDFDS])

    def _kill_each(self, workload: Workload) -> Outcome:
        """Kill by process where the kernel has no `cgroup.kill` (before 5.14), or the cgroup is gone."""
        how = "every process of the cgroup, by descriptor: it has no cgroup.kill"
        directory = self.host.path(f"{CGROUP}{workload.cgroup}")
        killed: set[int] = set()
        denied = ""
        for _ in range(_KILL_PASSES):
            new = _members(directory) - killed
            for pid in new:
                stat = read_stat(self.host, pid)
                error = send(self.host, Process(pid, stat.start_ticks), signal.SIGKILL) if stat else errno.ESRCH
                denied = os.strerror(error) if error not in (0, errno.ESRCH) else denied
            killed |= new
            if not new:
                break
        if not killed:
            return Outcome(Result.VANISHED, how, detail="the cgroup is gone, or empty")
        return Outcome(Result.DENIED if denied else Result.SIGNALLED, how, len(killed), denied)

    def _signal(self, processes: Iterable[Process], number: signal.Signals, ready: Ready | None, how: str) -> Outcome:
        signalled, errors = 0, set()
        for process in processes:
            descriptor = ready.pidfds.get(process) if ready else None
            error = _send(descriptor, number) if descriptor is not None else send(self.host, process, number)
            signalled += error == 0
            errors.add(error)
        detail = ", ".join(sorted(os.strerror(each) for each in errors - {0}))
        if signalled:
            return Outcome(Result.SIGNALLED, how, signalled, detail)
        if errors - {errno.ESRCH}:
            return Outcome(Result.DENIED if errno.EPERM in errors else Result.FAILED, how, 0, detail)
        return Outcome(Result.VANISHED, how, 0, "none of its processes is left")

    def watch(self, workload: Workload) -> Ready:
        """Return descriptors of a victim that stay open for the caller, who closes them: to see it end."""
        with self._lock:
            ready = self._ready.get(workload.key)
            if ready is not None:
                pidfds = {process: os.dup(each) for process, each in ready.pidfds.items()}
                events = os.dup(ready.events) if ready.events is not None else None
                return Ready(None, pidfds, ready.target, events)
        opened = {each: open_process(self.host, each) for each in workload.processes[:MAX_PIDFDS]}
        found = {process: each for process, each in opened.items() if isinstance(each, int)}
        path = self.host.path(f"{CGROUP}{workload.cgroup}/cgroup.events")
        return Ready(None, found, Target((), ""), _open_or_none(path, os.O_RDONLY) if workload.whole_cgroup else None)


# --- processes by descriptor ------------------------------------------------------------------------


def is_same(host: Host, process: Process) -> bool:
    """Say whether a process is still that one, and neither dead nor a later one with its number."""
    stat = read_stat(host, process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and not stat.is_dead


def open_process(host: Host, process: Process) -> int | OSError:
    """Return a descriptor of exactly that process; who has its number now is told by the time of its start."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        return error
    # It is asked after the descriptor was opened: if this is the right one, the descriptor is as well.
    if is_same(host, process):
        return descriptor
    os.close(descriptor)
    return ProcessLookupError(errno.ESRCH, "another process has its number now")


def send(host: Host, process: Process, number: int) -> int:
    """Signal exactly that process; return 0, or the error's number (ESRCH: it is gone)."""
    descriptor = open_process(host, process)
    if isinstance(descriptor, OSError):
        return descriptor.errno or errno.EIO
    try:
        return _send(descriptor, number)
    finally:
        os.close(descriptor)


def _kill_rest(cgroup_kill: int) -> None:
    """Kill what is left in a cgroup; one that was removed meanwhile has nothing left."""
    try:
        os.write(cgroup_kill, b"1")
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
    finally:
        os.close(cgroup_kill)


def _send(descriptor: int, number: int) -> int:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _ended(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))


def _open_or_none(path: str, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def _members(directory: str) -> set[int]:
    """Return all processes in a cgroup and below it."""
    found: set[int] = set()
    for path, _, names in os.walk(directory):
        if "cgroup.procs" in names:
            with contextlib.suppress(OSError):
                found |= {int(word) for word in _content(f"{path}/cgroup.procs").split() if word.isdigit()}
    return found - {0}


def _content(path: str) -> bytes:
    """Return a file's bytes; a text file would have Python read a codec from disk first."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    finally:
        os.close(descriptor)


def _result(error: OSError) -> Result:
    if error.errno in (errno.ESRCH, errno.ENOENT, errno.ENODEV):
        return Result.VANISHED
    return Result.DENIED if error.errno in (errno.EPERM, errno.EACCES, errno.EROFS) else Result.FAILED


def _detail(error: OSError) -> str:
    return error.strerror or str(error)


def release(pidfd: int) -> int | None:
    """Have the kernel take back the memory of a killed process at once; return the descriptor, None if it does not.

    It may wait for a process that is stuck: not for the main thread. What is mapped from the driver is not given back.
    """
    return pidfd if _LIBC.syscall(_MRELEASE, ctypes.c_int(pidfd), ctypes.c_uint(0)) == 0 else None


# --- the path, without a kill -----------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One thing that a kill needs, and what is wrong with it; None where it works."""

    what: str
    problem: str | None


def self_test(host: Host) -> tuple[Check, ...]:
    """Go the whole way of a kill but for the signal, and say what would not work."""
    return (
        Check("signal by descriptor", _problem(_try_signal, host)),
        Check("signal others' processes", _problem(_try_others, host)),
        Check("open files of other processes", _problem(os.readlink, host.path("/proc/1/fd/0"))),
        Check("cgroup.kill", _problem(_try_cgroup_kill, host)),
        Check("process_mrelease", _problem(_try_mrelease)),
        Check("drop_caches", _problem(_try_open, host.path("/proc/sys/vm/drop_caches"))),
    )


def _problem(attempt: Callable[..., object], *arguments: object) -> str | None:
    try:
        attempt(*arguments)
    except OSError as error:
        return _detail(error)
    return None


def _try_signal(host: Host) -> None:
    stat = read_stat(host, os.getpid())
    number = send(host, Process(os.getpid(), stat.start_ticks), 0) if stat else errno.ESRCH
    if number:
        raise OSError(number, os.strerror(number))


def _try_others(host: Host) -> None:
    descriptor = os.pidfd_open(1)
    try:
        signal.pidfd_send_signal(descriptor, 0)
    finally:
        os.close(descriptor)
    if read_stat(host, 1) is None:
        raise OSError(errno.EACCES, "/proc/1/stat cannot be read")


def _try_cgroup_kill(host: Host) -> None:
    """Open one for writing and write nothing: the root cgroup has none."""
    base = host.path(CGROUP)
    groups = [each.path for each in os.scandir(base) if each.is_dir(follow_symlinks=False)]
    if not groups:
        raise OSError(errno.ENOENT, f"no cgroup below {base}")
    os.close(os.open(f"{groups[0]}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC))


def _try_mrelease() -> None:
    _LIBC.syscall(_MRELEASE, ctypes.c_int(-1), ctypes.c_uint(0))
    # EBADF: the kernel knows the call, and there is no such descriptor.
    if ctypes.get_errno() != errno.EBADF:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try_open(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
