"""Plans of the stand-in model server: amounts over time, what they are carried out with, and what is refused."""

import io
import random
from pathlib import Path
from typing import Any

import pytest

from lab.engine import life, small
from lab.engine.kinds import KINDS, State
from lab.engine.life import Life, RefusedError
from lab.engine.memory import OrdinaryMemory
from lab.engine.plan import Phase, Plan

TOTAL = 1000 << 20
MIB = 1 << 20


class Ledger:
    """Memory that notes what is asked of it, and has only so much."""

    def __init__(self, most_bytes: int = 10 * TOTAL) -> None:
        self.most_bytes = most_bytes
        self.held = 0
        self.calls: list[tuple[int, int]] = []
        self.high = 0

    def alloc(self, size_bytes: int, bytes_per_s: int) -> int:
        """Grant what there is."""
        got = min(size_bytes, self.most_bytes - self.held)
        self.held += got
        self.high = max(self.high, self.held)
        self.calls.append((size_bytes, bytes_per_s))
        return got

    def free(self, size_bytes: int) -> None:
        """Take it back."""
        self.held -= size_bytes


def dice(seed: int) -> random.Random:
    """Dice that fall the same way each time."""
    return random.Random(seed)  # noqa: S311  # no secret


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No plan waits in these tests; how long it would have is noted."""
    found: list[float] = []
    monkeypatch.setattr("lab.engine.life.time.sleep", found.append)
    return found


def live(plan: Plan, memory: Ledger, weights: io.BytesIO | None = None) -> list[State]:
    """Live through a plan; returns the states that were told."""
    told: list[State] = []
    Life(plan, memory, weights, TOTAL, told.append).run()
    return told


def test_amounts_over_time() -> None:
    """A ramp rises at its rate, a pause holds, a spike returns to where it began, and a repetition repeats."""
    plan = Plan(
        (
            Phase("weights", grow_percent=30, percent_per_s=10, read_percent=30, hold_s=1),
            Phase("prefill", grow_percent=4, hold_s=2, gives_back=True, times=2),
        )
    )
    assert plan.timeline() == [(0, 0), (3, 30), (4, 30), (4, 34), (6, 34), (6, 30), (6, 34), (8, 34), (8, 30)]
    assert plan.peak_percent == 34


def test_a_rate_is_drawn_from_its_range() -> None:
    """The same dice give the same rate within the range; without a draw there is no amount over time."""
    plan = Plan((Phase("KV cache", grow_percent=60, percent_per_s=(14, 34)),))
    rates = {plan.drawn(dice(number)).phases[0].rate for number in range(50)}
    assert len(rates) > 10
    assert all(14 <= rate <= 34 for rate in rates)
    assert plan.drawn(dice(7)) == plan.drawn(dice(7))
    with pytest.raises(ValueError, match="'KV cache': a rate must be drawn"):
        plan.timeline()


def test_a_plan_is_the_same_after_its_journey() -> None:
    """What the machine reads from the file is the plan that the host wrote."""
    plan = Plan((Phase("a", 10, (1, 2)), Phase("b", hold_s=3, loading=True)), "sglang", "ordinary", None, "exit")
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phases": [{"name": "a", "grow": 1}]}', '{"phases": [1]}'])
def test_a_file_that_is_no_plan(text: str) -> None:
    """Anything else is a ValueError, which the programs tell in one line."""
    with pytest.raises(ValueError, match=r"plan|JSON|Expecting"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"percent_per_s": -1}, "percent_per_s is -1, and cannot be below 0"),
        ({"percent_per_s": (-2, 3)}, "percent_per_s is -2"),
        ({"hold_s": -0.5}, "hold_s is -0.5"),
        ({"read_percent": -3}, "read_percent is -3"),
        ({"grow_percent": -3}, "a spike has gives_back"),
        ({"times": 0}, "times is 0, and must be 1 or more"),
    ],
)
def test_phases_that_cannot_be(fields: dict[str, float], said: str) -> None:
    """A mistake in a phase is told with the phase's name and the field."""
    with pytest.raises(ValueError, match=said) as caught:
        Phase("oops", **fields)  # type: ignore[arg-type]  # wrong on purpose
    assert "'oops'" in str(caught.value)


def test_a_plan_needs_a_phase() -> None:
    """A plan without phases is refused."""
    with pytest.raises(ValueError, match="at least one phase"):
        Plan(())


def test_memory_follows_the_plan(naps: list[float]) -> None:
    """Each phase takes its percentage at its rate, holds it, and a spike gives it back."""
    memory = Ledger()
    plan = Plan((Phase("a", grow_percent=30, percent_per_s=10), Phase("b", 20, hold_s=5, gives_back=True)))
    assert live(plan, memory) == ["ready"]
    assert memory.calls == [(300 * MIB, 100 * MIB), (200 * MIB, 0)]
    assert (memory.high, memory.held) == (500 * MIB, 300 * MIB)
    assert naps == [0.0, 5]


def test_weights_are_read_while_memory_grows(naps: list[float]) -> None:
    """Reading and growing take turns, slice by slice; together they are what the phase says."""
    memory, weights = Ledger(), io.BytesIO(b"x" * (40 << 20))
    live(Plan((Phase("weights", grow_percent=30, read_percent=4),)), memory, weights)
    assert len(memory.calls) == 3
    assert memory.held == 300 * MIB
    assert weights.tell() == 40 << 20
    assert naps == [0]


def test_ready_after_the_last_loading_phase(naps: list[float]) -> None:
    """Requests are answered only once everything that counts as loading is done."""
    events: list[str] = []
    memory = Ledger()

    def tell(state: State) -> None:
        events.append(f"{state} at {memory.held // MIB}")

    phases = (Phase("a", 10, loading=True), Phase("b", 10, loading=True), Phase("leak", 10))
    Life(Plan(phases), memory, None, TOTAL, tell).run()
    assert events == ["ready at 200"]
    assert memory.held == 300 * MIB
    assert len(naps) == 3


@pytest.mark.parametrize(
    ("lie", "state"), [("healthy after a failed start", "failed"), ("healthy while stuck", "stuck")]
)
def test_lies_begin_when_it_would_be_ready(lie: str, state: str, naps: list[float]) -> None:
    """A server that lies comes to the state about which it lies."""
    assert live(Plan((Phase("a", 10, loading=True),), lie=lie), Ledger()) == [state]  # type: ignore[arg-type]
    assert naps == [0]


def test_refused_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is refused keeps what it has and asks for the rest until it gets it."""
    memory, naps = Ledger(most_bytes=100 * MIB), []

    def relent(pause_s: float) -> None:
        naps.append(pause_s)
        memory.most_bytes += 30 * MIB

    monkeypatch.setattr("lab.engine.life.time.sleep", relent)
    live(Plan((Phase("a", grow_percent=15),)), memory)
    assert memory.held == 150 * MIB
    assert [size // MIB for size, _ in memory.calls] == [150, 50, 20]
    assert naps[:2] == [life.ASK_AGAIN_S] * 2


def test_refused_it_ends_or_pretends(naps: list[float]) -> None:
    """By the plan's choice a refusal is the end, or is told as a failure by a server that goes on."""
    phases = (Phase("a", grow_percent=15, loading=True),)
    with pytest.raises(RefusedError):
        live(Plan(phases, when_refused="exit"), Ledger(most_bytes=MIB))
    assert live(Plan(phases, when_refused="pretend"), Ledger(most_bytes=MIB))[0] == "failed"
    assert naps == [0]


def test_ordinary_memory_is_touched_and_given_back() -> None:
    """Ordinary memory is resident once it is taken, at no more than its rate, and gone once it is freed."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    memory, before = OrdinaryMemory(), resident()
    assert memory.alloc(32 * MIB, 0) == 32 * MIB
    assert resident() - before > 30 * MIB
    memory.free(32 * MIB)
    assert resident() - before < 8 * MIB


def test_ordinary_memory_keeps_its_rate(naps: list[float]) -> None:
    """Between chunks it waits for as long as it is ahead of its rate."""
    OrdinaryMemory().alloc(8 * MIB, MIB)
    assert len(naps) == 2
    assert sum(naps) == pytest.approx(4 + 8, rel=0.1)


def test_the_small_server_is_told_the_same_plan() -> None:
    """Amounts become bytes, a phase that is repeated is told as often, and the first line says who it is."""
    load = Phase("weights", grow_percent=30, percent_per_s=10, read_percent=20)
    spike = Phase("spike", grow_percent=1, percent_per_s=0, hold_s=2.5, gives_back=True, times=2)
    text = small.plan_text(Plan((load, spike)), KINDS["vllm"], TOTAL, "/m/weights")
    assert text.splitlines() == [
        "vllm VLLM::EngineCore 1 2000 130 /m/weights",
        f"{300 * MIB} {100 * MIB} {200 * MIB} 0 0",
        *[f"{10 * MIB} 0 0 2500 1"] * 2,
    ]
    deaf = small.plan_text(Plan((load,), ends_after_s=None), KINDS["llama-server"], TOTAL, "/w")
    assert deaf.splitlines()[0] == "llama-server - 0 -1 130 /w"


@pytest.mark.parametrize("change", [{"memory": "ordinary"}, {"when_refused": "exit"}, {"lie": "healthy while stuck"}])
def test_what_the_small_server_cannot_do_is_refused(change: dict[str, Any]) -> None:
    """It has no HTTP side and no second kind of memory."""
    with pytest.raises(ValueError, match="takes the driver's memory, asks again"):
        small.plan_text(Plan((Phase("p"),), **change), KINDS["vllm"], TOTAL, "/w")
    with pytest.raises(ValueError, match="no blanks"):
        small.plan_text(Plan((Phase("p"),)), KINDS["vllm"], TOTAL, "/a b")
