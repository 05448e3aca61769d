"""The command itself: what it refuses before it asks anybody, and how it ends when it is cut off."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plimsoll.fleet import cli, gather, targets
from plimsoll.inventory import load
from tests.unit.builders import names_in

SSH = """#!/bin/sh
# stands in for ssh: nobody is reached, and one host never says so
while [ "$1" != -- ]; do shift; done
echo "$2" >>"${0%/*}/asked"
case $2 in
silent) echo $$ >>"${0%/*}/pids"; exec sleep 600 ;;
*) echo 'Connection refused' >&2; exit 255 ;;
esac
"""
INVENTORY = """
hosts: {one: {}, two: {}, silent: {}}
groups: {pair: {hosts: [one, two]}, both: {hosts: [two, one]}, none: {hosts: []}}
"""
COMMAND = [sys.executable, "-c", "from plimsoll.fleet.cli import main; main()"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an inventory, a stand-in for ssh, and an empty directory to work in."""
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PLIMSOLL_INVENTORY", str(tmp_path / "hosts.yml"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "work")


def asked(tmp_path: Path) -> list[str]:
    """Return the hosts that ssh was started for."""
    file = tmp_path / "bin/asked"
    return sorted(file.read_text().split()) if file.exists() else []


# --- whom it is about -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "none"], "there is no host in none"),
        (["audit", ""], "is no host name"),
        (["audit", "--", "-oProxyCommand=true"], "is no host name"),
        (["audit", "@ssh/-oProxyCommand=true"], "is no host name"),
        (["audit", "one\ntwo"], "is no host name"),
        (["audit", "one", "--against", "one"], "name another host"),
        (["audit", "one", "--against", "pair"], "is a group"),
        (["audit", "one", "--against", "befor.json"], "befor.json: cannot be read: No such file or directory"),
        (["explain", "kernel/kernel.sysrq", "none"], "there is no host in none"),
        (["revert", "pair"], "is a group"),
        (["revert", "one\ntwo"], "is no host name"),
        (["revert", "--", "-oProxyCommand=true"], "is no host name"),
        (["revert", "@local"], "on this machine itself"),
    ],
)
def test_nobody_is_asked(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What names no host, or not the one that is needed, is refused with the reason before a connection is made."""
    assert cli.run(arguments) == 4
    out, err = capsys.readouterr()
    assert (out, asked(tmp_path)) == ("", [])
    assert message in err


def test_a_host_in_two_groups_is_asked_once(tmp_path: Path) -> None:
    """Groups that overlap, and two spellings of one name, are one host each."""
    assert cli.run(["audit", "pair", "both", "@ssh/one", "one"]) == 3
    assert asked(tmp_path) == ["one", "two"]


def test_this_machine_is_never_reached_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """@local has what the inventory says of this machine's name, and is looked at without a connection."""
    monkeypatch.setattr("socket.gethostname", lambda: "one")
    (tmp_path / "hosts.yml").write_text("hosts: {one: {policy: {values: {kernel/kernel.sysrq: 1}}}}")
    (host,) = targets.resolve(["@local"], load(tmp_path / "hosts.yml"))
    assert host.name == gather.LOCAL
    assert host.policy.values == {"kernel/kernel.sysrq": 1}


def test_a_name_that_may_be_mistyped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a host of its own, and the nearest host or group is named; others, and this machine, are as they are."""
    (tmp_path / "hosts.yml").write_text("groups: {sparks: {hosts: [gx10]}}\nhosts: {gx10: {}}\n")
    inventory = load(tmp_path / "hosts.yml")
    assert [host.name for host in targets.resolve(["spark", "gx10", "sparks", "desk", "@local"], inventory)] == [
        "spark", "gx10", "desk", "@local",
    ]  # fmt: skip
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("'spark' is not in ")
    assert said.endswith("hosts.yml, so it gets the default policy; did you mean 'sparks'?")
    assert targets.resolve_one("gx1O", inventory).name == "gx1O"
    assert "did you mean 'gx10'?" in capsys.readouterr().err


# --- where it goes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--html", "--junit", "--metrics", "--save"])
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("missing/file", "there is no directory"),
        ("/dev/full", "not a regular file"),
        ("fifo", "not a regular file"),
        ("loop", "not a regular file"),
        ("-", "is no file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written(
    option: str, file: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named with the reason before any host is asked, and nothing is made or replaced."""
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    device = Path("/dev/full").stat()
    assert cli.run(["audit", "one", option, file]) == 4
    assert message in capsys.readouterr().err
    assert asked(tmp_path) == []
    assert names_in(Path()) == ["fifo", "loop"]
    assert stat.S_ISFIFO(Path("fifo").stat().st_mode)
    assert Path("/dev/full").stat().st_rdev == device.st_rdev


def test_one_file_for_two_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second report would replace the first, by whatever name it goes."""
    Path("link").symlink_to("report")
    assert cli.run(["audit", "one", "--html", "report", "--junit", "link"]) == 4
    assert "two reports" in capsys.readouterr().err
    assert asked(tmp_path) == []


@pytest.mark.parametrize("option", ["--html", "--junit", "--metrics"])
def test_what_is_compared_with_stays(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page does not take the place of the report it is made from, by whatever name that goes."""
    assert cli.run(["audit", "one", "--save", "report"]) == 3
    before = Path("report").read_bytes()
    Path("link").symlink_to("report")
    assert cli.run(["audit", "two", "--against", "report", option, "link"]) == 4
    assert "link is what --against compares with" in capsys.readouterr().err
    assert Path("report").read_bytes() == before
    assert asked(tmp_path) == ["one"]


def test_a_later_report_takes_the_place_of_the_one_compared_with() -> None:
    """Each audit may compare with the one before, and be what the next is compared with."""
    assert cli.run(["audit", "one", "--save", "report"]) == 3
    assert cli.run(["audit", "one", "two", "--against", "report", "--save", "report"]) == 3
    assert set(json.loads(Path("report").read_text())["hosts"]) == {"one", "two"}


def test_a_link_stays_a_link() -> None:
    """A report goes where a link leads."""
    Path("link").symlink_to("report")
    assert cli.run(["audit", "one", "--html", "link"]) == 3
    assert Path("link").is_symlink()
    assert Path("report").read_text().startswith("<!DOCTYPE html>")


def test_two_audits_write_the_same_files() -> None:
    """Whichever is last has written it whole."""
    arguments = ["audit", "one", "two", "--html", "a.html", "--save", "a.json", "--metrics", "a.prom"]
    running = [subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in running] == [3, 3, 3]
    assert set(json.loads(Path("a.json").read_text())["hosts"]) == {"one", "two"}
    assert Path("a.html").read_text().rstrip().endswith("</html>")
    assert Path("a.prom").read_text().endswith("# EOF\n")
    assert names_in(Path()) == ["a.html", "a.json", "a.prom"]


# --- how it ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_cut_off(ending: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, an end from outside and a closed terminal leave no process and no file, and exit with 130."""
    command = [*COMMAND, "audit", "silent", "one", "--html", "a.html", "--save", "a.json"]
    # a shell starts what is in the background with SIGINT ignored, and so may be this test
    signals = {ending: signal.default_int_handler if ending is signal.SIGINT else signal.SIG_DFL}
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(*pair) for pair in signals.items()],  # noqa: PLW1509 - no threads here
    )
    pids = tmp_path / "bin/pids"
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a file appears, of which nobody tells
    process.send_signal(ending)
    _out, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in err
    assert names_in(Path()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed: str) -> None:
    """A stream that is closed takes nothing, and changes nothing about the rest."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "audit", "one", "--html", "a.html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert Path("a.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_left(form: list[str]) -> None:
    """Whoever reads only the first line takes nothing from the exit code or from what is written to files."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "audit", "one", "--html", "a.html", *form]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (3, "")
    assert Path("a.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("arguments", [["audit", "one"], ["audit", "one", "--json"], ["explain", "kernel", "--json"]])
def test_a_full_disk_behind_standard_output(arguments: list[str]) -> None:
    """What could not be written is one line on stderr and never an exit code that says that all is well."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "plimsoll: cannot write to standard output: No space left on device\n"


def test_a_locale_without_utf_8() -> None:
    """Neither what is written to files nor what a host is sent depends on the operator's locale."""
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*COMMAND, "audit", "one", "--html", "a.html"]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    code = (
        "from plimsoll import zipapp; from plimsoll.fleet import reader; import sys; "
        "sys.stdout.write(zipapp.first_line() + reader.first_line())"
    )
    built = [
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
        for env in (plain, {**os.environ, "PYTHONUTF8": "1"})
    ]
    assert built[0] == built[1]
