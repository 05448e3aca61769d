"""Numbers, sizes and spans as systemd 252 and Linux read them (each row of the tables was seen there)."""

import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.model import Kind
from plimsoll.box.quantities import INFINITY, meaning, parse_bytes, parse_number, parse_span_us, same_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("10", 10), ("-5", -5), ("+6", 6), ("010", 8), ("0x10", 16), ("0X1f", 31),
        ("08", None), ("1K", None), ("", None), ("1 2", None), ("1.0", None), ('"1"', None), ("٣", None),
    ],
)  # fmt: skip
def test_numbers(text: str, expected: int | None) -> None:
    """A number is read in C's spelling: a leading zero is octal, and nothing may follow it."""
    assert parse_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256M", 256 << 20), ("1G 500M", (1 << 30) + (500 << 20)), ("1.5G", 3 << 29), ("1 G", 1 << 30),
        ("100B", 100), ("5", 5), ("1G 5", (1 << 30) + 5), (" 1K ", 1024), ("10.M", 10 << 20),
        ("256MB", None), ("256m", None), ("1GiB", None), ("500M 1G", None), ("-5", None), ("", None), ("M", None),
        ("15%", None), ("infinity", None), ("99999999999999999999G", None), ("5 5", None), ("٣M", None),
    ],
)  # fmt: skip
def test_sizes(text: str, expected: int | None) -> None:
    """A size is a sum of parts, the larger unit first; MB and GiB are no units to systemd."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("5s", 5), ("60", 60), ("1min 30s", 90), ("5min20s", 320), ("5m", 300), ("5M", 13_149_000), ("2 hours", 7200),
        ("1hr", 3600), ("1w", 604_800), ("1y", 31_557_600), ("100ms", 0.1), ("1µs", 1e-6), (".5s", 0.5), ("1.5h", 5400),
        ("1h30", 3630), ("+5s", 5), ("5S", None), ("2hrs", None), ("5.", None), ("-5s", None), ("", None), ("s", None),
        ("1e3s", None), ("5s,", None), ("1.1.1s", None), ("infinity s", None), ("1.55.5", None),
    ],
)  # fmt: skip
def test_spans(text: str, expected_s: float | None) -> None:
    """A span is a sum of parts; m is minutes and M is months; a bare number is seconds."""
    assert parse_span_us(text) == (None if expected_s is None else round(expected_s * 1e6))


def test_infinite_span() -> None:
    """An infinite span is the largest number, as systemd stores it."""
    assert parse_span_us("infinity") == INFINITY


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("MemoryMin", "", 0), ("MemoryMin", "infinity", INFINITY), ("MemoryMin", "15%", "15%"),
        ("MemoryMin", "101%", None), ("MemoryMin", "256MB", None), ("MemoryLow", "1G", 1 << 30),
        ("CPUWeight", "idle", "idle"), ("IOWeight", "idle", None), ("CPUWeight", "0", None),
        ("CPUWeight", "10001", None),
        ("OOMScoreAdjust", "-1000", -1000), ("OOMScoreAdjust", "2000", None), ("OOMScoreAdjust", '"6"', None),
        ("OOMScoreAdjust", "", ""), ("OOMScoreAdjust", "6\u00a0", None), ("OOMScoreAdjust", "6 # x", None),
        ("SyncIntervalSec", "5 sec", 5_000_000), ("SyncIntervalSec", "soon", None), ("SyncIntervalSec", "", ""),
        ("RuntimeWatchdogSec", "off", "off"), ("RuntimeWatchdogSec", "1min", 60_000_000),
        ("SystemMaxUse", "2G", 2 << 30), ("SystemMaxUse", "10%", None), ("SystemMaxUse", "", None),
        ("SomethingElse", "x y", "x y"),
    ],
)  # fmt: skip
def test_meaning_of_an_assignment(key: str, value: str, expected: object) -> None:
    """What systemd would refuse has no meaning; an empty value resets, which is one."""
    assert meaning(key, value) == expected


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("262144", "262144", True), ("0x40000", "262144", True), ("4 4 1 7", "4\t4 1 7", True),
        ("20 # later", "20", True),
        ("256K", "262144", False), ("060", "60", False), ("+1", "1", False), ("1min", "60", False), ("", "0", False),
        ("1", "1 2", False), ('"1"', "1", False), ("|/bin/core %p", "|/bin/core %p", True), ("1\u00a0", "1", False),
    ],
)  # fmt: skip
def test_same_kernel_setting(one: str, other: str, same: bool) -> None:
    """The kernel reads the first number of a line and knows no units: 256K is not 262144, it is refused."""
    assert same_value(Kind.SYSCTL, "", one, other) is same


@pytest.mark.parametrize(
    ("kind", "name", "one", "other", "same"),
    [
        (Kind.UNIT_PROPERTY, "MemoryMin", "1G", "1073741824", True),
        (Kind.UNIT_PROPERTY, "MemoryMin", "1024M", "1G", True),
        (Kind.UNIT_PROPERTY, "MemoryMin", "infinity", "256M", False),
        (Kind.UNIT_PROPERTY, "MemoryMin", "60", "1min", False),
        (Kind.MANAGER_PROPERTY, "SyncIntervalSec", "5", "5s", True),
        (Kind.MANAGER_PROPERTY, "SyncIntervalSec", "5M", "5m", False),
        (Kind.MANAGER_PROPERTY, "SystemMaxUse", "5M", "5min", False),
        (Kind.MODULE_OPTION, "NVreg_X", "0x0", "0", True),
        (Kind.MODULE_OPTION, "NVreg_X", "a", "0", False),
        (Kind.CMDLINE, "", '["a  b"]', '["a b"]', False),
        (Kind.UNIT_STATE, "", "enabled active", "enabled active", True),
        (Kind.CONFIG_FILE, "", "0x1", "1", False),
    ],
)
def test_same_value_by_kind(kind: Kind, name: str, one: str, other: str, same: bool) -> None:
    """Spellings are compared as whoever reads them does: sizes as sizes, spans as spans, all else to the letter."""
    assert same_value(kind, name, one, other) is same


def test_nothing_equals_only_nothing() -> None:
    """A value that is not there is the same only as another one that is not there."""
    assert same_value(Kind.SYSCTL, "", None, None)
    assert not same_value(Kind.SYSCTL, "", None, "")
    assert not same_value(Kind.SYSCTL, "", "0", None)


_TEXTS = st.text(string.digits + string.ascii_letters + " .+-%µ\u00a0\u0663\n", max_size=12)


@given(_TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text breaks a parser, and nothing is negative."""
    assert (parse_bytes(text) or 0) >= 0
    assert (parse_span_us(text) or 0) >= 0
    for kind in Kind:
        assert same_value(kind, "MemoryMin", text, text)


@given(st.integers(0, 2**40))
def test_whole_mebibytes(size_mib: int) -> None:
    """A size written in mebibytes is that many bytes."""
    assert parse_bytes(f"{size_mib}M") == size_mib << 20


@pytest.mark.parametrize("read", [parse_number, parse_bytes, parse_span_us])
def test_a_number_that_nobody_can_hold(read: Callable[[str], int | None]) -> None:
    """A number of thousands of digits is none, as it is for systemd, and no error."""
    assert read("9" * 5000) is None
    assert read("1" * 101 + "K") is None
