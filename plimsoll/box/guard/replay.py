"""The same decisions over a recording: what would have been done, and when. Pure.

A recording has no workloads, so one stand-in is taken for whatever was running. Once it was stopped the recording says
nothing of what memory would then have done: it counts as gone until memory in the recording has recovered.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from plimsoll.box.guard import decide
from plimsoll.box.guard.model import CALM, KIB_PER_GIB, Action, Known, Lines, Sample, Settings, State, Verb, Workload
from plimsoll.box.guard.recording import GAP_S

NAME = "the recorded load"
GONE_AFTER_S = 20.0
"""A workload that was killed took up to 10 s to exit, and to empty the driver's pool up to 6 s more."""
STAND_IN = Workload(
    key="recorded",
    name=NAME,
    kind="container",
    cgroup="",
    whole_cgroup=True,
    processes=(),
    engine=None,
    holds_gpu=True,
    # more than any setting can ask for
    attributed_kib=4096 * KIB_PER_GIB,
    resident_kib=0,
    grew_kib=0,
    started_s=0.0,
)


class Decided(NamedTuple):
    """What would have been done at one moment of a recording."""

    at_s: float
    action: Action
    sample: Sample


def replay(
    settings: Settings, samples: Iterable[Sample], workloads: Sequence[Workload] = (STAND_IN,), gap_s: float = GAP_S
) -> Iterator[Decided]:
    """Yield every decision over the samples, in their order.

    After more than `gap_s` without a sample nothing is known of what was, and everything begins anew.
    """
    present, gone, known = Known(tuple(workloads)), Known(), Known(tuple(workloads))
    state = State()
    last_s, level_kib = float("-inf"), 0
    step = decide.step
    for sample in samples:
        at_s = sample.at_s
        if at_s - last_s > gap_s:
            # not since the beginning of all time: nobody knows what was before the first sample
            state, known = State(at_s), present
        last_s = at_s
        state, action, _ = step(settings, state, sample, known)
        if action is not None and (known is present or action.verb not in (Verb.NOBODY, Verb.RECLAIM)):
            level_kib = max(sample.available_kib or 0, settings.lines.slow_leave_kib)
            yield Decided(at_s, action, sample)
        if state.mood is CALM:
            known = present
        elif _is_gone(state, sample, level_kib):
            state, known = decide.released(state, at_s), gone
        elif (sample.available_kib or 0) > settings.lines.slow_leave_kib:
            known = present


def _is_gone(state: State, sample: Sample, level_kib: int) -> bool:
    """Say whether there is more memory again than when a victim was signalled, or it was killed long enough ago."""
    stopping = state.mood.stopping
    if stopping is None or stopping.released_s is not None:
        return False
    if (sample.available_kib or 0) > level_kib:
        return True
    return stopping.killed_s is not None and sample.at_s - stopping.killed_s >= GONE_AFTER_S


def stretch(samples: Iterable[Sample], period_s: float, gap_s: float = GAP_S) -> Iterator[Sample]:
    """Yield the samples with others between them, on a straight line, so that none are further apart than `period_s`.

    More than `gap_s` without a sample stays as it is. The share of a stall is that of the interval that a sample ends.
    """
    make = tuple.__new__
    before: Sample | None = None
    for sample in samples:
        if before is not None and before.available_kib is not None and sample.available_kib is not None:
            start_s, elapsed_s = before.at_s, sample.at_s - before.at_s
            start, rise = before.available_kib, sample.available_kib - before.available_kib
            free, full, regime = before.free_kib, sample.full_percent, sample.regime
            # what a clock adds by rounding is no reason for one more
            parts = int(elapsed_s / period_s + 0.99) if period_s < elapsed_s <= gap_s else 1
            for part in range(1, parts):
                # made without the check of its arguments, which takes longer than the rest
                yield make(
                    Sample, (start_s + elapsed_s * part / parts, start + rise * part // parts, free, full, regime)
                )
        yield sample
        before = sample


class Tally:
    """Counts what passes: how much there is, what is missing, and how often the slow line was crossed."""

    def __init__(self, lines: Lines, gap_s: float = GAP_S) -> None:
        self._lines = lines
        self._gap_s = gap_s
        self._is_in_episode = False
        self._was_below = False
        self.first_s: float | None = None
        self.last_s = 0.0
        self.samples = 0
        self.unknown = 0
        """Samples of which nobody knows the level."""
        self.gaps = 0
        self.longest_gap_s = 0.0
        self.lowest: Sample | None = None
        self.crossings = 0
        """How often memory fell below the slow line."""
        self.episodes = 0
        """The same, where an episode ends only above the line at which it is left."""

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass the samples on, and count them."""
        for sample in samples:
            self._time(sample.at_s)
            self.samples += 1
            if sample.available_kib is None:
                self.unknown += 1
            else:
                self._level(sample, sample.available_kib)
            yield sample

    def _time(self, at_s: float) -> None:
        if self.first_s is None:
            self.first_s = at_s
        elif at_s - self.last_s > self._gap_s:
            self.gaps += 1
            self.longest_gap_s = max(self.longest_gap_s, at_s - self.last_s)
        self.last_s = at_s

    def _level(self, sample: Sample, available: int) -> None:
        if self.lowest is None or available < (self.lowest.available_kib or 0):
            self.lowest = sample
        is_below = available < self._lines.slow_enter_kib
        self.crossings += is_below and not self._was_below
        self.episodes += is_below and not self._is_in_episode
        self._was_below = is_below
        self._is_in_episode = is_below or (self._is_in_episode and available <= self._lines.slow_leave_kib)
