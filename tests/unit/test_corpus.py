"""The corpus of arrangements is what it claims to be: large, the same in every run, and put to the real programs."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.corpus import compare, kinds, units
from tests.corpus.case import Case

LEAST = {"sysctl": 60, "sshd": 60, "units": 80, "managers": 30}


@pytest.mark.parametrize(("kind", "least"), LEAST.items())
def test_size(kind: str, least: int) -> None:
    """There are enough arrangements of each kind, each with a name of its own."""
    names = [case.name for case in kinds.cases(kind)]
    assert len(names) >= least
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("kind", LEAST)
def test_same_in_every_run(kind: str) -> None:
    """The question that is put to a machine does not change."""
    assert kinds.question(kind) == kinds.question(kind)
    assert len(json.loads(kinds.question(kind))["batches"]) == len(kinds.BATCHES[kind]())


@pytest.mark.parametrize("batch", units.batches(), ids=["first", "second"])
def test_units_of_a_batch_lie_side_by_side(batch: list[Case]) -> None:
    """No file of one arrangement is another's as well, unless both have it with the same content."""
    seen: dict[str, object] = {}
    for case in batch:
        for path, content in case.files.items():
            assert seen.setdefault(path, content) == content, path


def test_after_a_reboot_nothing_in_run_is_shown() -> None:
    """The real program is not shown what a reboot takes away; the resolver is."""
    case = Case("sysctl: x", {"/run/sysctl.d/a.conf": "", "/etc/sysctl.d/a.conf": ""}, {}).after_reboot()
    assert list(case.to_json()["files"]) == ["/etc/sysctl.d/a.conf"]
    assert len(case.files) == 2


ARRANGED = {"/etc/sysctl.d/a.conf": "kernel.panic=1\n", "/run/sysctl.d/a.conf": "kernel.panic=2\n"}


@pytest.mark.parametrize(("value", "count"), [("1", 0), ("2", 1), (None, 1)])
def test_disagreement_is_seen(tmp_path: Path, value: str | None, count: int) -> None:
    """What the program says otherwise than the resolver is one line that names both."""
    found = compare.disagreements(Case("sysctl: x", ARRANGED, {}), {"values": {"kernel/panic": value}}, tmp_path)
    assert len(found) == count
    assert all("'1'" in line and repr(value) in line for line in found)


def test_disagreement_of_a_refusal_is_seen(tmp_path: Path) -> None:
    """An sshd that starts where the resolver says that it does not is a disagreement."""
    case = Case("sshd: x", {"/etc/ssh/sshd_config": "Banner 'x\n"}, {"keys": ["Banner"]})
    (found,) = compare.disagreements(case, {"refused": False, "values": {"banner": ["x"]}}, tmp_path)
    assert "sshd_config:1" in found


def test_own_mounts() -> None:
    """What could do harm to the machine's own files is asked where nobody else sees them."""
    assert kinds.command("sysctl", "/x").startswith("unshare --mount")
    assert kinds.command("units", "/x") == "python3 /x"
