"""What may keep a machine reachable: records. Adding one is adding a record: a name, what it is, a script."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.errors import LabError
from lab.machine import Machine
from plimsoll.policy import Layers

ROOT = Path(__file__).resolve().parents[2]
PREPARE_TIMEOUT_S = 300.0
DEPLOY_TIMEOUT_S = 900
GUARD = "guard"
"""The layer of a policy that kills."""


@dataclass(frozen=True)
class Defence:
    """One defence.

    `script` is run by root in the fresh machine, and has to end with 0 once the defence is in force. `deploys`:
    Plimsoll is deployed to the machine before that; `guard`: with the layer that kills.
    """

    name: str
    what: str
    script: str = field(default="", repr=False)
    deploys: bool = False
    guard: bool = False

    def missing(self) -> str:
        """Why this defence cannot be had here; empty where it can."""
        return f"no {GUARD} layer" if self.guard and GUARD not in Layers.model_fields else ""

    def policy(self) -> dict[str, Any]:
        """The policy that is deployed: the lab's, which fits into its machines, with or without the guard."""
        document = yaml.safe_load((ROOT / "lab" / "hosts.yml").read_text())
        (host,) = document["hosts"].values()
        policy: dict[str, Any] = host["policy"]
        layers = {GUARD: self.guard} if GUARD in Layers.model_fields else {}
        return {**policy, "layers": {**policy.get("layers", {}), **layers}}


def earlyoom(name: str, arguments: str, what: str) -> Defence:
    """Return one that installs earlyoom, without network; without arguments those of the package stay."""
    install = "DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends earlyoom >/dev/null"
    configure = f"echo 'EARLYOOM_ARGS=\"{arguments}\"' >/etc/default/earlyoom && systemctl restart earlyoom"
    running = "systemctl is-active --quiet earlyoom"
    return Defence(name, what, " && ".join([install, *([configure] if arguments else []), running]))


OOMD_SLICE = r"[Slice]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%%\n"

DEFENCES = {
    defence.name: defence
    for defence in (
        Defence("stock", "Debian as it is: systemd-oomd runs with its defaults"),
        earlyoom("earlyoom-default", "", "earlyoom as Debian installs it"),
        earlyoom("earlyoom-seed", "-m 5,3 -s 100,100 -g", "earlyoom -m 5,3 -s 100,100 -g: swap does not count"),
        earlyoom("earlyoom-15", "-m 15 -s 5", "earlyoom -m 15 -s 5"),
        Defence(
            "oomd",
            "systemd-oomd, which kills at 50 % memory pressure in system.slice or user.slice",
            "for slice in system user; do mkdir -p /etc/systemd/system/$slice.slice.d && "
            f"printf '{OOMD_SLICE}' >/etc/systemd/system/$slice.slice.d/oomd.conf; done && "
            "systemctl daemon-reload && systemctl is-active --quiet systemd-oomd && "
            "systemctl show -p ManagedOOMMemoryPressure system.slice | grep -q kill",
        ),
        Defence("layers", "Plimsoll, deployed without its guard", deploys=True),
        Defence(
            "plimsoll",
            "Plimsoll with its guard, as after the first day: floor, rate and slow armed",
            "plimsoll guard arm",
            deploys=True,
            guard=True,
        ),
        Defence("plimsoll-new", "the same on the first day: only the floor is armed", deploys=True, guard=True),
    )
}


def available() -> list[Defence]:
    """The defences that can be had."""
    return [defence for defence in DEFENCES.values() if not defence.missing()]


def prepare(defence: Defence, machine: Machine) -> None:
    """Put the defence in force. Raises GuestError, or LabError with what the deploy said last."""
    if defence.deploys:
        deploy(machine, defence.policy())
    if defence.script:
        machine.succeed(defence.script, PREPARE_TIMEOUT_S)


def deploy(machine: Machine, policy: Mapping[str, Any]) -> None:
    """Run pyinfra as a user would. Raises LabError with the end of what it printed."""
    home = machine.write_home("admin")
    inventory = home / "hosts.yml"
    hosts = {machine.name: {"policy": dict(policy)}}
    inventory.write_text(yaml.safe_dump({"groups": {"spark": {"hosts": [machine.name]}}, "hosts": hosts}))
    kept = {key: value for key, value in os.environ.items() if key != "SSH_AUTH_SOCK"}
    done = subprocess.run(
        ["timeout", str(DEPLOY_TIMEOUT_S), Path(sys.executable).with_name("pyinfra"), "-y", machine.name, "deploy.py"],
        cwd=ROOT,
        env={**kept, "HOME": str(home), "PLIMSOLL_INVENTORY": str(inventory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise LabError(f"Plimsoll could not be deployed to {machine.name} (exit {done.returncode}):\n{tail}")
