"""The backstop's arguments, by version and policy, and where it would act."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.cmdline import parse_environment_file
from plimsoll.box.protections import earlyoom_arguments, firing_facts, version_numbers
from plimsoll.box.words import split_words
from plimsoll.controls import earlyoom
from plimsoll.policy import Policy

GIB = 1 << 20


def _state(packages: dict[str, str] | None, regime: str = "A", **meminfo: int) -> dict[str, Any]:
    base = {"MemTotal": 120 * GIB, "MemAvailable": 100 * GIB, "AnonPages": 10 * GIB}
    return {"packages": packages, "memory": {"meminfo": {**base, **meminfo}, "regime": regime}}


OLD, NEW = {"earlyoom": "1.7-2"}, {"earlyoom": "1.8.2-1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.8.2-1", (1, 8, 2)),
        ("1.7-2ubuntu1", (1, 7)),
        ("1:2.3", (2, 3)),
        ("255.4-1ubuntu8.6", (255, 4)),
        ("", ()),
        ("x", ()),
    ],
)
def test_version_numbers(text: str, expected: tuple[int, ...]) -> None:
    """A Debian version is read as numbers, without epoch and revision."""
    assert version_numbers(text) == expected


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (NEW, (1, 8, 2)),
        (OLD, (1, 7)),
        ({"systemd": "257.13-1"}, (1, 8)),
        ({"systemd": "255.4-1ubuntu8"}, (1, 7)),
        ({"systemd": "252.38-1"}, (1, 7)),
        ({}, (1, 7)),
        (None, (1, 7)),
    ],
)
def test_version_of_a_host(packages: dict[str, str] | None, expected: tuple[int, ...]) -> None:
    """The installed version counts, else the one that the release would install."""
    assert earlyoom.version(_state(packages)) == expected


@pytest.mark.parametrize(
    ("packages", "policy", "expected"),
    [
        (OLD, {}, (5, 3)),
        (NEW, {}, (6, 4)),
        (OLD, {"term_percent": 4}, (4, 3)),
        (OLD, {"term_percent": 2}, (2, 1)),
        (NEW, {"term_percent": 3, "kill_percent": 2}, (3, 2)),
    ],
)
def test_percentages(packages: dict[str, str], policy: dict[str, int], expected: tuple[int, int]) -> None:
    """Percentages go by the version, SIGKILL below SIGTERM, and the policy's own come first."""
    found = Policy.model_validate({"earlyoom": policy})
    assert earlyoom.percentages(found, _state(packages)) == expected


def test_arguments() -> None:
    """Swap is out of the condition, the group goes together, and the pattern is anchored."""
    prefer = "^(vllm|VLLM::.*|llama-server|ollama|sglang::schedul)$"
    expected = ["-r", "60", "-m", "5,3", "-s", "100,100", "-g", "--prefer", prefer]
    assert earlyoom.arguments(Policy(), _state(OLD)) == expected
    nobody = Policy.model_validate({"earlyoom": {"prefer": []}})
    assert "--prefer" not in earlyoom.arguments(nobody, _state(OLD))


def test_where_it_would_fire() -> None:
    """Up to 1.7 a percentage is of all memory; from 1.8 on of what the driver has not taken, so the line moves."""
    old = earlyoom.firing_point(Policy(), _state(OLD))
    assert old == earlyoom.FiringPoint(6 * GIB, 6 * GIB, 100 * GIB)
    loaded = _state(NEW, MemAvailable=8 * GIB, AnonPages=2 * GIB)
    new = earlyoom.firing_point(Policy(), loaded)
    assert new == earlyoom.FiringPoint(round(0.6 * GIB), round(2 * GIB * 6 / 94), 8 * GIB)


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (OLD, "below 6 GiB as loaded now, 6 GiB once the driver has taken the rest"),
        (NEW, "below 0.6 GiB as loaded now, 0.128 GiB once the driver has taken the rest"),
    ],
)
def test_deploy_and_audit_say_the_same(packages: dict[str, str], expected: str) -> None:
    """What a deploy announces is what an audit says of the daemon that then runs with these arguments."""
    state = _state(packages, MemAvailable=8 * GIB, AnonPages=2 * GIB)
    given = earlyoom_arguments(["earlyoom", *earlyoom.arguments(Policy(), state)])
    facts = firing_facts(given, state["memory"], packages["earlyoom"])
    assert facts["firing"] == expected
    assert f"SIGTERM {expected}; 8 GiB are available" in earlyoom.describe_firing_point(Policy(), state)


def test_unknown_memory_has_no_line() -> None:
    """Where a field is missing the line is unknown, said so, and never taken for reached."""
    unknown = {"packages": OLD, "memory": {"meminfo": {"MemTotal": 5}, "regime": "unknown"}}
    nothing = {"packages": OLD, "memory": {"meminfo": None, "regime": "unknown"}}
    for state in (unknown, nothing):
        assert earlyoom.firing_point(Policy(), state) is None
        assert "unknown" in earlyoom.describe_firing_point(Policy(), state)
        assert not earlyoom.would_fire_at_once(Policy(), state)


@pytest.mark.parametrize(("available_gib", "fires"), [(100, False), (7, False), (6, True), (5, True)])
def test_it_must_not_fire_when_it_is_started(available_gib: int, fires: bool) -> None:
    """Starting it on a box below its line would kill at once; on one above it would not."""
    assert earlyoom.would_fire_at_once(Policy(), _state(OLD, MemAvailable=available_gib * GIB)) is fires


def test_the_accounting_that_blinds_it_is_said() -> None:
    """In regime C it never acts, and the line says that instead of a comforting figure alone."""
    assert "never acts" in earlyoom.describe_firing_point(Policy(), _state(OLD, regime="C"))
    assert "never acts" not in earlyoom.describe_firing_point(Policy(), _state(OLD, regime="A"))


_PATTERN = st.text("abcXYZ019.*+?^$()|[]{}:_-,@~=<>&;%!#/", min_size=1, max_size=20)


@given(st.lists(_PATTERN, max_size=4))
def test_any_accepted_pattern_arrives(patterns: list[str]) -> None:
    """Whatever pattern a policy accepts reaches earlyoom as it was written, through the file and systemd's quoting."""
    try:
        policy = Policy.model_validate({"earlyoom": {"prefer": patterns}})
    except ValueError:
        return
    args = earlyoom.arguments(policy, _state(OLD))
    text = f'{earlyoom.VARIABLE}="{earlyoom.environment_value(args)}"\n'
    assert split_words(parse_environment_file(text)[earlyoom.VARIABLE][0], c_escapes=False) == args
