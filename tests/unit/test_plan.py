"""From a policy and a state to what a deploy does, and that doing it leaves nothing to do."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import apply, revert, state, verify
from plimsoll.box.model import Verdict, Waiver
from plimsoll.controls import plan
from plimsoll.policy import Policy
from tests.unit.builders import NEEDS_ROOT, FakeHost, stock_host, tree

TODAY = datetime.date(2026, 11, 30)
NO_DAEMONS: dict[str, Any] = {"layers": {"earlyoom": False, "guard": False}}
"""The fake machine has no package manager, and nothing on it runs."""


def look(host: FakeHost, policy: Policy) -> dict[str, Any]:
    """Return the state of a host as a deploy with this policy reads it, after a trip through JSON."""
    request = plan.request(policy)
    read: dict[str, Any] = json.loads(json.dumps(state.read(request, host)))
    return read


def planned(host: FakeHost, waivers: dict[str, Waiver] | None = None, **choices: Any) -> plan.HostPlan:  # noqa: ANN401  # any policy
    """Return what a deploy with these choices would do to a host."""
    policy = Policy.model_validate({**NO_DAEMONS, **choices})
    return plan.host_plan(policy, look(host, policy), (waivers or {}).get, TODAY)


def carry_out(host: FakeHost, host_plan: plan.HostPlan) -> None:
    """Apply every layer of a plan, as it arrives on the host: as JSON."""
    for layer in host_plan.layers:
        list(apply.apply(json.loads(json.dumps(layer.to_json())), host, b"the program"))


def _verdicts(host_plan: plan.HostPlan) -> dict[str, Verdict]:
    return {j.id: j.verdict for j in host_plan.judgements}


def _layers_with_work(host_plan: plan.HostPlan) -> list[str]:
    return [layer.layer for layer in host_plan.layers if layer]


def test_stock_machine_has_everything_to_do(tmp_path: Path) -> None:
    """On a machine that was never touched every layer of the policy has work, and the opt-in ones have none."""
    found = planned(stock_host(tmp_path))
    assert _layers_with_work(found) == ["box", "kernel", "slices", "journald", "sshd", "user_manager"]
    kernel = found.layer("kernel")
    assert [c.file.path for c in kernel.changes] == ["/etc/sysctl.d/zz-plimsoll.conf"]
    assert ("sysctl", "vm.min_free_kbytes", "262144") in kernel.actions
    assert ("sysctl", "kernel.hung_task_timeout_secs", "120") not in kernel.actions
    assert not found.layer("recovery")


def test_planning_changes_nothing(tmp_path: Path) -> None:
    """Looking and planning leave the machine as it is and only ask systemd."""
    host = stock_host(tmp_path)
    before = tree(tmp_path)
    planned(host)
    assert tree(tmp_path) == before
    assert all(call[:2] == ("systemctl", "show") for call in host.calls)


@NEEDS_ROOT
@pytest.mark.parametrize(
    "choices",
    [{}, {"layers": {"recovery": True, **NO_DAEMONS["layers"]}}, {"trims": ["cups.service"]}],
)
def test_a_second_run_has_nothing_to_do(tmp_path: Path, choices: dict[str, Any]) -> None:
    """After a plan was carried out, a new look finds every control good and plans nothing at all."""
    host = stock_host(tmp_path, **{"/sys/class/watchdog/watchdog0/state": "inactive\n"})
    host.units["cups.service"] = {"Id": "cups.service", "LoadState": "loaded", "ActiveState": "active"}
    carry_out(host, planned(host, **choices))
    again = planned(host, **choices)
    watchdog = "recovery/RuntimeWatchdogSec"
    bad = {i: v for i, v in _verdicts(again).items() if v is not Verdict.OK and i != watchdog}
    assert bad == {"box/file:/usr/local/lib/plimsoll/plimsoll.pyz": Verdict.DRIFTED}
    assert _layers_with_work(again) == ["box"] + (["recovery"] if watchdog in _verdicts(again) else [])


@NEEDS_ROOT
def test_the_box_agrees_with_the_operator(tmp_path: Path) -> None:
    """What the host judges of itself, from the file that it was left, is what the operator sees."""
    host = stock_host(tmp_path)
    carry_out(host, planned(host))
    wanted, command = verify.load_wanted(host)
    assert command == []
    assert {j.id: j.verdict for j in verify.judge_host(host, wanted)} == _verdicts(planned(host))


@NEEDS_ROOT
def test_revert_leaves_a_stock_machine(tmp_path: Path) -> None:
    """After a deploy and a revert the plan is the first one again, to the last action."""
    host = stock_host(tmp_path)
    first = planned(host)
    carry_out(host, first)
    assert {outcome for outcome, _line in revert.revert(host, None)} == {"done"}
    again = planned(host)
    assert [layer.lines() for layer in again.layers if layer.layer != "journald"] == [
        layer.lines() for layer in first.layers if layer.layer != "journald"
    ]


def test_foreign_file_shadows(tmp_path: Path) -> None:
    """Somebody's later file wins over ours: the control is shadowed, by name, and never fought over."""
    host = stock_host(tmp_path, **{"/etc/sysctl.d/zzz-admin.conf": "kernel.sysrq = 0\n"})
    carry_out(host, planned(host))
    again = planned(host)
    judged = next(j for j in again.judgements if j.id == "kernel/kernel.sysrq")
    assert judged.verdict is Verdict.SHADOWED
    assert "/etc/sysctl.d/zzz-admin.conf:1" in judged.reason


def test_the_kernels_own_reserve_is_never_lowered(tmp_path: Path) -> None:
    """A reserve that the kernel itself chose larger stays, also when our own value has replaced it meanwhile."""
    host = stock_host(tmp_path, **{"/proc/sys/vm/min_free_kbytes": "400000\n"})

    def reserve(policy_kib: int) -> str:
        found = planned(host, values={"kernel/vm.min_free_kbytes": policy_kib})
        return {w.id: w.value for w in found.wanted}["kernel/vm.min_free_kbytes"]

    assert reserve(300_000) == "400000"
    assert reserve(500_000) == "500000"
    carry_out(host, planned(host, values={"kernel/vm.min_free_kbytes": 500_000}))
    assert reserve(300_000) == "400000"


def test_null_leaves_a_control_alone(tmp_path: Path) -> None:
    """A value of null takes the control out: neither wanted nor written."""
    found = planned(stock_host(tmp_path), values={"kernel/kernel.sysrq": None})
    assert "kernel/kernel.sysrq" not in _verdicts(found)
    assert b"kernel.sysrq" not in found.layer("kernel").changes[0].file.content


def test_a_file_that_is_no_longer_asked_for_is_put_back(tmp_path: Path) -> None:
    """When the last control of a file is left alone, the file becomes what it was; a second run has nothing to do."""
    path = "/etc/systemd/user.conf.d/plimsoll.conf"
    host = stock_host(tmp_path, **{path: "[Manager]\n# mine\n"})
    carry_out(host, planned(host, **NO_DAEMONS))
    assert "plimsoll" in host.text(path)
    values = {"user_manager/DefaultOOMScoreAdjust": None}
    found = planned(host, values=values, **NO_DAEMONS)
    assert f"put back {path}" in found.layer("user_manager").lines()
    carry_out(host, found)
    assert host.text(path) == "[Manager]\n# mine\n"
    assert _layers_with_work(planned(host, values=values, **NO_DAEMONS)) == ["box"]


def test_a_layer_that_was_switched_off_is_left_alone(tmp_path: Path) -> None:
    """A layer that the policy switches off later keeps its files: taking it back is asked for by name, on the box."""
    host = stock_host(tmp_path)
    carry_out(host, planned(host, **NO_DAEMONS))
    off = {"layers": {**NO_DAEMONS["layers"], "journald": False}}
    assert _layers_with_work(planned(host, **off)) == ["box"]


def test_waived_and_unsupported_are_not_written(tmp_path: Path) -> None:
    """What somebody answers for, and what the kernel has not, stands in no file of ours."""
    host = stock_host(tmp_path)
    (tmp_path / "proc/sys/kernel/hung_task_warnings").unlink()
    found = planned(host, {"kernel/kernel.sysrq": Waiver("console is public", "2027-01-01")})
    content = found.layer("kernel").changes[0].file.content.decode()
    assert "kernel.sysrq" not in content
    assert "hung_task_warnings" not in content
    assert _verdicts(found)["kernel/kernel.sysrq"] is Verdict.WAIVED
    assert _verdicts(found)["kernel/kernel.hung_task_warnings"] is Verdict.UNSUPPORTED


def test_parents_come_before_children(tmp_path: Path) -> None:
    """The slices' protection is written before that of their units, without which it would be worth nothing."""
    found = planned(stock_host(tmp_path))
    actions = [action for layer in found.layers for action in layer.actions if action[0] == "cgroup"]
    paths = [path for _name, path, _value in actions]
    assert paths.index("/sys/fs/cgroup/system.slice/memory.min") < paths.index(
        "/sys/fs/cgroup/system.slice/ssh.service/memory.min"
    )


def test_an_unproven_login_is_work(tmp_path: Path) -> None:
    """A run that was cut off before it had proven a login leaves the layer sshd with something to do."""
    host = stock_host(tmp_path, **{"/etc/systemd/system/plimsoll-rollback.service": ""})
    carry_out(host, planned(host))
    found = planned(host).layer("sshd")
    assert found
    assert found.lines()[-1].startswith("prove a fresh login")


def test_lines_announce_what_the_plan_carries(tmp_path: Path) -> None:
    """A dry run's lines name every file and every action of the plan, and a diff shows the old and the new line."""
    host = stock_host(tmp_path, **{"/etc/sysctl.d/zz-plimsoll.conf": "kernel.sysrq = 7\n"})
    layer = planned(host).layer("kernel")
    document = layer.to_json()
    announced = [f"write {f['path']}" for f in document["files"]] + [" ".join(a) for a in document["actions"]]
    assert layer.lines() == announced
    diff = list(layer.changes[0].diff())
    assert "-kernel.sysrq = 7" in diff
    assert "+kernel.sysrq = 1" in diff


def test_the_program_is_named_not_shown(tmp_path: Path) -> None:
    """The diff of the program and of its data is one line."""
    (change,) = (c for c in planned(stock_host(tmp_path)).layer("box").changes if c.file.is_program)
    (line,) = change.diff()
    assert "bytes, sha256" in line


def test_every_written_path_was_looked_at(tmp_path: Path) -> None:
    """Whatever a plan writes was read before it, or a second run could not know that it is there."""
    choices: dict[str, Any] = {
        "layers": {"recovery": True, "earlyoom": True, "guard": True, "driver_option": True},
        "guard": {"last_resort": True},
        "trims": ["cups.service"],
    }
    paths = set(plan.managed_paths(Policy.model_validate(choices)))
    found = planned(stock_host(tmp_path), **choices)
    assert {c.file.path for layer in found.layers for c in layer.changes} <= paths


def test_a_layer_that_is_off_is_empty() -> None:
    """Asking a plan for a layer that it has not yields one with nothing to do."""
    assert not plan.HostPlan((), (), ()).layer("sshd")
