"""The one file that a host gets: the standard library and itself, the same bytes every time."""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import plimsoll
from plimsoll import zipapp

SOURCES = sorted((zipapp.PACKAGE / "box").rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_box_imports_only_the_standard_library_and_itself(source: Path) -> None:
    """Whatever a module of the box imports, anywhere in it, comes with Python or is in the same file."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module != "plimsoll" or {alias.name for alias in node.names} <= {"__version__", "box"}
            names.add(node.module or "")
    foreign = {n for n in names if n.partition(".")[0] not in sys.stdlib_module_names}
    # the package itself, which is in the file, for its version
    assert all(name in ("plimsoll", "plimsoll.box") or name.startswith("plimsoll.box.") for name in foreign)


def test_same_sources_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another directory, with other time stamps, it is the same file: a second deploy sends nothing."""
    built: list[bytes] = []
    for copy in (tmp_path / "one", tmp_path / "two"):
        shutil.copytree(zipapp.PACKAGE / "box", copy / "box")
        shutil.copy(zipapp.PACKAGE / "__init__.py", copy)
        for source in copy.rglob("*.py"):
            os.utime(source, (len(built), len(built)))
        monkeypatch.setattr(zipapp, "PACKAGE", copy)
        built.append(zipapp.build.__wrapped__())
    assert built[0] == built[1]


def test_it_holds_the_box_and_nothing_else(tmp_path: Path) -> None:
    """All modules of the box are in it, and none of the operator's."""
    (tmp_path / "p").write_bytes(zipapp.build())
    with zipfile.ZipFile(tmp_path / "p") as archive:
        names = set(archive.namelist())
    expected = {f"plimsoll/{source.relative_to(zipapp.PACKAGE)}" for source in SOURCES}
    assert names == expected | {"__main__.py", "plimsoll/__init__.py"}


def _run(*argv: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, input=given, capture_output=True, cwd="/", timeout=60, check=False)


def test_it_runs_alone(tmp_path: Path) -> None:
    """Python in isolated mode runs it from its file, with no package installed and no checkout in reach."""
    program = tmp_path / "plimsoll.pyz"
    program.write_bytes(zipapp.build())
    ran = _run(sys.executable, "-I", "-S", str(program), "state")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["schema"].startswith("plimsoll.state/")
    assert _run(sys.executable, "-I", "-S", str(program), "fly").returncode == 4


def test_it_says_its_version(tmp_path: Path) -> None:
    """The program that a host gets says the version of the checkout that it was made from, and needs no command."""
    program = tmp_path / "plimsoll.pyz"
    program.write_bytes(zipapp.build())
    ran = _run(sys.executable, "-I", "-S", str(program), "--version")
    assert (ran.returncode, ran.stdout.decode(), ran.stderr) == (0, f"plimsoll, version {plimsoll.__version__}\n", b"")


def test_it_runs_from_memory() -> None:
    """The command that needs no file on the host takes the program from its input, and then its own input."""
    argv = shlex.split(zipapp.from_memory("state"))
    ran = _run(sys.executable, *argv[1:], given=f"{zipapp.first_line()}\n".encode())
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["schema"].startswith("plimsoll.state/")


def test_installed_command_is_quoted() -> None:
    """Arguments of the installed program reach it as they are, whatever they hold."""
    assert shlex.split(zipapp.installed("apply", "a b'; rm x")) == ["/usr/local/bin/plimsoll", "apply", "a b'; rm x"]


def test_the_documented_size() -> None:
    """A box gets less than the megabyte that README.md and docs/how-it-works.md speak of."""
    assert len(zipapp.build()) < 1_000_000
