"""What the benchmark's playbook is given is what a deploy would do."""

import datetime
import json
from pathlib import Path

from plimsoll.box import state
from plimsoll.controls import plan
from plimsoll.policy import Policy
from tests.bench import settings
from tests.unit.builders import stock_host


def test_the_playbook_gets_what_a_deploy_does(tmp_path: Path) -> None:
    """Every file with its content and mode, every value that this kernel has, every package and unit, once each."""
    policy = Policy()
    read = json.loads(json.dumps(state.read(plan.request(policy), stock_host(tmp_path / "host"))))
    found = plan.host_plan(policy, read, lambda _control: None, datetime.date(2026, 11, 30))
    given = json.loads(settings.write(found, tmp_path).read_text())

    changed = {change.file.path: change.file for layer in found.layers for change in layer.changes}
    assert [file["dest"] for file in given["files"]] == list(changed)
    for file in given["files"]:
        assert Path(file["src"]).read_bytes() == changed[file["dest"]].content
        assert file["mode"] == changed[file["dest"]].mode
    assert {str(Path(path).parent) for path in changed} == set(given["directories"])
    assert given["packages"] == ["earlyoom"]
    assert given["kernel"]["vm.min_free_kbytes"] == "262144"
    assert {j.id for j in found.judgements if j.verdict in plan.LEFT_ALONE}.isdisjoint(
        f"kernel/{key}" for key in given["kernel"]
    )
    assert {"name": "plimsoll-guard.service", "enabled": True, "state": "started"} in given["units"]
    assert given["commands"].count("systemctl daemon-reload") == 1
