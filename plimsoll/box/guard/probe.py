"""Is the machine still of use to somebody? How long it takes to start a small program, and until sshd says hello.

Both can take minutes on a wedged machine: this is for a thread of its own, and nobody waits for it. sshd writes a line
into its log for every connection that it greets in vain, and OpenSSH from 9.8 on holds each against its source for a
second: more than one a minute is more than anybody wants.
"""

import os
import re
import socket
import sys
import time
from contextlib import closing, suppress
from typing import NamedTuple

from plimsoll.box.guard import spawn
from plimsoll.box.guard.recording import Reached
from plimsoll.box.host import Host

PROGRAM = "/bin/true"
TIMEOUT_S = 60.0
"""Logins of 50 s were seen on a box under memory pressure; whoever waits longer has given up."""
EVERY_S = 60.0
_MS_PER_S = 1000.0
_BANNER = b"SSH-"
_GREETING = b"SSH-2.0-plimsoll\r\n"
"""Without it sshd calls it an error that somebody is gone before it has said who it is."""
_TABLES = {"/proc/net/tcp": socket.AF_INET, "/proc/net/tcp6": socket.AF_INET6}
_LISTENER = re.compile(r"\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A (?:\S+ +){2}\S+ +\d+ +\d+ (\d+)")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Address(NamedTuple):
    """Where a service listens, as this machine reaches it."""

    family: socket.AddressFamily
    host: str
    port: int


SSHD = Address(socket.AF_INET, "127.0.0.1", 22)
"""Where it is looked for if no process of sshd's listens: systemd may listen in its place."""


class Probe:
    """Looks again and again; sshd's address is looked up anew once nothing was heard there."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sshd: Address | None = None

    def look(self, timeout_s: float = TIMEOUT_S) -> Reached:
        """Return how long each took, in milliseconds; None for what was not done in `timeout_s`, or not at all."""
        fork_ms = start_ms(timeout_s)
        self._sshd = self._sshd or listener(self._host, "sshd") or SSHD
        sshd_ms = banner_ms(self._sshd, timeout_s)
        if sshd_ms is None:
            self._sshd = None
        return Reached(fork_ms, sshd_ms)


def start_ms(timeout_s: float, program: str = PROGRAM) -> float | None:
    """Return how long it takes until a program that does nothing has ended, None where it does not."""
    started_s = time.monotonic()
    ran = spawn.run((program,), timeout_s)
    return (time.monotonic() - started_s) * _MS_PER_S if ran.code == 0 else None


def banner_ms(address: Address, timeout_s: float) -> float | None:
    """Return how long it takes until an SSH server has said what it is, None where nobody does."""
    started_s = time.monotonic()
    heard = b""
    try:
        with closing(socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)) as connection:
            connection.settimeout(timeout_s)
            connection.connect((address.host, address.port))
            connection.sendall(_GREETING)
            while len(heard) < len(_BANNER):
                connection.settimeout(max(started_s + timeout_s - time.monotonic(), 0.001))
                more = connection.recv(len(_BANNER) - len(heard))
                if not more:
                    return None
                heard += more
    except OSError:
        return None
    return (time.monotonic() - started_s) * _MS_PER_S if heard == _BANNER else None


def listener(host: Host, comm: str) -> Address | None:
    """Return where a process of root's with that name listens, the oldest one; None where there is none.

    Anybody can give a process a name, but not its user. Nothing is read that waits for the process.
    """
    listening = _listening(host)
    for name in sorted((name for name in host.names("/proc") if name.isdigit()), key=int):
        if host.text_or_none(f"/proc/{name}/comm") != comm or not _is_roots(host, name):
            continue
        found = (_SOCKET.fullmatch(link) for link in _links(host, f"/proc/{name}/fd"))
        addresses = (listening.get(match[1]) for match in found if match)
        if address := next((each for each in addresses if each), None):
            return address
    return None


def _listening(host: Host) -> dict[str, Address]:
    """Return the sockets that listen, by inode, each with an address at which this machine reaches it."""
    found = {}
    for table, family in _TABLES.items():
        for line in (host.text_or_none(table) or "").splitlines():
            if match := _LISTENER.match(line.strip()):
                found[match[3]] = Address(family, _reachable(family, match[1]), int(match[2], 16))
    return found


def _reachable(family: socket.AddressFamily, written: str) -> str:
    """Return an address that /proc/net writes in words of the machine's byte order; for any address the loopback."""
    words = [written[start : start + 8] for start in range(0, len(written), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    if not any(packed):
        return "127.0.0.1" if family == socket.AF_INET else "::1"
    return socket.inet_ntop(family, packed)


def _is_roots(host: Host, pid: str) -> bool:
    try:
        return os.stat(host.path(f"/proc/{pid}")).st_uid == 0
    except OSError:
        return False


def _links(host: Host, directory: str) -> list[str]:
    found = []
    for name in host.names(directory):
        with suppress(OSError):
            found.append(os.readlink(host.path(f"{directory}/{name}")))
    return found
