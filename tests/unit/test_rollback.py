"""The way back that fires by itself: armed on disk, replaced, disarmed."""

from pathlib import Path

import pytest

from plimsoll.box import rollback
from plimsoll.box.actions import ActionError
from plimsoll.box.resolve import parse_ini
from tests.unit.builders import FakeHost, file, tree, write_tree


def _values(root: Path, path: str) -> dict[str, str]:
    return {a.key: a.value for a in parse_ini(file(path, (root / path[1:]).read_text()))}


def test_armed_is_on_disk(tmp_path: Path) -> None:
    """Armed, it fires after the delay and at every boot until somebody disarms it."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    host = FakeHost(root=str(tmp_path))
    rollback.arm(host, "sshd", 180)
    assert rollback.is_armed(host)
    assert _values(tmp_path, rollback.SERVICE)["ExecStart"] == "/usr/local/bin/plimsoll rollback fire --layer sshd"
    assert _values(tmp_path, rollback.TIMER)["OnActiveSec"] == "180s"
    assert (tmp_path / rollback.WANTED_BY[1:]).readlink() == Path(rollback.SERVICE)
    assert host.calls[-2:] == [("systemctl", "daemon-reload"), ("systemctl", "restart", f"{rollback.NAME}.timer")]


@pytest.mark.parametrize(("stale", "reloaded"), [("no", False), ("yes", True)])
def test_systemd_is_reloaded_only_for_units_it_has_older(tmp_path: Path, stale: str, *, reloaded: bool) -> None:
    """A unit that systemd has read as it is on disk needs no reload, which takes seconds on a slow host."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    known = {"LoadState": "loaded", "NeedDaemonReload": stale}
    host = FakeHost(root=str(tmp_path), units={f"{rollback.NAME}.{kind}": known for kind in ("timer", "service")})
    rollback.arm(host, "sshd", 180)
    assert (("systemctl", "daemon-reload") in host.calls) is reloaded


def test_disarmed_is_as_before(tmp_path: Path) -> None:
    """Disarming stops the timer and takes every file away; doing so again does nothing."""
    (tmp_path / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    host = FakeHost(root=str(tmp_path))
    before = tree(tmp_path)
    rollback.arm(host, "sshd", 180)
    rollback.arm(host, "sshd", 20)
    assert rollback.disarm(host) == "disarmed"
    assert tree(tmp_path) == before
    assert ("systemctl", "stop", f"{rollback.NAME}.timer") in host.calls
    host.calls.clear()
    assert rollback.disarm(host) == "nothing was armed"
    assert host.calls == []


@pytest.mark.parametrize("part", [rollback.SERVICE, rollback.TIMER, rollback.WANTED_BY])
def test_a_part_counts_as_armed(tmp_path: Path, part: str) -> None:
    """What a run that was cut off has left of it is found, and taken away."""
    write_tree(tmp_path, {part: ""})
    (tmp_path / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    host = FakeHost(root=str(tmp_path))
    assert rollback.is_armed(host)
    rollback.disarm(host)
    assert not rollback.is_armed(host)


def test_a_timer_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """Without its timer the way back is not armed, and nothing may be changed on the strength of it."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    host = FakeHost(root=str(tmp_path), failing={("systemctl", "restart"): "Unit not found."})
    with pytest.raises(ActionError, match="Unit not found"):
        rollback.arm(host, "sshd", 180)
