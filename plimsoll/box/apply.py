"""Carry out the plan of one layer on the host: all files or none, and nothing before it is recorded.

Order: record in the ledger what all files and actions will overwrite, stage every new file beside its
target, rename the staged files into place, act. A reset at any point leaves every file whole, and the
ledger ahead of the change.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box import actions, declarations, files, ledger, managers, revert
from plimsoll.box.host import Host
from plimsoll.box.model import PLAN_SCHEMA


def apply(plan: Mapping[str, Any], host: Host, program: bytes = b"") -> Iterator[str]:
    """Carry out a plan and yield a line for everything done.

    `program` is the content of a file that the plan marks `program`: the zipapp itself. Raises
    LedgerError, ActionError, Pending or OSError; what was yielded until then was done.
    """
    if plan.get("schema") != PLAN_SCHEMA:
        raise actions.ActionError(f"a plan of schema {plan.get('schema')}, expected {PLAN_SCHEMA}: deploy again")
    layer = plan["layer"]
    steps = [(actions.known(action), list(action[1:])) for action in plan["actions"]]
    entries = ledger.load(host)
    ledger.sweep_staged(host, entries)
    first, rest = _split_fetches(steps)
    yield from _perform(host, layer, entries, first)
    wanted = [_New.of(file, program) for file in plan["files"]]
    _record(host, layer, entries, [*_observed_files(host, wanted), *_observed(host, rest)])
    yield from _write(host, wanted)
    yield from revert.put_back(host, entries, plan.get("put_back", ()))
    yield from _perform(host, layer, entries, rest)
    managers.remember_pending(host, layer, None)


Steps = list[tuple[actions.Action, list[str]]]


def _split_fetches(steps: Steps) -> tuple[Steps, Steps]:
    """A package is fetched before the files of its layer are written: without it they would configure nothing."""
    fetch = actions.ACTIONS["fetch"]
    return [s for s in steps if s[0] is fetch], [s for s in steps if s[0] is not fetch]


def _perform(host: Host, layer: str, entries: list[dict[str, Any]], steps: Steps) -> Iterator[str]:
    for action, arguments in sorted(steps, key=lambda step: step[0].order):
        _record(host, layer, entries, action.observe(host, *arguments))
        try:
            yield action.perform(host, *arguments)
        except actions.Pending as reason:
            managers.remember_pending(host, layer, str(reason))
            raise


def _observed(host: Host, steps: Steps) -> list[dict[str, Any]]:
    return [entry for action, arguments in steps for entry in action.observe(host, *arguments)]


def _record(host: Host, layer: str, entries: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Add entries for things never touched before, and note what we write now; saved before anything is touched."""
    before = ledger.digest(entries)
    for entry in new:
        known = ledger.find(entries, entry["kind"], entry["key"])
        if known is None:
            entries.append({"layer": layer, **entry})
        elif "ours" in entry:
            known["ours"] = list(dict.fromkeys([*known["ours"], *entry["ours"]]))
            known["after"] = entry["after"]
    if ledger.digest(entries) != before:
        ledger.save(host, entries)


# --- files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _New:
    """A file of a plan."""

    path: str
    content: bytes
    mode: int
    after: list[str]
    """The actions that have to follow when it is taken away again."""
    check: str
    """Who is asked whether it does; empty for nobody."""

    @classmethod
    def of(cls, file: Mapping[str, Any], program: bytes) -> "_New":
        content = program if file.get("program") else file["content"].encode()
        return cls(file["path"], content, int(file["mode"], 8), file["after"], file.get("check", ""))


def _observed_files(host: Host, wanted: list[_New]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for file in wanted:
        missing = files.missing_directories(os.path.dirname(host.path(file.path)))
        entries.extend({"kind": "directory", "key": d.removeprefix(host.root), "old": "absent"} for d in missing)
        # a list, because a run can be cut off between this and the new content: both are then ours
        ours = [hashlib.sha256(file.content).hexdigest()]
        old = ledger.observe_file(host, file.path)
        entries.append({"kind": "file", "key": file.path, "old": old, "ours": ours, "after": file.after})
    return entries


def _write(host: Host, wanted: list[_New]) -> Iterator[str]:
    """Stage all files, then put all in place; a failure of the former leaves nothing behind and is raised."""
    staged: list[tuple[_New, str]] = []
    created: list[str] = []
    try:
        for file in wanted:
            path = host.path(file.path)
            created.extend(files.make_directories(os.path.dirname(path)))
            staged.append((file, files.stage(path, file.content, file.mode)))
        for file, temporary in staged:
            _ask(host, file, temporary)
        created.clear()
        for file, temporary in staged:
            files.put_in_place(temporary, host.path(file.path))
            yield f"wrote {file.path}"
    finally:
        for _file, temporary in staged:
            if os.path.exists(temporary):
                os.unlink(temporary)
        for directory in reversed(created):
            os.rmdir(directory)


def _ask(host: Host, file: _New, staged: str) -> None:
    """Raise ActionError for a file that those who read it would not take: nothing of the plan is put in place then."""
    if not file.check:
        return
    if file.check != declarations.SUDOERS:
        raise actions.ActionError(f"unknown check {file.check}: this plimsoll is older than the plan; deploy again")
    if not declarations.includes_sudoers_d(host.text_or_none(declarations.SUDOERS_MAIN) or ""):
        raise actions.ActionError(
            f"{file.path} was not written: {declarations.SUDOERS_MAIN} does not include its directory, or cannot be "
            "read, so that sudo would not see it; add the line `@includedir /etc/sudoers.d` with visudo"
        )
    ran = host.run(_visudo(host), "-c", "-f", staged)
    if ran.code != 0:
        # the line of the fault comes first, and is followed by a picture of it
        said = (ran.err or ran.out).strip().partition("\n")[0] or ran.problem
        raise actions.ActionError(f"{file.path} was not written: visudo -c: {said}")


def _visudo(host: Host) -> str:
    # a plain user's PATH, which a login over SSH may have, lacks it
    return "/usr/sbin/visudo" if host.exists("/usr/sbin/visudo") else "visudo"
