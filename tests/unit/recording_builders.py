"""Samples as a recording has them: levels in GiB, one after another."""

from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule, Sample, Settings

GIB = KIB_PER_GIB
LINES = Lines(3 * GIB, 8 * GIB, 9 * GIB)
SETTINGS = Settings(LINES, armed=frozenset({Rule.FLOOR, Rule.RATE, Rule.SLOW}))
START_S = 1_764_508_126.0


def at(*levels_gib: float | None, period_s: float = 0.1, start_s: float = START_S, full: float = 0.0) -> list[Sample]:
    """Return samples of these levels, a tenth of a second apart; None for an unknown one."""
    return [
        Sample(start_s + number * period_s, None if level is None else round(level * GIB), 0, full, "A")
        for number, level in enumerate(levels_gib)
    ]


def ramp(start: float, end: float, gib_per_s: float, period_s: float = 0.1) -> list[float]:
    """Return the levels of a fall, or of a rise, at so many GiB a second, both ends included."""
    steps = round(abs(end - start) / (gib_per_s * period_s))
    return [start + (end - start) * step / steps for step in range(steps + 1)]
