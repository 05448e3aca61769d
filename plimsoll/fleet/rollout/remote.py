"""The two small programs that a rollout runs on a host, over the connection that the operator's ssh makes."""

from __future__ import annotations

import asyncio
import json
import shlex
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.fleet import gather
from plimsoll.fleet.rollout import processes
from plimsoll.fleet.rollout.model import Failure, Sample, sample_from
from plimsoll.fleet.rollout.reasons import explained
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from plimsoll.inventory import Host

LOCK = "/run/plimsoll/operator.lock"
"""On the host, in memory: it does not survive a reboot. Empty and free when nobody is at work."""
HEARTBEAT_S = 15
QUIET_S = 60
"""A host lets go of its lock when the operator's machine, asleep or cut off, has said nothing for four heartbeats."""
_START = "import json,sys;l=sys.stdin.readline();l and exec(json.loads(l))"
_SOURCE = Path(__file__).with_name("on_host.py")


class HostError(Exception):
    """A host cannot be gone on with; str() is the one line that says why."""

    def __init__(self, message: str, failure: Failure = Failure.BAD) -> None:
        super().__init__(message)
        self.failure = failure


def command(host: Host, ssh: gather.Ssh) -> list[str]:
    """Return the command line that runs, as root where it can, the program that it gets as its first line."""
    there = gather.as_root(shlex.join(["python3", "-I", "-S", "-c", _START]))
    return [*gather.ssh_command(host, ssh), shlex.join(["sh", "-c", there])]


def first_line(task: str, **arguments: Any) -> bytes:  # noqa: ANN401  # what JSON can hold
    """Return the program as one line, with what it is to do."""
    program = f"{_SOURCE.read_text('utf-8')}\n{task}(**{arguments!r})\n"
    return f"{json.dumps(program)}\n".encode()


# --- a look -----------------------------------------------------------------------------------------


async def look(host: Host, ssh: gather.Ssh, after: int = 0) -> Sample:
    """Log in anew and return what the host is like, with the kernel's errors after message `after`.

    Raises HostError, which says why that did not work.
    """
    try:
        output, complaint, _code = await gather.execute(
            command(host, replace(ssh, fresh=True)), lambda: first_line("look", after=after), ssh.timeout_s
        )
    except (OSError, gather.AnswerError) as error:
        raise HostError(str(error), Failure.UNKNOWN) from error
    try:
        return sample_from(json.loads(gather.last_line(output)))
    except (ValueError, RecursionError):
        said = gather.last_line(complaint) or gather.last_line(output) or "nothing"
        raise HostError(f"a look at it was answered with: {explained(said)}", Failure.UNKNOWN) from None


# --- the lock ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """A host that is held for this rollout."""

    stdin: int
    """The end of a pipe that keeps the connection open: whoever inherits it holds the host, too, for QUIET_S."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection that holds it has ended by itself."""


@asynccontextmanager
async def held(host: Host, ssh: gather.Ssh, owner: str) -> AsyncIterator[Lease]:
    """Hold the host's lock while the block runs; `owner` is the rollout's id, a blank, and who that is.

    Raises HostError, saying who holds it and for how long. The lock is an open connection: it ends with this
    process, whatever ends that.
    """
    process = await asyncio.create_subprocess_exec(
        *command(host, replace(ssh, fresh=True)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    beating: asyncio.Task[None] | None = None
    try:
        await _take(process, owner, ssh.timeout_s)
        assert process.stdin is not None  # noqa: S101  # as below
        lease = Lease(process.stdin.get_extra_info("pipe").fileno())
        beating = asyncio.create_task(_beat(process, lease))
        yield lease
    finally:
        if beating is not None:
            beating.cancel()
        await _let_go(process)


async def _take(process: asyncio.subprocess.Process, owner: str, timeout_s: float) -> None:
    assert process.stdin is not None  # noqa: S101  # all three are pipes, which only the type checker cannot know
    assert process.stdout is not None  # noqa: S101  # as above
    assert process.stderr is not None  # noqa: S101  # as above
    wait_s = QUIET_S + HEARTBEAT_S
    line = first_line("lock", path=LOCK, owner=owner, wait_s=wait_s, quiet_s=QUIET_S)
    try:
        async with asyncio.timeout(timeout_s + wait_s):
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(line)
                await process.stdin.drain()
            answer = await _answer(process.stdout)
            complaint = b"" if answer else await process.stderr.read(gather.MAX_COMPLAINT_BYTES)
    except TimeoutError:
        raise HostError("its lock was not taken in time: no answer", Failure.UNKNOWN) from None
    if answer.get("locked"):
        return
    if "held_by" in answer:
        age = _age(float(answer["age_s"]))
        who = printable(answer["held_by"], 200) or "who has not said a name yet"
        raise HostError(f"another operator is at work on it: {who}, for {age}", Failure.BUSY)
    said = gather.last_line(complaint) or "no reason was told"
    raise HostError(f"its lock could not be taken: {explained(said)}", Failure.UNKNOWN)


async def _answer(output: asyncio.StreamReader) -> dict[str, Any]:
    """Return the first line that is JSON; what a shell says before it is passed over. Empty at the end."""
    with suppress(ValueError):  # a line longer than the reader takes
        while line := await output.readline():
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    return {}


def _age(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"  # noqa: PLR2004  # a minute


async def _beat(process: asyncio.subprocess.Process, lease: Lease) -> None:
    """Tell the host now and then that this side is still there, until the connection ends."""
    assert process.stdin is not None  # noqa: S101  # as above
    ended = asyncio.ensure_future(processes.exited(process.pid))
    try:
        while not (await asyncio.wait({ended}, timeout=HEARTBEAT_S))[0]:
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(b"\n")
                await process.stdin.drain()
        lease.lost.set()
    finally:
        ended.cancel()


async def _let_go(process: asyncio.subprocess.Process) -> None:
    """Close the lock's connection, and wait until the host has let go; one that does not say so is left alone."""
    assert process.stdin is not None  # noqa: S101  # as above
    process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARTBEAT_S):
            await processes.exited(process.pid)
    await gather.end(process)
