"""What would be done on each host, what is held back beside a model, and who is left out."""

from typing import Any

import pytest

from plimsoll.box.actions import ACTIONS
from plimsoll.controls import trims
from plimsoll.controls.plan import LayerPlan
from plimsoll.fleet.gather import Answer
from plimsoll.fleet.rollout import plan
from plimsoll.fleet.rollout.model import Failure, Held, Planned, Step
from plimsoll.inventory import Host
from plimsoll.policy import Policy
from tests.unit import rollout_fakes
from tests.unit.builders import unit
from tests.unit.rollout_fakes import TODAY

ENGINE = {"comm": "vllm", "pid": 4711, "argv": ["vllm", "serve"], "cgroup": "/x", "oom_score_adj": 0}


def planned(name: str = "a", *, allow_restart: bool = False, policy: Any = None, **changes: Any) -> Planned:  # noqa: ANN401  # sections of a state
    """Return the plan of a stock host, with sections of its state changed."""
    state = {**rollout_fakes.states()[0], **changes}
    wanted = Policy.model_validate({"layers": rollout_fakes.LAYERS, **(policy or {})})
    return plan.looked(Answer(Host(name, (), wanted, ()), state, "", 1), (), TODAY, allow_restart=allow_restart)[0]


def test_a_stock_host() -> None:
    """Everything is to do, layer by layer, and nothing is held back where no model is served."""
    found = planned()
    assert {step.layer for step in found.steps} == {"box", "kernel"}
    assert Step("kernel", "sysctl kernel.sysrq 1") in found.steps
    assert (found.held, found.problem, found.deployed_before) == ((), "", False)


def test_a_host_as_it_should_be() -> None:
    """Nothing is to do there, and it is known that a revert would take away more than this rollout did."""
    after = rollout_fakes.states()[1]
    wanted = Policy.model_validate({"layers": rollout_fakes.LAYERS})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plimsoll.zipapp.build", lambda: rollout_fakes.PROGRAM)
        answer = Answer(Host("a", (), wanted, ()), after, "", 1)
        found, report = plan.looked(answer, (), TODAY, allow_restart=False)
    assert (found.steps, found.problem, found.deployed_before) == ((), "", True)
    assert (report.reached, report.exit_code()) == (True, 0)


@pytest.mark.parametrize("allow_restart", [False, True])
def test_a_host_that_serves_a_model(allow_restart: bool) -> None:
    """A layer that stops somebody's unit waits as a whole, and the others do not; --allow-restart does it all."""
    trimmed = trims.units(Policy(trims=("cups.service",)))
    units = {**rollout_fakes.states()[0]["units"], **{name: unit() for name in trimmed}}
    wanted = {"trims": ["cups.service"]}
    found = planned(policy=wanted, units=units, engines=[ENGINE], allow_restart=allow_restart)
    assert found.serving == ("vllm (pid 4711)",)
    assert {step.layer for step in found.steps} >= {"box", "kernel"}
    assert [held.layer for held in found.held] == ([] if allow_restart else ["trims"])
    assert any(step.layer == "trims" for step in found.steps) == allow_restart


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (("stop", "docker.service"), "stops docker.service"),
        (("mask", "cups.service"), "masks cups.service"),
        (("restart", "vllm.service"), "restarts vllm.service"),
        (("try-restart", "x.service", "earlyoom.service"), "restarts x.service"),
        (("retire-socket", "ssh.socket", "ssh.service"), "takes the listening socket away"),
        (("initramfs",), "needs a reboot"),
        (("daemon-reexec",), "systemd itself"),
        (("restart", "systemd-journald.service"), ""),
        (("try-restart", "earlyoom.service"), ""),
        (("restart", "ssh.service"), ""),
        (("stop", "plimsoll-last-resort.service"), ""),
        (("hand-over", "plimsoll-guard.service"), ""),
        (("daemon-reload",), ""),
        (("sysctl", "kernel.panic", "20"), ""),
    ],
)
def test_what_disturbs(action: tuple[str, ...], reason: str) -> None:
    """What ends or restarts others than Plimsoll's own is told apart from what nobody notices."""
    assert (reason in plan.disturbs(action)) if reason else plan.disturbs(action) == ""


def test_every_verb_that_is_told_apart_exists() -> None:
    """An action that was renamed would no longer be held back."""
    assert {*plan._ON_UNITS, *plan._BY_ITSELF} <= set(ACTIONS)


def test_a_layer_is_held_back_with_its_reasons() -> None:
    """All reasons of a layer are told, and a layer with none is not held back."""
    layers = [
        LayerPlan("trims", (), (("stop", "a.service"), ("mask", "a.service"))),
        LayerPlan("kernel", (), (("sysctl", "a", "1"),)),
    ]
    assert plan.held_back(layers) == (Held("trims", "stops a.service, masks a.service"),)


@pytest.mark.parametrize(
    ("changes", "problem", "failure"),
    [
        ({"platform": None}, "cannot be judged: TypeError", Failure.UNKNOWN),
        ({"engines": [{}]}, "cannot be judged: KeyError", Failure.UNKNOWN),
    ],
)
def test_an_answer_that_makes_no_sense(changes: dict[str, Any], problem: str, failure: Failure) -> None:
    """Such a host is left out with the reason; it does not end the plan of the others."""
    found = planned(**changes)
    assert problem in found.problem
    assert (found.failure, found.steps) == (failure, ())


def test_a_host_that_cannot_be_deployed_to() -> None:
    """What forbids a deploy keeps the host out, with what to do."""
    platform = {**rollout_fakes.states()[0]["platform"], "container": "docker"}
    found = planned(platform=platform)
    assert "this is a container (docker)" in found.problem
    assert (found.failure, found.steps) == (Failure.BAD, ())


def test_a_host_that_was_not_reached() -> None:
    """It is left out with what ssh said, and what that means."""
    answer = Answer(Host("a", (), Policy(), ()), None, "Host key verification failed.", 1)
    found, report = plan.looked(answer, (), TODAY, allow_restart=False)
    assert found.problem == "known_hosts has no key of it, or another one (Host key verification failed.)"
    assert found.failure is Failure.UNKNOWN
    assert (report.reached, report.problem) == (False, found.problem)


def test_groups() -> None:
    """Hosts with the same plan are one group, that of most hosts first; who is left out is in none."""
    one, other = (Step("kernel", "x"),), (Step("kernel", "y"),)
    hosts = [
        Planned("a", one), Planned("b", other), Planned("c", other), Planned("d", other, (Held("trims", "stops x"),)),
        Planned("e", problem="lost"), Planned("f"),
    ]  # fmt: skip
    found = plan.grouped(hosts)
    assert [group.hosts for group in found] == [("b", "c"), ("a",), ("d",), ("f",)]
    assert [bool(group.steps) for group in found] == [True, True, True, False]
