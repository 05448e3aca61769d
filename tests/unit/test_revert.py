"""Everything back as it was."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.box import apply, ledger, revert
from plimsoll.box.model import PLAN_SCHEMA
from tests.unit.builders import FakeHost, names_in, tree, write_tree


def _plan(paths: list[str], actions: list[list[str]], layer: str = "kernel") -> dict[str, Any]:
    wanted = [{"path": p, "mode": "0644", "after": ["daemon-reload"], "content": f"{layer}\n"} for p in paths]
    return {"schema": PLAN_SCHEMA, "layer": layer, "files": wanted, "actions": actions}


def _machine(root: Path) -> FakeHost:
    write_tree(root, {"/proc/sys/kernel/panic": "0\n", "/sys/fs/cgroup/x/cpu.weight": "100\n", "/etc/theirs": "old\n"})
    (root / "etc/theirs").chmod(0o640)
    (root / "etc/link").symlink_to("theirs")
    units = {
        "on.service": {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"},
        "off.service": {"LoadState": "loaded", "UnitFileState": "disabled", "ActiveState": "inactive"},
    }
    return FakeHost(root=str(root), units=units)


def _without_traces(root: Path) -> dict[str, tuple[str, str]]:
    """Return the tree without /run and /var, which hold nothing that was there before."""
    kept = {path: value for path, value in tree(root).items() if path.split("/")[0] not in ("run", "var")}
    values = {
        p: (m, bytes.fromhex(v).strip().hex())
        for p, (m, v) in kept.items()
        if p.startswith(("proc", "sys")) and v != "directory"
    }
    return kept | values


EVERYTHING = _plan(
    ["/etc/theirs", "/etc/link", "/etc/new", "/etc/deep/down/new"],
    [
        ["sysctl", "kernel.panic", "20"],
        ["cgroup", "/sys/fs/cgroup/x/cpu.weight", "1000"],
        ["stop", "on.service"],
        ["mask", "on.service"],
        ["enable", "off.service"],
        ["start", "off.service"],
    ],
)


def test_apply_and_revert_is_nothing(tmp_path: Path) -> None:
    """Content, modes, links, directories, kernel values and units are as before, and the ledger is gone."""
    host = _machine(tmp_path)
    before, units = _without_traces(tmp_path), {name: dict(unit) for name, unit in host.units.items()}
    list(apply.apply(EVERYTHING, host))
    assert _without_traces(tmp_path) != before
    preview = revert.preview(host, None)
    assert list(revert.revert(host, None)) == preview
    assert _without_traces(tmp_path) == before
    assert host.units == units
    assert ledger.load(host) == []


def test_a_preview_changes_nothing(tmp_path: Path) -> None:
    """Saying what would be put back touches no file and runs no command but questions."""
    host = _machine(tmp_path)
    list(apply.apply(EVERYTHING, host))
    before = tree(tmp_path)
    host.calls.clear()
    assert revert.preview(host, None)
    assert tree(tmp_path) == before
    assert all(call[:2] == ("systemctl", "show") for call in host.calls)


def test_twice_is_once(tmp_path: Path) -> None:
    """A second revert finds nothing to do and runs nothing."""
    host = _machine(tmp_path)
    list(apply.apply(EVERYTHING, host))
    list(revert.revert(host, None))
    host.calls.clear()
    assert list(revert.revert(host, None)) == []
    assert host.calls == []


def test_their_change_is_kept(tmp_path: Path) -> None:
    """A file that somebody changed after us stays, is said, and keeps its entry as far as it holds old content."""
    host = _machine(tmp_path)
    list(apply.apply(EVERYTHING, host))
    write_tree(tmp_path, {"/etc/theirs": "changed by hand\n", "/etc/new": "changed by hand\n"})
    outcomes = dict.fromkeys(line for outcome, line in revert.revert(host, None) if outcome == "kept")
    assert len(outcomes) == 2
    assert (tmp_path / "etc/theirs").read_text() == "changed by hand\n"
    assert (tmp_path / "etc/new").read_text() == "changed by hand\n"
    assert [e["key"] for e in ledger.load(host)] == ["/etc/theirs"]


def test_directory_with_files_of_others_is_left(tmp_path: Path) -> None:
    """A directory that we made goes only if nobody has put anything there."""
    host = _machine(tmp_path)
    list(apply.apply(EVERYTHING, host))
    write_tree(tmp_path, {"/etc/deep/theirs": ""})
    list(revert.revert(host, None))
    assert names_in(tmp_path / "etc/deep") == ["theirs"]


def test_one_layer(tmp_path: Path) -> None:
    """Reverting a layer leaves the others and their entries."""
    host = _machine(tmp_path)
    list(apply.apply(_plan(["/etc/a"], [], "kernel"), host))
    list(apply.apply(_plan(["/etc/b"], [], "slices"), host))
    list(revert.revert(host, "kernel"))
    assert (tmp_path / "etc/b").exists()
    assert not (tmp_path / "etc/a").exists()
    assert [e["key"] for e in ledger.load(host)] == ["/etc/b"]


def test_what_fails_stays_and_so_does_the_program(tmp_path: Path) -> None:
    """An entry that could not be put back stays in the ledger, with the program, for another try."""
    host = _machine(tmp_path)
    list(apply.apply(_plan(["/opt/program"], [], "box"), host))
    list(apply.apply(_plan([], [["stop", "on.service"]], "trims"), host))
    host.failing[("systemctl", "start")] = "Job failed."
    outcomes = list(revert.revert(host, None))
    assert ("failed", "on.service: enabled, active: systemctl start -- on.service: Job failed.") in outcomes
    assert outcomes[-1][0] == "kept"
    assert (tmp_path / "opt/program").exists()
    host.failing.clear()
    assert {outcome for outcome, _line in revert.revert(host, None)} == {"done"}
    assert not (tmp_path / "opt").exists()
    assert host.units["on.service"]["ActiveState"] == "active"


def test_cut_off_before_anything_was_written(tmp_path: Path) -> None:
    """A ledger that is ahead of the change reverts to what is there already."""
    host = _machine(tmp_path)
    before = _without_traces(tmp_path)
    (tmp_path / "etc/dir").mkdir()
    with pytest.raises(IsADirectoryError):
        list(apply.apply(_plan(["/etc/theirs", "/etc/new", "/etc/dir"], []), host))
    (tmp_path / "etc/dir").rmdir()
    assert [o for o, _line in revert.revert(host, None) if o == "failed"] == []
    assert _without_traces(tmp_path) == before


def test_directories_shared_by_layers(tmp_path: Path) -> None:
    """A directory that one layer made and another still uses goes with the last of them."""
    host = _machine(tmp_path)
    before = _without_traces(tmp_path)
    list(apply.apply(_plan(["/etc/d/a"], [], "kernel"), host))
    list(apply.apply(_plan(["/etc/d/b"], [], "slices"), host))
    for layer in ("kernel", "slices", None):
        list(revert.revert(host, layer))
    assert _without_traces(tmp_path) == before


_PATHS = st.sampled_from(["/etc/a", "/etc/b", "/etc/d/a", "/etc/d/e/f", "/usr/local/x"])
_LAYERS = st.sampled_from(["kernel", "slices", "journald"])
_ACTIONS = st.sampled_from(
    [["sysctl", "kernel.panic", "9"], ["stop", "on.service"], ["enable", "off.service"], ["mask", "off.service"]]
)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(_PATHS, st.sampled_from(["", "theirs\n"]), max_size=4),
    st.lists(st.tuples(_LAYERS, st.lists(_PATHS, unique=True, max_size=3), st.lists(_ACTIONS, max_size=3)), max_size=4),
    st.permutations(["kernel", "slices", "journald"]),
)
def test_any_plans_can_be_taken_back(
    theirs: dict[str, str], plans: list[tuple[str, list[str], list[list[str]]]], order: list[str]
) -> None:
    """Whatever plans were carried out, reverting their layers one by one, in any order, leaves the tree as it was."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        host = _machine(root)
        write_tree(root, theirs)
        before, units = _without_traces(root), {name: dict(unit) for name, unit in host.units.items()}
        for layer, paths, steps in plans:
            list(apply.apply(_plan(paths, steps, layer), host))
        for layer in order:
            assert {outcome for outcome, _line in revert.revert(host, layer)} <= {"done", "kept"}
        list(revert.revert(host, None))
        assert _without_traces(root) == before
        assert host.units == units
