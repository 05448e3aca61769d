"""Whether a box's GPU takes its memory from the box's own; apart, because an admission asks for that alone."""

import re

from plimsoll.box.host import Host

UNIFIED_MAX_BYTES = 140 << 30
"""Boxes in which GPU and processor share one pool have up to 128 GiB (GB10, Thor, Strix Halo)."""
_UNIFIED = re.compile(r"GB10|Thor|Orin|Tegra", re.IGNORECASE)
_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_GPUS = "/proc/driver/nvidia/gpus"


def of_host(host: Host, total: int) -> bool | None:
    """Say so by the name of its GPU, else by how much memory (`total`, bytes) there is; None where neither tells."""
    texts = [host.text_or_none(f"{_GPUS}/{gpu}/information") or "" for gpu in host.names(_GPUS)]
    models = [match[1].strip() for text in texts if (match := _MODEL.search(text))]
    if models:
        return any(_UNIFIED.search(model) for model in models)
    return True if total <= UNIFIED_MAX_BYTES else None
