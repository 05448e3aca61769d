"""The ledger is whole, or it is an error and nothing is changed on the strength of it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll.box import ledger, revert
from plimsoll.box.host import Host
from tests.unit.builders import FakeHost, tree

ENTRIES: list[dict[str, Any]] = [
    {"layer": "kernel", "kind": "sysctl", "key": "kernel.panic", "old": "0"},
    {"layer": "kernel", "kind": "file", "key": "/etc/x", "old": {"absent": True}, "ours": ["ab"], "after": []},
]


def _host(root: Path) -> Host:
    return FakeHost(root=str(root))


def test_no_ledger_has_no_entries(tmp_path: Path) -> None:
    """A host that was never touched has nothing recorded."""
    assert ledger.load(_host(tmp_path)) == []
    assert ledger.summary(_host(tmp_path)) == {"sysctls": {}, "files": {}}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Entries come back as they were, from a file that only its owner may read."""
    ledger.save(_host(tmp_path), ENTRIES)
    assert ledger.load(_host(tmp_path)) == ENTRIES
    assert stat.S_IMODE((tmp_path / ledger.PATH[1:]).stat().st_mode) == 0o600
    assert ledger.summary(_host(tmp_path)) == {"sysctls": {"kernel.panic": "0"}, "files": {"/etc/x": "kernel"}}


def test_with_nothing_left_there_is_no_ledger(tmp_path: Path) -> None:
    """A ledger with no entries is taken away, with the directory that was made for it."""
    ledger.save(_host(tmp_path), ENTRIES)
    ledger.save(_host(tmp_path), [])
    assert not (tmp_path / "var/lib/plimsoll").exists()
    ledger.save(_host(tmp_path), [])


def test_find() -> None:
    """An entry is found by kind and key together."""
    assert ledger.find(ENTRIES, "sysctl", "kernel.panic") is ENTRIES[0]
    assert ledger.find(ENTRIES, "file", "kernel.panic") is None


def _sealed(entry: Any) -> str:  # noqa: ANN401  # any JSON in an entry's place
    return json.dumps({"schema": ledger.SCHEMA, "sha256": ledger.digest([entry]), "entries": [entry]})


DAMAGED = [
    "",
    "null",
    "[]",
    "{}",
    '{"schema": "plimsoll.ledger/9", "sha256": "", "entries": []}',
    '{"schema": "plimsoll.ledger/1", "sha256": "", "entries": []}',
    _sealed({**ENTRIES[0], "kind": "moon"}),
    _sealed({"kind": "file"}),
    _sealed("x"),
    "[" * 100_000,
    "\0" * 50,
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_another_form_is_damage(tmp_path: Path, text: str) -> None:
    """A ledger of another form or version is refused with its path and what to do."""
    path = tmp_path / ledger.PATH[1:]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ledger.LedgerError, match=r"ledger\.json: damaged .* nothing was changed"):
        ledger.load(_host(tmp_path))
    assert "damaged" in ledger.summary(_host(tmp_path))["error"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damaged_byte_is_found(tmp_path: Path, data: st.DataObject) -> None:
    """One byte changed, removed or cut off: the content is the same, or it is an error and nothing moves."""
    host = _host(tmp_path)
    ledger.save(host, ENTRIES)
    path = tmp_path / ledger.PATH[1:]
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    ways = {"cut": whole[:position], "removed": whole[:position] + whole[position + 1 :]}
    ways["changed"] = (
        whole[:position] + bytes([whole[position] ^ data.draw(st.integers(1, 255))]) + whole[position + 1 :]
    )
    path.write_bytes(data.draw(st.sampled_from(list(ways.values()))))
    before = tree(tmp_path)
    try:
        # white space between the tokens carries nothing
        assert ledger.load(host) == ENTRIES
    except ledger.LedgerError:
        with pytest.raises(ledger.LedgerError):
            list(revert.revert(host, None))
        with pytest.raises(ledger.LedgerError):
            revert.preview(host, None)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(("text", "expected"), [('{"a": 1}', {"a": 1}), ("[]", None), ("{", None), (None, None)])
def test_json_of_our_own(tmp_path: Path, text: str | None, expected: object) -> None:
    """A file that holds no JSON object is as good as none."""
    if text is not None:
        (tmp_path / "x").write_text(text)
    assert ledger.read_json(_host(tmp_path), "/x") == expected
