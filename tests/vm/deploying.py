"""Runs pyinfra against a machine of the lab as a person would, and reads what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lab.machine import Machine
from lab.snapshot import Spec
from plimsoll.controls import registry

ROOT = Path(__file__).resolve().parents[2]
PYINFRA = Path(sys.executable).with_name("pyinfra")
OPERATIONS = len(registry.LAYERS) + 1
"""One a layer and the look afterwards: the same number on every host, whatever its policy."""
DEPLOY_TIMEOUT_S = 420
"""A first deploy takes 30 to 60 s under emulation on an idle machine, of which apt takes half."""

Policy = Mapping[str, Any]
Control = Mapping[str, Any]


def lab_policy() -> dict[str, Any]:
    """Return the policy under which everything fits into the lab's 1.5 GiB."""
    document = yaml.safe_load((ROOT / "lab" / "hosts.yml").read_text())
    found: dict[str, Any] = document["hosts"]["gx10"]["policy"]
    return found


def inventory_text(name: str, policy: Policy) -> str:
    """Return an inventory file with one host, whose policy is the lab's with the sections of `policy` laid over."""
    merged = lab_policy()
    for section, content in policy.items():
        both = isinstance(content, Mapping) and isinstance(merged.get(section), Mapping)
        merged[section] = {**merged[section], **content} if both else content
    return yaml.safe_dump({"groups": {"spark": {"hosts": [name]}}, "hosts": {name: {"policy": merged}}})


@dataclass(frozen=True)
class Run:
    """One run of pyinfra: exit code, the JSON it printed (None if it had none), and what it said on stderr."""

    code: int
    document: Mapping[str, Any] | None
    err: str

    def planned(self) -> list[str]:
        """Return the operations that pyinfra announced as a change, or as one that depends on another."""
        return [o["name"] for o in self._plan() if o["hosts_with_change"] or o["hosts_with_conditional_change"]]

    def changed(self) -> list[str]:
        """Return the operations that changed something."""
        return [o["name"] for o in self._operations() if o["success"]]

    def failed(self) -> list[str]:
        """Return the operations that failed or were not reached."""
        return [o["name"] for o in self._operations() if o["error"]]

    def hosts(self) -> int:
        """Return how many (host, operation) pairs were really carried out, changed or not."""
        return sum(o["hosts"] - len(o["error"]) for o in self._operations())

    def _plan(self) -> list[dict[str, Any]]:
        return list((self.document or {})["plan"])

    def _operations(self) -> list[dict[str, Any]]:
        return list((self.document or {})["results"]["operations"])


def environment(home: Path, inventory: Path) -> dict[str, str]:
    """Return the environment of a pyinfra that knows one machine and nothing of the user's own hosts."""
    kept = {key: value for key, value in os.environ.items() if key != "SSH_AUTH_SOCK"}
    return {**kept, "HOME": str(home), "PLIMSOLL_INVENTORY": str(inventory), "COLUMNS": "200"}


def pyinfra(machine: Machine, *arguments: str, policy: Policy | None = None, user: str = "admin") -> Run:
    """Run pyinfra with these arguments in the repository's root; `user` is who ~/.ssh/config logs in as."""
    home = machine.write_home(user)
    inventory = home / "hosts.yml"
    inventory.write_text(inventory_text(machine.name, policy or {}))
    done = subprocess.run(
        [PYINFRA, *arguments],
        cwd=ROOT,
        env=environment(home, inventory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEPLOY_TIMEOUT_S,
        check=False,
    )
    return Run(done.returncode, _json(done.stdout), done.stderr)


def _json(text: str) -> Any:  # noqa: ANN401  # what pyinfra prints, or nothing
    return json.loads(text) if text.strip() else None


def deploy(machine: Machine, policy: Policy | None = None, *, user: str = "admin") -> Run:
    """Deploy, and return the run once it is certain that the host was processed to the end and found good."""
    run = pyinfra(machine, "-y", "--json", machine.name, "deploy.py", policy=policy, user=user)
    assert run.code == 0, run.err
    # pyinfra ends with 0 as well when it knows no such host
    assert run.hosts() == OPERATIONS, run.err
    return run


def failing_deploy(machine: Machine, policy: Policy | None = None, *, user: str = "admin") -> Run:
    """Deploy where that has to fail, and return the run with its reasons on stderr."""
    run = pyinfra(machine, "-y", "--json", machine.name, "deploy.py", policy=policy, user=user)
    assert run.code == 1, run.err
    return run


def plan(machine: Machine, policy: Policy | None = None, *, user: str = "admin") -> list[str]:
    """Return the operations that a run would change something with, from `--dry --json`."""
    run = pyinfra(machine, "--dry", "--json", machine.name, "deploy.py", policy=policy, user=user)
    assert run.code == 0, run.err
    assert len((run.document or {"plan": []})["plan"]) == OPERATIONS, run.err
    return run.planned()


@contextmanager
def started(name: str, spec: Spec | None = None) -> Iterator[Machine]:
    """Run a machine under a name of its own, so that several test runs do not meet."""
    with Machine.restore(spec or Spec(), f"{name}-{os.getpid()}") as machine:
        yield machine


@contextmanager
def hardened(name: str, policy: Policy | None = None, spec: Spec | None = None) -> Iterator[Machine]:
    """Run a machine that was deployed to."""
    with started(name, spec) as machine:
        deploy(machine, policy)
        yield machine


def controls(machine: Machine) -> dict[str, Control]:
    """Return what the box finds of itself, by control id."""
    result = machine.run("plimsoll verify --json")
    (host,) = json.loads(result.out)["hosts"].values()
    return {control["id"]: control for control in host["controls"]}


def not_ok(machine: Machine) -> dict[str, str]:
    """Return the verdict and reason of every control that is not ok."""
    found = controls(machine)
    return {i: f"{c['verdict']}: {c['reason']}" for i, c in found.items() if c["verdict"] != "ok"}
