"""Runs pyinfra against a machine of the lab as a person would, and reads what came of it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.errors import GuestError
from lab.host import SEARCH_PATH
from lab.machine import POLL_INTERVAL_S, Machine
from lab.snapshot import Spec
from plimsoll.controls import registry

ROOT = Path(__file__).resolve().parents[2]
PYINFRA = Path(sys.executable).with_name("pyinfra")
OPERATIONS = len(registry.LAYERS) + 1
"""One a layer and the look afterwards: the same number on every host, whatever its policy."""
DEPLOY_TIMEOUT_S = 900
"""A first deploy takes 30 to 60 s under emulation on an idle machine, and was seen to take 420 s on a busy one."""

ANSWER_TIMEOUT_S = 10.0

Policy = Mapping[str, Any]
Control = Mapping[str, Any]

UNITS = "/usr/local/lib/systemd/system"
BUS_UNIT = "lab-dashboard.service"
BUS_NAME = "org.lab.Dashboard"
TELL = "/usr/local/bin/tell"
TOLD = "/run/told.json"
OPTED_IN: Policy = {
    "layers": {"recovery": True, "driver_option": True},
    "values": {"recovery/RuntimeWatchdogSec": "15s", "recovery/kernel.panic": 1},
    "trims": [BUS_UNIT, "no-such-unit.service"],
    "verify": {"notify_command": [TELL, "this box", "has drifted"]},
}
"""Every opt-in layer, with the shortest times that are allowed, so that a test need not wait for a minute."""


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


def controls(machine: Machine) -> dict[str, Control]:
    """Return what the box finds of itself, by control id."""
    result = machine.run("plimsoll verify --json")
    (host,) = json.loads(result.out)["hosts"].values()
    return {control["id"]: control for control in host["controls"]}


def not_ok(machine: Machine) -> dict[str, str]:
    """Return the verdict and reason of every control that is not ok."""
    found = controls(machine)
    return {i: f"{c['verdict']}: {c['reason']}" for i, c in found.items() if c["verdict"] != "ok"}


@dataclass(frozen=True)
class Deployed:
    """A machine that was deployed to, what it was like right before and right after that, and the deploy itself."""

    machine: Machine
    before: Mapping[str, str]
    after: Mapping[str, str]
    run: Run


WATCHED = {
    "started by admin's manager": "systemd-run --user --machine=admin@.host --quiet --wait --pipe cat "
    "/proc/self/oom_score_adj",
    "admin's manager": "systemctl show -p MainPID --value user@1000.service",
    "system.slice memory.min": "cat /sys/fs/cgroup/system.slice/memory.min",
    "the zones' reserve in KiB": "awk '$1 == \"min\" { pages += $2 } END { print pages * 4 }' /proc/zoneinfo",
}
"""What is looked at before a deploy and after it."""


def watched_values(machine: Machine) -> dict[str, str]:
    """Return the present output of WATCHED."""
    return {name: machine.succeed(command).strip() for name, command in WATCHED.items()}


def observed_deploy(machine: Machine, policy: Policy | None = None) -> Deployed:
    """Deploy to a machine that nothing was done to."""
    before = watched_values(machine)
    run = deploy(machine, policy)
    return Deployed(machine, before, watched_values(machine), run)


def add_bus_activated_unit(machine: Machine) -> None:
    """Give the machine a service that comes back when somebody asks for its D-Bus name."""
    machine.succeed(f"mkdir -p {UNITS}")
    machine.put(
        f"{UNITS}/{BUS_UNIT}",
        "[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
    )
    machine.put(
        f"/usr/share/dbus-1/system-services/{BUS_NAME}.service",
        f"[D-BUS Service]\nName={BUS_NAME}\nExec=/bin/false\nUser=root\nSystemdService={BUS_UNIT}\n",
    )
    machine.put(TELL, f'#!/bin/sh\n{{ echo "$@"; cat; }} >{TOLD}\n')
    machine.succeed(
        f"chmod 0755 {TELL}; systemctl daemon-reload; systemctl reload dbus; systemctl enable --now {BUS_UNIT}"
    )


def leave_hanging(machine: Machine, number: int) -> None:
    """Leave tasks in uninterruptible sleep: they write to a file system on /mnt that is frozen."""
    # made here, because the machine has no tools for file systems
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory) / "image"
        command = ["mke2fs", "-q", "-t", "ext4", str(image), "4M"]
        subprocess.run(command, env={**os.environ, "PATH": SEARCH_PATH}, check=True)
        packed = gzip.compress(image.read_bytes())
    assert machine.run("gzip -d >/var/tmp/image", stdin=packed).rc == 0
    machine.succeed("mount /var/tmp/image /mnt && fsfreeze -f /mnt")
    machine.succeed(f"for i in $(seq {number}); do setsid touch /mnt/$i >/dev/null 2>&1 & done")


def boot_id(machine: Machine) -> str:
    """Return what changes with every boot."""
    return machine.read("/proc/sys/kernel/random/boot_id").strip()


def await_another_boot(machine: Machine, before: str, timeout_s: float) -> float:
    """Wait until a machine that restarts by itself answers again; returns the seconds that took."""
    started_s = time.monotonic()
    while time.monotonic() < started_s + timeout_s:
        try:
            result = machine.run("cat /proc/sys/kernel/random/boot_id", ANSWER_TIMEOUT_S)
        except GuestError:
            continue
        if result.rc == 0 and result.out.strip() != before:
            machine.wait_for_ssh(timeout_s)
            return time.monotonic() - started_s
        time.sleep(POLL_INTERVAL_S)
    raise AssertionError(f"{machine.name} did not restart by itself within {timeout_s:g} s")
