"""What a deploy would do to a host, as the variables of playbook.yml."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from plimsoll.box.model import Kind, Wanted
from plimsoll.controls.plan import LEFT_ALONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from plimsoll.controls.plan import FileChange, HostPlan
    from plimsoll.controls.record import Action

VERBS = ("daemon-reload", "daemon-reexec", "restart", "try-restart")


def write(plan: HostPlan, directory: Path) -> Path:
    """Write the files of a plan for a host that nothing was done to, and the variables; returns the latter's path."""
    changes = [change for layer in plan.layers for change in layer.changes]
    left_alone = {judgement.id for judgement in plan.judgements if judgement.verdict in LEFT_ALONE}
    wanted = [each for each in plan.wanted if each.id not in left_alone]
    actions = [action for layer in plan.layers for action in layer.actions]
    files = [_file(change, number, directory) for number, change in enumerate(changes)]
    variables = {
        "packages": [each.target for each in wanted if each.kind is Kind.PACKAGE],
        "directories": sorted({posixpath.dirname(file["dest"]) for file in files}),
        "files": files,
        "kernel": {each.target: each.value for each in wanted if each.kind is Kind.SYSCTL},
        "units": list(_units(wanted)),
        "commands": list(_commands(actions)),
    }
    path = directory / "settings.json"
    path.write_text(json.dumps(variables))
    return path


def _file(change: FileChange, number: int, directory: Path) -> dict[str, str]:
    path = directory / f"{number:03}-{posixpath.basename(change.file.path)}"
    path.write_bytes(change.file.content)
    return {"src": str(path), "dest": change.file.path, "mode": change.file.mode}


def _units(wanted: Sequence[Wanted]) -> Iterable[dict[str, Any]]:
    for unit in wanted:
        if unit.kind is Kind.UNIT_STATE:
            enablement, activity = unit.value.split()
            state = "started" if activity == "active" else "stopped"
            yield {"name": unit.target, "enabled": enablement == "enabled", "state": state}


def _commands(actions: Sequence[Action]) -> Iterable[str]:
    """Yield, once each and in order, what systemd has to do; a unit that is started later goes by its files anyway."""
    return dict.fromkeys(f"systemctl {' '.join(action)}" for action in actions if action[0] in VERBS)
