"""What the destructive tests share: a manifest of a whole machine, and ways to cut a deploy off."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plimsoll import inventory, zipapp
from plimsoll.controls import plan
from tests.vm import deploying

if TYPE_CHECKING:
    from lab.machine import Machine
    from lab.shell import Result

Manifest = Mapping[str, Mapping[str, Any]]
"""Section -> thing -> what it is: files, units, sysctls, cgroups, scores, packages."""

MANIFEST_TIMEOUT_S = 300
_SURVEY = r"""
import glob, hashlib, json, os, stat, subprocess

def out(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

def file(path):
    s = os.lstat(path)
    if stat.S_ISLNK(s.st_mode):
        return "link to " + os.readlink(path)
    owner = "%o %d:%d" % (s.st_mode, s.st_uid, s.st_gid)
    if not stat.S_ISREG(s.st_mode):
        return owner
    with open(path, "rb") as f:
        return owner + " " + hashlib.sha256(f.read()).hexdigest()

def walk(top):
    yield top
    for directory, names, files in os.walk(top):
        for name in names + files:
            yield directory + "/" + name

def text(path):
    try:
        with open(path, "rb", buffering=0) as f:
            return f.read(4096).decode("utf-8", "replace").strip()
    except OSError as error:
        return error.strerror

tops = ["/etc", "/usr/local", "/root", "/tmp", "/var/lib/systemd", "/var/spool"]
sysctls = {}
for directory, _names, files in os.walk("/proc/sys"):
    for name in files:
        path = directory + "/" + name
        if os.stat(path).st_mode & 0o444:
            sysctls[path] = text(path)
cgroups = {}
for directory, _names, files in os.walk("/sys/fs/cgroup"):
    for name in ("memory.min", "memory.low", "cpu.weight", "io.weight"):
        value = text(directory + "/" + name) if name in files else "0"
        # systemd switches controllers on and off as it likes; what has the default is as good as not there
        if value not in ("0", "100", "default 100"):
            cgroups[directory + "/" + name] = value
units = {}
for line in out("systemctl", "list-unit-files", "--no-legend", "--plain").splitlines():
    units["file " + line.split()[0]] = line.split()[1]
for line in out("systemctl", "list-units", "--all", "--no-legend", "--plain").splitlines():
    name, load, active = line.split()[:3]
    units["unit " + name] = load + " " + active
scores = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    comm = text("/proc/%s/comm" % pid)
    if comm in ("systemd", "sshd") or comm.startswith("systemd-journal"):
        cgroup = text("/proc/%s/cgroup" % pid)
        if "session-" not in cgroup:
            scores[comm + " " + cgroup] = text("/proc/%s/oom_score_adj" % pid)
probe = "systemd-run --user --machine=admin@.host --quiet --wait --pipe cat /proc/self/oom_score_adj"
scores["started by admin's manager"] = out(*probe.split()).strip()
print(json.dumps({
    "files": {p: file(p) for top in tops for p in walk(top)},
    "sysctls": sysctls, "cgroups": cgroups, "units": units, "scores": scores,
    "packages": dict(l.split("\t") for l in out("dpkg-query", "-W", "-f", "${Package}\t${Status}\n").splitlines()),
}))
"""


SETTLED = (
    "busy=$(systemctl list-units --all --no-legend --state=activating,deactivating 'plimsoll-*') && test -z \"$busy\""
)
"""plimsoll-verify waits until nothing was changed for half a minute, and then looks for some seconds."""


def manifest(machine: Machine) -> Manifest:
    """Return all of a machine that a deploy could touch and a revert has to put back, once our units have settled."""
    machine.wait_until_succeeds(SETTLED, MANIFEST_TIMEOUT_S)
    result = machine.run("python3 -I -", MANIFEST_TIMEOUT_S, stdin=_SURVEY.encode())
    assert result.rc == 0, result.err
    found: Manifest = json.loads(result.out)
    return found


NOISE = re.compile(
    # counters that the kernel moves by itself
    r"sysctls /proc/sys/fs/(dentry-state|file-nr|inode-nr|inode-state)"
    r"|sysctls /proc/sys/kernel/(ns_last_pid|pty/nr|random/(uuid|entropy_avail))"
    # the kernel lowers it by itself when an interrupt takes long, as it does on a busy emulated processor
    r"|sysctls /proc/sys/kernel/perf_event_max_sample_rate"
    # a soft lockup, which the emulated machine sees when its host is busy, taints the kernel for good
    r"|sysctls /proc/sys/kernel/tainted: 0 -> 16384$"
    # what apt and dpkg keep to themselves when a package comes and goes
    r"|files /etc/(ld\.so\.cache|\.pwd\.lock)"
    # a directory of its own for each service that asks for one, named anew at every boot
    r"|files /tmp/systemd-private-"
    # sessions, and what logging in or looking around starts for a moment
    r"|(cgroups|units) \S*.*(session-\d+\.scope|run-[pur]\S+|session\.slice|user@0|user-0|user-runtime-dir@0)"
    r"|units unit (user@0|user-runtime-dir@0|user-0|run-\S+|session-\d+)\S*"
    # started by the clock, by D-Bus or by the first look at them, and gone again when idle
    r"|units unit systemd-(tmpfiles-clean|hostnamed|timedated|localed)\S*"
    r"|cgroups /sys/fs/cgroup/system.slice/systemd-(hostnamed|timedated|localed|tmpfiles-clean)\S*"
    r"|files /var/lib/systemd/(timers|random-seed|timesync):"
)
"""What differs between two looks at a machine that nobody touched; each alternative with its reason."""


def differences(before: Manifest, after: Manifest) -> list[str]:
    """Return a line for everything that differs, but for NOISE."""
    lines = [
        f"{section} {key}: {before[section].get(key)} -> {after[section].get(key)}"
        for section in before
        for key in sorted({*before[section], *after[section]})
        if before[section].get(key) != after[section].get(key)
    ]
    return [line for line in lines if not NOISE.match(line)]


def program(machine: Machine, *arguments: str, stdin: str = "", timeout_s: float = 300) -> Result:
    """Run Plimsoll's own program on a machine that may have none, as a deploy does."""
    given = f"{zipapp.first_line()}\n{stdin}".encode()
    return machine.run(zipapp.from_memory(*arguments), timeout_s, stdin=given)


def layer_plans(machine: Machine, policy: deploying.Policy | None = None) -> dict[str, str]:
    """Return what every layer has to do on a machine, as the text that `plimsoll apply` reads; none: nothing."""
    file = machine.write_home("root") / "hosts.yml"
    file.write_text(deploying.inventory_text(machine.name, policy or {}))
    entry = inventory.load(file).host(machine.name)
    request = plan.request(entry.policy)
    looked = program(machine, "state", "--request", json.dumps(request.to_json()))
    assert looked.rc == 0, looked.err
    today = datetime.datetime.now().astimezone().date()
    found = plan.host_plan(entry.policy, json.loads(looked.out), lambda _control: None, today)
    return {layer.layer: json.dumps(layer.to_json()) for layer in found.layers if layer}


def apply_on_box(machine: Machine, policy: deploying.Policy | None = None) -> None:
    """Carry out all layers without pyinfra in between: a fifth of the time, for tests of what the box itself does."""
    for text in layer_plans(machine, policy).values():
        done = program(machine, "apply", stdin=text, timeout_s=deploying.DEPLOY_TIMEOUT_S)
        assert done.rc == 0, done.err


_KILLER = """
import os, re, signal, sys
from pyinfra_cli.main import main
from pyinfra.connectors.ssh import SSHConnector

moment, pattern, left = sys.argv[1], re.compile(sys.argv[2]), int(sys.argv[3])
real = SSHConnector.run_shell_command

def die_if(wanted):
    if moment == wanted and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(self, command, *arguments, **keywords):
    global left
    matches = pattern.search(str(command)) is not None
    left -= matches
    matches and die_if("before")
    result = real(self, command, *arguments, **keywords)
    matches and die_if("after")
    return result

SSHConnector.run_shell_command = counted
sys.argv = ["pyinfra", *sys.argv[4:]]
sys.exit(main())
"""
KILLED = -9
WITHOUT_EARLYOOM: deploying.Policy = {"layers": {"earlyoom": False}}
"""Installing a package is half of a deploy's time, and no matter of most tests."""


def deploy_killed(
    machine: Machine, moment: str, pattern: str, count: int, policy: deploying.Policy | None = None
) -> int:
    """Deploy with a pyinfra that gets SIGKILL `before` or `after` the count-th remote command that matches.

    Returns its exit code, KILLED if it came to that.
    """
    home = machine.write_home("admin")
    file = home / "hosts.yml"
    file.write_text(deploying.inventory_text(machine.name, policy or {}))
    done = subprocess.run(
        [sys.executable, "-c", _KILLER, moment, pattern, str(count), "-y", machine.name, "deploy.py"],
        cwd=deploying.ROOT,
        env=deploying.environment(home, file),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deploying.DEPLOY_TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode


LEFTOVERS = (
    "find / -xdev -name '*.plimsoll-tmp'; ls -d /etc/systemd/system/plimsoll-rollback.* "
    "/etc/systemd/system/*/plimsoll-rollback.* 2>/dev/null; true"
)
"""Lists what a run that was cut off may leave and a whole one may not."""


def assert_login(machine: Machine) -> None:
    """Log in anew over SSH, as a person would."""
    login = machine.ssh("true", timeout_s=120)
    assert login.returncode == 0, login.stderr


def assert_converged(machine: Machine, policy: deploying.Policy | None = None) -> None:
    """Assert that everything is as wanted, nothing is left to do, and nothing was left behind."""
    assert deploying.not_ok(machine) == {}
    assert deploying.plan(machine, policy) == []
    assert machine.succeed(LEFTOVERS) == ""
