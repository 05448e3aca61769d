"""QEMU's machine protocol: the few commands and events the lab needs."""

import time
from collections.abc import Mapping
from pathlib import Path

from lab.errors import LabError
from lab.sockets import JsonLines

COMMAND_TIMEOUT_S = 60.0


class Monitor(JsonLines):
    """One connection to QEMU's monitor, which serves one at a time."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        try:
            self.receive(time.monotonic() + COMMAND_TIMEOUT_S)  # the greeting
            self.command("qmp_capabilities")
        except BaseException:
            self.close()
            raise

    def command(self, name: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one command and return its result. Raises LabError with QEMU's own words, TimeoutError."""
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        self.send({"execute": name, "arguments": arguments or {}}, deadline_s)
        while True:
            message = self.receive(deadline_s)
            if "error" in message:
                raise LabError(f"QEMU refuses {name}: {message['error']['desc']}")
            if "return" in message:
                returned: object = message["return"]
                return returned

    def await_event(self, name: str, deadline_s: float) -> None:
        """Wait for an event of this name. Raises TimeoutError at the deadline (time.monotonic())."""
        while self.receive(deadline_s).get("event") != name:
            continue

    def save_snapshot(self, tag: str) -> None:
        """Write memory and devices into the disk file. Raises LabError with QEMU's own words."""
        complaint = self.command("human-monitor-command", {"command-line": f"savevm {tag}"})
        if complaint:
            raise LabError(f"QEMU cannot save the machine: {str(complaint).strip()}")
