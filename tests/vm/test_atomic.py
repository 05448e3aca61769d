"""Files on a host are whole at any moment, root's, and open to nobody else's pen."""

import hashlib
import json

import pytest

from lab.errors import GuestError
from lab.machine import Machine
from plimsoll import zipapp
from plimsoll.box import ledger
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400)]

PROGRAM = "/run/plimsoll-under-test.pyz"
CUT_OFF = r"""
import os, pathlib, runpy, signal, sys

call, left, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
real = getattr(os, call)

def cut(*arguments, **keywords):
    global left
    left -= 1
    if left == 0 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if left == 0:
        pathlib.Path("/run/waiting").touch()
        signal.pause()
    return real(*arguments, **keywords)

setattr(os, call, cut)
sys.argv = ["plimsoll", "apply"]
runpy.run_path("%s", run_name="__main__")
"""
"""Runs `plimsoll apply` up to a certain call of the kernel, and there dies, or waits for the power to be cut."""
KILLED = (-9, 137)


def prepare(machine: Machine, policy: deploying.Policy | None = None) -> dict[str, str]:
    """Bring program and plans to the machine; return for each planned path the hash of the content it shall have."""
    assert machine.run(f"cat >{PROGRAM}", stdin=zipapp.build()).rc == 0
    machine.put("/run/cut.py", CUT_OFF % PROGRAM)
    plans = {name: text for name, text in breaking.layer_plans(machine, policy).items() if name in ("kernel", "slices")}
    for name, text in plans.items():
        machine.put(f"/run/{name}.json", text)
    files = [file for text in plans.values() for file in json.loads(text)["files"]]
    return {file["path"]: hashlib.sha256(file["content"].encode()).hexdigest() for file in files}


def hashes(machine: Machine, paths: list[str]) -> dict[str, str]:
    """Return the hash of each of the paths, empty for one that is not there."""
    lines = machine.succeed(f"sha256sum -- {' '.join(paths)} 2>/dev/null; true").splitlines()
    found = {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}
    return {path: found.get(path, "") for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_kill_before_any_rename_or_sync_leaves_whole_files(machine: Machine, call: str) -> None:
    """The program is killed before its n-th rename (sync), n = 1, 2, 3 …: each file is old or new, the rest follows."""
    wanted = prepare(machine)
    edited = "/etc/systemd/system/user.slice.d/plimsoll.conf"
    machine.succeed(f"mkdir -p {edited.rpartition('/')[0]}; echo '# was here before' >{edited}")
    old = hashes(machine, list(wanted))
    before = breaking.manifest(machine)
    count, code = 0, KILLED[0]
    while code in KILLED:
        count += 1
        code = machine.execute(f"python3 -I /run/cut.py {call} {count} die </run/slices.json")[0]
        now = hashes(machine, list(wanted))
        assert all(now[path] in (old[path], wanted[path]) for path in wanted), count
    assert code == 0
    assert count > len(json.loads(machine.read("/run/slices.json"))["files"])
    assert {p: h for p, h in hashes(machine, list(wanted)).items() if ".slice.d/" in p and h != wanted[p]} == {}
    assert machine.succeed(breaking.LEFTOVERS) == ""
    machine.succeed(f"python3 -I {PROGRAM} revert")
    assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
def test_a_reset_between_write_and_rename_leaves_the_old_file(machine: Machine) -> None:
    """The power is cut when the new content is written and not renamed: the old file is whole, a repeat converges."""
    wanted = prepare(machine)
    (path,) = (p for p in wanted if p.startswith("/etc/sysctl.d/"))
    machine.succeed(f"echo vm.swappiness=7 >{path}; sync")
    before = breaking.manifest(machine)
    # the first rename is the ledger's
    machine.succeed("systemd-run --unit=cut sh -c 'exec python3 -I /run/cut.py replace 2 wait </run/kernel.json'")
    machine.wait_until_succeeds("test -e /run/waiting")
    assert machine.succeed("ls /etc/sysctl.d/.*.plimsoll-tmp").count("\n") == 1
    plan = machine.read("/run/kernel.json")
    machine.crash()
    assert machine.read(path) == "vm.swappiness=7\n"
    assert breaking.program(machine, "apply", stdin=plan).rc == 0
    assert hashes(machine, [path]) == {path: wanted[path]}
    assert machine.succeed(breaking.LEFTOVERS) == ""
    assert breaking.program(machine, "revert").rc == 0
    assert machine.read(path) == "vm.swappiness=7\n"
    files = {line for line in breaking.differences(before, breaking.manifest(machine)) if line.startswith("files ")}
    assert files <= {f"files {path}"}, files


@pytest.mark.slow
def test_a_reset_between_ledger_and_files_loses_neither(machine: Machine) -> None:
    """The power is cut as soon as the first file is renamed: the ledger already knows it, and takes it back."""
    wanted = prepare(machine)
    machine.succeed("systemd-run --unit=cut sh -c 'exec python3 -I /run/cut.py replace 3 wait </run/slices.json'")
    machine.wait_until_succeeds("test -e /run/waiting")
    there = [path for path, digest in hashes(machine, list(wanted)).items() if digest]
    assert len(there) == 1
    machine.crash()
    assert hashes(machine, there) == {path: wanted[path] for path in there}
    assert breaking.program(machine, "revert").rc == 0
    machine.fail(f"ls {there[0]}")
    assert machine.succeed(breaking.LEFTOVERS) == ""


@pytest.mark.slow
def test_files_are_roots_and_not_writable_by_others(machine: Machine) -> None:
    """Every file of a deploy is root's: 0644, the wrapper 0755, the ledger 0600; nothing of ours in /tmp or homes."""
    machine.succeed("touch /run/before")
    breaking.apply_on_box(machine, breaking.WITHOUT_EARLYOOM)
    entries = json.loads(machine.read(ledger.PATH))["entries"]
    paths = [e["key"] for e in entries if e["kind"] == "file"]
    assert len(paths) > 10
    listed = machine.succeed(f"stat -c '%a %u:%g %n' {ledger.PATH} {' '.join(paths)}").splitlines()
    modes = {line.split()[2]: " ".join(line.split()[:2]) for line in listed}
    special = {ledger.PATH: "600 0:0", "/usr/local/bin/plimsoll": "755 0:0"}
    assert modes == {path: special.get(path, "644 0:0") for path in [ledger.PATH, *paths]}
    assert machine.succeed("find /tmp /var/tmp /home /root -newer /run/before -type f") == ""
    open_to_others = "find /etc/plimsoll /usr/local/lib/plimsoll /var/lib/plimsoll /run/plimsoll -perm /022"
    assert machine.succeed(open_to_others) == ""


def test_a_second_change_at_the_same_time_is_refused(machine: Machine) -> None:
    """While one apply is at work another, and a revert, end with 75 and one line, and change nothing."""
    prepare(machine)
    machine.succeed("systemd-run --unit=busy sh -c 'exec python3 -I /run/cut.py replace 2 wait </run/kernel.json'")
    machine.wait_until_succeeds("test -e /run/waiting")
    for command in ("apply </run/slices.json", "revert", "revert --layer kernel"):
        result = machine.run(f"python3 -I {PROGRAM} {command}")
        assert (result.rc, len(result.err.splitlines())) == (75, 1), command
        assert "another plimsoll is changing this host" in result.err
    with pytest.raises(GuestError):
        machine.succeed("ls /etc/systemd/system/user.slice.d/plimsoll.conf")
