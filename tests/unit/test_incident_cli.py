"""`plimsoll incident`: files and pipes in, text, JSON or a page out, and what was left out is said."""

import argparse
import bz2
import datetime
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.box import cli_incident
from plimsoll.box.errors import GOOD, UNKNOWN, UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident import sources
from plimsoll.box.incident.model import Event
from plimsoll.box.incident.redact import Redactor
from tests.unit import test_docs
from tests.unit.builders import write_tree
from tests.unit.incident_logs import HARD, HUNG, KILLED, OWNER, SOFT, SUMMARY, kern_log, report


def _run(*words: str, host: Host | None = None) -> int:
    parser = argparse.ArgumentParser()
    cli_incident.incident_arguments(parser)
    return cli_incident.incident(parser.parse_args(words), host or Host(), b"")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A kernel log with a storm of driver lines and a kill."""
    path = tmp_path / "kern.log"
    path.write_bytes(kern_log([SOFT.format(1)] * 3, start="2026-09-12T13:05:", uptime_s=4800.0) + kern_log(report()))
    return path


def test_text(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line says what it was, then come the time line, the grounds, the arithmetic."""
    assert _run(str(log)) == GOOD
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2026-09-12T13:05:10+00:00: class B, OOM cascade")
    assert {"Time line", "Grounds", "Why this victim, and where memory was"} <= set(out)
    assert len(out) < 60


def test_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has what other programs rely on."""
    assert _run("--json", str(log)) == GOOD
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["class"]) == ("plimsoll.incident/1", "B")
    kill = next(event for event in found["events"] if event["kind"] == "oom_kill")
    assert kill["victim"]["comm"] == "llama-server"
    assert kill["time"].startswith("2026-09-12T13:08:10")
    assert kill["source"]["file"] == str(log)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed(pack: Any, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    """A rotated log is read as it lies there."""
    packed = tmp_path / "kern.log.2.gz"
    packed.write_bytes(pack(log.read_bytes()))
    assert _run("--json", str(packed)) == GOOD
    assert json.loads(capsys.readouterr().out)["class"] == "B"


def test_a_pipe(log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` is standard input."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(log.read_bytes())))
    assert _run("-") == GOOD
    assert "class B" in capsys.readouterr().out


def test_a_directory(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory stands for its files."""
    (log.parent / "other.log").write_text("nothing here\n")
    assert _run("--json", str(log.parent)) == GOOD
    assert len(json.loads(capsys.readouterr().out)["sources"]) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A name without a file is one clear error."""
    with pytest.raises(UsageError, match=r"nowhere\.log: no such file; name a log"):
        _run(str(tmp_path / "nowhere.log"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"LPKSHHRH" + b"\0" * 99, "journalctl --file"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 9, "zstd"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 4, "binary"),
        (b"\x1f\x8b\x08\x00broken", ""),
    ],
)
def test_a_file_that_cannot_be_read(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What could not be read is named, with what to do, and is never taken for a log without events."""
    path = tmp_path / "some.log"
    path.write_bytes(content)
    assert _run("--json", str(path)) == UNKNOWN
    unread = json.loads(capsys.readouterr().out)["unread"]
    assert said in unread[str(path)]
    assert unread[str(path)]


@pytest.mark.parametrize("content", [b"", b"a letter\n"], ids=["empty", "prose"])
def test_what_is_no_log_tells_nothing(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file without one line of a log it is not said that nothing happened; a quiet log is another thing."""
    path = tmp_path / "kern.log"
    path.write_bytes(content)
    assert _run(str(path)) == UNKNOWN
    assert capsys.readouterr().out.startswith("Nothing can be told: no line of 1 source is one of a log.")
    (tmp_path / "quiet.log").write_bytes(kern_log(["usb 1-1: new high-speed USB device number 2"]))
    assert _run(str(path), str(tmp_path / "quiet.log")) == GOOD
    assert capsys.readouterr().out.startswith("Found nothing in 2 sources.")


def test_a_truncated_archive_gives_what_it_has(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compressed file that ends early is read as far as it goes, and that it was not read to its end is said."""
    packed = tmp_path / "kern.log.2.gz"
    noise = b"".join(b"%d filler %d\n" % (n, n * n) for n in range(300_000))
    packed.write_bytes(gzip.compress(log.read_bytes() + noise)[:-2000])
    assert _run("--json", str(packed)) == GOOD
    found = json.loads(capsys.readouterr().out)
    assert found["class"] == "B"
    assert "not read to its end" in found["unread"][str(packed)]


def test_the_box_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the box's own logs are read: kern.log and its older ones, the guard's records, crashes."""
    tree = {
        "/var/log/kern.log": kern_log(report()).decode(),
        "/var/log/kern.log.1": kern_log([SOFT.format(1)], start="2026-09-12T13:05:").decode(),
        "/var/log/plimsoll/guard.jsonl": "",
        "/var/lib/systemd/pstore/17892/dmesg.txt": "<0>[ 1.5] Kernel panic - not syncing: x\n",
    }
    write_tree(tmp_path, tree)
    assert _run("--json", host=Host(str(tmp_path))) == GOOD
    found = json.loads(capsys.readouterr().out)
    assert [source["file"] for source in found["sources"]] == sorted(tree)
    assert {event["kind"] for event in found["events"]} == {"oom_kill", "driver_alloc_failure", "panic"}


def test_how_the_box_is_guarded_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of this box it is said whether the guard runs, and which rules act; of somebody else's logs it is not."""
    assert _run("--json", host=Host(str(tmp_path))) == UNKNOWN
    assert "the guard does not run: no guard has written" in json.loads(capsys.readouterr().out)["standing"][0]
    rules = [{"rule": "floor", "armed": True}, {"rule": "slow", "armed": False}]
    monkeypatch.setattr(cli_incident, "of_guard", lambda _host: ({"rules": rules}, ""))
    _run(host=Host(str(tmp_path)))
    assert "the guard runs: floor armed, slow observes" in capsys.readouterr().out
    (tmp_path / "log").write_text(KILLED)
    _run("--json", str(tmp_path / "log"))
    assert json.loads(capsys.readouterr().out)["standing"] == []


def test_what_the_guard_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its records up to the incident are shown, the last first, and how long it had been silent."""
    record = '{{"schema": "plimsoll.guard/1", "kind": "start", "at": "2026-09-12T{}:00.000+00:00", "text": "{}"}}\n'
    (tmp_path / "guard.jsonl").write_text(
        record.format("09:00", "first") + record.format("11:00", "second") + record.format("20:00", "later")
    )
    (tmp_path / "kern.log").write_bytes(kern_log(report()))
    _run(str(tmp_path))
    section = capsys.readouterr().out.split("The guard\n")[1].split("\n\n")[0].splitlines()
    assert ["second" in section[0], "first" in section[1]] == [True, True]
    assert "2 h 8 min before the first sign" in section[2]
    assert len(section) == 3


def test_a_box_without_a_kernel_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That there is no kern.log is said, and nothing is called fine."""
    assert _run("--json", host=Host(str(tmp_path))) == UNKNOWN
    assert "/var/log/kern.log" in json.loads(capsys.readouterr().out)["unread"]


def test_who(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who killed my server, by name; somebody who was not killed is not found."""
    assert _run("--who", "llama-server", str(log)) == GOOD
    assert "OOM kill for want of the host's memory: llama-server (4242)" in capsys.readouterr().out
    assert _run("--who", "nginx", str(log)) == UNKNOWN
    assert "nobody is on record" in capsys.readouterr().out


def test_who_by_what_others_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manager's word of a unit's end is an answer; without one, that the machine itself went down is said."""
    (tmp_path / "journal").write_text(
        "2026-11-01T10:00:01+00:00 gx10 systemd[1]: vllm.service: Failed with result 'oom-kill'.\n"
        "2026-11-01T11:00:00+00:00 gx10 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    assert _run("--who", "vllm.service", str(tmp_path)) == GOOD
    assert "vllm.service: failed with result oom-kill" in capsys.readouterr().out
    assert _run("--who", "llama-server", str(tmp_path)) == UNKNOWN
    assert "but the machine itself was in trouble, from 2026-11-01T11:00:00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("--since", "2026-09-12T13:07"), ["oom_kill"]),
        (("--until", "2026-09-12 13:07:00"), ["driver_alloc_failure"]),
        (("--since", "13:07"), ["oom_kill"]),
        (("--since", "2026-09-13"), []),
        (("--since", "2026-09-12", "--until", "2026-09-13"), ["driver_alloc_failure", "oom_kill"]),
    ],
)
def test_since_and_until(
    words: tuple[str, ...], kinds: list[str], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A date, a date with a time, or a time of the last day."""
    assert _run("--json", *words, str(log)) == GOOD
    assert [event["kind"] for event in json.loads(capsys.readouterr().out)["events"]] == kinds


def test_a_time_that_is_none(log: Path) -> None:
    """What is no time is refused, with what to write."""
    with pytest.raises(UsageError, match="--since yesterday: not a time; write 2026-09-12"):
        _run("--since", "yesterday", str(log))


def test_the_page(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page with a drawing, that loads nothing and runs nothing, whatever stands in a log."""
    with log.open("ab") as file:
        file.write(kern_log([KILLED.replace("llama-server", "<script>x")], start="2026-09-12T13:09:"))
    out = tmp_path / "page.html"
    assert _run("--html", str(out), str(log)) == GOOD
    text = out.read_text()
    assert "<svg" in text
    assert "&lt;script&gt;x" in text
    assert not re.search(r"<script|src=|href=|url\(|@import", text)
    assert capsys.readouterr().out


def test_a_page_that_cannot_be_written(log: Path) -> None:
    """Where it cannot be written is one clear error."""
    with pytest.raises(UsageError, match=r"--html /nowhere/at/all\.html: .*directory"):
        _run("--html", "/nowhere/at/all.html", str(log))
    with pytest.raises(UsageError, match="--bundle -: name a file"):
        _run("--bundle", "-", str(log))


def test_names_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in a name are shown, not sent."""
    path = tmp_path / "k.log"
    path.write_text(f"{KILLED.replace('llama-server', chr(0x9B) + '2Jx' + chr(7))}\n")
    _run(str(path))
    assert not set(capsys.readouterr().out) & {"\x07", "\x1b", "\x9b"}


EVERYTHING = (
    kern_log(report()),
    kern_log([SOFT.format(1), HARD, HUNG.format(122), OWNER], start="2026-09-12T13:00:"),
    b"watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]\n",
    b"NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, lost\n",
    b"Kernel panic - not syncing: Fatal exception\n",
    b'earlyoom[1]: sending SIGTERM to process 7 uid 0 "x": badness 1, VmRSS 2 MiB\n',
    b"t,avail_GiB\n" + b"".join(b"%d,%d\n" % (n, 60 - 6 * n) for n in (*range(8), 99)),
    b"2026-09-12T14:00:00+00:00 gx10 kernel: [    0.000000] Linux version 6.17.0 (x) #1\n",
    b"vmstat_oom_kill=13\n",
)


@pytest.mark.parametrize("words", [(), ("--redact",)])
def test_the_document_fits_its_schema(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an event of each kind, notes, assumptions and an unread file, it has the promised form."""
    for number, content in enumerate((*EVERYTHING, b"LPKSHHRH")):
        (tmp_path / f"log{number}").write_bytes(content)
    assert _run("--json", *words, str(tmp_path)) == GOOD
    found = json.loads(capsys.readouterr().out)
    assert {event["kind"] for event in found["events"]} == {kind.kind for kind in Event.__subclasses__()}
    test_docs._fits("incident", found)


def test_the_schema_refuses_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document with an event of a kind that is not promised does not pass."""
    (tmp_path / "log").write_bytes(EVERYTHING[4])
    _run("--json", str(tmp_path / "log"))
    found = json.loads(capsys.readouterr().out)
    found["events"][0]["kind"] = "surprise"
    with pytest.raises(AssertionError):
        test_docs._fits("incident", found)


def test_the_bundle(log: Path, tmp_path: Path) -> None:
    """An archive with the answer in three forms, what was replaced in it, and sums to see whether it is whole."""
    out = tmp_path / "out.tar.gz"
    assert _run("--bundle", str(out), str(log)) == GOOD
    with tarfile.open(out) as tar:
        files = {Path(member.name).name: tar.extractfile(member) for member in tar}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert set(texts) == {"incident.txt", "incident.json", "incident.html", "log.txt", "README", "SHA256SUMS"}
    assert KILLED in texts["log.txt"]
    assert [name for name, text in texts.items() if str(tmp_path) in text] == []
    sums = dict(line.split("  ")[::-1] for line in texts["SHA256SUMS"].splitlines())
    assert sums == {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items() if name in sums}
    assert len(sums) == 5
    test_docs._fits("incident", json.loads(texts["incident.json"]))
    assert "Left as they are" in texts["README"]


def test_the_bundle_of_a_box(tmp_path: Path) -> None:
    """Of this box it has what the box is, without its name; what could not be read is said."""
    tree = {
        "/var/log/kern.log": kern_log(report()).decode(),
        "/proc/sys/kernel/hostname": "secret-name\n",
        "/proc/version": "Linux version 6.17.0 (a@secret-name)\n",
        "/etc/dgx-release": 'DGX_SERIAL_NUMBER="1653724000001"\n',
    }
    write_tree(tmp_path / "box", tree)
    assert _run("--bundle", str(tmp_path / "out.tgz"), host=Host(str(tmp_path / "box"))) == GOOD
    with tarfile.open(tmp_path / "out.tgz") as tar:
        file = tar.extractfile("plimsoll-incident/host.txt")
        assert file
        text = file.read().decode()
    assert "Linux version 6.17.0" in text
    assert "secret-name" not in text
    assert "1653724000001" not in text
    assert "== /proc/meminfo\n(cannot be read)" in text


# redaction

SECRETS = (
    "gx10",
    "192.0.2.77",
    "00:11:22:aa:bb:cc",
    "alice",
    "ab12" * 16,
    "/srv/private/model.gguf",
    "a@example.org",
    "1653724000001",
)


def test_redacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts, addresses, users, paths and ids are gone from text and JSON; what was left is said."""
    line = (
        "2026-09-12T13:08:10+00:00 gx10 earlyoom[7]: kill failed: host gx10 192.0.2.77 00:11:22:aa:bb:cc "
        f"/home/alice/x {'ab12' * 16} /srv/private/model.gguf a@example.org fe80::1:2:3:4"
    )
    path = tmp_path / "k.log"
    path.write_text(f"{line}\n{SUMMARY}\n{KILLED}\n")
    release = tmp_path / "dgx-release"
    release.write_text('DGX_SERIAL_NUMBER="1653724000001"\n')
    for words in ((), ("--json",)):
        _run("--redact", *words, str(path), str(release))
        out = capsys.readouterr().out
        assert [secret for secret in (*SECRETS, str(tmp_path)) if secret in out] == []
        assert "llama-server" in out
        assert "names of processes" in out


def test_the_same_by_the_same() -> None:
    """One thing has one name throughout; two things have two."""
    redactor = Redactor(["gx10", "gx11"])
    assert (
        redactor.text("gx10 gx11 gx10 192.0.2.1 192.0.2.2 192.0.2.1")
        == "host-1 host-2 host-1 address-1 address-2 address-1"
    )
    assert redactor.text("gx10") == "host-1"


@pytest.mark.parametrize(
    "text", ["/system.slice/llama.service", "6.17.0-1032-nvidia", "0000:01:00.0", "13:08:10", "/proc/meminfo", "gx10x"]
)
def test_what_names_nobody_stays(text: str) -> None:
    """Cgroups, versions, devices, times and the paths that every machine has are not touched."""
    assert Redactor(["gx10"]).text(text) == text


def test_watching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each event of the kernel's log is told as it comes, with its time; the dictionary of a record is not."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    uptime_us = int(time.monotonic() * 1e6)
    lines = [
        f"4,{n},{uptime_us},-;{text}\n SUBSYSTEM=pci\n" for n, text in enumerate([SOFT.format(1), SUMMARY, KILLED])
    ]
    writer = threading.Thread(target=(tmp_path / "dev/kmsg").write_text, args=("".join(lines),))
    writer.start()
    assert _run("--watch", "--json", host=Host(str(tmp_path))) == GOOD
    writer.join()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["kind"] for event in found] == ["driver_alloc_failure", "oom_kill"]
    assert found[1]["victim"]["pid"] == 4242
    seen = datetime.datetime.fromisoformat(found[0]["time"])
    assert abs((datetime.datetime.now(datetime.UTC) - seen).total_seconds()) < 60


def test_watching_where_it_cannot_be(tmp_path: Path) -> None:
    """Without a kernel log, and with files besides, it is one clear error."""
    with pytest.raises(UsageError, match=r"/dev/kmsg: .*; run it as root"):
        _run("--watch", host=Host(str(tmp_path)))
    with pytest.raises(UsageError, match="--watch takes no files"):
        _run("--watch", "x")


# the box's commands


def test_a_command_that_fails_is_told() -> None:
    """A program that is missing or that fails is an unread source with its own words."""
    host = Host()
    _found, problem = sources._read_command(("sh", "-c", "echo no permission >&2; exit 3"), "x", host)
    assert problem == "no permission"
    _found, problem = sources._read_command(("no-such-program",), "x", host)
    assert problem == "No such file or directory"
    found, problem = sources._read_command(("printf", "%s\\n", KILLED), "x", host)
    assert problem is None
    assert found is not None
    assert len(found.events) == 1
