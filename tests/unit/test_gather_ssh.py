"""The real ssh client against servers that are not what they should be."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plimsoll.fleet import gather
from plimsoll.fleet.gather import Ssh
from plimsoll.inventory import Host
from plimsoll.policy import Policy

Serve = Callable[[socket.socket], object]


@contextmanager
def server(serve: Serve) -> Iterator[int]:
    """Accept connections and hand each to `serve`; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _address = listening.accept()
                except OSError:
                    return
                held.append(connection)
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def ask(port: int, tmp_path: Path, timeout_s: float) -> gather.Answer:
    """Ask one host that listens on this port."""
    config = tmp_path / "config"
    config.write_text("Host *\n StrictHostKeyChecking yes\n")
    host = Host("gx10", (), Policy(), (), address="127.0.0.1", port=port)
    return gather.gather([host], Ssh(config, timeout_s), lambda answer: answer)[0]


def silent(_connection: socket.socket) -> None:
    """Accept, and never say a word."""


def noisy(connection: socket.socket) -> None:
    """Talk, but not as a server of SSH does."""
    connection.sendall(b"\x00\xff\x1b]0;owned\x07" * 1000 + b"\n")
    connection.close()


@pytest.mark.parametrize(
    ("serve", "problem"),
    [(silent, "timed out"), (noisy, "banner exchange")],
)
def test_a_server_that_is_none(serve: Serve, problem: str, tmp_path: Path) -> None:
    """A port that accepts and is silent, or talks nonsense, is a host that was not reached, with the reason."""
    with server(serve) as port:
        answer = ask(port, tmp_path, timeout_s=4)
    assert answer.state is None
    assert problem in answer.problem
    assert answer.took_ms < 10_000


def test_a_port_where_nobody_listens(tmp_path: Path) -> None:
    """The client's own reason is passed on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
    answer = ask(port, tmp_path, timeout_s=20)
    assert answer.state is None
    assert "Connection refused" in answer.problem
