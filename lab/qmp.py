"""QEMU's machine protocol: the few commands the lab needs."""

import time
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.sockets import JsonLines

COMMAND_TIMEOUT_S = 60.0


def command(socket: Path, name: str, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any) -> Any:
    """Run one command on a connection of its own and return what it returned.

    Raises LabError with QEMU's own description, TimeoutError.
    """
    deadline_s = time.monotonic() + timeout_s
    with JsonLines(socket) as monitor:
        monitor.receive(deadline_s)  # the greeting
        _ask(monitor, "qmp_capabilities", {}, deadline_s)
        return _ask(monitor, name, arguments, deadline_s)


def _ask(monitor: JsonLines, name: str, arguments: dict[str, Any], deadline_s: float) -> Any:
    monitor.send({"execute": name, "arguments": arguments}, deadline_s)
    while True:
        message = monitor.receive(deadline_s)
        if "error" in message:
            raise LabError(f"QEMU refuses {name}: {message['error']['desc']}")
        if "return" in message:
            return message["return"]


def save_snapshot(socket: Path, tag: str) -> None:
    """Write memory and devices into the disk file. QEMU reports a failure as text."""
    complaint = command(socket, "human-monitor-command", **{"command-line": f"savevm {tag}"})
    if complaint:
        raise LabError(f"QEMU cannot save the machine: {str(complaint).strip()}")
