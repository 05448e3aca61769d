"""docs/serve.md says what the programs do: its files are read, its inventory is taken, its tables are complete."""

import json
import re
from pathlib import Path

import pytest

from plimsoll import inventory
from plimsoll.box import cli_serve, errors
from plimsoll.box.host import Host
from plimsoll.box.serve import acting, config, locking
from plimsoll.box.serve.model import Command, Compose, Unit
from plimsoll.controls import docs, models
from tests.unit.test_docs import _fits

PAGE = (docs.DOCS / "serve.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("number", "place"), [*enumerate((Unit, Compose, Command))])
def test_the_examples_are_read(number: int, place: type) -> None:
    """Each example is a file that the box takes, one for each way to run."""
    assert len(_blocks("toml")) == 3
    assert isinstance(config.parse(_blocks("toml")[number], "/etc/plimsoll/models.d/x.toml").place, place)


def test_the_inventory_is_taken(tmp_path: Path) -> None:
    """The example of an inventory loads, and gives each host what the page says of it."""
    (example,) = _blocks("yaml")
    file = tmp_path / "hosts.yml"
    file.write_text(example)
    found = inventory.load(file).hosts
    assert models.at_boot(found["gx10-a"].policy) == ["plimsoll-serve@qwen.service"]
    assert list(models.spared(found["gx10-a"].policy)) == ["unit:vllm-qwen.service"]
    needs = {name: host.policy.documents()["qwen"].get("need") for name, host in found.items()}
    assert needs == {"gx10-a": None, "gx10-b": {"gib": 80}}
    assert found["gx10-b"].policy.serve.operators == ("engines",)


def test_every_verb_is_shown() -> None:
    """Each verb stands in the list at the top, but for the one that only a unit calls."""
    shown = set(re.findall(r"^(?:sudo )?plimsoll serve ([a-z]+)", _blocks("")[0], re.MULTILINE))
    assert shown == set(cli_serve._VERBS) - {"attend"}


def test_the_verbs_of_operators_are_named() -> None:
    """What the rule for sudo allows is what the page says."""
    (said,) = re.findall(r"groups whose members may do (.+?) as root", PAGE.replace("\n", " "))
    allowed = {words.split()[2] for words in models.commands(["a", "b"])}
    assert {words.split()[0] for words in re.findall(r"`([^`]+)`", said)} == allowed


def test_exit_codes_are_those_of_the_program() -> None:
    """Each code of the table is one that the program has; an internal error is nobody's to expect."""
    listed = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)))
    assert listed == set(errors.EXIT_CODES) - {errors.INTERNAL}


def test_an_event_fits_its_schema(tmp_path: Path) -> None:
    """What a hook really gets on its standard input has the promised form, each kind of event."""
    got = tmp_path / "got"
    hook = ("/bin/sh", "-c", f"cat >> {got}; echo >> {got}")
    model = config.parse(_blocks("toml")[0], "/etc/plimsoll/models.d/x.toml")
    act = acting.Act(Host(), locking.myself("a test"), lambda _text: None)
    acting.tell(act, model, hook, "started", took_s=9.5, fallback_for=None)
    acting.tell(act, model, hook, "failed", cause="not ready", said="late", clean=True, fallback=None)
    acting.tell(act, model, hook, "ended", cause="kernel", said="it", evidence=["line"], pids=[4], next="small")
    documents = [json.loads(line) for line in got.read_text().splitlines()]
    assert [each["event"] for each in documents] == ["started", "failed", "ended"]
    for document in documents:
        _fits("serve-event", document)
