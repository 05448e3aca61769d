"""What the destructive tests share: a manifest of a whole machine, and ways to cut a deploy off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.machine import Machine

Manifest = Mapping[str, Mapping[str, Any]]
"""Section -> thing -> what it is: files, units, sysctls, cgroups, scores, packages."""

MANIFEST_TIMEOUT_S = 180
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
        if name in files:
            cgroups[directory + "/" + name] = text(directory + "/" + name)
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


def manifest(machine: Machine) -> Manifest:
    """Return all of a machine that a deploy could touch and a revert has to put back."""
    result = machine.run("python3 -I -", MANIFEST_TIMEOUT_S, stdin=_SURVEY.encode())
    assert result.rc == 0, result.err
    found: Manifest = json.loads(result.out)
    return found


def differences(before: Manifest, after: Manifest) -> list[str]:
    """Return a line for everything that differs, noise included."""
    return [
        f"{section} {key}: {before[section].get(key)} -> {after[section].get(key)}"
        for section in before
        for key in sorted({*before[section], *after[section]})
        if before[section].get(key) != after[section].get(key)
    ]
