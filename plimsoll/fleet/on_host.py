"""What an audit runs on a host before anything else, and how it ends there. Standard library only.

Nothing of it lives longer than 0.1 s, on a box that may have neither memory nor processor time to spare: what Python
does for programs that go on is left out.
"""

import __future__

import gc
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType

ANSWER = "plimsoll.box.answer"
STAND_INS = ("typing", "dataclasses")
"""Modules of the standard library that are sent in a smaller form: the real ones take 2 and 14 ms of 90."""


_compile: Callable[..., object] = re.compile


def main(modules: Mapping[str, CodeType | str]) -> None:
    """Load modules, compiled or not, each after those that it imports; then answer, and end."""
    gc.disable()
    re.compile = Later  # type: ignore[assignment]  # it looks like a pattern to whoever uses one
    for name, program in modules.items():
        sys.modules[name] = ModuleType(name)
        # by hand: through the finder of zip files it took 4 ms more
        exec(_compiled(name, program), sys.modules[name].__dict__)  # noqa: S102  # what the operator sent
    re.compile = _compile  # type: ignore[assignment]  # as it was
    for name in STAND_INS:
        # what is imported from here on, only where it is needed, may need all of them
        sys.modules.pop(name, None)
    code = sys.modules[ANSWER].main()
    sys.stdout.flush()
    # Python would take itself apart first, module by module: 12 ms of 90
    os._exit(code)


class Later:
    """A pattern that is compiled when it is used: 38 take 4.8 ms, and not all are."""

    def __init__(self, *given: object) -> None:
        self._given = given

    def __getattr__(self, name: str) -> object:
        """Return what the pattern has under this name, for good."""
        found: object = getattr(_compile(*self._given), name)
        setattr(self, name, found)
        return found


def _compiled(name: str, program: CodeType | str) -> CodeType:
    if isinstance(program, CodeType):
        return program
    code: CodeType = compile(program, name, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    return code
