"""Hosts that are directories, behind stand-ins for `ssh` and `pyinfra`: real processes that note what they do."""

from __future__ import annotations

import datetime
import fcntl
import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from plimsoll import zipapp
from plimsoll.box import apply, state
from plimsoll.controls import plan
from plimsoll.fleet.rollout import command, processes, steps
from plimsoll.policy import Policy
from tests.unit.builders import stock_host

if TYPE_CHECKING:
    from plimsoll.box.model import State

LAYERS = dict.fromkeys(("slices", "journald", "sshd", "user_manager", "earlyoom", "guard"), False)
"""What the hosts are to have: the program, and the settings of the kernel."""

ANSWERS = r"""
case $command in
*marshal*)
    mark=$(sed -n '2s/.*"mark": "\([0-9a-f]*\)".*/\1/p')
    echo "$mark"; cat "$host/state.json"; echo "$mark"; exit ;;
*json.loads*)
    IFS= read -r program
    case $program in
    *'lock(**{'*)
        [ -e "$host/held" ] && { cat "$host/held"; exit; }
        exec 9>>"$host/lock"
        flock -w 60 9 || exit 1
        echo '{"locked": true}'
        cat >/dev/null ;;
    *) cat "$host/sample.json" ;;
    esac
    exit ;;
esac
"""
"""How a host that is a directory answers what a rollout asks it, beside the deploy: `$host`, `$command`."""
SSH = rf"""#!/bin/sh
fakes=${{0%/*}}/..
while [ "$1" != -- ]; do shift; done
host=$fakes/hosts/$2 command=$3
[ -e "$host/down" ] && {{ cat "$host/down" >&2; exit 255; }}
{ANSWERS}
echo "this stand-in does not know: $3" >&2; exit 1
"""
PYINFRA = r"""#!/bin/sh
# the deploy of one host: says when it begins and ends, and changes the host at its end
fakes=${0%/*}/..
for word; do case $word in @ssh/*) host=$fakes/hosts/${word#@ssh/} ;; esac; done
echo "$@" >>"$host/asked"
echo begin >>"$host/ledger"
[ -e "$host/deploy" ] && . "$host/deploy"
sleep "${DEPLOY_TAKES_S:-0.05}"
cp "$host/after.json" "$host/new.json"
mv "$host/new.json" "$host/state.json"
echo end >>"$host/ledger"
"""
DRIVER = """
import sys
from plimsoll import zipapp
from plimsoll.fleet import cli
from plimsoll.fleet.rollout import command, processes, steps

processes.PYINFRA = (sys.argv[1],)
# somebody may be working on this checkout while its tests run
zipapp.build = lambda: b"the program"
command.basis = lambda _inventory: "the same"
command.LIMITS = steps.Limits(deploy_s=60, lost_s=0.3, proof_s=60, soak_period_s=0.05)
{more}
sys.argv = ["plimsoll", *sys.argv[2:]]
cli.main()
"""
"""Runs the real command, in a process of its own, with what stands in for pyinfra and shorter times."""
LIMITS = steps.Limits(deploy_s=60, lost_s=0.3, proof_s=60, soak_period_s=0.05)
PROGRAM = b"the program"
TODAY = datetime.date(2026, 11, 30)
SAMPLE = {"boot_id": "b0071d", "kernel_seq": 7, "failed_units": [], "pressure": {"memory": 0.0}}


@functools.cache
def states(program: bytes = PROGRAM) -> tuple[State, State]:
    """Return the state of a host before a deploy of that program, and after one, as the box itself reads them."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipapp, "build", lambda: program)
        policy = Policy.model_validate({"layers": LAYERS})
        host, request = stock_host(Path(directory)), plan.request(policy)
        before = _as_root(state.read(request, host))
        for layer in plan.host_plan(policy, before, lambda _control: None, TODAY).layers:
            list(apply.apply(json.loads(json.dumps(layer.to_json())), host, program))
        return before, _as_root(state.read(request, host))


def _as_root(found: dict[str, Any]) -> dict[str, Any]:
    """Return a state as root would have read it."""
    for file in found["files"].values():
        file.update({key: 0 for key in ("uid", "gid") if key in file})
    found["platform"]["euid"] = 0
    return found


@dataclass(frozen=True)
class Fakes:
    """Hosts below a directory."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, *names: str, program: bytes = PROGRAM) -> Fakes:
        """Make hosts, the two programs, and an inventory."""
        fakes = cls(directory)
        before, after = states(program)
        for name in names:
            fakes.host(name).mkdir(parents=True)
            for file, content in (("state", before), ("after", after), ("sample", SAMPLE)):
                (fakes.host(name) / f"{file}.json").write_text(json.dumps(content))
        (directory / "bin").mkdir()
        for name, text in (("ssh", SSH), ("pyinfra", PYINFRA)):
            (directory / "bin" / name).write_text(text)
            (directory / "bin" / name).chmod(0o755)
        fakes.write_inventory(*names)
        return fakes

    def host(self, name: str) -> Path:
        """Return a host's directory."""
        return self.directory / "hosts" / name

    def write_inventory(self, *names: str, **sections: Any) -> None:  # noqa: ANN401  # of the inventory
        """Write an inventory with these hosts, and the sections that are given."""
        document = {"defaults": {"layers": LAYERS}, "hosts": dict.fromkeys(names), **sections}
        (self.directory / "hosts.yml").write_text(yaml.safe_dump(document))

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which only these hosts exist, and nothing of the user's is read or written."""
        return {
            **os.environ,
            "HOME": str(self.directory),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PLIMSOLL_INVENTORY": str(self.directory / "hosts.yml"),
        }

    def command(self, *arguments: str, more: str = "") -> list[str]:
        """Return the command line of a rollout; `more` is Python that is run before it."""
        return [
            sys.executable,
            "-c",
            DRIVER.format(more=more),
            str(self.directory / "bin/pyinfra"),
            "rollout",
            *arguments,
        ]

    def rollout(self, *arguments: str, more: str = "") -> subprocess.CompletedProcess[str]:
        """Run a rollout to its end."""
        return subprocess.run(
            self.command(*arguments, more=more), env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Have a command that is run in this process find these hosts, and nothing else."""
        for name, value in self.environment.items():
            patch.setenv(name, value)
        patch.setattr(processes, "PYINFRA", (str(self.directory / "bin/pyinfra"),))
        patch.setattr(zipapp, "build", lambda: PROGRAM)
        patch.setattr(command, "basis", lambda _inventory: "the same")
        patch.setattr(command, "LIMITS", LIMITS)

    def write(self, name: str, file: str, content: object) -> None:
        """Write one of a host's files: text as it is, else as JSON."""
        (self.host(name) / file).write_text(content if isinstance(content, str) else json.dumps(content))

    def ledger(self, name: str) -> list[str]:
        """Return what the deploys of a host have noted: `begin` and `end`."""
        file = self.host(name) / "ledger"
        return file.read_text().split() if file.exists() else []

    def is_locked(self, name: str) -> bool:
        """Say whether somebody holds a host's lock."""
        with (self.host(name) / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def events(output: str) -> list[dict[str, Any]]:
    """Return the lines of `--json`."""
    return [json.loads(line) for line in output.splitlines()]


def phases(output: str, host: str) -> list[str]:
    """Return the phases that a host went through."""
    return [e["phase"] for e in events(output) if e["event"] == "host" and e["host"] == host]


def summary(output: str) -> dict[str, Any]:
    """Return the last line of `--json`."""
    return events(output)[-1]
