"""The program that an audit sends to a host to be run from memory: what reading a state needs, made to start at once.

It comes on standard input. As an argument sudo would log it.
"""

from __future__ import annotations
import __future__

import base64
import functools
import marshal
import re
import shlex
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from plimsoll.fleet.on_host import STAND_INS
from plimsoll.zipapp import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent
_FIRST = "on_host"
_ANSWER = "plimsoll.box.answer"
_TYPING = "class Any: pass\nTYPE_CHECKING = False\n"
_STAND_INS = dict(zip(STAND_INS, (_TYPING, (_HERE / "light_dataclasses.py").read_text("utf-8")), strict=True))
"""In place of modules of the standard library, until all of ours are loaded: these may import no other name from
typing, and what needs the real ones (tomllib does) only in the function that uses it."""
_WORD = "plimsoll"
_COMMAND = (
    "import binascii,marshal,sys,zlib;"
    "sys.version_info<(3,11) and sys.exit('plimsoll needs Python 3.11 or later on the host');"
    "w=sys.stdin.readline().split();"
    f"w[:1]==['{_WORD}'] or sys.exit(1);"
    "m=marshal.loads(zlib.decompress(binascii.a2b_base64(w[2 if w[1]==sys.implementation.cache_tag else 3])));"
    "n={};"
    f"exec(m.pop('{_FIRST}'),n);"
    "n['main'](m)"
)
"""It says nothing where the program is not there any more: an attempt before it took it, failed, and has said why."""


def command() -> str:
    """Return the shell command that runs `first_line()`, which it finds as the first line of its standard input."""
    # without site packages and their hooks, which a program of the standard library does not need
    return shlex.join(["python3", "-I", "-S", "-c", _COMMAND])


@functools.cache
def first_line() -> str:
    """Return what an audit sends as the first line: the modules that reading needs, compiled, and as they are.

    A host with this machine's version of Python takes the compiled ones: 0.06 s of processor time, where compiling
    the others takes it another 0.07 s.
    """
    modules = {_FIRST: (_HERE / "on_host.py").read_text("utf-8"), **_STAND_INS, **dict(_needed(_ANSWER, set()))}
    compiled = {name: _compiled(name, source) for name, source in modules.items()}
    return " ".join((_WORD, sys.implementation.cache_tag, _packed(compiled), _packed(modules)))


def _packed(modules: dict[str, CodeType] | dict[str, str]) -> str:
    return base64.b64encode(zlib.compress(marshal.dumps(modules))).decode()


def _needed(module: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and the sources of a module and of all of the box that it imports, which come before it."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if module in seen or not file.is_file():
        return
    seen.add(module)
    source = file.read_text("utf-8")
    for each in _imports(source):
        yield from _needed(each, seen)
    yield module, source


_IMPORT = re.compile(r"^ *from (plimsoll\.box[.\w]*) import (\([^)]*\)|.*)", re.MULTILINE)
"""The box is formatted by a tool and imports its own in this form alone; its syntax trees take 60 ms."""


def _imports(source: str) -> Iterator[str]:
    for module, names in _IMPORT.findall(source):
        yield from (module, *(f"{module}.{name}" for name in re.findall(r"\w+", names)))


def _compiled(name: str, source: str) -> CodeType:
    # annotations stay text, and docstrings stay here: nobody there asks for them
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(source, name, "exec", flags, dont_inherit=True, optimize=2)
    return _without_lines(code)


def _without_lines(code: CodeType) -> CodeType:
    """Return the code without the numbers of its lines, a quarter of what is sent: a failure is told by its last."""
    # an entry says that so many units of two bytes, of eight at most, have no place in a file
    full, rest = divmod(len(code.co_code) // 2, 8)
    table = b"\xff" * full + (bytes([0xF8 | rest - 1]) if rest else b"")
    constants = (_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=table, co_consts=tuple(constants))
