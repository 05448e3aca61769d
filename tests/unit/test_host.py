"""The box's edge to its machine: what becomes of a command, whatever it does."""

import os
import sys
import time
from pathlib import Path

import pytest

from plimsoll.box.host import NOT_FOUND, TIMED_OUT, Host, Ran


def python(code: str, *, timeout_s: float = 20, given: str | None = None) -> Ran:
    """Run some Python as a command."""
    return Host().run(sys.executable, "-I", "-S", "-c", code, timeout_s=timeout_s, given=given)


def test_both_outputs_and_the_exit_code() -> None:
    """What a command writes comes back apart, bytes that are not UTF-8 replaced."""
    ran = python("import os, sys; os.write(1, b'a\\xff'); os.write(2, b'b'); sys.exit(3)")
    assert ran == Ran(3, "a\N{REPLACEMENT CHARACTER}", "b")


def test_what_is_given_and_answered_may_be_large() -> None:
    """Nobody waits for anybody with 3 MiB in and out at once."""
    text = "0123456789abcde\n" * (3 << 16)
    assert python("import sys; sys.stdout.write(sys.stdin.read())", given=text).out == text


def test_without_input_a_command_reads_nothing() -> None:
    """Standard input is at its end, and not the terminal of whoever started this."""
    assert python("import sys; print(repr(sys.stdin.read()))").out == "''\n"


def test_a_signal_is_a_negative_exit_code() -> None:
    """A command that was killed says by which signal."""
    assert python("import os; os.kill(os.getpid(), 9)").code == -9


def test_a_broken_pipe_ends_a_child() -> None:
    """Python ignores SIGPIPE, and hands that on to nobody."""
    assert python("import signal; print(signal.getsignal(signal.SIGPIPE).name)").out == "SIG_IGN\n"
    ran = Host().run("sh", "-c", "(sleep 0; yes; echo $? >&2) | true")
    assert ran.code == 0
    assert "Broken pipe" not in ran.err


def test_a_program_that_is_not_there() -> None:
    """It is said by name."""
    assert Host().run("no-such-program", "-x") == Ran(NOT_FOUND, "", "no-such-program: not found")


def test_a_program_that_may_not_be_run(tmp_path: Path) -> None:
    """A file that nobody may execute is not the same as none."""
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    ran = Host(environment={"PATH": str(tmp_path)}).run("tool")
    assert (ran.code, ran.err) == (TIMED_OUT, "tool: Permission denied")


def test_the_first_that_can_be_run_is_taken(tmp_path: Path) -> None:
    """PATH is the environment's that the command gets, and a directory that does not exist is passed over."""
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho mine\n")
    tool.chmod(0o755)
    assert Host(environment={"PATH": f"/nowhere:{tmp_path}"}).run("tool").out == "mine\n"


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After its time a command is given up, and is gone."""
    pid_file = tmp_path / "pid"
    ran = python(f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)", timeout_s=1)
    assert ran.code == TIMED_OUT
    assert "no answer within 1 s" in ran.err
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_what_it_leaves_running_is_not_waited_for() -> None:
    """A background process that keeps the outputs open holds nobody."""
    started_s = time.monotonic()
    ran = Host().run("sh", "-c", "sleep 5 & echo $!")
    assert time.monotonic() - started_s < 4
    os.kill(int(ran.out), 9)
