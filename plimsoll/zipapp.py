"""The one file that a host gets: plimsoll/box as a zipapp, the same bytes for the same sources."""

import ast
import base64
import functools
import importlib.util
import io
import marshal
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = "/usr/local/lib/plimsoll/plimsoll.pyz"
MAIN = "import sys\nfrom plimsoll.box.cli import main\n\nsys.exit(main())\n"
_PYTHON = "sys.version_info<(3,11) and sys.exit('plimsoll needs Python 3.11 or later on the host')"
_BOOTSTRAP = (
    f"import base64,os,sys;{_PYTHON};"
    "z=base64.b64decode(sys.stdin.readline());"
    "f=os.memfd_create('plimsoll');os.write(f,z);"
    "sys.path.insert(0,f'/proc/self/fd/{f}');"
    "from plimsoll.box.cli import main;"
    "sys.exit(main(sys.argv[1:],program=z))"
)
"""Runs the program from memory: an audit writes nothing on the host, and a first deploy finds nothing there.

The program comes on standard input. As an argument sudo would log it, 500 kB of it for five reads.
"""
_READER = (
    f"import base64,os,sys;{_PYTHON};"
    "l=sys.stdin.readline();"
    "l[:3]=='UEs' or sys.exit(1);"
    "f=os.memfd_create('plimsoll');os.write(f,base64.b64decode(l));"
    "sys.path.insert(0,f'/proc/self/fd/{f}');"
    "from plimsoll.box.answer import main;"
    "sys.exit(main())"
)
"""The same for reading alone, without a command line.

It says nothing where the program (base64 of `PK`) is not there any more: an attempt before it took it and failed, and
has said why.
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def build() -> bytes:
    """Return the zipapp; deterministic, so that a host with the same version needs no copy."""
    return _archive({name: text.encode() for name, text in _contents().items()})


@functools.cache
def reader() -> str:
    """Return what an audit sends as the first line: the modules that reading needs, and each compiled as well.

    A host with this machine's version of Python takes the compiled ones, and needs 0.12 s of processor time instead
    of 0.19 s; any other finds that they are not for it, and compiles the sources.
    """
    sources = _needed("plimsoll.box.answer", _contents())
    files = {name: text.encode() for name, text in sources.items()}
    compiled = {f"{name}c": _compiled(name, text) for name, text in sources.items()}
    return base64.b64encode(_archive({**files, **compiled})).decode()


def read_from_memory() -> str:
    """Return the shell command that runs `reader()`, which it finds as the first line of its standard input."""
    # without site packages and their hooks, which a program of the standard library does not need
    return shlex.join(["python3", "-I", "-S", "-c", _READER])


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def _needed(module: str, contents: Mapping[str, str]) -> dict[str, str]:
    """Return the file of a module and those of all that it imports, and the packages that they are in."""
    found = {name: text for name, text in contents.items() if name.endswith("/__init__.py")}
    waiting = [module]
    while waiting:
        name = f"{waiting.pop().replace('.', '/')}.py"
        if name in contents and name not in found:
            found[name] = contents[name]
            waiting += _imports(contents[name])
    return found


def _imports(source: str) -> list[str]:
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module]
    return [name for s in statements for name in (str(s.module), *(f"{s.module}.{alias.name}" for alias in s.names))]


def _compiled(name: str, source: str) -> bytes:
    """Return a .pyc that is never checked against a source file (PEP 552: flags 1, no hash)."""
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def _contents() -> dict[str, str]:
    files = sorted((PACKAGE / "box").rglob("*.py"))
    sources = {f"plimsoll/{path.relative_to(PACKAGE)}": path.read_text(encoding="utf-8") for path in files}
    return {"__main__.py": MAIN, "plimsoll/__init__.py": "", **sources}


def from_memory(*arguments: str) -> str:
    """Return the shell command that runs the program that it is given as the first line of its standard input."""
    return shlex.join(["python3", "-I", "-c", _BOOTSTRAP, *arguments])


def first_line() -> str:
    """Return the program as that line."""
    return base64.b64encode(build()).decode()


def installed(*arguments: str) -> str:
    """Return the shell command that runs the program that a host already has."""
    return shlex.join(["/usr/local/bin/plimsoll", *arguments])
