"""Whether the machine can be reached: how long a small program and sshd's greeting take, and None for no answer."""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from plimsoll.box.guard import probe
from plimsoll.box.guard.probe import SSHD, Address, Probe
from plimsoll.box.host import Host
from tests.unit.builders import NEEDS_ROOT, write_tree

WAIT_S = 20.0
HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@contextmanager
def _server(*says: bytes, family: socket.AddressFamily = socket.AF_INET, hangs: bool = False) -> Iterator[Address]:
    """Listen on the loopback, and say this to whoever comes; or nothing, and keep the line open."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listening:
        listening.settimeout(WAIT_S)
        over = threading.Event()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                for part in says:
                    connection.sendall(part)
                    time.sleep(0.01)
                if hangs:
                    over.wait(WAIT_S)
                elif says:
                    # closed with the client's own words unread, a connection is reset, and what was sent may be lost
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(4096):
                            pass

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield Address(family, host, listening.getsockname()[1])
        finally:
            over.set()
            with suppress(OSError):
                socket.create_connection((host, listening.getsockname()[1]), 1).close()
            thread.join(WAIT_S)


def test_a_small_program() -> None:
    """A program that ends well has its time; one that fails, is not there, or does not end has none."""
    assert 0 < (probe.start_ms(WAIT_S) or 0) < WAIT_S * 1000
    assert probe.start_ms(WAIT_S, "/bin/false") is None
    assert probe.start_ms(WAIT_S, "/nowhere/true") is None


def test_it_says_who_it_is() -> None:
    """A whole identification is sent: sshd would log as an error that somebody left without one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        heard: list[bytes] = []

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                heard.append(lines.readline())
                connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert probe.banner_ms(Address(socket.AF_INET, "127.0.0.1", listening.getsockname()[1]), WAIT_S)
        thread.join(WAIT_S)
    assert re.fullmatch(rb"SSH-2\.0-[!-~]+\r\n", heard[0])


@pytest.mark.parametrize("says", [(b"SSH-2.0-OpenSSH_9.6\r\n",), (b"S", b"SH", b"-2.0-x\r\n")])
def test_a_greeting(says: tuple[bytes, ...]) -> None:
    """The time counts until an SSH server has said what it is, in however many pieces."""
    with _server(*says) as address:
        assert 0 < (probe.banner_ms(address, WAIT_S) or 0) < WAIT_S * 1000


@pytest.mark.parametrize("says", [(), (b"SS",), (b"HTTP/1.1 400\r\n",), (b"220 mail\r\n",)])
def test_no_greeting(says: tuple[bytes, ...]) -> None:
    """Whoever hangs up, or is no SSH server, has not greeted."""
    with _server(*says) as address:
        assert probe.banner_ms(address, WAIT_S) is None


@pytest.mark.parametrize("says", [(), (b"SS",)])
def test_a_server_that_hangs(says: tuple[bytes, ...]) -> None:
    """A server that takes the connection and says nothing is given up after the time."""
    with _server(*says, hangs=True) as address:
        started_s = time.monotonic()
        assert probe.banner_ms(address, 0.2) is None
        assert 0.2 <= time.monotonic() - started_s < WAIT_S / 2


def test_nobody_listens() -> None:
    """Where nobody listens there is no time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert probe.banner_ms(Address(socket.AF_INET, "127.0.0.1", port), WAIT_S) is None


# --- where sshd listens -----------------------------------------------------------------------------


def _row(address: str, port: int, inode: int, state: str = "0A") -> str:
    words = (socket.AF_INET6, 16) if ":" in address else (socket.AF_INET, 4)
    packed = socket.inet_pton(words[0], address)
    shown = "".join(
        f"{int.from_bytes(packed[start : start + 4], sys.byteorder):08X}" for start in range(0, words[1], 4)
    )
    peer = "0" * len(shown)
    zeros = "00000000:00000000 00:00000000 00000000"
    return (
        f"   0: {shown}:{port:04X} {peer}:0000 {state} {zeros}     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
    )


def _process(root: Path, pid: int, comm: str, *inodes: int) -> None:
    write_tree(root, {f"/proc/{pid}/comm": f"{comm}\n"})
    (root / f"proc/{pid}/fd").mkdir()
    for number, inode in enumerate(inodes):
        (root / f"proc/{pid}/fd/{number}").symlink_to(f"socket:[{inode}]")


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0", Address(socket.AF_INET, "127.0.0.1", 2222)),  # noqa: S104  # what a listener is written as
        ("::", Address(socket.AF_INET6, "::1", 2222)),
        ("192.0.2.7", Address(socket.AF_INET, "192.0.2.7", 2222)),
        ("2001:db8::7", Address(socket.AF_INET6, "2001:db8::7", 2222)),
    ],
)
def test_where_sshd_listens(tmp_path: Path, address: str, reached: Address) -> None:
    """The listener of sshd's process is found, whatever its port; one for every address is reached on the loopback."""
    table = "/proc/net/tcp6" if ":" in address else "/proc/net/tcp"
    rows = _row(address, 22, 1) + _row(address, 2222, 500) + _row(address, 2223, 501, state="01")
    write_tree(tmp_path, {table: HEADING + rows})
    _process(tmp_path, 1, "systemd", 1)
    _process(tmp_path, 900, "sshd", 501, 500)
    assert probe.listener(Host(str(tmp_path)), "sshd") == reached


@NEEDS_ROOT
def test_who_only_calls_itself_sshd(tmp_path: Path) -> None:
    """Another user's process of that name is not asked, nor one that listens nowhere."""
    write_tree(tmp_path, {"/proc/net/tcp": HEADING + _row("127.0.0.1", 2222, 500) + "garbage\n   1: XX\n"})
    _process(tmp_path, 800, "sshd", 500)
    os.chown(tmp_path / "proc/800", 1000, 1000)
    _process(tmp_path, 900, "sshd", 77)
    assert probe.listener(Host(str(tmp_path)), "sshd") is None
    assert probe.listener(Host(str(tmp_path / "nowhere")), "sshd") is None


@NEEDS_ROOT
def test_looking_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is kept while somebody answers there, and looked up anew once nobody does."""
    monkeypatch.setattr(probe, "SSHD", Address(SSHD.family, SSHD.host, 1))
    looked = Probe(Host(str(tmp_path)))
    assert looked.look(WAIT_S).sshd_ms is None
    with _server(b"SSH-2.0-x\r\n") as address:
        write_tree(tmp_path, {"/proc/net/tcp": HEADING + _row(address.host, address.port, 500)})
        _process(tmp_path, 900, "sshd", 500)
        found = looked.look(WAIT_S)
    assert found.sshd_ms is not None
    assert found.fork_ms is not None
