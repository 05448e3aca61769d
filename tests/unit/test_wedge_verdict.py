"""What logins mean, what several runs come to, and who counts as killed."""

import subprocess
import time

import pytest

from lab.wedge import kills, verdict
from lab.wedge.kills import Kill
from lab.wedge.places import PLACES
from lab.wedge.probe import Login, Prober
from lab.wedge.verdict import figure, idle_s, recovery_s, survived

IDLE_S = 2.0
GOOD = [Login(float(at_s), 2.1, True) for at_s in range(0, 20, 2)]
HUNG = [Login(float(at_s), 30.0, False) for at_s in range(20, 60, 2)]
CUT_OFF = Login(20.0, 0.4, False)


def test_a_machine_that_hangs_is_frozen() -> None:
    """One login that reached its limit is enough, also if later ones came back."""
    back = [Login(80.0, 2.0, True)]
    assert not survived(GOOD + HUNG)
    assert not survived(GOOD + HUNG[:1] + back)
    assert survived(GOOD)


def test_slow_or_cut_off_is_not_frozen() -> None:
    """A login of 29 s came back; one whose shell was killed is no wedge, unless it is the last."""
    slow = [Login(20.0, 29.0, True)]
    assert survived(GOOD + slow)
    assert survived([*GOOD, CUT_OFF, Login(22.0, 2.0, True)])
    assert not survived([*GOOD, CUT_OFF])
    assert not survived([])


def test_recovery_counts_from_the_first_bad_login() -> None:
    """It ends with the first login that is as before, after which none fails."""
    slow, back = Login(20.0, 6.0, True), Login(28.0, 2.5, True)
    assert recovery_s(GOOD, IDLE_S) == 0
    assert recovery_s([*GOOD, slow, back], IDLE_S) == 10.5
    assert recovery_s([*GOOD, slow, back, Login(30.0, 9.0, True)], IDLE_S) == 10.5
    assert recovery_s([*GOOD, slow, back, Login(30.0, 1.0, False), Login(32.0, 2.0, True)], IDLE_S) == 14.0


def test_never_as_before() -> None:
    """A machine that stays slow, or fails to the end, has not recovered."""
    assert recovery_s([*GOOD, Login(20.0, 3.0, True)], IDLE_S) is None
    assert recovery_s(GOOD + HUNG, IDLE_S) is None


def test_idle_is_the_median_of_what_came_back() -> None:
    """A login that failed says nothing about the time of one; without any there is no idle time."""
    assert idle_s([Login(0, 1.0, True), Login(0, 30.0, False), Login(0, 1.2, True), Login(0, 9.0, True)]) == 1.2
    with pytest.raises(ValueError, match="no login to the idle machine came back"):
        idle_s([Login(0, 30.0, False)])


def test_figures_are_medians_with_their_spread() -> None:
    """Median, least and greatest; one run has no spread, none has no figure."""
    assert figure([3, 1, 2]) == (2, 1, 3, 3)
    assert str(figure([3, 1, 2])) == "2.0 (1.0-3.0)"
    assert str(figure([4.25])) == "4.2"
    assert figure([]) is None


# --- who was killed ---------------------------------------------------------------------------------

KERNEL = [
    (
        "Out of memory: Killed process 812 (systemd) total-vm:22000kB, anon-rss:3000kB, file-rss:0kB, shmem-rss:0kB, "
        "UID:1000 pgtables:88kB oom_score_adj:100"
    ),
    "Memory cgroup out of memory: Killed process 900 (a (b) total-vm) total-vm:1kB, anon-rss:1kB",
    "oom_reaper: reaped process 812 (systemd), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
]
OTHERS = [
    ("earlyoom", 'sending SIGTERM to process 501 uid 0 "VLLM::EngineCor": oom_score 700, VmRSS 32 MiB'),
    ("earlyoom", 'sending SIGKILL to process 501 uid 0 "VLLM::EngineCor": oom_score 700, VmRSS 32 MiB'),
    ("earlyoom", "sending SIGTERM when mem avail <= 10.00% and swap free <= 10.00%,"),
    (
        "systemd-oomd",
        (
            "Killed /system.slice/engine.service due to memory pressure for /system.slice being 61.12% > 50.00% for > "
            "30s with reclaim activity"
        ),
    ),
    ("systemd", "engine.service: Main process exited, code=killed, status=9/KILL"),
    ("sshd", "engine.service: Main process exited, code=killed, status=9/KILL"),
]


def of_engine(kill: Kill) -> bool:
    """Whether a kill hit the model server."""
    return kills.is_engine(kill, ("vllm", "VLLM::EngineCor"), PLACES["unit"].cgroup)


def test_kills_by_the_kernel() -> None:
    """Only the lines that tell of a kill count, with whatever stands in a name."""
    found = kills.collected(KERNEL, [], [], of_engine)
    assert found == [Kill(812, "systemd", "kernel"), Kill(900, "a (b) total-vm", "kernel")]
    assert not any(of_engine(kill) for kill in found)


def test_kills_by_others_count_once() -> None:
    """SIGTERM and then SIGKILL is one kill, and systemd's word on the same end adds nothing."""
    found = kills.collected([], OTHERS, [], of_engine)
    assert found == [Kill(501, "VLLM::EngineCor", "earlyoom"), Kill(0, "engine.service", "systemd-oomd")]
    assert all(of_engine(kill) for kill in found)


def test_an_end_that_nobody_owned_up_to() -> None:
    """A unit whose process was killed by somebody who logs nothing is known by systemd's word."""
    found = kills.collected(KERNEL[:1], OTHERS[-2:-1], [], of_engine)
    assert found == [Kill(812, "systemd", "kernel"), Kill(0, "engine.service", "signal KILL")]


def test_the_same_line_from_two_logs_is_one_kill() -> None:
    """The console and kern.log have the same kill."""
    assert (
        len(kills.collected([KERNEL[0], f"2026-11-30T13:00:00+00:00 gx10 kernel: {KERNEL[0]}"], [], [], of_engine)) == 1
    )


GUARD = """\
{"kind": "decision", "verb": "kill", "victim": {"name": "engine.service"}}
{"kind": "signalled", "victim": {"name": "engine", "cgroup": "/system.slice/engine.service", "whole_cgroup": true, \
"processes": [{"pid": 501, "start_ticks": 1}]}}
{"kind": "signalled", "victim": {"name": "python3", "cgroup": "/user.slice/session-4.scope", "whole_cgroup": false, \
"processes": [{"pid": 77, "start_ticks": 1}]}}
{"kind": "recovered"}
{"kind": "signal"""


def test_kills_by_the_guard() -> None:
    """What the guard has really signalled counts: a cgroup by its name, or a process by its number; no torn line."""
    found = kills.collected([], OTHERS[-2:-1], GUARD.splitlines(), of_engine)
    assert found == [Kill(0, "engine.service", "plimsoll"), Kill(77, "python3", "plimsoll")]
    assert [of_engine(kill) for kill in found] == [True, False]


@pytest.mark.parametrize(
    ("place", "name", "hit"),
    [
        ("scope", "engine.scope", True),
        ("scope", "ssh.service", False),
        ("user", "user@1000.service", False),
        ("shell", "session-12.scope", True),
        ("container", f"docker-{'0a' * 32}.scope", True),
        ("exec", "docker.service", False),
        ("podman", f"libpod-{'0a' * 32}.scope", True),
    ],
)
def test_the_cgroup_of_each_place(place: str, name: str, hit: bool) -> None:
    """A kill of the cgroup in which the workload is hits the workload, and one of another cgroup a bystander."""
    assert kills.is_engine(Kill(0, name, "systemd-oomd"), (), PLACES[place].cgroup) is hit


# --- logins -----------------------------------------------------------------------------------------


def test_a_login_that_hangs_does_not_stop_the_next() -> None:
    """Logins begin on time while others hang; those that reach the limit are given up, the rest are timed."""
    commands = [["sleep", "60"], ["sleep", "0.05"], ["false"]]
    seen: list[Login] = []
    started_s = time.monotonic()
    prober = Prober(lambda: subprocess.Popen(commands.pop(0)), seen.append, started_s, limit_s=3)
    found = prober.run(window_s=1.25, interval_s=0.5)
    assert [login.ok for login in found] == [False, True, False]
    assert [login.at_s for login in found] == pytest.approx([0, 0.5, 1], abs=0.4)
    assert found[0].took_s == 3
    assert found[1].took_s < 2.5
    assert found[2].took_s < 2.5
    assert sorted(seen) == found
    assert not commands


def test_a_frozen_machine_is_not_waited_for() -> None:
    """Once a login has timed out and none has come back since, those under way are left out."""
    children: list[subprocess.Popen[bytes]] = []

    def hang() -> "subprocess.Popen[bytes]":
        children.append(subprocess.Popen(["sleep", "60"]))
        return children[-1]

    started_s = time.monotonic()
    found = Prober(hang, lambda _: None, started_s, limit_s=1).run(window_s=1.5, interval_s=0.4)
    assert time.monotonic() - started_s < 20
    assert len(found) < len(children) == 4
    assert not any(login.ok for login in found)
    assert all(child.returncode == -9 for child in children)


def test_again_is_one_and_a_half_times_idle() -> None:
    """The factor that the page names is the one that is used."""
    at_limit = Login(30.0, IDLE_S * verdict.AGAIN, True)
    just_below = Login(32.0, IDLE_S * verdict.AGAIN - 0.01, True)
    assert recovery_s([*GOOD, at_limit], IDLE_S) is None
    assert recovery_s([*GOOD, just_below], IDLE_S) == 0
