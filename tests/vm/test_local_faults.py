"""A host that cannot be written to, or is none: one clear error, and nothing half done."""

import datetime
import json
import shlex

import pytest

from lab.machine import Machine
from plimsoll import zipapp
from plimsoll.box import files
from plimsoll.controls import plan, preflight
from plimsoll.policy import Policy
from tests.vm import breaking, deploying

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2400)]


def refused(machine: Machine, *wanted: str) -> None:
    """Assert that a deploy is refused with these words, and leaves the machine as it was."""
    before = breaking.manifest(machine)
    run = deploying.failing_deploy(machine)
    assert [word for word in wanted if word not in run.err] == [], run.err
    assert breaking.differences(before, breaking.manifest(machine)) == []


@pytest.mark.slow
def test_a_read_only_etc_is_refused(machine: Machine) -> None:
    """/etc mounted read-only is found before the first change, and said with what to do."""
    machine.succeed("mount --bind /etc /etc; mount -o remount,bind,ro /etc")
    refused(machine, "/etc is mounted read-only", "remount it")


@pytest.mark.slow
def test_a_full_disk_is_refused(machine: Machine) -> None:
    """A disk without a free block, root's reserve included, is found before the first change."""
    machine.run("dd if=/dev/zero of=/var/full bs=1M; dd if=/dev/zero of=/var/full2 bs=512", timeout_s=600)
    refused(machine, "bytes free", "make room")


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_change_leaves_the_old_files(machine: Machine) -> None:
    """The disk is full when the box writes: one error that names it, every file as before, and no leftovers."""
    plans = breaking.layer_plans(machine)
    before = breaking.manifest(machine)
    machine.run("dd if=/dev/zero of=/var/full bs=1M; dd if=/dev/zero of=/var/full2 bs=512", timeout_s=600)
    for layer in ("kernel", "slices", "journald"):
        result = breaking.program(machine, "apply", stdin=plans[layer])
        assert (result.rc, len(result.err.splitlines())) == (1, 1), result.err
        assert "No space left on device" in result.err
    assert machine.succeed(f"find / -xdev -name '*{files.TEMPORARY_SUFFIX}'") == ""
    machine.succeed("rm /var/full /var/full2")
    assert breaking.differences(before, breaking.manifest(machine)) == []
    assert breaking.program(machine, "apply", stdin=plans["slices"]).rc == 0


@pytest.mark.slow
def test_a_container_is_refused(machine: Machine) -> None:
    """Where PID 1 says that this is a container, kernel settings are not ours to change: refused with the reason."""
    machine.put("/run/systemd/container", "docker\n")
    refused(machine, "this is a container")


@pytest.mark.slow
def test_a_change_that_is_under_way_is_not_disturbed(machine: Machine) -> None:
    """While another plimsoll holds the lock, a deploy fails with one reason, and succeeds when it is free."""
    machine.succeed("mkdir -p /run/plimsoll; systemd-run --unit=busy flock /run/plimsoll/lock sleep infinity")
    machine.wait_until_fails("flock -n /run/plimsoll/lock true")
    refused(machine, "another plimsoll is changing this host")
    machine.succeed("systemctl stop busy.service")
    breaking.apply_on_box(machine, breaking.WITHOUT_EARLYOOM)


@pytest.mark.slow
def test_a_setting_that_the_kernel_does_not_have_is_left_out(machine: Machine) -> None:
    """A key that is missing below /proc/sys is reported as unsupported and not written; the rest of its layer is."""
    machine.succeed(
        "cp -r /proc/sys/vm /run/vm 2>/dev/null; rm /run/vm/watermark_boost_factor; mount --bind /run/vm /proc/sys/vm"
    )
    deploying.deploy(machine, breaking.WITHOUT_EARLYOOM)
    found = deploying.not_ok(machine)
    assert list(found) == ["kernel/vm.watermark_boost_factor"]
    assert found["kernel/vm.watermark_boost_factor"].startswith("unsupported: this kernel has no")
    assert "watermark_boost_factor" not in machine.read("/etc/sysctl.d/zz-plimsoll.conf")
    assert machine.read("/proc/sys/kernel/sysrq").strip() == "1"


@pytest.mark.slow
def test_without_systemd_it_is_refused(machine: Machine) -> None:
    """Where PID 1 is a shell and systemd does not run, the state can still be read, and the one reason is given."""
    request = plan.request(Policy())
    command = zipapp.from_memory("state", "--request", json.dumps(request.to_json()))
    inside = f"mount -t tmpfs none /run; exec {command}"
    result = machine.run(
        f"unshare --fork --pid --mount --mount-proc sh -c {shlex.quote(inside)}",
        stdin=f"{zipapp.first_line()}\n".encode(),
    )
    assert result.rc == 0, result.err
    state = json.loads(result.out)
    (problem,) = preflight.problems(Policy(), state)
    assert problem.startswith("PID 1 is ")
    assert "not systemd" in problem
    # it is planned before it is refused
    plan.host_plan(Policy(), state, lambda _control: None, datetime.date(2027, 1, 1))
