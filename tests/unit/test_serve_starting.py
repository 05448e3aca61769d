"""Starting a model: admitted or refused, ready or explained and cleaned up, and its fallback in its place."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.errors import DRIFT, GOOD, UsageError
from plimsoll.box.guard.reserve import Store
from plimsoll.box.serve import config, records, starting
from plimsoll.box.serve.acting import RefusedError
from plimsoll.box.serve.records import Phase
from tests.unit.serve_box import DEADLINE_S, GIB, Box, Server, serving


def start(b: Box, name: str = "m", *, prove: bool = False, deadline_s: float | None = None) -> int:
    """Start a model that is declared, with a shorter deadline than a file may have if that is wanted."""
    model = config.load(b.host, name)
    if deadline_s is not None:
        model = replace(model, readiness=replace(model.readiness, deadline_s=deadline_s))
    return starting.start(b.act, model, prove=prove)


def state(b: Box, name: str = "m") -> records.State:
    """Return the state of a model."""
    found = records.read(b.host, name)
    assert found is not None
    return found


def test_a_model_that_answers_is_ready(b: Box, server: Server) -> None:
    """It is launched, written down as ready with its processes, announced to the guard, and attended."""
    b.unit("m.service")
    b.declare("m", server.port)
    assert start(b) == GOOD
    found = state(b)
    assert found.phase is Phase.READY
    assert found.pids == (b.pid("m.service"),)
    (reservation,), _ = Store(b.host).read()
    assert (reservation.id, reservation.workload) == (found.reservation, "m.service")
    assert reservation.until_s - reservation.made_s == pytest.approx(1.0), "its load is over"
    assert "run --quiet --collect --unit=plimsoll-attend-m.service" in b.calls()
    (load,) = records.history(b.host, "m").loads
    assert load.ready
    assert load.took_s < 5


def test_a_second_start_is_refused(b: Box, server: Server) -> None:
    """What runs already is not started beside itself."""
    b.unit("m.service")
    b.declare("m", server.port)
    assert start(b) == GOOD
    before = b.pid("m.service")
    with pytest.raises(RefusedError, match="m runs already"):
        start(b)
    assert b.pid("m.service") == before
    assert state(b).phase is Phase.READY


def test_what_does_not_fit_is_not_started(b: Box, server: Server) -> None:
    """It is refused with what is missing, nothing is launched, and nothing stays announced or written down."""
    b.unit("m.service")
    b.declare("m", server.port, need={"gib": 120})
    with pytest.raises(RefusedError, match=r"m is not started: .* are missing"):
        start(b)
    assert "start --no-block" not in b.calls()
    assert records.read(b.host, "m") is None
    assert not Path(f"{b.root}/run/plimsoll/reservations").exists()


def test_a_death_while_loading_is_noticed_at_once(b: Box) -> None:
    """The deadline is not waited for, the exit is named, and nothing is left: no reservation, no failed unit."""
    with serving() as server:
        b.unit("m.service")
        b.declare("m", server.port)

        def end_it() -> None:
            server.asked.wait(10)
            os.kill(b.pid("m.service"), signal.SIGKILL)

        killer = threading.Thread(target=end_it)
        killer.start()
        began_s = time.monotonic()
        assert start(b) == DRIFT
        assert time.monotonic() - began_s < DEADLINE_S / 2
        killer.join()
    assert state(b).phase is Phase.FAILED
    (end,) = records.history(b.host, "m").ends
    assert end.kind == "signal"
    assert Store(b.host).read() == ((), ())
    assert "reset-failed -- m.service" in b.calls()
    (load,) = records.history(b.host, "m").loads
    assert not load.ready


def test_the_fallback_comes_up_in_place_of_one_that_fails(b: Box, tmp_path: Path) -> None:
    """It is started once the failed one is cleaned up, and the operator's program is told of both."""
    with serving("small") as server:
        b.unit("m.service", "exit 3")
        b.unit("small.service")
        told = tmp_path / "told"
        hook = ["/bin/sh", "-c", f"cat >>{told}"]
        b.declare("m", server.port, fallback={"model": "small"}, hooks={"failed": hook})
        b.declare("small", server.port)
        assert start(b) == GOOD
    assert (state(b).phase, state(b, "small").phase) == (Phase.FAILED, Phase.READY)
    assert state(b, "small").fallback_for == "m"
    event = json.loads(told.read_text())
    assert (event["event"], event["model"], event["fallback"]) == ("failed", "m", "small")
    assert event["fallback_outcome"] == "is ready in its place"
    calls = b.calls()
    assert calls.index("reset-failed -- m.service") < calls.index("start --no-block -- small.service")


def test_a_fallback_that_does_not_fit_is_refused_by_its_own_admission(b: Box) -> None:
    """A failure frees no memory that was not there: the fallback has to fit as any other."""
    with serving() as server:
        b.unit("m.service", "exit 3")
        b.unit("large.service")
        b.declare("m", server.port, fallback={"model": "large"})
        b.declare("large", server.port, need={"gib": 120})
        assert start(b) == DRIFT
    assert "start --no-block -- large.service" not in b.calls()
    assert any("its fallback large was not started: large is not started" in each for each in b.said)


def test_the_latch_holds_a_fallback_back(b: Box) -> None:
    """A model that fails again within the hour gets no second fallback: that is how crash loops begin."""
    with serving() as server:
        b.unit("m.service", "exit 3")
        b.unit("small.service", "exit 3")
        b.declare("m", server.port, fallback={"model": "small"})
        b.declare("small", server.port)
        assert start(b) == DRIFT
        assert b.calls().count("start --no-block -- small.service") == 1
        assert start(b) == DRIFT
    assert b.calls().count("start --no-block -- m.service") == 2
    assert b.calls().count("start --no-block -- small.service") == 1
    assert any("is done once in 3600 s" in each for each in b.said)


def test_a_model_that_serves_another_is_hopeless(b: Box) -> None:
    """Waiting does not turn one model into another: it is stopped long before the deadline."""
    with serving("somebody-else") as server:
        b.unit("m.service")
        b.declare("m", server.port)
        began_s = time.monotonic()
        assert start(b) == DRIFT
        assert time.monotonic() - began_s < DEADLINE_S / 2
    assert "stop --no-block -- m.service" in b.calls()
    assert "somebody-else" in state(b).said


def test_a_model_that_is_late_is_ended(b: Box) -> None:
    """At its deadline it is stopped and cleaned up, though it might answer a moment later."""
    with serving() as server:
        b.unit("m.service")
        b.declare("m", server.port)
        assert start(b, deadline_s=0.5) == DRIFT
    assert "not ready within" in state(b).said
    assert "stop --no-block -- m.service" in b.calls()
    assert not (b.units / "m.service.pid").exists()


def test_a_health_list_without_a_completion_is_not_ready(b: Box, server: Server) -> None:
    """A server that lists its model and completes nothing does not count as ready."""
    server.completes = False
    b.unit("m.service")
    b.declare("m", server.port)
    assert start(b, deadline_s=0.5) == DRIFT
    assert state(b).phase is Phase.FAILED


def test_what_cannot_be_proven_is_not_started(b: Box, server: Server) -> None:
    """`--prove` without a section [prove] is a mistake, and not a start without a proof."""
    b.unit("m.service")
    b.declare("m", server.port)
    with pytest.raises(UsageError, match=r"has no section \[prove\]"):
        start(b, prove=True)
    assert "start --no-block" not in b.calls()


def test_a_proof_sends_a_prompt_to_every_slot(b: Box, server: Server) -> None:
    """Only when as many came back, counted as long as they were sent, is it ready."""
    b.unit("m.service")
    b.declare("m", server.port, prove={"prompt_tokens": 64, "slots": 3})
    server.prompt_tokens = 64
    assert start(b, prove=True) == GOOD
    assert any("proven: 3 of 3 answered" in each for each in b.said)


def test_a_proof_that_fails_is_a_start_that_failed(b: Box, server: Server) -> None:
    """A server that cuts the prompt short was not asked what real use asks."""
    b.unit("m.service")
    b.declare("m", server.port, prove={"prompt_tokens": 64, "slots": 3})
    server.prompt_tokens = 10
    assert start(b, prove=True) == DRIFT
    assert state(b).phase is Phase.FAILED
    assert records.history(b.host, "m").ends[-1].kind == "not proven"


def test_a_load_that_was_cut_off_is_taken_over(b: Box) -> None:
    """A later start neither starts it again nor refuses: it waits for the load that is under way."""
    with serving() as server:
        b.unit("m.service")
        b.declare("m", server.port)
        stray = threading.Thread(target=lambda: start(b), daemon=True)
        stray.start()
        assert server.asked.wait(10)
        before = b.pid("m.service")
        # as if that one had been killed: its word stays, and nobody waits for the load
        server.asked.clear()
        server.models = ["m"]
        stray.join(20)
        found = state(b)
        records.write(b.host, records.advanced(found, Phase.LOADING, found.by))
        assert start(b) == GOOD
    assert b.pid("m.service") == before
    assert b.calls().count("start --no-block -- m.service") == 1
    assert any("taking over the load" in each for each in b.said)


SSH = """#!/bin/sh
echo "ssh $*" >>"$UNITS/calls"
echo "plimsoll: m is not started: 3.00 GiB are missing" >&2
exit {code}
"""


@pytest.mark.parametrize(
    ("code", "said"), [(75, "other would not admit its half"), (255, "other cannot be asked about its half")]
)
def test_both_halves_are_admitted_or_neither_starts(b: Box, server: Server, code: int, said: str) -> None:
    """The other host of a model on two is asked before anything is started here; no answer is no admission."""
    b.unit("m.service")
    b.declare("m", server.port, cluster={"host": "other"})
    ssh = b.root / "bin/ssh"
    ssh.write_text(SSH.format(code=code))
    ssh.chmod(0o755)
    with pytest.raises(RefusedError, match=said):
        start(b)
    assert "-- other sudo --non-interactive /usr/local/bin/plimsoll serve check m" in b.calls()
    assert "start --no-block" not in b.calls()


def test_the_other_half_is_told_of_an_end(b: Box, tmp_path: Path) -> None:
    """When a half does not come up, the hook that ends the other one is run."""
    told = tmp_path / "told"
    with serving() as server:
        b.unit("m.service", "exit 3")
        b.declare("m", server.port, cluster={"host": "other", "hook": ["/bin/sh", "-c", f"cat >>{told}"]})
        (b.root / "bin/ssh").write_text("#!/bin/sh\nexit 0\n")
        (b.root / "bin/ssh").chmod(0o755)
        assert start(b) == DRIFT
    event = json.loads(told.read_text())
    assert (event["event"], event["host"], event["model"]) == ("ended", "other", "m")


def test_an_interruption_leaves_nothing_behind(b: Box) -> None:
    """Who interrupts a load has it stopped, and its reservation taken back."""
    with serving() as server:
        b.unit("m.service")
        b.declare("m", server.port)
        own = threading.main_thread().ident
        assert own is not None

        def interrupt() -> None:
            server.asked.wait(10)
            signal.pthread_kill(own, signal.SIGINT)

        # who is started in the background of a shell ignores it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                start(b)
        finally:
            sender.join()
            signal.signal(signal.SIGINT, before)
    assert state(b).phase is Phase.FAILED
    assert state(b).said == starting.INTERRUPTED
    assert Store(b.host).read() == ((), ())


def test_the_largest_difference_is_the_footprint(b: Box, server: Server) -> None:
    """What it takes is what available memory fell by since just before its start."""
    b.unit("m.service", f"sed -i s/{110 * GIB}/{80 * GIB}/ {b.root}/proc/meminfo; exec sleep 60")
    server.models = []
    b.declare("m", server.port)
    loader = threading.Thread(target=lambda: start(b), daemon=True)
    loader.start()
    assert server.asked.wait(10)
    server.models = ["m"]
    loader.join(20)
    assert state(b).footprint_kib == 30 * GIB
    assert records.running(b.host)[0].footprint_kib == 30 * GIB
