"""What was there before the first touch, so that everything can be put back.

`/var/lib/plimsoll/ledger.json` (0600) holds one entry a thing touched, in the order of first touch. The
first value stays for ever: a second run, or a later version, adds entries and changes only `ours`, the
hashes of what we wrote or were about to, by which a later foreign change is told from our own, and `after`.
"""

import base64
import json
import os
import stat
from typing import Any

from plimsoll.box.errors import USAGE, BoxError
from plimsoll.box.files import sweep, sync_directory, write_atomically
from plimsoll.box.host import Host

PATH = "/var/lib/plimsoll/ledger.json"
SCHEMA = "plimsoll.ledger/1"
KINDS = ("file", "link", "directory", "sysctl", "cgroup", "unit", "package")
FIELDS = {"kind", "key", "layer", "old"}


class LedgerError(BoxError):
    """The ledger is there but cannot be trusted; nothing may be changed on the strength of it."""

    exit_code = USAGE


def digest(entries: list[dict[str, Any]]) -> str:
    """Return the checksum that guards the entries against a torn or edited file."""
    import hashlib  # noqa: PLC0415  # 2 ms of 60, which a reading of a host without a ledger is spared

    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def load(host: Host) -> list[dict[str, Any]]:
    """Return the entries, oldest first; an absent ledger has none.

    Raises LedgerError for a ledger that is damaged, unreadable, or of a version that this one does not know.
    """
    try:
        text = host.text(PATH)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerError(f"{PATH}: {error.strerror}") from error
    try:
        return _checked(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(
            f"{PATH}: damaged ({error}); nothing was changed. Restore it from a backup, or move it away to "
            "start anew: what was there before Plimsoll is then no longer known."
        ) from error


def _checked(data: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # whatever the file holds is checked here
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
    entries: list[dict[str, Any]] = data["entries"]
    if digest(entries) != data["sha256"]:
        raise ValueError("its checksum does not match its entries")
    for entry in entries:
        if entry["kind"] not in KINDS or not entry.keys() >= FIELDS:
            raise ValueError(f"an entry that this version does not know, of kind {entry['kind']}")
    return entries


def save(host: Host, entries: list[dict[str, Any]]) -> None:
    """Write the entries, whole or not at all, and wait until they are on disk; raises OSError.

    With nothing left to put back there is no ledger.
    """
    if not entries:
        _remove(host)
        return
    text = json.dumps({"schema": SCHEMA, "sha256": digest(entries), "entries": entries}, indent=1)
    os.makedirs(host.path(os.path.dirname(PATH)), mode=0o755, exist_ok=True)
    sweep(host.path(PATH))
    write_atomically(host.path(PATH), text.encode(), mode=0o600)


def _remove(host: Host) -> None:
    path = host.path(PATH)
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return
    sweep(path)
    if os.path.lexists(path):
        os.unlink(path)
        sync_directory(directory)
    if not os.listdir(directory):
        os.rmdir(directory)


def find(entries: list[dict[str, Any]], kind: str, key: str) -> dict[str, Any] | None:
    """Return the entry for one thing, None if it was never touched."""
    return next((e for e in entries if (e["kind"], e["key"]) == (kind, key)), None)


def observe_file(host: Host, path: str) -> dict[str, Any]:
    """Return all that is needed to put a file back: `{absent}`, `{link}`, or `{content, mode, uid, gid}` (base64)."""
    try:
        found = os.lstat(host.path(path))
    except FileNotFoundError:
        return {"absent": True}
    if stat.S_ISLNK(found.st_mode):
        return {"link": os.readlink(host.path(path))}
    content = base64.b64encode(host.content(path)).decode()
    return {"content": content, "mode": f"{stat.S_IMODE(found.st_mode):04o}", "uid": found.st_uid, "gid": found.st_gid}


def sweep_staged(host: Host, entries: list[dict[str, Any]]) -> None:
    """Remove what a run that was cut off has staged and not put in place; only under the lock."""
    for entry in entries:
        if entry["kind"] == "file":
            sweep(host.path(entry["key"]))


def summary(host: Host) -> dict[str, Any]:
    """Return `{sysctls: {key: first value}, files: {path: layer}}`: what the kernel chose itself, what is ours.

    A ledger that cannot be read (it is root's) or is damaged adds `error`, the reason.
    """
    try:
        entries = load(host)
    except LedgerError as error:
        return {"sysctls": {}, "files": {}, "error": str(error)}
    sysctls = {e["key"]: e["old"] for e in entries if e["kind"] == "sysctl"}
    return {"sysctls": sysctls, "files": {e["key"]: e["layer"] for e in entries if e["kind"] == "file"}}


def read_json(host: Host, path: str) -> dict[str, Any] | None:
    """Return a JSON object from a file; None where there is none or it is not one."""
    try:
        found = json.loads(host.text(path))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
