"""`plimsoll replay` reads what there is, says what would have been done, and refuses what it cannot use."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from plimsoll.box import cli_replay
from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN, UsageError
from plimsoll.box.guard import recording
from plimsoll.box.guard.model import Sample
from plimsoll.box.guard.sampler import Slow
from plimsoll.box.host import Host
from tests.unit.builders import write_tree
from tests.unit.recording_builders import GIB, at, ramp
from tests.unit.test_docs import _fits


def _run(host: Host, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli_replay.replay_arguments(parser)
    return cli_replay.replay(parser.parse_args(arguments), host, b"")


def _recorded(root: Path, samples: Iterable[Sample], name: str = recording.PATH, boot: str = "b1") -> Path:
    nothing = Slow(None, None, None, None, None)
    rows = "".join(f"{recording.line(each.at_s, each, nothing)}\n" for each in samples)
    total = round(121.6 * GIB)
    heading = f"# plimsoll.recording/1 boot={boot} mem_total_kib={total}\n{recording.HEADER}\n"
    write_tree(root, {name: heading + rows})
    return root / name.lstrip("/")


@pytest.fixture
def box(tmp_path: Path) -> Host:
    """A machine with less memory than the recording is of."""
    write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 8388608 kB\n"})
    return Host(str(tmp_path))


QUIET_DAY = at(*[60] * 100, period_s=1.0)
BAD_DAY = at(*ramp(60, 7.5, 3, 1.0), *[7.5] * 30, *[60] * 10, period_s=1.0)


def test_nothing_would_have_been_done(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quiet recording is said to be one, with the lines of the machine that it was made on."""
    path = _recorded(tmp_path, QUIET_DAY)
    assert _run(box, str(path)) == GOOD
    out = capsys.readouterr().out
    assert out.endswith("the guard would have done nothing\n")
    assert "floor 3.00 GiB" in out
    assert "lowest: 60.00 GiB" in out


def test_something_would_have_been_done(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would have been done is told with its time and reason; rules that arm themselves count as armed."""
    path = _recorded(tmp_path, BAD_DAY)
    assert _run(box, str(path)) == DRIFT
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3:5] for line in lines if "available, " in line] == [["slow", "term"], ["slow", "kill"]]
    assert lines[-1] == "the guard would have acted 2 times"


def test_this_boxs_own_recording(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file it is the box's own recording, the older part first."""
    later = [each._replace(at_s=each.at_s + 500) for each in BAD_DAY]
    _recorded(tmp_path, later)
    _recorded(tmp_path, QUIET_DAY, f"{recording.PATH}.1")
    assert _run(box, "--json") == DRIFT
    document = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in document["files"]] == ["memory.csv.1", "memory.csv"]
    assert document["samples"] == len(QUIET_DAY) + len(BAD_DAY)
    assert document["gaps"] == 1


def test_the_json_fits_its_schema(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed as JSON has the promised form, with decisions and without a level."""
    paths = [_recorded(tmp_path, BAD_DAY, "/bad"), _recorded(tmp_path, at(None, None), "/unknown")]
    for path, expected in zip(paths, (DRIFT, UNKNOWN), strict=True):
        assert _run(box, str(path), "--json") == expected
        _fits("replay", json.loads(capsys.readouterr().out))


def test_a_configuration_to_try(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another configuration is tried on the same recording; a rule that it has observe only says what it would do."""
    path = _recorded(tmp_path, BAD_DAY)
    write_tree(tmp_path, {"/lower": "[lines]\nslow_enter_gib = 6\n", "/watch": '[armed]\nslow = "observe"\n'})
    assert _run(box, str(path), "--config", f"{tmp_path}/lower") == GOOD
    capsys.readouterr()
    assert _run(box, str(path), "--config", f"{tmp_path}/watch") == GOOD
    assert "(term)" in capsys.readouterr().out


def test_the_boxs_own_configuration(box: Host, tmp_path: Path) -> None:
    """Without one that is named, it is that of the box."""
    path = _recorded(tmp_path, BAD_DAY)
    write_tree(tmp_path, {"/etc/plimsoll/guard.toml": "[lines]\nslow_enter_gib = 6\n"})
    assert _run(box, str(path)) == GOOD


def test_another_tools_table(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A collapse from 29 to 6 GiB within 11 s, recorded every 2 s, is seen from the moment that it crossed the line."""
    rows = ("10\t28.971", "12\t28.962", "14\t27.311", "16\t23.787", "19\t10.605", "21\t6.267", "23\t6.2")
    (tmp_path / "x.tsv").write_text("# ts\tmemavailable\n" + "".join(f"14:02:{row}\n" for row in rows))
    write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 127533056 kB\n"})
    assert _run(box, str(tmp_path / "x.tsv"), "--columns", "at=ts,available_gib=memavailable") == DRIFT
    # 8 GiB were crossed 1.2 s after the sample at 14:02:19; 2 s of looks below them are what the rule waits for
    assert "+0:00:12.3  slow   term" in capsys.readouterr().out


def test_the_size_of_a_tables_box_is_given(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table does not say whose it is: the lines are those of the size given, else, and said so, this machine's."""
    path = tmp_path / "x.csv"
    path.write_text("ts,free\n1,40\n2,39\n")
    declared = (str(path), "--columns", "at=ts,available_gib=free")
    assert _run(box, *declared, "--mem-total-gib", "121.6") == GOOD
    assert "lines for 121.60 GiB of memory: floor 3.00 GiB" in capsys.readouterr().out
    assert _run(box, *declared) == GOOD
    assert "lines for 8.00 GiB of memory, which is this machine's (--mem-total-gib" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        _run(box, *declared, "--mem-total-gib", "0")


def test_samples_of_every_minute(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with a sample a minute has no gaps; one with a stall that lasts is judged by it."""
    rows = "".join(f"{number * 60},46,92.4\n" for number in range(10))
    (tmp_path / "x.csv").write_text(f"t,free,psi\n{rows}")
    (tmp_path / "c").write_text('[armed]\nstall = "armed"\n')
    declared = ("--columns", "at=t,available_gib=free,full_percent=psi", "--config", str(tmp_path / "c"))
    assert _run(box, str(tmp_path / "x.csv"), *declared) == DRIFT
    out = capsys.readouterr().out
    assert "stall  kill" in out
    assert "gaps" not in out


@pytest.mark.parametrize("text", ["t,f\n1,5\n2,6\n", "t,f\n1,5\n"])
def test_what_cannot_be_told(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A file without a level, or with one sample, is no reason to say that nothing would have been done."""
    (tmp_path / "x.csv").write_text(text)
    name = "free_gib" if text.count("\n") > 2 else "available_gib"
    assert _run(box, str(tmp_path / "x.csv"), "--columns", f"at=t,{name}=f") == UNKNOWN
    assert "cannot be told" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "arguments", "named"),
    [
        (None, (), "x.csv: No such file"),
        ("", (), "holds no samples"),
        ("a,b\n1,2\n", (), "x.csv:1: 2 lines, none of a recording"),
        ("a,b\n1,2\n", ("--columns", "at=c"), "x.csv:2: "),
        ("a,b\nsoon,2\n", ("--columns", "at=a,free_kib=b"), "x.csv:2: 'soon' is not a time"),
        ("a,b\n1,2\n", ("--columns", "when=a"), "at=COLUMN"),
        ("a,b\n1,2\n", ("--columns", "at=a,free_kib=b", "--config", "/nowhere/c"), "/nowhere/c: No such file"),
        ("a,b\n1,2\n", ("--columns", "at=a,free_kib=b", "--picture", "/nowhere/p"), "/nowhere/p: No such file"),
    ],
)
def test_bad_input(box: Host, tmp_path: Path, content: str | None, arguments: tuple[str, ...], named: str) -> None:
    """Bad input is one clear error, with the file, and the line where there is one."""
    if content is not None:
        (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UsageError) as caught:
        _run(box, str(tmp_path / "x.csv"), *arguments)
    assert named in str(caught.value)


def test_no_recording_on_this_box(box: Host) -> None:
    """Where the guard has recorded nothing yet, that is said."""
    with pytest.raises(UsageError, match="no recording on this box"):
        _run(box)


def test_the_picture_is_written(box: Host, tmp_path: Path) -> None:
    """The picture is written beside the answer."""
    path = _recorded(tmp_path, BAD_DAY)
    assert _run(box, str(path), "--picture", str(tmp_path / "p.svg")) == DRIFT
    root = ET.fromstring((tmp_path / "p.svg").read_text())  # noqa: S314  # our own
    assert [each for each in root.iter() if each.get("class") == "acts"]


def test_a_torn_recording(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a reset has torn is left out, and said to be."""
    path = _recorded(tmp_path, QUIET_DAY)
    path.write_bytes(path.read_bytes() + b"\0\0\0\0\n17645\x1b[2J")
    assert _run(box, str(path)) == GOOD
    out = capsys.readouterr().out
    assert "lines left out because they cannot be read: 2" in out


@pytest.mark.parametrize("step", ["0", "nan", "-1", "x"])
def test_a_step_that_is_none(box: Host, tmp_path: Path, step: str) -> None:
    """Time between two looks is above 0."""
    path = _recorded(tmp_path, QUIET_DAY)
    with pytest.raises(SystemExit):
        _run(box, str(path), "--step-s", step)


def test_as_it_was_recorded(box: Host, tmp_path: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    """With a step as long as a sample's, the recording is judged at its own times."""
    path = _recorded(tmp_path, BAD_DAY)
    assert _run(box, str(path), "--step-s", "1", "--json") == DRIFT
    times = [each["at_s"] for each in json.loads(capsys.readouterr().out)["decisions"]]
    assert all(time == round(time) for time in times)
