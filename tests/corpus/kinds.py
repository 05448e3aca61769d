"""The whole corpus: what is asked of each real program, and how it is asked."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.corpus import managers, sshd, sysctl, units
from tests.corpus.case import Case

GUEST = Path(__file__).parent / "guest.py"
BATCHES: Mapping[str, Callable[[], list[list[Case]]]] = {
    "sysctl": lambda: [sysctl.cases()],
    "sshd": lambda: [sshd.cases()],
    "units": units.batches,
    "managers": lambda: [[c for c in managers.cases() if c.ask["manager"] == name] for name in managers.SECTION],
}
"""The kind -> its arrangements, those together that are laid out by one call."""
OWN_MOUNTS = ("sysctl", "sshd")
"""Kinds whose program is asked where nobody else sees the files: the machine's own stay as they are."""


def cases(kind: str) -> list[Case]:
    """Return every arrangement of one kind."""
    return [case for batch in BATCHES[kind]() for case in batch]


def question(kind: str) -> str:
    """Return the standard input of the program that lays the arrangements out."""
    return json.dumps({"kind": kind, "batches": [[case.to_json() for case in batch] for batch in BATCHES[kind]()]})


def command(kind: str, program: str) -> str:
    """Return the shell command that runs it, where it was put as `program`."""
    apart = "unshare --mount --propagation private " if kind in OWN_MOUNTS else ""
    return f"{apart}python3 {program}"
