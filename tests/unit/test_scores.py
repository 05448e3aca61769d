"""Whom the kernel would take first: scores of sessions and of user managers."""

from typing import Any

import pytest

from plimsoll.box import scores
from tests.unit.builders import ours, process, state

FILE = "/etc/systemd/user.conf.d/plimsoll.conf"
BOOT_S = 999_000.0
"""When the machine of `builders.state` was booted, in seconds of the wall clock."""


def _manager(pid: int = 900, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of several types
    group = "/user.slice/user-1000.slice/user@1000.service/init.scope"
    return process(pid, **{"comm": "systemd", "uid": 1000, "cgroup": group, **changes})


def test_start_on_the_wall_clock() -> None:
    """A start in ticks since boot becomes a time of the clock that file times are in, one tick later at most."""
    assert scores.started_unix_s(process(1, started_s=100.0), state()) == pytest.approx(BOOT_S + 100.01)


def test_user_managers_are_told_from_other_systemds() -> None:
    """PID 1, a manager's (sd-pam) and a nested unit are no user managers."""
    others = [
        process(1, comm="systemd", cgroup="/init.scope"),
        _manager(901, comm="(sd-pam)"),
        process(5, comm="systemd", cgroup="/system.slice/x.service"),
    ]
    assert [m["pid"] for m in scores.user_managers(state(processes=[*others, _manager()]))] == [900]


@pytest.mark.parametrize(
    ("changes", "written_s", "proof", "waiting"),
    [
        ({"started_s": 50.0}, BOOT_S + 10, None, []),
        ({"started_s": 5.0}, BOOT_S + 10, None, ["1000"]),
        ({"started_s": 5.0}, BOOT_S + 10, {"started_s": 5.0, "score": 0}, []),
        ({"started_s": 5.0}, BOOT_S + 10, {"started_s": 5.0, "score": 100}, ["1000"]),
        ({"started_s": 5.0}, BOOT_S + 10, {"started_s": 5.0, "score": None}, ["1000"]),
        ({"started_s": 5.0}, BOOT_S + 10, {"started_s": 4.0, "score": 0}, ["1000"]),
        ({"started_s": 50.0, "oom_score_adj": 100}, BOOT_S + 10, None, ["1000"]),
        ({"started_s": 5.0, "oom_score_adj": 100}, BOOT_S + 10, {"started_s": 5.0, "score": 0}, ["1000"]),
        ({"started_s": 5.0}, None, None, []),
    ],
)
def test_managers_with_an_old_default(
    changes: dict[str, Any], written_s: float | None, proof: dict[str, Any] | None, waiting: list[str]
) -> None:
    """A manager waits unless its own score allows the default, and it began after the file or was seen to comply."""
    found = state(
        processes=[_manager(**changes)],
        files={} if written_s is None else {FILE: ours(changed_s=written_s)},
        proofs={"user_managers": {"900": proof}} if proof else {},
    )
    assert scores.managers_with_old_default(found, FILE, 0) == waiting


def test_sessions_are_split_by_the_start_of_the_listener() -> None:
    """Sessions from before a restart of sshd keep the old score and are judged apart; other processes do not count."""
    listener = process(700, comm="sshd", started_s=50.0, oom_score_adj=-1000)
    others = [
        process(701, comm="sshd-session", started_s=60.0, oom_score_adj=0),
        process(702, comm="sshd", started_s=20.0, oom_score_adj=-1000),
        process(703, comm="bash", started_s=70.0, oom_score_adj=300),
    ]
    assert scores.session_scores(listener, state(processes=[listener, *others])) == ([0], [-1000])


def test_preferred_victims_are_named() -> None:
    """What people run with a higher score is named, and how many more there are; services and managers are not."""
    people = "/user.slice/user-1000.slice/session-1.scope"
    electron = [process(n, comm="code", oom_score_adj=300, cgroup=people) for n in range(scores.MAX_NAMED + 2)]
    service = process(99, comm="x", oom_score_adj=300, cgroup="/system.slice/x.service")
    text = scores.preferred_victims(state(processes=[*electron, service, _manager(oom_score_adj=100)]), 0)
    assert text.startswith("left as they are: code (pid 0) has 300, ")
    assert text.endswith(", 2 more")
    assert scores.preferred_victims(state(processes=[service]), 0) == ""
