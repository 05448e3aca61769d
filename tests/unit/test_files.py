"""A file is replaced whole, or it stays."""

import os
import stat
from pathlib import Path

import pytest

from plimsoll.box import files
from tests.unit.builders import names_in, tree


def test_content_and_mode(tmp_path: Path) -> None:
    """A file gets its content and exactly its mode, whatever the umask, and nothing is left beside it."""
    path = tmp_path / "x"
    old = os.umask(0o077)
    try:
        files.write_atomically(str(path), b"new", 0o644)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names_in(tmp_path) == ["x"]


def test_a_staged_file_changes_nothing_yet(tmp_path: Path) -> None:
    """Until it is put in place the old file is there, and the new one has a name that no daemon reads."""
    path = tmp_path / "x.conf"
    path.write_text("old")
    temporary = files.stage(str(path), b"new", 0o644)
    assert path.read_text() == "old"
    assert not temporary.endswith(".conf")
    files.put_in_place(temporary, str(path))
    assert path.read_text() == "new"


def test_failed_staging_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full while the file is synced leaves the old file and no temporary one."""
    (tmp_path / "x").write_text("old")
    before = tree(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(str(tmp_path / "x"), b"new", 0o644)
    assert tree(tmp_path) == before


def test_directory_in_the_way(tmp_path: Path) -> None:
    """Where a directory has the file's name nothing is written."""
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomically(str(tmp_path / "x"), b"new", 0o644)
    assert names_in(tmp_path) == ["x"]


def test_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A link of the file's name is replaced; what it points to stays as it is."""
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "x").symlink_to("other")
    files.write_atomically(str(tmp_path / "x"), b"new", 0o644)
    assert (tmp_path / "other").read_text() == "theirs"
    assert not (tmp_path / "x").is_symlink()


def test_missing_directories(tmp_path: Path) -> None:
    """What is missing of a path is made and named, the outermost first."""
    made = files.make_directories(f"{tmp_path}/a/b")
    assert made == [f"{tmp_path}/a", f"{tmp_path}/a/b"]
    assert files.make_directories(f"{tmp_path}/a/b") == []
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o022 == 0


def test_sweep(tmp_path: Path) -> None:
    """Leftovers of a run that was cut off are removed; other files, of other names too, are not."""
    for name in (f".x.abc{files.TEMPORARY_SUFFIX}", f".y.abc{files.TEMPORARY_SUFFIX}", ".x.swp", "x"):
        (tmp_path / name).touch()
    files.sweep(f"{tmp_path}/x")
    assert names_in(tmp_path) == [".x.swp", f".y.abc{files.TEMPORARY_SUFFIX}", "x"]
    files.sweep(f"{tmp_path}/none/x")
