"""Admission: it refuses what would end below a line, by how much and because of whom, and never warns and goes on."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard.model import KIB_PER_GIB, Sample
from plimsoll.box.guard.reserve import admit as keepable
from plimsoll.box.guard.reserve import new
from plimsoll.box.serve.admission import admit
from plimsoll.box.serve.model import Admission, Admitted, Needed, Refused, Running, Situation
from tests.unit.guarding import reservation
from tests.unit.serving import holder, kib, needed, situation


def admitted(found: Admission) -> Admitted:
    """Return an admission that is one."""
    assert isinstance(found, Admitted), found
    return found


def refused(found: Admission) -> Refused:
    """Return a refusal that is one."""
    assert isinstance(found, Refused), found
    return found


def test_what_leaves_the_slow_line_free_is_admitted() -> None:
    """113 GiB available and 92 GiB needed leave 21, above every line."""
    found = admitted(admit("qwen", needed(92), None, situation(113)))
    assert found.left_kib == kib(21)
    assert (found.start_line_kib, found.steady_line_kib) == (kib(8), kib(8))
    assert found.notes == ()


def test_a_start_beside_a_corpse_is_refused() -> None:
    """An 87 GiB server is not started while the last one's memory is not back; it says how much and who."""
    corpse = holder("llama-server", 80, state="D")
    found = refused(admit("llama", needed(87), None, situation(30, holders=(corpse,))))
    assert found.shortfall_kib == kib(87 + 9 - 30)
    assert found.holders == (corpse,)
    assert "66.00 GiB are missing: it keeps 87.00 GiB, and 9.00 GiB have to stay available" in found.why


@pytest.mark.parametrize(("available_gib", "good"), [(101.0, True), (100.99, False)])
def test_the_slow_line_is_met_to_the_kib(available_gib: float, good: bool) -> None:
    """What stays is at the line where the guard's episode ends, or above it."""
    assert isinstance(admit("m", needed(92), None, situation(available_gib)), Admitted) is good


def test_its_own_steady_line_may_be_lower() -> None:
    """A model that declares to stay at 6 GiB is admitted down to that, and its reservation says so."""
    found = admitted(admit("m", needed(100), kib(6), situation(106.5)))
    assert (found.left_kib, found.steady_line_kib, found.start_line_kib) == (kib(6.5), kib(6), kib(6))
    assert isinstance(admit("m", needed(101), kib(6), situation(106.5)), Refused)


@pytest.mark.parametrize(
    ("line_gib", "backstop_gib", "said"),
    [
        (3.0, None, "above the guard's floor (3.00 GiB)"),
        (8.5, None, "at or below the guard's slow line (8.00 GiB)"),
        (6.0, 6.08, "above 6.08 GiB, where earlyoom acts"),
    ],
)
def test_a_steady_line_that_does_not_fit_the_ladder_is_refused_with_both(
    line_gib: float, backstop_gib: float | None, said: str
) -> None:
    """No free memory mends a line that another killer shoots above of."""
    now = situation(110, backstop_kib=None if backstop_gib is None else kib(backstop_gib))
    found = refused(admit("m", needed(10), kib(line_gib), now))
    assert found.shortfall_kib is None
    assert f"need.steady_gib ({line_gib:.2f} GiB) must lie {said}" in found.why


def test_a_spike_may_pass_below_the_slow_line_and_not_below_the_floor() -> None:
    """A start's peak goes by the floor; its reservation then names the line that keeps the slow rule from it."""
    found = admitted(admit("m", needed(105, 95), None, situation(110)))
    assert found.left_kib == kib(15)
    assert found.start_line_kib == kib(5)
    assert found.steady_line_kib == kib(8)
    short = refused(admit("m", needed(108, 95), None, situation(110)))
    assert short.shortfall_kib == kib(1)
    assert "its start takes up to 108.00 GiB, and 3.00 GiB have to stay available" in short.why


def test_a_spike_may_not_pass_below_the_backstop() -> None:
    """Where earlyoom would shoot the load in its peak the load is not begun."""
    assert isinstance(admit("m", needed(105, 90), None, situation(110, backstop_kib=kib(6.08))), Refused)
    assert isinstance(admit("m", needed(103, 90), None, situation(110, backstop_kib=kib(6.08))), Admitted)


def test_what_others_have_announced_is_not_free() -> None:
    """A load that is on its way counts with what it may still take; the model's own reservation does not."""
    other = reservation(60, 110, 8, until_s=500.0)
    now = situation(100, reservations=(other,))
    found = refused(admit("m", needed(60), None, now))
    assert found.shortfall_kib == 60 * KIB_PER_GIB + kib(9) - (kib(100) - other.remaining_kib(Sample(100.0, kib(100))))
    assert "others have announced" in found.why
    assert isinstance(admit("m", needed(60), None, now, own_workload="vllm"), Admitted)


def test_unknown_memory_admits_nothing() -> None:
    """Where available memory cannot be told the answer is no, with what could not be read."""
    found = refused(admit("m", needed(1), None, situation(None, problems=("KReclaimable is missing",))))
    assert found.shortfall_kib is None
    assert "it is not known how much memory is available (KReclaimable is missing)" in found.why


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"running": (Running("m", "ready"),)}, "m is there already: ready"),
        ({"running": (Running("other", "starting"),)}, "other is starting"),
        ({"running": (Running("other", "stopping"),)}, "other is stopping"),
        ({"port_taken": True}, "its port is taken"),
        ({"port_taken": None}, "whether its port is free cannot be told"),
    ],
)
def test_what_else_stands_against_a_start(change: dict[str, object], said: str) -> None:
    """With memory enough it is refused beside itself, beside a load or a stop, and where its port is not free."""
    found = refused(admit("m", needed(1), None, situation(110, **change)))
    assert said in found.why


def test_another_model_that_serves_stands_against_nothing() -> None:
    """Two models that both fit run beside each other."""
    assert isinstance(admit("m", needed(10), None, situation(60, running=(Running("other", "ready"),))), Admitted)


def test_what_never_starts_is_refused_whatever_is_free() -> None:
    """Weights beyond the engine's own budget are no question of free memory."""
    found = refused(admit("m", needed(10, never="the weights alone are more than the budget"), None, situation(110)))
    assert found.why == "m cannot start: the weights alone are more than the budget"


def test_what_is_larger_than_the_box_is_told_so() -> None:
    """123.5 GiB of weights never fit, and nobody is told to stop something for it."""
    found = refused(admit("m", needed(123.5), None, situation(115, running=(Running("other", "ready"),))))
    assert "it never fits: the whole box has 121.60 GiB" in found.what_to_do


@pytest.mark.parametrize(
    ("pool_gib", "said"), [(60, "comes back when the pool is emptied"), (1, "plimsoll serve stop other")]
)
def test_it_says_what_to_do(pool_gib: float, said: str) -> None:
    """The driver's pool is named where it would do, else whom to stop."""
    now = situation(50, pool_kib=kib(pool_gib), running=(Running("other", "ready"),))
    found = refused(admit("m", needed(80), None, now))
    assert said in found.what_to_do
    assert found.releasable_kib == min(kib(pool_gib), found.shortfall_kib or 0)


def test_a_least_is_called_a_least() -> None:
    """What is admitted by the size of its weights alone is said to take more, and so is what is refused."""
    least = needed(80, exact=False, basis="the least it can take: the size of its weights")
    found = admitted(admit("m", least, None, situation(110)))
    assert found.notes[0] == (
        "what it needs is not known, only the least it can take: the size of its weights (80.00 GiB)"
    )
    assert "GiB at least are missing" in refused(admit("m", least, None, situation(50))).why


@pytest.mark.parametrize(
    ("need_gib", "blocks", "told"), [(90, 0, True), (90, 199, False), (90, 100, True), (1, 3, False), (1, 0, True)]
)
def test_memory_in_pieces_is_told(need_gib: float, blocks: int, told: bool) -> None:
    """Few contiguous blocks are reported, measured by the size of the load; they alone refuse nothing."""
    found = admitted(admit("m", needed(need_gib), None, situation(110, free_32mib_blocks=blocks)))
    assert any(f"memory is in pieces: {blocks} free blocks of 32 MiB" in each for each in found.notes) is told


def test_blocks_that_cannot_be_counted_are_not_called_enough() -> None:
    """Where buddyinfo says nothing that is said, not passed over."""
    found = admitted(admit("m", needed(10), None, situation(110, free_32mib_blocks=None)))
    assert any("cannot be told" in each for each in found.notes)


GIB = st.integers(0, 130 * KIB_PER_GIB)


@given(available=GIB, peak=GIB, steady=GIB, backstop=st.none() | GIB)
def test_what_is_admitted_ends_above_every_line(available: int, peak: int, steady: int, backstop: int | None) -> None:
    """Whatever the figures: the peak stays above floor and backstop, the steady state above the slow line."""
    need = Needed(max(peak, steady), steady, "declared", exact=True)
    now = dataclasses.replace(situation(0), available_kib=available, backstop_kib=backstop)
    found = admit("m", need, None, now)
    at_peak = available - need.peak_kib
    fits = at_peak >= max(now.lines.floor_kib, backstop or 0) and available - steady >= now.lines.slow_leave_kib
    assert isinstance(found, Admitted) is fits
    if isinstance(found, Admitted):
        assert found.start_line_kib <= max(found.steady_line_kib, 0)
        assert found.start_line_kib <= max(at_peak, now.lines.floor_kib + 1, (backstop or 0) + 1)
    else:
        assert isinstance(found, Refused)
        more = dataclasses.replace(now, available_kib=available + (found.shortfall_kib or 0))
        assert isinstance(admit("m", need, None, more), Admitted)


def test_the_guard_keeps_what_was_admitted() -> None:
    """The line that an admission gives to the reservation is one that the guard's own ladder takes."""
    now: Situation = situation(110, backstop_kib=kib(4))
    found = admitted(admit("m", needed(105, 95), None, now))
    wanted = new("m.service", needed(105).peak_kib, 600, now.at_s, kib(110), found.start_line_kib)
    assert keepable(wanted, Sample(now.at_s, kib(110)), now.lines, (), kib(4)) is None
