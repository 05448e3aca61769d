"""A file of rules in which YAML or a pattern means something else than its author: one error, with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.fleet.rulebook import load_file
from plimsoll.inventory import InventoryError

TEXTS = dict.fromkeys(("title", "seen", "why", "evidence", "source", "advice"), "x")


def rules(tmp_path: Path, **changes: Any) -> Path:  # noqa: ANN401  # any of a rule's keys
    """Write a file with one rule, a key a line."""
    rule = {"id": "x", "kind": "known_bad", "looks_at": "platform", "dated": "2026-01-01", **TEXTS, **changes}
    lines = [f"    {key}: {value if key == 'when' else json.dumps(value)}\n" for key, value in rule.items()]
    file = tmp_path / "rules.yml"
    file.write_text("rules:\n  - " + "".join(lines).lstrip())
    return file


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("{driver: 580.95}", "driver is text, never 580.95: put it in quotes"),
        ("{kernel: {none_of: ['6.17', 6.18]}}", "kernel is text, never 6.18"),
        ("{open_module: yes}", "open_module is true or false, never 'yes'"),
        ("{kernel: }", "asks nothing"),
        ("{kernel: {}}", "asks nothing"),
        ("{cmdline: {regex: 'a{99999999999999999999}'}}", "is no regular expression"),
        ("{cmdline: {regex: '%s'}}" % ("(" * 5000 + ")" * 5000), "is no regular expression"),
        ("{cmdline: {regex: 'x[[:alpha:]]'}}", "is no regular expression: Possible nested set"),
        ("{driver: {version: '>%s'}}" % ("9" * 200), "must be comparisons"),
        ("{mem_total_kib: %s}" % ("9" * 5000), "is no number"),
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_meant(when: str, message: str, tmp_path: Path) -> None:
    """What would never hold, always hold or break is refused where it stands."""
    with pytest.raises(InventoryError) as caught:
        load_file(rules(tmp_path, when=when))
    assert message in caught.value.message
    assert caught.value.line == 12


def test_a_rule_for_no_kernel(tmp_path: Path) -> None:
    """A rule that applies to neither kernel would never hold."""
    with pytest.raises(InventoryError, match="at least one"):
        load_file(rules(tmp_path, when="{kernel: a}", applies=[]))


@pytest.mark.parametrize("text", ["false", "0", "[]", "''"])
def test_a_file_of_something_else(text: str, tmp_path: Path) -> None:
    """Only a mapping holds rules; an empty value of another kind is not an empty file."""
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(InventoryError, match="must be a mapping"):
        load_file(file)
    file.write_text("")
    assert load_file(file) == []


def test_not_a_number_has_no_order(tmp_path: Path) -> None:
    """A host that says NaN where a number belongs fulfils no comparison."""
    (rule,) = load_file(rules(tmp_path, when="{mem_total_kib: {number: '>=5,<=5'}}"))
    assert rule.holds({"mem_total_kib": 5})
    assert not rule.holds({"mem_total_kib": float("nan")})
