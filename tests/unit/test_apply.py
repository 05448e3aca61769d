"""Carrying out a plan: all files or none, and nothing before it is recorded."""

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import actions, apply, exclusive, files, ledger
from plimsoll.box.model import PLAN_SCHEMA
from tests.unit.builders import FakeHost, names_in, tree, write_tree


def plan(*paths: str, actions: list[list[str]] | None = None, content: str = "new\n") -> dict[str, Any]:
    """Return a plan that writes `content` to each path."""
    wanted = [{"path": p, "mode": "0644", "after": ["daemon-reload"], "content": content} for p in paths]
    return {"schema": PLAN_SCHEMA, "layer": "kernel", "files": wanted, "actions": actions or []}


def _host(root: Path, **failing: str) -> FakeHost:
    write_tree(root, {"/proc/sys/kernel/panic": "0\n", "/etc/a": "old\n"})
    return FakeHost(root=str(root), failing={("systemctl", verb): text for verb, text in failing.items()})


def test_files_and_actions(tmp_path: Path) -> None:
    """Files are written, then actions follow in their own order, and each is said."""
    host = _host(tmp_path)
    wanted = plan("/etc/a", "/etc/new/b", actions=[["restart", "x.service"], ["sysctl", "kernel.panic", "20"]])
    assert list(apply.apply(wanted, host)) == [
        "wrote /etc/a",
        "wrote /etc/new/b",
        "kernel.panic = 20",
        "systemctl restart x.service",
    ]
    assert (tmp_path / "etc/new/b").read_text() == "new\n"
    assert (tmp_path / "proc/sys/kernel/panic").read_text() == "20"
    assert [(e["kind"], e["key"]) for e in ledger.load(host)] == [
        ("file", "/etc/a"),
        ("directory", "/etc/new"),
        ("file", "/etc/new/b"),
        ("sysctl", "kernel.panic"),
    ]


def test_the_first_value_stays(tmp_path: Path) -> None:
    """A second run adds what it writes to the ledger and never replaces what was there before the first."""
    host = _host(tmp_path)
    for content in ("one", "two"):
        list(apply.apply(plan("/etc/a", actions=[["sysctl", "kernel.panic", content]], content=content), host))
    file, sysctl = ledger.load(host)
    assert sysctl["old"] == "0"
    assert len(file["ours"]) == 2
    assert file["old"]["content"] == "b2xkCg=="


def test_recorded_before_it_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first file is put in place, the ledger already holds everything that the plan will overwrite."""
    host = _host(tmp_path)
    seen: list[int] = []
    put_in_place = files.put_in_place

    def watched(temporary: str, path: str) -> None:
        if "/etc/" in path:
            seen.append(len(ledger.load(host)))
        put_in_place(temporary, path)

    monkeypatch.setattr(files, "put_in_place", watched)
    list(apply.apply(plan("/etc/a", "/etc/b", actions=[["sysctl", "kernel.panic", "20"]]), host))
    assert seen == [3, 3]


def test_all_files_or_none(tmp_path: Path) -> None:
    """If one file of a plan cannot be staged, none is written and nothing but the ledger is there afterwards."""
    host = _host(tmp_path)
    (tmp_path / "etc/dir").mkdir()
    before = tree(tmp_path)
    with pytest.raises(IsADirectoryError):
        list(apply.apply(plan("/etc/a", "/etc/new/b", "/etc/dir"), host))
    after = {path: value for path, value in tree(tmp_path).items() if not path.startswith("var")}
    assert after == before


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({**plan("/etc/a"), "schema": "plimsoll.plan/9"}, "deploy again"),
        (plan("/etc/a", actions=[["fly", "x"]]), "unknown action"),
        (plan("/etc/a", actions=[[]]), "unknown action"),
    ],
)
def test_plan_of_another_version(tmp_path: Path, wanted: dict[str, Any], message: str) -> None:
    """A plan that this version does not understand is refused before anything is touched."""
    host = _host(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(actions.ActionError, match=message):
        list(apply.apply(wanted, host))
    assert tree(tmp_path) == before


def test_damaged_ledger_stops_everything(tmp_path: Path) -> None:
    """Nothing is changed while what was there before is not known."""
    host = _host(tmp_path)
    write_tree(tmp_path, {ledger.PATH: "{}"})
    before = tree(tmp_path)
    with pytest.raises(ledger.LedgerError):
        list(apply.apply(plan("/etc/a"), host))
    assert tree(tmp_path) == before


def test_a_failed_action_is_said(tmp_path: Path) -> None:
    """An action that fails ends the run with its command and its last line."""
    host = _host(tmp_path, restart="Job failed.\nSee journalctl")
    with pytest.raises(actions.ActionError, match="systemctl restart x: See journalctl"):
        list(apply.apply(plan("/etc/a", actions=[["restart", "x"]]), host))


def test_leftovers_are_swept(tmp_path: Path) -> None:
    """Staged files of a run that was cut off are removed by the next one."""
    host = _host(tmp_path)
    list(apply.apply(plan("/etc/a"), host))
    files.stage(f"{tmp_path}/etc/a", b"half", 0o600)
    list(apply.apply(plan("/etc/a"), host))
    assert names_in(tmp_path / "etc") == ["a"]


def test_program_comes_from_the_command_itself(tmp_path: Path) -> None:
    """A file that is the program has no content in the plan: it is what runs."""
    host = _host(tmp_path)
    wanted = plan()
    wanted["files"] = [{"path": "/opt/p", "mode": "0644", "after": [], "program": True}]
    list(apply.apply(wanted, host, b"\x7fZIP"))
    assert (tmp_path / "opt/p").read_bytes() == b"\x7fZIP"


def test_one_at_a_time(tmp_path: Path) -> None:
    """While one run changes the host another is refused, and may go on afterwards."""
    host = _host(tmp_path)
    with (
        exclusive.exclusively(host),
        pytest.raises(exclusive.RefusedError, match="another plimsoll"),
        exclusive.exclusively(host),
    ):
        pytest.fail("two at a time")
    with exclusive.exclusively(host):
        assert (tmp_path / exclusive.LOCK[1:]).exists()


def test_a_host_that_nobody_changes_is_settled(tmp_path: Path) -> None:
    """Nothing is waited for where there was no change, where the last one is long ago, and beyond the limit."""
    host = _host(tmp_path)
    exclusive.settle(host, 60, 60)
    with exclusive.exclusively(host):
        pass
    began_s = time.monotonic()
    exclusive.settle(host, 60, 0.2)
    assert 0.15 < time.monotonic() - began_s < 20
    long_ago_s = time.time() - 61
    os.utime(tmp_path / exclusive.LOCK[1:], (long_ago_s, long_ago_s))
    exclusive.settle(host, 60, 600)


def test_what_is_changed_is_waited_for(tmp_path: Path) -> None:
    """As long as somebody holds the lock, and then until nobody has held it for the time."""
    host = _host(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with exclusive.exclusively(host):
            waiting = pool.submit(exclusive.settle, host, 0.5, 60)
            with pytest.raises(TimeoutError):
                waiting.result(0.8)
            released_s = time.monotonic()
        waiting.result(30)
    assert time.monotonic() - released_s > 0.4


def test_who_only_looks_is_waited_for(tmp_path: Path) -> None:
    """A look holds the lock for a moment, and refuses nobody."""
    host = _host(tmp_path)
    with exclusive.exclusively(host):
        pass
    descriptor = os.open(tmp_path / exclusive.LOCK[1:], os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    looking = threading.Timer(0.2, os.close, (descriptor,))
    looking.start()
    with exclusive.exclusively(host):
        pass
    looking.join()


def test_an_error_of_a_change_is_no_lock(tmp_path: Path) -> None:
    """What cannot fork says so itself."""
    with pytest.raises(BlockingIOError), exclusive.exclusively(_host(tmp_path)):
        raise BlockingIOError
