"""The program that an audit sends to a host to be run from memory: what reading a state needs, made to start at once.

It comes on standard input. As an argument sudo would log it.
"""

from __future__ import annotations
import __future__

import base64
import functools
import importlib
import marshal
import re
import shlex
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from plimsoll.fleet.on_host import PATTERNS, STAND_INS
from plimsoll.zipapp import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HERE = Path(__file__).parent
_FIRST = "on_host"
_ANSWER = "plimsoll.box.answer"
_TYPING = "class Any: pass\nTYPE_CHECKING = False\n"
_SIGNAL = "from _signal import *\n"
_IN_THEIR_PLACE = (
    _TYPING,
    (_HERE / "light_dataclasses.py").read_text("utf-8"),
    (_HERE / "light_enum.py").read_text("utf-8"),
    # the numbers, without the sets of names that are made of them
    _SIGNAL,
    (_HERE / "light_re.py").read_text("utf-8"),
)
_STAND_INS = dict(zip(STAND_INS, _IN_THEIR_PLACE, strict=True))
"""In place of modules of the standard library, until all of ours are loaded: these may import no other name from
typing, and what needs the real ones (tomllib does) only in the function that uses it."""
_BESIDE = ("json.decoder", "json.encoder", "json.scanner", "shlex")
"""What the box imports there of the standard library and has patterns of its own."""
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
    ready = {**compiled, PATTERNS: _patterns([name for name in modules if name.startswith("plimsoll.")])}
    return " ".join((_WORD, sys.implementation.cache_tag, _packed(ready), _packed(modules)))


def _patterns(names: Iterable[str]) -> dict[tuple[str | bytes, int], tuple[object, ...]]:
    """Return what the patterns of these modules come to, for `light_re`: by pattern and flags."""
    known = [importlib.import_module(name) for name in (*names, *_BESIDE)]
    values = [value for module in known for value in vars(module).values()]
    # a method that a module has taken off its pattern knows whose it is
    owners = [getattr(value, "__self__", value) for value in values]
    found = (value for value in owners if isinstance(value, re.Pattern))
    return {(p.pattern, _given_flags(p)): _parts(p) for p in found}


def _given_flags(pattern: re.Pattern[Any]) -> int:
    """Return the flags that a pattern was compiled with: of a text's the kind of its letters is understood."""
    return pattern.flags & ~int(re.UNICODE if isinstance(pattern.pattern, str) else 0)


def _parts(pattern: re.Pattern[Any]) -> tuple[object, ...]:
    """Return what `_sre.compile` takes after the pattern itself, as `re` gives it: the same in all of one version."""
    compiler: Any = importlib.import_module("re._compiler")
    parsed: Any = importlib.import_module("re._parser").parse(pattern.pattern, _given_flags(pattern))
    names = {number: name for name, number in pattern.groupindex.items()}
    by_number = tuple(names.get(number) for number in range(pattern.groups + 1))
    code = [int(each) for each in compiler._code(parsed, _given_flags(pattern))]  # noqa: SLF001  # nothing public makes it
    return pattern.flags, code, pattern.groups, dict(pattern.groupindex), by_number


def _packed(modules: dict[str, Any]) -> str:
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
