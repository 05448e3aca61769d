"""The states of many hosts, over OpenSSH: one connection and one round trip each, all at once.

The program that reads a state travels with the connection and runs from memory: nothing is written on the
host. What comes back is untrusted: bounded in size and time, and parsed as JSON or not used at all.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import shlex
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypeVar

from plimsoll.box.model import STATE_SCHEMA, State
from plimsoll.controls import plan
from plimsoll.fleet import reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from plimsoll.inventory import Host
    from plimsoll.policy import Policy

Kept = TypeVar("Kept")
MAX_ANSWER_BYTES = 8 << 20
"""A state of a DGX Spark with 200 units and 40 sessions is 150 kB."""
MAX_COMPLAINT_BYTES = 64 << 10
DEFAULT_TIMEOUT_S = 90
"""Logins of 50 s were seen on a box under memory pressure, and reading the state takes its time there too."""
DEFAULT_PARALLEL = 32
END_S = 30
"""For what was killed to be gone: at once, unless something outside of its session holds its output open."""
LOCAL = "@local"
_OPTIONS = {
    "BatchMode": "yes",
    # an existing connection is used, but none is left behind in the background
    "ControlMaster": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ServerAliveInterval": "15",
}
"""A host gets nothing from an audit but the program and its questions, whatever ~/.ssh/config offers others."""


@dataclass(frozen=True)
class Answer:
    """What came of asking one host."""

    host: Host
    state: State | None
    problem: str
    """Why there is no state; empty if there is one."""
    took_ms: int


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached."""

    config: Path | None = None
    """The file to read instead of ~/.ssh/config."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """The whole time that a host has for its answer."""
    fresh: bool = False
    """Whether each command is a login of its own, even where a connection is open that could be shared."""


def ssh_command(host: Host, ssh: Ssh, *options: str) -> list[str]:
    """Return the `ssh` command line for a host, up to and with its name; what to run there follows."""
    settings = {**_OPTIONS, "ConnectTimeout": str(max(1, round(ssh.timeout_s / 2)))}
    if host.address is not None:
        settings["HostName"] = host.address
    if host.port is not None:
        settings["Port"] = str(host.port)
    if host.user is not None:
        settings["User"] = host.user
    if ssh.fresh:
        settings["ControlPath"] = "none"
    given = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    config = [] if ssh.config is None else ["-F", str(ssh.config)]
    return ["ssh", *config, *options, *given, "--", host.name]


def as_root(command: str) -> str:
    """Return shell code that runs `command` as root, or as whoever logs in where sudo wants a password.

    The second attempt finds the program on standard input only if the first did not start it.
    """
    return f"if [ -w / ]; then exec {command}; else sudo -n {command} || exec {command}; fi"


def gather(
    hosts: Sequence[Host], ssh: Ssh, each: Callable[[Answer], Kept], *, parallel: int = DEFAULT_PARALLEL
) -> list[Kept]:
    """Return what `each` makes of every host's answer as it comes, in the order of `hosts`.

    A host that is slow, silent or talks nonsense holds nobody else, and is given up after its time. Of an
    answer, which may be 8 MiB, nothing is held beyond what `each` returns.
    """
    return asyncio.run(_gather(hosts, ssh, each, parallel))


async def _gather(hosts: Sequence[Host], ssh: Ssh, each: Callable[[Answer], Kept], parallel: int) -> list[Kept]:
    free = asyncio.Semaphore(parallel)
    questions = _Questions()

    async def one(host: Host) -> Kept:
        async with free:
            return each(await _ask(host, ssh, questions))

    try:
        # it waits for all of them when it is interrupted, where asyncio.gather() leaves processes that nobody ends
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(host)) for host in hosts]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def ask(host: Host, ssh: Ssh) -> Answer:
    """Return one host's answer, for who has an event loop of their own."""
    return await _ask(host, ssh, _Questions())


async def _ask(host: Host, ssh: Ssh, questions: _Questions) -> Answer:
    started = time.monotonic()
    mark = secrets.token_hex(16)
    reading = as_root(reader.command())
    # whatever shell the login has, this is for sh
    there = ["sh", "-c", reading]
    command = there if host.name == LOCAL else [*ssh_command(host, ssh), shlex.join(there)]

    def given() -> bytes:
        question = {"request": questions.of(host.policy), "mark": mark, "limit_s": math.ceil(ssh.timeout_s)}
        return f"{reader.first_line()}\n{json.dumps(question)}\n".encode()

    state: State | None = None
    try:
        output, complaint, code = await execute(command, given, ssh.timeout_s)
        state, problem = parse(output, mark)
        if state is None and code != 0:
            said = last_line(output[-MAX_COMPLAINT_BYTES:])
            problem = last_line(complaint) or f"exit code {code}{f': {said}' if said else ''}"
    except (OSError, AnswerError) as error:
        problem = str(error)
    return Answer(host, state, problem, round((time.monotonic() - started) * 1000))


class _Questions:
    """What is asked of a host with a certain policy, made once for all that have it: 2 ms of the 30 a host costs."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, list[str]]] = {}

    def of(self, policy: Policy) -> dict[str, list[str]]:
        key = policy.model_dump_json()
        if key not in self._made:
            self._made[key] = plan.request(policy).to_json()
        return self._made[key]


class AnswerError(Exception):
    """A host did not answer, or with too much."""


async def execute(command: list[str], given: Callable[[], bytes], timeout_s: float) -> tuple[bytes, bytes, int]:
    """Run a command to its end; returns output, the end of what it said on stderr, and its exit code.

    What it is given is made while it starts: the program takes 0.1 s, and so does a login. Raises AnswerError for
    what takes longer or says more than MAX_ANSWER_BYTES, and OSError.
    """
    # a file and no pipe: a background process of ssh that keeps it open is then not waited for
    with tempfile.TemporaryFile() as complaint:
        process = await _start(command, complaint)
        try:
            async with asyncio.timeout(timeout_s):
                output = await _exchange(process, given())
                code = await process.wait()
        except TimeoutError:
            said = last_line(_end_of(complaint))
            raise AnswerError(f"no answer within {timeout_s:g} s{f' ({said})' if said else ''}") from None
        finally:
            await end(process)
        return output, _end_of(complaint), code


async def _start(command: list[str], complaint: IO[bytes]) -> asyncio.subprocess.Process:
    """Start a process in a session of its own; one whose start is interrupted is ended.

    CPython 3.11 waits for ever for a process whose start is cancelled: its pipes are not there yet to be closed.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=complaint,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await end(await starting)
        raise


async def _exchange(process: asyncio.subprocess.Process, given: bytes) -> bytes:
    assert process.stdin is not None  # noqa: S101  # both are pipes, which only the type checker cannot know
    assert process.stdout is not None  # noqa: S101  # as above
    sending = asyncio.ensure_future(_send(process.stdin, given))
    output = bytearray()
    try:
        while chunk := await process.stdout.read(64 << 10):
            output += chunk
            if len(output) > MAX_ANSWER_BYTES:
                raise AnswerError(f"the host answered more than {MAX_ANSWER_BYTES >> 20} MiB: not read")
        await sending
    finally:
        sending.cancel()
    return bytes(output)


async def _send(stdin: asyncio.StreamWriter, given: bytes) -> None:
    try:
        stdin.write(given)
        await stdin.drain()
        stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # a host that does not listen says why itself


async def end(process: asyncio.subprocess.Process) -> None:
    """End the process and what it started (a jump host's ssh), which has a session of its own.

    What it still had to say is read and dropped: CPython 3.11 sees the end of a process only after that of its output,
    and does not see that while more is there than it likes to hold. Who escaped and keeps the output open is left.
    """
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None  # noqa: S101  # a pipe, which only the type checker cannot know
    try:
        async with asyncio.timeout(END_S):
            while await process.stdout.read(64 << 10):
                pass
            await process.wait()
    except TimeoutError:
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  # there is no public way to stop listening


def _end_of(file: IO[bytes]) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_COMPLAINT_BYTES))
    return file.read()


def last_line(complaint: bytes) -> str:
    """Return the last line that says something, empty for none."""
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def parse(output: bytes, mark: str) -> tuple[State | None, str]:
    """Return the state that stands between two lines `mark`, or None and what is wrong with the answer."""
    parts = output.split(mark.encode())
    if len(parts) != len(("before", "state", "after")):
        return None, "the host answered something else than a state"
    try:
        state = json.loads(parts[1])
    except (ValueError, RecursionError):
        return None, "the host answered a state that is not JSON"
    if not isinstance(state, dict) or state.get("schema") != STATE_SCHEMA:
        return None, f"the host answered JSON that is not a state of the schema {STATE_SCHEMA}"
    return state, ""
