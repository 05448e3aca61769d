"""What an audit found, as data: one report over many hosts, to be shown, saved and compared. Pure."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.box import errors
from plimsoll.box.judge import exit_code
from plimsoll.box.model import AUDIT_SCHEMA, Judgement, Place, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COULD_NOT_TELL = errors.UNKNOWN
DRIFT = errors.DRIFT


class FindingKind(enum.StrEnum):
    """What is wrong with something that Plimsoll does not manage."""

    FALSE_PROTECTION = "false_protection"
    """It looks as if it kept the box reachable, and does not."""
    KNOWN_BAD = "known_bad"
    """This kernel, driver or firmware, or this combination, was seen to fail."""


@dataclass(frozen=True)
class Finding:
    """Something on a host that no control covers, and that its owner should know of."""

    id: str
    kind: FindingKind
    title: str
    seen: str
    """What was found on this host, with its file and line, container or process."""
    why: str
    evidence: str
    source: str
    dated: str
    """ISO date of the evidence."""
    advice: str
    place: Place | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record in the form of the audit schema."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Read a record back; raises ValueError, TypeError or KeyError for one that this version does not know."""
        place = Place(**data["place"]) if data.get("place") else None
        return cls(**{**data, "kind": FindingKind(data["kind"]), "place": place})


@dataclass(frozen=True)
class HostReport:
    """What is known of one host."""

    name: str
    reached: bool
    problem: str = ""
    """Why the host was not reached, or why what it said could not be used."""
    controls: tuple[Judgement, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_seen: tuple[str, ...] = ()
    """What could not be looked at, and why, beyond single controls."""
    facts: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """What Plimsoll depends on and does not set: kernel, driver, firmware, versions, other killers."""
    took_ms: int = 0
    """From the first attempt to connect to the last byte."""

    def count(self, verdict: Verdict) -> int:
        """Return how many controls have a verdict."""
        return sum(1 for judgement in self.controls if judgement.verdict is verdict)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 3 if something could not be told, 2 for drift (`strict`: pending and findings too), else 0.

        Nothing judged is nothing told.
        """
        if not self.reached or not self.controls:
            return COULD_NOT_TELL
        code = exit_code(self.controls, strict=strict)
        return DRIFT if code == 0 and strict and self.findings else code

    def to_json(self) -> dict[str, Any]:
        """Return the record in the form of the audit schema; the name is its key there."""
        return {
            "reached": self.reached,
            "problem": self.problem,
            "controls": [j.to_json() for j in self.controls],
            "findings": [f.to_json() for f in self.findings],
            "not_seen": list(self.not_seen),
            "facts": dict(self.facts),
            "took_ms": self.took_ms,
        }

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> HostReport:
        """Read a record back; a box's own report, which has fewer keys, is one too."""
        return cls(
            name=name,
            reached=bool(data["reached"]),
            problem=str(data.get("problem", "")),
            controls=tuple(_judgement(control) for control in data["controls"]),
            findings=tuple(Finding.from_json(finding) for finding in data.get("findings", ())),
            not_seen=tuple(data.get("not_seen", ())),
            facts=dict(data.get("facts", {})),
            took_ms=int(data.get("took_ms", 0)),
        )


def _judgement(data: Mapping[str, Any]) -> Judgement:
    place = Place(**data["decided_by"]) if data["decided_by"] else None
    return Judgement(**{**data, "verdict": Verdict(data["verdict"]), "decided_by": place})


@dataclass(frozen=True)
class WaiverNote:
    """A waiver that does not do what it was written for."""

    control: str
    hosts: tuple[str, ...]
    until: str
    problem: str
    """`expired`, or `unused`: no host that was looked at deviates."""


@dataclass(frozen=True)
class Report:
    """One audit."""

    taken: str
    """When it began: ISO date and time with its offset."""
    hosts: tuple[HostReport, ...]
    waivers: tuple[WaiverNote, ...] = ()

    def exit_code(self, *, strict: bool = False) -> int:
        """Return the worst of the hosts: 3 before 2 before 0."""
        return max((host.exit_code(strict=strict) for host in self.hosts), default=0)

    def to_json(self) -> dict[str, Any]:
        """Return the document of the schema plimsoll.audit/1."""
        return {
            "schema": AUDIT_SCHEMA,
            "taken": self.taken,
            "hosts": {host.name: host.to_json() for host in self.hosts},
            "waivers": [dataclasses.asdict(note) for note in self.waivers],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Read a document back, the output of `plimsoll verify --json` included.

        Raises ValueError, TypeError, KeyError or AttributeError for what is none.
        """
        if data["schema"] != AUDIT_SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, expected {AUDIT_SCHEMA}")
        notes: Sequence[Mapping[str, Any]] = data.get("waivers", ())
        return cls(
            taken=str(data.get("taken", "")),
            hosts=tuple(HostReport.from_json(name, host) for name, host in data["hosts"].items()),
            waivers=tuple(WaiverNote(**{**note, "hosts": tuple(note["hosts"])}) for note in notes),
        )
