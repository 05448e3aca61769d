"""`plimsoll guard`: what an operator says on the box, what systemd says, and what a day's recording says."""

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import cli_guard, heartbeat
from plimsoll.box.errors import UsageError
from plimsoll.box.guard import arming, config, spawn, whole
from plimsoll.box.guard.model import KIB_PER_GIB, Rule, Sample
from plimsoll.box.guard.recording import HEADER, PATH, line
from plimsoll.box.guard.sampler import Slow
from plimsoll.box.host import Host, Ran
from plimsoll.box.model import PROGRAM
from tests.unit.builders import FakeHost, write_tree

NOW_S = 1_800_000_000.0
SLOW = Slow(0, 0, 0, 0.0, 0)
HEADING = f"# plimsoll.recording/1 boot=b mem_total_kib={121 * KIB_PER_GIB}\n{HEADER}\n"
SETTINGS = config.load("", "guard.toml", config.REFERENCE_KIB).settings


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cli_guard, "POLL_S", 0.01)
    monkeypatch.setattr(cli_guard, "RELOADED_WITHIN_S", 0.2)


def _asked(host: Host, *words: str) -> int:
    parser = argparse.ArgumentParser()
    cli_guard.guard_arguments(parser)
    return cli_guard.guard(parser.parse_args(words), host, b"")


# --- an operator's word -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["arm", "slow", "stall"], {Rule.SLOW: "armed", Rule.STALL: "armed"}),
        (["arm"], {Rule.FLOOR: "armed", Rule.RATE: "armed", Rule.SLOW: "armed"}),
        (["observe"], dict.fromkeys(Rule, "observe")),
        (["observe", "rate"], {Rule.RATE: "observe"}),
        (["auto"], {}),
    ],
)
def test_what_is_said_is_kept_and_read(words: list[str], expected: dict[Rule, str], tmp_path: Path) -> None:
    """A word on rules is on disk before the running guard is told to read it; stall is armed by its name only."""
    host = FakeHost(root=str(tmp_path))
    assert _asked(host, *words) == 0
    assert arming.load(host)[0].choices == expected
    assert host.calls[-1] == ("systemctl", "reload", cli_guard.UNIT)


def test_a_word_is_taken_back(tmp_path: Path) -> None:
    """`auto` takes back what was said of the rules that it names, and no others."""
    host = FakeHost(root=str(tmp_path))
    _asked(host, "observe")
    _asked(host, "auto", "floor", "rate")
    assert set(arming.load(host)[0].choices) == {Rule.SLOW, Rule.STALL}


def test_a_guard_that_does_not_run_reads_it_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is said, and is no failure."""
    host = FakeHost(root=str(tmp_path), failing={("systemctl", "is-active"): "inactive"})
    assert _asked(host, "observe") == 0
    assert "holds from its next start" in capsys.readouterr().out
    assert not [call for call in host.calls if "reload" in call]


def test_a_guard_that_does_not_read_it_is_a_failure(tmp_path: Path) -> None:
    """Who says `observe` must know whether it is so."""
    host = FakeHost(root=str(tmp_path), failing={("systemctl", "reload"): "Job failed."})
    with pytest.raises(cli_guard.ReloadError, match=r"it is kept, but .* Job failed"):
        _asked(host, "observe")


def test_what_is_no_rule_is_refused(tmp_path: Path) -> None:
    """A misspelt rule changes nothing."""
    with pytest.raises(UsageError, match="'flor' is no rule"):
        _asked(FakeHost(root=str(tmp_path)), "observe", "flor")
    assert arming.load(Host(str(tmp_path)))[0].choices == {}


@pytest.mark.parametrize("words", [["arm"], ["reload"], ["last-day"]])
def test_only_root_may(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else tells the guard anything."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs root"):
        _asked(FakeHost(root=str(tmp_path)), *words)


# --- systemctl reload -------------------------------------------------------------------------------

TOML = "[lines]\nfloor_gib = 4\n"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _installed(root: Path, **said: Any) -> FakeHost:  # noqa: ANN401  # fields of the status
    guard = {"pid": 5, "program_sha256": _sha256("program"), "config_sha256": _sha256(TOML)}
    status = {"schema": heartbeat.STATUS_SCHEMA, "guard": {**guard, "sampled_monotonic_s": 1.0, **said}}
    files = {PROGRAM: "program", config.PATH: TOML, heartbeat.STATUS: json.dumps(status)}
    write_tree(root, {**files, "/proc/meminfo": f"MemTotal: {121 << 20} kB\n"})
    return FakeHost(root=str(root))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Be systemd's control process, and collect the signals that are sent."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setenv("MAINPID", "5")
    return sent


def test_a_reload_ends_when_the_guard_goes_by_it(tmp_path: Path, told: list[tuple[int, int]]) -> None:
    """The main process is told, and what it says of itself is what is installed."""
    assert _asked(_installed(tmp_path), "reload") == 0
    assert told == [(5, signal.SIGHUP)]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"program_sha256": "old"}, "the guard is not yet the one in"),
        ({"config_sha256": "old"}, "the guard does not yet go by /etc/plimsoll/guard.toml"),
    ],
)
def test_a_reload_that_is_not_followed_fails(
    said: dict[str, str], words: str, tmp_path: Path, told: list[tuple[int, int]]
) -> None:
    """Whoever asked for the reload is told what is still old."""
    with pytest.raises(cli_guard.ReloadError, match=words):
        _asked(_installed(tmp_path, **said), "reload")
    assert told


def test_a_faulty_file_is_not_even_read(tmp_path: Path, told: list[tuple[int, int]]) -> None:
    """The guard is left in peace, and the line of the fault is told."""
    host = _installed(tmp_path)
    write_tree(tmp_path, {config.PATH: "[lines]\nflor_gib = 4\n"})
    with pytest.raises(config.ConfigError, match=r"guard\.toml:2: unknown key lines\.flor_gib"):
        _asked(host, "reload")
    assert told == []


def test_a_reload_by_hand_is_sent_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without systemd nobody knows which process is the guard."""
    monkeypatch.delenv("MAINPID", raising=False)
    with pytest.raises(UsageError, match="systemctl reload"):
        _asked(_installed(tmp_path), "reload")


# --- the last day -----------------------------------------------------------------------------------


def _recorded(levels_gib: list[float], ends_s: float = NOW_S) -> str:
    """Return a recording with one level a second, up to `ends_s`."""
    begins_s = ends_s - len(levels_gib)
    rows = (
        line(begins_s + number, Sample(1000.0 + number, round(level * KIB_PER_GIB), 0, 0.0, "A"), SLOW)
        for number, level in enumerate(levels_gib)
    )
    return HEADING + "".join(f"{row}\n" for row in rows)


def _last_day(root: Path, older: str | None, newer: str | None) -> arming.Replayed:
    files = {f"{PATH}.1": older, PATH: newer}
    write_tree(root, {path: text for path, text in files.items() if text is not None})
    return arming.last_day(Host(str(root)), SETTINGS, NOW_S)


def test_a_quiet_recording_is_clean(tmp_path: Path) -> None:
    """What is above every line is nobody's business, and its time is counted over both files."""
    found = _last_day(tmp_path, _recorded([50.0] * 100, NOW_S - 50), _recorded([50.0] * 50))
    assert found.would == ()
    assert found.covered_s == pytest.approx(150, abs=2)


def test_what_hovers_below_the_slow_line_is_no_clean_day(tmp_path: Path) -> None:
    """A model that stays at 7.5 GiB would have been stopped, which is what the day is to show."""
    found = _last_day(tmp_path, None, _recorded([12.0, 11.0, 10.0, 9.0, 8.5] + [7.5] * 30))
    assert {each.rule for each in found.would} == {Rule.SLOW}
    assert found.against(Rule.SLOW)


def test_a_ramp_into_the_floor_is_the_rules_own_work(tmp_path: Path) -> None:
    """What went below the floor seconds later counts against no rule."""
    found = _last_day(tmp_path, None, _recorded([30.0, 26.0, 22.0, 18.0, 14.0, 10.0, 6.0, 2.0, 2.0, 2.0]))
    assert Rule.FLOOR in {each.rule for each in found.would}
    assert found.against(Rule.RATE) == []
    assert found.against(Rule.SLOW) == []


def test_what_is_older_than_a_day_does_not_count(tmp_path: Path) -> None:
    """A bad hour is forgotten when a day has passed."""
    found = _last_day(tmp_path, _recorded([7.0] * 100, NOW_S - 2 * arming.WINDOW_S), _recorded([50.0] * 20))
    assert found.would == ()
    assert found.covered_s == pytest.approx(20, abs=2)


def test_no_recording_is_no_evidence(tmp_path: Path) -> None:
    """Where nothing was recorded nothing is covered, and garbage is not taken for samples."""
    assert _last_day(tmp_path, None, None) == arming.Replayed(0.0)
    assert _last_day(tmp_path, "\0\0\0garbage,\n1,2\n", None) == arming.Replayed(0.0)


def test_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees how much is recorded and what would have been done, another guard the same as JSON."""
    host = _installed(tmp_path)
    write_tree(tmp_path, {PATH: _recorded([12.0, 11.0, 10.0, 9.0, 8.5] + [7.5] * 30, time.time())})
    assert _asked(host, "last-day") == 0
    text = capsys.readouterr().out
    assert "0.0 h of the last 24 h are recorded" in text
    assert " slow: 7.50 GiB available" in text
    assert _asked(host, "last-day", "--json") == 0
    read = arming.replayed_from_json(capsys.readouterr().out)
    assert {each.rule for each in read.would} == {Rule.SLOW}


def test_nothing_recorded_cannot_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty day is exit code 3."""
    assert _asked(_installed(tmp_path), "last-day") == 3
    assert "0.0 h" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"covered_s": 1, "would": [{}], "problem": ""}'])
def test_an_answer_that_is_none_is_no_evidence(text: str) -> None:
    """A child that was killed, or says something else, arms nothing."""
    found = arming.replayed_from_json(text)
    assert found.problem
    assert found.covered_s == 0


def test_a_child_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard has a child of its own program look, at the lowest priority; one that fails is no evidence."""
    program = tmp_path / "program.py"
    code = 'import sys, os, json; print(json.dumps({"covered_s": os.nice(0), "would": [], "problem": sys.argv[2]}))'
    program.write_text(code)
    found = arming.ask_last_day(str(program))
    assert (found.covered_s, found.problem) == (19.0, "last-day")
    program.write_text("import sys; sys.exit('broken')")
    assert "could not be replayed" in arming.ask_last_day(str(program)).problem
    monkeypatch.setattr(spawn, "run", lambda *_: Ran(124, "", "nice: not done in 300 s"))
    assert "not done in 300 s" in arming.ask_last_day(str(program)).problem


# --- files ------------------------------------------------------------------------------------------


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """Content and mode are those asked for; what an ended process left half-written is removed, another's is not."""
    host, path = Host(str(tmp_path)), "/d/file"
    gone, alive = tmp_path / "d/.file.999999999.plimsoll-tmp", tmp_path / f"d/.file.{os.getppid()}.plimsoll-tmp"
    write_tree(tmp_path, {f"/d/{each.name}": "half" for each in (gone, alive)} | {"/d/.file.x.plimsoll-tmp": "theirs"})
    whole.write(host, path, b"new", 0o640, sync=True)
    assert (tmp_path / "d/file").read_bytes() == b"new"
    assert (tmp_path / "d/file").stat().st_mode & 0o777 == 0o640
    assert not gone.exists()
    assert alive.exists()
    assert (tmp_path / "d/.file.x.plimsoll-tmp").exists()


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    """Where a directory has the name, that is an error, and nothing is left beside it."""
    (tmp_path / "d/file").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        whole.write(Host(str(tmp_path)), "/d/file", b"new", 0o644, sync=False)
    assert [each.name for each in (tmp_path / "d").iterdir()] == ["file"]
