"""The policy model: defaults, bounds, and the ladder as a whole."""

from typing import Any

import pytest
from pydantic import ValidationError

from plimsoll.policy import Ladder, Policy, nearest

GIB_KIB = 1024 * 1024


def _refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Policy.model_validate(data)
    return str(caught.value.errors(include_url=False)[0]["msg"])


def test_default_policy_is_harmless() -> None:
    """A default policy neither reboots, nor touches the driver, nor takes a socket or a unit away."""
    policy = Policy()
    assert not policy.layers.recovery
    assert not policy.layers.driver_option
    assert not policy.sshd.retire_socket
    assert policy.trims == ()
    assert policy.verify.notify_command == ()
    assert policy.values == {}


def test_policy_is_frozen() -> None:
    """A policy cannot be changed once it is valid."""
    with pytest.raises(ValidationError):
        Policy().trims = ("cups.service",)  # type: ignore[misc]  # what mypy refuses is what is tested


@pytest.mark.parametrize(
    ("ladder", "upper", "lower"),
    [
        ({"slow_leave_gib": 8.0}, "ladder.slow_leave_gib (8 GiB)", "ladder.slow_enter_gib (8 GiB)"),
        ({"floor_gib": 8.5}, "ladder.slow_enter_gib (8 GiB)", "ladder.floor_gib (8.5 GiB)"),
        ({"slow_leave_gib": 130.0}, "ladder.reference_gib (121.6 GiB)", "ladder.slow_leave_gib (130 GiB)"),
    ],
)
def test_ladder_out_of_order(ladder: dict[str, float], upper: str, lower: str) -> None:
    """A line that does not lie below the one above it is refused, and both are named."""
    assert _refusal({"ladder": ladder}) == f"{upper} must lie above {lower}"


def test_floor_above_kernel_reserve() -> None:
    """The guard's floor must lie above what the kernel keeps for itself."""
    message = _refusal({"values": {"kernel/vm.min_free_kbytes": 4 * GIB_KIB}})
    assert message == "ladder.floor_gib (3 GiB) must lie above values.kernel/vm.min_free_kbytes (4 GiB)"
    Policy.model_validate({"values": {"kernel/vm.min_free_kbytes": 3 * GIB_KIB - 1}})


def test_kernel_reserve_of_a_host() -> None:
    """The reserve that a host really has can be held against the floor."""
    Policy().check_kernel_reserve(GIB_KIB)
    with pytest.raises(ValueError, match="must lie above"):
        Policy().check_kernel_reserve(3 * GIB_KIB)


@pytest.mark.parametrize(
    ("earlyoom", "message"),
    [
        (
            {"term_percent": 7},
            "ladder.slow_enter_gib (8 GiB) must lie above earlyoom.term_percent (8.512 GiB)",
        ),
        (
            {"term_percent": 5, "kill_percent": 5},
            "earlyoom.term_percent (6.08 GiB) must lie above earlyoom.kill_percent (6.08 GiB)",
        ),
        ({"kill_percent": 3}, "earlyoom.kill_percent needs earlyoom.term_percent"),
    ],
)
def test_earlyoom_stays_below_the_slow_line(earlyoom: dict[str, int], message: str) -> None:
    """A backstop that would shoot what the guard leaves alone is refused."""
    assert _refusal({"earlyoom": earlyoom}) == message


def test_ladder_scales_with_memory() -> None:
    """The lines keep their share of a host's memory."""
    lines = Ladder().scaled(round(60.8 * GIB_KIB))
    assert lines.slow_leave_kib == round(4.5 * GIB_KIB)
    assert lines.slow_enter_kib == 4 * GIB_KIB
    assert lines.floor_kib == round(1.5 * GIB_KIB)


@pytest.mark.parametrize(
    "unit", ["cups.service", "getty@tty1.service", "foo@.socket", "srv-x.mount", r"dev-sda\x20.device"]
)
def test_unit_names(unit: str) -> None:
    """Unit names of every form are accepted."""
    assert Policy.model_validate({"trims": [unit]}).trims == (unit,)


@pytest.mark.parametrize(
    "unit", ["cups", "", "a b.service", "../x.service", "x.service\n", "x.conf", "a" * 250 + ".service"]
)
def test_not_unit_names(unit: str) -> None:
    """What is no unit name, or lacks its suffix, is refused."""
    assert "is no unit name" in _refusal({"trims": [unit]})


@pytest.mark.parametrize(
    "unit",
    [
        "ssh.service",
        "sshd.service",
        "ssh.socket",
        "sshd@1.service",
        "dbus.socket",
        "systemd-journald.service",
        "NetworkManager.service",
        "networking.service",
        "systemd-user-sessions.service",
        "user@1000.service",
        "system.slice",
        "-.mount",
        "graphical.target",
    ],
)
def test_the_way_in_is_not_trimmed(unit: str) -> None:
    """No policy may stop what one logs in through."""
    assert "must not be trimmed" in _refusal({"trims": [unit]})


@pytest.mark.parametrize("pattern", ["", "a b", "a'b", 'a"b', "a\\.b", "a\nb", "(", "*", "[[", "a{%s}" % ("9" * 20)])
def test_patterns_that_break_the_command_line(pattern: str) -> None:
    """A process pattern that is no expression, or would need quoting, is refused."""
    assert "regular expression" in _refusal({"earlyoom": {"prefer": [pattern]}})


@pytest.mark.parametrize("pattern", ["(?:a|b)", "(?i)vllm", "a{", "a{1", "a{1,2", "[{]a{"])
def test_patterns_of_python_alone(pattern: str) -> None:
    """What Python takes for an expression and earlyoom does not is refused: the daemon would not start with it."""
    assert "no POSIX extended regular expression" in _refusal({"earlyoom": {"prefer": [pattern]}})


@pytest.mark.parametrize("pattern", ["[[:alpha:]]+", "[[]x", "[{]x", "[](?]", "[^]{(?]y", "a{,3}b{2,}c{1}"])
def test_patterns_of_posix(pattern: str) -> None:
    """A class of POSIX, of which Python warns, and every form of an interval are taken as they are."""
    assert Policy.model_validate({"earlyoom": {"prefer": [pattern]}}).earlyoom.prefer == (pattern,)


def test_notify_command_is_absolute() -> None:
    """The command run on a bad verdict does not depend on a search path."""
    assert "absolute path" in _refusal({"verify": {"notify_command": ["mail", "root"]}})
    assert "control characters" in _refusal({"verify": {"notify_command": ["/bin/x", "a\nb"]}})


@pytest.mark.parametrize(
    "data",
    [
        {"layers": {"kernel": "true"}},
        {"layers": {"kernel": 1}},
        {"ladder": {"floor_gib": "3"}},
        {"ladder": {"floor_gib": True}},
        {"ladder": {"floor_gib": float("nan")}},
        {"earlyoom": {"term_percent": 5.0}},
        {"earlyoom": {"term_percent": True}},
        {"earlyoom": {"term_percent": 101}},
        {"trims": "cups.service"},
        {"values": {"a": [1]}},
        {"values": ["a"]},
    ],
)
def test_types_are_strict(data: dict[str, Any]) -> None:
    """Nothing is converted silently."""
    with pytest.raises(ValidationError):
        Policy.model_validate(data)


def test_nearest() -> None:
    """A misspelt word gets the nearest known one, or what is known when none is near."""
    assert nearest("kernal", ["kernel", "sshd"]) == "did you mean 'kernel'?"
    assert nearest("xyz", ["b", "a"]) == "known: a, b"
    assert nearest("xyz", [f"k{n:02}" for n in range(20)]).endswith("k11, …")
    assert nearest("xyz", []) == "known: none"
