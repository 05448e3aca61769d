"""Memory as the box accounts it: `pyinfra gx10 fact facts.memory.Memory`."""

from typing import Any

from facts.state import HostState


class Memory(HostState):
    """The section `memory` of a state: meminfo in KiB, PSI, swaps, the accounting regime and what it rests on."""

    def process(self, output: list[str]) -> dict[str, Any]:
        """Return the section."""
        found: dict[str, Any] = super().process(output)["memory"]
        return found
