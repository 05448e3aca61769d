"""Out-of-band root shell: runs in the guest, speaks JSON lines over a virtio serial port.

Request: {"id", "cmd", "timeout_s", "stdin"}; reply: {"id", "rc", "out", "err"}; byte strings are base64.
A command that outlives its time is killed with its process group and answered with rc null.
"""

import base64
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

PORT_NAME = "lab.shell"
MCL_CURRENT_AND_FUTURE = 3
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/bash",
    "USER": "root",
}


def as_ordinary_process() -> None:
    """Give a command the standing of any other: killable by the kernel, no signal blocked."""
    Path("/proc/self/oom_score_adj").write_text("0")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def wait_for(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The command's exit status; None when its time ran out. Never waits for one that cannot be killed."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None


def memory_file(name: str, content: bytes = b"") -> BinaryIO:
    """An anonymous file: needs no writable and no free file system."""
    file = os.fdopen(os.memfd_create(name), "w+b")
    file.write(content)
    file.seek(0)
    return file


def run(request: dict[str, object]) -> dict[str, object]:
    """Run one command; its output goes to files, so a child left in the background holds nothing up."""
    stdin = memory_file("stdin", base64.b64decode(str(request["stdin"])))
    with stdin, memory_file("stdout") as out, memory_file("stderr") as err:
        process = subprocess.Popen(
            ["/bin/bash", "-c", str(request["cmd"])],
            stdin=stdin,
            stdout=out,
            stderr=err,
            env=ENVIRONMENT,
            cwd="/root",
            start_new_session=True,
            preexec_fn=as_ordinary_process,  # noqa: PLW1509  (this process has one thread)
        )
        rc = wait_for(process, float(str(request["timeout_s"])))
        texts = {}
        for name, file in (("out", out), ("err", err)):
            size = os.fstat(file.fileno()).st_size
            texts[name] = base64.b64encode(os.pread(file.fileno(), size, 0)).decode()
    return {"id": request["id"], "rc": rc, **texts}


def answer(line: bytes) -> bytes:
    """The reply to one line; a line torn by a reset is no request and gets none."""
    try:
        request = json.loads(line)
    except ValueError:
        return b""
    return json.dumps(run(request)).encode() + b"\n" if isinstance(request, dict) else b""


def await_host(port: int) -> None:
    """Block while nobody holds the other end; the kernel signals a change of that by SIGIO."""
    poll = select.poll()
    poll.register(port, select.POLLIN)
    while any(event & select.POLLHUP for _, event in poll.poll()):
        signal.sigwait([signal.SIGIO])


def send(port: int, reply: bytes) -> None:
    """Write all of a reply; it is lost when the host has gone."""
    while reply:
        reply = reply[os.write(port, reply) :]


def serve(port: int) -> None:
    """Answer line by line for ever."""
    pending = b""
    while True:
        await_host(port)
        received = os.read(port, 65536)
        pending = pending + received if received else b""
        *lines, pending = pending.split(b"\n")
        for line in lines:
            send(port, answer(line))


def find_port() -> Path | None:
    """The device of our port, by the name that the host gave it; udev's link to it comes 10 s later."""
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT_NAME:
            return Path("/dev") / name.parent.name
    return None


def open_port() -> int:
    """The port, once the kernel has it; its changes of state raise SIGIO in this process."""
    while not (path := find_port()):
        time.sleep(0.1)  # the driver asks the host for the port's name: no event tells of the answer
    port = os.open(path, os.O_RDWR)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    fcntl.fcntl(port, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(port, fcntl.F_SETFL, fcntl.fcntl(port, fcntl.F_GETFL) | os.O_ASYNC)
    return port


def main() -> None:
    """Serve, locked in memory: a machine that thrashes must still answer."""
    if ctypes.CDLL(None, use_errno=True).mlockall(MCL_CURRENT_AND_FUTURE):
        print(f"mlockall: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
    serve(open_port())


if __name__ == "__main__":
    main()
