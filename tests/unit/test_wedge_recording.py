"""What the recorder writes and what is read of it; the host's own load; the journal's lines."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from lab.errors import GuestError
from lab.guest import recorder
from lab.wedge import disk, quiet, recording
from lab.wedge.recording import Sample
from tests.unit import wedge_builders
from tests.unit.wedge_builders import START_S, sample

MEMINFO = b"""MemTotal:        1505280 kB
MemFree:          102400 kB
MemAvailable:     921600 kB
Cached:           204800 kB
AnonPages:         51200 kB
SwapFree:         524284 kB
KReclaimable:     870400 kB
SReclaimable:      51200 kB
"""
PRESSURE = b"""some avg10=0.00 avg60=0.00 avg300=0.00 total=1234
full avg10=0.00 avg60=0.00 avg300=0.00 total=567
"""


def test_a_line_makes_the_journey() -> None:
    """What the recorder writes is what the host reads, relative to the engine's start."""
    line = recorder.line_of(round((START_S + 12.5) * 1000), MEMINFO, PRESSURE).decode()
    assert recording.samples(line.replace("\n", "\r\n"), START_S) == [
        Sample(12.5, 102400, 921600, 51200, 204800, 524284, 819200, 1234, 567)
    ]


def test_a_field_that_the_kernel_lacks_is_unknown() -> None:
    """Linux without KReclaimable gives None and not 0."""
    meminfo = b"\n".join(line for line in MEMINFO.splitlines() if not line.startswith(b"KRecl"))
    (found,) = recording.samples(recorder.line_of(round(START_S * 1000), meminfo, PRESSURE).decode(), START_S)
    assert found.misc_reclaimable_kib is None
    assert found.mem_free_kib == 102400


def test_torn_lines_are_left_out() -> None:
    """The kernel prints in the middle of a line: that line is lost, and the kernel's message is not."""
    values = "1 2 3 4 5 6 7 8 9"
    whole = wedge_builders.recorded(round(START_S * 1000), values)
    torn = whole[:20] + "[   13.370000] NVRM: nvCheckOkFailedNoLog\r\n" + whole[20:]
    wrong_sum = whole.replace("1 2 3", "9 2 3")
    console = f"Debian GNU/Linux 13 gx10 ttyS0\r\n{whole}{torn}{wrong_sum}{whole}[   14.000000] Out of memory\r\n"
    assert len(recording.samples(console, START_S)) == 2
    assert recording.kernel_lines(console) == ["NVRM: nvCheckOkFailedNoLog", "Out of memory"]
    assert "lab-rec" not in recording.without_samples(whole)


def test_pressure_is_the_share_of_time() -> None:
    """Stalled for one of two seconds is 50 %."""
    recorded = [sample(at / 10, full_us=max(0, at - 20) * 50_000) for at in range(61)]
    assert [(at_s, round(percent)) for at_s, percent in recording.full_percent(recorded)] == [
        (3.9, 48),
        (5.9, 50),
        (6.0, 50),
    ]


def test_lowest_free_memory_is_that_of_the_run() -> None:
    """What was before the engine's start does not count; without a sample it is unknown."""
    assert recording.lowest_free_kib([sample(-1, 5), sample(0, 70), sample(1, 60), sample(2, 65)]) == 60
    assert recording.lowest_free_kib([sample(-1, 5)]) is None


def test_the_recorder_needs_nothing_else() -> None:
    """It is given to a Python that sees only the standard library, without site."""
    source = Path(recorder.__file__).read_text()
    assert importlib.util.find_spec("zlib")
    imports = [line.split()[1] for line in source.splitlines() if line.startswith("import ")]
    assert imports == ["ctypes", "gc", "os", "time", "zlib"]


# --- this host --------------------------------------------------------------------------------------

STAT = "cpu  100 0 50 800 20 5 5 20 0 0\ncpu0 1 2 3\n"


def test_the_cores_are_read() -> None:
    """Busy is neither idle nor waiting nor stolen; ticks are seconds by the host's own clock."""
    total_s, busy_s, stolen_s = quiet.parse_stat(STAT)
    assert [round(value * quiet.HERTZ) for value in (total_s, busy_s, stolen_s)] == [1000, 160, 20]


def test_a_process_is_read() -> None:
    """A name with brackets and blanks does not shift the fields."""
    fields = " ".join(["S", *("0",) * 10, "150", "50", *("0",) * 30])
    assert quiet.parse_process(f"7 (a) b (c) {fields}") * quiet.HERTZ == 200


@pytest.mark.parametrize(
    ("busy_s", "own_s", "stolen_s", "said"),
    [(100, 95, 1, ""), (100, 60, 0, "20% of its cores"), (100, 100, 20, "10% were given to others")],
)
def test_what_others_do_is_a_complaint(busy_s: float, own_s: float, stolen_s: float, said: str) -> None:
    """The bench's own work is none; somebody else's, and a hypervisor's, is."""
    load = quiet.between(quiet.Usage(0, 0, 0, 0), quiet.Usage(200, busy_s, stolen_s, own_s))
    assert load.complaint().endswith(said)
    assert bool(load.complaint()) is bool(said)


def test_a_machine_that_has_ended_is_no_measurement() -> None:
    """What a process has used cannot be known once it is gone; while it runs, it is the bench's own."""
    assert quiet.usage(os.getpid()).own_s > quiet.usage(None).own_s
    with pytest.raises(GuestError, match="QEMU has ended"):
        quiet.usage(2**22 + 1)


# --- the disk ---------------------------------------------------------------------------------------


def test_entries_of_the_journal() -> None:
    """Time, speaker and text of a message; one of raw bytes is left out."""
    line = {"__REALTIME_TIMESTAMP": "1790000012500000", "MESSAGE": "NVRM: x", "_TRANSPORT": "kernel"}
    assert disk.parse_entry(json.dumps(line)) == disk.Entry(START_S + 12.5, "", "NVRM: x", is_kernel=True)
    assert disk.parse_entry(json.dumps({**line, "MESSAGE": [1, 2]})) is None
    said = {**line, "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "earlyoom"}
    assert disk.parse_entry(json.dumps(said)) == disk.Entry(START_S + 12.5, "earlyoom", "NVRM: x", is_kernel=False)


def test_the_disk_of_a_machine_is_found() -> None:
    """The machine's own file is named by its full path, over the image that QEMU was told."""
    node = {"driver": "qcow2", "node-name": "root", "file": {"filename": "root.qcow2"}, "backing": {"driver": "qcow2"}}
    command = ["qemu", "-m", "1", "-blockdev", json.dumps(node), "-device", "x"]
    assert disk.disk_node(Path("/lab/m"), command) == {
        "driver": "qcow2",
        "file": {"driver": "file", "filename": "/lab/m/root.qcow2"},
        "backing": {"driver": "qcow2"},
    }


@pytest.fixture
def machine_disk(tmp_path: Path) -> tuple[Path, list[str]]:
    """A machine's directory with a disk that has kern.log and no journal, and QEMU's command for it."""
    tree = tmp_path / "tree"
    (tree / "var" / "log").mkdir(parents=True)
    (tree / "var" / "log" / "kern.log").write_text("kernel: NVRM: one\nkernel: two\n")
    base, own = tmp_path / "base.raw", tmp_path / "root.qcow2"
    base.touch()
    disk.run(["truncate", "--size=16M", str(base)])
    disk.run(["mkfs.ext4", "-q", "-F", "-d", str(tree), str(base)])
    disk.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(own)])
    backing = {"driver": "raw", "file": {"driver": "file", "filename": str(base)}}
    node = {"driver": "qcow2", "node-name": "root", "file": {}, "backing": backing}
    return tmp_path, ["qemu", "-blockdev", json.dumps(node)]


def test_logs_are_read_from_the_disk(machine_disk: tuple[Path, list[str]]) -> None:
    """kern.log comes off the disk as it is; a journal that is not there is a problem, not an empty one."""
    directory, command = machine_disk
    logs = disk.read(directory, command)
    assert logs.kern_log == ["kernel: NVRM: one", "kernel: two"]
    assert logs.journal is None
    assert len(logs.problems) == 1
    assert "journal" in logs.problems[0]
    assert not (directory / "logs").exists()
