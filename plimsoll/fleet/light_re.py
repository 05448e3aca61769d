"""Stands in for `re` where a state is read: the patterns come compiled from an operator with the same Python.

Importing the original and `enum` behind it takes 7 of the 32 ms of a reading, and compiling what is used 4 more. What
was not sent, and whatever else is asked of this module, is left to the original.
"""

import _sre  # type: ignore[import-not-found]  # what `re` itself makes its patterns with
import sys
from typing import Any

READY: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}
"""What `_sre.compile` is given beside the pattern, by pattern and flags; filled by whoever brings this module."""
ASCII, IGNORECASE, MULTILINE, DOTALL, VERBOSE = 256, 2, 8, 16, 64
"""The original's values, which its own compiler has had since Python 2."""


class Later:
    """A pattern that is made when it is used: not all are."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> object:
        """Return what the pattern has under this name, for good."""
        made = READY.get(self._given)
        pattern = original().compile(*self._given) if made is None else _sre.compile(self._given[0], *made)
        found: object = getattr(pattern, name)
        setattr(self, name, found)
        return found


def compile(pattern: str | bytes, flags: int = 0) -> Later:  # noqa: A001  # the original calls it so
    """Return what looks like the pattern to whoever uses one."""
    return Later(pattern, int(flags))


_original: list[Any] = []


def original() -> Any:  # noqa: ANN401  # a module
    """Return the standard library's own module, imported when it is first needed."""
    if not _original:
        # it needs the original `enum` as well; what stands in was not imported, and has no specification
        hidden = {name: module for name in ("re", "enum") if (module := sys.modules.get(name)) and not module.__spec__}
        for name in hidden:
            del sys.modules[name]
        _original.append(__import__("re"))
        sys.modules.update(hidden)
    return _original[0]


def __getattr__(name: str) -> object:
    return getattr(original(), name)
