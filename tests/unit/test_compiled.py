"""What is kept of the program in compiled form: used where it fits, and never in the way."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plimsoll import zipapp
from plimsoll.box import actions, compiled
from plimsoll.box.host import Host, Ran
from plimsoll.box.model import PROGRAM
from tests.unit.builders import FakeHost, write_tree

FROM_KEPT = b"import 'plimsoll.box.cli' # <zipimporter object \"/proc/self/fd/"


def _program(directory: Path, **changed: bytes) -> Path:
    """Write a small program, whose only command says hello, and return its path."""
    modules = {
        "plimsoll/__init__.py": b"",
        "plimsoll/box/__init__.py": b"",
        "plimsoll/box/cli.py": b"def main():\n    print('hello')\n    return 0\n",
        **{f"plimsoll/box/{name}.py": source for name, source in changed.items()},
    }
    path = directory / "program.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in {"__main__.py": compiled.main_module(modules).encode(), **modules}.items():
            archive.writestr(name, source)
    return path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program that keeps what is compiled of it below the test's own directory."""
    monkeypatch.setattr(compiled, "DIRECTORY", str(tmp_path / "cache"))
    path = _program(tmp_path)
    monkeypatch.setattr(compiled, "PROGRAM", str(path))
    return path


def _run(program: Path) -> tuple[bytes, bool]:
    """Return what it prints, and whether its modules came from what is kept."""
    ran = subprocess.run([sys.executable, "-I", "-v", str(program)], capture_output=True, timeout=60, check=True)
    return ran.stdout, FROM_KEPT in ran.stderr


def _kept(program: Path) -> list[Path]:
    return sorted((program.parent / "cache").iterdir())


def test_what_is_kept_is_used(program: Path) -> None:
    """The program says the same without and with it; with it, nothing is compiled at its start."""
    assert _run(program) == (b"hello\n", False)
    assert compiled.keep(Host()).startswith("wrote ")
    assert _run(program) == (b"hello\n", True)
    (kept,) = _kept(program)
    assert kept.name.startswith(f"{sys.implementation.cache_tag}-")
    assert kept.stat().st_mode & 0o777 == 0o644
    with zipfile.ZipFile(kept) as archive:
        assert {name.rpartition(".")[2] for name in archive.namelist()} == {"pyc"}


def test_it_is_never_of_another_program(program: Path) -> None:
    """A program whose sources are others runs from its own; once its own is kept, the other one is gone."""
    compiled.keep(Host())
    (old,) = _kept(program)
    _program(program.parent, cli=b"def main():\n    print('other')\n    return 0\n")
    assert _run(program) == (b"other\n", False)
    compiled.keep(Host())
    assert _run(program) == (b"other\n", True)
    assert old not in _kept(program)
    assert len(_kept(program)) == 1


def test_it_is_made_once(program: Path) -> None:
    """What is there and whole is left as it is; what was damaged is made anew, and is in nobody's way until then."""
    compiled.keep(Host())
    (kept,) = _kept(program)
    whole, made_ns = kept.read_bytes(), kept.stat().st_mtime_ns
    assert compiled.keep(Host()).endswith(" is there")
    assert kept.stat().st_mtime_ns == made_ns
    kept.write_bytes(whole[:-30])
    assert _run(program) == (b"hello\n", False)
    kept.write_bytes(whole.replace(b"hello", b"hullo"))
    assert compiled.keep(Host()).startswith("wrote ")
    assert kept.read_bytes() == whole


def test_a_program_goes_on_when_it_is_replaced(program: Path) -> None:
    """A running program has what it began with, also of modules that it imports only later."""
    waits = b"import sys\ndef main():\n    sys.stdin.readline()\n"
    late = waits + b"    from plimsoll.box import late\n    return late.CODE\n"
    _program(program.parent, cli=late, late=b"CODE = 7\n")
    compiled.keep(Host())
    argv = [sys.executable, "-I", "-v", str(program)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        while not running.stderr.readline().startswith(FROM_KEPT):
            pass
        _program(program.parent, cli=late, late=b"CODE = 8\n")
        compiled.keep(Host())
        running.communicate(b"\n", timeout=30)
        assert running.returncode == 7


def test_nothing_is_left(program: Path) -> None:
    """Forgotten, it leaves no file and no directory; a second time there is nothing to do."""
    compiled.keep(Host())
    compiled.forget(Host())
    assert not (program.parent / "cache").exists()
    compiled.forget(Host())


# --- as an action of a deploy and of a revert -------------------------------------------------------

PRECOMPILE = actions.ACTIONS["precompile"]


def test_the_installed_program_is_compiled_by_its_own_python(tmp_path: Path) -> None:
    """The action has the Python that runs the program do it, and nothing has to be put back of it."""
    host = FakeHost(root=str(tmp_path))
    write_tree(tmp_path, {PROGRAM: "a program"})
    PRECOMPILE.perform(host)
    assert host.calls == [("/usr/bin/python3", "-I", PROGRAM, "precompile")]
    assert PRECOMPILE.observe(host) == []


def test_without_a_program_nothing_is_kept(tmp_path: Path) -> None:
    """After a revert has removed the program, what was compiled of it goes too."""
    write_tree(tmp_path, {f"{compiled.DIRECTORY}/cpython-311-x.zip": "kept"})
    host = FakeHost(root=str(tmp_path))
    assert PRECOMPILE.perform(host) == f"removed {compiled.DIRECTORY}"
    assert not (tmp_path / compiled.DIRECTORY.lstrip("/")).exists()
    assert host.calls == []


def test_a_host_that_cannot_keep_it_is_deployed_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the time at the start, and not the deploy; it is said."""
    write_tree(tmp_path, {PROGRAM: "a program"})
    monkeypatch.setattr(Host, "run", lambda *_words, **_options: Ran(1, "", "No space left on device"))
    said = PRECOMPILE.perform(Host(str(tmp_path)))
    assert "starts slower" in said
    assert "No space left" in said


def test_the_shipped_program_finds_what_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole program, made and kept as a deploy does, runs a command from what is kept."""
    monkeypatch.setattr(compiled, "DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "PROGRAM", str(tmp_path / "plimsoll.pyz"))
    (tmp_path / "plimsoll.pyz").write_bytes(zipapp.build.__wrapped__())
    compiled.keep(Host())
    argv = [sys.executable, "-I", "-v", str(tmp_path / "plimsoll.pyz"), "fly"]
    ran = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 4
    assert FROM_KEPT in ran.stderr
