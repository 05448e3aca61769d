"""How systemd and the kernel spell numbers, sizes and time spans, and when two spellings mean the same. Pure."""

import re
from collections.abc import Callable, Mapping

from plimsoll.box.model import Kind

INFINITY = 2**64 - 1
"""What systemd stores for `infinity`, of sizes and of spans."""

Meaning = int | str
"""What an assignment comes to: a number where it is one, else its text."""

# No number in use has 100 digits, and int() raises ValueError for more than 4300.
_NUMBER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]{1,99}|0[0-7]{0,99}|[1-9][0-9]{0,99})")
_SIZE_PART = re.compile(r"\s*([0-9]{1,100})(?:\.([0-9]*))?\s*([EPTGMKB]?)")
_SIZES = "EPTGMKB"
_SPAN_US = {
    1: ("us", "usec", "µs", "μs"),
    1_000: ("ms", "msec"),
    1_000_000: ("", "s", "sec", "second", "seconds"),
    60_000_000: ("m", "min", "minute", "minutes"),
    3_600_000_000: ("h", "hr", "hour", "hours"),
    86_400_000_000: ("d", "day", "days"),
    604_800_000_000: ("w", "week", "weeks"),
    # systemd counts a year as 365.25 days, and a month as a twelfth of one.
    2_629_800_000_000: ("M", "month", "months"),
    31_557_600_000_000: ("y", "year", "years"),
}
_UNIT_US = {unit: size for size, units in _SPAN_US.items() for unit in units}
_SPAN_PART = re.compile(r"\s*\+?([0-9]{1,100}(?:\.[0-9]+)?|\.[0-9]+)(?![0-9.+])\s*([A-Za-zµμ]*)")
_PERCENT = re.compile(r"([0-9]{1,100})(?:\.[0-9]{1,2})?%")


def parse_number(text: str) -> int | None:
    """Return a whole number as C reads it (`0x10`, and `010` is 8), None for what is not one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    return -int(digits, base) if match[1] == "-" else int(digits, base)


def parse_bytes(text: str) -> int | None:
    """Return a size in bytes as systemd reads it (base 1024), None for what it refuses.

    `1G 512M` is a sum, the larger unit first; `256MB`, `256m` and `1GiB` are refused (seen with systemd 252).
    """
    total, last, position = 0, -1, 0
    text = text.strip(" \t\r\n")
    while position < len(text):
        match = _SIZE_PART.match(text, position)
        # No unit ends the sum: nothing is smaller.
        rank = len(_SIZES) if match is None or not match[3] else _SIZES.index(match[3])
        if match is None or rank <= last:
            return None
        factor = 1024 ** max(0, len(_SIZES) - 1 - rank)
        total += int(match[1]) * factor + round(float(f"0.{match[2] or 0}") * factor)
        last, position = rank, match.end()
    return total if last >= 0 and total < INFINITY else None


def parse_span_us(text: str) -> int | None:
    """Return a time span in microseconds as systemd reads it (`1min 30s`; `5M` is five months), None for none."""
    text = text.strip(" \t\r\n")
    if text == "infinity":
        return INFINITY
    total, position = 0, 0
    while position < len(text):
        match = _SPAN_PART.match(text, position)
        if match is None or match[2] not in _UNIT_US:
            return None
        whole, _, fraction = match[1].partition(".")
        unit = _UNIT_US[match[2]]
        total += int(whole or 0) * unit + round(float(f"0.{fraction or 0}") * unit)
        position = match.end()
    return total if text and total < INFINITY else None


# --- what systemd makes of an assignment; None: it warns, and keeps what was set before -------------


def _memory_limit(text: str) -> Meaning | None:
    if text in ("", "infinity"):
        return INFINITY if text else 0
    percent = _PERCENT.fullmatch(text)
    if percent:
        return text if int(percent[1]) <= 100 else None  # noqa: PLR2004  # per cent
    return parse_bytes(text)


def _in_range(minimum: int, maximum: int, *words: str) -> Callable[[str], Meaning | None]:
    def parse(text: str) -> Meaning | None:
        number = parse_number(text)
        if number is None:
            return text if text in ("", *words) else None
        return number if minimum <= number <= maximum else None

    return parse


def _span(*words: str) -> Callable[[str], Meaning | None]:
    # Whether an empty span resets or is refused differs from release to release: it counts as one that decides.
    return lambda text: text if text in ("", *words) else parse_span_us(text)


_MEANINGS: Mapping[str, Callable[[str], Meaning | None]] = {
    "MemoryMin": _memory_limit,
    "MemoryLow": _memory_limit,
    "CPUWeight": _in_range(1, 10000, "idle"),
    "IOWeight": _in_range(1, 10000),
    "OOMScoreAdjust": _in_range(-1000, 1000),
    "DefaultOOMScoreAdjust": _in_range(-1000, 1000),
    "SyncIntervalSec": _span(),
    "RuntimeWatchdogSec": _span("default", "off"),
    "SystemMaxUse": parse_bytes,
}


def meaning(key: str, value: str) -> Meaning | None:
    """Return what systemd makes of `key=value`; None where it ignores the line and what was set before stays."""
    return _MEANINGS[key](value) if key in _MEANINGS else value


def same_value(kind: Kind, name: str, one: str | None, other: str | None) -> bool:
    """Say whether two values of one setting mean the same to whoever reads them: the kernel, or systemd."""
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    if kind is Kind.SYSCTL:
        return _same_sysctl(one, other)
    if kind is Kind.MODULE_OPTION:
        return parse_number(one) is not None and parse_number(one) == parse_number(other)
    left = meaning(name, one)
    return name in _MEANINGS and left is not None and left == meaning(name, other)


def _same_sysctl(one: str, other: str) -> bool:
    """Compare as the kernel reads them: blanks separate, numbers in C's spelling, and a number ends what it needs.

    `1 # text` written to a file that holds one number sets 1; `1K` and `+1` are refused (seen with Linux 6).
    """
    left, right = re.findall(r"[^ \t\r\n]+", one), re.findall(r"[^ \t\r\n]+", other)
    if left == right:
        return True
    numbers = [_kernel_number(word) for word in left[: len(right)]]
    return bool(right) and None not in numbers and numbers == [_kernel_number(word) for word in right]


def _kernel_number(word: str) -> int | None:
    return None if word.startswith("+") else parse_number(word)
