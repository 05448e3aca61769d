"""What a rollout runs on a host beside the deploy itself: a lock, and a look. Standard library only.

It comes on standard input, with a call of one of its functions at its end, and is not written there.
"""

# it starts on a host for a moment, and importing pathlib would double that
# ruff: noqa: PTH103, PTH120, PTH123

import errno
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import time

HEADER = re.compile(r"(\d+),(\d+),")
ERROR_LEVEL = 3
MAX_ERRORS = 20
MAX_TEXT = 300


def lock(path: str, owner: str, wait_s: int, quiet_s: int) -> None:
    """Hold the host for `owner` until the other side closes its end, or is silent for `quiet_s`; says so or who does.

    An earlier connection of the same rollout, whose end this host may not have noticed yet, is waited for.
    """
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace")
        if not holder.startswith(owner.partition(" ")[0] + " "):
            age_s = time.time() - os.fstat(descriptor).st_mtime
            print(json.dumps({"held_by": holder.partition(" ")[2], "age_s": age_s}))
            return
        signal.alarm(wait_s)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        signal.alarm(0)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode(), 0)
    print(json.dumps({"locked": True}), flush=True)
    while select.select([0], [], [], quiet_s)[0] and os.read(0, 4096):
        pass
    os.ftruncate(descriptor, 0)


def look(after: int) -> None:
    """Print what the host is like; of the kernel's messages only errors after the number `after`."""
    seq, errors = kernel_errors(after)
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    of_kernel = {"boot_id": boot_id, "kernel_seq": seq, "kernel_errors": errors}
    print(json.dumps({**of_kernel, "failed_units": failed_units(), "pressure": pressure()}))


def kernel_errors(after: int) -> tuple[int | None, list[str]]:
    """Return the number of the kernel's last message, None where its log is closed to us, and the errors."""
    last = after
    errors: list[str] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None, []
    while True:
        try:
            text = os.read(descriptor, 8192).decode("utf-8", "replace")
        except BlockingIOError:
            return last, errors
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten meanwhile: the next read goes on with the oldest one left
                continue
            return None, []
        header = HEADER.match(text)
        if header is None:
            return None, []
        level, seq = int(header[1]), int(header[2])
        last = max(last, seq)
        # a facility above 0 is a program that writes to the kernel's log
        if seq > after and level <= ERROR_LEVEL and len(errors) < MAX_ERRORS:
            errors.append(text.partition(";")[2].partition("\n")[0][:MAX_TEXT])


def failed_units() -> list[str] | None:
    """Return the names of units that have failed, None where systemd does not say."""
    command = ["systemctl", "list-units", "--state=failed", "--no-legend", "--plain"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return sorted(line.split()[0] for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip())


def pressure() -> dict[str, float]:
    """Return the percent of the last minute in which nobody got on, by resource; what the kernel lacks is left out."""
    found = {}
    for resource in ("memory", "io"):
        try:
            with open("/proc/pressure/" + resource) as file:
                match = re.search(r"^full .*avg60=([0-9.]+)", file.read(), re.MULTILINE)
        except OSError:
            continue
        if match:
            found[resource] = float(match[1])
    return found
