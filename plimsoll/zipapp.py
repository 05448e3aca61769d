"""The one file that a host gets: plimsoll/box as a zipapp, the same bytes for the same sources."""

import base64
import functools
import hashlib
import io
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path

from plimsoll.box import compiled

PACKAGE = Path(__file__).resolve().parent
INSTALLED = "/usr/local/lib/plimsoll/plimsoll.pyz"
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
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def build() -> bytes:
    """Return the zipapp; deterministic, so that a host with the same version needs no copy."""
    modules = _modules()
    return _archive({"__main__.py": compiled.main_module(modules).encode(), **modules})


def sha256() -> str:
    """Return the hash of the zipapp, in hexadecimal."""
    return _sha256(build())


@functools.lru_cache(maxsize=2)
def _sha256(program: bytes) -> str:
    return hashlib.sha256(program).hexdigest()


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    # the fastest: every deploy makes it anew, to compare its hash; level 9 takes 60 ms and not 38, for a tenth less
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def _modules() -> dict[str, bytes]:
    # the package's own file says which version it is
    files = [PACKAGE / "__init__.py", *sorted((PACKAGE / "box").rglob("*.py"))]
    return {f"plimsoll/{path.relative_to(PACKAGE)}": path.read_bytes() for path in files}


def from_memory(*arguments: str) -> str:
    """Return the shell command that runs the program that it is given as the first line of its standard input."""
    return shlex.join(["python3", "-I", "-c", _BOOTSTRAP, *arguments])


def first_line() -> str:
    """Return the program as that line."""
    return base64.b64encode(build()).decode()


def installed(*arguments: str) -> str:
    """Return the shell command that runs the program that a host already has."""
    return shlex.join(["/usr/local/bin/plimsoll", *arguments])
