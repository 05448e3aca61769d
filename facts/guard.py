"""The guard as it runs: `pyinfra gx10 fact facts.guard.Heartbeat`."""

from typing import Any

from facts.state import HostState


class Heartbeat(HostState):
    """What the guard says of itself, and the kernel of it: program, configuration, age of its sample, locked memory.

    None where it says nothing; `{error}` where that cannot be read.
    """

    def process(self, output: list[str]) -> dict[str, Any] | None:  # type: ignore[override]  # a host may have no guard
        """Return the section."""
        found: dict[str, Any] | None = super().process(output)["heartbeat"]
        return found
