"""The data that travels between operator and host: what is wanted, and what was found.

Everything here is plain and frozen, and survives a trip through JSON, because the same records are
judged on the operator's machine and, from /etc/plimsoll/wanted.json, on the host alone.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # 1 ms of the 40 that reading a host takes, where no day is looked at
    import datetime

WANTED_SCHEMA = "plimsoll.wanted/1"
AUDIT_SCHEMA = "plimsoll.audit/1"
STATE_SCHEMA = "plimsoll.state/1"
PLAN_SCHEMA = "plimsoll.plan/1"

LAYERS = (
    "box",
    "kernel",
    "slices",
    "journald",
    "sshd",
    "user_manager",
    "earlyoom",
    "guard",
    "models",
    "recovery",
    "driver_option",
    "trims",
)
"""The order in which a deploy goes: what others stand on first, what is opt-in last."""

PROGRAM = "/usr/local/lib/plimsoll/plimsoll.pyz"
"""Where a host has the program."""
OWN_UNITS = "plimsoll-"
"""What the names of the units begin with that come with the program."""
GUARDED_LAYER = "sshd"
"""The layer after which nobody might come in again: it is taken back by the host itself unless a login is proven."""
ROLLBACK_DELAY_S = 180
"""Logins of 50 s were seen on a box under memory pressure; a proof may try three times within this."""

State = Mapping[str, Any]
"""The JSON that `plimsoll.box.state.read` returns; see that module for its sections."""


class Kind(enum.StrEnum):
    """The kinds of setting; each has one reader of its live and one of its persisted value."""

    SYSCTL = "sysctl"
    UNIT_PROPERTY = "unit_property"
    MANAGER_PROPERTY = "manager_property"
    UNIT_STATE = "unit_state"
    PACKAGE = "package"
    CONFIG_FILE = "config_file"
    CMDLINE = "cmdline"
    MODULE_OPTION = "module_option"
    SESSION_SCORE = "session_score"
    HEARTBEAT = "heartbeat"
    DECLARATION = "declaration"


class Verdict(enum.StrEnum):
    """What a control is found to be, in order of precedence: the first that applies is said."""

    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"
    WAIVED = "waived"
    SHADOWED = "shadowed"
    PENDING = "pending"
    DRIFTED = "drifted"
    UNPERSISTED = "unpersisted"
    OK = "ok"


BAD = frozenset({Verdict.SHADOWED, Verdict.DRIFTED, Verdict.UNPERSISTED})
"""Verdicts that make verify and audit end with exit code 2."""


@dataclass(frozen=True)
class Waiver:
    """A deviation that somebody answers for, until a day."""

    reason: str
    until: str
    """ISO date, the last day on which it holds."""

    def holds(self, today: datetime.date) -> bool:
        """Say whether the waiver still covers `today`."""
        return today <= today.fromisoformat(self.until)


@dataclass(frozen=True)
class Wanted:
    """One control, resolved for one host: what its value should be, and where that is persisted."""

    id: str
    layer: str
    kind: Kind
    target: str
    """A sysctl key, a unit, a manager, a package, a path or a module, according to `kind`."""
    value: str
    name: str = ""
    """The property of `target`, where it has several."""
    section: str = ""
    """The section of the configuration file that `name` belongs in."""
    file: str = ""
    """The file of ours that persists it; empty where systemd keeps the state itself."""
    waiver: Waiver | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON types, empty fields left out."""
        return {key: value for key, value in _plain(self).items() if value not in ("", None)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wanted:
        """Read a record back.

        Raises ValueError, TypeError or KeyError for a record that this version does not know.
        """
        fields = dict(data)
        fields["kind"] = Kind(fields["kind"])
        if fields.get("waiver") is not None:
            fields["waiver"] = Waiver(**fields["waiver"])
        return cls(**fields)


@dataclass(frozen=True)
class Place:
    """Where a value was decided: a file, and the line in it (1-based; 0 where the file as a whole decides)."""

    file: str
    line: int


@dataclass(frozen=True)
class Judgement:
    """The verdict over one control, with what it was based on."""

    id: str
    layer: str
    verdict: Verdict
    wanted: str
    live: str | None
    persisted: str | None
    decided_by: Place | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the record in the form of the audit schema."""
        return _plain(self)


def _plain(record: Wanted | Judgement) -> dict[str, Any]:
    """Return the fields of a record: `dataclasses.asdict` copies what is in them, and took a sixth of a judging."""
    nested = (Waiver, Place)
    return {key: dict(vars(value)) if isinstance(value, nested) else value for key, value in vars(record).items()}


@dataclass(frozen=True)
class Request:
    """What a state must contain to judge a set of controls; every field is a tuple of names."""

    sysctls: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        """Return the request as JSON types."""
        return {key: list(value) for key, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Read a request back; unknown keys raise TypeError."""
        return cls(**{key: tuple(value) for key, value in data.items()})

    @classmethod
    def for_wanted(cls, wanted: list[Wanted]) -> Request:
        """Return what the judgement of `wanted` needs to be read."""
        unit_kinds = (Kind.UNIT_PROPERTY, Kind.UNIT_STATE, Kind.CMDLINE, Kind.SESSION_SCORE, Kind.HEARTBEAT)
        return cls(
            sysctls=_targets(wanted, Kind.SYSCTL),
            units=_targets(wanted, *unit_kinds),
            files=tuple(sorted({w.file for w in wanted if w.file})),
            packages=_targets(wanted, Kind.PACKAGE),
            modules=_targets(wanted, Kind.MODULE_OPTION),
        )

    def merged(self, other: Request) -> Request:
        """Return a request that covers both."""
        mine, theirs = vars(self), vars(other)
        return Request(**{key: tuple(sorted({*mine[key], *theirs[key]})) for key in mine})


def _targets(wanted: list[Wanted], *kinds: Kind) -> tuple[str, ...]:
    return tuple(sorted({w.target for w in wanted if w.kind in kinds}))
