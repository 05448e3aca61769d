"""Who waits for a model's end, and who comes after somebody that was killed: each end is explained, and dealt with."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll.box.errors import GOOD
from plimsoll.box.guard.reserve import Store
from plimsoll.box.serve import attendant, attending, config, locking, records, repairing, starting, stopping
from plimsoll.box.serve.launch import Seen
from plimsoll.box.serve.model import Holder
from plimsoll.box.serve.records import Phase, State
from plimsoll.box.serve.repairing import Asked
from plimsoll.box.serve.watching import until
from tests.unit.serve_box import Box, Server


def state(b: Box, name: str = "m") -> State:
    """Return what is written down of a model."""
    found = records.read(b.host, name)
    assert found is not None
    return found


def ready(b: Box, server: Server, **sections: dict[str, object]) -> int:
    """Bring the model up; return its main process."""
    b.unit("m.service")
    b.declare("m", server.port, **sections)
    assert starting.start(b.act, config.load(b.host, "m")) == GOOD
    return b.pid("m.service")


def attended(b: Box) -> threading.Thread:
    """Have somebody wait for the model's end."""
    thread = threading.Thread(target=lambda: attending.attend(b.host, "m", b.said.append), daemon=True)
    thread.start()
    return thread


def kill(pid: int) -> None:
    """Kill a process, as the kernel would."""
    os.kill(pid, signal.SIGKILL)


def test_a_late_death_is_told_at_once(b: Box, server: Server, tmp_path: Path) -> None:
    """The operator's program hears the cause, and what is left of the model is cleaned up."""
    told = tmp_path / "told"
    pid = ready(b, server, hooks={"ended": ["/bin/sh", "-c", f"cat >>{told}"]})
    waiting = attended(b)
    kill(pid)
    waiting.join(60)
    assert not waiting.is_alive()
    event = json.loads(told.read_text())
    assert (event["event"], event["model"], event["pids"], event["next"]) == ("ended", "m", [pid], None)
    assert event["cause"] == "signal"
    assert state(b).phase is Phase.FAILED
    assert Store(b.host).read() == ((), ())
    assert "reset-failed -- m.service" in b.calls()
    assert locking.holder(b.host) is None


def test_a_late_death_is_told_while_others_act(b: Box, server: Server, tmp_path: Path) -> None:
    """Another model's load may take half an hour: that is waited for with the cleaning, and not with the word."""
    told = tmp_path / "told"
    pid = ready(b, server, hooks={"ended": ["/bin/sh", "-c", f"cat >>{told}"]})
    waiting = attended(b)
    with locking.exclusively(b.host, "plimsoll serve start other"):
        kill(pid)
        assert until(told.exists, 60)
        assert state(b).phase is Phase.READY, "nothing is done beside him who acts"
    waiting.join(60)
    assert state(b).phase is Phase.FAILED
    assert json.loads(told.read_text())["model"] == "m", "once is enough: two would be no JSON"
    assert len(records.history(b.host, "m").ends) == 1


def test_a_dead_service_falls_back(b: Box, server: Server) -> None:
    """A served model that was killed is replaced by its fallback, which has an attendant of its own."""
    b.unit("small.service")
    b.declare("small", server.port)
    pid = ready(b, server, fallback={"model": "small"})
    waiting = attended(b)
    server.models = ["small"]
    kill(pid)
    waiting.join(60)
    assert (state(b).phase, state(b, "small").phase) == (Phase.FAILED, Phase.READY)
    assert state(b, "small").fallback_for == "m"
    assert "--unit=plimsoll-attend-small.service" in b.calls()


def test_one_that_is_to_be_started_again_is_attended_on(b: Box, server: Server) -> None:
    """With restart = "on-failure" it comes back once by itself; the second death within the hour is the last."""
    first = ready(b, server, run={"unit": "m.service", "restart": "on-failure"})
    waiting = attended(b)
    kill(first)
    assert until(lambda: state(b).phase is Phase.READY and state(b).pids != (first,), 60)
    kill(state(b).pids[0])
    waiting.join(60)
    assert not waiting.is_alive()
    assert state(b).phase is Phase.FAILED
    assert b.calls().count("start --no-block -- m.service") == 2


def test_a_stop_is_no_death(b: Box, server: Server, tmp_path: Path) -> None:
    """Who waits for the end holds still when it is meant: no cause is looked for, and nobody is told."""
    told = tmp_path / "told"
    ready(b, server, hooks={"ended": ["/bin/sh", "-c", f"cat >>{told}"]})
    waiting = attended(b)
    with locking.exclusively(b.host, "plimsoll serve stop m"):
        assert stopping.stop(b.act, config.load(b.host, "m")) == GOOD
    waiting.join(60)
    assert not waiting.is_alive()
    assert not told.exists()
    assert [each.kind for each in records.history(b.host, "m").ends] == [stopping.STOPPED]


def test_who_holds_the_memory_is_watched_too() -> None:
    """A front end can go on saying that it is healthy when the process with the memory has died."""
    seen = Seen(there=True, said="", main_pid=10, pids=(10, 11, 12))
    held = [Holder(11, "engine", 1, holds_gpu=True), Holder(12, "helper", 1), Holder(99, "other", 1, holds_gpu=True)]
    assert attendant.watched(seen, held) == (10, 11)


def test_the_attendant_outlives_what_it_waits_for() -> None:
    """It runs outside of any login, is among the last that the kernel kills, and comes back."""
    words = attendant.command("m")
    assert {"--unit=plimsoll-attend-m.service", "--slice=system.slice", "--property=OOMScoreAdjust=-900"} <= set(words)
    assert words[words.index("--") + 1 :] == ("/usr/local/bin/plimsoll", "serve", "attend", "m")


# --- what was cut off -------------------------------------------------------------------------------


def cut_off(b: Box, phase: Phase) -> None:
    """Leave a model as somebody leaves it who is killed in the middle."""
    found = state(b)
    records.write(b.host, records.advanced(found, phase, found.by))


def repaired(b: Box, asked: Asked = Asked()) -> None:  # noqa: B008  # frozen
    """Do what every command does first."""
    repairing.repair(b.act, asked)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING])
def test_a_load_that_has_come_to_its_end_is_ready(b: Box, server: Server, phase: Phase) -> None:
    """Nobody waited for it; the next command sees that it answers, and sends for an attendant."""
    ready(b, server)
    cut_off(b, phase)
    repaired(b)
    assert state(b).phase is Phase.READY
    assert any("was cut off while it was" in each for each in b.said)


def test_a_load_that_goes_on_is_left_to_its_own(b: Box, server: Server) -> None:
    """It is neither ended nor taken for ready, and the ways out are named."""
    pid = ready(b, server)
    cut_off(b, Phase.LOADING)
    server.models = []
    repaired(b)
    assert state(b).phase is Phase.LOADING
    assert b.pid("m.service") == pid
    assert any("plimsoll serve start m takes it over, plimsoll serve stop m ends it" in each for each in b.said)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING])
def test_a_load_that_died_unseen_is_cleaned_up(b: Box, server: Server, phase: Phase) -> None:
    """Its reservation is taken back, and its end is remembered."""
    kill(ready(b, server))
    cut_off(b, phase)
    assert until((b.units / "m.service.exit").exists, 30)
    repaired(b)
    assert state(b).phase is Phase.FAILED
    assert Store(b.host).read() == ((), ())
    assert records.history(b.host, "m").ends[-1].kind == repairing.CUT_OFF


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.RECLAIMING])
def test_a_stop_that_was_cut_off_is_finished(b: Box, server: Server, phase: Phase) -> None:
    """Whether or not its processes were gone already, it is stopped in the end."""
    ready(b, server)
    cut_off(b, phase)
    repaired(b)
    assert state(b).phase is Phase.STOPPED
    assert Store(b.host).read() == ((), ())
    assert "stop --no-block -- m.service" in b.calls()


def test_a_death_that_nobody_waited_for_is_told_late(b: Box, server: Server, tmp_path: Path) -> None:
    """Where the attendant was killed too, the next command finds it; what it asks for is not overtaken."""
    told = tmp_path / "told"
    b.unit("small.service")
    b.declare("small", server.port)
    pid = ready(b, server, fallback={"model": "small"}, hooks={"ended": ["/bin/sh", "-c", f"cat >>{told}"]})
    kill(pid)
    assert until((b.units / "m.service.exit").exists, 30)
    repaired(b, Asked(names=frozenset({"m"})))
    assert state(b).phase is Phase.FAILED
    assert json.loads(told.read_text())["next"] is None
    assert "start --no-block -- small.service" not in b.calls()


def test_a_lost_attendant_is_sent_for(b: Box, server: Server) -> None:
    """A model that serves with nobody waiting for its end gets somebody, and one that is waited for none."""
    ready(b, server)
    assert until((b.units / "plimsoll-attend-m.service.exit").exists, 30), "there is no program of that name"
    repaired(b)
    assert b.calls().count("run --quiet --collect --unit=plimsoll-attend-m.service") == 2


def test_a_model_without_a_file_is_left_and_said(b: Box, server: Server) -> None:
    """Nobody knows how it is ended; the others are seen to all the same."""
    ready(b, server)
    cut_off(b, Phase.LOADING)
    (b.root / "etc/plimsoll/models.d/m.toml").unlink()
    repaired(b)
    assert state(b).phase is Phase.LOADING
    assert any("it stays so" in each for each in b.said)


def _killed_at(number: int, act: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do an act that is killed before its record number `number`; say whether it came so far."""
    count = 0
    write = records.write

    class KilledError(BaseException):
        """As SIGKILL: nothing of the program runs after it."""

    def killed(*arguments: object) -> None:
        nonlocal count
        if count == number:
            raise KilledError
        count += 1
        write(*arguments)  # type: ignore[arg-type]  # what it was called with

    with monkeypatch.context() as patch:
        patch.setattr(records, "write", killed)
        try:
            act()
        except KilledError:
            return True
    return False


@pytest.mark.parametrize("number", range(4))
def test_a_start_killed_before_any_record_can_be_repeated(
    b: Box, server: Server, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whatever was written last, the next start ends with one process, ready, and one reservation."""
    b.unit("m.service")
    b.declare("m", server.port)
    model = config.load(b.host, "m")
    assert _killed_at(number, lambda: starting.start(b.act, model), monkeypatch)
    repaired(b, Asked(names=frozenset({"m"})))
    if records.read(b.host, "m") is None or state(b).phase is not Phase.READY:
        assert starting.start(b.act, model) == GOOD
    assert state(b).phase is Phase.READY
    assert b.calls().count("start --no-block -- m.service") == 1
    (reservation,), _ = Store(b.host).read()
    assert reservation.id == state(b).reservation


@pytest.mark.parametrize("number", range(3))
def test_a_stop_killed_before_any_record_can_be_repeated(
    b: Box, server: Server, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The next stop ends with nothing left: no process, no reservation, no doubt."""
    ready(b, server)
    model = config.load(b.host, "m")
    assert _killed_at(number, lambda: stopping.stop(b.act, model), monkeypatch)
    repaired(b, Asked(names=frozenset({"m"}), ending=frozenset({"m"})))
    assert stopping.stop(b.act, model) == GOOD
    assert not (b.units / "m.service.pid").exists()
    assert Store(b.host).read() == ((), ())
