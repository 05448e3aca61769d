"""A host may answer with any JSON: it is judged or it is not, and nothing else comes of it."""

import copy
import datetime
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from plimsoll.box import state as live_state
from plimsoll.box.model import Verdict
from plimsoll.controls import plan
from plimsoll.fleet import compare, difference_table, explain, findings, gather, judging, junit, metrics, page, table
from plimsoll.fleet.report import HostReport, Report
from plimsoll.inventory import Host
from plimsoll.policy import Policy
from tests.unit.builders import process_files, stock_host, write_tree

TODAY = datetime.date(2026, 11, 30)
POLICY = Policy.model_validate({"layers": {"recovery": True, "driver_option": True}, "trims": ["cups.service"]})
HOST = Host("gx10", (), POLICY, ())
RULES = findings.load_rules()
LONGEST = "9" * 4300
"""Digits that int() still takes; json refuses a number with more."""
ODD: tuple[Any, ...] = (
    None, True, -1, 1e308, float("inf"), float("nan"), -0.0, int(LONGEST), "", "x", "9" * 5000, "²", "\ud800", "a=b",
    "\x1b[2J[bold]{0}%n", "infinity", "max", '["a"]', '["' + "[" * 5000, [], {}, [None], [[]], ["a", "b"], {"x": None},
    {"error": None}, {"text": 5, "path": "/a"}, {"path": None}, {"value": 5}, {"absent": True}, {"masked": True},
)  # fmt: skip

State = dict[str, Any]
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> State:
    """Return what a stock machine answers, with a driver, tuned and an included sshd file."""
    more = {
        "/sys/class/watchdog/watchdog0/state": "active\n",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.58.03  Release\n",
        "/proc/driver/nvidia/params": "EnableSystemMemoryPools: 1\n",
        "/sys/module/nvidia/version": "",
        "/etc/tuned/active_profile": "p\n",
        "/etc/tuned/p/tuned.conf": "[sysctl]\nvm.swappiness=3\n",
        "/etc/ssh/sshd_config": "Include /etc/ssh/sshd_config.d/*.conf\n",
        "/etc/ssh/sshd_config.d/a.conf": "UsePAM yes\n",
        "/etc/sysctl.d/a.conf": "vm.min_free_kbytes = 5\n",
    }
    host = stock_host(tmp_path_factory.mktemp("host"), **more)
    read: State = json.loads(json.dumps(live_state.read(plan.request(POLICY), host)))
    return read


def places(value: object, at: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every value in a state but the whole."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(state: State, place: Path_, value: object) -> State:
    """Return a copy of a state with one value replaced."""
    found = copy.deepcopy(state)
    parent: Any = found
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    return found


def judged(state: State) -> HostReport:
    """Return the report on a host that has answered with `state`."""
    return judging.host_report(gather.Answer(HOST, state, "", 5), RULES, TODAY)


def show_everything(host: HostReport) -> None:
    """Make every form of a report, and read back the one that is saved."""
    report = Report("2026-11-30T10:00:00+00:00", (host,))
    saved = compare.parse(json.dumps(report.to_json(), allow_nan=False).encode())
    console = Console(file=io.StringIO(), width=80)
    table.show(report, console, every=True)
    differences = compare.against_report(saved, report)
    assert not host.reached or differences == ()
    difference_table.show(differences, console)
    page.page(report)
    junit.junit(report)
    metrics.metrics(report)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_value_may_be_anything(honest: State, data: st.DataObject) -> None:
    """Whatever a host says in place of any value, a report comes of it that every form can show."""
    place = data.draw(st.sampled_from(list(places(honest))))
    state = changed(honest, place, data.draw(st.sampled_from(ODD)))
    found = judged(state)
    assert found.reached or found.exit_code() == 3
    show_everything(found)


def test_what_lacks_a_section_is_never_ok(honest: State) -> None:
    """A section that a control needs and that is missing leaves no control of that kind ok."""
    needed = {"sysctl": "kernel/kernel.", "units": "slices/", "files": "kernel/file:"}
    for section, prefix in needed.items():
        found = judged({key: value for key, value in honest.items() if key != section})
        mine = [judgement for judgement in found.controls if judgement.id.startswith(prefix)]
        assert not found.reached or (mine and all(j.verdict is Verdict.UNKNOWN for j in mine))


def test_a_value_that_is_no_text_is_unknown(honest: State) -> None:
    """A number where the kernel has text is no value of the kernel's, even where nothing is compared with it."""
    state = changed(honest, ("sysctl", "kernel.sysrq"), {"value": 438})
    state["sysctl_files"]["sysctl_d"] = [{"path": "/etc/sysctl.d/a.conf", "error": "Permission denied"}]
    (found,) = (j for j in judged(state).controls if j.id == "kernel/kernel.sysrq")
    assert (found.verdict, found.live) == (Verdict.UNKNOWN, None)


# --- size and time ----------------------------------------------------------------------------------


def drop_in(text: str) -> State:
    """Return a drop-in of sshd's with this text."""
    return {"path": "/etc/systemd/system/ssh.service.d/a.conf", "text": text}


@pytest.mark.parametrize(
    "text",
    [
        "[Service]\n" + "a\\\n" * 200_000,
        "[Service]\nOOMScoreAdjust=1" + "\\" * 2_000_000,
        "[Service]\nOOMScoreAdjust=" + "1" * 4_000_000,
        "[Service]\nExecStart=/x " + "'a " * 300_000,
    ],
    ids=["continued lines", "backslashes", "a long number", "open quotes"],
)
def test_a_long_file_takes_time_in_proportion(honest: State, text: str) -> None:
    """No file makes a judgement take more than a few seconds of processor time, and the host is judged all the same."""
    state = copy.deepcopy(honest)
    state["units"]["ssh.service"]["drop_ins"].append(drop_in(text))
    state["units"]["earlyoom.service"]["fragments"].append(drop_in(text))
    with judging.bounded(60):
        assert judging._judged(gather.Answer(HOST, state, "", 5), state, RULES, TODAY).reached


def test_what_takes_too_long_is_given_up(honest: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose answer takes too long to judge is not reached, with the reason, and holds nobody else up."""

    def endless(*_: object) -> tuple[()]:
        while True:
            pass

    monkeypatch.setattr(findings, "findings", endless)
    monkeypatch.setattr(judging.bounded.__wrapped__, "__defaults__", (0.2,))  # type: ignore[attr-defined]  # of contextlib
    started = time.process_time()
    found = judged(honest)
    assert (found.reached, found.exit_code()) == (False, 3)
    assert "takes more than 0.2 s" in found.problem
    assert time.process_time() - started < 5


def test_a_pattern_that_explodes_is_given_up(honest: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule's regular expression that never ends over what a host says costs no more than the limit."""
    rules = tmp_path / "rules.yml"
    fields = dict.fromkeys(("title", "seen", "why", "evidence", "source", "advice"), "x")
    rule = {"id": "x", "kind": "known_bad", "looks_at": "platform", "dated": "2026-01-01", **fields}
    rules.write_text(json.dumps({"rules": [{**rule, "when": {"cmdline": {"regex": "(a+)+$"}}}]}))
    monkeypatch.setattr(judging.bounded.__wrapped__, "__defaults__", (0.2,))  # type: ignore[attr-defined]  # of contextlib
    state = changed(honest, ("platform", "cmdline"), "a" * 60 + "!")
    answer = gather.Answer(HOST, state, "", 5)
    assert "takes more than" in judging.host_report(answer, findings.load_rules(tmp_path / "hosts.yml"), TODAY).problem
    assert explain.on_host("kernel/kernel.sysrq", answer).problem == ""


def _long_value(state: State) -> None:
    state["sysctl"]["kernel.sysrq"] = {"value": "1 " * 2_000_000}


def _long_places(state: State) -> None:
    state["sysctl_files"]["sysctl_d"].append({"path": "/etc/sysctl.d/" + "a" * 3_000_000, "text": "kernel.sysrq=1"})


def _many_not_seen(state: State) -> None:
    state["protections"]["not_seen"] = ["x" * 100] * 50_000


def _killers(state: State) -> None:
    state["protections"]["observations"] = [{"kind": "killer", "name": f"{i}{'x' * 3000}"} for i in range(1000)]


@pytest.mark.parametrize("lie", [_long_value, _long_places, _many_not_seen, _killers])
def test_a_report_is_small_whatever_the_answer(honest: State, lie: Callable[[State], None]) -> None:
    """A report is not larger than its controls and findings call for: every text in it is cut."""
    state = copy.deepcopy(honest)
    lie(state)
    found = judged(state)
    assert found.reached
    assert len(json.dumps(found.to_json())) < 500_000


def test_what_could_not_be_seen_is_a_list(honest: State) -> None:
    """A text in its place is not taken for a list of letters."""
    assert not judged(changed(honest, ("protections", "not_seen"), "all well")).reached


# --- what any user of a host may make ---------------------------------------------------------------

DIGITS = "9" * 5000
UNIT = f"""[Service]
ExecStart=/usr/bin/docker run -m {DIGITS}g --oom-score-adj {DIGITS} --gpus all x
MemoryMax={DIGITS}
RestartSec={DIGITS}
OOMScoreAdjust=-{DIGITS}
Restart=always
"""


def test_no_user_can_stop_an_audit(tmp_path: Path) -> None:
    """Units, accounts and command lines with absurd numbers are read past: the rest of the host is still told."""
    cgroup = "/user.slice/user-1000.slice/x"
    argv = f"docker\0run\0-m\0{'9' * 400}g\0x\0"
    files = {
        "/etc/passwd": f"u:x:1000:1::/home/u:/bin/sh\nv:x:{DIGITS}:1::/v:/x\nw:x:²:1::/w:/x\n",
        "/home/u/.config/systemd/user/a.service": UNIT,
        "/home/u/.config/systemd/user/b.service": UNIT.replace("docker run", "vllm serve"),
        **process_files(2000, "docker", cgroup=cgroup),
        **process_files(2001, "earlyoom", cgroup=cgroup),
        "/proc/2000/cmdline": argv,
        "/proc/2001/cmdline": f"earlyoom\0-m\0{DIGITS}\0-M\0{DIGITS}\0",
    }
    host = stock_host(tmp_path)
    write_tree(tmp_path, files)
    read = json.loads(json.dumps(live_state.read(plan.request(POLICY), host)))
    assert judged(read).reached
    assert {each["kind"] for each in read["protections"]["observations"]} >= {"docker_client", "earlyoom"}
