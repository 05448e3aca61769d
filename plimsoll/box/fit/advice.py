"""What would fit: the largest fraction or context, a smaller start worth making first, and the flags to paste."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from plimsoll.box.fit.box import Box
from plimsoll.box.fit.model import GIB, Amount, Estimate, Launch, Verdict
from plimsoll.box.fit.sizes import gib
from plimsoll.box.fit.verdict import judge

STEP = 0.01
CONTEXT_STEP = 1024
SMALL_CONTEXT = 8192
TRIAL_CACHE = GIB
TRIAL_SIZES_GIB = (1, 2, 4, 8)
FIXED = "--kv-cache-memory-bytes"
FRACTIONS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}


@dataclass(frozen=True)
class Advice:
    """What is worth saying beyond the verdict; empty where nothing can be."""

    largest: str = ""
    paste: str = ""
    trial: str = ""


@dataclass(frozen=True)
class Question:
    """One engine, what runs beside it, and how a launch with other flags is estimated."""

    estimate: Estimate
    beside: Sequence[Estimate]
    box: Box
    again: Callable[[Launch], Estimate]

    def tried(self, *words: str) -> Estimate:
        """Return the estimate with more flags; of a flag that is there twice the last one counts."""
        launch = self.estimate.launch
        return self.again(replace(launch, arguments=(*launch.arguments, *words)))

    def verdict(self, *words: str) -> Verdict:
        """Return the verdict with more flags; that the engine itself gives up for too little is left out."""
        return judge([*self.beside, replace(self.tried(*words), never="")], self.box).verdict

    def largest(self, lowest: int, highest: int, flags: Callable[[int], tuple[str, ...]]) -> int | None:
        """Return the largest number with which it fits, None if not even the lowest does."""
        if self.verdict(*flags(lowest)) is not Verdict.FITS:
            return None
        while lowest < highest:
            middle = (lowest + highest + 1) // 2
            fits = self.verdict(*flags(middle)) is Verdict.FITS
            lowest, highest = (middle, highest) if fits else (lowest, middle - 1)
        return lowest


def advise(question: Question) -> Advice:
    """Return what would fit beside what else is asked about."""
    estimate = question.estimate
    if estimate.unknowns or not estimate.items or any(item.gpu for item in estimate.items):
        return Advice()
    engine = estimate.launch.engine
    if engine in FRACTIONS:
        fixed = any(each.flag == FIXED for each in estimate.settings)
        return _fixed(question, "") if fixed else _fraction(question, FRACTIONS[engine])
    return _context(question) if engine == "llama.cpp" else Advice()


def _fraction(question: Question, flag: str) -> Advice:
    least = _least_fraction(question.estimate, question.box)
    if least > 1:
        return Advice(largest="none: the weights do not fit in this box with any fraction")
    best = question.largest(math.ceil(least / STEP), 100, lambda percent: (flag, f"{percent * STEP:.2f}"))
    if best is None:
        return _fixed(question, f"no fraction leaves the margins (the weights need {flag} {least:.2f})")
    paste = f"{flag} {best * STEP:.2f}"
    never = question.tried(*paste.split()).never
    if never:
        return _fixed(question, f"none: with {paste} {never}")
    return Advice(f"{paste} ({gib(round(best * STEP * question.box.total))})", paste, _trial(question))


def _fixed(question: Question, why: str) -> Advice:
    """Return the largest cache of a fixed size: it starts without the profiling pass that a fraction needs."""
    nothing = Advice(largest=why, trial=_trial(question))
    if question.estimate.launch.engine != "vllm":
        return nothing
    best = question.largest(1, question.box.total // GIB, lambda size: (FIXED, f"{size}G"))
    if best is None or question.tried(FIXED, f"{best}G").never:
        return nothing
    paste = f"{FIXED} {best}G"
    return replace(nothing, largest=f"{why}, but {paste}" if why else paste, paste=paste)


def _least_fraction(estimate: Estimate, box: Box) -> float:
    """Return the fraction that holds the weights, a forward pass and a GiB of cache."""
    names = ("weights", "draft model", "compute peak")
    held = sum(each.amount.likely for each in estimate.items if each.name in names)
    return (held + TRIAL_CACHE) / box.total


def _trial(question: Question) -> str:
    """Return the flags of a smaller start, empty where not even that would go well."""
    if question.estimate.launch.engine == "sglang":
        least = math.ceil(_least_fraction(question.estimate, question.box) / STEP) * STEP + STEP
        small = f"--context-length {SMALL_CONTEXT} --max-running-requests 1 --disable-cuda-graph"
        return _if_it_goes(question, f"--mem-fraction-static {min(1.0, least):.2f} {small}")
    small = f"--max-model-len {SMALL_CONTEXT} --max-num-seqs 1 --enforce-eager"
    words = (f"{FIXED} {size}G {small}" for size in TRIAL_SIZES_GIB)
    first = next((each for each in words if not question.tried(*each.split()).never), "")
    return _if_it_goes(question, first) if first else ""


def _if_it_goes(question: Question, flags: str) -> str:
    return flags if question.verdict(*flags.split()) in (Verdict.FITS, Verdict.TIGHT) else ""


def _context(question: Question) -> Advice:
    asked = question.estimate.concurrency.get("kv_tokens")
    most = max(asked if isinstance(asked, int) else 0, 1 << 20) // CONTEXT_STEP
    trial = _if_it_goes(question, f"-c {SMALL_CONTEXT} -ub 256 -b 256 -np 1 --cache-ram 0")
    best = question.largest(1, most, lambda thousands: ("-c", str(thousands * CONTEXT_STEP)))
    if best is None:
        return Advice(largest="none: not even the smallest context leaves the margins", trial=trial)
    paste = f"-c {best * CONTEXT_STEP}"
    return Advice(f"{paste} (with the other flags as they are)", paste, trial)


def spread(amount: Amount) -> str:
    """Return an amount with its band, for people."""
    if amount.low == amount.high:
        return gib(amount.likely)
    return f"{gib(amount.likely)} ({gib(amount.low)} to {gib(amount.high)})"
