"""The guard on a real kernel, with the stand-in for the driver: it stops the engine, in time, and nobody else."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lab import fakegb10
from lab.machine import Machine
from lab.progress import Progress
from lab.wedge import ship
from tests.vm import deploying

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(2400)]

RECORDS = "/var/log/plimsoll/guard.jsonl"
OVER_COMMIT = "--percent 97 --percent-per-s 20"
"""24 GiB/s of a 121.6 GiB box, up to what a driver was seen to hold when such a box froze."""
LOGIN_LIMIT_S = 60
ACCEPTABLE_S = 10.0
LOGINS, EVERY_S = 20, 2.0
OLDEST_S = 5.0
"""The status is written every 2 s; what is 10 s old counts as no guard."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Machine]:
    """Yield a machine with the guard, every rule but stall armed, and the stand-in driver's programs."""
    with deploying.started("guarded") as machine:
        deploying.deploy(machine)
        fakegb10.install(machine, Progress(quiet=True))
        # logins pile up where this host is busy, and are not to be turned away for that
        machine.put(ship.SSHD_FILE, ship.SSHD)
        machine.succeed("systemctl reload ssh.service && plimsoll guard arm", timeout_s=120)
        yield machine


@pytest.fixture(params=["A", "C"])
def regime(guarded: Machine, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a way of accounting in which the driver is loaded, and a log of records that is empty."""
    fakegb10.load(guarded, regime=request.param)
    guarded.succeed(f"truncate -s 0 {RECORDS}; dmesg --clear")
    yield request.param
    guarded.run("systemctl kill --signal=KILL engine.service")
    fakegb10.unload(guarded)


def start(machine: Machine, arguments: str) -> None:
    """Start an engine as a unit of the system."""
    machine.succeed(f"systemd-run --quiet --collect --unit=engine fakegb10 hold {arguments}", timeout_s=120)


def login(machine: Machine) -> tuple[int, float]:
    """Log in anew and do nothing; return the exit code and how long it took."""
    began_s = time.monotonic()
    try:
        code = machine.ssh("true", "admin", LOGIN_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    return code, time.monotonic() - began_s


def logins(machine: Machine) -> list[tuple[int, float]]:
    """Log in again and again at an even pace, whether or not the one before has come back."""
    with ThreadPoolExecutor(LOGINS) as pool:
        begun: list[Future[tuple[int, float]]] = []
        for number in range(LOGINS):
            begun.append(pool.submit(login, machine))
            # the pace is what is measured at: nothing is waited for
            time.sleep(EVERY_S if number < LOGINS - 1 else 0)
        return [each.result() for each in begun]


def records(machine: Machine, kind: str) -> list[dict[str, Any]]:
    """Return the guard's records of a kind."""
    found = [json.loads(line) for line in machine.succeed(f"cat {RECORDS}").splitlines()]
    return [each for each in found if each["kind"] == kind]


@pytest.mark.alone
def test_an_over_commit_is_stopped(guarded: Machine, regime: str) -> None:
    """Every fresh login comes back within 10 s, the engine is killed by the guard, and the kernel kills nobody."""
    start(guarded, OVER_COMMIT)
    came_back = logins(guarded)
    assert [code for code, _ in came_back] == [0] * LOGINS
    assert max(took_s for _, took_s in came_back) < ACCEPTABLE_S, f"regime {regime}"
    (signalled,) = records(guarded, "signalled")
    assert signalled["victim"]["name"] == "engine.service"
    assert signalled["details"]["outcome"] == "signalled"
    assert guarded.run("systemctl is-active engine.service").out.strip() == "inactive"
    assert "Killed process" not in guarded.succeed("dmesg")
    guarded.wait_until_succeeds(f'grep -q \'"kind":"recovered"\' {RECORDS}', timeout_s=60)
    (recovered,) = records(guarded, "recovered")
    assert recovered["came_back_kib"] > signalled["victim"]["attributed_kib"] / 2


def test_a_load_that_ends_above_the_lines_is_left_alone(guarded: Machine, regime: str) -> None:
    """Two thirds of memory, taken as fast, stop nobody."""
    start(guarded, "--percent 65 --percent-per-s 20")
    assert [code for code, _ in logins(guarded)] == [0] * LOGINS
    assert guarded.succeed("systemctl is-active engine.service").strip() == "active", f"regime {regime}"
    assert records(guarded, "signalled") == []


def test_a_guard_that_is_killed_is_there_again(guarded: Machine) -> None:
    """It is started again at once, and it looks again."""
    before = guarded.succeed("systemctl show -p MainPID --value plimsoll-guard").strip()
    guarded.succeed(f"kill -9 {before}")
    guarded.wait_until_succeeds(
        f"systemctl is-active plimsoll-guard && test $(systemctl show -p MainPID --value plimsoll-guard) != {before}",
        timeout_s=60,
    )
    guarded.wait_until_succeeds("plimsoll status >/dev/null", timeout_s=60)


def test_a_faulty_configuration_is_refused_and_the_old_one_holds(guarded: Machine) -> None:
    """A reload names the line, fails, and the running guard goes on."""
    guarded.succeed("cp /etc/plimsoll/guard.toml /run/good.toml && echo 'floor_gb = 1' >>/etc/plimsoll/guard.toml")
    try:
        guarded.fail("systemctl reload plimsoll-guard", timeout_s=120)
        assert "guard.toml:" in guarded.succeed("journalctl -u plimsoll-guard -n 20 --no-pager")
        guarded.succeed("plimsoll status >/dev/null")
    finally:
        guarded.succeed("cp /run/good.toml /etc/plimsoll/guard.toml && systemctl reload plimsoll-guard", timeout_s=120)


def test_a_new_version_takes_over_without_a_gap(guarded: Machine) -> None:
    """After another program is installed a reload changes the process, and a sample is there all the while."""
    program = "/usr/local/lib/plimsoll/plimsoll.pyz"
    before = guarded.succeed("systemctl show -p MainPID --value plimsoll-guard").strip()
    oldest = (
        "python3 -c 'import json,time; e=time.monotonic()+25; w=0\n"
        'while time.monotonic()<e: w=max(w,time.monotonic()-json.load(open("/run/plimsoll/status.json"))["guard"]'
        '["sampled_monotonic_s"]); time.sleep(0.1)\nprint(w)\''
    )
    guarded.succeed(f"cp {program} /run/good.pyz && printf '\\n# another' >>{program}")
    try:
        guarded.succeed(f"({oldest} >/run/oldest) & systemctl reload plimsoll-guard; wait", timeout_s=180)
        assert guarded.succeed("systemctl show -p MainPID --value plimsoll-guard").strip() != before
        assert float(guarded.read("/run/oldest")) < OLDEST_S
    finally:
        guarded.succeed(f"cp /run/good.pyz {program} && systemctl reload plimsoll-guard", timeout_s=180)
