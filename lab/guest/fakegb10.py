"""Drives /dev/fakegb10: takes memory as an engine on a GPU does, holds it, and gives it back.

As a program it prints a JSON line for each thing that it has done. It can be killed at any time: what it holds belongs
to the open file.
"""

import argparse
import errno
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

DEVICE = "/dev/fakegb10"
ENGINES = ("plain", "vmm")
MIB = 1 << 20
PAGE = mmap.PAGESIZE

ALLOC = struct.Struct("=QQQII")  # bytes, bytes a second, got, engine, 0
FREE = struct.Struct("=QQII")  # bytes, freed, engine, 0
HOLD_LOCK = struct.Struct("=II")  # milliseconds, 0

WRITE, READ = 1, 2


def request_number(direction: int, number: int, layout: struct.Struct) -> int:
    """The kernel's number for one of the device's requests."""
    return direction << 30 | layout.size << 16 | ord("G") << 8 | number


IOC_ALLOC = request_number(READ | WRITE, 0x10, ALLOC)
IOC_FREE = request_number(READ | WRITE, 0x11, FREE)
IOC_HOLD_LOCK = request_number(WRITE, 0x12, HOLD_LOCK)


def whole_pages(size_bytes: float) -> int:
    """So many bytes, rounded up to pages."""
    return -(-int(size_bytes) // PAGE) * PAGE


def memory_total_bytes(meminfo: str) -> int:
    """MemTotal of /proc/meminfo. Raises ValueError where it has none."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise ValueError("/proc/meminfo has no MemTotal")


class Device:
    """One open file of the device, and what it holds."""

    def __init__(self) -> None:
        self._fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._mapping: mmap.mmap | None = None

    def alloc(self, size_bytes: int, bytes_per_s: int = 0, engine: str = "plain") -> int:
        """Take memory, evenly at `bytes_per_s`, 0 being as fast as it can be had.

        Returns the bytes got: fewer than asked when the driver finds no more. Python's signal handlers run
        meanwhile, and may raise.
        """
        got = 0
        while got < size_bytes:
            request = bytearray(ALLOC.pack(size_bytes - got, bytes_per_s, 0, ENGINES.index(engine), 0))
            try:
                fcntl.ioctl(self._fd, IOC_ALLOC, request)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    break
                raise
            got += ALLOC.unpack(request)[2]
        return got

    def free(self, size_bytes: int, engine: str = "plain") -> int:
        """Give back the newest memory, in the pieces it came in; returns the bytes, at least those asked for or all."""
        request = bytearray(FREE.pack(size_bytes, 0, ENGINES.index(engine), 0))
        fcntl.ioctl(self._fd, IOC_FREE, request)
        return int(FREE.unpack(request)[1])

    def map(self, size_bytes: int) -> None:
        """Map what is held into this process, whose RSS it then is; until `close` it cannot be freed."""
        self._mapping = mmap.mmap(self._fd, size_bytes)
        # Linux 6.1 adds to the RSS only with the task's next 64 page faults, of which a sleeping one has none.
        with mmap.mmap(-1, 128 * PAGE) as touched:
            touched[::PAGE] = bytes(128)

    def hold_lock(self, duration_s: float) -> None:
        """Let everybody else who uses the device wait in D state."""
        fcntl.ioctl(self._fd, IOC_HOLD_LOCK, HOLD_LOCK.pack(round(duration_s * 1000), 0))

    def close(self) -> None:
        """Give everything back; returns when the driver has torn it down."""
        if self._mapping:
            self._mapping.close()
        os.close(self._fd)


def say(event: str, **values: object) -> None:
    """Print what has happened."""
    print(json.dumps({"event": event, **values}), flush=True)


def hold(arguments: argparse.Namespace) -> None:
    """Take memory, keep it, give it back."""
    total = memory_total_bytes(Path("/proc/meminfo").read_text())
    wanted = whole_pages(arguments.mib * MIB if arguments.percent is None else total * arguments.percent / 100)
    device = Device()
    say("opened", pid=os.getpid())
    started_s = time.monotonic()
    got = device.alloc(wanted, int(total * arguments.percent_per_s / 100), arguments.engine)
    if got and arguments.map:
        device.map(got)
    took_s = round(time.monotonic() - started_s, 3)
    say("holding" if got == wanted else "refused", mib=got / MIB, took_s=took_s)
    if arguments.hold_s is None:
        while True:
            signal.pause()
    time.sleep(arguments.hold_s)
    started_s = time.monotonic()
    device.close()
    say("released", took_s=round(time.monotonic() - started_s, 3))


def lock(arguments: argparse.Namespace) -> None:
    """Hold the device's lock."""
    device = Device()
    say("locking", pid=os.getpid())
    device.hold_lock(arguments.seconds)
    say("unlocked")


def positive(text: str) -> float:
    """A number above 0 from the command line."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="fakegb10", description=__doc__)
    commands = found.add_subparsers(required=True)
    taker = commands.add_parser("hold", help="take memory and keep it until killed")
    size = taker.add_mutually_exclusive_group(required=True)
    size.add_argument("--mib", type=positive, help="how much")
    size.add_argument("--percent", type=positive, help="how much, of MemTotal")
    taker.add_argument(
        "--percent-per-s", type=positive, default=0, help="how fast, of MemTotal; default: as fast as it can be had"
    )
    taker.add_argument("--engine", choices=ENGINES, default="vmm", help="vmm: as vLLM; plain: as llama.cpp")
    taker.add_argument("--map", action="store_true", help="map it, so that RSS shows it")
    taker.add_argument("--hold-s", type=positive, help="give it back after so long")
    taker.set_defaults(do=hold)
    locker = commands.add_parser("lock", help="block everybody else who uses the device")
    locker.add_argument("--seconds", type=positive, required=True)
    locker.set_defaults(do=lock)
    return found


def main() -> None:
    """Do what the command line says; an error of the device is one line on stderr."""
    arguments = parser().parse_args()
    try:
        arguments.do(arguments)
    except OSError as error:
        sys.exit(f"fakegb10: {DEVICE}: {error.strerror}")


if __name__ == "__main__":
    main()
