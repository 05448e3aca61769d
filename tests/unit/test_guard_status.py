"""What a status says, how it is shown, and what a collector gets of it."""

import argparse
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import cli_status, heartbeat
from plimsoll.box.errors import UsageError
from plimsoll.box.guard import glance, status, status_view
from plimsoll.box.guard.arming import Arming, Standing
from plimsoll.box.guard.config import Arming as Mode
from plimsoll.box.guard.model import (
    KIB_PER_GIB,
    Known,
    Lines,
    Mood,
    Process,
    Reservation,
    Rule,
    Sample,
    Settings,
    State,
    Stopping,
    Workload,
)
from plimsoll.box.host import Host
from tests.unit.builders import write_tree
from tests.unit.test_docs import _fits

GIB = 1 << 30
LINES = Lines(3 * KIB_PER_GIB, 8 * KIB_PER_GIB, 9 * KIB_PER_GIB)
SETTINGS = Settings(LINES)
EVIL = "vllm\x1b[2J\n\u202e\x9b31m\ud800"


def _workload(name: str, **changes: Any) -> Workload:  # noqa: ANN401  # any of the fields
    base = Workload(
        key=f"/system.slice/{name}",
        name=name,
        kind="container",
        cgroup=f"/system.slice/{name}",
        whole_cgroup=True,
        processes=(Process(1, 1),),
        engine="vllm",
        holds_gpu=True,
        attributed_kib=20 * KIB_PER_GIB,
        resident_kib=KIB_PER_GIB,
        grew_kib=0,
        started_s=1.0,
    )
    return replace(base, **changes)


def _seen(**changes: Any) -> status.Seen:  # noqa: ANN401  # as above
    sample = Sample(100.0, 20 * KIB_PER_GIB, 5 * KIB_PER_GIB, 1.25, "C")
    guard = status.Guard(7, 1.0, "a" * 64, "c" * 64, time.monotonic(), 20_000, 113.0)
    base = status.Seen(
        unix_s=1_800_000_000.0,
        settings=SETTINGS,
        state=State(100.0, 20 * KIB_PER_GIB, 1024.0, 2048.0, 4096.0),
        sample=sample,
        basis="MemAvailable - (KReclaimable - SReclaimable)",
        mem_total_kib=121 * KIB_PER_GIB,
        mem_available_kib=111 * KIB_PER_GIB,
        known=Known(),
        guard=guard,
    )
    return replace(base, **changes)


def _document(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    return status.document(_seen(**changes))


# --- the document -----------------------------------------------------------------------------------


def test_memory_and_margins() -> None:
    """Sizes are bytes; the kernel's own figure stands beside the one that counts; margins are to each line."""
    found = _document()
    assert (found["available_bytes"], found["mem_available_bytes"]) == (20 * GIB, 111 * GIB)
    assert found["margins"]["floor"] == 17 * GIB
    assert found["margins"]["slow"] == 12 * GIB
    assert found["margins"]["rate"] == 17 * GIB - 1024 * 1024
    assert found["falls_bytes_per_s"] == 2048 * 1024


def test_what_is_unknown_is_null() -> None:
    """An unknown level has no margin and no rate, and is nowhere 0."""
    found = _document(sample=Sample(100.0, None), state=State(100.0), mem_available_kib=None)
    assert found["available_bytes"] is None
    assert set(found["margins"].values()) == {None}
    assert found["falls_bytes_per_s"] is None
    _fits("status", found)


def test_who_would_be_stopped_comes_first() -> None:
    """The one that goes next, then those that could, then those that never do, each with its reason."""
    workloads = (
        _workload("desktop", attributed_kib=1000),
        _workload("old", started_s=1.0),
        _workload("new", started_s=2.0),
        _workload("mine", protected="the configuration says so"),
    )
    found = _document(known=Known(workloads))["candidates"]
    assert [(each["name"], each["verdict"]) for each in found] == [
        ("new", "next"),
        ("old", "possible"),
        ("desktop", "spared"),
        ("mine", "spared"),
    ]
    assert found[3]["reason"] == "protected: the configuration says so"


def test_the_container_that_goes_where_nobody_holds_the_gpu() -> None:
    """Without a holder the largest container is named as what it is."""
    big = _workload("big", holds_gpu=False, attributed_kib=None, resident_kib=20 * KIB_PER_GIB)
    assert [each["verdict"] for each in _document(known=Known((big,)))["candidates"]] == ["fallback"]


def test_two_workloads_of_one_name_are_told_apart() -> None:
    """The verdict is by what a workload is told by, and not by the name that it gives itself."""
    twins = (_workload("a", key="x", started_s=1.0), _workload("a", key="y", started_s=2.0))
    found = _document(known=Known(twins))["candidates"]
    assert [(each["key"], each["verdict"]) for each in found] == [("y", "next"), ("x", "possible")]


def test_a_rule_is_armed_as_the_decisions_have_it() -> None:
    """What a dry run has disarmed is not armed, whatever is kept of it."""
    kept = Arming((Standing(Rule.FLOOR, Mode.AUTO, True, "armed: nothing was below", 5.0),))
    dry = _document(settings=replace(SETTINGS, armed=frozenset()), arming=kept)["rules"][0]
    assert dry == {
        "rule": "floor",
        "armed": False,
        "why": "armed: nothing was below",
        "since_unix_s": 5.0,
        "stopped": 0,
    }
    assert _document(arming=kept, counts={"floor": 2})["rules"][0] == {**dry, "armed": True, "stopped": 2}


def _full() -> dict[str, Any]:
    reservation = Reservation("r", "unit:x", 50 * KIB_PER_GIB, 90.0, 200.0, 60 * KIB_PER_GIB, 5 * KIB_PER_GIB)
    victim = _workload(EVIL)
    stopping = Stopping(victim, Rule.SLOW, 95.0, 98.0)
    return _document(
        known=Known((victim, _workload("b")), (reservation,)),
        state=State(100.0, 20 * KIB_PER_GIB, mood=Mood(stopping=stopping)),
        actions=[{"at": f"t{number}", "text": f"kill {EVIL}", "kind": "decision"} for number in range(30)],
        arming=Arming((Standing(Rule.SLOW, Mode.AUTO, False, f"observes: {EVIL}", 5.0),)),
    )


def test_a_status_fits_its_schema() -> None:
    """With everything in it, and as the guard's own file has it through JSON, it has the promised form."""
    found = _full()
    assert len(found["actions"]) == status.MAX_ACTIONS
    assert 10 * GIB <= found["reservations"][0]["remaining_bytes"] < 50 * GIB
    assert found["stopping"]["killed"] is True
    _fits("status", found)
    _fits("status", _document(guard=None))


# --- metrics ----------------------------------------------------------------------------------------

_LABEL = r'[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
_SAMPLE = re.compile(rf"(plimsoll_[a-z_]+)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.e+-]+)")


def _series(found: dict[str, Any]) -> dict[str, float]:
    """Return every series with its value; fails on what the format does not allow."""
    lines = status.metrics(found).split("\n")
    assert lines[-2:] == ["# EOF", ""]
    declared: dict[str, str] = {}
    series: dict[str, float] = {}
    for line in lines[:-2]:
        if kind := re.fullmatch(r"# TYPE (plimsoll_[a-z_]+) (gauge|counter)", line):
            assert kind[1] not in declared, "a family is declared once"
            declared[kind[1]] = kind[2]
        elif line.startswith("# "):
            assert re.fullmatch(r"# HELP plimsoll_[a-z_]+ [^\\]+", line)
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            family = match[1].removesuffix("_total")
            assert family == list(declared)[-1], "samples stand below their own family"
            assert match[1].endswith("_total") is (declared[family] == "counter")
            key = f"{match[1]}{{{match[2] or ''}}}"
            assert key not in series, "a collector refuses a file with a series twice"
            series[key] = float(match[3])
    return series


def test_metrics_are_valid_whatever_names_there_are() -> None:
    """Names with quotes, escapes and line breaks stay within their label, and two of one name are one series."""
    evil = {**_full()}
    evil["candidates"] = [{**evil["candidates"][0], "name": 'a"} 1\n# EOF\\'}] * 2
    found = _series(evil)
    assert found['plimsoll_memory_available_bytes{regime="C"}'] == 20 * GIB
    assert found['plimsoll_guard_rule_armed{rule="floor"}'] == 1
    assert found["plimsoll_guard_longest_gap_seconds{}"] == 0.113
    assert len([key for key in found if key.startswith("plimsoll_guard_candidate")]) == 1


def test_what_is_unknown_has_no_series() -> None:
    """A collector must not take an unknown figure for 0."""
    found = _series(_document(sample=Sample(100.0, None), state=State(), guard=None, mem_available_kib=None))
    assert not [key for key in found if "bytes" in key]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Everybody may read it, nothing is left beside it, and a link in its place is replaced and not followed."""
    (tmp_path / "target").write_text("keep")
    path = tmp_path / "d/plimsoll.prom"
    path.parent.mkdir()
    path.symlink_to(tmp_path / "target")
    status.write(Host(str(tmp_path)), "/d/plimsoll.prom", "x\ud800")
    assert path.read_text() == "x\\ud800"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "target").read_text() == "keep"
    assert [each.name for each in path.parent.iterdir()] == ["plimsoll.prom"]


# --- the view ---------------------------------------------------------------------------------------


def _shown(found: dict[str, Any]) -> str:
    more = {"sample_age_s": 0.3, "problem": "", "kernel_candidates": [], "not_seen": []}
    return "\n".join(status_view.lines({**more, **found}))


def test_the_view_says_what_counts() -> None:
    """Both figures of memory, the regime, each margin, who goes first, and what was done last."""
    text = _shown(_document(known=Known((_workload("qwen"),)), actions=[{"at": "13:12", "text": "kill qwen"}]))
    assert "available    20.00 GiB of 121.00 GiB; MemAvailable says 111.00 GiB" in text
    assert "regime C" in text
    assert "would stop   first: qwen (container): holds 20.00 GiB" in text
    assert "last         13:12 kill qwen" in text
    assert "BELOW" not in text


def test_a_line_that_memory_is_below_stands_out() -> None:
    """A margin below 0 is marked."""
    assert "slow -1.00 GiB (line at 8.00 GiB)  BELOW" in _shown(_document(sample=Sample(100.0, 7 * KIB_PER_GIB)))


def test_no_name_reaches_the_terminal_as_it_is() -> None:
    """Whatever a name holds, every line of the view and of a frame is printable."""
    found = {**_full(), "kernel_candidates": [{"pid": 1, "name": EVIL, "oom_score": 5, "oom_score_adj": 0}]}
    found["not_seen"] = [EVIL]
    assert all(line.isprintable() for line in _shown(found).split("\n"))
    framed = status_view.frame({"problem": "", "sample_age_s": 1.0, **found}, 200, 60, EVIL)
    assert framed.replace("\x1b[H", "").replace("\x1b[K\r\n", "").replace("\x1b[J", "").isprintable()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 5), (1, 1)])
def test_a_frame_fits_the_terminal(columns: int, rows: int) -> None:
    """No line is wider, and there are no more of them, than the terminal has."""
    text = status_view.frame({**_full(), "sample_age_s": 1.0, "problem": ""}, columns, rows, "gx10")
    lines = text.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\x1b[K\r\n")[:-1]
    assert 1 <= len(lines) <= max(rows - 1, 1)
    assert all(len(line) <= columns for line in lines)


def test_who_is_not_guarded_is_told() -> None:
    """Without a guard the view says so and names no rules that nobody follows."""
    text = _shown({**_document(guard=None), "problem": "no guard has written a status"})
    assert "guard        UNKNOWN: no guard has written a status" in text
    assert "rules" not in text


# --- the command ------------------------------------------------------------------------------------

MEMINFO = "MemTotal: 127000000 kB\nMemFree: 9 kB\nMemAvailable: 50000000 kB\nKReclaimable: 9 kB\nSReclaimable: 9 kB\n"


def _box(root: Path, guard_status: str | None = None) -> Host:
    scores = {"1": ("systemd", 0, 0), "50": ("vllm", 700, 0), "51": (EVIL[:8], 900, 300), "52": ("sshd", 0, -1000)}
    files = {"/proc/meminfo": MEMINFO, "/proc/sys/kernel/hostname": "box\n"}
    for pid, (comm, score, adjusted) in scores.items():
        files |= {f"/proc/{pid}/comm": f"{comm}\n", f"/proc/{pid}/oom_score": f"{score}\n"}
        files[f"/proc/{pid}/oom_score_adj"] = f"{adjusted}\n"
    write_tree(root, files | ({heartbeat.STATUS: guard_status} if guard_status is not None else {}))
    return Host(str(root))


def _asked(host: Host, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = cli_status.status(argparse.Namespace(json=True, watch=False), host, b"")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    _fits("status", found)
    return code, found


def test_a_guard_that_is_well_is_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own status is shown, with its age and with whom the kernel would take; exit code 0."""
    code, found = _asked(_box(tmp_path, json.dumps(_document())), capsys)
    assert (code, found["problem"], found["available_bytes"]) == (0, "", 20 * GIB)
    assert 0 <= found["sample_age_s"] < 10
    assert [each["pid"] for each in found["kernel_candidates"]] == [51, 50, 1, 52]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no guard has written"),
        ("{", "cannot be understood"),
        (json.dumps({"schema": heartbeat.STATUS_SCHEMA, "guard": None}), "cannot be understood"),
    ],
)
def test_where_no_guard_tells_it_is_looked_at_now(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory is that of this moment, no rule is armed, the reason is given, and the exit code is 3."""
    code, found = _asked(_box(tmp_path, text), capsys)
    assert code == 3
    assert words in found["problem"]
    assert found["available_bytes"] == 50_000_000 * 1024
    assert not any(rule["armed"] for rule in found["rules"])
    assert [each for each in found["not_seen"] if "the lines are the defaults" in each]


def test_an_old_status_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A guard that has hung or ended is told from one that is well by the age of its sample."""
    old = _document()
    old["guard"]["sampled_monotonic_s"] -= 60
    code, found = _asked(_box(tmp_path, json.dumps(old)), capsys)
    assert code == 3
    assert "its last sample is 60 s old" in found["problem"]
    assert found["guard"] is None


def test_a_score_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Without the right to look, that is said, and nobody is left out silently."""
    host = _box(tmp_path)
    (tmp_path / "proc/50/oom_score").unlink()
    found, problems = glance.kernel_candidates(host)
    assert 50 not in {each["pid"] for each in found}
    assert problems == ["the scores of 1 processes cannot be read"]


def test_a_live_view_needs_a_terminal(tmp_path: Path) -> None:
    """Into a file or a pipe it is refused with what to do instead."""
    with pytest.raises(UsageError, match="needs a terminal"):
        cli_status.status(argparse.Namespace(json=False, watch=True), _box(tmp_path), b"")


_WATCH = """
import argparse, signal, sys
# who starts tests in the background has them ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
from plimsoll.box import cli_status
from plimsoll.box.host import Host
sys.exit(cli_status.status(argparse.Namespace(json=False, watch=True), Host({!r}), b""))
"""


def _read_until(terminal: int, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        assert select.select([terminal], [], [], 20)[0], seen
        seen += os.read(terminal, 4096)
    return seen


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_a_live_view_gives_the_terminal_back(how: str, tmp_path: Path) -> None:
    """It ends on q and on Ctrl-C, with the first screen, the cursor and the line mode restored."""
    root = str(_box(tmp_path, json.dumps(_document())).root)
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    process = subprocess.Popen([sys.executable, "-c", _WATCH.format(root)], stdin=theirs, stdout=theirs, stderr=theirs)
    seen = _read_until(ours, b"q ends")
    if how == "q":
        os.write(ours, b"q")
    else:
        process.send_signal(signal.SIGINT)
    seen += _read_until(ours, status_view.END.encode())
    process.wait(20)
    assert seen.startswith(status_view.BEGIN.encode())
    assert termios.tcgetattr(theirs) == attributes
    assert how == "Ctrl-C" or process.returncode in (0, 3)
    os.close(ours)
    os.close(theirs)
