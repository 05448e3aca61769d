"""Models in an inventory: merged over its levels, and one message with a line for whatever the box would refuse."""

from pathlib import Path
from typing import Any

import pytest

from plimsoll import inventory
from plimsoll.box.serve import keys
from plimsoll.inventory import InventoryError
from plimsoll.policy import Policy

BASE = """\
defaults:
  models:
    qwen:
      run: {command: [/opt/vllm, serve, /m], environment: {A: "1"}}
      ready: {url: "http://127.0.0.1:8000/v1/models", model_id: qwen}
hosts:
  a:
    policy:
"""
GIVEN: dict[str, dict[str, Any]] = {
    "run": {"command": ["/opt/vllm", "serve", "/m"], "environment": {"A": "1"}},
    "ready": {"url": "http://127.0.0.1:8000/v1/models", "model_id": "qwen"},
}


def _load(directory: Path, text: str) -> inventory.Inventory:
    file = directory / "hosts.yml"
    file.write_text(text)
    return inventory.load(file)


def test_a_policy_has_no_models() -> None:
    """By default nothing is run and nobody may start anything."""
    assert (Policy().documents(), Policy().serve.operators) == ({}, ())


def test_levels_are_merged_key_by_key(tmp_path: Path) -> None:
    """A host changes one key of a model and keeps the others; an empty section changes nothing."""
    changed = ["models:", "  qwen:", "    need: {gib: 90}", "    kill:", "    run: {port: 81}"]
    found = _load(tmp_path, BASE + "".join(f"      {line}\n" for line in changed))
    assert found.defaults.documents() == {"qwen": GIVEN}
    here = found.hosts["a"].policy.documents()["qwen"]
    assert here == {**GIVEN, "need": {"gib": 90}, "run": {**GIVEN["run"], "port": 81}}


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ("models: {qwen: {need: {gib: soon}}}", 9,
         "hosts.a.policy.models.qwen.need.gib: 'soon' is not a number from 0.01 to 65536"),
        ("models: {qwen: {need: {gib: null}}}", 9,
         "hosts.a.policy.models.qwen.need.gib: null is no value for it: leave the key out"),
        ("models: {qwen: {ned: {gib: 90}}}", 9,
         "unknown key 'ned' in hosts.a.policy.models.qwen; did you mean 'need'?"),
        ("models:\n        qwen:\n          need:\n            gb: 90", 12,
         "unknown key 'gb' in hosts.a.policy.models.qwen.need; did you mean 'gib'?"),
        ("models: {Qwen: {}}", 9,
         ("hosts.a.policy.models.Qwen: 'Qwen' is not the name of a model: small letters, digits, and . _ - between "
          "them")),
        ("models: {qwen: 3}", 9, "hosts.a.policy.models.qwen: must be a mapping (key: value), not 3"),
        ("models: [qwen]", 9, "hosts.a.policy.models: must be a mapping (key: value), not ['qwen']"),
        ('models: {qwen: {hooks: {ended: ["/x", "\\ud800"]}}}', 9,
         "hosts.a.policy.models.qwen.hooks.ended: holds half of a pair of surrogates, which is no character"),
        ("models:\n        qwen:\n          fallback: {model: qwem}", 11,
         "models.qwen: fallback.model: there is no model qwem; did you mean 'qwen'? (policy of a)"),
        ("models: {qwen: {fallback: {model: qwen}}}", 9,
         "models.qwen: fallback.model: qwen -> qwen is a circle; take one of them out (policy of a)"),
        ("models: {other: {run: {unit: a.service}}}", 9,
         "models.other: ready.url is missing: without it nobody can tell when the model is ready (policy of a)"),
        ("models: {qwen: {run: {unit: a.service}}}", 4,
         "models.qwen: run.unit and run.command exclude each other: a model runs in one way (policy of a)"),
        ("models:\n        qwen:\n          kill: {oom_score_adj: -1000}", 11,
         ("models.qwen: kill.oom_score_adj: -1000 makes the kernel shoot everything else instead; take -999 or more, "
          "or add kill.force = true (policy of a)")),
        ("serve: {operators: [Engines]}", 9, "hosts.a.policy.serve.operators.0: 'Engines' is no name of a group"),
        ("serve: {operator: [engines]}", 9,
         "unknown key 'operator' in hosts.a.policy.serve; did you mean 'operators'?"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, lines: str, line: int, message: str) -> None:
    """What the box would refuse is refused before anything is connected to, with the line that is to be mended."""
    with pytest.raises(InventoryError) as raised:
        _load(tmp_path, f"{BASE}      {lines}\n")
    assert (raised.value.line, raised.value.message) == (line, message)


def test_a_mistake_in_the_defaults_is_told_there(tmp_path: Path) -> None:
    """A model that no host has changed is told with the line of the level that it stands in."""
    with pytest.raises(InventoryError) as raised:
        _load(tmp_path, "defaults:\n  models:\n    qwen:\n      run: {unit: a.service}\nhosts: {a: }\n")
    assert raised.value.line == 3


@pytest.mark.parametrize("section", keys.BY_SECTION)
def test_the_boxs_keys_are_the_inventorys(section: str) -> None:
    """Each section of the box's files is one of the policy's, with the same keys."""
    schema = Policy.model_json_schema()
    properties = schema["$defs"][f"Served{section.capitalize()}"]["properties"]
    assert list(properties) == list(keys.BY_SECTION[section])
