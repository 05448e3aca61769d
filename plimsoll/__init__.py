"""Plimsoll keeps a GB10 box reachable when its unified memory runs out."""

__version__ = "0.1.0"
