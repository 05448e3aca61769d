"""The operator's connection: as pyinfra made it, a little faster, and a second one to prove that it can be made."""

import re
import socket
import time
from typing import TYPE_CHECKING, Any

import paramiko
from pyinfra.api.exceptions import ConnectError
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector

if TYPE_CHECKING:
    from pyinfra.api.host import Host

PROOF_TRIES = 3
PROOF_TIMEOUT_S = 50
"""Three of them fit into the 180 s after which the host takes the change back by itself; a login that took
about 50 s was seen on a box under memory pressure."""


class NoLoginError(Exception):
    """A fresh login was tried and did not work."""


def without_delay(host: "Host") -> None:
    """Switch off Nagle's algorithm: with delayed acknowledgements it costs 41 ms a command, 65 % of a quiet run.

    Through a jump host the socket is a channel of another connection, and is left alone.
    """
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    if transport is not None and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def is_local(host: "Host") -> bool:
    """Say whether the host is this machine, with no connection in between."""
    return isinstance(host.connector, LocalConnector)


def prove_fresh_login(host: "Host") -> str:
    """Log in anew, the way the operator came in: same address, port, keys and jump hosts, nothing shared.

    Returns how it went; raises NoLoginError after PROOF_TRIES. pyinfra's connector never shares a
    connection (it ignores ControlPath), so a second one of it is a new login.
    """
    if not isinstance(host.connector, SSHConnector):
        return "the login is unknown: this deploy did not come in over SSH"
    problems = []
    for _try in range(PROOF_TRIES):
        try:
            return _log_in(host)
        except (ConnectError, OSError, EOFError, paramiko.SSHException) as error:
            problems.append(str(error))
    raise NoLoginError(f"no fresh login to {host.name} after {PROOF_TRIES} tries: {problems[-1]}")


def _log_in(host: "Host") -> str:
    started = time.monotonic()
    connector = SSHConnector(host.state, host)
    connector.connect()
    client = connector.client
    if client is None:
        raise NoLoginError("pyinfra's connector made no client")
    try:
        return _try_command(client, started)
    finally:
        client.close()


def _try_command(client: Any, started: float) -> str:  # noqa: ANN401  # pyinfra's subclass of paramiko's client
    banner = client.get_transport().remote_version
    if "Tailscale" in banner:
        return f"the login went to Tailscale's own SSH server ({banner}), which proves nothing about sshd: unknown"
    _stdin, stdout, _stderr = client.exec_command("echo plimsoll", timeout=PROOF_TIMEOUT_S)
    answer = stdout.read().decode("utf-8", "replace")
    if "plimsoll" not in answer:
        raise NoLoginError(f"the new login answered {answer[:80]!r} to an echo")
    return f"a fresh login over a new connection took {time.monotonic() - started:.1f} s"


_LISTENING = re.compile(r"^(?:listenaddress )?(?:(\[[^]]*\]|[\d.]+):)?(\d+)(?: \(Stream\))?$", re.MULTILINE)
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "::1"}  # noqa: S104  # what sshd says it listens on


def listening_addresses(dump: str) -> list[tuple[str, int]]:
    """Return `(address, port)` from `listenaddress` lines of `sshd -T` and `Listen` lines of a socket unit.

    A wildcard is reached over the loopback interface.
    """
    found = ((_LOOPBACK.get(address, address.strip("[]")), int(port)) for address, port in _LISTENING.findall(dump))
    return list(dict.fromkeys(found))


def prove_key_exchange(ports: list[tuple[str, int]]) -> str:
    """Exchange keys with sshd on each address it listens on, as far as one can without being able to log in.

    Raises NoLoginError for an address where nobody answers as an SSH server, or if there is no address.
    """
    if not ports:
        raise NoLoginError("it could not be found out on which addresses sshd listens")
    for address, port in ports:
        try:
            transport = paramiko.Transport(socket.create_connection((address, port), timeout=PROOF_TIMEOUT_S))
            try:
                transport.start_client(timeout=PROOF_TIMEOUT_S)
            finally:
                transport.close()
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise NoLoginError(f"no key exchange with sshd on {address} port {port}: {error}") from error
    where = ", ".join(f"{address} port {port}" for address, port in ports)
    return f"keys were exchanged with sshd on {where}; whether a login works is unknown from the box itself"
