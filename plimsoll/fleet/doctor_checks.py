"""What `plimsoll doctor` finds, and the programs that it asks."""

from __future__ import annotations

import enum
import os
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DOCTOR_SCHEMA = "plimsoll.doctor/1"
TOOL_TIMEOUT_S = 20


class Health(enum.StrEnum):
    """How a check came out."""

    GOOD = "good"
    NOTE = "note"
    """It works; one should know."""
    BAD = "bad"
    UNKNOWN = "unknown"
    INVALID = "invalid"
    """A file of the operator's cannot be used."""


EXIT_CODES = {Health.GOOD: 0, Health.NOTE: 0, Health.BAD: 2, Health.UNKNOWN: 3, Health.INVALID: 4}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    subject: str
    health: Health
    said: str
    advice: str = ""
    """What to do, empty where nothing is to be done."""
    hosts: tuple[str, ...] = ()
    """Whom it is about; nobody for this machine itself."""

    def to_json(self) -> dict[str, str | list[str]]:
        """Return it in the form of the schema plimsoll.doctor/1."""
        return {**vars(self), "health": str(self.health), "hosts": list(self.hosts)}


def exit_code(checks: Iterable[Check]) -> int:
    """Return 4 for a file that is invalid, 3 for what could not be told, 2 for what has to be mended, else 0."""
    return max((EXIT_CODES[check.health] for check in checks), default=0)


def grouped(checks: Sequence[Check]) -> list[Check]:
    """Return the checks with those that say the same of several hosts made one, in the order of their subjects."""
    hosts: dict[Check, list[str]] = {}
    for check in checks:
        hosts.setdefault(replace(check, hosts=()), []).extend(check.hosts)
    subjects = list(dict.fromkeys(check.subject for check in checks))
    made = [replace(check, hosts=tuple(names)) for check, names in hosts.items()]
    return sorted(made, key=lambda check: subjects.index(check.subject))


class Ran(NamedTuple):
    """What a program said, and how it ended."""

    code: int
    out: str
    err: str


def ran(*command: str, **environment: str) -> Ran:
    """Run a program with no input; one that is missing or too slow has the code 127 and says so on `err`."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_S,
            check=False,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(127, "", str(error))
    return Ran(done.returncode, done.stdout, done.stderr)
