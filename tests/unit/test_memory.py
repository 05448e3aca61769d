"""Memory as the kernel accounts it: what is missing stays unknown, and what cannot be true is said."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import memory
from tests.unit.builders import FakeHost, write_tree

GIB = 1 << 20
NO_DRIVER: dict[str, object] = {"version": None, "system_memory_pools": None}


def _info(**changes: int | None) -> dict[str, int]:
    base: dict[str, int | None] = {
        "MemTotal": 120 * GIB,
        "MemAvailable": 100 * GIB,
        "KReclaimable": 900,
        "SReclaimable": 900,
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal:       127533056 kB\n", {"MemTotal": 127533056}),
        ("Active(anon):  5 kB\nHugePages_Total:       3\n", {"Active(anon)": 5, "HugePages_Total": 3}),
        ("", {}),
        ("MemTotal:\nMemFree: x kB\nnothing here\nMemAvailable: -5 kB\nCached: ² kB\n", {}),
    ],
)
def test_meminfo(text: str, expected: dict[str, int]) -> None:
    """Fields are read in KiB and counts as they are; a line that is odd is left out, not taken for zero."""
    assert memory.parse_meminfo(text) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 100 * GIB),
        ({"KReclaimable": 95 * GIB}, 5 * GIB + 900),
        ({"KReclaimable": 200 * GIB}, 0),
        ({"CmaTotal": 131072, "CmaFree": 70000}, 100 * GIB - 70000),
        ({"CmaTotal": 0, "CmaFree": 940604}, 100 * GIB),
        ({"CmaFree": 940604}, 100 * GIB),
        ({"SReclaimable": 1000}, 100 * GIB),
        ({"MemAvailable": None}, None),
        ({"KReclaimable": None}, None),
        ({"SReclaimable": None}, None),
        ({"MemAvailable": 5, "CmaTotal": 10, "CmaFree": 10}, 0),
    ],
)
def test_available(changes: dict[str, int | None], expected: int | None) -> None:
    """What only looks reclaimable and free CMA are taken off; a missing field makes the figure unknown, not zero."""
    assert memory.available_kib(_info(**changes)) == expected


def test_cma_where_no_driver_pins(tmp_path: Path) -> None:
    """On a host without the driver CMA is a normal part of what programs can get."""
    text = "MemTotal: 3882992 kB\nMemAvailable: 3560556 kB\nKReclaimable: 90000 kB\nSReclaimable: 90000 kB\n"
    write_tree(tmp_path, {"/proc/meminfo": f"{text}CmaTotal: 524288 kB\nCmaFree: 505064 kB\n"})
    host = FakeHost(root=str(tmp_path))
    found = [memory.read(host, {**NO_DRIVER, "version": version})["available_kib"] for version in (None, "580.95.05")]
    assert found == [3560556, 3560556 - 505064]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"CmaTotal": 131072, "CmaFree": 131072}, []),
        ({"CmaTotal": 0, "CmaFree": 940604}, ["CmaFree (940604 kB) exceeds CmaTotal (0 kB)"]),
        ({"SReclaimable": 1000}, ["SReclaimable exceeds KReclaimable"]),
    ],
)
def test_inconsistencies(changes: dict[str, int], expected: list[str]) -> None:
    """Figures that contradict each other are named."""
    found = memory.inconsistencies(_info(**changes))
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("changes", "driver", "expected"),
    [
        ({}, {}, "A"),
        ({}, {"version": "580.95.05"}, "A"),
        ({}, {"version": "595.71.05", "system_memory_pools": 0}, "A"),
        ({}, {"version": "595.71.05", "system_memory_pools": 1}, "B"),
        ({"KReclaimable": 95 * GIB}, {"version": "595.99", "system_memory_pools": 1}, "C"),
        ({"KReclaimable": GIB + 900}, {}, "C"),
        ({"KReclaimable": GIB + 899}, {}, "A"),
        ({"KReclaimable": None}, {"version": "580.95.05"}, "unknown"),
    ],
)
def test_regime(changes: dict[str, int | None], driver: dict[str, object], expected: str) -> None:
    """The regime is what the figures show: 1 GiB and more of what is reclaimable and no slab is C."""
    found = memory.regime(_info(**changes), NO_DRIVER | driver)
    assert found["regime"] == expected
    assert found["basis"]


def test_pressure() -> None:
    """A pressure file is read as percent and microseconds; lines of another form are left out."""
    text = "some avg10=0.12 avg60=3.00 total=55\nfull avg10=0.00 total=x\n\nodd line=1\n"
    assert memory.parse_pressure(text) == {"some": {"avg10": 0.12, "avg60": 3.0, "total": 55.0}, "full": {"avg10": 0.0}}


def test_vmstat() -> None:
    """Of the counters only the ones in use are kept, and odd lines are no counters."""
    assert memory.parse_vmstat("oom_kill 13\nnr_free_pages 5\npswpout\npswpout x\n\n") == {"oom_kill": 13}


def test_swaps() -> None:
    """Partitions, files, zram and removed files are listed; a line that is cut short is not."""
    text = (
        "Filename Type Size Used Priority\n/swap.img file 16777212 53984 -2\n/dev/zram0 partition 2935804 0 100\n"
        "/a\\040(deleted) file 5 0 -3\n/cut file 5\n"
    )
    found = [(s["path"], s["type"], s["size_kib"], s["used_kib"]) for s in memory.parse_swaps(text)]
    assert found == [
        ("/swap.img", "file", 16777212, 53984),
        ("/dev/zram0", "partition", 2935804, 0),
        ("/a\\040(deleted)", "file", 5, 0),
    ]
    assert memory.parse_swaps("") == []


def test_nothing_to_read_is_unknown(tmp_path: Path) -> None:
    """On a machine without these files every figure is None, and the regime unknown."""
    found = memory.read(FakeHost(root=str(tmp_path)), NO_DRIVER)
    assert (found["meminfo"], found["pressure"], found["swaps"], found["available_kib"]) == (None, None, None, None)
    assert found["regime"] == "unknown"


def test_kernel_without_memavailable(tmp_path: Path) -> None:
    """A kernel that reports no MemAvailable has its other figures, and available is unknown."""
    root = str(tmp_path)
    write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 5 kB\nMemFree: 1 kB\n"})
    found = memory.read(FakeHost(root=root), NO_DRIVER)
    assert found["meminfo"] == {"MemTotal": 5, "MemFree": 1}
    assert found["available_kib"] is None


@given(st.text(st.sampled_from("aMemTotal:SReclaimableCmaFree 0123456789\n\tkB=.²-"), max_size=200))
def test_any_text_can_be_parsed(text: str) -> None:
    """No content of a file in /proc breaks a parser."""
    meminfo = memory.parse_meminfo(text)
    memory.available_kib(meminfo)
    memory.inconsistencies(meminfo)
    memory.regime(meminfo, NO_DRIVER)
    memory.parse_pressure(text)
    memory.parse_vmstat(text)
    memory.parse_swaps(text)
