"""Put everything back as the ledger has it: with no network, no operator's machine, from the console if need be.

First it is decided, from what the host has now, what each entry of the ledger asks for; then that is done, in
the order of `_PHASES`. So a dry run says exactly what a real one does, a second one finds nothing to do, and one
that was cut off can be repeated. A file that somebody changed after us is kept, and said: their change is not
ours to throw away.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box import actions, files, ledger, managers
from plimsoll.box.host import Host
from plimsoll.box.resolve_sysctl import sysctl_key

Entry = dict[str, Any]
PROGRAM_LAYER = "box"
"""It holds the program itself, which goes last: without it nobody could put back what failed."""
NOTHING = "nothing to put back"
"""What a person is told where the ledger asks for nothing."""
_PHASES = ("unit of ours", "file", "link", "directory", "sysctl", "cgroup", "unit", "package")
"""A unit that came with us is switched off while its file is still there; one that was there before is set back
once its files are."""


@dataclass(frozen=True)
class Step:
    """One thing to be put back: a line that says what, and how; a step without a deed is kept as it is."""

    line: str
    act: Callable[[], object] | None = None
    removes: str = ""
    """The path that is gone afterwards."""

    @property
    def outcome(self) -> str:
        """Return `done` or `kept`."""
        return "kept" if self.act is None else "done"


def preview(host: Host, layer: str | None) -> list[tuple[str, str]]:
    """Return the `(outcome, line)` that a revert of a layer, or of all, would yield now; raises LedgerError."""
    return [(step.outcome, step.line) for group in _groups(host, ledger.load(host), layer) for _, step in group]


def revert(host: Host, layer: str | None) -> Iterator[tuple[str, str]]:
    """Put back the entries of a layer, or all, and yield `(outcome, line)`; outcomes are done, kept and failed.

    What was put back leaves the ledger, what failed stays in it, and with it the program. Raises LedgerError
    before anything is changed.
    """
    entries = ledger.load(host)
    ledger.sweep_staged(host, entries)
    stay: list[Entry] = [e for e in entries if not _is_chosen(e, layer)]
    has_failed = False
    for group in _groups(host, entries, layer):
        if has_failed and _is_of_program(group):
            yield "kept", "the program itself, until what failed is put right: run this again then"
            stay.extend(e for e in entries if _goes_last(e))
            break
        for owners, step in group:
            failure = _perform(step)
            has_failed = has_failed or bool(failure)
            yield ("failed", f"{step.line}: {failure}") if failure else (step.outcome, step.line)
            stay.extend(e for e in owners if failure or (step.act is None and _is_of_use(e, layer)))
    ledger.save(host, [e for e in entries if any(e is s for s in stay)])


def put_back(host: Host, entries: list[Entry], paths: Sequence[str]) -> Iterator[str]:
    """Put single files back that a layer no longer writes, in the middle of an apply, and yield what was done.

    What is settled is taken out of `entries` and of the ledger; raises ActionError for what failed.
    """
    chosen = [e for e in entries if e["kind"] == "file" and e["key"] in paths]
    stay: list[Entry] = []
    for owners, step in _steps(host, chosen, set()):
        failure = _perform(step)
        if failure:
            raise actions.ActionError(f"{step.line}: {failure}")
        stay.extend(e for e in owners if step.act is None and _has_content(e))
        yield step.line
    gone = [e for e in chosen if not any(e is s for s in stay)]
    if gone:
        entries[:] = [e for e in entries if not any(e is g for g in gone)]
        ledger.save(host, entries)


def _perform(step: Step) -> str:
    """Carry a step out; return what went wrong, empty if nothing did."""
    try:
        if step.act is not None:
            step.act()
    except (OSError, actions.ActionError) as error:
        return str(error)
    return ""


def _is_of_use(entry: Entry, layer: str | None) -> bool:
    """Say whether an entry stays though nothing was done: it holds old content, or another layer still fills it."""
    return _has_content(entry) or (entry["kind"] == "directory" and layer is not None)


def _has_content(entry: Entry) -> bool:
    """Say whether the ledger holds something that would be lost with the entry."""
    return entry["kind"] == "file" and not entry["old"].get("absent")


Group = list[tuple[list[Entry], Step]]
"""Steps with the ledger's entries that each of them settles."""


def _is_chosen(entry: Entry, layer: str | None) -> bool:
    return layer in (None, entry["layer"])


def _goes_last(entry: Entry) -> bool:
    return bool(entry["layer"] == PROGRAM_LAYER) and _phase(entry) != _PHASES[0]


def _is_of_program(group: Group) -> bool:
    return any(_goes_last(entry) for owners, _step in group for entry in owners)


def _groups(host: Host, entries: list[Entry], layer: str | None) -> Iterator[Group]:
    """Yield the steps of all chosen layers, and then those of the program's own.

    Its watchers are switched off with the former, or they would raise an alarm over what is being put back.
    """
    chosen = [e for e in reversed(entries) if _is_chosen(e, layer)]
    removed: set[str] = set()
    for of_program in (False, True):
        group = list(_steps(host, [e for e in chosen if _goes_last(e) == of_program], removed))
        if group:
            yield group


def _steps(host: Host, entries: list[Entry], removed: set[str]) -> Iterator[tuple[list[Entry], Step]]:
    after: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: _PHASES.index(_phase(e))):
        if _phase(entry) not in _PHASES[:4]:
            yield from _following(host, after)
            after.clear()
        step = _directory(host, entry, removed) if entry["kind"] == "directory" else _DECIDE[entry["kind"]](host, entry)
        if step is None or step.act is not None:
            # also for a file that is back already: a revert that was cut off may not have come to what follows
            for action in entry.get("after", ()):
                after.setdefault(action, []).append(entry)
        if step is not None:
            removed.add(step.removes)
            yield [entry], step
    yield from _following(host, after)


def _phase(entry: Entry) -> str:
    is_ours = entry["kind"] == "unit" and not entry["old"]["enablement"]
    return "unit of ours" if is_ours else str(entry["kind"])


def _following(host: Host, after: Mapping[str, list[Entry]]) -> Iterator[tuple[list[Entry], Step]]:
    """Yield what has to follow changed files, each action once, in the order of actions."""
    for name, owners in sorted(after.items(), key=lambda item: actions.known(item[0].split()).order):
        yield list(owners), Step(f"then {name}", _follow(host, name.split()))


def _follow(host: Host, action: list[str]) -> Callable[[], object]:
    if action[0] == "user-managers":
        return lambda: managers.restore_scores(host)
    return lambda: actions.known(action).perform(host, *action[1:])


# --- what one entry asks for; None: it is as it was -------------------------------------------------


def _file(host: Host, entry: Entry) -> Step | None:
    path, old = entry["key"], entry["old"]
    now = ledger.observe_file(host, path)
    if now == old:
        return None
    if not now.get("absent") and _hash_of(now) not in entry["ours"]:
        kept = "; what it was before stays in the ledger" if not old.get("absent") else ""
        return Step(f"{path} was changed by somebody else since and is left as it is{kept}")
    if old.get("absent"):
        return Step(f"remove {path}", lambda: _remove(host.path(path)), removes=path)
    return Step(f"restore {path}", lambda: _restore(host.path(path), old))


def _remove(path: str) -> None:
    os.unlink(path)
    files.sync_directory(os.path.dirname(path))


def _restore(path: str, old: Mapping[str, Any]) -> None:
    if "link" not in old:
        owner = (int(old["uid"]), int(old["gid"]))
        files.write_atomically(path, base64.b64decode(old["content"]), int(old["mode"], 8), owner)
        return
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.link{files.TEMPORARY_SUFFIX}"
    os.symlink(old["link"], temporary)
    files.put_in_place(temporary, path)


def _hash_of(observed: Mapping[str, Any]) -> str:
    if "link" in observed:
        return f"link to {observed['link']}"
    return hashlib.sha256(base64.b64decode(observed["content"])).hexdigest()


def _directory(host: Host, entry: Entry, removed: set[str]) -> Step | None:
    path = entry["key"]
    if not host.exists(path):
        return None
    if {f"{path}/{name}" for name in host.names(path)} - removed:
        return Step(f"the directory {path} holds files of somebody else and is left")
    return Step(f"remove the directory {path}", lambda: os.rmdir(host.path(path)), removes=path)


def _value(action: str, path_of: Callable[[str], str]) -> Callable[[Host, Entry], Step | None]:
    def decide(host: Host, entry: Entry) -> Step | None:
        key, old = entry["key"], entry["old"]
        now = host.text_or_none(path_of(key))
        if old is None or now is None or now.split() == old.split() or now.split()[-1:] == old.split():
            return None
        return Step(f"{key} = {old}", lambda: actions.ACTIONS[action].perform(host, key, old))

    return decide


def _unit(host: Host, entry: Entry) -> Step | None:
    unit, old = entry["key"], entry["old"]
    now = actions.unit_state(host, unit)
    verbs = _verbs(now, old)
    if not verbs:
        return None
    if not old["enablement"]:
        return Step(f"{unit}: {' and '.join(verbs)}, it was not there", lambda: actions.retire_unit(host, unit, verbs))
    if not now["enablement"]:
        return Step(f"{unit} is not on this host any more")
    line = f"{unit}: {old['enablement']}, {old['activity']}"
    return Step(line, lambda: actions.set_unit(host, unit, verbs))


def _verbs(now: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    """Return the systemctl verbs that lead from one state of a unit to the other."""
    verbs = []
    if now["enablement"] == "masked" != old["enablement"]:
        verbs.append("unmask")
    wanted = old["enablement"] or "disabled"
    if wanted in ("enabled", "disabled", "masked") and now["enablement"] not in (wanted, "static", ""):
        verbs.append({"enabled": "enable", "disabled": "disable", "masked": "mask"}[wanted])
    if (now["activity"] == "active") != (old["activity"] == "active"):
        verbs.append("start" if old["activity"] == "active" else "stop")
    return verbs


def _package(host: Host, entry: Entry) -> Step | None:
    package, old = entry["key"], entry["old"]
    if actions.package_status(host, package) == old:
        return None
    return Step(f"remove the package {package}", lambda: actions.remove_package(host, package, old))


_DECIDE: dict[str, Callable[[Host, Entry], Step | None]] = {
    "file": _file,
    "link": _file,
    "sysctl": _value("sysctl", lambda key: f"/proc/sys/{sysctl_key(key)}"),
    "cgroup": _value("cgroup", lambda path: path),
    "unit": _unit,
    "package": _package,
}
