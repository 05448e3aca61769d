"""The program as this host's Python has compiled it, kept so that every command and the guard start at once.

Python keeps nothing compiled of a zipapp: more than half of what a command took was to compile the same text again.
What is kept is made on the host, by the Python that runs the program, so that the program itself is the same file on
every host. It is found by the version of Python and the hash of the sources, and so is never of another program; where
there is none, or none that can be read, the program runs from its sources.
"""

import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from collections.abc import Iterable, Mapping

from plimsoll.box import files
from plimsoll.box.host import Host
from plimsoll.box.model import PROGRAM

DIRECTORY = "/var/cache/plimsoll"
_UNCHECKED = 1
"""Of a compiled file: by its hash, and not to be compared with a source."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import os
import sys

try:
    # opened once, as the program itself: a deploy may replace both while this one is still being loaded
    kept = os.open("%s/" + sys.implementation.cache_tag + "-%s.zip", os.O_RDONLY | os.O_CLOEXEC)
    sys.path.insert(0, "/proc/self/fd/" + str(kept))
except OSError:
    pass

from plimsoll.box.cli import main

sys.exit(main())
"""


def main_module(modules: Mapping[str, bytes]) -> str:
    """Return the source of `__main__.py` of a program with these modules (path in it -> source)."""
    return _MAIN % (DIRECTORY, _identity(modules))


def keep(host: Host) -> str:
    """Keep the installed program compiled, and nothing of one before it; return what was done. Raises OSError."""
    modules = _modules(host.content(PROGRAM))
    name = f"{sys.implementation.cache_tag}-{_identity(modules)}.zip"
    path = host.path(f"{DIRECTORY}/{name}")
    done = f"{DIRECTORY}/{name} is there"
    if not _is_whole(path):
        files.make_directories(host.path(DIRECTORY))
        files.write_atomically(path, _archive(modules), 0o644)
        done = f"wrote {DIRECTORY}/{name}"
    _remove(host, (other for other in host.names(DIRECTORY) if other != name))
    return done


def forget(host: Host) -> str:
    """Remove what is kept; return what was done. Raises OSError."""
    _remove(host, host.names(DIRECTORY))
    if host.exists(DIRECTORY):
        os.rmdir(host.path(DIRECTORY))
    return f"removed {DIRECTORY}"


def _remove(host: Host, names: Iterable[str]) -> None:
    for name in names:
        os.unlink(host.path(f"{DIRECTORY}/{name}"))


def _modules(program: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "__main__.py"}


def _identity(modules: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, source in sorted(modules.items()):
        digest.update(b"%d %d " % (len(name), len(source)) + name.encode() + source)
    return digest.hexdigest()


def _archive(modules: Mapping[str, bytes]) -> bytes:
    """Return the modules compiled; not compressed, which would take 20 ms to undo at every start."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, source in modules.items():
            archive.writestr(zipfile.ZipInfo(f"{path}c", _EPOCH), _compiled(path, source))
    return buffer.getvalue()


def _compiled(path: str, source: bytes) -> bytes:
    code = compile(source, f"{PROGRAM}/{path}", "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


def _is_whole(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False
