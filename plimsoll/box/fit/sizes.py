"""How engines spell sizes and counts, and how they are shown to people. Pure."""

import re

from plimsoll.box.fit.model import GIB, MIB

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HUMAN = re.compile(r"([0-9]{1,18})(?:(\.[0-9]{1,9})?([kmgt])|([KMGT]))?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_REAL = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")


def whole(text: str) -> int | None:
    """Return a whole number as int() of an engine reads it, None for none."""
    return int(text) if _WHOLE.fullmatch(text.strip()) else None


def real(text: str) -> float | None:
    """Return a number, None for none; `nan` and `inf` are none."""
    return float(text) if _REAL.fullmatch(text.strip()) else None


def human(text: str) -> int | None:
    """Return a count as vLLM reads it: `25.6k` is 25600, `32K` is 32768; None for none."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return None
    if match[4]:
        return int(match[1]) * _BINARY[match[4]]
    return round(float(match[1] + (match[2] or "")) * _DECIMAL[match[3]]) if match[3] else int(match[1])


def gib(size: int) -> str:
    """Return a size for people: GiB with a digit, MiB below half of one, so that nothing is shown as 0.0."""
    return f"{size / GIB:.1f} GiB" if abs(size) >= GIB // 2 or size == 0 else f"{size / MIB:.0f} MiB"
