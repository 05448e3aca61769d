"""One HTTP request to a server on this box, bounded in time and size whatever the server does.

A readiness URL may stream for ever, send a byte a minute, redirect, or answer a page for people. So the whole of a
request has one deadline, at which its connection is cut, and an answer one limit; no redirect is followed, and no proxy
is used.
"""

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.box.guard.places import printable

if TYPE_CHECKING:
    from http.client import HTTPResponse

MAX_BODY_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10


class AnswerError(Exception):
    """There is no answer that could be used; the message says why."""


class NoConnectionError(AnswerError):
    """Nothing answers at that address (yet)."""


@dataclass(frozen=True)
class Response:
    """What came back."""

    status: int
    content_type: str
    body: bytes
    location: str = ""

    def json(self) -> Any:  # noqa: ANN401  # whatever the server made of it
        """Return the body as JSON; raises AnswerError that says what it is instead."""
        if self.location:
            raise AnswerError(f"redirects ({self.status}) to {self.location[:200]!r}: give the URL that answers itself")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            kind = f"{printable(self.content_type) or 'no type'}, {self.body[:60]!r}"
            raise AnswerError(f"status {self.status}, and no JSON ({kind})") from None


def split(url: str) -> tuple[str, str]:
    """Return what of a URL says where, and the path with its query."""
    netloc, _, target = url.partition("://")[2].partition("/")
    return netloc, f"/{target}"


def request(
    url: str, timeout_s: float, *, content: object = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Ask a server; with `content`, POST it as JSON. Raises AnswerError; takes `timeout_s` at the most."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415  # 25 ms, and most commands ask nothing

    netloc, target = split(url)
    connection = HTTPConnection(netloc, timeout=timeout_s)
    body = None if content is None else json.dumps(content)
    every = {"Accept": "application/json", "Connection": "close", **(headers or {})}
    if body is not None:
        every["Content-Type"] = "application/json"
    ends_s = time.monotonic() + timeout_s
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise NoConnectionError(f"no connection to {netloc}: {error.strerror or error}") from error
    cutter = _cutting(connection.sock, ends_s)
    try:
        connection.request("GET" if body is None else "POST", target, body, every)
        found = _response(connection.getresponse())
    except (OSError, HTTPException) as error:
        what = _late(timeout_s) if time.monotonic() >= ends_s else _said(error)
        raise AnswerError(what) from error
    finally:
        cutter.cancel()
        connection.close()
    if time.monotonic() >= ends_s:
        # what was cut looks as if it had ended
        raise AnswerError(_late(timeout_s))
    return found


def _late(timeout_s: float) -> str:
    return f"no whole answer within {timeout_s:g} s"


def _cutting(connection: socket.socket, ends_s: float) -> threading.Timer:
    """Cut a connection at a time: a timeout of the socket is for each piece, and pieces may come for ever."""

    def cut() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, ends_s - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    return timer


def _response(answer: "HTTPResponse") -> Response:
    from http.client import IncompleteRead  # noqa: PLC0415  # as above

    body = b""
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise AnswerError(f"answers more than {MAX_BODY_BYTES >> 20} MiB, which no list of models is")
    if answer.length:
        raise IncompleteRead(body, answer.length)
    location = answer.getheader("Location", "") if 300 <= answer.status < 400 else ""  # noqa: PLR2004  # HTTP: redirects
    return Response(answer.status, answer.getheader("Content-Type", ""), body, location)


def _said(error: Exception) -> str:
    """Return what an error comes to, for people."""
    from http.client import HTTPException, IncompleteRead, RemoteDisconnected  # noqa: PLC0415  # as above

    if isinstance(error, RemoteDisconnected):
        return "closes the connection without an answer"
    if isinstance(error, IncompleteRead):
        return "breaks off in the middle of its answer"
    if isinstance(error, HTTPException):
        return f"answers something that is no HTTP ({type(error).__name__}: {printable(str(error)[:100])})"
    return f"{getattr(error, 'strerror', None) or error}"
