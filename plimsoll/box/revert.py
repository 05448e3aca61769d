"""Put everything back as the ledger has it: with no network, no operator's machine, from the console if need be.

A file that somebody changed after us is kept, and said: their change is not ours to throw away. What was
put back leaves the ledger, so that reverting twice is reverting once; what could not be stays in it.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plimsoll.box import actions, files, ledger, managers
from plimsoll.box.apply import observe_file
from plimsoll.box.host import Host

Entry = Mapping[str, Any]
ORDER = ("file", "directory", "sysctl", "cgroup", "score", "unit", "package")


def selected(entries: list[dict[str, Any]], layer: str | None) -> list[dict[str, Any]]:
    """Return the entries of a layer (all for None), the latest first, by kind in the order of `ORDER`.

    The program itself stays until everything else is back, or nobody could revert what failed.
    """
    chosen = [e for e in reversed(entries) if layer in (None, e["layer"])]
    return sorted(chosen, key=lambda e: ORDER.index(e["kind"]))


def describe(entry: Entry) -> str:
    """Return one line that says what putting this entry back means."""
    old = entry["old"]
    key = entry["key"]
    if entry["kind"] == "file":
        return f"remove {key}" if old.get("absent") else f"restore {key}"
    if entry["kind"] == "unit":
        return f"{key}: {old['enablement'] or 'no unit file'}, {old['activity']}"
    if entry["kind"] in ("directory", "package"):
        return f"remove the {entry['kind']} {key}"
    return f"{key} = {old}"


def revert(host: Host, layer: str | None) -> Iterator[tuple[str, str]]:
    """Put back the entries of a layer, or all, and yield `(outcome, line)`; outcomes are done, kept and failed.

    Raises LedgerError before anything is changed.
    """
    entries = ledger.load(host)
    chosen = selected(entries, layer)
    back: list[dict[str, Any]] = []
    after: set[str] = set()
    for entry in chosen:
        if entry["kind"] not in ("file", "directory"):
            yield from _after(host, after)
            after = set()
        outcome, line = _put_back(host, entry)
        if outcome == "done" or not line:
            back.append(entry)
        if outcome == "done" and entry["kind"] == "file":
            after.update(entry["after"])
        if line:
            yield outcome, line
    yield from _after(host, after)
    remaining = [e for e in entries if e not in back]
    ledger.save(host, remaining)


def _after(host: Host, names: set[str]) -> Iterator[tuple[str, str]]:
    """Carry out what has to follow a changed file, each step once, in the order of actions."""
    steps = [name.split() for name in names]
    for step in sorted(steps, key=lambda s: actions.known(s).order):
        try:
            yield "done", _follow(host, step)
        except actions.ActionError as error:
            yield "failed", str(error)


def _follow(host: Host, step: list[str]) -> str:
    if step[0] == "user-managers":
        return managers.restore_scores(host)
    return actions.known(step).perform(host, *step[1:])


def _put_back(host: Host, entry: Entry) -> tuple[str, str]:
    try:
        return _PUT_BACK[entry["kind"]](host, entry)
    except (OSError, actions.ActionError) as error:
        return "failed", f"{describe(entry)}: {error}"


def _file(host: Host, entry: Entry) -> tuple[str, str]:
    path, old = entry["key"], entry["old"]
    now = observe_file(host, path)
    if now == old:
        return "done", ""
    if not now.get("absent") and _hash_of(now) != entry["ours"]:
        return "kept", f"{path} was changed by somebody else since; it is left as it is"
    real = host.path(path)
    if old.get("absent"):
        os.unlink(real)
        files.sync_directory(os.path.dirname(real))
        return "done", f"removed {path}"
    if "link" in old:
        temporary = f"{real}{files.TEMPORARY_SUFFIX}"
        os.symlink(old["link"], temporary)
        files.put_in_place(temporary, real)
    else:
        owner = (int(old["uid"]), int(old["gid"]))
        files.write_atomically(real, base64.b64decode(old["content"]), int(old["mode"], 8), owner)
    return "done", f"restored {path}"


def _hash_of(observed: Entry) -> str:
    if "link" in observed:
        return f"link to {observed['link']}"
    return hashlib.sha256(base64.b64decode(observed["content"])).hexdigest()


def _directory(host: Host, entry: Entry) -> tuple[str, str]:
    path = entry["key"]
    if not host.exists(path):
        return "done", ""
    if host.names(path):
        return "kept", f"the directory {path} holds files of somebody else; it is left"
    os.rmdir(host.path(path))
    return "done", f"removed the directory {path}"


def _value(action: str) -> Callable[[Host, Entry], tuple[str, str]]:
    def put_back(host: Host, entry: Entry) -> tuple[str, str]:
        if entry["old"] is None or (action == "cgroup" and not host.exists(entry["key"])):
            return "done", ""
        return "done", actions.ACTIONS[action].perform(host, entry["key"], str(entry["old"]))

    return put_back


def _unit(host: Host, entry: Entry) -> tuple[str, str]:
    unit, old = entry["key"], entry["old"]
    now = actions.unit_state(host, unit)
    if now == old or not old["enablement"]:
        return "done", ""
    for verb in _verbs(now, old):
        ran = host.run("systemctl", verb, "--", unit, timeout_s=90)
        if ran.code != 0:
            raise actions.ActionError(f"systemctl {verb}: {ran.problem}")
    return "done", describe(entry)


def _verbs(now: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    verbs = []
    if now["enablement"] == "masked":
        verbs.append("unmask")
    if old["enablement"] in ("enabled", "disabled", "masked") and now["enablement"] != old["enablement"]:
        verbs.append({"enabled": "enable", "disabled": "disable", "masked": "mask"}[old["enablement"]])
    if (now["activity"] == "active") != (old["activity"] == "active"):
        verbs.append("start" if old["activity"] == "active" else "stop")
    return verbs


def _package(host: Host, entry: Entry) -> tuple[str, str]:
    return "done", actions.purge(host, entry["key"])


_PUT_BACK: dict[str, Callable[[Host, Entry], tuple[str, str]]] = {
    "file": _file,
    "directory": _directory,
    "sysctl": _value("sysctl"),
    "cgroup": _value("cgroup"),
    "unit": _unit,
    "package": _package,
}
