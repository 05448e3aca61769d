"""Who still lets somebody in, and what is done about who does not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet import cli
from plimsoll.fleet.gather import Ssh
from plimsoll.fleet.login import DOWN, Kind, Login, classify, fresh_login
from plimsoll.fleet.watch import Event, Settings, Status, Watched, Watcher, after, is_held
from plimsoll.inventory import Host
from plimsoll.policy import Policy

SSH = """#!/bin/sh
# stands in for ssh: each host does what its file says
while [ "$1" != -- ]; do shift; done
case $(cat "${0%/*}/$2") in
in) exec sh -c "$3" ;;
off) echo "ssh: connect to host $2 port 22: Connection refused" >&2 ;;
wedged) echo "Connection timed out during banner exchange" >&2 ;;
esac
exit 255
"""
COMMAND = [sys.executable, "-c", "from plimsoll.fleet.cli import main; main()"]


# --- what a login says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ssh: connect to host gx10 port 22: Connection timed out", Kind.UNREACHABLE),
        ("ssh: connect to host gx10 port 22: No route to host", Kind.UNREACHABLE),
        ("channel 0: open failed: connect failed: No route to host\nstdio forwarding failed", Kind.UNREACHABLE),
        ("Connection timed out during banner exchange\nConnection to UNKNOWN port 65535 timed out", Kind.UNREACHABLE),
        ("Connection timed out during banner exchange\nConnection to 192.0.2.1 port 22 timed out", Kind.SILENT),
        ("kex_exchange_identification: Connection closed by remote host", Kind.SILENT),
        ("shell request failed on channel 0", Kind.SILENT),
        ("no answer within 90 s", Kind.SILENT),
        ("sh: 1: Cannot fork\nbash: fork: Cannot allocate memory", Kind.SILENT),
        ("me@gx10: Permission denied (publickey).", Kind.DENIED),
        ("me@jump: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", Kind.DENIED),
        ("No ED25519 host key is known for gx10 and you have requested strict checking.", Kind.DENIED),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", Kind.DENIED),
        ("ssh: Could not resolve hostname gx10: Name or service not known", Kind.UNKNOWN),
        ("config: line 3: Bad configuration option: x\nconfig: terminating, 1 bad configuration options", Kind.UNKNOWN),
        ("zsh: command not found: echo", Kind.UNKNOWN),
        ("", Kind.UNKNOWN),
    ],
)
def test_what_ssh_says(said: str, kind: Kind) -> None:
    """A box that is wedged is told from one that is off, one that is well and refuses, and from our own faults."""
    assert classify(said, marked=False) is kind
    assert classify(said, marked=True) is Kind.IN


# --- what follows: pure -----------------------------------------------------------------------------

SILENT, OFF = Login(Kind.SILENT, 1, "x"), Login(Kind.UNREACHABLE, 1, "x")
IN, DENIED, UNTRIED = Login(Kind.IN, 1), Login(Kind.DENIED, 1, "x"), Login(Kind.UNKNOWN, 1, "x")


def sequence(*logins: Login, limit: int = 3) -> Watched:
    """Return what is known after these logins, one a second."""
    watched = Watched()
    for at_s, login in enumerate(logins):
        watched = after(watched, login, at_s, limit)
    return watched


@pytest.mark.parametrize(
    ("logins", "status"),
    [
        ((IN,), Status.UP),
        ((SILENT, OFF), Status.FAILING),
        ((SILENT, OFF, SILENT), Status.DOWN),
        ((SILENT, OFF, IN, SILENT, OFF), Status.FAILING),
        ((SILENT, SILENT, DENIED, SILENT), Status.FAILING),
        ((SILENT, SILENT, UNTRIED), Status.UNKNOWN),
        ((SILENT, SILENT, UNTRIED, SILENT), Status.DOWN),
        ((UNTRIED,) * 9, Status.UNKNOWN),
        ((DENIED,) * 9, Status.UNKNOWN),
    ],
)
def test_what_follows(logins: tuple[Login, ...], status: Status) -> None:
    """Logins that fail in a row take a host down; one that works or is refused begins anew."""
    assert sequence(*logins).status is status


@given(st.lists(st.sampled_from([SILENT, OFF, IN, DENIED, UNTRIED])), st.integers(1, 5))
def test_down_is_so_many_in_a_row(logins: list[Login], limit: int) -> None:
    """Whatever came before, a host is down exactly if so many of the last logins that were tried failed."""
    tried = [login for login in logins if login.kind is not Kind.UNKNOWN]
    failed = len(tried) >= limit and all(login.kind in DOWN for login in tried[-limit:])
    down = sequence(*logins, limit=limit).status is Status.DOWN
    assert down == (failed and logins[-1].kind is not Kind.UNKNOWN)


@pytest.mark.parametrize(
    ("host", "others", "held"),
    [
        (sequence(OFF, OFF, OFF), [], False),
        (sequence(OFF, OFF, OFF), [sequence(OFF, OFF, OFF)], True),
        (sequence(OFF, OFF, OFF), [sequence(UNTRIED)], True),
        (sequence(IN, OFF, OFF), [sequence(IN, OFF, OFF)], True),
        (sequence(IN, OFF, OFF), [sequence(IN, OFF, OFF), sequence(IN, IN, IN)], False),
        (sequence(IN, OFF, OFF), [sequence(OFF, OFF, DENIED)], False),
        (sequence(IN, OFF, OFF), [sequence(OFF, SILENT, OFF)], False),
        (sequence(SILENT, SILENT, SILENT), [sequence(OFF, OFF, OFF)], False),
    ],
)
def test_whose_fault_it_may_be(host: Watched, others: list[Watched], held: bool) -> None:
    """A host that is off counts once another one has answered since; who accepts connections was reached itself."""
    assert is_held(host, others) is held


# --- with processes ---------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Host]]:
    """Return what makes hosts that do as is said: in, off, wedged."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "ssh").write_text(SSH)
    (directory / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def make(**does: str) -> list[Host]:
        for name, what in does.items():
            (directory / name).write_text(what)
        return [Host(name, (), Policy(), ()) for name in does]

    return make


def watch(hosts: list[Host], settings: Settings, rounds: int) -> list[Event]:
    """Log in to each host in turn, so many times, and return what was told."""
    told: list[Event] = []
    watcher = Watcher(hosts, Ssh(timeout_s=120), settings, told.append)

    async def look() -> None:
        for _ in range(rounds):
            for host in hosts:
                await watcher.look(host)

    asyncio.run(look())
    return told


def test_a_fresh_login(hosts: Callable[..., list[Host]]) -> None:
    """A login that carries out its command is one, whatever a shell says beside it; ssh's reason is passed on."""
    up, off = hosts(a="in", b="off")
    assert asyncio.run(fresh_login(up, Ssh(timeout_s=120))).kind is Kind.IN
    login = asyncio.run(fresh_login(off, Ssh(timeout_s=120)))
    assert (login.kind, login.problem) == (
        Kind.UNREACHABLE,
        "ssh: connect to host b port 22: Connection refused",
    )


def test_the_command_runs_once_for_an_outage(hosts: Callable[..., list[Host]]) -> None:
    """It runs when the limit is reached, is told of whom and why, and not again while the host stays down."""
    settings = Settings(failures=2, on_down='echo "$PLIMSOLL_HOST $PLIMSOLL_KIND $PLIMSOLL_PROBLEM" >>told')
    told = watch(hosts(a="in", b="wedged"), settings, rounds=4)
    assert Path("told").read_text() == "b silent Connection timed out during banner exchange\n"
    assert [event.status for event in told if event.host == "b" and event.event == "login"] == [
        Status.FAILING,
        *[Status.DOWN] * 3,
    ]
    assert [event.changed for event in told if event.host == "b" and event.event == "login"] == [
        True,
        True,
        False,
        False,
    ]


def test_a_command_that_fails_is_run_again(hosts: Callable[..., list[Host]]) -> None:
    """A plug that did not answer is asked again after the next login that fails, until it has."""
    settings = Settings(failures=1, on_down="echo x >>told; echo no plug >&2; [ $(wc -l <told) = 3 ]")
    told = watch(hosts(a="wedged"), settings, rounds=5)
    assert Path("told").read_text() == "x\n" * 3
    said = [event.problem for event in told if event.event == "command"]
    assert said == ["the command failed with 1: no plug"] * 2 + ["the command succeeded: no plug"]


def test_a_network_that_is_gone_switches_nobody_off(hosts: Callable[..., list[Host]]) -> None:
    """Where no host answers, nothing is run, and that is told once."""
    settings = Settings(failures=1, on_down="echo x >>told")
    told = watch(hosts(a="off", b="off"), settings, rounds=3)
    assert not Path("told").exists()
    assert [event.changed for event in told if event.event == "held" and event.host == "a"] == [True, False, False]


def test_who_was_down_is_told_to_be_up_again(hosts: Callable[..., list[Host]]) -> None:
    """The other command runs at the first login after an outage, with the time since when it lasted."""
    (host,) = hosts(a="wedged")
    settings = Settings(failures=1, on_down="true", on_up='echo "$PLIMSOLL_HOST ${PLIMSOLL_SINCE%%-*}" >>told')
    told: list[Event] = []
    watcher = Watcher([host], Ssh(timeout_s=120), settings, told.append)
    asyncio.run(watcher.look(host))
    hosts(a="in")
    asyncio.run(watcher.look(host))
    asyncio.run(watcher.look(host))
    assert Path("told").read_text() == f"a {told[0].time[:4]}\n"


def test_a_host_that_hangs_delays_no_other(hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    """While one login hangs, the others go on by their own clock."""
    os.mkfifo(tmp_path / "bin/b")  # reading it waits for a writer
    (other,) = hosts(a="in")
    seen = asyncio.Event()
    told: list[Event] = []

    def tell(event: Event) -> None:
        told.append(event)
        if len(told) == 3:
            seen.set()

    async def until_three() -> None:
        watcher = Watcher([Host("b", (), Policy(), ()), other], Ssh(timeout_s=300), Settings(every_s=0.02), tell)
        running = asyncio.create_task(watcher.run())
        await asyncio.wait_for(seen.wait(), 120)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(until_three())
    assert {event.host for event in told} == {"a"}


# --- the command ------------------------------------------------------------------------------------


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `plimsoll watch` on two hosts, one of them in."""
    (tmp_path / "hosts.yml").write_text("hosts: {a: {}, b: {}}")
    command = [*COMMAND, "watch", "--every-s", "1", "--failures", "1", *arguments]
    environment = {**os.environ, "PLIMSOLL_INVENTORY": str(tmp_path / "hosts.yml")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads here
    ) as process:
        yield process


def test_interrupted(hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    """It tells what it finds line by line, and ends with 130 when it is interrupted."""
    hosts(a="in", b="wedged")
    with started(tmp_path, "--json") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=120)
    assert {first["host"]: first["status"], second["host"]: second["status"]} == {"a": "up", "b": "down"}
    assert (process.returncode, err.strip()) == (130, "interrupted")


def test_nobody_reads_it(hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    """Without a command to run it ends with its reader."""
    hosts(a="in", b="in")
    with started(tmp_path, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(120) == 0
        assert process.stderr.read() == ""


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """A machine does not watch itself."""
    assert cli.run(["watch", "@local"]) == 4
    assert "cannot watch itself" in capsys.readouterr().err
