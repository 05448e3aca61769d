"""A server of a test's own on the loopback interface."""

import socket
import time


def await_port(port: int, limit_s: float) -> None:
    """Wait until somebody listens on a port."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end_s, f"nobody listens on port {port}"
        else:
            return
