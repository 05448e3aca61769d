"""From readings to verdicts, in their order of precedence."""

import copy
import datetime
import itertools
from typing import Any

import pytest

from plimsoll.box.judge import exit_code, judge, judge_one
from plimsoll.box.model import BAD, Judgement, Kind, Place, Verdict, Waiver, Wanted
from tests.unit.builders import file, ours, process, state, sysctl, unit, unit_property, unreadable

TODAY = datetime.date(2026, 11, 30)
OURS = "/etc/sysctl.d/zz-plimsoll.conf"


def _state(live: str, *files: dict[str, Any], present: bool = True) -> dict[str, Any]:
    found = {"sysctl_d": list(files), "etc_sysctl_conf": None, "ufw": None}
    return state(sysctl={"kernel.panic": {"value": live}}, sysctl_files=found, files={OURS: ours()} if present else {})


def _judge(found: dict[str, Any], waiver: Waiver | None = None) -> Judgement:
    return judge_one(sysctl("kernel.panic", "20", waiver=waiver), found, TODAY)


MINE = file(OURS, "kernel.panic = 20")
LATER = file("/etc/sysctl.d/zzz-admin.conf", "# mine\nkernel.panic = 5")
SAME = file("/etc/sysctl.d/zzz-admin.conf", "kernel.panic = 0x14")
TAKEN_BACK = file("/etc/sysctl.d/zzz-admin.conf", "-kernel.panic")
EMPTY = file("/etc/sysctl.d/zzz-admin.conf", "kernel.panic =  ")
UNSEEN = file("/etc/sysctl.d/zzz-admin.conf", "kernel.panic =\u00a020")
REFUSED = file("/etc/sysctl.d/zzz-admin.conf", "kernel.panic = 20s")


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (_state("20", MINE), Verdict.OK, ""),
        (_state("20", MINE, SAME), Verdict.OK, "also set in /etc/sysctl.d/zzz-admin.conf:1"),
        (_state("20", MINE, LATER), Verdict.SHADOWED, "/etc/sysctl.d/zzz-admin.conf:2 sets 5 and wins over"),
        (_state("5", MINE, LATER), Verdict.SHADOWED, "/etc/sysctl.d/zzz-admin.conf:2"),
        (_state("20", MINE, REFUSED), Verdict.SHADOWED, "sets 20s"),
        (_state("20", MINE, TAKEN_BACK), Verdict.SHADOWED, "/etc/sysctl.d/zzz-admin.conf:1 takes it back and wins"),
        (_state("20", MINE, EMPTY), Verdict.SHADOWED, "/etc/sysctl.d/zzz-admin.conf:1 sets nothing and wins"),
        (_state("20", MINE, UNSEEN), Verdict.SHADOWED, r"sets '\xa020' and wins"),
        (_state("5", MINE), Verdict.DRIFTED, "the running system has 5"),
        (_state("20"), Verdict.UNPERSISTED, "after a reboot it would be nothing set"),
        (_state("20", LATER, present=False), Verdict.UNPERSISTED, "it would be 5 (/etc/sysctl.d/zzz-admin.conf:2)"),
        (_state("5", present=False), Verdict.DRIFTED, "the running system has 5"),
        (_state("", MINE), Verdict.DRIFTED, "the running system has nothing set"),
        (_state("20", unreadable("/etc/sysctl.d/x.conf")), Verdict.UNKNOWN, "Input/output error"),
        (state(sysctl={"kernel.panic": {"absent": True}}), Verdict.UNSUPPORTED, "this kernel has no"),
    ],
)
def test_verdicts_of_a_sysctl(found: dict[str, Any], verdict: Verdict, words: str) -> None:
    """The verdict follows from live, persisted and who decides; the reason names the file and line."""
    judged = _judge(found)
    assert judged.verdict is verdict
    assert words in judged.reason


def test_shadowing_needs_our_file() -> None:
    """Where our file was never written, another one that decides does not shadow it: the value just differs."""
    assert _judge(_state("5", LATER, present=False)).verdict is Verdict.DRIFTED
    assert _judge(_state("5", LATER, present=False)).decided_by == Place("/etc/sysctl.d/zzz-admin.conf", 2)


def test_pending_needs_a_right_file() -> None:
    """What waits for a restart is pending only if what it would then read is right."""
    wanted = unit_property("j.service", "OOMScoreAdjust", "-1000")

    def verdict(text: str) -> Verdict:
        found = unit(process=process(5, oom_score_adj=0), drop_ins=[file(wanted.file, text)])
        return judge_one(wanted, state(units={"j.service": found}), TODAY).verdict

    assert verdict("[Service]\nOOMScoreAdjust=-1000") is Verdict.PENDING
    assert verdict("[Service]\nOOMScoreAdjust=0") is Verdict.DRIFTED


@pytest.mark.parametrize(
    ("until", "found", "verdict"),
    [
        ("2026-11-30", _state("5", MINE), Verdict.WAIVED),
        ("2026-11-29", _state("5", MINE), Verdict.DRIFTED),
        ("2027-01-01", _state("20"), Verdict.WAIVED),
        ("2027-01-01", _state("20", MINE, LATER), Verdict.WAIVED),
        ("2027-01-01", _state("20", MINE), Verdict.OK),
        ("2027-01-01", state(), Verdict.UNKNOWN),
        ("soon", _state("5", MINE), Verdict.UNKNOWN),
    ],
)
def test_waivers(until: str, found: dict[str, Any], verdict: Verdict) -> None:
    """A waiver covers what is bad until the end of its last day, and hides neither what is good nor what is unknown."""
    judged = _judge(found, Waiver("a test of ours", until))
    assert judged.verdict is verdict
    if verdict is Verdict.WAIVED:
        assert judged.reason.startswith("a test of ours (until")
    if verdict is Verdict.DRIFTED:
        assert judged.reason.endswith(f"the waiver ended on {until}")


@pytest.mark.parametrize(
    ("verdicts", "strict", "code"),
    [
        ((), False, 0),
        ((Verdict.OK, Verdict.WAIVED, Verdict.UNSUPPORTED, Verdict.PENDING), False, 0),
        ((Verdict.OK, Verdict.PENDING), True, 2),
        ((Verdict.DRIFTED, Verdict.OK), False, 2),
        ((Verdict.SHADOWED,), False, 2),
        ((Verdict.UNPERSISTED,), False, 2),
        ((Verdict.DRIFTED, Verdict.UNKNOWN), False, 3),
    ],
)
def test_exit_code(verdicts: tuple[Verdict, ...], strict: bool, code: int) -> None:
    """What could not be told comes before what is bad; what is pending counts only when asked for."""
    judgements = [Judgement("a/b", "a", v, "", None, None, None, "") for v in verdicts]
    assert exit_code(judgements, strict=strict) == code
    assert {Verdict.DRIFTED, Verdict.SHADOWED, Verdict.UNPERSISTED} == BAD


# --- a state that is not what it should be ----------------------------------------------------------

EVERYTHING = [
    sysctl("kernel.panic", "20"),
    unit_property("ssh.service", "MemoryMin", "256M"),
    unit_property("ssh.service", "OOMScoreAdjust", "-1000"),
    unit_property("user@.service", "OOMScoreAdjust", "0"),
    Wanted("m/j", "m", Kind.MANAGER_PROPERTY, "journald", "5", name="SyncIntervalSec", section="S", file="/f"),
    Wanted("m/u", "m", Kind.MANAGER_PROPERTY, "user", "5", name="DefaultOOMScoreAdjust", section="S", file="/f"),
    Wanted("m/s", "m", Kind.MANAGER_PROPERTY, "system", "5", name="RuntimeWatchdogSec", section="S", file="/f"),
    Wanted("u/s", "u", Kind.UNIT_STATE, "ssh.service", "enabled active"),
    Wanted("p/p", "p", Kind.PACKAGE, "earlyoom", "installed"),
    Wanted("f/f", "f", Kind.CONFIG_FILE, "/f", f"{'0' * 64} 0644", file="/f"),
    Wanted("c/c", "c", Kind.CMDLINE, "ssh.service", "[]", file="/f"),
    Wanted("o/o", "o", Kind.MODULE_OPTION, "nvidia", "0", name="X", file="/f"),
    Wanted("s/s", "s", Kind.SESSION_SCORE, "ssh.service", "0", name="OOMScoreAdjust", section="Service", file="/f"),
]  # fmt: skip


def _whole_state() -> dict[str, Any]:
    ssh = unit(
        process=process(700, comm="sshd", oom_score_adj=-1000),
        cgroup=[{"path": "/sys/fs/cgroup/x", "memory.min": "0", "cgroup.controllers": "memory"}],
        fragments=[file("/usr/lib/systemd/system/ssh.service", "[Service]\nExecStart=/usr/sbin/sshd $A")],
        drop_ins=[file("/etc/d/a.conf", "[Service]\nMemoryMin=256M")],
    )
    manager = process(900, comm="systemd", cgroup="/user@1.service/init.scope")
    return state(
        sysctl={"kernel.panic": {"value": "20"}},
        sysctl_files={"sysctl_d": [MINE], "etc_sysctl_conf": None, "ufw": None},
        units={"ssh.service": ssh, "user@.service": unit(), "systemd-journald.service": unit(process=process(300))},
        processes=[process(701, comm="sshd"), manager],
        files={"/f": ours()},
        modules={"nvidia": {"loaded": True, "files": [file("/m", "options nvidia X=0")]}},
        platform={"driver": {"system_memory_pools": 0}, "cmdline": ""},
        watchdogs=[{"identity": "i", "state": "active", "timeout": "5"}],
    )


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401  # any JSON
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *itertools.chain.from_iterable(_paths(v, (*path, k)) for k, v in items)]


PATHS = [path for path in _paths(_whole_state()) if path]
REMOVED = object()
JUNK: list[Any] = [None, 5, -1.5, "", "junk", [], {}, [None], {"error": "x"}, {"a": None}, True, "9" * 5000]


def _mangled(path: tuple[Any, ...], junk: Any) -> dict[str, Any]:  # noqa: ANN401  # any JSON
    found = copy.deepcopy(_whole_state())
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    if junk is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = junk
    return found


@pytest.mark.parametrize("junk", [*JUNK, REMOVED], ids=lambda junk: repr(junk)[:12])
def test_no_state_breaks_the_judge(junk: Any) -> None:  # noqa: ANN401  # any JSON
    """Whatever stands at whatever place of a state, every control gets a verdict under its own id."""
    for path in PATHS:
        judged = judge(EVERYTHING, _mangled(path, junk), TODAY)
        assert [j.id for j in judged] == [w.id for w in EVERYTHING], path


def test_what_is_not_understood_is_unknown() -> None:
    """A state without the section that a control needs is unknown, with what was missing."""
    found = _whole_state()
    del found["sysctl_files"]
    judged = _judge(found)
    assert judged.verdict is Verdict.UNKNOWN
    assert "sysctl_files" in judged.reason
