"""`plimsoll` on the box: exit codes, and one clear line for what is wrong."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import cli, cli_change, exclusive, ledger, rollback, verify
from plimsoll.box.model import PLAN_SCHEMA, WANTED_SCHEMA, Wanted
from tests.unit.builders import FakeHost, stock_host, sysctl, tree, write_tree

AS_ROOT = pytest.mark.usefixtures("_as_root")


@pytest.fixture
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program take whoever runs the tests for root: it only writes below its own directory."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cli_change, "_carry_on_without_a_terminal", lambda: None)


def _wanted(*controls: Wanted, notify: tuple[str, ...] = ()) -> str:
    return json.dumps(
        {"schema": WANTED_SCHEMA, "notify_command": notify, "controls": [control.to_json() for control in controls]}
    )


def _plan(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # any field of a plan
    file = {"path": "/etc/x", "mode": "0644", "after": [], "content": "new\n"}
    return {"schema": PLAN_SCHEMA, "layer": "kernel", "files": [file], "actions": [], **changes}


def _feed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


GOOD = sysctl("kernel.panic", "0")
BAD = sysctl("kernel.sysrq", "1")
UNKNOWN = Wanted("x/y", "x", GOOD.kind, "x", "1", file="/x")
KEPT = {"/etc/sysctl.d/zz-plimsoll.conf": "kernel.panic = 0\n"}


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (_wanted(GOOD), [], 0),
        (_wanted(GOOD, BAD), [], 2),
        (_wanted(), ["--strict"], 0),
        (None, [], 3),
        ("junk", [], 3),
    ],
)
def test_verify(tmp_path: Path, text: str | None, arguments: list[str], code: int) -> None:
    """Good is 0, drift is 2, and what could not be judged at all is 3."""
    host = stock_host(tmp_path, **KEPT, **({} if text is None else {verify.PATH: text}))
    assert cli.main(["verify", *arguments], host) == code


def test_verify_without_an_answer_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be read makes a control unknown and the exit code 3."""
    host = stock_host(tmp_path, **{verify.PATH: _wanted(GOOD)})
    host.failing[("systemctl",)] = "no bus"
    unit = Wanted(
        "u/s", "u", Wanted.from_json({**GOOD.to_json(), "kind": "unit_state"}).kind, "x.service", "enabled active"
    )
    write_tree(tmp_path, {verify.PATH: _wanted(unit)})
    assert cli.main(["verify"], host) == 3
    assert "no bus" in capsys.readouterr().out


def test_verify_as_json_tells_somebody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output holds the document alone; the command is run; that it failed goes to standard error."""
    host = stock_host(tmp_path, **{verify.PATH: _wanted(BAD, notify=("/bin/tell",))})
    host.failing[("/bin/tell",)] = "no route"
    assert cli.main(["verify", "--json", "--notify"], host) == 2
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["hosts"]) == ["box"]
    assert captured.err == "plimsoll: nobody could be told: /bin/tell: no route\n"


def test_nobody_is_told_of_what_is_good(tmp_path: Path) -> None:
    """A good host runs no command."""
    host = stock_host(tmp_path, **KEPT, **{verify.PATH: _wanted(GOOD, notify=("/bin/tell",))})
    assert cli.main(["verify", "--notify"], host) == 0
    assert ("/bin/tell",) not in host.calls


def test_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The state is JSON on standard output; a request that cannot be read is a usage error."""
    assert cli.main(["state", "--request", '{"sysctls": ["kernel.panic"]}'], stock_host(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out)["sysctl"] == {"kernel.panic": {"value": "0"}}
    for request in ("junk", '{"moons": []}', "[1]"):
        assert cli.main(["state", f"--request={request}"], stock_host(tmp_path)) == 4
        assert capsys.readouterr().err.startswith("plimsoll: --request: ")


@AS_ROOT
def test_apply_and_revert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan on standard input is carried out and told; revert --dry says what revert then does."""
    host = FakeHost(root=str(tmp_path))
    (tmp_path / "etc").mkdir()
    _feed(monkeypatch, json.dumps(_plan()))
    assert cli.main(["apply"], host) == 0
    assert capsys.readouterr().out == "wrote /etc/x\n"
    assert cli.main(["revert", "--dry"], host) == 0
    announced = capsys.readouterr().out
    assert (tmp_path / "etc/x").exists()
    assert cli.main(["revert"], host) == 0
    assert capsys.readouterr().out == announced
    assert not (tmp_path / "etc/x").exists()
    assert cli.main(["revert"], host) == 0
    assert capsys.readouterr().out == "nothing to put back\n"


@AS_ROOT
@pytest.mark.parametrize(
    ("plan", "code", "words"),
    [
        ("junk", 4, "the plan is not a JSON object"),
        (json.dumps(_plan(schema="x")), 1, "deploy again"),
        (json.dumps(_plan(actions=[["fly"]])), 1, "unknown action"),
        (json.dumps(_plan(actions=[["sysctl", "no.such", "1"]])), 1, "/proc/sys/no/such: writing 1"),
        (json.dumps(_plan(files=[{**_plan()["files"][0], "path": "/etc"}])), 1, "/etc: Is a directory"),
        ("[1]", 4, "the plan is not a JSON object"),
    ],
)
def test_a_plan_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plan: str,
    code: int,
    words: str,
) -> None:
    """What goes wrong is one line on standard error and the exit code of its kind."""
    (tmp_path / "etc").mkdir()
    _feed(monkeypatch, plan)
    assert cli.main(["apply"], FakeHost(root=str(tmp_path))) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@AS_ROOT
def test_another_run_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lock is held a second run ends at once with EX_TEMPFAIL."""
    host = FakeHost(root=str(tmp_path))
    _feed(monkeypatch, json.dumps(_plan()))
    with exclusive.exclusively(host):
        assert cli.main(["apply"], host) == 75


@AS_ROOT
@pytest.mark.parametrize("arguments", [["revert"], ["revert", "--dry"], ["apply"]])
def test_damaged_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """A ledger that cannot be trusted is invalid input, and no file of the host is changed."""
    write_tree(tmp_path, {ledger.PATH: "{}", "/etc/x": "old"})
    host = FakeHost(root=str(tmp_path))
    _feed(monkeypatch, json.dumps(_plan()))
    before = tree(tmp_path)
    assert cli.main(arguments, host) == 4
    assert {p: v for p, v in tree(tmp_path).items() if not p.startswith("run")} == before


@AS_ROOT
def test_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Armed and fired, it takes its layer back and is gone; fired when it was disarmed meanwhile it does nothing."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    host = FakeHost(root=str(tmp_path))
    assert cli.main(["rollback", "arm", "--delay-s", "5"], host) == 0
    _feed(monkeypatch, json.dumps(_plan(layer="sshd")))
    assert cli.main(["apply"], host) == 0
    assert cli.main(["rollback", "fire"], host) == 0
    assert not (tmp_path / "etc/x").exists()
    assert not rollback.is_armed(host)
    _feed(monkeypatch, json.dumps(_plan(layer="sshd")))
    assert cli.main(["apply"], host) == 0
    assert cli.main(["rollback", "fire"], host) == 0
    assert (tmp_path / "etc/x").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["verify", "--moon"],
        ["verify", "--stri"],
        ["revert", "--layer", "moon"],
        ["rollback"],
        ["rollback", "arm", "--delay-s", "x"],
        ["rollback", "arm", "--delay-s", "-5"],
        ["rollback", "arm", "--delay-s=-5"],
        ["rollback", "arm", "--delay-s", "0"],
        ["rollback", "arm", "--delay-s", "86401"],
        ["rollback", "arm", "--delay-s", "²"],
    ],
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that is wrong ends with 4 and the usage."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments, FakeHost())
    assert caught.value.code == 4
    assert "usage: plimsoll" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["apply"], ["revert"], ["rollback", "arm"]])
def test_changing_needs_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Somebody who is not root is told so before anything is read or changed."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(arguments, FakeHost(root=str(tmp_path))) == 4
    assert "sudo" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with 130."""

    def interrupt(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "load_wanted", interrupt)
    assert cli.main(["verify"], FakeHost(root=str(tmp_path))) == 130


BOX = [sys.executable, "-c", "import sys; from plimsoll.box.cli import main; sys.exit(main())"]


@pytest.mark.parametrize(("arguments", "code"), [(["state"], 0), (["no-such-command"], 4), (["--help"], 0)])
@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_has_left(arguments: list[str], code: int, closed: str) -> None:
    """What nobody reads any more is dropped; the command ends as if it had been read."""
    reader, writer = os.pipe()
    os.close(reader)
    out, err = (writer if closed == name else subprocess.PIPE for name in ("stdout", "stderr"))
    done = subprocess.run([*BOX, *arguments], stdout=out, stderr=err, text=True, check=False)
    os.close(writer)
    assert done.returncode == code
    assert "pipe" not in (done.stderr or "").lower()


def test_a_command_without_end_ends_with_its_reader() -> None:
    """What goes on for ever stops when nobody is there to read it."""
    code = (
        "from plimsoll.box import cli, cli_incident, output; import sys\n"
        "def watch(*_):\n"
        "    while True: output.say('again')\n"
        "cli_incident.incident = watch\n"
        "sys.exit(cli.main(['incident']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"again\n"
        process.stdout.close()
        assert process.wait(60) == 0
