"""The last lines before a reset reach the disk, and journald itself is not the victim."""

import pytest

from lab.machine import Machine
from tests.vm.deploying import Deployed

pytest_plugins = ["tests.vm.deployed"]
pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

CGROUP = "/sys/fs/cgroup/system.slice/systemd-journald.service"
LAST_WORDS = "the last words before the reset"


def crash_6_s_after_a_line(machine: Machine) -> bool:
    """Log a line, cut the power 6 s later, and say whether the journal has it afterwards."""
    boot = machine.read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
    machine.succeed(f"journalctl --sync; logger '{LAST_WORDS}'; sleep 6")
    machine.crash()
    return LAST_WORDS in machine.succeed(f"journalctl --no-pager --quiet _BOOT_ID={boot} | tail -n 50")


def test_a_line_survives_a_reset_6_s_later(hardened: Deployed) -> None:
    """With a sync interval of 5 s a line logged 6 s before the power is cut is in the journal afterwards."""
    assert crash_6_s_after_a_line(hardened.machine)


@pytest.mark.slow
def test_a_stock_machine_loses_that_line(machine: Machine) -> None:
    """With journald's own five minutes the same line is lost: the setting is what saves it."""
    assert not crash_6_s_after_a_line(machine)


def test_journald_knows_its_limit(hardened: Deployed) -> None:
    """The running journald says that the journal may take 2 GiB; on this 4 GiB disk its own choice is a tenth."""
    said = hardened.machine.succeed("journalctl --no-pager --quiet -o cat -u systemd-journald")
    shown = [line for line in said.splitlines() if line.startswith("System Journal")]
    assert "max 2G" in shown[-1]


def test_journald_is_protected_and_preferred(hardened: Deployed) -> None:
    """The process cannot be chosen by the OOM killer; its cgroup has ten times the usual share of a processor."""
    machine = hardened.machine
    pid = machine.succeed("systemctl show -p MainPID --value systemd-journald").strip()
    assert machine.read(f"/proc/{pid}/oom_score_adj").strip() == "-1000"
    assert machine.read(f"{CGROUP}/cpu.weight").strip() == "1000"
    assert machine.read(f"{CGROUP}/memory.min").strip() == str(64 << 20)
