"""A deploy that cannot end well does not begin, and says in one line what to do."""

import copy
from pathlib import Path
from typing import Any

import pytest

from plimsoll.controls import preflight
from plimsoll.policy import Policy
from tests.unit.builders import NEEDS_ROOT, stock_host
from tests.unit.test_plan import look

GIB = 1 << 20


def _state(root: Path, policy: Policy, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # path with __ -> any JSON
    found = copy.deepcopy(look(stock_host(root), policy))
    found["platform"]["euid"] = 0
    for path, value in changes.items():
        *sections, last = path.split("__")
        place = found
        for section in sections:
            place = place[section]
        place[last] = value
    return found


def _problems(root: Path, policy: dict[str, Any] | None = None, **changes: Any) -> list[str]:  # noqa: ANN401  # as above
    chosen = Policy.model_validate(policy or {})
    return preflight.problems(chosen, _state(root, chosen, **changes))


@NEEDS_ROOT
def test_stock_machine_has_no_problems(tmp_path: Path) -> None:
    """A machine as it comes can be deployed to."""
    assert _problems(tmp_path) == []


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ({}, {"platform__systemd_running": False, "platform__pid1": "init"}, "PID 1 is init, not systemd"),
        ({}, {"platform__container": "lxc"}, "this is a container (lxc)"),
        ({}, {"platform__cgroup2": False}, "no cgroup v2 hierarchy"),
        ({}, {"platform__euid": 1000}, "without root"),
        ({}, {"manager__Version": "245.4-4ubuntu3"}, "systemd 245 is too old"),
        ({}, {"room__/etc": {"error": "No such file"}}, "/etc: No such file"),
        ({}, {"room__/etc": {"read_only": True, "free_bytes": 1 << 30}}, "/etc is mounted read-only"),
        ({}, {"room__/var/lib": {"read_only": False, "free_bytes": 5}}, "/var/lib has 5 bytes free"),
        ({}, {"ledger": {"sysctls": {}, "files": {}, "error": "damaged"}}, "damaged"),
        ({}, {"platform__mem_total_kib": None}, "no MemTotal"),
        ({}, {"platform__mem_total_kib": GIB}, "slices/system.slice:MemoryMin of 768 MiB is more than 1/4"),
        ({"values": {"slices/system.slice:MemoryMin": "64M"}}, {}, "its units are promised"),
        ({}, {"units__ssh.service__show": {"LoadState": "not-found"}}, "neither ssh.service nor sshd.service"),
        ({"layers": {"recovery": True}}, {"platform__encrypted_root": True}, "/etc/crypttab asks for a passphrase"),
        ({"layers": {"recovery": True}}, {"platform__encrypted_root": None}, "/etc/crypttab asks for a passphrase"),
        ({}, {"units__earlyoom.service__show": {"LoadState": "masked"}}, "earlyoom.service is masked"),
        (
            {},
            {"memory__meminfo": {"MemTotal": 120 * GIB, "MemAvailable": GIB, "AnonPages": 100 * GIB}},
            "it would kill at once",
        ),
    ],
)
def test_problems(tmp_path: Path, policy: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    """Each thing that forbids a deploy is found by itself and told in one line."""
    found = [problem for problem in _problems(tmp_path, policy, **changes) if words in problem]
    assert len(found) == 1
    assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ({"layers": {"sshd": False}}, {"units__ssh.service__show": {"LoadState": "not-found"}}, "sshd"),
        ({"layers": {"earlyoom": False}}, {"units__earlyoom.service__show": {"LoadState": "masked"}}, "masked"),
        ({}, {"platform__encrypted_root": True}, "crypttab"),
        ({"values": {"slices/system.slice:MemoryMin": None}}, {"platform__mem_total_kib": 2 * GIB}, "promised"),
    ],
)
def test_a_layer_that_is_off_forbids_nothing(
    tmp_path: Path, policy: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """What only a switched-off layer or control would need is no problem."""
    assert not [problem for problem in _problems(tmp_path, policy, **changes) if words in problem]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "swap: /swap.img 16.0 GiB"),
        ({"memory__swaps": []}, "swap: none"),
        ({}, "accounting regime A"),
        ({"memory__inconsistencies": ["CmaFree (5 kB) exceeds"]}, "CmaFree (5 kB) exceeds"),
        ({"units__systemd-oomd.service__show": {"ActiveState": "active"}}, "killer is active: systemd-oomd.service"),
        ({"units__ssh.socket__show": {"ActiveState": "active"}}, "ssh.socket listens"),
        ({"engines": [{"comm": "vllm", "pid": 5, "cgroup": "/x"}]}, "engine running: vllm (pid 5) in /x"),
        ({}, "earlyoom would send SIGTERM below"),
    ],
)
def test_notes(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """What a person should know of the host is told, and forbids nothing."""
    policy = Policy()
    notes = preflight.notes(policy, _state(tmp_path, policy, **changes))
    assert len([note for note in notes if words in note]) == 1
