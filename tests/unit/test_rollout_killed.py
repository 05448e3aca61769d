"""The operator's process is killed or interrupted at any moment, and the rollout is gone on with."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll.fleet.rollout import state
from tests.unit.rollout_fakes import Fakes, events, phases, summary

KILLED = -signal.SIGKILL
KILL = """
import os, signal, threading
from plimsoll.fleet.rollout import state
left, append = {left}, state.Journal.append

def counted(self, entry):
    global left
    append(self, entry)
    left -= 1
    if left == 0:
        threading.Timer({delay_s}, os.kill, (os.getpid(), signal.SIGKILL)).start()

state.Journal.append = counted
"""
"""Ends the process without a word, some time after so many lines of its journal."""
HEED = (
    "import signal; [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGHUP, signal.SIGTERM)]; "
    "signal.signal(signal.SIGINT, signal.default_int_handler)"
)
"""Whoever runs the tests in the background, or with nohup, has these ignored."""
MOST_LINES = 15
"""A batch of three that is gone on with has 17: points in every phase of a host are among them."""
LONGEST_DELAY_S = 0.3


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_points(kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host converges, each is deployed to exactly once, and no lock is left behind."""
    names = [f"host{number:02}" for number in range(2 * kills + 4)]
    fakes = Fakes.make(tmp_path, *names)
    monkeypatch.setenv("DEPLOY_TAKES_S", "0.2")
    chance = random.Random(kills)  # noqa: S311  # no secret: the same points every time, as far as time allows
    arguments = ["--yes", "--soak", "0s", "--batch", "3", "--json"]
    for _kill in range(kills):
        killer = KILL.format(left=chance.randint(1, MOST_LINES), delay_s=chance.uniform(0, LONGEST_DELAY_S))
        assert fakes.rollout(*arguments, more=killer).returncode == KILLED
        arguments = ["--resume", "--json"]
    done = fakes.rollout("--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert {host["phase"] for host in summary(done.stdout)["hosts"].values()} == {"done"}
    assert {name: fakes.ledger(name) for name in names} == {name: ["begin", "end"] for name in names}
    assert_nothing_is_held(fakes, names)


def assert_nothing_is_held(fakes: Fakes, names: list[str]) -> None:
    """Assert that neither a host nor the fleet is locked by anybody."""
    assert [name for name in names if fakes.is_locked(name)] == []
    (fleet,) = (fakes.directory / "state/plimsoll/rollout").iterdir()
    with state.only_one(fleet, "the test"):
        pass


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.01)


def interrupted(fakes: Fakes, how: signal.Signals, phase: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a rollout, send it a signal as soon as host `a` is in a phase, and return how it ended."""
    command = fakes.command("--yes", "--json", *arguments, more=HEED)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=fakes.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if phases(seen, "a")[-1:] == [phase]:
                break
        if phase == "applying":
            await_that(lambda: fakes.ledger("a") != [])
        os.kill(process.pid, how)
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, seen + out, err)


def test_a_deploy_that_is_left_behind(tmp_path: Path) -> None:
    """It holds its host, here and there, until its end; a rollout that is resumed waits for that, and does no more."""
    fakes = Fakes.make(tmp_path, "a")
    os.mkfifo(fakes.host("a") / "go")
    fakes.write("a", "deploy", 'cat "$host/go"')
    assert interrupted(fakes, signal.SIGKILL, "applying", "--soak", "0s").returncode == KILLED
    assert fakes.is_locked("a")
    command = fakes.command("--resume", "--json")
    with subprocess.Popen(command, env=fakes.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        waiting = next(line for line in process.stdout if "left behind" in line)
        assert phases(waiting, "a") == ["locking"]
        (fakes.host("a") / "go").write_text("on you go")
        out, _err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert phases(out, "a") == ["verifying", "soaking", "done"]
    assert fakes.ledger("a") == ["begin", "end"]
    assert_nothing_is_held(fakes, ["a"])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_in_a_deploy(how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a closed terminal: what was begun comes to its end, nothing new begins, and the rest follows later."""
    monkeypatch.setenv("DEPLOY_TAKES_S", "0.5")
    fakes = Fakes.make(tmp_path, "a", "b")
    done = interrupted(fakes, how, "applying", "--soak", "0s")
    assert done.returncode == 130, done.stderr
    assert [fakes.ledger(name) for name in "ab"] == [["begin", "end"], []]
    assert events(done.stdout)[-1]["event"] == "interrupt"
    assert "plimsoll rollout --resume" in done.stderr
    assert_nothing_is_held(fakes, ["a", "b"])
    done = fakes.rollout("--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert "applying" not in phases(done.stdout, "a")
    assert [fakes.ledger(name) for name in "ab"] == [["begin", "end"]] * 2


def test_interrupted_in_a_soak(tmp_path: Path) -> None:
    """Nobody waits for the end of a soak; it is gone on with, and not begun anew."""
    fakes = Fakes.make(tmp_path, "a")
    done = interrupted(fakes, signal.SIGINT, "soaking", "--soak", "10m")
    assert (done.returncode, phases(done.stdout, "a")[-1]) == (130, "soaking")
    began_s = next(e["at_s"] for e in events(done.stdout) if e.get("phase") == "soaking")
    later = f"import time; time.time = lambda: {began_s} + 600"
    done = fakes.rollout("--resume", "--json", more=later)
    assert done.returncode == 0, done.stderr
    assert phases(done.stdout, "a") == ["locking", "verifying", "soaking", "done"]
