"""`plimsoll serve` as it is called: exit codes, the document, and what it says of one who may not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import cli, cli_serve
from plimsoll.box.errors import DRIFT, GOOD, REFUSED, UNKNOWN, USAGE
from plimsoll.box.host import Host
from plimsoll.box.serve import config, locking, overview, records, scores
from plimsoll.box.serve.launch import Seen
from plimsoll.box.serve.records import Phase
from plimsoll.box.serve.watching import until
from tests.unit import test_docs
from tests.unit.serve_box import Box, Server, box, serving

RUN = """
import json, sys
from plimsoll.box import cli
from plimsoll.box.host import Host
root, environment, *words = sys.argv[1:]
sys.exit(cli.main(words, Host(root, json.loads(environment))))
"""


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Box]:
    """Yield a box with a model `m` and its fallback `small`."""
    with box(tmp_path) as made:
        for name in ("m", "small"):
            made.unit(f"{name}.service")
            made.declare(name, 1)
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server that serves both."""
    with serving("m", "small") as made:
        yield made


def serve(b: Box, *words: str) -> int:
    """Call the command."""
    return cli.main(["serve", *words], b.host)


def status(b: Box, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the document, which must fit its schema."""
    capsys.readouterr()
    serve(b, "status", *words, "--json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    test_docs._fits("serve", document)
    return document


def test_a_day_of_a_model(b: Box, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Started, seen, refused twice, restarted, switched, stopped: each with its exit code and its state."""
    for name in ("m", "small"):
        b.declare(name, server.port)
    assert [each["state"] for each in status(b, capsys)["models"]] == ["stopped", "stopped"]
    assert serve(b, "check", "m") == GOOD
    assert serve(b, "start", "m") == GOOD
    found = status(b, capsys, "m")["models"][0]
    assert (found["state"], found["main_pid"], found["last_end"]) == ("ready", b.pid("m.service"), None)
    assert found["uptime_s"] >= 0
    assert serve(b, "start", "m") == REFUSED
    assert serve(b, "check", "m") == REFUSED
    before = b.pid("m.service")
    assert serve(b, "restart", "m") == GOOD
    assert b.pid("m.service") != before
    assert serve(b, "switch", "m", "small") == GOOD
    assert [each["state"] for each in status(b, capsys)["models"]] == ["stopped", "ready"]
    assert serve(b, "stop", "small") == GOOD
    assert serve(b, "stop", "small") == GOOD
    assert status(b, capsys, "small")["models"][0]["last_end"]["cause"] == "stopped"


def test_no_model_is_stopped_for_one_that_does_not_fit(
    b: Box, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switch to a model that would be refused even then leaves the old one as it is."""
    b.declare("m", server.port)
    b.declare("small", server.port, need={"gib": 120})
    assert serve(b, "start", "m") == GOOD
    assert serve(b, "switch", "m", "small") == REFUSED
    assert "that is without m, which goes on" in capsys.readouterr().err
    assert status(b, capsys, "m")["models"][0]["state"] == "ready"
    assert "stop --no-block" not in b.calls()


def test_who_comes_second_is_told_who_is_first(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """75 while somebody acts; who only looks is not held up, and sees him."""
    with locking.exclusively(b.host, "plimsoll serve start small"):
        assert serve(b, "start", "m") == REFUSED
        assert "plimsoll serve start small (pid" in capsys.readouterr().err
        assert status(b, capsys)["at_work"]["command"] == "plimsoll serve start small"
    assert status(b, capsys)["at_work"] is None


@pytest.mark.parametrize(
    "words", [("start", "nobody"), ("switch", "m", "m"), ("run", "x"), ("protect", "4194303"), ("protect", "9" * 5000)]
)
def test_bad_input_is_one_clear_error(b: Box, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """4, one line, and nothing was asked of systemd that changes anything."""
    assert serve(b, *words) == USAGE
    assert capsys.readouterr().err.startswith("plimsoll: ")
    assert "start" not in b.calls()


def test_a_faulty_file_is_a_problem_and_hides_no_other(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """`status` shows the rest and ends with 3: not all could be told."""
    b.write("/etc/plimsoll/models.d/bad.toml", "[run]\nunti = 'x.service'\n")
    assert serve(b, "status") == UNKNOWN
    shown = capsys.readouterr().out
    assert "bad.toml:" in shown
    assert "m: stopped" in shown


def test_a_manager_that_does_not_answer_leaves_a_state_unknown(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """3, and no word that a model is stopped."""
    (b.root / "bin/systemctl").write_text("#!/bin/sh\necho 'no answer' >&2\nexit 1\n")
    assert serve(b, "status") == UNKNOWN
    found = status(b, capsys)["models"][0]
    assert (found["state"], found["main_pid"]) == ("unknown", None)
    assert "no answer" in found["problem"]
    assert serve(b, "stop", "m") == UNKNOWN


def test_what_others_have_started_and_what_ended_unnoticed(
    b: Box, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are shown as what they are."""
    b.declare("m", server.port)
    assert serve(b, "start", "m") == GOOD
    b.host.run("systemctl", "start", "--", "small.service")
    os.kill(b.pid("m.service"), signal.SIGKILL)
    assert until((b.units / "m.service.exit").exists, 30)
    states = {each["name"]: each["state"] for each in status(b, capsys)["models"]}
    assert states == {"m": "ended unnoticed", "small": "started by others"}


def test_a_job_and_its_options(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows -- is the job's, options and all."""
    assert serve(b, "run", "train", "--", "sleep", "--", "60") == GOOD
    assert "-- sleep -- 60" in b.calls()
    assert "journalctl -f -u job-train.service" in capsys.readouterr().out


def _may_lower_scores() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, which root of a container may lack."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def test_a_score_is_given_to_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """By its number; who may not lower it is told why; -1000 is refused without force."""
    with subprocess.Popen(["sleep", "60"]) as child:
        score = Path(f"/proc/{child.pid}/oom_score_adj")
        try:
            assert cli.main(["serve", "protect", str(child.pid), "--adj", "300"], Host()) == GOOD
            assert score.read_text() == "300\n"
            assert capsys.readouterr().out.endswith("-> 300\n")
            may = _may_lower_scores()
            assert cli.main(["serve", "protect", str(child.pid)], Host()) == (GOOD if may else DRIFT)
            assert score.read_text() == (f"{cli_serve.DEFAULT_ADJ}\n" if may else "300\n")
            assert ("CAP_SYS_RESOURCE" in capsys.readouterr().err) is not may
            assert cli.main(["serve", "protect", str(child.pid), "--adj", "-1000"], Host()) == USAGE
            assert "kill everything else first" in capsys.readouterr().err
        finally:
            child.kill()


def test_a_model_that_must_not_be_stopped_and_the_guard_does_not_know(b: Box) -> None:
    """A file that says so protects nobody: the guard's own has to, and the words for it are given."""
    b.declare("m", 1, kill={"guard_may_kill": False})
    model = config.load(b.host, "m")
    for name in ("m.service", "srv-vllm-1"):
        seen = Seen(there=True, said="", name=name)
        b.write("/etc/plimsoll/guard.toml", '[victims]\nprotect = ["unit:other", "command:*"]\n')
        (note,) = scores.unprotected(b.host, model, seen)
        assert f"unit:{name}" in note
        b.write("/etc/plimsoll/guard.toml", f'[victims]\nprotect = ["unit:{name}"]\n')
        assert scores.unprotected(b.host, model, seen) == []


def test_only_root_acts(b: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are told so at once, and asked for no password."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert serve(b, "start", "m") == USAGE
    assert "this needs root: use sudo" in capsys.readouterr().err


def test_peaks_of_one_that_was_never_started(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of it: 3."""
    assert serve(b, "peak", "m") == UNKNOWN
    assert "nothing to compare with" in capsys.readouterr().out


def test_peaks_of_one_that_runs(b: Box, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mark says what it does not see."""
    b.declare("m", server.port)
    assert serve(b, "start", "m") == GOOD
    capsys.readouterr()
    assert serve(b, "peak", "m") == GOOD
    shown = capsys.readouterr().out
    assert "memory.peak" in shown
    assert "VmHWM" in shown


def test_times_for_people() -> None:
    """As short as they are clear."""
    assert [overview._duration(each) for each in (5, 65, 7260)] == ["5 s", "1 min 5 s", "2 h 1 min"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_start_cleans_up(b: Box, number: signal.Signals) -> None:
    """130, and neither a process nor a reservation is left."""
    with serving() as server:
        b.declare("m", server.port)
        words = [sys.executable, "-c", RUN, str(b.root), json.dumps(b.host.environment), "serve", "start", "m"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert server.asked.wait(300)
        # a terminal that closes is no reason to end
        process.send_signal(signal.SIGHUP)
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted while it was loading; it is being stopped" in said
    found = records.read(b.host, "m")
    assert found is not None
    assert found.phase is Phase.FAILED
    assert not (b.units / "m.service.pid").exists()


def test_a_killed_start_is_explained_and_carried_on(b: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL of the command itself, in the middle of a load: the next one says so, and takes the load over."""
    with serving() as server:
        b.declare("m", server.port)
        words = [sys.executable, "-c", RUN, str(b.root), json.dumps(b.host.environment), "serve", "start", "m"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE)
        assert server.asked.wait(300)
        process.kill()
        process.communicate()
        before = b.pid("m.service")
        assert status(b, capsys, "m")["models"][0]["state"] == "loading"
        server.models = ["m"]
        assert serve(b, "start", "m") == GOOD
    told = capsys.readouterr().err
    assert f"plimsoll serve start m (pid {process.pid}) was cut off while it was loading" in told
    assert b.pid("m.service") == before
    assert status(b, capsys, "m")["models"][0]["state"] == "ready"


MODULES = f"{RUN.replace('sys.exit(', 'code = (')}print(json.dumps([code, *sys.modules]), file=sys.stderr)"


def own_modules(b: Box, *words: str) -> set[str]:
    """Return the modules of serve, and others that cost, which a command has imported."""
    argv = [sys.executable, "-c", MODULES, str(b.root), json.dumps(b.host.environment), "serve", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    code, *modules = json.loads(done.stderr.splitlines()[-1])
    assert code == GOOD
    return {each.removeprefix("plimsoll.box.serve.") for each in modules}


def test_a_verb_imports_what_it_needs(b: Box) -> None:
    """Who only looks does not pay for what acts: imports are most of the time of a command."""
    own = own_modules(b, "status")
    assert "overview" in own
    assert not own & {"starting", "stopping", "readiness", "needs", "admission", "repairing"}


def test_a_check_imports_nothing_that_acts(b: Box) -> None:
    """Whether a model may start is asked by scripts and by the other host of a cluster: within 100 ms of CPU time."""
    b.declare("m", 1)
    own = own_modules(b, "check", "m")
    assert {"checking", "admission", "needs"} <= own
    assert not own & {"starting", "stopping", "readiness", "causes", "loading", "http", "peaks"}
    assert not own & {"ctypes", "tempfile", "shutil", "statistics", "subprocess", "plimsoll.box.units"}
