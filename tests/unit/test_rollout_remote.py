"""A host's lock, and a look at it: the real programs, behind an `ssh` that runs them here."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from plimsoll.fleet.gather import Ssh
from plimsoll.fleet.rollout import remote
from plimsoll.fleet.rollout.model import Failure
from plimsoll.inventory import Host
from plimsoll.policy import Policy

SSH = """#!/bin/sh
# stands in for ssh: the host is this machine
while [ "$1" != -- ]; do shift; done
echo $$ >"${0%/*}/pid"
[ -e "${0%/*}/says" ] && . "${0%/*}/says"
exec sh -c "$3"
"""
HOST = Host("gx10", (), Policy(), ())
QUICK = Ssh(timeout_s=60)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in before the real ssh, and the lock where nobody else has one."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(remote, "LOCK", str(tmp_path / "run/operator.lock"))


def test_a_lock_has_an_owner_and_an_age() -> None:
    """A second operator is told who is at work, and since when; afterwards the host is free."""

    async def both() -> None:
        async with remote.held(HOST, QUICK, "1 anna@laptop"):
            with pytest.raises(remote.HostError, match=r"another operator .*: anna@laptop, for \d+ s") as refused:
                async with remote.held(HOST, QUICK, "2 ben@desk"):
                    pytest.fail("two at a time")
            assert refused.value.failure is Failure.BUSY
        async with remote.held(HOST, QUICK, "2 ben@desk"):
            pass

    asyncio.run(both())


def test_the_same_rollout_waits_for_itself() -> None:
    """A rollout that is resumed gets the host as soon as its own earlier connection is gone."""

    async def both() -> None:
        async with remote.held(HOST, QUICK, "1 anna@laptop"):
            again = asyncio.create_task(hold("1 anna@laptop"))
            # it waits on the host, until which there is nothing to be seen here
            assert not (await asyncio.wait({again}, timeout=0.5))[0]
        await again

    asyncio.run(both())


async def hold(owner: str) -> None:
    """Take the lock, and let it go."""
    async with remote.held(HOST, QUICK, owner):
        pass


def test_a_connection_that_is_lost(tmp_path: Path) -> None:
    """Whoever holds a host learns that the connection is gone, and the host is free."""

    async def losing() -> None:
        async with remote.held(HOST, QUICK, "1 anna@laptop") as lease:
            assert not lease.lost.is_set()
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            await asyncio.wait_for(lease.lost.wait(), 60)
        await hold("2 ben@desk")

    asyncio.run(losing())


def test_a_laptop_that_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that hears nothing any more lets go by itself."""
    monkeypatch.setattr(remote, "QUIET_S", 1)
    monkeypatch.setattr(remote, "HEARTBEAT_S", 60)

    async def silent() -> None:
        async with remote.held(HOST, QUICK, "1 anna@laptop") as lease:
            await asyncio.wait_for(lease.lost.wait(), 60)

    asyncio.run(silent())


def test_a_shell_that_greets(tmp_path: Path) -> None:
    """What a login says before the answer is passed over."""
    (tmp_path / "says").write_text("echo 'Welcome to DGX OS'; echo '[]'")
    asyncio.run(hold("1 anna@laptop"))
    assert asyncio.run(remote.look(HOST, QUICK)).boot_id


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("echo 'Host key verification failed.' >&2; exit 255", "known_hosts has no key of it"),
        ("echo 'sudo: a password is required' >&2; exit 1", "sudo is refused there"),
        ("exit 1", "no reason was told|answered with: nothing"),
        ("echo '{}'; exit 0", "no reason was told|answered with: {}"),
    ],
)
def test_a_host_that_refuses(says: str, reason: str, tmp_path: Path) -> None:
    """Its last words are the reason, for the lock as for a look."""
    (tmp_path / "says").write_text(says)
    with pytest.raises(remote.HostError, match=reason) as refused:
        asyncio.run(hold("1 anna@laptop"))
    assert refused.value.failure is Failure.UNKNOWN
    with pytest.raises(remote.HostError, match=reason):
        asyncio.run(remote.look(HOST, QUICK))


def test_a_host_that_is_silent(tmp_path: Path) -> None:
    """It is given up after its time."""
    (tmp_path / "says").write_text("sleep 600")
    with pytest.raises(remote.HostError, match="no answer within 1 s"):
        asyncio.run(remote.look(HOST, Ssh(timeout_s=1)))


def test_a_look() -> None:
    """It has this boot's name, and pressure as percentages."""
    found = asyncio.run(remote.look(HOST, QUICK))
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert all(0 <= percent <= 100 for percent in found.pressure.values())
