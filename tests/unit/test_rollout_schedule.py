"""Who comes when: every host once, the canary alone and first, hosts of one cluster never together."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.fleet.rollout import schedule
from plimsoll.fleet.rollout.model import ENDED, Begin, Phase, Planned, Settings, Step

HOSTS = [f"h{number}" for number in range(12)]
hosts = st.lists(st.sampled_from(HOSTS), unique=True, min_size=1)
clusters = st.lists(st.sets(st.sampled_from(HOSTS), max_size=4).map(tuple), max_size=3)
phases = st.lists(st.sampled_from(list(Phase)), min_size=len(HOSTS), max_size=len(HOSTS))


def begun(
    names: list[str], canaries: tuple[str, ...] = (), size: int = 3, groups: tuple[tuple[str, ...], ...] = (),
    allowed: int = 0,
) -> Begin:  # fmt: skip
    """Return a rollout in which every host has something to do."""
    planned = tuple(Planned(name, (Step("kernel", "write a file"),)) for name in names)
    order = schedule.batches(names, canaries, size, groups)
    settings = Settings(max_failures=allowed)
    return Begin("20261130T120000Z", 0.0, "anna@laptop", "hosts.yml", "b", settings, planned, canaries, order, groups)


@pytest.mark.parametrize(
    ("text", "number", "size"),
    [("3", 50, 3), ("25%", 50, 12), ("1%", 50, 1), ("100%", 7, 7), ("50%", 1, 1), ("9999", 3, 9999)],
)
def test_a_batch_is_a_number_or_a_part(text: str, number: int, size: int) -> None:
    """A part is rounded down, and is never nobody."""
    assert schedule.batch_size(text, number) == size


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "2.5", "%", "ten", "1 0", "٣"])
def test_what_is_no_size(text: str) -> None:
    """Anything else is refused, with both forms named."""
    with pytest.raises(ValueError, match=r"such as 5, .* such as 25%"):
        schedule.batch_size(text, 10)


@given(hosts, st.integers(0, 4), st.integers(1, 5), clusters)
def test_batches(names: list[str], canaries: int, size: int, groups: list[tuple[str, ...]]) -> None:
    """Every host once, the canaries before all others, no batch too large, no two of a cluster in one batch."""
    first = tuple(names[:canaries])
    found = schedule.batches(names, first, size, groups)
    assert sorted(host for batch in found for host in batch) == sorted(names)
    assert all(found)
    order = [host in first for batch in found for host in batch]
    assert order == sorted(order, reverse=True)
    for batch in found:
        assert len(batch) <= (len(first) if set(batch) <= set(first) else size)
        assert all(len(set(batch) & set(group)) <= 1 for group in groups)


@given(hosts, st.integers(1, 5))
def test_without_clusters_no_batch_is_wasted(names: list[str], size: int) -> None:
    """All batches but the last are full, and the order is that of the inventory."""
    found = schedule.batches(names, (), size, ())
    assert [host for batch in found for host in batch] == names
    assert all(len(batch) == size for batch in found[:-1])


@given(hosts, st.integers(0, 3), clusters, phases)
def test_what_comes_next(names: list[str], canaries: int, groups: list[tuple[str, ...]], found: list[Phase]) -> None:
    """The next batch has only hosts that have not ended, all from the first batch that has any of them."""
    begin = begun(names, tuple(names[:canaries]), 3, tuple(groups))
    standing = dict(zip(HOSTS, found, strict=True))
    batch = schedule.next_batch(begin, standing)
    open_ones = [host for host in names if standing[host] not in ENDED]
    assert set(batch) <= set(open_ones)
    assert bool(batch) == bool(open_ones)
    earlier = next((i for i, each in enumerate(begin.batches) if set(batch) & set(each)), len(begin.batches))
    assert not any(standing[host] not in ENDED for each in begin.batches[:earlier] for host in each)


@given(hosts, st.integers(0, 3), st.integers(0, 3), phases)
def test_when_to_stop(names: list[str], canaries: int, allowed: int, found: list[Phase]) -> None:
    """A canary that failed stops always; others do when there are more of them than allowed."""
    begin = begun(names, tuple(names[:canaries]), allowed=allowed)
    standing = dict(zip(HOSTS, found, strict=True))
    failed = {host for host in names if standing[host] is Phase.FAILED}
    reason = schedule.stop_reason(begin, standing)
    assert bool(reason) == (bool(failed & set(begin.canaries)) or len(failed) > allowed)
    assert all(host in reason for host in failed & set(begin.canaries))


def test_the_partner_of_a_failed_host_is_named() -> None:
    """A host whose partner failed is told apart from one of another cluster."""
    begin = begun(["a", "b", "c"], groups=(("a", "b"), ("c",)))
    standing = {"a": Phase.FAILED, "b": Phase.WAITING, "c": Phase.WAITING}
    assert schedule.failed_partner(begin, standing, "b") == "a"
    assert schedule.failed_partner(begin, standing, "c") is None
    assert schedule.failed_partner(begin, {**standing, "a": Phase.DONE}, "b") is None


def test_records_cannot_be_changed() -> None:
    """What was confirmed stays what it was."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        begun(["a"]).batches = ()  # type: ignore[misc]  # that is what is tried
