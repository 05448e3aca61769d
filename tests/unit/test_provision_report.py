"""What a person sees of a deploy: whatever a host calls its things, it is shown and obeyed by nobody."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import state
from plimsoll.controls import plan
from plimsoll.policy import Policy
from plimsoll.provision import report
from plimsoll.provision.look import Look
from tests.unit.builders import stock_host

TODAY = datetime.date(2026, 11, 30)
POLICY = Policy()
NAME = "vllm[/x]\x1b[2J"
"""A process may be called so by any user: an end tag without a beginning, and what clears a screen."""
SHOWN = r"vllm[/x]\x1b[2J"


def look(root: Path) -> Look:
    """Return a look at a stock machine on which an engine runs under that name, and a file has it in its text."""
    host = stock_host(root, **{"/etc/default/earlyoom": f"# {NAME}\nEARLYOOM_ARGS=\n"})
    found: dict[str, Any] = json.loads(json.dumps(state.read(plan.request(POLICY), host)))
    found["engines"] = [{"comm": NAME, "pid": 7, "cgroup": "/x"}]
    found["sysctl"]["kernel.sysrq"] = {"error": NAME}
    planned = plan.host_plan(POLICY, found, lambda _control: None, TODAY)
    return Look(name="gx10", known=True, policy=POLICY, state=found, plan=planned, sudo=False)


@pytest.mark.parametrize("before", [True, False])
def test_a_name_is_no_markup(before: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan with its differences, and the verdicts, show such a name with its control character spelled out."""
    seen = look(tmp_path)
    if before:
        report.show_plan(seen, with_diff=True)
    else:
        report.show(seen)
    shown = capsys.readouterr().err
    assert f"engine running: {SHOWN} (pid 7)" in shown
    assert "\x1b" not in shown
    assert SHOWN in "".join(report.wrong(seen))
