"""What differs: between a saved report and the one of now, or between hosts. Pure but for `load` and `save`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click
from pydantic import BaseModel, Field, ValidationError

from plimsoll.box.model import Judgement, Verdict
from plimsoll.fleet.files import real_path, unwritable, write_atomically
from plimsoll.fleet.report import COULD_NOT_TELL, DRIFT, Finding, HostReport, Report, WaiverNote
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


COMPARE_SCHEMA = "plimsoll.compare/1"
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
"""Of a file system, on a kernel's command line: no two hosts have the same."""
_NUMBERS = re.compile(r"\b[0-9a-f]{12,}\b|\d+")

What = Literal["reached", "scope", "control", "fact", "finding"]


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same on both sides; what is the same on both is never one."""

    host: str
    what: What
    """`reached`: the host could not be compared. `scope`: something was left out of the comparison, and said."""
    id: str
    """The control, fact or finding; empty for `reached` and `scope`."""
    field: str
    """What of a control differs: verdict, live, persisted, wanted or decided_by; `control` if it came or went."""
    before: str | None
    """None: it was not there, or not known."""
    after: str | None
    note: str = ""

    def to_json(self) -> dict[str, str | None]:
        """Return the record in the form of the schema plimsoll.compare/1."""
        return dataclasses.asdict(self)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 3 for what could not be compared, 2 for a control or fact (`strict`: a finding too), else 0."""
        unknown = self.field == "verdict" and Verdict.UNKNOWN in (self.before, self.after)
        if self.what == "reached" or unknown:
            return COULD_NOT_TELL
        drift = self.what in ("control", "fact") or (strict and self.what == "finding")
        return DRIFT if drift else 0


def exit_code(differences: Iterable[Difference], *, strict: bool = False) -> int:
    """Return the worst of the differences: 3 before 2 before 0."""
    return max((difference.exit_code(strict=strict) for difference in differences), default=0)


def to_json(differences: Sequence[Difference]) -> dict[str, Any]:
    """Return the document of the schema plimsoll.compare/1."""
    return {"schema": COMPARE_SCHEMA, "differences": [difference.to_json() for difference in differences]}


# --- comparing --------------------------------------------------------------------------------------


def against_report(saved: Report, now: Report) -> tuple[Difference, ...]:
    """Return what differs from a saved report, host by host.

    A host that is in one of them only is named: one that the saved report lacks could not be compared, one
    that was not asked for this time was left out. A box calls itself by its host name, which need not be the
    one in the inventory: its own report is compared with the only host of this run, and that is said.
    """
    before = {host.name: host for host in saved.hosts}
    found = list(_renamed(before, now.hosts))
    for host in now.hosts:
        found += compare(before[host.name], host) if host.name in before else [_not_saved(host)]
    names = {host.name for host in now.hosts}
    return *found, *(_not_looked_at(name) for name in before if name not in names)


def _renamed(before: dict[str, HostReport], now: Sequence[HostReport]) -> Iterator[Difference]:
    """Give a box's own report, the only one, the name of the only host of this run."""
    if len(before) != 1 or len(now) != 1 or now[0].name in before:
        return
    name, own = next(iter(before.items()))
    if own.reached and not own.facts:
        before.clear()
        before[now[0].name] = own
        yield Difference(now[0].name, "scope", "", "", None, None, f"the saved report is the one of a box named {name}")


def _not_saved(host: HostReport) -> Difference:
    state = "reached" if host.reached else "not reached"
    return Difference(host.name, "reached", "", "", None, state, "is not in the saved report: not compared")


def _not_looked_at(name: str) -> Difference:
    return Difference(name, "scope", "", "", None, None, "is in the saved report and was not looked at this time")


def against_host(reference: HostReport, others: Iterable[HostReport]) -> tuple[Difference, ...]:
    """Return what is different on each of the other hosts from one of the same run; the reference itself is left out.

    Values that were chosen for each host by its size or name are differences too: whether they should be is
    the reader's to say. Only the UUIDs in facts are none.
    """
    others = [host for host in others if host.name != reference.name]
    return tuple(found for host in others for found in compare(_without_uuids(reference), _without_uuids(host)))


def _without_uuids(host: HostReport) -> HostReport:
    facts = {name: value and _UUID.sub("(a UUID)", value) for name, value in host.facts.items()}
    return dataclasses.replace(host, facts=facts)


def compare(before: HostReport, after: HostReport) -> tuple[Difference, ...]:
    """Return what differs between two reports, each of one host.

    What moves by itself does not count: the reason of a verdict, which may hold a process number or an amount of
    memory, the line that decides where it is still the same file, and numbers in what a finding has seen.
    """
    if not (before.reached and after.reached):
        note = "; ".join(host.problem or "was not reached" for host in (before, after) if not host.reached)
        said = ["reached" if host.reached else "not reached" for host in (before, after)]
        return (Difference(after.name, "reached", "", "", said[0], said[1], note),)
    return *_controls(before, after), *_beyond_controls(before, after)


def _controls(before: HostReport, after: HostReport) -> Iterator[Difference]:
    old, new = ({j.id: j for j in host.controls} for host in (before, after))
    for name in dict.fromkeys([*new, *old]):
        yield from _control(after.name, old.get(name), new.get(name))


def _control(host: str, old: Judgement | None, new: Judgement | None) -> Iterator[Difference]:
    if old is not None and new is not None:
        was, now, note = _fields(old), _fields(new), new.reason
        for field in was:
            if was[field] != now[field]:
                yield Difference(host, "control", new.id, field, was[field], now[field], note)
                note = ""
    elif new is not None:
        yield Difference(host, "control", new.id, "control", None, new.verdict, "is new")
    elif old is not None:
        yield Difference(host, "control", old.id, "control", old.verdict, None, "is no longer looked at")


def _fields(judgement: Judgement) -> dict[str, str | None]:
    return {
        "verdict": judgement.verdict.value,
        "live": _comparable(judgement.live),
        "persisted": _comparable(judgement.persisted),
        "wanted": _comparable(judgement.wanted),
        "decided_by": _comparable(judgement.decided_by.file if judgement.decided_by else None),
    }


def _comparable(text: str | None) -> str | None:
    """Return text as it is after it was saved: a file name that is not UTF-8 has no form in JSON to go back to."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _beyond_controls(before: HostReport, after: HostReport) -> Iterator[Difference]:
    lacking = [whose for whose, host in (("before", before), ("now", after)) if not host.facts]
    if lacking:
        note = f"the report of {' and '.join(lacking)} holds verdicts only: no facts and findings were compared"
        yield Difference(after.name, "scope", "", "", None, None, note)
        return
    for name in sorted({*before.facts, *after.facts}):
        was, now = (_comparable(host.facts.get(name)) for host in (before, after))
        if was != now:
            yield Difference(after.name, "fact", name, "", was, now)
    yield from _findings(before, after)


def _findings(before: HostReport, after: HostReport) -> Iterator[Difference]:
    gone = Counter(map(_key, before.findings))
    for finding in after.findings:
        if gone[_key(finding)] > 0:
            gone[_key(finding)] -= 1
        else:
            note = f"{finding.title}{_unseen(before, 'before')}"
            yield Difference(after.name, "finding", finding.id, "", None, _comparable(finding.seen), note)
    for finding in before.findings:
        if gone[_key(finding)] > 0:
            gone[_key(finding)] -= 1
            note = f"{finding.title}{_unseen(after, 'now')}"
            yield Difference(after.name, "finding", finding.id, "", _comparable(finding.seen), None, note)


def _key(finding: Finding) -> tuple[str, str | None, str]:
    """Return what a finding is recognised by: process numbers and the ids of containers are new after a restart."""
    place = finding.place.file if finding.place else None
    return finding.id, _comparable(place), _NUMBERS.sub("#", _comparable(finding.seen) or "")


def _unseen(host: HostReport, when: str) -> str:
    return f" (not everything could be looked at {when}: {'; '.join(host.not_seen)})" if host.not_seen else ""


# --- the file ---------------------------------------------------------------------------------------


class ReportFileError(click.ClickException):
    """A saved report cannot be used; nothing was written."""


class _Host(BaseModel):
    reached: bool
    problem: str = ""
    controls: tuple[Judgement, ...]
    findings: tuple[Finding, ...] = ()
    not_seen: tuple[str, ...] = ()
    facts: dict[str, str | None] = {}
    took_ms: int = 0


class _Document(BaseModel):
    """The types of a report, which `Report.from_json` takes on trust; keys of a later version are left out."""

    schema_: Literal["plimsoll.audit/1"] = Field(alias="schema")
    taken: str = ""
    hosts: dict[str, _Host]
    waivers: tuple[WaiverNote, ...] = ()


def load(path: Path) -> Report:
    """Read a report that `save` wrote, or what `plimsoll verify --json` said; raises ReportFileError."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ReportFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        advice = "give a file of `plimsoll audit --save FILE` or `plimsoll verify --json`"
        raise ReportFileError(f"{path}: is no saved report: {printable(str(error))}; {advice}") from None


def parse(content: bytes) -> Report:
    """Return the report that a document holds; raises ValueError, saying what is wrong with it in one line."""
    try:
        # a half of a character, which a file name that is not UTF-8 leaves behind, is JSON and no text
        text = json.dumps(json.loads(content), ensure_ascii=False).encode("utf-8", "replace")
        document = _Document.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "the document"
        raise ValueError(f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    return Report.from_json(document.model_dump(by_alias=True))


def check_target(path: Path) -> None:
    """Raise ReportFileError unless a report may be written to `path`: a new or empty file, or an earlier report."""
    problem = unwritable(path)
    if problem:
        raise ReportFileError(f"{path}: {problem}")
    try:
        content = path.read_bytes()
        if content:
            parse(content)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReportFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ReportFileError(f"{path}: holds something else than a saved report: name another file") from None


def save(report: Report, path: Path) -> None:
    """Write a report as a whole or not at all; raises ReportFileError.

    A new file is for its owner only (0600): it says which protections every box lacks, and holds command lines.
    One that is there keeps its mode and owner, and a link to one stays a link.
    """
    path = real_path(path)
    check_target(path)
    try:
        write_atomically(path, json.dumps(report.to_json(), indent=1) + "\n")
    except OSError as error:
        raise ReportFileError(f"{path}: cannot be written: {error.strerror or error}") from None
