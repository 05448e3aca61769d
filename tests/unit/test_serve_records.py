"""What is written down of a model: whole or not at all, for one boot or for ever, and never guessed at."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from plimsoll.box.host import Host
from plimsoll.box.serve import records
from plimsoll.box.serve.locking import myself
from plimsoll.box.serve.records import Baseline, End, History, Load, Phase, RecordError, State


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with a boot of its own."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("first\n")
    return Host(str(tmp_path))


def state(name: str = "qwen", phase: Phase = Phase.READY) -> State:
    """Return a state with every field set."""
    at_s = time.monotonic()
    return State(
        name, phase, myself("plimsoll serve start qwen"), Baseline(100, 90), at_s, time.time(), at_s,
        unit="qwen.service", container="c0ffee", cgroup="/system.slice/qwen.service", pids=(1, 2),
        reservation="0123456789abcdef", steady_line_kib=7, ready_unix_s=time.time(), footprint_kib=5, held_kib=4,
        ended_s=None, fallback_for="big", said="why",
    )  # fmt: skip


def test_a_state_comes_back_as_it_was_written(host: Host) -> None:
    """Every field survives; only a state of this boot is one."""
    written = state()
    records.write(host, written)
    assert records.read(host, "qwen") == written
    Path(host.path("/proc/sys/kernel/random/boot_id")).write_text("second\n")
    assert records.read(host, "qwen") is None
    assert records.every(host) == ()


def test_every_field_is_read_back() -> None:
    """A field that is added and not read would be lost with the process."""
    fresh = dataclasses.asdict(state())
    assert all(value not in (None, "", ()) for key, value in fresh.items() if key != "ended_s")


def test_phases_over_have_an_end(host: Host) -> None:
    """A model that is over says when, and is not among those that run; one on its way is between."""
    over = records.advanced(state("a"), Phase.STOPPED, myself("x"))
    between = records.advanced(state("b"), Phase.LOADING, myself("x"))
    for each in (over, between, state("c")):
        records.write(host, each)
    assert over.ended_s is not None
    assert between.ended_s is None
    assert [(each.name, each.phase) for each in records.running(host)] == [("b", "starting"), ("c", "ready")]
    assert [each.name for each in records.running(host, but=("c",))] == ["b"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": "plimsoll.serve-state/1"}', '{"schema": "other/1"}', "[" * 5000]
)
def test_a_damaged_record_is_an_error_that_names_it(host: Host, content: str) -> None:
    """Nothing is done on the strength of it, and nobody takes it for a model that does not run."""
    path = Path(host.path("/run/plimsoll/serve/qwen.json"))
    path.parent.mkdir(parents=True)
    if "serve-state" in content:
        content = json.dumps({**json.loads(content), "boot_id": "first"})
    path.write_text(content)
    with pytest.raises(RecordError, match=r"/run/plimsoll/serve/qwen\.json: cannot be used"):
        records.read(host, "qwen")


def test_a_device_where_a_record_belongs_is_not_waited_for(host: Host) -> None:
    """A FIFO is no record."""
    import os  # noqa: PLC0415  # for this test alone

    path = Path(host.path("/run/plimsoll/serve/qwen.json"))
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(RecordError, match="regular file"):
        records.read(host, "qwen")


def test_a_history_keeps_the_last_ones(host: Host) -> None:
    """It does not grow for ever, and says what a load usually takes: the median of those that became ready."""
    assert records.history(host, "qwen") == History()
    assert records.history(host, "qwen").usual_load_s is None
    for number in range(records.MAX_KEPT + 5):
        load = Load(float(number), float(number), ready=number % 2 == 0, footprint_kib=number)
        records.remember(
            host, "qwen",
            lambda before, load=load: dataclasses.replace(  # type: ignore[misc]  # mypy does not infer a default's type
                before, loads=(*before.loads, load), ends=(End(1.0, "kernel", "x"),), again_unix_s=(1.0,),
                instead_unix_s=(2.0,),
            ),
        )  # fmt: skip
    found = records.history(host, "qwen")
    assert len(found.loads) == records.MAX_KEPT
    assert found.loads[-1] == Load(24.0, 24.0, ready=True, footprint_kib=24)
    assert found.usual_load_s == 15.0
    assert (found.ends, found.again_unix_s, found.instead_unix_s) == ((End(1.0, "kernel", "x"),), (1.0,), (2.0,))


def test_what_a_killed_writer_left_is_swept_up(host: Host) -> None:
    """A file that was being written when its writer was killed is no record, and goes away with the next one."""
    records.write(host, state())
    left = Path(host.path("/run/plimsoll/serve/.qwen.json.abc.plimsoll-tmp"))
    left.write_text("{")
    assert [each.name for each in records.every(host)] == ["qwen"]
    records.write(host, state())
    assert not left.exists()
