"""What containers are called, read from the files of those who run them, and never asked of them.

A name is looked up by the user whose container it is: one who gives his own the digits of another's does not get its
name by that.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from plimsoll.box import containers
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed, regular_text

PODMAN = "/var/lib/containers/storage/overlay-containers/containers.json"
PODMAN_OF_USER = ".local/share/containers/storage/overlay-containers/containers.json"
KUBERNETES_LOGS = "/var/log/containers"
MAX_LOGS = 1000
_LOG = re.compile(r"[^_]+_([^_]+)_(.+)-([0-9a-f]{64})\.log")

Found = dict[tuple[int | None, str], str]


def read(host: Host, homes: Mapping[int, str]) -> tuple[Found, tuple[str, ...]]:
    """Return names by user (None: the system's) and first 12 digits, and what could not be looked at.

    `homes` are the home directories of those users who run containers of their own, by uid.
    """
    observed = Observed()
    found: Found = {}
    containers.read(host, homes.values(), (), None, observed)
    for each in observed.observations:
        if each["kind"] == "container":
            found[(_owner(str(each["file"]), homes), str(each["id"]))] = str(each["name"])
    found |= _podman(host, PODMAN, None, observed)
    for uid, home in homes.items():
        found |= _podman(host, f"{home}/{PODMAN_OF_USER}", uid, observed)
    found |= _kubernetes(host, observed)
    return found, tuple(observed.not_seen)


def _owner(file: str, homes: Mapping[int, str]) -> int | None:
    return next((uid for uid, home in homes.items() if file.startswith(f"{home}/")), None)


def _podman(host: Host, path: str, owner: int | None, observed: Observed) -> Found:
    found: Found = {}
    with observed.reading(path):
        for each in _list(json.loads(regular_text(host, path))):
            identity, names = each.get("id"), each.get("names")
            if isinstance(identity, str) and isinstance(names, list) and names and isinstance(names[0], str):
                found[(owner, identity[:12])] = names[0]
    return found


def _list(value: object) -> Iterable[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _kubernetes(host: Host, observed: Observed) -> Found:
    """Return what kubelet calls containers: their logs are `POD_NAMESPACE_CONTAINER-DIGITS.log`; pods' names change."""
    names = observed.names(host, KUBERNETES_LOGS, MAX_LOGS, ".log")
    matches = (_LOG.fullmatch(name) for name in names)
    return {(None, match[3][:12]): f"{match[1]}/{match[2]}" for match in matches if match}
