"""The guard's part of a policy, and what a deploy says of it before it begins."""

from pathlib import Path
from typing import Any

import pytest

from plimsoll import inventory
from plimsoll.box.guard import config
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.controls import guard, preflight
from plimsoll.policy import Policy
from tests.unit.builders import stock_host
from tests.unit.test_controls_guard import LAB_KIB, WITH_LAST_RESORT, toml
from tests.unit.test_plan import look

# --- before a deploy --------------------------------------------------------------------------------


def _state(root: Path, policy: Policy, **memory: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of the section
    found = look(stock_host(root), policy)
    found["platform"]["euid"] = 0
    found["memory"] |= memory
    return found


@pytest.mark.parametrize(
    ("available_gib", "words"),
    [(2, "below the floor of 3 GiB already; running: vllm (pid 5)"), (7, "below the slow line of 8 GiB"), (20, "")],
)
def test_who_sits_below_a_line_is_told(tmp_path: Path, available_gib: int, words: str) -> None:
    """A deploy names the lines that memory is below already, and what runs then."""
    policy = Policy()
    found = _state(tmp_path, policy, available_kib=available_gib * KIB_PER_GIB)
    found["platform"]["mem_total_kib"] = round(121.6 * KIB_PER_GIB)
    found["engines"] = [{"comm": "vllm", "pid": 5, "cgroup": "/x"}]
    told = [note for note in preflight.notes(policy, found) if note.startswith("guard: ")]
    assert [words in note for note in told] == ([True] if words else [])


def test_an_unknown_level_is_told(tmp_path: Path) -> None:
    """Where nobody knows what is available, that is said."""
    policy = Policy()
    notes = preflight.notes(policy, _state(tmp_path, policy, available_kib=None))
    assert "guard: how much memory is available is not known here, so that nothing is armed" in notes


@pytest.mark.parametrize("last_resort", [True, False])
def test_no_restart_that_nobody_would_come_back_from(tmp_path: Path, last_resort: bool) -> None:
    """The last resort is refused where a passphrase is asked for at boot; without it that is no problem."""
    policy = Policy.model_validate({"guard": {"last_resort": last_resort}})
    found = _state(tmp_path, policy)
    found["platform"]["encrypted_root"] = True
    problems = [each for each in preflight.problems(policy, found) if "crypttab" in each]
    assert len(problems) == last_resort
    assert all(each.startswith("guard.last_resort restarts the box") for each in problems)


def test_a_masked_guard_is_refused(tmp_path: Path) -> None:
    """Somebody has masked it: that is said, and not undone."""
    policy = Policy()
    found = _state(tmp_path, policy)
    found["units"][guard.UNIT]["show"]["LoadState"] = "masked"
    assert [each for each in preflight.problems(policy, found) if f"{guard.UNIT} is masked" in each]


def test_its_promise_counts_for_the_slice(tmp_path: Path) -> None:
    """What the guard is promised is among what system.slice must have."""
    small = {"slices/system.slice:MemoryMin": "768M", "guard/MemoryMin": "300M"}
    policy = Policy.model_validate({"values": small})
    assert [each for each in preflight.problems(policy, _state(tmp_path, policy)) if "its units are promised" in each]


def test_deadlines_in_the_wrong_order_are_told(tmp_path: Path) -> None:
    """With the last resort on, a deploy says which of the deadlines in force would come after it; without, nothing."""
    found = _state(tmp_path, Policy())
    found["sysctl"] |= {"kernel.hung_task_panic": {"value": "1"}, "kernel.panic": {"value": "600"}}
    found["watchdogs"] = [{"state": "inactive", "timeout": "5"}, {"state": "active", "timeout": "900"}]
    told = [each for each in preflight.notes(Policy.model_validate(WITH_LAST_RESORT), found) if "last_resort" in each]
    assert ["only after up to 840 s" in told[0], "hardware watchdog (900 s)" in told[1]] == [True, True]
    assert not [each for each in preflight.notes(Policy(), found) if "last_resort" in each]


# --- the policy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{mode: on}", "guard.mode"),
        ("{rules: {floor: maybe}}", "guard.rules.floor"),
        ("{rules: {flor: auto}}", "did you mean 'floor'?"),
        ("{protect: [qwen]}", "must be cgroup:PATTERN, unit:PATTERN or command:PATTERN"),
        ('{protect: ["unit:"]}', "must be cgroup:PATTERN"),
        ('{prefer: ["unit:a\\nb"]}', "must be cgroup:PATTERN"),
        ("{hook_command: [page]}", "hook_command must begin with an absolute path"),
        ("{metrics_file: plimsoll.prom}", "must be an absolute path"),
        ("{gpu_devices: [nvidia0]}", "must be an absolute path"),
        ("{reserve_groups: [No Group]}", "is no name of a group"),
        ("{attributed_min_mib: 0}", "greater than or equal to 1"),
        ("{last_resort: yes}", "write true or false"),
    ],
)
def test_a_mistake_in_the_policy_is_told_with_its_line(section: str, words: str, tmp_path: Path) -> None:
    """Each is one message with the line, before anything is connected to."""
    file = tmp_path / "hosts.yml"
    file.write_text(f"hosts:\n  gx10:\n    policy:\n      guard: {section}\n")
    with pytest.raises(inventory.InventoryError) as raised:
        inventory.load(file)
    assert raised.value.line == 4
    assert words in raised.value.message


def test_what_a_policy_allows_the_guard_takes() -> None:
    """The ends of every range are accepted by the guard as well, so that no deploy writes a file that it refuses."""
    for guard_section in (
        {"attributed_min_mib": 1, "fallback_min_gib": 0.1, "gpu_devices": ["/dev/a"]},
        {"attributed_min_mib": 1 << 20, "fallback_min_gib": 4096, "protect": ["command:x"]},
    ):
        config.load(toml(guard=guard_section), guard.FILE, LAB_KIB)
