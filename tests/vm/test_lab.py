"""The lab keeps its promises: what is in a machine, and what its calls do to it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.errors import GuestError
from lab.machine import Machine, record_of

pytestmark = [pytest.mark.vm, pytest.mark.timeout(420)]

ANSWERS_WHEN_STARVED_S = 60.0


def boot_id(machine: Machine) -> str:
    """What changes with every boot."""
    return machine.read("/proc/sys/kernel/random/boot_id")


def check_machine(machine: Machine) -> None:
    """Everything that is promised of every machine."""
    assert machine.succeed("systemctl is-system-running").strip() == "running"
    assert abs(float(machine.succeed("date +%s.%N")) - time.time()) < 5
    assert machine.succeed("hostname").strip() == machine.name
    assert machine.succeed("swapon --show=NAME,SIZE --noheadings").split() == ["/swap.img", "512M"]
    assert "i6300ESB" in machine.read("/sys/class/watchdog/watchdog0/identity")
    processor = machine.read("/proc/cpuinfo")
    assert not ("Nehalem" in processor and "cx16" in processor.split()), "its cmpxchg16b spoils the flags: an oops"
    assert "full avg10=" in machine.read("/proc/pressure/memory")
    assert machine.succeed("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    for unit in ("dbus", "rsyslog", "systemd-oomd", "user@1000"):
        machine.wait_for_unit(f"{unit}.service")
    assert machine.ssh("sudo -n id -u").stdout.strip() == "0"


def test_trixie_has_everything(machine: Machine) -> None:
    """A restored trixie machine runs, knows the time, and has the devices and services that tests rely on."""
    assert machine.release in machine.read("/etc/os-release")
    check_machine(machine)
    assert machine.succeed("systemctl is-enabled ssh.service ssh.socket || true").split() == ["enabled", "disabled"]


@pytest.mark.machine(release="bookworm")
def test_bookworm_has_everything(machine: Machine) -> None:
    """A restored bookworm machine has the same."""
    assert "bookworm" in machine.read("/etc/os-release")
    check_machine(machine)


@pytest.mark.slow
@pytest.mark.machine(ubuntu_ssh=True)
def test_ssh_arranged_as_on_ubuntu(machine: Machine) -> None:
    """The listener is systemd's, ssh.service needs it and starts with the first login."""
    assert machine.succeed("systemctl is-active ssh.socket").strip() == "active"
    assert machine.succeed("systemctl is-enabled ssh.service ssh.socket || true").split() == ["disabled", "enabled"]
    assert machine.succeed("systemctl is-active ssh.service || true").strip() == "inactive"
    link = "/etc/systemd/system/ssh.service.requires/ssh.socket"
    assert machine.succeed(f"readlink -f {link}").strip() == "/etc/systemd/system/ssh.socket"
    assert machine.ssh("true").returncode == 0
    machine.wait_for_unit("ssh.service")


@pytest.mark.slow
def test_earlyoom_installs_without_a_network(machine: Machine) -> None:
    """The package earlyoom is not installed, and can be with the link down."""
    machine.fail("command -v earlyoom")
    machine.succeed("ip link set dev $(ls /sys/class/net | grep -v '^lo$') down")
    machine.succeed("DEBIAN_FRONTEND=noninteractive apt-get install --yes earlyoom", timeout_s=180)
    machine.wait_for_unit("earlyoom.service")


def test_sudo_of_operator_wants_a_password(machine: Machine) -> None:
    """The user operator becomes root with the password and not without."""
    assert machine.ssh("sudo -n id -u", user="operator").returncode == 1
    with_password = machine.ssh("echo plimsoll | sudo -S -p '' id -u", user="operator")
    assert with_password.stdout.strip() == "0"


def test_shell_needs_no_sshd(machine: Machine) -> None:
    """With sshd stopped and masked commands still run, and a login fails."""
    machine.succeed("systemctl mask --now ssh.service")
    assert machine.ssh("true").returncode == 255
    assert machine.succeed("echo here").strip() == "here"


def test_another_host_key_is_refused(machine: Machine) -> None:
    """The machine's key is known beforehand: a machine with another one gets no login."""
    machine.succeed("rm /etc/ssh/ssh_host_* && ssh-keygen -A && systemctl restart ssh.service")
    login = machine.ssh("true")
    assert login.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in login.stderr


def test_pyinfra_finds_the_machine_by_name(machine: Machine) -> None:
    """With HOME in the lab, `pyinfra NAME` reaches the machine."""
    pyinfra = Path(sys.executable).with_name("pyinfra")
    done = subprocess.run(
        [pyinfra, "-y", machine.name, "exec", "--", "id", "-un"],
        env={**os.environ, "HOME": str(machine.write_home("admin"))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "admin" in done.stdout + done.stderr


def test_commands_report_what_happened(machine: Machine) -> None:
    """Status, output and time limit of a command arrive; a child in the background holds nothing up."""
    assert machine.execute("echo out; echo err >&2; exit 7") == (7, "out\n")
    assert len(machine.succeed("head -c 3000000 /dev/zero | tr '\\0' a")) == 3_000_000
    assert machine.succeed("sleep 300 & echo started", timeout_s=20) == "started\n"
    assert machine.read("/proc/self/oom_score_adj").strip() == "0"
    with pytest.raises(GuestError, match="exit 3: echo why >&2; exit 3\nwhy"):
        machine.succeed("echo why >&2; exit 3")
    with pytest.raises(GuestError, match="should not have"):
        machine.fail("true")
    with pytest.raises(GuestError, match="not done in 1 s"):
        machine.execute("sleep 30", timeout_s=1)


def test_waiting_ends(machine: Machine) -> None:
    """A wait returns when the state is there, and fails at its deadline when it never is."""
    machine.succeed("(sleep 2; touch /run/there) &")
    machine.wait_until_succeeds("test -e /run/there", timeout_s=30)
    machine.succeed("(sleep 2; rm /run/there) &")
    machine.wait_until_fails("test -e /run/there", timeout_s=30)
    with pytest.raises(GuestError, match="did not succeed in 2 s"):
        machine.wait_until_succeeds("test -e /run/there", timeout_s=2)
    machine.succeed("systemd-run --unit=broken false")
    with pytest.raises(GuestError, match=r"broken\.service failed"):
        machine.wait_for_unit("broken.service", timeout_s=30)


def test_files_go_in_and_out(machine: Machine) -> None:
    """What is put is what is read, whatever characters it holds."""
    text = "a 'quoted' $line\nüber\\\n"
    machine.put("/root/a b", text)
    assert machine.read("/root/a b") == text


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_crash_loses_what_was_not_flushed(machine: Machine) -> None:
    """A power cut keeps what was synced, loses what was not, and the disk boots; a reboot keeps everything."""
    before = boot_id(machine)
    machine.succeed("echo kept >/root/kept; sync; echo lost >/root/lost")
    machine.crash()
    crashed = boot_id(machine)
    assert crashed != before
    assert machine.read("/root/kept") == "kept\n"
    machine.fail("test -s /root/lost")
    machine.succeed("echo again >/root/again")
    machine.reboot()
    assert boot_id(machine) not in {before, crashed}
    assert machine.read("/root/again") == "again\n"
    assert machine.succeed("systemctl is-system-running --wait", timeout_s=120).strip() == "running"


def test_shell_answers_a_starved_machine(machine: Machine) -> None:
    """While memory and swap are full the shell still answers."""
    hog = "python3 -c 'import time; kept = [bytearray(b\"x\") * 2**20 for _ in range(1500)]; time.sleep(600)'"
    machine.succeed("systemctl stop systemd-oomd.socket systemd-oomd.service")
    machine.succeed(f"systemd-run --unit=hog -p OOMScoreAdjust=-500 {hog}")
    starved = "awk '/^MemAvailable/ {exit $2 > 200000}' /proc/meminfo"
    machine.wait_until_succeeds(starved, timeout_s=120)
    asked_s = time.monotonic()
    machine.succeed("true", timeout_s=ANSWERS_WHEN_STARVED_S)
    assert time.monotonic() - asked_s < ANSWERS_WHEN_STARVED_S


def test_dead_qemu_is_reported_at_once(machine: Machine) -> None:
    """When QEMU has died, the next call says so within a second or two, and no deadline is waited for."""
    record = record_of(machine.name)
    assert record
    os.kill(record.pid, signal.SIGKILL)
    asked_s = time.monotonic()
    with pytest.raises(GuestError, match="QEMU has ended"):
        machine.succeed("true")
    assert time.monotonic() - asked_s < 5
