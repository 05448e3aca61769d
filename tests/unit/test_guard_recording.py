"""The recording is read as it was written, whatever a reset did to it; another tool's table as it was declared."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.errors import UsageError
from plimsoll.box.guard import foreign, recording
from plimsoll.box.guard.model import Sample
from plimsoll.box.guard.recording import GAP_S, HEADER, NOT_TRIED, Reached, Reader, Recording, Row
from plimsoll.box.guard.sampler import Slow
from plimsoll.box.host import Host
from tests.unit.builders import write_tree

GIB = 1 << 20
QUIET = Slow(None, None, None, None, None)
BEGUN = f"# plimsoll.recording/1 boot=b0071d mem_total_kib=127533056\n{HEADER}\n"


def _line(at_s: float, available: int | None = 50 * GIB, unix_s: float = 1_764_508_126.0) -> str:
    return recording.line(unix_s, Sample(at_s, available, 5, 0.0, "A"), QUIET)


def _read(text: str) -> tuple[list[Row], int]:
    reader = Reader(text.splitlines(keepends=True))
    return list(reader), reader.unreadable


def _host(root: Path) -> Host:
    write_tree(root, {"/proc/sys/kernel/random/boot_id": "b0071d\n", "/proc/meminfo": "MemTotal: 127533056 kB\n"})
    (root / "var/log/plimsoll").mkdir(parents=True)
    return Host(str(root))


def _text(host: Host) -> str:
    return host.text(recording.PATH)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every figure comes back, with the boot and MemTotal, and what was unknown is unknown."""
    host = _host(tmp_path)
    writer = Recording(host, 1 << 20)
    slow = Slow(16 << 20, 8 << 20, 3 << 10, 1.5, 2)
    writer.write(1_764_508_126.4, Sample(271248.955, 60 * GIB, 40 * GIB, 0.376, "C"), slow, Reached(1.25, 2500.04))
    writer.write(1_764_508_127.4, Sample(271249.955, None), QUIET, NOT_TRIED)
    reader = Reader(_text(host).splitlines())
    assert list(reader) == [
        Row("b0071d", 1_764_508_126, 271248.96, 60 * GIB, 40 * GIB, 0.38, 1.5, 16384, 8192, 3, 2, "C", 1.2, 2500.0),
        Row("b0071d", 1_764_508_127, 271249.96, None, None, None),
    ]
    assert (reader.mem_total_kib, reader.unreadable) == (127533056, 0)


FIGURES = st.none() | st.integers(0, 2**40)
SHARES = st.none() | st.floats(0, 100)
SLOW = st.builds(Slow, FIGURES, FIGURES, FIGURES, SHARES, FIGURES)
SAMPLES = st.builds(Sample, st.floats(0, 1e8), FIGURES, FIGURES, SHARES, st.sampled_from(["A", "B", "C", "unknown"]))


@given(st.lists(st.tuples(SAMPLES, SLOW), max_size=5))
def test_any_sample_comes_back(written: list[tuple[Sample, Slow]]) -> None:
    """No figure makes a line that is not read, or is read as another."""
    text = BEGUN + "".join(f"{recording.line(1.7e9, sample, slow)}\n" for sample, slow in written)
    rows, unreadable = _read(text)
    assert unreadable == 0
    assert [(row.available_kib, row.free_kib, row.regime) for row in rows] == [
        (sample.available_kib, sample.free_kib, sample.regime) for sample, _ in written
    ]
    for row, (sample, slow) in zip(rows, written, strict=True):
        assert row.at_s == pytest.approx(sample.at_s, abs=0.006)
        assert row.oom_kills == slow.oom_kills
        assert (row.full_percent is None) == (sample.full_percent is None)


def test_two_weeks_fit(tmp_path: Path) -> None:
    """A line of a busy day has so many bytes that a fortnight of them is about 80 MB."""
    line = recording.line(
        1_764_508_126, Sample(271248.95, 60_000_000, 40_000_000, 0.37, "C"), Slow(16 << 20, 8 << 20, 3 << 10, 0.12, 0)
    )
    assert (len(line) + 1) * 14 * 86400 < 90e6
    host = _host(tmp_path)
    writer = Recording(host, 4000)
    for number in range(500):
        writer.write(1.7e9, Sample(float(number), 5, 5, 0.0, "A"), QUIET)
    files = sorted((tmp_path / "var/log/plimsoll").iterdir(), reverse=True)
    assert [file.name for file in files] == ["memory.csv.1", "memory.csv"]
    assert sum(file.stat().st_size for file in files) <= 4000
    rows, unreadable = _read("".join(file.read_text() for file in files))
    assert unreadable == 0
    assert [row.at_s for row in rows] == [float(number) for number in range(500 - len(rows), 500)]


@pytest.mark.parametrize(
    "damage",
    [
        "1764508126,5.00,12",
        "\0" * 4096,
        "garbage",
        "1764508126,5.00" + "," * 30,
        "x" * 100_000,
        "1764508126,nan,5,5,0,0,,,,,A,,",
    ],
)
def test_after_a_hard_reset(damage: str) -> None:
    """A torn line, zeros and garbage are left out and counted, and everything around them is read."""
    rows, unreadable = _read(f"{BEGUN}{_line(1)}\n{damage}\n{BEGUN}{_line(2)}\n{damage}")
    assert [row.at_s for row in rows] == [1, 2]
    assert unreadable == 2


def test_zeros_before_a_line() -> None:
    """A line is read although zeros of a hard reset stand before it."""
    rows, unreadable = _read(f"{BEGUN}\0\0\0\0{_line(3)}\n")
    assert ([row.at_s for row in rows], unreadable) == ([3], 0)


def test_another_versions_columns() -> None:
    """Columns are told by their names, so that those of an earlier or later version are read as well."""
    text = "unix_s,at_s,novelty,regime,available_kib\n1764508126,7.25,???,B,77\n"
    rows, unreadable = _read(text)
    assert rows == [Row("unknown", 1764508126, 7.25, 77, None, None, regime="B")]
    assert unreadable == 0


@given(st.text(st.sampled_from("0123456789.,\nABC#x-\0"), max_size=200))
def test_any_text_is_read(text: str) -> None:
    """No content of a recording breaks the reader."""
    for row in Reader((BEGUN + text).split("\n")):
        assert row.available_kib is None or row.available_kib >= 0


# --- one clock over boots ---------------------------------------------------------------------------


def _rows(*rows: tuple[str, float, float]) -> list[Row]:
    return [Row(boot, unix_s, at_s, 5, 5, None) for boot, unix_s, at_s in rows]


def test_time_within_a_boot() -> None:
    """Within a boot its own clock counts, so that a wall clock that is set back or forward changes nothing."""
    rows = _rows(("a", 1e9, 100.0), ("a", 1e9 - 5000, 101.0), ("a", 2e9, 102.5))
    assert [sample.at_s for sample in recording.samples(rows)] == [1e9, 1e9 + 1, 1e9 + 2.5]


@pytest.mark.parametrize("unix_s", [1e9 + 1000.0, 1e9 + 3, 1e9 - 5000])
def test_time_over_boots(unix_s: float) -> None:
    """After a boot time goes on, and so far that what was before is not taken for the moment before."""
    first, second, third = recording.samples(_rows(("a", 1e9, 900.0), ("b", unix_s, 20.0), ("b", unix_s + 1, 21.0)))
    assert second.at_s - first.at_s > GAP_S
    assert third.at_s - second.at_s == 1
    assert second.at_s >= unix_s


def test_two_recordings_in_the_wrong_order() -> None:
    """An earlier part of the same boot that comes later is not put before what was."""
    found = list(recording.samples(_rows(("a", 1e9, 900.0), ("a", 1e9 - 800, 100.0), ("a", 1e9 - 799, 101.0))))
    assert [sample.at_s for sample in found] == sorted(sample.at_s for sample in found)


# --- tables of others -------------------------------------------------------------------------------

DECLARED = "at=ts,available_gib=avail"


def _table(text: str, declared: str = DECLARED) -> foreign.Table:
    return foreign.Table(text.splitlines(keepends=True), "x.tsv", foreign.columns(declared))


def _levels(samples: Iterable[Sample]) -> list[int | None]:
    return [sample.available_kib for sample in samples]


@pytest.mark.parametrize("separator", ["\t", ",", ";", " , ", "   "])
@pytest.mark.parametrize("before", ["", "# a comment\n# another, with a comma\n\n"])
@pytest.mark.parametrize("mark", ["", "# "])
def test_any_separator(separator: str, before: str, mark: str) -> None:
    """Tabs, commas, semicolons and blanks are told apart by the header, which may follow comments, or be one itself."""
    rows = (("ts", "used", "avail"), ("14:02:10", "1", "28.5"), ("14:02:12", "2", "6.25"))
    table = _table(before + mark + "\n".join(separator.join(row) for row in rows) + "\n")
    assert list(table) == [Sample(50530.0, round(28.5 * GIB), None), Sample(50532.0, round(6.25 * GIB), None)]
    assert table.unreadable == 0


def test_quoted_cells() -> None:
    """Cells in quotes are read as a spreadsheet writes them."""
    assert _levels(_table('"ts","avail"\n"5","1"\n')) == [GIB]


@pytest.mark.parametrize(
    ("unit", "figure", "expected"),
    [("kib", "5", 5), ("mib", "1.5", 1536), ("gib", "2", 2 * GIB), ("bytes", "1048576", 1024)],
)
def test_units(unit: str, figure: str, expected: int) -> None:
    """The unit is the one that was declared, for both levels."""
    table = _table(f"ts,a,f\n1,{figure},{figure}\n", f"at=ts,available_{unit}=a,free_{unit}=f")
    assert list(table) == [Sample(1.0, expected, expected)]


@pytest.mark.parametrize(
    ("times", "expected", "is_unix_time"),
    [
        (["0", "0.5", "10"], [0, 0.5, 10], False),
        (["1764508126.5", "1764508127"], [1764508126.5, 1764508127], True),
        (["2026-01-01T00:00:00Z", "2026-01-01 01:00:01+01:00"], [1767225600, 1767225601], True),
        (["2026-01-01T00:00:00", "2026-01-01T00:00:01.5"], [1767225600, 1767225601.5], True),
        (["23:59:59", "00:00:01.25", "12:00:00", "01:00:00"], [86399, 86401.25, 129600, 129600 - 39600], False),
        (["23:59:59", "00:00:00", "23:59:59", "00:00:00"], [86399, 86400, 172799, 172800], False),
    ],
)
def test_times(times: list[str], expected: list[float], is_unix_time: bool) -> None:
    """Seconds, Unix time, ISO times with and without a zone, and times of day that go over midnight."""
    table = _table("ts,avail\n" + "".join(f"{time},1\n" for time in times))
    assert [sample.at_s for sample in table] == expected
    assert table.is_unix_time is is_unix_time


@pytest.mark.parametrize("cell", ["", "-", "nan", "N/A", "None"])
def test_an_empty_cell(cell: str) -> None:
    """A cell that says nothing makes the level unknown, not zero."""
    assert _levels(_table(f"ts;avail\n1;{cell}\n2;3\n")) == [None, 3 * GIB]


@pytest.mark.parametrize("line", ["soon,5", "1,five", "1,-5", "1,inf", "1", "1764508126,\0", "inf,5", "25:00:00,5"])
def test_a_line_that_is_none(line: str) -> None:
    """A line that cannot be read is left out and counted, and the first is named with its number and the reason."""
    table = _table(f"ts,avail\n1,1\n{line}\n{line}\n2,2\n")
    found = _levels(table)
    if line.endswith("\0"):
        # zeros of a hard reset, and nothing else in the cell
        assert (found, table.unreadable) == ([GIB, None, None, 2 * GIB], 0)
        return
    assert (found, table.unreadable) == ([GIB, 2 * GIB], 2)
    assert table.first_unreadable.startswith("x.tsv:3: ")


def test_stalls_and_no_level() -> None:
    """A table may have stalls, and no level."""
    table = _table("t\tpsi\n2\t92.42\n", "at=t,full_percent=psi")
    assert list(table) == [Sample(2.0, None, None, 92.42)]


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ("available_gib=x", "at=COLUMN is missing"),
        ("at", "'at'"),
        ("at=", "'at='"),
        ("at=t,available_gb=x", "'available_gb=x'"),
        ("at=t,available=x", "'available=x'"),
        ("at=t,used_gib=x", "'used_gib=x'"),
        ("at=t,free_kib=x,free_gib=y", "'free_gib=y' cannot be declared a second time"),
        ("", "''"),
    ],
)
def test_what_cannot_be_declared(declared: str, named: str) -> None:
    """A declaration that cannot be used is refused, with what can be declared."""
    with pytest.raises(UsageError) as caught:
        foreign.columns(declared)
    assert named in str(caught.value)
    assert "available_UNIT" in str(caught.value)


def test_columns_that_are_not_there() -> None:
    """A table without a declared column is refused, with the line up to which it was looked for."""
    with pytest.raises(UsageError, match=r"x\.tsv:3: .* ts, avail$"):
        list(_table("ts,used\n1,2\n2,3\n"))


@given(st.text(st.sampled_from("0123456789.,\n\t\"':-# atsvil\0"), max_size=120))
def test_any_table_is_read_or_refused(text: str) -> None:
    """No table breaks the reader."""
    try:
        for sample in _table(f"ts,avail\n{text}"):
            assert sample.available_kib is None or sample.available_kib >= 0
        list(_table(text))
    except UsageError as error:
        assert "x.tsv:" in str(error)
