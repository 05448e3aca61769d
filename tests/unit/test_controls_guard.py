"""The layer guard: what it writes, and how it is seen that the running guard is the wanted one."""

import hashlib
import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from facts.guard import Heartbeat
from plimsoll import zipapp
from plimsoll.box import heartbeat, revert, verify
from plimsoll.box.guard import config
from plimsoll.box.guard.model import KIB_PER_GIB, Rule
from plimsoll.box.host import Ran
from plimsoll.box.model import Kind, Verdict, Wanted
from plimsoll.box.readings import reading
from plimsoll.box.resolve import parse_ini
from plimsoll.controls import guard, plan, render
from plimsoll.policy import Policy
from tests.unit.builders import NEEDS_ROOT, FakeHost, ours, process, process_files, state, stock_host, unit, write_tree
from tests.unit.test_plan import TODAY, carry_out, look

LAB_KIB = 1_500_000
PID = 900
ONLY_GUARD: dict[str, Any] = {
    "layers": {
        **dict.fromkeys(("kernel", "slices", "journald", "sshd", "user_manager", "earlyoom"), False),
        "guard": True,
    }
}
OLD = "0" * 64


def toml(mem_total_kib: int = LAB_KIB, **choices: Any) -> str:  # noqa: ANN401  # sections of a policy
    """Return the guard.toml that a host with this policy gets."""
    policy = Policy.model_validate(choices)
    host = {"platform": {"mem_total_kib": mem_total_kib}, "units": {}}
    wanted = [each for control in guard.CONTROLS for each in control.wanted(policy, host, lambda _id: None)]
    files = {file.path: file for file in render.layer_files("guard", wanted, [])}
    return files[guard.FILE].content.decode()


# --- the configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("mem_total_kib", [LAB_KIB, round(121.6 * KIB_PER_GIB), 512 * KIB_PER_GIB])
def test_the_lines_are_the_policys_scaled_to_the_host(mem_total_kib: int) -> None:
    """The guard reads its lines as the ladder has them for this MemTotal, to two digits, on machines of any size."""
    ladder = {"slow_leave_gib": 12.0, "slow_enter_gib": 10.0, "floor_gib": 4.0}
    found = config.load(toml(mem_total_kib, ladder=ladder), guard.FILE, mem_total_kib).settings.lines
    here = Policy.model_validate({"ladder": ladder}).ladder.scaled(mem_total_kib)
    for name in ("slow_leave_kib", "slow_enter_kib", "floor_kib"):
        assert getattr(found, name) == pytest.approx(getattr(here, name), rel=0.05)


def test_another_boots_memory_is_no_change() -> None:
    """MemTotal differs by some KiB from boot to boot, and the file does not."""
    assert toml(LAB_KIB) == toml(LAB_KIB - 12) == toml(LAB_KIB + 40)


def test_a_default_install_arms_nothing_by_word() -> None:
    """Without a word in the policy every rule arms itself, or does not."""
    found = config.load(toml(), guard.FILE, LAB_KIB)
    assert set(found.arming.values()) == {config.Arming.AUTO}
    assert found.hook_command == ()
    assert found.metrics_file == ""


def test_the_policys_words_arrive() -> None:
    """Modes, selectors, the hook, the metrics, the groups and the figures are what the guard then goes by."""
    awkward = 'unit:a "quoted" \\ ü 𝄞*'
    found = config.load(
        toml(
            guard={
                "mode": "observe",
                "rules": {"floor": "armed"},
                "protect": [awkward],
                "prefer": ["command:vllm*"],
                "attributed_min_mib": 32.0,
                "fallback_min_gib": 0.5,
                "hook_command": ["/bin/page", "it's gone"],
                "metrics_file": "/var/lib/metrics/plimsoll.prom",
                "reserve_groups": ["engines"],
            }
        ),
        guard.FILE,
        LAB_KIB,
    )
    assert found.arming == dict.fromkeys(Rule, config.Arming.OBSERVE) | {Rule.FLOOR: config.Arming.ARMED}
    assert [f"{each.kind}:{each.pattern}" for each in (*found.protect, *found.prefer)] == [awkward, "command:vllm*"]
    assert found.settings.attributed_min_kib == 32 << 10
    assert found.settings.fallback_min_kib == KIB_PER_GIB // 2
    assert found.hook_command == ("/bin/page", "it's gone")
    assert found.metrics_file == "/var/lib/metrics/plimsoll.prom"
    assert found.reserve_groups == ("engines",)


def test_what_the_policy_leaves_open_is_the_guards_to_choose() -> None:
    """A figure that nobody has set is not written, so that a later version's default counts."""
    assert set(tomllib.loads(toml())["victims"]) == {"protect", "prefer"}


# --- the units --------------------------------------------------------------------------------------


def _unit_lines(name: str, **choices: Any) -> dict[str, list[str]]:  # noqa: ANN401  # as above
    policy = Policy.model_validate(choices)
    host = {"platform": {"mem_total_kib": LAB_KIB}, "units": {}}
    wanted = [each for control in guard.CONTROLS for each in control.wanted(policy, host, lambda _id: None)]
    (file,) = [each for each in render.layer_files("guard", wanted, []) if each.path.endswith(f"/{name}")]
    found: dict[str, list[str]] = {}
    for line in parse_ini({"path": file.path, "text": file.content.decode()}):
        found.setdefault(line.key, []).append(line.value)
    return found


def test_the_guards_unit_lets_it_do_its_work() -> None:
    """What its work needs is not taken from it: writing below /proc/sys and /sys, the driver's devices, signals."""
    found = _unit_lines(guard.UNIT)
    for forbidden in (
        "ProtectKernelTunables", "ProtectControlGroups", "ProtectKernelLogs", "ProtectClock", "PrivateDevices",
        "PrivateUsers", "PrivateNetwork", "MemoryDenyWriteExecute", "DeviceAllow",
    ):  # fmt: skip
        assert forbidden not in found
    assert found["LimitMEMLOCK"] == ["infinity"]
    assert {"CAP_KILL", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"} <= set(found["CapabilityBoundingSet"][0].split())
    assert (found["Type"], found["Restart"], found["StartLimitIntervalSec"]) == (["notify"], ["always"], ["0"])


def test_the_metrics_directory_can_be_written_to() -> None:
    """Only with metrics is a directory beyond the guard's own opened to it; that it is missing is no failure."""
    assert "ReadWritePaths" not in _unit_lines(guard.UNIT)
    found = _unit_lines(guard.UNIT, guard={"metrics_file": "/var/lib/metrics/plimsoll.prom"})
    assert found["ReadWritePaths"] == ["-/var/lib/metrics"]


def test_nothing_but_a_missing_ping_restarts_the_box() -> None:
    """Every exit code and every signal of the last resort counts as success, and no start or end of it is a failure."""
    found = _unit_lines(guard.LAST_RESORT, guard={"last_resort": True})
    clean = {word for line in found["SuccessExitStatus"] for word in line.split()}
    assert {str(code) for code in range(1, 256)} <= clean
    assert {"SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS", "SIGTERM"} <= clean
    assert (found["FailureAction"], found["TimeoutStartSec"]) == (["reboot-immediate"], ["infinity"])
    assert found["Restart"] == ["on-success"]


# --- the heartbeat ----------------------------------------------------------------------------------


def _said(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any of the fields
    good = {
        "pid": PID,
        "program_sha256": "a" * 64,
        "config_sha256": "c" * 64,
        "sample_age_s": 0.4,
        "locked_kib": 20_000,
    }
    return {**good, **changes}


def _seen(said: dict[str, Any] | None, pid: int | None = PID) -> dict[str, Any]:
    running = unit(process=process(pid, comm="python3") if pid else None)
    files = {guard.FILE: ours(sha256="c" * 64)}
    return state(units={guard.UNIT: running}, files=files, heartbeat=said)


def _wanted(name: str, value: str, file: str = "") -> Wanted:
    return Wanted(f"guard/{name}", "guard", Kind.HEARTBEAT, guard.UNIT, value, name=name, file=file)


WANTED = {
    "program": _wanted("program", "a" * 64),
    "configuration": _wanted("configuration", "{}", guard.FILE),
    "memory": _wanted("memory", "locked"),
    "sample": _wanted("sample", "fresh"),
}


@pytest.mark.parametrize("name", WANTED)
def test_a_guard_as_it_should_be(name: str) -> None:
    """Each part of a good heartbeat is right."""
    assert reading(WANTED[name], _seen(_said())).live_right is True


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("program", {"program_sha256": "b" * 64}, "another version than the installed program"),
        ("configuration", {"config_sha256": "d" * 64}, "another content than that of /etc/plimsoll/guard.toml"),
        ("memory", {"locked_kib": 0}, "its memory is not locked"),
        ("memory", {"locked_kib": None}, "its memory is not locked"),
        ("sample", {"sample_age_s": 10.0}, "its last sample is 10 s old"),
        ("sample", {"sample_age_s": -5.0}, "its last sample is -5 s old"),
    ],
)
def test_a_guard_that_is_not_as_it_should_be(name: str, change: dict[str, Any], words: str) -> None:
    """Each fault is found by its own control, and no other one has it."""
    for other, wanted in WANTED.items():
        found = reading(wanted, _seen(_said(**change)))
        assert found.live_right is (other != name)
        assert (words in found.drift) is (other == name) or other != name


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize(
    ("said", "pid", "words"),
    [
        (_said(), None, "is not running"),
        (None, PID, "has not said how it is"),
        (_said(pid=4), PID, "has not said how it is"),
    ],
)
def test_a_guard_that_says_nothing(name: str, said: dict[str, Any] | None, pid: int | None, words: str) -> None:
    """One that does not run, or whose status is another process's, is drift and not ok."""
    found = reading(WANTED[name], _seen(said, pid))
    assert words in found.drift
    assert not found.live_right


def test_a_status_that_cannot_be_read_is_unknown() -> None:
    """What could not be looked at is neither good nor bad."""
    found = reading(WANTED["sample"], _seen({"error": "/run/plimsoll/status.json: Permission denied"}))
    assert "Permission denied" in found.unknown


def _status(**guard_fields: Any) -> str:  # noqa: ANN401  # any of the fields
    fields = {"pid": PID, "program_sha256": "a", "config_sha256": "c", "sampled_monotonic_s": time.monotonic() - 2}
    return json.dumps({"schema": heartbeat.STATUS_SCHEMA, "guard": {**fields, **guard_fields}})


def test_the_heartbeat_is_read(tmp_path: Path) -> None:
    """The age is by the clock that nobody sets, and what is locked is the kernel's figure and not the guard's."""
    write_tree(
        tmp_path, {heartbeat.STATUS: _status(locked_kib=5), f"/proc/{PID}/status": "Name:\tx\nVmLck:\t   20480 kB\n"}
    )
    found = heartbeat.read(FakeHost(root=str(tmp_path)))
    assert found is not None
    assert 1.9 < found.pop("sample_age_s") < 30
    assert found == {"pid": PID, "program_sha256": "a", "config_sha256": "c", "locked_kib": 20480}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"schema": "plimsoll.status/2"}', _status(pid="x"), _status(pid=None), "[" * 50_000,
     json.dumps({"schema": heartbeat.STATUS_SCHEMA}), json.dumps({"schema": heartbeat.STATUS_SCHEMA, "guard": None})],
    ids=["empty", "a list", "null", "a later schema", "pid a text", "pid null", "too deep", "no guard", "guard null"],
)  # fmt: skip
def test_a_status_that_is_none_is_an_error(text: str, tmp_path: Path) -> None:
    """Whatever the file holds, it is told, and nothing is made of it."""
    write_tree(tmp_path, {heartbeat.STATUS: text})
    found = heartbeat.read(FakeHost(root=str(tmp_path)))
    assert found is not None
    assert heartbeat.STATUS in found["error"]


def test_a_host_without_a_guard_has_no_heartbeat(tmp_path: Path) -> None:
    """Nothing there is nothing said, and no error."""
    assert heartbeat.read(FakeHost(root=str(tmp_path))) is None


# --- a deploy ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuardedHost(FakeHost):
    """A machine on which a guard starts when it is told to, and then says how it is."""

    program: Callable[[], str] = lambda: hashlib.sha256(zipapp.build()).hexdigest()

    def run(self, *argv: str, timeout_s: float = 20, given: str | None = None) -> Ran:
        """Start the guard with systemctl start, restart or reload."""
        ran = super().run(*argv, timeout_s=timeout_s, given=given)
        starts = argv[:2] == ("systemctl", "start")
        follows = argv[:2] in (("systemctl", "restart"), ("systemctl", "reload"))
        if argv[-1] == guard.UNIT and ran.code == 0 and (starts or (follows and self._runs())):
            self._start()
        return ran

    def _runs(self) -> bool:
        return self.units.get(guard.UNIT, {}).get("ActiveState") == "active"

    def _start(self) -> None:
        group = f"/system.slice/{guard.UNIT}"
        files = process_files(PID, "python3", score=-1000, cgroup=group, started=2_000_000_000)
        config_sha256 = hashlib.sha256(self.content(guard.FILE)).hexdigest()
        said = _status(program_sha256=self.program(), config_sha256=config_sha256)
        limits = {"memory.min": "50331648", "cpu.weight": "1000", "io.weight": "default 1000"}
        write_tree(
            Path(self.root),
            {
                **files,
                **{f"/sys/fs/cgroup{group}/{name}": f"{value}\n" for name, value in limits.items()},
                "/sys/fs/cgroup/system.slice/memory.min": "805306368\n",
                f"/proc/{PID}/status": "VmLck:\t 100 kB\n",
                heartbeat.STATUS: said,
            },
        )
        self.units[guard.UNIT] |= {"Id": guard.UNIT, "MainPID": str(PID), "ControlGroup": group}


def _guarded(root: Path, **fields: Any) -> GuardedHost:  # noqa: ANN401  # those of the class
    stock = stock_host(root)
    return GuardedHost(root=stock.root, units=stock.units, **fields)


def _planned(host: FakeHost, **choices: Any) -> plan.HostPlan:  # noqa: ANN401  # sections of a policy
    policy = Policy.model_validate({**ONLY_GUARD, **choices})
    return plan.host_plan(policy, look(host, policy), lambda _id: None, TODAY)


def _bad(found: plan.HostPlan) -> dict[str, str]:
    return {j.id: j.reason for j in found.judgements if j.layer == "guard" and j.verdict is not Verdict.OK}


def test_a_first_deploy_starts_it_once(tmp_path: Path) -> None:
    """Files come first; nothing is restarted or handed over that was only just started."""
    found = _planned(_guarded(tmp_path)).layer("guard")
    assert [change.file.path for change in found.changes] == [
        guard.FILE,
        f"/etc/systemd/system/{guard.UNIT}",
        f"/etc/systemd/system/{guard.UNIT}.d/plimsoll.conf",
    ]
    names = [action[0] for action in found.actions]
    assert (names[:2], names[-1]) == (["daemon-reload", "enable"], "start")
    assert set(names[2:-1]) == {"hand-over", "renew"}


@NEEDS_ROOT
def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    """After a deploy every control of the layer is ok, and there is no work left."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host))
    again = _planned(host)
    assert _bad(again) == {}
    assert not again.layer("guard")


@NEEDS_ROOT
def test_the_box_sees_a_guard_that_hangs(tmp_path: Path) -> None:
    """The box's own judgement goes by the sample's time, and not by the process being there."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host))
    write_tree(tmp_path, {heartbeat.STATUS: host.text(heartbeat.STATUS).replace(": 1", ": 0.1", 1)})
    document = json.loads(host.text(heartbeat.STATUS))
    document["guard"]["sampled_monotonic_s"] -= 60
    write_tree(tmp_path, {heartbeat.STATUS: json.dumps(document)})
    wanted, _command = verify.load_wanted(host)
    bad = {j.id: j.verdict for j in verify.judge_host(host, wanted) if j.layer == "guard" and j.verdict != "ok"}
    assert bad == {"guard/sample": Verdict.DRIFTED}


@NEEDS_ROOT
def test_an_upgrade_is_handed_over_and_not_restarted(tmp_path: Path) -> None:
    """A guard of an older program is followed by the new one through reload."""
    host = _guarded(tmp_path, program=lambda: OLD)
    carry_out(host, _planned(host))
    found = _planned(host)
    assert list(_bad(found)) == ["guard/program"]
    assert found.layer("guard").actions == (("hand-over", guard.UNIT),)
    host.calls.clear()
    carry_out(host, found)
    assert ("systemctl", "reload", "--", guard.UNIT) in host.calls
    assert not [call for call in host.calls if call[:2] == ("systemctl", "restart")]


@NEEDS_ROOT
def test_other_lines_are_read_without_a_restart(tmp_path: Path) -> None:
    """A change of the policy's lines rewrites the file and has the running guard read it."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host))
    changed = _planned(host, ladder={"floor_gib": 4.0})
    assert [change.file.path for change in changed.layer("guard").changes] == [guard.FILE]
    assert changed.layer("guard").actions == (("hand-over", guard.UNIT),)
    carry_out(host, changed)
    assert _bad(_planned(host, ladder={"floor_gib": 4.0})) == {}


@NEEDS_ROOT
@pytest.mark.parametrize(("file", "text", "control"), [
    (f"/proc/{PID}/status", "VmLck:\t 0 kB\n", "guard/memory"),
    (f"/proc/{PID}/oom_score_adj", "0\n", "guard/OOMScoreAdjust"),
])  # fmt: skip
def test_a_guard_that_has_lost_something_is_started_again(tmp_path: Path, file: str, text: str, control: str) -> None:
    """What a running process cannot be given back is had by a new one."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host))
    write_tree(tmp_path, {file: text})
    found = _planned(host)
    assert list(_bad(found)) == [control]
    assert found.layer("guard").actions == (("restart", guard.UNIT),)


@NEEDS_ROOT
def test_a_slice_without_protection_is_seen(tmp_path: Path) -> None:
    """The guard's memory.min counts only as far as its slice has it."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host))
    write_tree(tmp_path, {"/sys/fs/cgroup/system.slice/memory.min": "0\n"})
    assert "its ancestor system.slice has only 0" in _bad(_planned(host))["guard/MemoryMin"]


# --- the last resort --------------------------------------------------------------------------------

WITH_LAST_RESORT = {"guard": {"last_resort": True}}


@NEEDS_ROOT
def test_the_last_resort_comes_and_goes_with_the_policy(tmp_path: Path) -> None:
    """Asked for it is started; no longer asked for it is stopped and not started at boot, and then there is no work."""
    host = _guarded(tmp_path)
    assert guard.LAST_RESORT not in str(_planned(host).layer("guard").to_json())
    carry_out(host, _planned(host, **WITH_LAST_RESORT))
    assert (
        host.units[guard.LAST_RESORT] | {"UnitFileState": "enabled", "ActiveState": "active"}
        == host.units[guard.LAST_RESORT]
    )
    assert not _planned(host, **WITH_LAST_RESORT).layer("guard")
    off = _planned(host)
    assert off.layer("guard").actions == (("disable", guard.LAST_RESORT), ("stop", guard.LAST_RESORT))
    carry_out(host, off)
    assert not _planned(host).layer("guard")


@NEEDS_ROOT
def test_a_revert_leaves_nothing_that_runs(tmp_path: Path) -> None:
    """Both units are stopped with what they keep, their files go, and what follows a change of those is no failure."""
    host = _guarded(tmp_path)
    carry_out(host, _planned(host, **WITH_LAST_RESORT))
    outcomes = list(revert.revert(host, "guard"))
    assert {outcome for outcome, _line in outcomes} == {"done"}
    for name in (guard.UNIT, guard.LAST_RESORT):
        assert host.units[name]["ActiveState"] == "inactive"
        assert ("systemctl", "clean", "--what=state", "--", name) in host.calls
        assert not host.exists(f"/etc/systemd/system/{name}")
    assert not host.exists(guard.FILE)


@pytest.mark.parametrize("section", [None, {"pid": 5}])
def test_a_fact_of_it_can_be_asked_for(section: dict[str, Any] | None) -> None:
    """The section of the host's state is the fact, after whatever greeting; without a guard there is none."""
    assert Heartbeat().process(["Welcome", json.dumps({"heartbeat": section})]) == section
