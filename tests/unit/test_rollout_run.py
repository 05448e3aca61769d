"""The command against hosts that are directories: what it does to which, in which order, and how each trouble ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.fleet import cli
from plimsoll.fleet.rollout import command, processes, state, steps
from tests.unit import rollout_fakes
from tests.unit.rollout_fakes import Fakes, events, phases, summary

QUICK = ("--yes", "--soak", "0s", "--json")
WHOLE_WAY = ["locking", "applying", "verifying", "soaking", "done"]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Three hosts that nothing was done to."""
    made = Fakes.make(tmp_path, "a", "b", "c")
    made.use(monkeypatch)
    return made


def rollout(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; returns its exit code and both outputs."""
    code = cli.run(["rollout", *arguments])
    return code, *capsys.readouterr()


def test_the_whole_way(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """The canary first, then the others; each deployed to once; no lock left; a second run does nothing."""
    code, out, _err = rollout(capsys, *QUICK, "--batch", "100%")
    assert code == 0
    assert [phases(out, host) for host in "abc"] == [WHOLE_WAY] * 3
    assert [e["detail"] for e in events(out) if e["event"] == "batch"] == ["a", "b c"]
    assert [fakes.ledger(host) for host in "abc"] == [["begin", "end"]] * 3
    assert not any(map(fakes.is_locked, "abc"))
    code, out, _err = rollout(capsys, *QUICK)
    assert (code, [e["event"] for e in events(out)]) == (0, ["begin", "end", "summary"])
    assert {host["phase"] for host in summary(out)["hosts"].values()} == {"unchanged"}


def test_how_a_host_is_deployed_to(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """The deploy gets what the inventory says of the connection, and each deploy has a log of its own."""
    fakes.write_inventory("a", hosts={"a": {"address": "192.0.2.1", "port": 2222, "user": "1000"}})
    fakes.write("a", "deploy", "echo hello; echo trouble >&2")
    code, out, _err = rollout(capsys, *QUICK, "a")
    assert code == 0
    data = ['ssh_hostname="192.0.2.1"', "ssh_port=2222", 'ssh_user="1000"']
    asked = ["-y", *(word for each in data for word in ("--data", each)), "@ssh/a", "deploy.py"]
    assert (fakes.host("a") / "asked").read_text().split() == asked
    assert Path(summary(out)["hosts"]["a"]["log"]).read_text() == "hello\ntrouble\n"


def test_a_canary_that_fails_stops_everything(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody else is touched, the reason is one line, and what was done is kept."""
    fakes.write("b", "deploy", "echo 'plimsoll: /etc/x: No space left on device'; exit 1")
    code, out, err = rollout(capsys, *QUICK, "--canary", "b", "--max-failures", "9")
    assert code == 2
    host = summary(out)["hosts"]["b"]
    assert host["detail"] == "its disk is full (/etc/x: No space left on device); a fresh login works"
    assert summary(out)["stopped"] == "the canary b failed"
    assert [fakes.ledger(host) for host in "abc"] == [[], ["begin"], []]
    assert not fakes.is_locked("b")
    assert "b failed: its disk is full" in err


@pytest.mark.parametrize(("allowed", "stopped", "third"), [(0, True, []), (1, False, ["begin", "end"])])
def test_failures_that_are_allowed(
    fakes: Fakes, capsys: pytest.CaptureFixture[str], allowed: int, stopped: bool, third: list[str]
) -> None:
    """Up to --max-failures the next batch begins; one more stops before it."""
    fakes.write("b", "deploy", "exit 1")
    code, out, _err = rollout(capsys, *QUICK, "--batch", "1", "--max-failures", str(allowed))
    assert (code, bool(summary(out)["stopped"])) == (2, stopped)
    assert fakes.ledger("c") == third


def test_a_host_that_fails_holds_up_nobody_of_its_batch(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """The others of its batch are carried to their end."""
    fakes.write("b", "deploy", "exit 1")
    code, out, _err = rollout(capsys, *QUICK, "--batch", "2")
    assert code == 2
    assert phases(out, "c") == WHOLE_WAY


CHANGED = {**rollout_fakes.SAMPLE, "boot_id": "another"}
TROUBLES = {
    "deploys forever": ("sleep 600", "the deploy had not ended after 0.5 s; a fresh login works"),
    "refuses sudo": ("echo '[a] sudo: a password is required'; exit 1", "sudo is refused there"),
    "restarts in the middle": (
        f"echo '{json.dumps(CHANGED)}' >$host/sample.json; echo '[a] Error: SSH session not active'; exit 1",
        "its connection was lost (Error: SSH session not active); it has restarted meanwhile",
    ),
    "is gone": (
        "echo 'Connection timed out' >$host/down; exit 1",
        "it said nothing; a fresh login does not work now: a look at it was answered with: it did not answer in time",
    ),
    "comes back with another key": (
        "echo 'Host key verification failed.' >$host/down; exit 0",
        "no fresh login after 3 tries: known_hosts has no key of it, or another one",
    ),
    "has drifted meanwhile": (
        "cp $host/state.json $host/after.json", "box/plimsoll-verify.timer is drifted",
    ),
    "restarts afterwards": (
        f"echo '{json.dumps(CHANGED)}' >$host/sample.json", "it restarted by itself",
    ),
    "has a unit that fails": (
        f"echo '{json.dumps({**rollout_fakes.SAMPLE, 'failed_units': ['x.service']})}' >$host/sample.json",
        "failed since the change: x.service",
    ),
    "stalls": (
        f"echo '{json.dumps({**rollout_fakes.SAMPLE, 'pressure': {'memory': 70}})}' >$host/sample.json",
        "nobody got on for 70 % of the last minute, for want of memory",
    ),
    "answers nonsense": ("echo '[]' >$host/sample.json", "a look at it was answered with: []"),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_one_line(
    fakes: Fakes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The host fails with a line that says what happened, its lock is free, and the next batch is not begun."""
    monkeypatch.setattr(command, "LIMITS", steps.Limits(deploy_s=0.5 if "forever" in trouble else 60, lost_s=60))
    script, reason = TROUBLES[trouble]
    fakes.write("a", "deploy", script)
    code, out, _err = rollout(capsys, *QUICK)
    assert code in (2, 3)
    assert reason in summary(out)["hosts"]["a"]["detail"]
    assert phases(out, "a")[-1] == "failed"
    assert fakes.ledger("b") == []
    assert not fakes.is_locked("a")


def test_a_host_that_cannot_be_watched_is_not_touched(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """Where failed units or the kernel's log are not to be seen, nothing is changed."""
    fakes.write("a", "sample.json", {**rollout_fakes.SAMPLE, "failed_units": None})
    code, out, _err = rollout(capsys, *QUICK)
    assert code == 3
    assert "could not be watched after a change: systemd does not say" in summary(out)["hosts"]["a"]["detail"]
    assert fakes.ledger("a") == []


def test_a_host_that_another_operator_works_on(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not touched; who holds it is named, and for how long; the exit code says that it may be free later."""
    fakes.write("a", "held", {"held_by": "ben@desk", "age_s": 130.0})
    code, out, _err = rollout(capsys, *QUICK)
    assert code == 75
    assert summary(out)["hosts"]["a"]["detail"] == "another operator is at work on it: ben@desk, for 2 min"
    assert fakes.ledger("a") == []


def test_hosts_of_a_cluster(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """They come one after another, and when one fails the other is spared, even where failures are allowed."""
    fakes.write_inventory("a", "b", "c", groups={"pair": {"hosts": ["b", "c"], "cluster": True}})
    fakes.write("b", "deploy", "exit 1")
    code, out, _err = rollout(capsys, *QUICK, "--batch", "100%", "--max-failures", "5")
    assert code == 2
    assert phases(out, "c") == ["skipped"]
    assert summary(out)["hosts"]["c"]["detail"] == "it serves a model together with b, which failed"
    assert fakes.ledger("c") == []


def test_who_is_left_out(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that is not reached is told and left out; the others are done, and the exit code tells of it."""
    fakes.write("b", "down", "Connection refused")
    code, out, err = rollout(capsys, *QUICK)
    assert code == 3
    assert [summary(out)["hosts"][host]["phase"] for host in "abc"] == ["done", "left_out", "done"]
    assert "b: left out: Connection refused" in err


def test_a_model_is_not_disturbed(
    fakes: Fakes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held back is told to pyinfra, is listed at the end, and fails nobody."""
    engine = {"comm": "vllm", "pid": 4711, "argv": ["vllm"], "cgroup": "/x", "oom_score_adj": 0}
    for file in ("state.json", "after.json"):
        found = json.loads((fakes.host("a") / file).read_text())
        fakes.write("a", file, {**found, "engines": [engine]})
    monkeypatch.setattr("plimsoll.fleet.rollout.plan._BY_ITSELF", {"precompile": "disturbs"})
    code, out, _err = rollout(capsys, *QUICK, "a")
    assert 'plimsoll_held_layers="box"' in (fakes.host("a") / "asked").read_text()
    assert code == 0
    assert summary(out)["hosts"]["a"]["detail"] == "box waits: it disturbs (--allow-restart)"


# --- back -------------------------------------------------------------------------------------------

REVERT = """#!/bin/sh
for word; do host=$word; done
echo revert >>"{directory}/hosts/$host/ledger"
exit "$(cat "{directory}/hosts/$host/revert" 2>/dev/null || echo 0)"
"""


@pytest.fixture
def revert(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a stand-in for `plimsoll revert`, which notes that it was run."""
    program = fakes.directory / "bin/plimsoll"
    program.write_text(REVERT.format(directory=fakes.directory))
    program.chmod(0o755)
    monkeypatch.setattr(processes, "PLIMSOLL", (str(program),))


@pytest.mark.usefixtures("revert")
def test_what_was_done_is_taken_back(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """--on-failure revert takes back every host that was touched, and no other; there is nothing to resume."""
    fakes.write("b", "deploy", "exit 1")
    code, out, err = rollout(capsys, *QUICK, "--batch", "1", "--on-failure", "revert")
    assert code == 2
    assert [fakes.ledger(host) for host in "abc"] == [["begin", "end", "revert"], ["begin", "revert"], []]
    assert [summary(out)["hosts"][host]["phase"] for host in "abc"] == ["reverted", "reverted", "waiting"]
    assert "taken back; it had failed: it said nothing" in summary(out)["hosts"]["b"]["detail"]
    code, out, err = rollout(capsys, "--resume", "--json")
    assert (code, "nothing left to do" in err) == (2, True)
    assert fakes.ledger("a") == ["begin", "end", "revert"]


@pytest.mark.usefixtures("revert")
def test_a_host_that_had_plimsoll_before_is_kept(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """A revert would take away more than this rollout has done: it is left, and named."""
    found = json.loads((fakes.host("a") / "state.json").read_text())
    fakes.write("a", "state.json", {**found, "ledger": {**found["ledger"], "files": {"/etc/x": "kernel"}}})
    fakes.write("a", "deploy", "exit 1")
    assert cli.run(["rollout", "--yes", "--soak", "0", "--on-failure", "revert"]) == 2
    assert "kept, because they had Plimsoll before" in capsys.readouterr().out
    assert fakes.ledger("a") == ["begin"]


@pytest.mark.usefixtures("revert")
def test_a_revert_that_fails(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told as a failure of that host."""
    fakes.write("a", "deploy", "exit 1")
    fakes.write("a", "revert", "1")
    code, out, _err = rollout(capsys, *QUICK, "--on-failure", "revert")
    assert code == 2
    assert summary(out)["hosts"]["a"]["detail"] == "it could not be taken back: it said nothing"


# --- again ------------------------------------------------------------------------------------------


def test_going_on_after_a_failure(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed is tried again, what was done is not touched, and the rest follows."""
    fakes.write("b", "deploy", "exit 1")
    assert rollout(capsys, *QUICK, "--batch", "1")[0] == 2
    (fakes.host("b") / "deploy").unlink()
    code, out, _err = rollout(capsys, "--resume", "--json")
    assert code == 0
    assert [fakes.ledger(host) for host in "abc"] == [["begin", "end"], ["begin", "begin", "end"], ["begin", "end"]]
    assert phases(out, "a") == []


def test_going_on_with_what_has_changed(
    fakes: Fakes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another inventory or checkout than the one that was confirmed is not rolled out."""
    fakes.write("a", "deploy", "exit 1")
    assert rollout(capsys, *QUICK)[0] == 2
    monkeypatch.setattr(command, "basis", lambda _inventory: "another")
    code, out, _err = rollout(capsys, "--resume", "--json")
    assert code == 2
    assert "has changed since the plan was confirmed" in summary(out)["hosts"]["a"]["detail"]
    assert fakes.ledger("a") == ["begin"]


def test_the_digest_of_what_is_deployed(tmp_path: Path) -> None:
    """It is the same for the same inventory, and another for another."""
    file = tmp_path / "hosts.yml"
    file.write_text("hosts: {}")
    first = command.basis(file)
    assert command.basis(file) == first
    file.write_text("hosts: {a: {}}")
    assert command.basis(file) != first


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--canary", "nobody"], "it is none of the hosts of this rollout"),
        (["--canary", "lost"], "it is left out: Connection refused"),
        (["--batch", "0"], "--batch: '0' must be a number of hosts"),
        (["--soak", "soon"], "must be a time such as 90s, 10m or 1h"),
        (["@local"], "pyinfra @local deploy.py"),
        (["--resume", "a"], "leave out a"),
        (["--resume", "--soak", "1m", "-F", "hosts.yml"], "leave out --soak --ssh-config"),
        (["--resume"], "no rollout of"),
        ([], "give --yes"),
        (["--html", "missing/page.html"], "there is no directory"),
    ],
)
def test_what_means_nothing(
    fakes: Fakes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    """It is refused with exit code 4 and what to do, and no host is touched."""
    fakes.write_inventory("a", "b", "lost")
    (fakes.host("c")).rename(fakes.host("lost"))
    fakes.write("lost", "down", "Connection refused")
    monkeypatch.chdir(fakes.directory)
    code, _out, err = rollout(capsys, *arguments)
    assert (code, fakes.ledger("a")) == (4, [])
    assert message in " ".join(err.split())


def test_two_rollouts_at_once(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is refused while the first is at work, with who that is."""
    fleet = state.fleet_directory(fakes.directory / "hosts.yml")
    with state.only_one(fleet, "ben@desk, since noon"):
        code, out, err = rollout(capsys, *QUICK)
    assert (code, out) == (75, "")
    assert err == "plimsoll: a rollout of this fleet is under way: ben@desk, since noon; wait for its end\n"


# --- what is told -----------------------------------------------------------------------------------


def test_for_people(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan by group, a table of hosts at the end, the page of an audit, and where the rest stands."""
    html = fakes.directory / "page.html"
    fakes.write("c", "down", "Connection refused")
    code, out, _err = rollout(capsys, "--yes", "--soak", "0", "--html", str(html))
    assert code == 3
    for text in ("2 hosts: a, b", "kernel: sysctl kernel.sysrq 1", "batch 1 (canary): a", "✓ done", "journal: "):
        assert text in out
    assert "not reached: Connection refused" in html.read_text()
    assert "as wanted" in html.read_text()


@pytest.mark.usefixtures("fakes")
def test_every_event_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is JSON lines and nothing else; they are those of the journal, and a summary."""
    _code, out, _err = rollout(capsys, *QUICK)
    journal = Path(summary(out)["journal"])
    assert events(out)[:-1] == [json.loads(line) for line in journal.read_text().splitlines()]
    assert summary(out)["schema"] == "plimsoll.rollout/1"
    assert journal.stat().st_mode & 0o077 == 0


def test_a_new_one_takes_the_place_of_one_that_was_cut_off(fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and it is the new one that is gone on with afterwards."""
    fakes.write("a", "deploy", "exit 1")
    _code, first, _err = rollout(capsys, *QUICK)
    (fakes.host("a") / "deploy").unlink()
    code, second, err = rollout(capsys, *QUICK)
    assert (code, "had not come to its end" in err) == (0, True)
    assert summary(second)["id"] > summary(first)["id"]


def test_pyinfra_stays_outside() -> None:
    """Neither it nor gevent, which replaces parts of the standard library, comes into the process that decides."""
    program = "import sys; from plimsoll.fleet.rollout import command; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert "plimsoll" in loaded
    assert not loaded & {"pyinfra", "pyinfra_cli", "gevent", "paramiko"}
