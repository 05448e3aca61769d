"""Models, needs and boxes for tests of serving, by their few telling figures; and servers that answer as told."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from plimsoll.box.guard.model import KIB_PER_GIB, Lines
from plimsoll.box.serve.model import Holder, Model, Needed, Readiness, Situation, Unit

LINES = Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
TOTAL_KIB = round(121.6 * KIB_PER_GIB)


def kib(gib: float) -> int:
    """GiB as KiB."""
    return round(gib * KIB_PER_GIB)


def model(name: str = "qwen", **others: Any) -> Model:  # noqa: ANN401  # fields of a model
    """Return a model that is a unit, but for what is said otherwise."""
    readiness = Readiness("http://127.0.0.1:8000/v1/models", name)
    fields: dict[str, Any] = {"place": Unit(f"{name}.service"), "readiness": readiness, "port": 8000}
    return Model(name, f"/etc/plimsoll/models.d/{name}.toml", **{**fields, **others})


def needed(peak_gib: float, steady_gib: float | None = None, **others: Any) -> Needed:  # noqa: ANN401  # its fields
    """Return a need that is exactly known, but for what is said otherwise."""
    steady = peak_gib if steady_gib is None else steady_gib
    fields: dict[str, Any] = {"basis": "declared as need.gib", "exact": True}
    return Needed(kib(peak_gib), kib(steady), **{**fields, **others})


def situation(available_gib: float | None, **others: Any) -> Situation:  # noqa: ANN401  # its fields
    """Return a box of 121.6 GiB with the usual lines, on which nothing runs, but for what is said otherwise."""
    fields: dict[str, Any] = {
        "at_s": 100.0,
        "mem_total_kib": TOTAL_KIB,
        "available_kib": None if available_gib is None else kib(available_gib),
        "regime": "A",
        "regime_basis": "no NVIDIA driver is loaded",
        "lines": LINES,
        "free_2mib_blocks": 30000,
        "free_32mib_blocks": 1417,
        "pool_kib": 0,
        "port_taken": False,
    }
    return Situation(**{**fields, **others})


def holder(name: str = "other.service", held_gib: float = 40, **others: Any) -> Holder:  # noqa: ANN401  # its fields
    """Return who holds the GPU, but for what is said otherwise."""
    fields: dict[str, Any] = {"state": "S", "holds_gpu": True}
    return Holder(others.pop("pid", 4711), name, kib(held_gib), **{**fields, **others})


def declare(root: Path, name: str, text: str) -> Path:
    """Write a model's file below a root; return its path."""
    directory = root / "etc/plimsoll/models.d"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


SMALLEST = '[run]\nunit = "{unit}.service"\n[ready]\nurl = "http://127.0.0.1:8000/v1/models"\nmodel_id = "m"\n'
"""All that a file has to say; `{unit}` is filled in."""

Answers = Mapping[str, Callable[["Request"], tuple[int, Any]]]
"""By path: a status, and what is sent as JSON, or as it is where it is bytes."""


class Request:
    """What a server was asked."""

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.json: Any = json.loads(body) if body else None


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has left before it had its answer."""


@contextlib.contextmanager
def serving(answers: Answers, asked: list[Request] | None = None) -> Iterator[str]:
    """Serve answers on a port of this machine for as long as the block lasts; yield its address as a URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.path, dict(self.headers), body)
            if asked is not None:
                asked.append(request)
            answer = answers.get(self.path)
            status, content = (404, {"error": "not found"}) if answer is None else answer(request)
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if sent is not content else "text/html")
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_GET  # noqa: N815  # the name that the library calls

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def saying(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer every connection by `talk`, which may break all rules, until it is closed; yield the address as a URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)
