"""What is read of a box and of files: damaged, too many, talkative sources; and the logs around an incident."""

import gzip
import os
from pathlib import Path

import pytest

from plimsoll.box.host import Host
from plimsoll.box.incident import excerpt, reader, sources, timeline
from plimsoll.box.incident.classify import classify, leading
from plimsoll.box.incident.model import Boot, Findings, Gap
from tests.unit.incident_logs import KILLED, NOW_S, kern_log, report


def _quiet(_text: str) -> None:
    """Show nothing."""


def test_a_damaged_archive(tmp_path: Path) -> None:
    """Bytes that are no compressed data end the reading of that file, and that is said."""
    packed = bytearray(gzip.compress(kern_log(report()) + os.urandom(200_000)))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    (tmp_path / "kern.log.2.gz").write_bytes(packed)
    found = sources.read_file(str(tmp_path / "kern.log.2.gz"))
    assert found.problem


def test_a_text_that_begins_like_an_archive(tmp_path: Path) -> None:
    """Two letters make no archive of a log."""
    (tmp_path / "log").write_text(f"BZ {KILLED}\n{KILLED}\n")
    assert len(sources.read_file(str(tmp_path / "log")).events) == 1


def test_more_files_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out is named."""
    monkeypatch.setattr(sources, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"log{number}").write_text("x\n")
    read = list(sources.read_paths([str(tmp_path)], _quiet))
    assert [found is None for _name, found, _problem in read] == [False] * 3 + [True]
    assert read[-1][0] == f"{tmp_path}/log3 and what follows"


def test_a_command_that_complains_without_end() -> None:
    """A megabyte of complaints does not keep a command from ending."""
    talks = f"yes complaint | head -c 1000000 >&2; echo '{KILLED}'"
    found, problem = sources._read_command(("sh", "-c", talks), "x", Host())
    assert problem is None
    assert found is not None
    assert len(found.events) == 1


def test_how_far_it_is() -> None:
    """Of a large log it is told how much was read."""
    told: list[int] = []
    assert list(sources._counted(iter([b"block"] * 70), told.append)) == [b"block"] * 70
    assert told == [32, 64]


JOURNALCTL = """\
#!/bin/sh
case "$*" in
*--list-boots*) cat <<'END'
IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY
 -2 {a} Mon 2026-09-28 01:00:00 UTC Mon 2026-09-28 02:00:00 UTC
 -1 {b} Mon 2026-09-28 02:02:00 UTC Mon 2026-09-28 03:00:00 UTC
  0 {c} Mon 2026-09-28 03:42:00 UTC Mon 2026-09-28 05:00:00 UTC
END
;;
*{a}*-n*) echo '2026-09-28T02:00:00+0000 gx10 systemd-journald[9]: Journal stopped';;
*{a}*) echo '2026-09-28T01:00:00+0000 gx10 kernel: Booting';;
*{b}*-n*) echo '2026-09-28T03:00:00+0000 gx10 cron[9]: nothing special';;
*{b}*) echo '2026-09-28T02:02:00+0000 gx10 kernel: Booting';;
*{c}*-n*) echo '2026-09-28T05:00:00+0000 gx10 cron[9]: nothing special';;
*{c}*) echo '2026-09-28T03:42:00+0000 gx10 kernel: Booting';;
esac
"""


def _boots(tmp_path: Path) -> Findings:
    program = tmp_path / "journalctl"
    program.write_text(JOURNALCTL.format(a="a" * 32, b="b" * 32, c="c" * 32))
    program.chmod(0o755)
    found, problem = sources._read_boots(Host("", {"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    assert problem is None
    assert found is not None
    return found


def test_how_the_boots_of_a_journal_ended(tmp_path: Path) -> None:
    """An orderly stop is told from an end without a word, and how long nothing was recorded after that."""
    found = _boots(tmp_path)
    assert [event.clean_stop for event in found.events if isinstance(event, Boot)] == [None, True, False]
    gaps = [event for event in found.events if isinstance(event, Gap)]
    assert [(gap.seconds, gap.certain) for gap in gaps] == [(42 * 60, True)]


def test_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    """It is said why, and nothing is said of the boots."""
    (tmp_path / "journalctl").write_text("#!/bin/sh\necho 'No journal files were found.' >&2; exit 1\n")
    (tmp_path / "journalctl").chmod(0o755)
    found, problem = sources._read_boots(Host("", {"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    assert found is None
    assert problem == "No journal files were found."


# the logs around an incident


def test_the_lines_around_it() -> None:
    """The kill, what stood before and after it, and no more, however the stream is cut."""
    noise = kern_log([f"noise {n}" for n in range(1000)])
    log = noise + kern_log(report()) + noise
    line = timeline.build([reader.read("kern.log", [log], NOW_S)], NOW_S)
    (first, last) = excerpt.ranges(leading(classify(line)))["kern.log"]
    assert (first, last) == (1001 - excerpt.BEFORE_LINES, 1001 + excerpt.AFTER_LINES)
    wanted = log.decode().splitlines()[first - 1 : last]
    for size in (100, 4096, len(log)):
        assert excerpt.cut((log[at : at + size] for at in range(0, len(log), size)), first, last).splitlines() == wanted


def test_a_torn_last_line_is_shown() -> None:
    """What the reset left of a line is often the most telling one."""
    assert excerpt.cut([b"one\ntwo\nthr"], 2, 9) == "two\nthr"


def test_records_of_the_journal_are_shown_as_lines() -> None:
    """Not with the sixty fields that each of them has."""
    record = b'{"MESSAGE": "x", "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": "1790000000000000", "_BOOT_ID": "y"}\n'
    assert excerpt.cut([record], 1, 1) == "2026-09-21T14:13:20Z kernel: x"


def test_without_an_incident_there_is_nothing_around_it() -> None:
    """No excerpt is made up."""
    assert excerpt.ranges(None) == {}
