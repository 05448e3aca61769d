"""What a value may be: type, range and the form in which it is written. Used by the inventory and the documentation."""

from dataclasses import dataclass
from typing import Protocol

from plimsoll.box.quantities import parse_bytes, parse_span_us


class ValueSpec(Protocol):
    """Reads what a policy says; raises ValueError with what is wanted."""

    @property
    def describes(self) -> str:
        """What is accepted, for a person."""

    def parse(self, raw: object) -> str:
        """Return the value as it is written on the host; raises ValueError."""


@dataclass(frozen=True)
class Integer:
    """A whole number in a closed range."""

    minimum: int
    maximum: int
    unit: str = ""

    @property
    def describes(self) -> str:
        """What is accepted, for a person."""
        return f"a whole number from {self.minimum} to {self.maximum}{f' {self.unit}' if self.unit else ''}"

    def parse(self, raw: object) -> str:
        """Return the number in decimal."""
        if isinstance(raw, bool) or not isinstance(raw, int) or not self.minimum <= raw <= self.maximum:
            raise ValueError(f"must be {self.describes}, not {raw!r}")
        return str(raw)


PAGE_BYTES = 64 << 10
"""The largest page that an arm64 kernel is built with. The kernel keeps protected memory in whole pages and rounds
down, so that what lies between two would never be found as it is wanted."""


@dataclass(frozen=True)
class Size:
    """A size as systemd writes it, in units of 1024, and in whole pages."""

    maximum_gib: int = 64

    @property
    def describes(self) -> str:
        """What is accepted, for a person."""
        return f"a size such as 256M or 1G, at most {self.maximum_gib}G"

    def parse(self, raw: object) -> str:
        """Return the size as it was written."""
        size = parse_bytes(raw) if isinstance(raw, str) else None
        if size is None or not 0 < size <= self.maximum_gib << 30 or str(raw).strip().isdigit():
            raise ValueError(f"must be {self.describes}, not {raw!r}")
        if size % PAGE_BYTES:
            raise ValueError(f"must be a multiple of 64K, a page of the kernel, not {raw!r}")
        return str(raw).strip()


@dataclass(frozen=True)
class Span:
    """A time span as systemd writes it."""

    minimum_s: int
    maximum_s: int

    @property
    def describes(self) -> str:
        """What is accepted, for a person."""
        return f"a time span such as {self.minimum_s}s, from {self.minimum_s} to {self.maximum_s} seconds"

    def parse(self, raw: object) -> str:
        """Return the span as it was written; a bare number has no unit and is refused."""
        span_us = parse_span_us(raw) if isinstance(raw, str) and not raw.strip().isdigit() else None
        if span_us is None or not self.minimum_s <= span_us / 1e6 <= self.maximum_s:
            raise ValueError(f"must be {self.describes}, not {raw!r}")
        return str(raw).strip()


@dataclass(frozen=True)
class Fixed:
    """The control has only this one value; a policy can leave it alone (null), not change it."""

    value: str

    @property
    def describes(self) -> str:
        """What is accepted, for a person."""
        return f"only {self.value}"

    def parse(self, raw: object) -> str:
        """Return the value if it is the one."""
        if str(raw) != self.value:
            raise ValueError(f"can only be {self.value}, or null to leave it alone, not {raw!r}")
        return self.value
