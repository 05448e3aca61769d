"""How a deploy looks at a host: once, as root where it can be had, and again only where something was done."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts.state import LoginAndState
from plimsoll.box.model import Request
from plimsoll.controls.plan import HostPlan, LayerPlan
from plimsoll.fleet import reader
from plimsoll.policy import Policy
from plimsoll.provision import look
from plimsoll.provision.look import Look

ROOT = Path(__file__).resolve().parents[2]
MARK = "5ca1ab1e" * 4


# --- what the host is asked -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer() -> list[str]:
    """Return the lines that this machine answers to the command of the fact."""
    question = {"request": Request(sysctls=("kernel.panic",)).to_json(), "mark": MARK, "limit_s": 60}
    done = subprocess.run(
        ["sh", "-c", LoginAndState().command(MARK)],
        input=f"{reader.first_line()}\n{json.dumps(question)}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def process(lines: list[str]) -> tuple[int, dict[str, Any]]:
    """Return what the fact makes of an answer."""
    fact = LoginAndState()
    fact.command(MARK)
    return fact.process(lines)


def test_one_round_trip(answer: list[str]) -> None:
    """One command says who logs in, and what the host is like."""
    uid, state = process(answer)
    assert uid == os.getuid()
    assert "kernel.panic" in state["sysctl"]


def test_a_shell_that_greets(answer: list[str]) -> None:
    """What a shell says before anything else is nobody's user id."""
    assert process(["Welcome, user 42", "", *answer]) == process(answer)


@pytest.mark.parametrize(
    "lines",
    [
        ["0"],
        ["0", MARK, "no JSON", MARK],
        ["0", MARK, "{}", MARK],
        ["0", "other", '{"schema": "plimsoll.state/1"}', "other"],
        ["root", MARK, '{"schema": "plimsoll.state/1"}', MARK],
    ],
)
def test_an_answer_that_is_none(lines: list[str]) -> None:
    """Anything else than a user id and a state is this host's problem, and ends no other host's run."""
    with pytest.raises(FactProcessError):
        process(lines)


# --- as whom it is asked ----------------------------------------------------------------------------


class Asked:
    """Stands in for a host of pyinfra: it answers in turn, and remembers whether it was asked with sudo."""

    def __init__(self, *answers: tuple[int, dict[str, Any]] | None) -> None:
        self.answers = list(answers)
        self.sudo: list[bool] = []

    def get_fact(self, _fact: type, *, _sudo: bool, **_arguments: object) -> tuple[int, dict[str, Any]] | None:
        """Answer."""
        self.sudo.append(_sudo)
        return self.answers.pop(0)


def seen_as(euid: int) -> dict[str, Any]:
    """Return as much of a state as tells who read it."""
    return {"platform": {"euid": euid}}


@pytest.mark.parametrize(
    ("answers", "found", "sudo"),
    [
        ([(0, seen_as(0))], (0, seen_as(0)), [False]),
        ([(1000, seen_as(0))], (1000, seen_as(0)), [False]),
        ([(1000, seen_as(1000)), (0, seen_as(0))], (1000, seen_as(0)), [False, True]),
        ([(1000, seen_as(1000)), None], None, [False, True]),
        ([None], None, [False]),
    ],
)
def test_as_whom(answers: list[Any], found: object, sudo: list[bool]) -> None:
    """Only where sudo wants a password is the host asked twice, the second time by pyinfra's own sudo."""
    host = Asked(*answers)
    assert look._ask(host, Policy()) == found  # type: ignore[arg-type]  # the stand-in
    assert host.sudo == sudo


# --- when it is asked again -------------------------------------------------------------------------


def test_how_long_a_look_holds() -> None:
    """A look speaks for a host that nothing is done to, for a moment."""
    idle = Look("gx10", True, Policy(), {}, HostPlan((), (), (LayerPlan("kernel", (), ()),)), False)
    assert idle.holds()
    assert not replace(idle, at_s=time.monotonic() - look.FRESH_S).holds()
    busy = LayerPlan("kernel", (), (("sysctl", "kernel.panic", "20"),))
    assert not replace(idle, plan=HostPlan((), (), (busy,))).holds()


# --- what is kept between runs ----------------------------------------------------------------------

CONFIG = """
import sys, types
sys.modules["pyinfra"] = types.ModuleType("pyinfra")
nothing = types.SimpleNamespace(isset=lambda: False)
sys.modules["pyinfra.context"] = types.SimpleNamespace(config=types.SimpleNamespace(), ctx_state=nothing, state=nothing)
sys.dont_write_bytecode = True  # as pyinfra does
exec(open("config.py").read())
print(sys.dont_write_bytecode)
"""


@pytest.mark.parametrize(("asked", "kept"), [({}, "False"), ({"PYTHONDONTWRITEBYTECODE": "1"}, "True")])
def test_what_was_compiled_is_kept(asked: dict[str, str], kept: str) -> None:
    """Plimsoll's modules are compiled once and not in each run, unless Python is told otherwise."""
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", CONFIG], env={**plain, **asked}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == kept
