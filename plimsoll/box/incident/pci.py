"""What the kernel says of PCIe links and network cards: class E has its evidence here."""

import re

from plimsoll.box.incident.model import Line
from plimsoll.box.incident.sink import Sink

_AER = re.compile(r"(?:pcieport|[\w-]+) ([0-9a-f:.]+): AER: (.*)|AER: (.*)")
_MODULES = ("mlx5", "mstflint", "mst_", "mft", "nvidia_peermem", "ib_", "rdma")
MAX_NOTES = 200


class Pci:
    """Reads AER lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._seen = 0

    def read(self, line: Line) -> bool:
        """Take an AER line; corrected errors are only counted."""
        match = _AER.match(line.text) if line.may_be_kernel else None
        if not match:
            return False
        self._seen += 1
        corrected = "orrect" in line.text and "Uncorrect" not in line.text
        if self._seen <= MAX_NOTES:
            kind = "pcie_corrected" if corrected else "pcie"
            self._sink.note(line, kind, f"PCIe error: {line.text}", device=match[1])
        return True


def is_network(module: str | None) -> bool:
    """Say whether a module belongs to a network card or its tools."""
    return module is not None and module.startswith(_MODULES)
