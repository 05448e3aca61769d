"""Stopping a model: it returns when its processes are gone and its memory is back, and says what is left otherwise."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN
from plimsoll.box.guard.reserve import Store
from plimsoll.box.serve import config, reclaim, records, starting, stopping
from plimsoll.box.serve.locking import myself
from plimsoll.box.serve.records import Baseline, Phase, State
from plimsoll.box.serve.watching import until
from tests.unit.serve_box import GIB, Box, Server, serving

FULL, LOADED = 110 * GIB, 40 * GIB
TAKES = "sed -i s/{full}/{loaded}/ {root}/proc/meminfo"
GIVES_BACK = "sed -i s/{loaded}/{full}/ {root}/proc/meminfo"


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server that is loading."""
    with serving() as made:
        yield made


def script(b: Box, text: str) -> str:
    """Return a program's text with the box's figures in it."""
    return text.format(full=FULL, loaded=LOADED, root=b.root)


def ready(b: Box, server: Server, program: str) -> None:
    """Bring a model up that has taken 70 GiB."""
    b.unit("m.service", script(b, program))
    b.declare("m", server.port)
    loader = threading.Thread(target=lambda: starting.start(b.act, config.load(b.host, "m")), daemon=True)
    loader.start()
    assert until(lambda: str(LOADED) in Path(f"{b.root}/proc/meminfo").read_text(), 60)
    server.models = ["m"]
    loader.join(60)
    assert state(b).footprint_kib == FULL - LOADED


def state(b: Box) -> State:
    """Return what is written down of the model."""
    found = records.read(b.host, "m")
    assert found is not None
    return found


def stop(b: Box, reclaim_timeout_s: float = 30.0, stop_grace_s: float = 10.0) -> int:
    """Stop the model."""
    model = replace(config.load(b.host, "m"), reclaim_timeout_s=reclaim_timeout_s, stop_grace_s=stop_grace_s)
    return stopping.stop(b.act, model)


def test_it_returns_when_the_memory_is_back(b: Box, server: Server) -> None:
    """The processes end at once, the memory comes when the driver is asked for it, and only then is it stopped."""
    asked = "for i in $(seq 1000); do [ -e {root}/proc/sys/vm/drop_caches ] && break; sleep 0.02; done"
    ready(b, server, f"trap '({asked}; {GIVES_BACK}) & exit 0' TERM; {TAKES}; while :; do sleep 0.02; done")
    assert stop(b) == GOOD
    assert str(FULL) in Path(f"{b.root}/proc/meminfo").read_text()
    assert state(b).phase is Phase.STOPPED
    assert Store(b.host).read() == ((), ())
    assert any(re.search(r"70\.0 GiB of its memory are still to come back", each) for each in b.said)
    assert any("its memory is back; 110.0 GiB are available" in each for each in b.said)
    assert records.history(b.host, "m").ends[-1].kind == stopping.STOPPED


def test_a_leak_is_no_clean_stop(b: Box, server: Server) -> None:
    """Above every floor, and yet not what there was: 2, with what is missing."""
    ready(b, server, f"trap '{GIVES_BACK.replace('{full}', str(100 * GIB))}; exit 0' TERM; {TAKES};"
          " while :; do sleep 0.02; done")  # fmt: skip
    assert stop(b, reclaim_timeout_s=0.3) == DRIFT
    assert any("10.0 GiB of its memory did not come back: reboot required" in each for each in b.said)


def test_one_that_ignores_sigterm_is_killed_after_its_grace(b: Box, server: Server) -> None:
    """Its grace is its own; then SIGKILL, and its memory is waited for as for any other."""
    ready(b, server, f"trap '' TERM; {TAKES}; while :; do sleep 0.02; done")
    b.available(110)
    assert stop(b, stop_grace_s=0.2) == GOOD
    assert "kill --signal=SIGKILL -- m.service" in b.calls()
    assert any("0.2 s after SIGTERM it is still there: sending SIGKILL" in each for each in b.said)


def test_what_does_not_run_is_stopped(b: Box) -> None:
    """There is nothing to do, and that is good."""
    b.unit("m.service")
    b.declare("m", 8000)
    assert stop(b) == GOOD
    assert b.said == ["m does not run: inactive"]


def test_one_that_others_have_started_is_stopped_without_a_baseline(b: Box, server: Server) -> None:
    """It is ended; that its memory is back is not claimed: exit 3."""
    b.unit("m.service")
    b.declare("m", server.port)
    b.host.run("systemctl", "start", "--", "m.service")
    assert stop(b) == UNKNOWN
    assert state(b).phase is Phase.STOPPED
    assert any("was not started by plimsoll serve" in each for each in b.said)


def test_requests_in_flight_are_told(b: Box, server: Server) -> None:
    """A server that does not say how many there are leaves it unknown, and is stopped all the same."""
    ready(b, server, f"{TAKES}; exec sleep 60")
    b.available(110)
    assert stop(b) == GOOD
    assert any("how many requests are in flight is not known" in each for each in b.said)


# --- what must be back ------------------------------------------------------------------------------


def one(name: str, began_s: float, **fields: object) -> State:
    """Return a model's state, 100 GiB being there before it."""
    by, level = myself("a test"), Baseline(100 * GIB, 100 * GIB)
    return replace(State(name, Phase.READY, by, level, began_s, 0.0, 0.0), **fields)  # type: ignore[arg-type]  # any field


def test_what_others_have_taken_since_is_not_waited_for() -> None:
    """A model that was started later holds its own; one that ended since has given its back."""
    mine = one("m", 10.0)
    later, earlier = one("later", 20.0, held_kib=30 * GIB), one("earlier", 5.0, held_kib=30 * GIB)
    ended = one("ended", 5.0, held_kib=20 * GIB, phase=Phase.STOPPED, ended_s=15.0)
    long_ended = one("long", 5.0, held_kib=20 * GIB, phase=Phase.STOPPED, ended_s=7.0)
    assert reclaim.expected_kib(mine, []) == 100 * GIB
    assert reclaim.expected_kib(mine, [mine, later, earlier]) == 70 * GIB
    assert reclaim.expected_kib(mine, [ended, long_ended]) == 120 * GIB
    assert reclaim.expected_kib(replace(mine, baseline=Baseline()), []) is None


@pytest.mark.parametrize(
    ("expected", "level", "missing"),
    [(100 * GIB, 99 * GIB, 0), (100 * GIB, 120 * GIB, 0), (100 * GIB, 90 * GIB, 10 * GIB), (None, 1, None),
     (1, None, None)],
)  # fmt: skip
def test_what_is_missing(expected: int | None, level: int | None, missing: int | None) -> None:
    """Less than other programs take and give is nothing; what is not known is not taken for nothing."""
    assert reclaim.missing_kib(expected, level, 64 * GIB) == missing


def test_only_clean_pages_of_files_that_lie_still_are_forgotten(b: Box) -> None:
    """A checkpoint that is just being written is left alone, and what is not there is no error."""
    fresh, old = b.root / "weights/fresh", b.root / "weights/old"
    for each in (fresh, old):
        each.write_bytes(b"x" * 8192)
    import os  # noqa: PLC0415  # for this test alone

    os.utime(old, (0, 0))
    assert reclaim.forget_files(b.host, ["/weights/fresh", "/weights/old", "/weights/none"]) == 1
    assert old.read_bytes() == b"x" * 8192
