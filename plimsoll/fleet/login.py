"""One login to a host, over a connection of its own: who answers pings may let nobody in."""

from __future__ import annotations

import enum
import re
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.fleet import gather

if TYPE_CHECKING:
    from plimsoll.inventory import Host


class Kind(enum.StrEnum):
    """What came of trying to log in."""

    IN = "in"
    SILENT = "silent"
    """Connections are accepted there, and nobody is let in: what a box looks like whose memory has run out."""
    UNREACHABLE = "unreachable"
    """Nobody answers there: the box is off or restarting, or the network in between is gone."""
    DENIED = "denied"
    """sshd is well, and refuses this login: a key, the host's key, the account."""
    UNKNOWN = "unknown"
    """It could not be tried, or the answer says nothing."""


DOWN = (Kind.SILENT, Kind.UNREACHABLE)
"""The kinds that count as a login that the host failed to give; the others say nothing against it."""


@dataclass(frozen=True)
class Login:
    """How one login went."""

    kind: Kind
    took_s: float
    problem: str = ""
    """Why it did not work, in the words of ssh; empty if it did."""


_MESSAGES = {
    Kind.DENIED: (
        r"Permission denied \(",
        "Host key verification failed",
        r"No [\w-]+ host key is known",
        "IDENTIFICATION HAS CHANGED",
        "Too many authentication failures",
        r"no matching \w",
        "account is currently not available",
    ),
    Kind.UNKNOWN: (
        "Could not resolve hostname",
        "Bad configuration option",
        r"terminating, \d+ bad",
        "Can't open user config",
        "Bad owner or permissions",
    ),
    Kind.UNREACHABLE: ("connect to (host|address) .*: ", "UNKNOWN port", "open failed: ", "stdio forwarding failed"),
    Kind.SILENT: (
        "banner exchange",
        "kex_exchange_identification",
        "ssh_dispatch_run_fatal",
        "request failed on channel",
        "Connection (closed|reset|timed out|to .* (timed out|closed))",
        "Timeout, server",
        "client_loop: ",
        "Cannot allocate memory",
        "Resource temporarily unavailable",
        "no answer within",
    ),
}
"""What OpenSSH says, in English whatever the locale; the first kind that matches counts. What a jump host says comes
before what its loss does to the connection through it, in which ssh calls the host UNKNOWN."""


def classify(said: str, *, marked: bool) -> Kind:
    """Return what a login was; `marked` is whether its command was carried out, `said` all that ssh said on stderr."""
    if marked:
        return Kind.IN
    return next((kind for kind, any_of in _MESSAGES.items() if re.search("|".join(any_of), said)), Kind.UNKNOWN)


async def fresh_login(host: Host, ssh: gather.Ssh) -> Login:
    """Log in anew, over a connection that nothing shares, and have a word echoed; takes `ssh.timeout_s` at most.

    On the host it costs a login and no process more than the shell.
    """
    mark = secrets.token_hex(8)
    command = [*gather.ssh_command(host, replace(ssh, fresh=True)), f"echo {mark}"]
    started = time.monotonic()
    try:
        output, complaint, code = await gather.execute(command, bytes, ssh.timeout_s)
        said = complaint.decode("utf-8", "replace")
        marked = mark.encode() in output
        problem = gather.last_line(complaint) or f"the login ended with {code} and did not carry out its command"
    except (OSError, gather.AnswerError) as error:
        said, problem, marked = str(error), str(error), False
    return Login(classify(said, marked=marked), time.monotonic() - started, "" if marked else problem)
