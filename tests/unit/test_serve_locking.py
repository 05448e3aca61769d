"""The one lock: who has it is named, and who ended without giving it back has given it back."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plimsoll.box.errors import REFUSED
from plimsoll.box.host import Host
from plimsoll.box.serve import locking

HOLD = """
import sys, time
from plimsoll.box.host import Host
from plimsoll.box.serve import locking
with locking.exclusively(Host(sys.argv[1]), "plimsoll serve start qwen"):
    print("held", flush=True)
    time.sleep(60)
"""


def holding(root: Path) -> "subprocess.Popen[str]":
    """Have another process hold the lock."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_one_is_told_who_is_at_work(tmp_path: Path) -> None:
    """He is refused with 75, and told the command, the process and since when."""
    holder = holding(tmp_path)
    try:
        pattern = rf"plimsoll serve start qwen \(pid {holder.pid}\) has been at work for \d+ s"
        with pytest.raises(locking.BusyError, match=pattern) as refused, locking.exclusively(Host(str(tmp_path)), "x"):
            pytest.fail("the lock was given twice")
        assert refused.value.exit_code == REFUSED
        seen = locking.holder(Host(str(tmp_path)))
        assert seen is not None
        assert (seen.pid, seen.what) == (holder.pid, "plimsoll serve start qwen")
    finally:
        holder.kill()
        holder.communicate()


def test_the_lock_of_one_who_was_killed_is_free(tmp_path: Path) -> None:
    """SIGKILL gives it back; nobody has to remove a file."""
    holder = holding(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    host = Host(str(tmp_path))
    assert locking.holder(host) is None
    with locking.exclusively(host, "plimsoll serve stop qwen") as actor:
        assert actor.pid == os.getpid()
        said = json.loads((tmp_path / "run/plimsoll/serve.by").read_text())
        assert said["what"] == "plimsoll serve stop qwen"
    assert locking.holder(host) is None


def test_who_may_wait_gets_it_next(tmp_path: Path) -> None:
    """Waiting ends with the holder's end."""
    holder = holding(tmp_path)
    began_s = time.monotonic()
    subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -9 {holder.pid}"]).wait()
    with locking.exclusively(Host(str(tmp_path)), "x", wait=True):
        assert time.monotonic() - began_s >= 0.2
    holder.communicate()


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """What its holder has started, and left running, does not hold it."""
    host = Host(str(tmp_path))
    with locking.exclusively(host, "x"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert locking.holder(host) is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}', "\0" * 10])
def test_a_holder_who_said_nothing_is_a_holder_all_the_same(tmp_path: Path, content: str) -> None:
    """What the file says is for people; whether it is held, the kernel knows."""
    host = Host(str(tmp_path))
    with locking.exclusively(host, "x"):
        (tmp_path / "run/plimsoll/serve.by").write_text(content)
        with pytest.raises(locking.BusyError, match="somebody else"), locking.exclusively(host, "y"):
            pytest.fail("the lock was given twice")


def test_only_root_can_take_it_and_everybody_can_see_who_has(tmp_path: Path) -> None:
    """Whoever may open a file may lock it, and so keep every model from being started."""
    with locking.exclusively(Host(str(tmp_path)), "x"):
        modes = {name: (tmp_path / "run/plimsoll" / name).stat().st_mode & 0o777 for name in ("serve.lock", "serve.by")}
    assert modes == {"serve.lock": 0o600, "serve.by": 0o644}
    assert not (tmp_path / "run/plimsoll/serve.by").exists()
