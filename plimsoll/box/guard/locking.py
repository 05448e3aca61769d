"""Keeps the guard's own memory in memory, so that it never waits for the reclaim that everybody else waits for."""

import ctypes
import gc
import os
import resource
import threading

THREAD_STACK_BYTES = 256 << 10
"""Locked as a whole for every thread; the default is the limit of the main stack, 8 MiB."""
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
_MALLOC = (
    # A second arena reserves 64 MiB, and what is mapped later is locked as a whole.
    ("M_ARENA_MAX", _M_ARENA_MAX, 1),
    # A heap that shrinks has to fault its pages in again when it grows.
    ("M_TRIM_THRESHOLD", _M_TRIM_THRESHOLD, _NEVER),
    ("M_MMAP_MAX", _M_MMAP_MAX, 0),
)
RESERVE_BYTES = 1 << 20
"""Of small objects and of large ones each, beside what the first look at all processes has left."""
_SMALL_BYTES, _PIN_EVERY = 200, 1000
_pins: list[bytes] = []


def prepare() -> list[str]:
    """Make the heap keep what it has and new threads small; before any thread starts. Return what could not be done."""
    threading.stack_size(THREAD_STACK_BYTES)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        refused = [name for name, parameter, value in _MALLOC if libc.mallopt(parameter, value) != 1]
    except (OSError, AttributeError) as error:
        return [f"the heap is left as it is: this C library has no mallopt ({error})"]
    return [f"the heap is left as it is: mallopt refused {', '.join(refused)}"] if refused else []


def lock() -> list[str]:
    """Lock all memory that the process has and will have, and stop the collector. Return what could not be done.

    Call it when everything is imported and built: what exists then is never looked at by the collector again.
    """
    _reserve()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        refused = libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0
    except (OSError, AttributeError) as error:
        return [f"memory is not locked: this C library has no mlockall ({error})"]
    if not refused:
        return []
    return [f"memory is not locked: {os.strerror(ctypes.get_errno())}{_limit()}"]


def _reserve() -> None:
    """Have memory that is locked and free.

    Whichever thread needs more than there is keeps the interpreter's lock while the kernel finds it, and on a wedged
    machine that takes seconds. Python gives an arena of small objects back as soon as it is empty (a megabyte, which
    would have to be found again), so that some of the objects are kept. The C library keeps what it had.
    """
    small = [bytes(_SMALL_BYTES) for _ in range(RESERVE_BYTES // _SMALL_BYTES)]
    _pins.extend(small[::_PIN_EVERY])
    bytes(RESERVE_BYTES)


def _limit() -> str:
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return "; there is no limit (LimitMEMLOCK), so a filter of system calls or a missing capability is why"
    return f"; the limit is {soft >> 10} KiB: set LimitMEMLOCK=infinity in the unit, or give it CAP_IPC_LOCK"
