"""One look at memory: the same level as everywhere else, quickly, and whatever the kernel's files hold."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import memory
from plimsoll.box.guard.sampler import Sampler, SlowReader
from plimsoll.box.host import Host
from tests.unit.builders import write_tree

GIB = 1 << 20
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.71.05  Release Build\n"
IDLE = {
    "MemTotal": 120 * GIB,
    "MemFree": 60 * GIB,
    "MemAvailable": 100 * GIB,
    "Buffers": 1 * GIB,
    "Cached": 40 * GIB,
    "SwapCached": 7 * GIB,
    "AnonPages": 5 * GIB,
    "Shmem": 2 * GIB,
    "KReclaimable": 900,
    "SReclaimable": 900,
    "SwapFree": 16 * GIB,
    "CmaTotal": 131072,
    "CmaFree": 70000,
}
_DESCRIPTORS = Path("/proc/self/fd")
FIELDS = (
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "Shmem",
    "KReclaimable",
    "SReclaimable",
    "CmaTotal",
    "CmaFree",
)


def _text(**changes: int | str | None) -> str:
    fields = {**IDLE, **changes}
    return "".join(f"{f'{name}:':16}{value:>8} kB\n" for name, value in fields.items() if value is not None)


def _pressure(full_us: int, some_us: int = 0) -> str:
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    return f"some {line}{some_us}\nfull {line}{full_us}\n"


def _host(root: Path, meminfo: str | None = None, pressure: str | None = None, **files: str) -> Host:
    given_files = {"/proc/meminfo": _text() if meminfo is None else meminfo, **files}
    if pressure is not None:
        given_files["/proc/pressure/memory"] = pressure
    write_tree(root, given_files)
    return Host(str(root))


def _with_driver(root: Path, meminfo: str, pools: int = 529) -> Host:
    files = {
        "/proc/driver/nvidia/version": DRIVER,
        "/proc/driver/nvidia/params": f"EnableSystemMemoryPools: {pools}\n",
    }
    return _host(root, meminfo, **files)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 100 * GIB),
        ({"KReclaimable": 95 * GIB}, 5 * GIB + 900),
        ({"KReclaimable": 200 * GIB}, 0),
        ({"SReclaimable": 1000}, 100 * GIB),
        # nine digits, which move everything behind them in the text
        ({"MemFree": 123456789, "MemAvailable": 126543210}, 126543210),
    ],
)
def test_the_level(tmp_path: Path, changes: dict[str, int], expected: int) -> None:
    """What only looks reclaimable is taken off, never more than there is; without a driver CMA is like any memory."""
    sampler = Sampler(_host(tmp_path, _text(**changes)))
    assert sampler.sample(1.0).available_kib == expected
    assert "KReclaimable" in sampler.basis


@pytest.mark.parametrize(
    ("changes", "taken_off"),
    [({}, 70000), ({"CmaTotal": 0, "CmaFree": 940604}, 0), ({"CmaTotal": None, "CmaFree": None}, 0)],
)
def test_cma_where_a_driver_pins(tmp_path: Path, changes: dict[str, int | None], taken_off: int) -> None:
    """A driver cannot use free CMA; a figure above its total is inconsistent and not taken off."""
    sampler = Sampler(_with_driver(tmp_path, _text(**changes)))
    assert sampler.sample(1.0).available_kib == 100 * GIB - taken_off


@pytest.mark.parametrize(
    ("misc", "pools", "expected"),
    [(0, 0, "A"), (0, 529, "B"), (GIB - 1, 529, "B"), (GIB, 529, "C"), (90 * GIB, 0, "C")],
)
def test_the_regime(tmp_path: Path, misc: int, pools: int, expected: str) -> None:
    """The regime is named by the same rules as in every report."""
    sampler = Sampler(_with_driver(tmp_path, _text(KReclaimable=900 + misc), pools))
    assert sampler.sample(1.0).regime == expected


def test_a_driver_that_books_what_it_uses_as_reclaimable(tmp_path: Path) -> None:
    """With driver 595.99 and 101 GB held, MemAvailable was 111.5 GiB: 17.2 GiB of it are there, and the regime is C."""
    figures = {"MemTotal": 127533056, "MemFree": 7340032, "MemAvailable": 116916224, "KReclaimable": 99218750}
    text = _text(**figures, SReclaimable=314573, CmaTotal=None, CmaFree=None)
    sample = Sampler(_with_driver(tmp_path, text)).sample(1.0)
    assert (sample.available_kib, sample.free_kib, sample.regime) == (18012047, 7340032, "C")


def test_a_driver_that_is_loaded_later(tmp_path: Path) -> None:
    """The driver is looked at once, and again when asked to."""
    host = _host(tmp_path)
    sampler = Sampler(host)
    write_tree(tmp_path, {"/proc/driver/nvidia/version": DRIVER})
    before = sampler.sample(1.0).available_kib
    sampler.look_at_driver()
    assert (before, sampler.sample(2.0).available_kib) == (100 * GIB, 100 * GIB - 70000)


@pytest.mark.parametrize("missing", ["MemAvailable", "KReclaimable", "SReclaimable"])
def test_what_is_taken_instead(tmp_path: Path, missing: str) -> None:
    """Where the kernel does not say it: free memory and the file cache, SwapCached left out; and that is said."""
    sampler = Sampler(_host(tmp_path, _text(**{missing: None})))
    assert sampler.sample(1.0).available_kib == (60 + 40 + 1 - 2) * GIB
    assert sampler.sample(1.0).regime == "unknown"
    assert missing in sampler.basis
    assert "SwapCached" in sampler.basis


def test_an_old_kernel(tmp_path: Path) -> None:
    """A kernel before 3.14 has neither figure: what is free and cached counts, 13.5 GB of 16 here."""
    text = "MemTotal: 15666184 kB\nMemFree: 440324 kB\nBuffers: 1020128 kB\nCached: 12007640 kB\nShmem: 1308 kB\n"
    assert Sampler(_host(tmp_path, text)).sample(1.0).available_kib == 440324 + 1020128 + 12007640 - 1308


@pytest.mark.parametrize("value", ["", "x", "-5", "12x", "9" * 5000, "٣"])
def test_garbage_is_missing(tmp_path: Path, value: str) -> None:
    """A figure that is none is not taken for zero, nor for anything else."""
    sampler = Sampler(_host(tmp_path, _text(MemAvailable=value)))
    assert sampler.sample(1.0).available_kib == 99 * GIB
    assert "MemAvailable is missing" in sampler.basis


@pytest.mark.parametrize("missing", ["MemFree", "Cached", "Shmem"])
def test_no_level_at_all(tmp_path: Path, missing: str) -> None:
    """Free memory alone would make a healthy box look full: where the cache is not known, the level is not either."""
    sampler = Sampler(_host(tmp_path, _text(**{missing: None, "MemAvailable": None})))
    assert sampler.sample(1.0).available_kib is None
    assert "unknown" in sampler.basis


@given(st.fixed_dictionaries({}, optional={name: st.integers(0, 2**40) for name in FIELDS}))
def test_the_same_figure_as_everywhere(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, int]) -> None:
    """Whatever /proc/meminfo says, the sample has the level that status and audit show, if they show one."""
    root = tmp_path_factory.mktemp("host")
    text = "".join(f"{name}: {value} kB\n" for name, value in fields.items())
    sampler = Sampler(_with_driver(root, text))
    known = memory.available_kib(memory.parse_meminfo(text))
    found = sampler.sample(1.0)
    sampler.close()
    assert known is None or found.available_kib == known
    assert found.available_kib is None or found.available_kib >= 0
    assert found.free_kib == (fields.get("MemFree") if text else None)


@given(st.binary(max_size=300))
def test_any_bytes_can_be_sampled(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No content of any of the files breaks a sample."""
    root = tmp_path_factory.mktemp("host")
    for name in ("meminfo", "vmstat", "pressure/memory"):
        (root / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "proc" / name).write_bytes(content + b"\nfull total=\nMemFree: " + content)
    sampler, slow = Sampler(Host(str(root))), SlowReader(Host(str(root)))
    for at_s in (1.0, 2.0):
        sample = sampler.sample(at_s)
        assert sample.at_s == at_s
        assert sample.full_percent is None or 0 <= sample.full_percent <= 100
        slow.read(at_s)
    sampler.close()
    slow.close()


def test_a_torn_last_line_is_no_figure(tmp_path: Path) -> None:
    """A number whose line does not end may be the beginning of a larger one."""
    sampler = Sampler(_host(tmp_path, "MemFree: 5 kB\nCached: 5 kB\nShmem: 12"))
    assert sampler.sample(1.0).available_kib is None


# --- stalls -----------------------------------------------------------------------------------------


def test_the_share_of_a_stall(tmp_path: Path) -> None:
    """PSI full is the share of the time that has really passed, from the first two readings on."""
    host = _host(tmp_path, pressure=_pressure(1_000_000))
    sampler = Sampler(host)
    found = [sampler.sample(10.0).full_percent]
    for at_s, total_us in ((10.1, 1_050_000), (12.1, 1_050_000), (12.2, 2_000_000), (12.3, 5), (12.4, 10_005)):
        write_tree(tmp_path, {"/proc/pressure/memory": _pressure(total_us)})
        found.append(sampler.sample(at_s).full_percent)
    assert found == [None, pytest.approx(50), 0, 100, None, pytest.approx(10)]


def test_no_time_has_passed(tmp_path: Path) -> None:
    """Without time between two readings, or with time going back, there is no share."""
    sampler = Sampler(_host(tmp_path, pressure=_pressure(1)))
    assert [sampler.sample(at_s).full_percent for at_s in (5.0, 5.0, 4.0)] == [None] * 3


@pytest.mark.parametrize("pressure", [None, "", "some avg10=0.00 total=5\n", "full avg10=0.00 total=x\n"])
def test_a_kernel_without_stalls(tmp_path: Path, pressure: str | None) -> None:
    """Where PSI is not compiled in, switched off, or says something else, the share is unknown and the level is not."""
    sampler = Sampler(_host(tmp_path, pressure=pressure))
    for at_s in (1.0, 2.0):
        sample = sampler.sample(at_s)
        assert (sample.full_percent, sample.available_kib) == (None, 100 * GIB)


# --- failures ---------------------------------------------------------------------------------------


def test_a_read_that_fails(tmp_path: Path) -> None:
    """A file that cannot be read makes the sample unknown, is counted, and is opened again for the next sample."""
    host = _host(tmp_path)
    path = tmp_path / "proc/meminfo"
    path.unlink()
    path.mkdir()
    sampler = Sampler(host)
    without_pressure = 1
    assert sampler.sample(1.0).available_kib is None
    assert sampler.failures == 1 + without_pressure
    assert "cannot be read" in sampler.basis
    path.rmdir()
    path.write_text(_text())
    assert sampler.sample(2.0).available_kib == 100 * GIB
    assert "cannot be read" not in sampler.basis


def test_a_descriptor_that_somebody_closed(tmp_path: Path) -> None:
    """A descriptor that is not there any more costs one sample."""
    sampler = Sampler(_host(tmp_path))
    sampler.sample(1.0)
    opened = [each for each in _DESCRIPTORS.iterdir() if each.is_symlink() and each.resolve() == _meminfo(tmp_path)]
    assert len(opened) == 1
    os.close(int(opened[0].name))
    assert [sampler.sample(at_s).available_kib for at_s in (2.0, 3.0)] == [None, 100 * GIB]


def _meminfo(root: Path) -> Path:
    return (root / "proc/meminfo").resolve()


def test_files_are_opened_once(tmp_path: Path) -> None:
    """A sample reads what was opened before: opening may wait for memory."""
    sampler = Sampler(_host(tmp_path, pressure=_pressure(0)))
    sampler.sample(1.0)
    before = set(_DESCRIPTORS.iterdir())
    (tmp_path / "proc/meminfo").rename(tmp_path / "elsewhere")
    assert sampler.sample(2.0).available_kib == 100 * GIB
    assert set(_DESCRIPTORS.iterdir()) == before


# --- what is recorded beside ------------------------------------------------------------------------


def test_the_slow_figures(tmp_path: Path) -> None:
    """Once a second there are swap, programs' memory, shared memory, stalls of some, and the kernel's own kills."""
    host = _host(tmp_path, pressure=_pressure(0, some_us=0), **{"/proc/vmstat": "nr_free_pages 5\noom_kill 13\nx 1\n"})
    reader = SlowReader(host)
    reader.read(1.0)
    write_tree(tmp_path, {"/proc/pressure/memory": _pressure(0, some_us=250_000)})
    found = reader.read(2.0)
    assert (found.swap_free_kib, found.anon_kib, found.shmem_kib) == (16 * GIB, 5 * GIB, 2 * GIB)
    assert found.some_percent == pytest.approx(25)
    assert found.oom_kills == 13


def test_no_slow_figures(tmp_path: Path) -> None:
    """What is not there to be read is unknown."""
    found = SlowReader(Host(str(tmp_path))).read(1.0)
    assert set(vars(found).values()) == {None}
