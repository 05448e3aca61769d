"""Runs `plimsoll` of the operator's machine against a machine of the lab as a person would."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.vm import deploying

if TYPE_CHECKING:
    from lab.machine import Machine
    from tests.vm.deploying import Control, Policy

PLIMSOLL = Path(sys.executable).with_name("plimsoll")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code and both outputs."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON on standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def plimsoll(machine: Machine, *arguments: str, policy: Policy | None = None, user: str = "admin") -> Ran:
    """Run `plimsoll` with these arguments; the inventory knows the machine, and ssh logs in as `user`."""
    home = machine.write_home(user)
    inventory = home / "hosts.yml"
    inventory.write_text(deploying.inventory_text(machine.name, policy or {}))
    done = subprocess.run(
        [PLIMSOLL, *arguments],
        cwd=deploying.ROOT,
        env=deploying.environment(home, inventory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def audit(machine: Machine, *arguments: str, policy: Policy | None = None, user: str = "admin") -> Ran:
    """Audit the machine; the result has the JSON document unless other output was asked for."""
    config = machine.write_home(user) / ".ssh" / "config"
    return plimsoll(machine, "audit", "-F", str(config), *arguments, machine.name, policy=policy, user=user)


def found(ran: Ran) -> dict[str, Control]:
    """Return the controls of the only host of an audit that was printed as JSON, by id."""
    (host,) = ran.document["hosts"].values()
    assert host["reached"], host["problem"]
    return {control["id"]: control for control in host["controls"]}


def deviations(ran: Ran) -> dict[str, str]:
    """Return verdict and place (`file:line`, or empty) of every control that is not ok."""
    return {i: said(control) for i, control in found(ran).items() if control["verdict"] != "ok"}


def said(control: Control) -> str:
    """Return a control's verdict and the place that decides, in one line."""
    place = control["decided_by"]
    return f"{control['verdict']} {place['file']}:{place['line']}" if place else str(control["verdict"])
