"""The logs on a machine's disk after its power was cut: read on this host, nothing mounted, nothing booted."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lab import host, qemu
from lab.errors import LabError
from lab.image import scratch_directory
from plimsoll.box.guard import records

KERN_LOG = "/var/log/kern.log"
JOURNAL = "/var/log/journal"
GUARD_LOG = records.PATH
TOOL_TIMEOUT_S = 120


class Entry(NamedTuple):
    """One message of the journal: seconds since 1970, who said it, and whether it is the kernel."""

    at_s: float
    identifier: str
    message: str
    is_kernel: bool


@dataclass(frozen=True)
class Logs:
    """What is left on the disk; None where it could not be read, and `problems` says why.

    `guard` is the log of Plimsoll's guard, which only a machine that has one has.
    """

    kern_log: list[str] | None
    journal: list[Entry] | None
    guard: list[str]
    problems: tuple[str, ...]


def read(machine_directory: Path, boot_command: Sequence[str]) -> Logs:
    """Read the logs of a machine whose QEMU has ended. Raises LabError when the disk cannot be read at all."""
    with raw_disk(machine_directory, boot_command) as disk:
        kern_log, problem = content(disk, KERN_LOG)
        journal, journal_problem = read_journal(disk)
        guard, _ = content(disk, GUARD_LOG)
    problems = tuple(each for each in (problem, journal_problem) if each)
    return Logs(None if kern_log is None else lines_of(kern_log), journal, lines_of(guard or b""), problems)


def lines_of(content: bytes) -> list[str]:
    """The lines of a log; one that was being written may hold anything."""
    return content.decode(errors="replace").splitlines()


@contextmanager
def raw_disk(machine_directory: Path, boot_command: Sequence[str]) -> Iterator[Path]:
    """The disk as one file, its own journal replayed, as the next boot would do it."""
    node = disk_node(machine_directory, boot_command)
    with scratch_directory(machine_directory / "logs") as directory:
        disk = directory / "root.raw"
        run(["qemu-img", "convert", "-O", "raw", f"json:{json.dumps(node)}", str(disk)])
        # 1: it has corrected something
        run(["e2fsck", "-y", "-E", "journal_only", str(disk)], good=(0, 1))
        yield disk


def disk_node(machine_directory: Path, boot_command: Sequence[str]) -> dict[str, object]:
    """QEMU's description of the disk, with the place of the machine's own file."""
    node: dict[str, object] = json.loads(boot_command[boot_command.index("-blockdev") + 1])
    node.pop("node-name")
    node["file"] = {"driver": "file", "filename": str(machine_directory / qemu.DISK)}
    return node


def content(disk: Path, path: str) -> tuple[bytes | None, str]:
    """A file of the disk, or None and why not."""
    copy = disk.with_name("copy")
    copy.unlink(missing_ok=True)
    said = run(["debugfs", "-R", f"dump {path} {copy}", str(disk)])
    if not copy.exists() or "File not found" in said:
        return None, f"{path} could not be read from the disk: {last_line(said)}"
    return copy.read_bytes(), ""


def read_journal(disk: Path) -> tuple[list[Entry] | None, str]:
    """All entries that the journal's files still have, or None and why not."""
    if not shutil.which("journalctl", path=host.SEARCH_PATH):
        return None, "the journal was not looked at: this host has no journalctl"
    copy = disk.with_name("journal")
    copy.mkdir()
    said = run(["debugfs", "-R", f"rdump {JOURNAL} {copy}", str(disk)])
    files = [f"--file={file}" for file in sorted(copy.rglob("*.journal"))]
    if not files:
        return None, f"{JOURNAL} could not be read from the disk: {last_line(said)}"
    fields = "--output-fields=MESSAGE,SYSLOG_IDENTIFIER,_TRANSPORT"
    text = run(["journalctl", *files, "--no-pager", "--quiet", "--output=json", fields], join=False)
    return [entry for line in text.splitlines() if (entry := parse_entry(line))], ""


def parse_entry(line: str) -> Entry | None:
    """One line of journalctl's JSON; None for a message that is no text."""
    document = json.loads(line)
    message = document.get("MESSAGE")
    if not isinstance(message, str):
        return None
    at_s = int(document["__REALTIME_TIMESTAMP"]) / 1e6
    identifier = document.get("SYSLOG_IDENTIFIER")
    return Entry(at_s, str(identifier or ""), message, document.get("_TRANSPORT") == "kernel")


def run(command: Sequence[str], good: tuple[int, ...] = (0,), *, join: bool = True) -> str:
    """Run a tool; returns what it printed. Raises LabError with that when it fails."""
    tool = shutil.which(command[0], path=host.SEARCH_PATH)
    if not tool:
        raise LabError(f"{command[0]} is not installed: apt-get install e2fsprogs qemu-utils")
    limited = ["timeout", str(TOOL_TIMEOUT_S), tool, *command[1:]]
    done = subprocess.run(limited, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in good:
        raise LabError(f"{command[0]} failed (exit {done.returncode}): {last_line(done.stdout + done.stderr)}")
    return done.stdout + done.stderr if join else done.stdout


def last_line(text: str) -> str:
    """The end of what a tool printed."""
    return (text.strip().splitlines() or ["it printed nothing"])[-1]
