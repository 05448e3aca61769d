"""All engines of a question against one box: one budget, one verdict, and the margin to every line. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.box.fit.box import Box
from plimsoll.box.fit.model import NOTHING, Amount, Estimate, Verdict, total
from plimsoll.box.fit.sizes import gib


@dataclass(frozen=True)
class Margin:
    """What is left above (or is missing below) one line, in bytes: of what is kept, and at the peak of the start."""

    line: str
    at: int
    kept: int
    peak: int


@dataclass(frozen=True)
class Judged:
    """What it comes to. `need` is the likely peak: what is kept, and the start-up spike on top."""

    verdict: Verdict
    need: int
    kept: Amount
    peak: Amount
    available: int | None
    available_basis: str
    margins: tuple[Margin, ...]
    reasons: tuple[str, ...]


def judge(estimates: Sequence[Estimate], box: Box, *, running: bool = False) -> Judged:
    """Return the verdict on engines that are to run at the same time; `running`: they do already."""
    kept, passing = together(estimates)
    peak = kept + passing
    available, basis = _free(box, running=running)
    unknowns = [each for estimate in estimates for each in estimate.unknowns]
    reasons = [f"{each.launch.name}: {each.never}" for each in estimates if each.never]
    verdict, why = _verdict(kept, peak, available, box, known=not unknowns)
    if reasons:
        verdict = Verdict.NO
    reasons += why
    if verdict is Verdict.UNKNOWN:
        reasons += unknowns or ["available memory is not known"]
    free = box.empty if available is None else available
    return Judged(verdict, peak.likely, kept, peak, available, basis, _margins(kept, peak, free, box), tuple(reasons))


def _free(box: Box, *, running: bool) -> tuple[int | None, str]:
    if running:
        return box.empty, f"this box when no model runs: {box.empty_basis}"
    return box.available, box.available_basis


def together(estimates: Sequence[Estimate]) -> tuple[Amount, Amount]:
    """Return what is kept and what the start takes; of those that replace each other the largest mix counts."""
    kept, passing = NOTHING, NOTHING
    for name in dict.fromkeys(each.launch.exclusive for each in estimates):
        group = [each for each in estimates if each.launch.exclusive == name]
        mixes = [_side_by_side(mix) for mix in (_mixes(group) if name else [group])]
        kept += _largest([mix[0] for mix in mixes])
        passing += _largest([mix[1] for mix in mixes])
    return kept, passing


def _mixes(group: Sequence[Estimate]) -> list[list[Estimate]]:
    """Return what of a group runs at the same time, each mix once."""
    found: dict[str, list[Estimate]] = {}
    for each in group:
        for name in each.launch.mixes:
            found.setdefault(name, []).append(each)
    return [*([each] for each in group if not each.launch.mixes), *found.values()]


def _side_by_side(group: Sequence[Estimate]) -> tuple[Amount, Amount]:
    starts = [each.passing for each in group]
    # they may start one after the other, or all at once
    spike = Amount(0, max((each.likely for each in starts), default=0), sum(each.high for each in starts))
    return total(each.steady for each in group), spike


def _largest(amounts: Sequence[Amount]) -> Amount:
    return Amount(*(max(getattr(each, name) for each in amounts) for name in ("low", "likely", "high")))


def _verdict(kept: Amount, peak: Amount, available: int | None, box: Box, *, known: bool) -> tuple[Verdict, list[str]]:
    """Return the verdict and its reasons. What is not known can make a no less certain, but never a yes."""
    floor, leave = box.lines.floor, box.lines.slow_leave
    if kept.low > box.total:
        return Verdict.NO, [f"it keeps {gib(kept.low)}, and the whole box has {gib(box.total)}"]
    if available is None and box.at_most is not None and kept.low > box.at_most:
        return Verdict.NO, [f"it keeps {gib(kept.low)}, and no more than {gib(box.at_most)} is free"]
    free = box.empty if available is None else available
    if available is None and kept.low <= box.empty - floor:
        return Verdict.UNKNOWN, []
    if free - peak.likely < floor:
        return Verdict.NO, [_below_the_floor(kept, peak, free, floor)]
    reasons = _tight(kept, peak, free, (floor, leave))
    if not known or available is None:
        return Verdict.UNKNOWN, [f"and even so: {each}" for each in reasons]
    return (Verdict.TIGHT if reasons else Verdict.FITS), reasons


def _below_the_floor(kept: Amount, peak: Amount, free: int, floor: int) -> str:
    if free - kept.likely < floor:
        left = free - kept.likely
        return f"what it keeps ({gib(kept.likely)}) leaves {gib(left)} of {gib(free)}: below the floor of {gib(floor)}"
    left = free - peak.likely
    start = f"its start is likely to take {gib(peak.likely)} and to leave {gib(left)} of {gib(free)}"
    return f"{start}: below the floor of {gib(floor)}"


def _tight(kept: Amount, peak: Amount, free: int, lines: tuple[int, int]) -> list[str]:
    """Return why it may not be called safe, although it is likely to run."""
    floor, leave = lines
    left, least, lowest = free - kept.likely, free - kept.high, free - peak.high
    found = []
    if left < leave:
        found.append(f"what it keeps leaves {gib(left)}: not above the guard's slow line ({gib(leave)})")
    if least < floor:
        found.append(f"at the upper end of what it may keep {gib(least)} are left: below the floor of {gib(floor)}")
    if lowest < floor:
        taken = f"its start may take up to {gib(peak.high)}, which leaves {gib(lowest)}"
        found.append(f"{taken}: below the floor of {gib(floor)}")
    return found


def _margins(kept: Amount, peak: Amount, free: int, box: Box) -> tuple[Margin, ...]:
    lines = (
        ("slow line, left", box.lines.slow_leave),
        ("slow line", box.lines.slow_enter),
        ("floor", box.lines.floor),
        ("nothing left", 0),
    )
    return tuple(Margin(name, at, free - kept.likely - at, free - peak.likely - at) for name, at in lines)


def room(box: Box, free: int) -> tuple[int, int]:
    """Return what may be kept, and what a start may take at most, for a verdict of `fits`."""
    return free - box.lines.slow_leave, free - box.lines.floor
