"""Who takes the memory that is going."""

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.guard.growth import (
    MAX_LOOKS,
    Growth,
    Holding,
    Look,
    look,
    shares_kib,
    sole_holder,
    with_growth,
)
from plimsoll.box.guard.model import KIB_PER_GIB
from tests.unit.guarding import kib, workload


def holding(
    attributed: float | None = None, own: float = 0, kernel_s: float = 0, started_s: float = 0, *, computes: bool = True
) -> Holding:
    """Return what one workload holds, in GiB."""
    return Holding(None if attributed is None else kib(attributed), kib(own), kernel_s, started_s, computes)


def history(*looks: tuple[float, float, float | None, dict[str, Holding]]) -> Growth:
    """Return what is remembered after looks of (seconds, GiB available, GiB of the driver's, holdings)."""
    growth = Growth()
    for at_s, available, driver, holdings in looks:
        growth = look(growth, Look(at_s, kib(available), None if driver is None else kib(driver), holdings))
    return growth


def grew(growth: Growth, key: str) -> float:
    """Return by how many GiB a workload grew."""
    return shares_kib(growth)[key] / KIB_PER_GIB


def test_nothing_was_seen() -> None:
    """Without a look nobody grew."""
    assert shares_kib(Growth()) == {}


def test_the_one_that_grew() -> None:
    """The growth since available memory began to fall counts, not what one held before."""
    growth = history(
        (0, 60, None, {"old": holding(40), "new": holding(2)}),
        (10, 60, None, {"old": holding(40), "new": holding(2)}),
        (20, 40, None, {"old": holding(40), "new": holding(22)}),
        (30, 20, None, {"old": holding(40.5), "new": holding(42)}),
    )
    assert grew(growth, "new") == 40
    assert grew(growth, "old") == 0.5


def test_started_since() -> None:
    """What was started during the fall counts with all that it holds."""
    growth = history(
        (0, 60, None, {"old": holding(40)}),
        (5, 50, None, {"old": holding(40), "new": holding(10, started_s=2)}),
    )
    assert grew(growth, "new") == 10


def test_started_again_under_the_same_name() -> None:
    """A unit that was started again since the fall began holds nothing from before."""
    growth = history(
        (0, 60, None, {"unit": holding(40, started_s=-100)}),
        (5, 55, None, {"unit": holding(10, started_s=3)}),
    )
    assert grew(growth, "unit") == 10


def test_an_earlier_load_is_over_after_a_pause() -> None:
    """Who took memory minutes ago and has been steady since is not the one that takes it now."""
    looks = [(float(t), 100.0 - t, None, {"a": holding(t)}) for t in range(0, 60, 5)]
    steady = [(60.0 + t, 45.0, None, {"a": holding(55)}) for t in range(0, 120, 5)]
    second = [(180.0 + t, 45.0 - t, None, {"a": holding(55), "b": holding(t)}) for t in range(0, 30, 5)]
    growth = history(*looks, *steady, *second)
    assert grew(growth, "a") == 0
    assert grew(growth, "b") == 25


def test_slow_growth_over_an_hour() -> None:
    """A working set that warms up slowly has grown, as far as the history goes."""
    growth = history(*((float(t), 60 - t / 60, None, {"a": holding(t / 60)}) for t in range(0, 1800, 5)))
    assert 9 < grew(growth, "a") <= 15.1


def test_small_rises_do_not_end_a_fall() -> None:
    """A fall that is interrupted by seconds in which memory rises is one fall."""
    growth = history(
        (0, 60, None, {"a": holding(0)}),
        (5, 40, None, {"a": holding(20)}),
        (10, 41, None, {"a": holding(20)}),
        (15, 30, None, {"a": holding(31)}),
    )
    assert grew(growth, "a") == 31


def test_growth_is_kept_while_memory_is_steady() -> None:
    """Who grew in the last fall is still the one when memory then stays low."""
    fall = [(float(t), 60.0 - t, None, {"a": holding(t), "b": holding(9)}) for t in range(0, 50, 5)]
    low = [(50.0 + t, 15.0, None, {"a": holding(45), "b": holding(9)}) for t in range(0, 900, 5)]
    growth = history(*fall, *low)
    assert grew(growth, "a") == 45
    assert grew(growth, "b") == 0


def test_untold_memory_goes_to_whom_the_kernel_works_for() -> None:
    """A load is faster than nvidia-smi: what the driver took since is put to the one for which the kernel worked."""
    growth = history(
        (0, 60, 42, {"serving": holding(40, kernel_s=500), "loading": holding(0, kernel_s=3)}),
        (2, 20, 82, {"serving": holding(40, kernel_s=500.1), "loading": holding(0, kernel_s=8)}),
    )
    assert grew(growth, "loading") == 40
    assert grew(growth, "serving") == 0


def test_untold_memory_is_never_put_to_one_that_does_not_compute() -> None:
    """A compositor or a compiler for which the kernel works does not get the driver's memory put to it."""
    growth = history(
        (0, 60, 2, {"desk": holding(0, computes=False)}),
        (2, 20, 42, {"desk": holding(0, kernel_s=99, computes=False)}),
    )
    assert grew(growth, "desk") == 0


def test_ordinary_memory_is_not_put_to_engines() -> None:
    """Memory that others took, which the driver does not hold, does not make an engine grow."""
    growth = history((0, 60, 42, {"a": holding(40)}), (9, 10, 42, {"a": holding(40, kernel_s=5)}))
    assert grew(growth, "a") == 0


def test_what_becomes_known_is_no_growth() -> None:
    """An amount that is told for the first time was not taken at that moment."""
    growth = history((0, 60, None, {"a": holding(None, 1)}), (5, 55, None, {"a": holding(80, 1)}))
    assert grew(growth, "a") == 0


def test_looks_in_the_past_change_nothing() -> None:
    """A look that is not later than the last one is left out."""
    growth = history((10, 60, None, {"a": holding(1)}))
    assert look(growth, Look(10, 0, None, {})) is growth
    assert look(growth, Look(9, 0, None, {})) is growth


@given(st.lists(st.tuples(st.floats(0.05, 30), st.integers(0, 120)), max_size=600))
def test_history_is_bounded(steps: list[tuple[float, int]]) -> None:
    """However long it runs, little is kept, and nobody grew by more than it holds."""
    growth, at_s = Growth(), 0.0
    for elapsed_s, available in steps:
        at_s += elapsed_s
        growth = look(growth, Look(at_s, kib(available), kib(120 - available), {"a": holding(None, 1)}))
    assert len(growth.looks) <= MAX_LOOKS
    assert all(0 <= grown <= kib(121) for grown in shares_kib(growth).values())


def test_workloads_get_their_growth() -> None:
    """A workload that was looked at has its growth, another one stays as it was."""
    growth = history(
        (0, 60, None, {"/system.slice/vllm": holding(0)}), (5, 50, None, {"/system.slice/vllm": holding(9)})
    )
    grown, other = with_growth([workload("vllm"), workload("other")], growth)
    assert (grown.grew_kib, other.grew_kib) == (kib(9), 0)


def test_sole_holder() -> None:
    """Where the driver tells nothing and one workload computes, what the driver holds is that one's."""
    growth = history((0, 100, 2, {}), (5, 20, 82, {"/system.slice/vllm": holding(None)}))
    silent = workload("vllm", attributed_kib=None)
    (one,) = sole_holder([silent], frozenset({silent.key}), growth)
    assert one.attributed_kib == kib(80), "less what the driver holds for nobody"


def test_two_holders() -> None:
    """With two of which nothing is told nothing can be attributed, nor to one of which something is told."""
    growth = history((5, 20, 82, {"/system.slice/vllm": holding(None), "/system.slice/b": holding(None)}))
    silent, told = workload("vllm", attributed_kib=None), workload("b", attributed_kib=5)
    assert sole_holder([silent, told], frozenset({silent.key, told.key}), growth) == (silent, told)
    assert sole_holder([told], frozenset({told.key}), growth) == (told,)
    assert sole_holder([silent], frozenset(), growth) == (silent,)
