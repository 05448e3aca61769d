"""The processes that deploy to one host, or take a deploy back: how they are started, awaited, and what they say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.fleet.rollout.reasons import reason_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from plimsoll.fleet.gather import Ssh
    from plimsoll.inventory import Host

ROOT = Path(__file__).resolve().parents[3]
"""pyinfra reads config.py and group_data/ from the directory that it is started in."""
PYINFRA: Sequence[str] = (str(Path(sys.executable).with_name("pyinfra")),)
PLIMSOLL: Sequence[str] = (sys.executable, "-c", "from plimsoll.fleet.cli import main; main()")
LOG_TAIL_BYTES = 64 << 10


def deploy_command(host: Host, ssh: Ssh, held_layers: Collection[str]) -> list[str]:
    """Return the command line that deploys to one host and leaves some layers as they are."""
    data: dict[str, str | int | None] = {
        "ssh_hostname": host.address,
        "ssh_port": host.port,
        "ssh_user": host.user,
        "ssh_config_file": None if ssh.config is None else str(ssh.config.resolve()),
        "plimsoll_held_layers": ",".join(held_layers) or None,
    }
    # as JSON, so that a user called 1000 is not taken for a number
    given = [
        word for key, value in data.items() if value is not None for word in ("--data", f"{key}={json.dumps(value)}")
    ]
    # with the connector's name pyinfra does not look the host up, which an alias behind a jump host cannot pass
    return [*PYINFRA, "-y", *given, f"@ssh/{host.name}", "deploy.py"]


def revert_command(host: Host, ssh: Ssh) -> list[str]:
    """Return the command line that puts one host back as it was before its first deploy."""
    config = [] if ssh.config is None else ["-F", str(ssh.config.resolve())]
    return [*PLIMSOLL, "revert", "--yes", *config, "--", host.name]


def start(command: Sequence[str], log: Path, locks: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that adds to its log, and that holds the open files `locks` as long as it lives; raises OSError.

    It has a session of its own: neither Ctrl-C nor the end of this process ends it in the middle of a change.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYINFRA_PROGRESS": "off", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=locks,
            start_new_session=True,
        )


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process and return its exit code.

    Not through asyncio's own processes, which are killed together with their loop.
    """
    await exited(process.pid)
    return process.wait()


async def exited(pid: int) -> None:
    """Wait until a child is gone, and for nobody who has inherited its streams, as asyncio would."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, _set, done)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def end(pid: int) -> None:
    """End a process that has a session of its own, and what it has started, at once."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def size(log: Path) -> int:
    """Return how long a log is now, 0 for none: what a process says comes after it."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def reason(log: Path, begin: int) -> str:
    """Return the one line of a log, from its byte `begin` on, that says why a process failed."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    return reason_in(text)


def in_background(action: Callable[[], None]) -> asyncio.Future[None]:
    """Run what may block for long in a thread that nobody waits for at the end; returns what is done when it ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        with suppress(OSError, RuntimeError):  # its descriptor, or the loop, may be closed meanwhile
            action()
            loop.call_soon_threadsafe(_set, done)

    threading.Thread(target=run, daemon=True).start()
    return done
