"""The audit over SSH: what it leaves behind (nothing), what it needs, and every form in which it reports."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab.machine import Machine
from tests.vm import auditing, breaking, deploying
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

ACCOUNTS = "/run/plimsoll-accounts"
ACCOUNTING = """import ctypes, sys
name = sys.argv[1].encode() if len(sys.argv) > 1 else None
sys.exit(ctypes.CDLL(None).acct(name))
"""
"""Has the kernel write down every process that ends (acct(2)), or, without a file, no more."""
COMMANDS = f"""import struct
records = open({ACCOUNTS!r}, "rb").read()
run = (records[i : i + 64] for i in range(0, len(records), 64) if not records[i] & 1)
print(*(each[48:].rstrip(b"\\0").decode() for each in run), sep="\\n")
"""
"""Prints the command of each record: 64 bytes, flags first and the name in the last 16 (struct acct_v3).

Without those that never ran a program of their own (AFORK): kernel threads come and go as they like.
"""
LOGIN = {
    "sshd", "sshd-session", "sshd-auth", "bash", "sh", "env", "sudo", "unix_chkpwd", "(sd-close)",
    "run-parts", "10-uname", "uname",
}  # fmt: skip
"""What any command over SSH starts: the login, its greeting, and sudo."""
NEEDED = {"python3", "systemctl"}
GUARDS = {"true"}
"""What the guard's probe starts once a minute, audit or not."""
WRITTEN = "find / -xdev -newer /run/plimsoll-stamp -type f ! -path '/var/log/*' ! -path '/proc/*' ! -path '/run/*'"
LOGIN_WRITES = ("/var/lib/systemd/", "/var/lib/sudo/", "/var/lib/lastlog/", "/var/lib/wtmpdb/", "/var/lib/pam/")


def started_by(machine: Machine, user: str) -> set[str]:
    """Return the commands that an audit as `user` starts on the machine."""
    machine.put("/run/account.py", ACCOUNTING)
    machine.put("/run/commands.py", COMMANDS)
    machine.succeed(f"touch {ACCOUNTS} && python3 /run/account.py {ACCOUNTS}")
    try:
        assert auditing.audit(machine, "--json", user=user).code == 0
    finally:
        machine.succeed("python3 /run/account.py")
    return set(machine.succeed("python3 /run/commands.py").split()) - LOGIN


def test_it_writes_nothing_and_starts_only_what_it_needs(hardened: Deployed) -> None:
    """Beyond the login itself: Python, systemctl, and no file that was written to."""
    machine = hardened.machine
    auditing.audit(machine, "--json")
    machine.succeed("touch -d '-1 second' /run/plimsoll-stamp")
    started = {name for name in started_by(machine, "admin") if not name.startswith("systemd")}
    assert started - GUARDS == NEEDED
    written = [path for path in machine.succeed(WRITTEN).splitlines() if not path.startswith(LOGIN_WRITES)]
    assert written == []


def test_without_root_it_says_what_it_could_not_see(hardened: Deployed) -> None:
    """A login whose sudo wants a password is told so, and nothing that could not be read is called ok."""
    ran = auditing.audit(hardened.machine, "--json", user="operator")
    (host,) = ran.document["hosts"].values()
    assert host["reached"]
    assert any("without root" in line for line in host["not_seen"])
    assert {control["verdict"] for control in host["controls"]} <= {"ok", "unknown"}
    assert ran.code == (3 if any(c["verdict"] == "unknown" for c in host["controls"]) else 0)


def test_every_form_of_report(hardened: Deployed, tmp_path: Path) -> None:
    """One audit writes the page, JUnit, metrics and the report to keep, and prints a table without escapes."""
    machine = hardened.machine
    files = {name: tmp_path / name for name in ("page.html", "junit.xml", "metrics.prom", "kept.json")}
    options = ["--html", "--junit", "--metrics", "--save"]
    words = [word for pair in zip(options, map(str, files.values()), strict=True) for word in pair]
    ran = auditing.audit(machine, *words)
    assert ran.code == 0, ran.err
    assert "\033" not in ran.out
    assert machine.name in files["page.html"].read_text()
    suite = ET.parse(files["junit.xml"]).getroot()  # noqa: S314 - written by the command under test
    assert suite.findall(".//testcase")
    assert not suite.findall(".//failure")
    assert f'plimsoll_host_reached{{host="{machine.name}"}} 1' in files["metrics.prom"].read_text()
    assert json.loads(files["kept.json"].read_text())["schema"] == "plimsoll.audit/1"
    machine.succeed("sysctl -q kernel.sysrq=438")
    try:
        against = auditing.audit(machine, "--against", str(files["kept.json"]), "--json")
    finally:
        machine.succeed("sysctl -q kernel.sysrq=1")
    changed = {difference["id"] for difference in against.document["compared"]["differences"]}
    assert changed == {"kernel/kernel.sysrq"}
    assert against.code == 2


def test_explain_names_every_file_with_a_say(hardened: Deployed) -> None:
    """The chain has ours, and the later file that wins, in the order in which they are read."""
    machine = hardened.machine
    machine.put("/etc/sysctl.d/zzz-admin.conf", "kernel.sysrq = 16\n")
    config = str(machine.write_home("admin") / ".ssh" / "config")
    try:
        ran = auditing.plimsoll(machine, "explain", "-F", config, "--json", "kernel/kernel.sysrq", machine.name)
    finally:
        machine.succeed("rm /etc/sysctl.d/zzz-admin.conf")
    assert ran.code == 2, ran.err
    text = ran.out
    assert text.index("/etc/sysctl.d/zz-plimsoll.conf") < text.rindex("/etc/sysctl.d/zzz-admin.conf")


def test_through_pyinfra(hardened: Deployed) -> None:
    """`pyinfra HOST audit.py` ends with 0 without drift, and with 1 and the control's name with it."""
    machine = hardened.machine
    assert deploying.pyinfra(machine, "-y", machine.name, "audit.py").code == 0
    machine.succeed("sysctl -q kernel.sysrq=438")
    try:
        run = deploying.pyinfra(machine, "-y", machine.name, "audit.py")
    finally:
        machine.succeed("sysctl -q kernel.sysrq=1")
    assert run.code == 1
    assert "kernel/kernel.sysrq: drifted" in run.err


@pytest.mark.slow
def test_revert_over_ssh_keeps_what_somebody_else_changed(machine: Machine) -> None:
    """Announced, done, and proven by a fresh login; a file that was changed since stays, and is named."""
    before = breaking.manifest(machine)
    deploying.deploy(machine, breaking.WITHOUT_EARLYOOM)
    machine.succeed("echo '# mine' >>/etc/systemd/journald.conf.d/plimsoll.conf")
    config = str(machine.write_home("admin") / ".ssh" / "config")
    dry = auditing.plimsoll(machine, "revert", "-F", config, "--dry", machine.name)
    assert (dry.code, "zz-plimsoll.conf" in dry.out) == (0, True), dry.err
    assert machine.run("test -e /etc/sysctl.d/zz-plimsoll.conf").rc == 0
    ran = auditing.plimsoll(machine, "revert", "-F", config, "-y", machine.name)
    assert ran.code == 0, ran.err
    assert "a fresh login took" in ran.err
    kept = "/etc/systemd/journald.conf.d/plimsoll.conf"
    assert f"{kept} was changed by somebody else" in ran.out
    changed = [
        line for line in breaking.differences(before, breaking.manifest(machine)) if "journald.conf.d" not in line
    ]
    assert [line for line in changed if line.startswith("files /etc")] == []
    assert machine.read(kept).endswith("# mine\n")
    again = auditing.plimsoll(machine, "revert", "-F", config, "-y", machine.name)
    assert again.code == 4
    assert "there is no plimsoll on the host" in again.err
