"""Many hosts at once: what each answers is bounded, told apart from noise, and holds nobody else."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from plimsoll.box.model import STATE_SCHEMA
from plimsoll.controls import plan
from plimsoll.fleet import gather, reader
from plimsoll.fleet.gather import Ssh
from plimsoll.inventory import Host
from plimsoll.policy import Policy

SSH = """#!/bin/sh
# stands in for ssh: runs here what a host would run, each host in its own way
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
case $host in
silent) echo $$ >"${0%/*}/pid"; exec sleep 600 ;;
refused) echo 'ssh: connect to host refused port 22: Connection refused' >&2; exit 255 ;;
noisy) head -c 300000 /dev/urandom; exit 0 ;;
endless) exec cat /dev/zero ;;
nologin) echo 'This account is currently not available.'; exit 1 ;;
deaf) exec 0<&-; echo nothing; exit 1 ;;
empty) exit 0 ;;
polite) echo 'Welcome to polite'; printf '\\033[31mred\\033[0m\\n'; sh -c "$*"; code=$?; echo goodbye; exit $code ;;
stay) sh -c "$*"; sleep 600 >/dev/null 2>&1 & sleep 600 >&2 & exit 0 ;;
*) exec sh -c "$*" ;;
esac
"""


def host(name: str, **connection: object) -> Host:
    """Return a host with the default policy."""
    return Host(name, (), Policy(), (), **connection)  # type: ignore[arg-type]  # the fields vary


def kept(answer: gather.Answer) -> gather.Answer:
    """Keep the answer itself."""
    return answer


@pytest.fixture(autouse=True)
def _ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in for ssh in front of the real one."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize("name", ["plain", "polite", "@local"])
def test_a_state_is_read(name: str) -> None:
    """A host answers with its state, whatever its shell prints before and after."""
    (answer,) = gather.gather([host(name)], Ssh(timeout_s=60), kept)
    assert answer.problem == ""
    assert answer.state is not None
    assert answer.state["schema"] == STATE_SCHEMA
    assert answer.state["platform"]["kernel"] == os.uname().release


def test_what_the_background_keeps_open_is_not_waited_for() -> None:
    """A process that ssh leaves behind, as a shared connection does, holds nothing up."""
    (answer,) = gather.gather([host("stay")], Ssh(timeout_s=60), kept)
    assert answer.state is not None
    assert answer.took_ms < 50_000


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("refused", "Connection refused"),
        ("noisy", "something else than a state"),
        ("endless", "more than 8 MiB"),
        ("deaf", "exit code 1: nothing"),
        ("nologin", "exit code 1: This account is currently not available."),
        ("empty", "something else than a state"),
        ("silent", "no answer within 2 s"),
    ],
)
def test_a_bad_answer_is_a_reason(name: str, problem: str) -> None:
    """A host that answers with anything but a state is not reached, and the reason says why."""
    (answer,) = gather.gather([host(name)], Ssh(timeout_s=2), kept)
    assert answer.state is None
    assert problem in answer.problem


def test_nobody_waits_for_a_silent_host() -> None:
    """Hosts that say nothing are given up after their time, and the others have answered long before."""
    started = time.monotonic()

    def arrival(answer: gather.Answer) -> tuple[str, float]:
        return answer.host.name, time.monotonic() - started

    names = ["silent", "plain", "refused"]
    arrived = gather.gather([host(name) for name in names], Ssh(timeout_s=6), arrival)
    assert [name for name, _at_s in arrived] == names
    at_s = dict(arrived)
    assert at_s["plain"] < 6
    assert 6 <= at_s["silent"] < 20


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """What was given up is ended."""
    gather.gather([host("silent")], Ssh(timeout_s=1), kept)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_was_not_read_holds_nobody(tmp_path: Path) -> None:
    """A process that said more than anybody has read is gone once it is ended."""

    async def ended() -> int | None:
        with (tmp_path / "complaint").open("wb") as complaint:
            process = await gather._start(["sh", "-c", "head -c 1000000 /dev/zero; exec sleep 600"], complaint)
        assert process.stdout is not None
        while not process.stdout._paused:  # type: ignore[attr-defined]  # noqa: ASYNC110  # asyncio tells nobody of it
            await asyncio.sleep(0.01)
        await asyncio.wait_for(gather.end(process), 60)
        return process.returncode

    assert asyncio.run(ended()) == -signal.SIGKILL


def test_who_escapes_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another session that keeps the output open is not waited for."""
    monkeypatch.setattr(gather, "END_S", 0.2)
    escaping = ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600"]

    async def ended() -> int:
        with (tmp_path / "complaint").open("wb") as complaint:
            process = await gather._start(escaping, complaint)
        assert process.stdout is not None
        pid = int(await process.stdout.readline())
        await asyncio.wait_for(gather.end(process), 60)
        return pid

    os.kill(asyncio.run(ended()), signal.SIGKILL)


def test_a_start_that_is_interrupted(tmp_path: Path) -> None:
    """Whoever is interrupted while a process starts ends it, and himself: not so with asyncio alone."""

    async def interrupted() -> None:
        with (tmp_path / "complaint").open("wb") as complaint:
            telling = ["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"]
            starting = asyncio.ensure_future(gather._start(telling, complaint))
            # two turns of the loop: the process is there, its pipes are not yet
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(starting, 60)

    asyncio.run(interrupted())
    pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not pid.strip() or not Path(f"/proc/{pid.strip()}").exists()


def test_the_inventory_says_where_a_host_is() -> None:
    """Address, port and user of the inventory go to ssh; the name stays, so that ~/.ssh/config still applies."""
    words = gather.ssh_command(host("gx10", address="10.0.0.7", port=2222, user="ops"), Ssh())
    assert {"HostName=10.0.0.7", "Port=2222", "User=ops"} <= set(words)
    assert words[-2:] == ["--", "gx10"]
    assert not [w for w in gather.ssh_command(host("gx10"), Ssh()) if w.startswith(("HostName=", "Port=", "User="))]


def test_a_host_gets_nothing_from_the_operator() -> None:
    """No agent, no display, no forwarding and no terminal is offered, whatever ~/.ssh/config says."""
    words = gather.ssh_command(host("gx10"), Ssh())
    offered = {"ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "PermitLocalCommand=no", "BatchMode=yes"}
    assert offered <= set(words)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "something else"),
        (b"M{}M{}M", "something else"),
        (b"M{M", "not JSON"),
        (b"M" + b"[" * 200_000 + b"M", "not JSON"),
        (b"M[]M", "not a state"),
        (b'M{"schema": "other/1"}M', "not a state"),
    ],
)
def test_what_is_no_state_is_not_used(answer: bytes, problem: str) -> None:
    """Only one JSON object of the right schema, between two marks, is a state."""
    state, why = gather.parse(answer, "M")
    assert state is None
    assert problem in why


def test_what_failed_first_is_the_reason() -> None:
    """Where root took the program and failed, the second attempt finds none and is silent: the first has said why."""
    done = _read_there("{}\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_host_does_not_go_on_reading_for_nobody() -> None:
    """The process on the host ends by itself when its time is over, even if nobody is there to end it."""
    # 800,000 files that are looked for take some seconds
    request = {**plan.request(Policy()).to_json(), "sysctls": [f"nowhere.{number}" for number in range(800_000)]}
    done = _read_there(f"{reader.first_line()}\n{json.dumps({'request': request, 'mark': 'M', 'limit_s': 1})}\n")
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, "")


def _read_there(given: str) -> subprocess.CompletedProcess[str]:
    """Run what a host runs, with this on its standard input."""
    command = shlex.split(reader.command())
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
