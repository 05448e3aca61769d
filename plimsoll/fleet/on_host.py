"""What an audit runs on a host before anything else, and how it ends there. Standard library only.

Nothing of it lives longer than 0.1 s, on a box that may have neither memory nor processor time to spare: what Python
does for programs that go on is left out.
"""

import __future__

import gc
import os
import sys
from types import CodeType, ModuleType

ANSWER = "plimsoll.box.answer"
STAND_INS = ("typing", "dataclasses", "enum", "signal", "re")
"""Modules of the standard library that are sent in a smaller form: the real ones take a quarter of a reading."""
PATTERNS = "patterns"


def main(modules: dict[str, CodeType | str | dict[object, object]]) -> None:
    """Load modules, compiled or not, each after those that it imports; then answer, and end.

    `patterns` is what is known of patterns beforehand, for `light_re`; nothing where this Python is another version.
    """
    gc.disable()
    patterns = modules.pop(PATTERNS, {})
    for name, program in modules.items():
        sys.modules[name] = ModuleType(name)
        # by hand: through the finder of zip files it took 4 ms more
        exec(_compiled(name, program), sys.modules[name].__dict__)  # noqa: S102  # what the operator sent
        if name == "re":
            sys.modules[name].READY = patterns  # type: ignore[attr-defined]  # a module of ours
    for name in STAND_INS[:-1]:
        # what is imported from here on, only where it is needed, may need all of them; the last one stands in for all
        sys.modules.pop(name, None)
    code = sys.modules[ANSWER].main()
    sys.stdout.flush()
    # Python would take itself apart first, module by module: 12 ms of 90
    os._exit(code)


def _compiled(name: str, program: object) -> CodeType:
    if isinstance(program, CodeType):
        return program
    code: CodeType = compile(str(program), name, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    return code
