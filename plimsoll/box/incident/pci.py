"""What the kernel says of PCIe links and network cards: class E has its evidence here."""

import re

from plimsoll.box.incident.model import Line
from plimsoll.box.incident.sink import Sink

_ERRORS = (
    r"(?:AER: )?PCIe Bus Error: severity=.*|AER: .*(?:error (?:message )?received|recovery failed|can't recover).*"
    r"|AER: aer_uncor_severity: .*|DPC: (?:containment event|unmasked uncorrectable error|ERR_(?:NON)?FATAL).*"
)
"""What is an error; each start says that AER is enabled and what DPC can contain, and the details follow an error."""
_AER = re.compile(rf"(?:(?:[\w-]+ )?([0-9a-f:.]{{7,}}): )?(?:{_ERRORS})")
_NETWORK = re.compile(
    r"mlx5_core ([0-9a-f:.]+): (?:[\w-]+: )?.*?(?:health compromised|PCI slot is unavailable|Fatal error|fatal error"
    r"|device is disabled|firmware internal error|assert_var\[0\]|\btimeout\b.*[Ll]eak)"
)
"""What the driver of the ConnectX card says once the card does not answer."""
_MODULES = ("mlx5", "mstflint", "mst_", "mft", "nvidia_peermem", "ib_", "rdma")
MAX_NOTES = 200


class Pci:
    """Reads such lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._seen = 0

    def read(self, line: Line) -> bool:
        """Take a line; corrected errors are no incident."""
        if not line.may_be_kernel:
            return False
        match = _AER.match(line.text)
        network = None if match else _NETWORK.match(line.text)
        if network:
            self._note(line, "network", f"the network card: {line.text}", network[1])
        if not match:
            return network is not None
        corrected = "orrect" in line.text and "ncorrect" not in line.text
        self._note(line, "pcie_corrected" if corrected else "pcie", f"PCIe error: {line.text}", match[1])
        return True

    def _note(self, line: Line, kind: str, text: str, device: str | None) -> None:
        self._seen += 1
        if self._seen <= MAX_NOTES:
            self._sink.note(line, kind, text, device=device)


def is_network(module: str | None) -> bool:
    """Say whether a module belongs to a network card or its tools."""
    return module is not None and module.startswith(_MODULES)
