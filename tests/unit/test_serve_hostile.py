"""What must not make a start or a stop end in the middle: no room, damaged records, a busy manager, a wrong clock."""

import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import files
from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN
from plimsoll.box.guard.config import ConfigError
from plimsoll.box.guard.reserve import Store
from plimsoll.box.host import Host
from plimsoll.box.serve import attending, config, launch, readiness, records, repairing, scores, starting, stopping
from plimsoll.box.serve.loading import ask_beside
from plimsoll.box.serve.model import Readiness
from plimsoll.box.serve.records import End, History, Phase, RecordError
from plimsoll.box.serve.watching import watching
from tests.unit.serve_box import SYSTEMCTL, Box, Server, box, serving
from tests.unit.serving import saying

BUSY = '#!/bin/sh\n[ "$1" = show ] && [ -e "$UNITS/busy" ] && { echo "Connection timed out" >&2; exit 1; }\n'


def start(b: Box) -> int:
    """Start `m`."""
    return starting.start(b.act, config.load(b.host, "m"))


def stop(b: Box) -> int:
    """Stop `m`."""
    return stopping.stop(b.act, config.load(b.host, "m"))


def running(b: Box, server: Server) -> None:
    """Have `m` started and ready."""
    b.unit("m.service")
    b.declare("m", server.port)
    assert start(b) == GOOD


def has_ended(b: Box) -> bool:
    """Say whether the manager has forgotten `m`, which it does when it has ended."""
    return not (b.units / "m.service.pid").exists()


def said(b: Box, *words: str) -> bool:
    """Say whether one line that was told has all of these words."""
    return any(all(word in line for word in words) for line in b.said)


# --- no room, and records that cannot be used -------------------------------------------------------


def test_a_full_disk_stops_no_stop(b: Box, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written down is said; the model is ended, and its memory waited for, all the same."""
    running(b, server)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_atomically", full)
    assert stop(b) == GOOD
    assert has_ended(b)
    assert said(b, "that it is stopping cannot be written down", "No space left")
    assert said(b, "not remembered", "No space left")


def test_nothing_is_started_that_cannot_be_written_down(b: Box, server: Server) -> None:
    """Whoever is killed after a start must have left word of it."""
    b.unit("m.service")
    b.declare("m", server.port)
    b.write("/run/plimsoll/serve", "a file where a directory belongs")
    with pytest.raises(FileExistsError):
        start(b)
    assert "start --no-block" not in b.calls()


def test_a_damaged_history_leaves_no_load_alone(b: Box, server: Server) -> None:
    """It is only remembered: the model becomes ready and attended, and what is not remembered is said."""
    b.write("/var/lib/plimsoll/serve/m.json", "{")
    running(b, server)
    assert said(b, "not remembered", "m.json")
    assert "--unit=plimsoll-attend-m.service" in b.calls()


def test_a_latch_that_cannot_be_read_holds(b: Box, server: Server) -> None:
    """Without the time of the last automatic start, a fallback could be started again and again."""
    b.unit("m.service", "exit 3")
    b.unit("small.service")
    b.declare("small", server.port)
    b.declare("m", server.port, fallback={"model": "small"})
    b.write("/var/lib/plimsoll/serve/m.json", "{")
    assert start(b) == DRIFT
    assert said(b, "its fallback small was not started", "is not known")
    assert "small.service" not in b.calls()


def test_a_damaged_record_of_another_is_in_nobodys_way_to_an_end(b: Box, server: Server) -> None:
    """A stop ends its model, and cannot tell whether the memory is back; a start is not made beside the unknown."""
    running(b, server)
    b.write("/run/plimsoll/serve/other.json", "{")
    repairing.repair(b.act, repairing.Asked(frozenset({"m"}), frozenset({"m"})))
    assert said(b, "other.json", "cannot be used")
    assert stop(b) == UNKNOWN
    assert has_ended(b)
    with pytest.raises(RecordError, match=r"other\.json"):
        start(b)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("began_s", float("inf")), ("footprint_kib", float("-inf")), ("began_unix_s", 1e300), ("ended_s", float("nan")),
        ("name", "other"), ("baseline", []), ("by", None), ("pids", [float("inf")]), ("phase_s", 10**400),
    ],
)  # fmt: skip
def test_a_record_with_an_impossible_value_is_damaged(b: Box, server: Server, key: str, value: object) -> None:
    """It is one error that names the file, and nothing that an act would go by."""
    running(b, server)
    path = b.root / "run/plimsoll/serve/m.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(RecordError, match=r"m\.json: cannot be used"):
        records.read(b.host, "m")


@pytest.mark.parametrize("ends", [[1], [{"at_unix_s": 1e300, "kind": "", "said": ""}], {"a": 1}])
def test_a_history_with_an_impossible_end_is_damaged(tmp_path: Path, ends: object) -> None:
    """No date can be shown of it."""
    path = tmp_path / "var/lib/plimsoll/serve/m.json"
    path.parent.mkdir(parents=True)
    content = {"schema": records.HISTORY_SCHEMA, "loads": [], "ends": ends, "again_unix_s": [], "instead_unix_s": []}
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"m\.json: cannot be used"):
        records.history(Host(str(tmp_path)), "m")


def test_a_guard_whose_settings_became_faulty_stops_no_stop(b: Box, server: Server) -> None:
    """What was announced then stays, and that is said."""
    running(b, server)
    b.write("/etc/plimsoll/guard.toml", "[lines]\nfloor_gib = 'much'\n")
    assert stop(b) == GOOD
    assert said(b, "what it announced stays")


# --- a manager that does not answer -----------------------------------------------------------------


def busy(b: Box) -> Path:
    """Have a manager that answers no question while the file that is returned is there."""
    path = b.root / "bin/systemctl"
    path.write_text(BUSY + SYSTEMCTL)
    return b.units / "busy"


def test_a_busy_manager_does_not_end_a_load(b: Box) -> None:
    """Nothing is known for a while; the load goes on, and is seen to its end."""
    with serving() as server:
        b.unit("m.service")
        b.declare("m", server.port)
        flag = busy(b)

        def hinder() -> None:
            server.asked.wait(10)
            flag.touch()
            ends_s = time.monotonic() + 10
            while not said(b, "nothing is known of it now") and time.monotonic() < ends_s:
                time.sleep(0.01)
            flag.unlink()
            server.models = ["m"]

        other = threading.Thread(target=hinder)
        other.start()
        assert start(b) == GOOD
        other.join()
    assert said(b, "nothing is known of it now")


def test_what_nobody_can_be_asked_to_end_is_killed(b: Box, server: Server) -> None:
    """A stop that its manager refuses is told, waits for no grace, and is no stop in the middle."""
    running(b, server)
    path = b.root / "bin/systemctl"
    path.write_text('#!/bin/sh\n[ "$1" = stop ] && [ "$4" = m.service ] && { echo "no" >&2; exit 1; }\n' + SYSTEMCTL)
    (b.root / "etc/plimsoll/models.d/m.toml").write_text(
        (b.root / "etc/plimsoll/models.d/m.toml").read_text().replace("grace_s = 2", "grace_s = 600")
    )
    assert stop(b) == GOOD
    assert said(b, "systemctl stop m.service: no")
    assert "kill --signal=SIGKILL -- m.service" in b.calls()


def test_an_interruption_right_after_the_launch_leaves_nothing(
    b: Box, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit has ended, nothing is announced, and the state says why."""
    b.unit("m.service")
    b.declare("m", server.port)

    def interrupt(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(scores, "give", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start(b)
    assert has_ended(b)
    assert Store(b.host).read() == ((), ())
    found = records.read(b.host, "m")
    assert found is not None
    assert (found.phase, found.said) == (Phase.FAILED, starting.INTERRUPTED)


# --- clocks, keys, answers and arguments ------------------------------------------------------------


def test_an_end_in_the_future_explains_no_other_life(b: Box, server: Server) -> None:
    """After the clock was set back, an earlier life's end lies ahead; this one's is looked into and told."""
    running(b, server)
    state = records.read(b.host, "m")
    assert state is not None
    ahead = End(time.time() + 1e6, "oom", "of another life", state.began_unix_s - 5)
    records.remember(b.host, "m", lambda before: replace(before, ends=(*before.ends, ahead)))
    os.kill(b.pid("m.service"), 9)
    attending.see_to_end(b.act, config.load(b.host, "m"), state, frozenset())
    own, last = records.history(b.host, "m").ends
    assert own == ahead
    assert (last.kind, last.life_unix_s) == ("signal", state.began_unix_s)
    assert History(ends=(own, last)).ends[-1].at_unix_s < ahead.at_unix_s


@pytest.mark.parametrize("key", ["", "\n", "ключ", "a b", "\x00", "a\x1bb"])
def test_a_file_without_a_key_is_no_reason_to_wait(b: Box, server: Server, key: str) -> None:
    """It is named at once, and is not taken for the model's death."""
    b.write("/key", key)
    found = readiness.ask(b.host, Readiness(f"http://127.0.0.1:{server.port}/v1/models", "m", api_key_file="/key"))
    assert found.hopeless
    assert "/key: its first line is no key" in found.said


def answering(content: bytes) -> AbstractContextManager[str]:
    """Have a server that answers everything with these bytes, and closes."""

    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(content)

    return saying(talk)


def test_metrics_beyond_all_numbers_stop_no_stop(b: Box) -> None:
    """How many requests are in flight is then not known."""
    body = b"vllm:num_requests_running 1e999\n"
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as url:
        found = readiness.in_flight(b.host, Readiness(f"{url}/v1/models", "m"))
    assert found.running is None
    assert "/metrics" in found.problem


@pytest.mark.parametrize(
    "content", [b"\x1b[2J\x07\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: a\x1b[2Jb\r\nContent-Length: 1\r\n\r\nx"]
)
def test_a_server_cannot_write_to_the_terminal(b: Box, content: bytes) -> None:
    """What it says is shown, and obeyed by no terminal."""
    with answering(content) as url:
        found = readiness.ask(b.host, Readiness(f"{url}/v1/models", "m"), 5)
    assert not found.ready
    assert "[2J" in found.said
    assert found.said.isprintable()


def test_what_goes_wrong_in_a_question_is_no_death(b: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the program itself is raised as what it is."""
    b.declare("m", 1)

    def broken(*_: object) -> Any:  # noqa: ANN401  # it returns nothing
        raise ZeroDivisionError

    monkeypatch.setattr(readiness, "ask", broken)
    with watching({os.getpid()}) as watch, pytest.raises(ZeroDivisionError):
        ask_beside(b.host, watch, config.load(b.host, "m"), 5)


def test_arguments_are_taken_literally() -> None:
    """Systemd puts variables in place of $NAME and ${NAME}, and a lone $NAME becomes as many words as it has."""
    assert list(launch.literal(["$HOME", "a${b}", "$$", "plain"])) == ["$$HOME", "a$${b}", "$$$$", "plain"]


def test_what_goes_round_the_admission_is_said(b: Box, server: Server) -> None:
    """A unit that is enabled, or that systemd starts again, comes up with nobody having asked for it."""
    path = b.root / "bin/systemctl"
    path.write_text(SYSTEMCTL.replace('"LoadState=', 'UnitFileState=enabled Restart=always "LoadState='))
    running(b, server)
    assert said(b, "m.service is enabled", "systemctl disable m.service")
    assert said(b, "m.service has Restart=always", "run.restart")


def test_a_file_that_a_user_can_exchange_is_refused(b: Box, server: Server) -> None:
    """A link into a directory that others can write is theirs, whoever owns what it leads to just now."""
    b.declare("m", server.port)
    theirs = b.root / "home/alice"
    theirs.mkdir(parents=True)
    own = b.root / "etc/plimsoll/models.d/m.toml"
    own.rename(theirs / "m.toml")
    own.symlink_to(theirs / "m.toml")
    assert config.load(b.host, "m").name == "m"
    theirs.chmod(0o777)
    with pytest.raises(ConfigError, match="/home/alice: belongs to"):
        config.load(b.host, "m")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_a_locale_cannot_say_is_said_otherwise(encoding: str) -> None:
    """Names come from files, servers and users; one that cannot be printed is escaped, and ends nothing."""
    code = "from plimsoll.box.output import outlive_readers; outlive_readers(); print('a\\u6a21\\udce9z')"
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.startswith(b"a")
    assert done.stdout.endswith(b"\\udce9z\n")


START_UNTIL = """
import json, os, sys
from plimsoll.box.host import Host
from plimsoll.box.serve import config, starting
from plimsoll.box.serve.acting import Act
from plimsoll.box.serve.locking import myself

root, environment, last = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
host = Host(root, environment)
model, steps = config.load(host, "m"), 0

def count(event, arguments):
    global steps
    path = arguments[0] if arguments else ""
    opens = event == "open" and isinstance(path, str) and path.startswith(f"{root}/run/")
    if opens or event in ("os.rename", "os.remove", "os.posix_spawn"):
        steps += 1
        if steps == last:
            os._exit(9)

sys.addaudithook(count)
starting.start(Act(host, myself("a test"), lambda _: None), model)
"""
STEPS_AT_LEAST = 20
"""Of a start: what it writes, removes and runs; there were 31."""


@pytest.mark.slow
def test_a_start_killed_between_any_two_steps_is_carried_on(tmp_path: Path, server: Server) -> None:
    """Before everything that it writes or runs: the next one ends up with one process, one announcement, and stops."""
    for step in itertools.count(1):
        root = tmp_path / str(step)
        root.mkdir()
        with box(root) as b:
            b.unit("m.service")
            b.declare("m", server.port)
            words = [sys.executable, "-c", START_UNTIL, str(root), json.dumps(b.host.environment), str(step)]
            if subprocess.run(words, check=False, timeout=60).returncode == 0:
                break
            repairing.repair(b.act, repairing.Asked(frozenset({"m"})))
            found = records.read(b.host, "m")
            assert (found is not None and found.phase is Phase.READY) or start(b) == GOOD, step
            found = records.read(b.host, "m")
            assert found is not None
            assert (found.phase, found.pids) == (Phase.READY, (b.pid("m.service"),)), step
            assert len(Store(b.host).read()[0]) == 1, step
            assert stop(b) == GOOD, step
            assert Store(b.host).read() == ((), ()), step
    assert step > STEPS_AT_LEAST
