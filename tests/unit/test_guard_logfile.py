"""A file that only grows stays whole, small and the guard's own; a thread that hangs keeps nobody."""

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.guard.logfile import LogFile
from plimsoll.box.guard.worker import Worker
from plimsoll.box.host import Host
from tests.unit.builders import NEEDS_ROOT

WAIT_S = 20.0


def _in_log(tmp_path: Path) -> tuple[Host, Path]:
    path = tmp_path / "var/log/plimsoll/x.log"
    path.parent.parent.mkdir(parents=True)
    return Host(str(tmp_path)), path


def test_a_file_of_its_own(tmp_path: Path) -> None:
    """The file is the guard's alone; lines follow each other, also after it was opened anew."""
    host, path = _in_log(tmp_path)
    for lines in (b"one\n", b"two\nthree\n"):
        file = LogFile(host, "/var/log/plimsoll/x.log", 1000)
        file.append(lines, sync=True)
        file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize("torn", [b"half", b"whole\nhalf", b"\0\0\0\0"])
def test_half_a_line_is_ended(tmp_path: Path, torn: bytes) -> None:
    """What a reset or a full disk left does not spoil the line after it."""
    host, path = _in_log(tmp_path)
    path.parent.mkdir()
    path.write_bytes(torn)
    LogFile(host, "/var/log/plimsoll/x.log", 1000).append(b"next\n")
    assert path.read_bytes() == torn + b"\nnext\n"


def test_a_size_is_kept(tmp_path: Path) -> None:
    """The file and the one before it stay below the size together, and every line is whole in one of them."""
    host, path = _in_log(tmp_path)
    file = LogFile(host, "/var/log/plimsoll/x.log", 200, b"# heading\n")
    for number in range(100):
        file.append(b"line %02d\n" % number)
        assert sum(each.stat().st_size for each in path.parent.iterdir()) <= 200
    assert sorted(each.name for each in path.parent.iterdir()) == ["x.log", "x.log.1"]
    for each in path.parent.iterdir():
        assert each.read_bytes().startswith(b"# heading\nline ")
    kept = path.with_name("x.log.1").read_bytes() + path.read_bytes()
    last = [line for line in kept.split(b"\n") if line.startswith(b"line")]
    assert last == [b"line %02d" % number for number in range(100 - len(last), 100)]


def test_a_line_larger_than_the_file(tmp_path: Path) -> None:
    """A line that is larger than the size is written all the same."""
    host, path = _in_log(tmp_path)
    file = LogFile(host, "/var/log/plimsoll/x.log", 20)
    for _ in range(3):
        file.append(b"x" * 50 + b"\n")
    assert path.read_bytes() == b"x" * 50 + b"\n"


@pytest.mark.parametrize("what", ["file", "directory"])
def test_it_was_taken_away(tmp_path: Path, what: str) -> None:
    """A file or a directory that is gone is made anew."""
    host, path = _in_log(tmp_path)
    file = LogFile(host, "/var/log/plimsoll/x.log", 1000)
    file.append(b"one\n")
    path.unlink()
    if what == "directory":
        path.parent.rmdir()
    file.append(b"two\n")
    assert path.read_bytes() == b"two\n"


def _link_file(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(path.parent.parent / "target")


def _link_directory(path: Path) -> None:
    (path.parent.parent / "elsewhere").mkdir()
    path.parent.symlink_to("elsewhere")


def _open_directory(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)


def _foreign_directory(path: Path) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 1000, 1000)


def _foreign_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    os.chown(path, 1000, 1000)


def _second_name(path: Path) -> None:
    path.parent.mkdir()
    (path.parent.parent / "target").write_text("")
    path.hardlink_to(path.parent.parent / "target")


def _fifo(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)


@NEEDS_ROOT
@pytest.mark.parametrize(
    "prepare",
    [_link_file, _link_directory, _open_directory, _foreign_directory, _foreign_file, _second_name, _fifo],
)
def test_what_others_could_lead_elsewhere(tmp_path: Path, prepare: Any) -> None:  # noqa: ANN401  # one of those above
    """A link, a second name, another user's file or directory is not written to; once it is gone, the file is made."""
    host, path = _in_log(tmp_path)
    prepare(path)
    file = LogFile(host, "/var/log/plimsoll/x.log", 1000)
    with pytest.raises(OSError, match=r"."):
        file.append(b"secret\n")
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and b"secret" in each.read_bytes()]
    if path.parent.is_symlink():
        path.parent.unlink()
    else:
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    file.append(b"secret\n")
    assert path.read_bytes() == b"secret\n"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was written in part is an error, and the next one begins on a line of its own."""
    host, path = _in_log(tmp_path)
    file = LogFile(host, "/var/log/plimsoll/x.log", 1000)
    file.append(b"one\n")
    really_write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: really_write(descriptor, data[:3]))
        with pytest.raises(OSError, match="part"):
            file.append(b"second\n")
    file.append(b"three\n")
    assert path.read_bytes() == b"one\nsec\nthree\n"


# --- a thread with a queue --------------------------------------------------------------------------


def test_a_worker_that_hangs() -> None:
    """Whoever gives a hanging thread something to do goes on; beyond a limit it is dropped and counted."""
    go_on, begun = threading.Event(), threading.Event()
    done: list[int] = []

    def handle(item: int) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        done.append(item)

    worker = Worker[int]("test", handle, limit=3)
    worker.start()
    assert worker.put(0)
    assert begun.wait(WAIT_S)
    assert [worker.put(number) for number in range(1, 6)] == [True, True, True, False, False]
    assert (worker.backlog, worker.take_dropped(), worker.take_dropped()) == (3, 2, 0)
    assert not worker.stop(0.01)
    go_on.set()
    assert worker.stop(WAIT_S)
    assert done == [0, 1, 2, 3]


def test_a_worker_is_idle_when_all_is_done() -> None:
    """It is not while something waits or is being handled, and is again afterwards, also after a failure."""
    may_end, began, over = threading.Event(), threading.Event(), threading.Event()

    def handle(number: int) -> None:
        began.set()
        may_end.wait(WAIT_S)
        if number == 2:
            over.set()
        raise ValueError("no good")

    worker = Worker[int]("test", handle, limit=3)
    seen = [worker.is_idle]
    worker.put(1)
    seen.append(worker.is_idle)
    worker.put(2)
    worker.start()
    assert began.wait(WAIT_S)
    seen.append(worker.is_idle)
    may_end.set()
    assert over.wait(WAIT_S)
    assert worker.stop(WAIT_S)
    assert [*seen, worker.is_idle] == [True, False, False, True]


def test_a_worker_whose_work_fails() -> None:
    """An error is kept to be shown, and the next thing is done."""
    done = []

    def handle(item: int) -> None:
        done.append(1 / item)

    worker = Worker[int]("test", handle, limit=10)
    worker.put(0)
    worker.work_off()
    assert "ZeroDivisionError" in worker.trouble
    worker.put(1)
    worker.work_off()
    assert (worker.trouble, done) == ("", [1.0])
