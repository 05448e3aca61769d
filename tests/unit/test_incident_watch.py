"""Events as they come: each told once it is there, early signs too, and nothing piles up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.box.incident import reader, watching
from plimsoll.box.incident.model import DriverAllocFailure, Event, Note
from plimsoll.box.incident.reader import Live
from tests.unit.incident_logs import HARD, HUNG, SOFT

XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STALL = "python3: page allocation stalls for 10500ms, order:0, mode:0x14280ca"


def _feed(live: Live, *texts: str, at_s: float = 100.0) -> list[Event | Note]:
    records = (f"4,{n},{int((at_s + n / 1e4) * 1e6)},-;{text}".encode() for n, text in enumerate(texts))
    return [found for record in records for found in live.feed(record)]


def test_a_record_is_told_at_once() -> None:
    """No line has to come after one that could go on in a log that somebody has wrapped."""
    assert [found.kind for found in _feed(Live("k"), XID)] == ["xid"]


def test_a_soft_failure_that_turns_out_hard_is_told_again() -> None:
    """The companion comes after the line that it belongs to: a hook that acts on hard ones must hear of it."""
    told = _feed(Live("k"), SOFT.format(1), HARD)
    assert [found.severity for found in told if isinstance(found, DriverAllocFailure)] == ["soft", "hard"]


def test_a_storm_is_one_event() -> None:
    """Thousands of the same line are told once."""
    assert len(_feed(Live("k"), *[SOFT.format(1)] * 300)) == 1


def test_it_never_stops_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """After more events than are kept of a log that is read at once it still tells of each, and keeps a few."""
    monkeypatch.setattr(reader, "MAX_LIVE", 50)
    live = Live("k")
    told = sum(len(_feed(live, HUNG.format(122), at_s=1000.0 * n)) for n in range(1, 400))
    assert told == 399
    assert len(live._reading._sink.events) <= 100


def test_early_signs_are_told_now_and_then() -> None:
    """A kind of sign is due once a minute, another kind beside it."""
    signs = watching._Signs()
    stall = next(found for found in _feed(Live("k"), STALL) if isinstance(found, Note))
    assert [signs.are_due(stall, now_s) for now_s in (0.0, 1.0, 59.9, 60.0)] == [True, False, False, True]
    assert not signs.are_due(Note("setting", "x", stall.place), 0.0)


def _watcher(root: Path, *words: str) -> subprocess.Popen[bytes]:
    program = (
        "import sys; from plimsoll.box import cli; from plimsoll.box.host import Host; "
        f"sys.exit(cli.main(['incident', '--watch', *{words!r}], Host({str(root)!r})))"
    )
    (root / "dev").mkdir()
    os.mkfifo(root / "dev/kmsg")
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)


def test_it_ends_when_nobody_listens_any_more(tmp_path: Path) -> None:
    """At the end of a lost connection it does not wait for the kernel's next word."""
    with _watcher(tmp_path) as process, (tmp_path / "dev/kmsg").open("wb", buffering=0) as kmsg:
        kmsg.write(f"4,1,100,-;{XID}\n".encode())
        assert process.stdout
        assert b"Xid 79" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0


def test_what_is_told_is_redacted(tmp_path: Path) -> None:
    """`--redact` holds for what is told as it comes, too."""
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/docker/" + "ab" * 32 + ",task=x,pid=7,uid=0"
    with _watcher(tmp_path, "--redact", "--json") as process, (tmp_path / "dev/kmsg").open("wb", buffering=0) as kmsg:
        killed = "Memory cgroup out of memory: Killed process 7 (x) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
        kmsg.write(f"4,1,100,-;{line}\n4,2,101,-;{killed}\n".encode())
        assert process.stdout
        found = json.loads(process.stdout.readline())
        assert found["memcg"] == "/docker/id-1"
