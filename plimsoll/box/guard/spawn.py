"""Runs a program without stopping the other threads while it is loaded.

`subprocess`, `os.posix_spawn` and `os.fork` keep the interpreter's lock until the child runs its program. Measured
with a child that could not start for 0.7 s: no other thread ran for 0.7 s. On a wedged machine that is how long the
disk takes, and the thread that guards is one of them. A C function that ctypes calls runs without that lock (6 ms).
"""

import contextlib
import ctypes
import errno
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from plimsoll.box.host import Ran

MAX_OUTPUT_BYTES = 256 << 10
_STRUCTURE_BYTES = 1024
"""Enough for posix_spawnattr_t (336), posix_spawn_file_actions_t (80) and sigset_t (128) of any C library."""
_SETPGROUP, _SETSIGDEF, _SETSIGMASK = 0x02, 0x04, 0x08
_GONE_WITHIN_S = 1.0
"""SIGKILL ends a program at once, unless it waits in the kernel: then nobody waits for it."""
_left: set[int] = set()
_left_lock = threading.Lock()


def run(
    argv: Sequence[str], timeout_s: float, *, given: bytes = b"", environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a program with `given` on its standard input; return its exit code and both outputs together as `out`.

    127 where it could not be started; 124 where it was not done in time: then it and its process group are killed.
    The OOM killer sees it as any other program. Not for a thread that must not wait.
    """
    reap()
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(read_end, False)
        try:
            with _as_file(given) as stdin:
                pid = start(argv, dict(os.environ) if environment is None else environment, stdin, write_end)
        finally:
            os.close(write_end)
        _score_as_any_other(pid)
        return _await(argv[0], pid, read_end, timeout_s)
    except OSError as error:
        return Ran(127, "", f"{argv[0]}: {error.strerror or error}")
    finally:
        os.close(read_end)


@functools.cache
def c_library() -> ctypes.CDLL:
    """Return the C library, always the same object: each is a cycle of references, and the guard collects none."""
    return ctypes.CDLL(None, use_errno=True)


def reap() -> int:
    """Take leave of those that were killed and have ended since; return how many still have not."""
    with _left_lock:
        for pid in list(_left):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            _left.discard(pid)
        return len(_left)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[int]:
    """Hand a text over as a file in memory: a pipe would have to be written to for as long as nobody reads."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def start(
    argv: Sequence[str], environment: Mapping[str, str], stdin: int, output: int, *, inherits: bool = False
) -> int:
    """Start a program in a process group of its own and return its number; raises OSError.

    No signal is blocked or ignored for it. It has these descriptors for its input and both its outputs, and no other,
    unless it `inherits` those of ours that are inheritable.
    """
    libc = c_library()
    attributes, actions, every, none = (ctypes.create_string_buffer(_STRUCTURE_BYTES) for _ in range(4))
    libc.posix_spawnattr_init(attributes)
    libc.posix_spawn_file_actions_init(actions)
    try:
        libc.sigfillset(every)
        libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETPGROUP | _SETSIGDEF | _SETSIGMASK))
        libc.posix_spawnattr_setsigdefault(attributes, every)
        libc.posix_spawnattr_setsigmask(attributes, none)
        for ours, theirs in ((stdin, 0), (output, 1), (output, 2)):
            libc.posix_spawn_file_actions_adddup2(actions, ours, theirs)
        # What another thread is just handing to a child of its own is not for this one; not in a glibc before 2.34.
        if not inherits and hasattr(libc, "posix_spawn_file_actions_addclosefrom_np"):
            libc.posix_spawn_file_actions_addclosefrom_np(actions, 3)
        pid = ctypes.c_int()
        words = [os.fsencode(word) for word in argv]
        variables = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        code = libc.posix_spawnp(
            ctypes.byref(pid), words[0], actions, attributes, _c_strings(words), _c_strings(variables)
        )
    finally:
        libc.posix_spawn_file_actions_destroy(actions)
        libc.posix_spawnattr_destroy(attributes)
    if code != 0:
        raise OSError(code, os.strerror(code), argv[0])
    return pid.value


def _c_strings(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    if any(b"\0" in text for text in texts):
        raise OSError(errno.EINVAL, "a NUL byte in an argument or a variable")
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def _score_as_any_other(pid: int) -> None:
    """Give a child the score of an ordinary program: it has inherited that of what must not be killed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)


def _await(name: str, pid: int, read_end: int, timeout_s: float) -> Ran:
    deadline_s = time.monotonic() + timeout_s
    output = bytearray()
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        # No descriptor is free: nobody could wait for it, so that it must not go on.
        _leave(pid)
        raise
    try:
        is_done = _until_done(handle, read_end, deadline_s, output)
        if not is_done:
            _kill(pid)
        is_gone = bool(_ready([handle], time.monotonic() + _GONE_WITHIN_S))
    finally:
        os.close(handle)
    text = output.decode("utf-8", "replace")
    if not is_gone:
        _leave(pid)
        return Ran(124, text, f"{name}: not done in {timeout_s:g} s, and could not be ended")
    status = os.waitpid(pid, 0)[1]
    if not is_done:
        return Ran(124, text, f"{name}: not done in {timeout_s:g} s")
    return Ran(os.waitstatus_to_exitcode(status), text, "")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _leave(pid: int) -> None:
    """Let a child end when it can; `reap` takes leave of it."""
    _kill(pid)
    with _left_lock:
        _left.add(pid)


def _until_done(handle: int, read_end: int, deadline_s: float, output: bytearray) -> bool:
    """Collect output until the program ends; False at the deadline."""
    waiting = [handle, read_end]
    while ready := _ready(waiting, deadline_s):
        if read_end in ready and not _collect(read_end, output):
            waiting.remove(read_end)
        if handle in ready:
            # What is in the pipe comes with one call; what a grandchild may still say is not waited for.
            _collect(read_end, output)
            return True
    return False


def _collect(read_end: int, output: bytearray) -> bool:
    """Take what there is to read; False at the end, or where there is nothing yet."""
    try:
        chunk = os.read(read_end, MAX_OUTPUT_BYTES)
    except BlockingIOError:
        return False
    output += chunk[: MAX_OUTPUT_BYTES - len(output)]
    return bool(chunk)


def _ready(descriptors: Sequence[int], deadline_s: float) -> set[int]:
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {each for each, _ in poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)}
