"""User managers: what a terminal starts must not be the kernel's first choice.

A user manager runs as its user and cannot give a process a lower score than its own, so that
`DefaultOOMScoreAdjust=0` alone leaves a new process at 100 (seen with systemd 257). Root can lower the
score of a manager that is running, and the manager then reads its default anew; nothing is restarted.
"""

import json
import os
import pwd
from typing import Any

from plimsoll.box import units
from plimsoll.box.files import write_atomically
from plimsoll.box.host import Host
from plimsoll.box.ledger import read_json
from plimsoll.box.state import PROOFS

PROBE = ("cat", "/proc/self/oom_score_adj")
ANSWER_TIMEOUT_S = 90
"""Both calls open a session of the user, as a login does: logins of 50 s were seen on a box under memory pressure."""


def apply_score(host: Host, score: int) -> str:
    """Give every running user manager `score` and see what a new process of it gets.

    A manager that cannot be reached keeps its old default until the next login; the state then says
    `pending`. Returns what was done.
    """
    running = [p for p in units.processes(host) if units.is_user_manager(p)]
    proofs = {str(p["pid"]): {"started_s": p["started_s"], "score": _convert(host, p, score)} for p in running}
    _remember(host, "user_managers", proofs)
    proven = sum(1 for proof in proofs.values() if proof["score"] == score)
    return f"{proven} of {len(running)} running user managers now start processes with a score of {score}"


def _convert(host: Host, manager: dict[str, Any], score: int) -> int | None:
    """Return the score that a process started by this manager has afterwards, None if that could not be seen."""
    try:
        with open(host.path(f"/proc/{manager['pid']}/oom_score_adj"), "w", encoding="ascii") as file:
            file.write(str(score))
        name = pwd.getpwuid(manager["uid"]).pw_name
    except (OSError, KeyError):
        return None
    machine = f"--machine={name}@.host"
    if host.run("systemctl", "--user", machine, "daemon-reload", timeout_s=ANSWER_TIMEOUT_S).code != 0:
        return None
    command = ("systemd-run", "--user", machine, "--quiet", "--wait", "--pipe", "--collect", *PROBE)
    probe = host.run(*command, timeout_s=ANSWER_TIMEOUT_S)
    return int(probe.out) if probe.code == 0 and probe.out.strip().lstrip("-").isdigit() else None


def restore_scores(host: Host) -> str:
    """Give running user managers back the score and the default that the files now say; returns what was done."""
    running = [p for p in units.processes(host) if units.is_user_manager(p)]
    for item in running:
        shown = host.run("systemctl", "show", "-p", "OOMScoreAdjust", "--value", f"user@{item['uid']}.service")
        if shown.code == 0 and shown.out.strip().lstrip("-").isdigit():
            _convert(host, item, int(shown.out))
    _remember(host, "user_managers", {})
    return f"{len(running)} running user managers have their configured score again"


def _remember(host: Host, key: str, value: Any) -> None:  # noqa: ANN401  # any JSON value
    os.makedirs(host.path(os.path.dirname(PROOFS)), mode=0o755, exist_ok=True)
    proofs = {**(read_json(host, PROOFS) or {}), key: value}
    write_atomically(host.path(PROOFS), json.dumps(proofs).encode(), mode=0o644)


def remember_pending(host: Host, layer: str, reason: str | None) -> None:
    """Note why a layer could not be applied for now, or (None) that it no longer waits."""
    waiting = {**(read_json(host, PROOFS) or {}).get("pending", {}), layer: reason}
    _remember(host, "pending", {key: value for key, value in waiting.items() if value})
