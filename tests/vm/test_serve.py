"""`plimsoll serve` on a real kernel, with a real systemd and the stand-in for the driver."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lab import fakegb10
from lab.engine.kinds import KINDS
from lab.engine.plan import Phase, Plan
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec
from lab.wedge import ship
from lab.wedge.scenarios import Scenario
from tests.vm import deploying

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(7200)]

MEMORY_MIB = 6144
"""80 % for a model leave 1.2 GiB: the machine's own programs need 0.4, and the line is at 0.45."""
CYCLES = 20
FOOTPRINT = 0.80
OVERLAP = 0.95
"""Of all memory: one model and what the driver keeps besides; two would want 160 %."""
ACT_TIMEOUT_S = 900
"""Under emulation on a busy host an engine takes a minute to come up."""
LARGE = Plan(
    (
        Phase("weights", grow_percent=30, percent_per_s=20, read_percent=30, loading=True),
        Phase("KV cache", grow_percent=50, percent_per_s=25, loading=True),
    )
)
BURSTING = Plan(
    (
        Phase("weights", grow_percent=30, percent_per_s=20, loading=True),
        Phase("requests", hold_s=90),
        Phase("drafts", grow_percent=150, percent_per_s=20),
    ),
    memory="ordinary",
    engine="llama-server",
)
"""Speculative decoding that takes more than there is once requests come; the kernel sees whose memory it is."""
MODEST = Plan((Phase("weights", grow_percent=30, percent_per_s=0.25, loading=True),), engine="sglang")
"""Its load takes two minutes."""
KILLS = 8
WITNESS = """\
import json, time
most = 0
while True:
    with open("/proc/driver/fakegb10/state") as file:
        found = dict(line.split(": ") for line in file.read().splitlines())
    held = int(found["plain_kib"]) + int(found["vmm_kib"])
    if held > most:
        most = held
        with open("/run/most", "w") as file:
            file.write(str(most))
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Machine]:
    """Yield a deployed machine with an armed guard, the model servers' stand-ins, and a bystander."""
    with deploying.started("served", Spec(memory_mib=MEMORY_MIB)) as machine:
        deploying.deploy(machine)
        ship.install(machine, Progress(quiet=True))
        machine.put("/run/witness.py", WITNESS)
        machine.succeed("plimsoll guard arm", timeout_s=120)
        # whom the kernel would take first
        machine.succeed(
            "systemd-run --quiet --unit=bystander --property=OOMScoreAdjust=300 "
            "python3 -c 'import time; held = bytearray(64 << 20); time.sleep(1e6)'",
            timeout_s=120,
        )
        yield machine


@pytest.fixture(params=["A", "B", "C"])
def regime(box: Machine, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a way of accounting in which the driver is loaded; whatever a test leaves running is ended."""
    fakegb10.load(box, regime=request.param)
    box.succeed("dmesg --clear; rm -f /run/most /var/lib/plimsoll/serve/*; mkdir -p /etc/plimsoll/models.d")
    yield request.param
    box.run("systemctl stop 'plimsoll-attend-*'; systemctl kill --signal=KILL large modest bursting")
    box.run("systemctl reset-failed; systemctl stop witness; rm -rf /run/plimsoll/serve /etc/plimsoll/models.d/*")
    fakegb10.unload(box)


def memory_kib(box: Machine) -> int:
    """Return MemTotal."""
    return int(box.succeed("awk '/^MemTotal/ { print $2 }' /proc/meminfo"))


def declare(box: Machine, name: str, plan: Plan, share: float, more: str = "") -> None:
    """Install a model server as a unit of the system, and its file for `plimsoll serve`."""
    total_kib = memory_kib(box)
    # a scenario of ordinary memory is an ordinary program, which answers no requests
    server = Scenario(name, name, replace(plan, memory="driver"))
    command = ship.install_model(box, server, plan, total_kib << 10)
    box.put(f"/etc/systemd/system/{name}.service", f"[Service]\nExecStart={command}\n")
    directory = f"{ship.MODELS}/{name}"
    port = KINDS[plan.engine].port
    model = f"{directory}/weights" if plan.engine == "llama-server" else directory
    box.put(
        f"/etc/plimsoll/models.d/{name}.toml",
        f'[run]\nunit = "{name}.service"\n'
        f'[need]\ngib = {share * total_kib / (1 << 20):.3f}\nweights = ["{directory}/weights"]\n'
        f'[ready]\nurl = "http://127.0.0.1:{port}/v1/models"\nmodel_id = "{model}"\n'
        f"[stop]\ngrace_s = 20\nreclaim_timeout_s = 120\n{more}",
    )
    box.succeed("systemctl daemon-reload", timeout_s=120)


def serve(box: Machine, words: str, code: int = 0) -> str:
    """Run a command that has to end with this exit code; return what it has told."""
    done = box.run(f"plimsoll serve {words}", ACT_TIMEOUT_S)
    assert done.rc == code, f"{words}: {done.rc}\n{done.out}\n{done.err}"
    return done.err


def model(box: Machine, name: str) -> dict[str, Any]:
    """Return what `serve status` says of a model."""
    (found,) = json.loads(box.succeed(f"plimsoll serve status {name} --json", timeout_s=120))["models"]
    assert isinstance(found, dict)
    return found


def assert_nobody_was_hurt(box: Machine) -> None:
    """The bystander goes on, and neither the kernel nor the guard has killed anybody."""
    shown = box.succeed("systemctl show -p NRestarts,ActiveState bystander").split()
    assert sorted(shown) == ["ActiveState=active", "NRestarts=0"]
    assert "Killed process" not in box.succeed("dmesg")
    assert box.run('grep -c \'"kind":"signalled"\' /var/log/plimsoll/guard.jsonl').out.strip() in ("", "0")


def test_stop_and_start_never_overlap(box: Machine, regime: str) -> None:
    """Twenty times on the next line of a script: no two footprints at once, and nobody else is killed."""
    declare(box, "large", LARGE, FOOTPRINT)
    box.succeed("systemd-run --quiet --collect --unit=witness python3 /run/witness.py", timeout_s=120)
    serve(box, "start large")
    assert model(box, "large")["state"] == "ready"
    for number in range(CYCLES):
        done = box.run("plimsoll serve stop large && plimsoll serve start large", 2 * ACT_TIMEOUT_S)
        assert done.rc == 0, f"regime {regime}, cycle {number}: {done.out}\n{done.err}"
    serve(box, "stop large")
    assert fakegb10.state(box).in_use_kib == 0
    most_kib = int(box.read("/run/most"))
    assert FOOTPRINT * 0.95 < most_kib / memory_kib(box) < OVERLAP
    assert_nobody_was_hurt(box)


def test_a_second_start_is_refused(box: Machine, regime: str) -> None:
    """Beside one that runs neither itself nor another fits: 75, with what is missing, and nothing happens."""
    declare(box, "large", LARGE, FOOTPRINT)
    declare(box, "modest", MODEST, 0.3)
    serve(box, "start large")
    before = box.succeed("systemctl show -p MainPID --value large")
    assert "large runs already" in serve(box, "start large", code=75)
    told = serve(box, "start modest", code=75)
    assert "modest is not started" in told
    assert "GiB are missing" in told
    assert box.succeed("systemctl show -p MainPID --value large") == before
    assert box.run("systemctl is-active modest").out.strip() == "inactive"
    assert model(box, "large")["state"] == "ready", f"regime {regime}"
    serve(box, "stop large")
    assert_nobody_was_hurt(box)


@pytest.mark.parametrize("regime", ["A"], indirect=True)
def test_a_service_that_the_kernel_killed_falls_back(box: Machine, regime: str) -> None:
    """It had been ready; its fallback, whose load takes minutes, comes up with nobody at the keyboard."""
    hooks = '[fallback]\nmodel = "modest"\n[hooks]\nended = ["/bin/sh", "-c", "cat >/run/ended"]\n'
    declare(box, "bursting", BURSTING, 0.35, hooks)
    declare(box, "modest", MODEST, 0.35, '[hooks]\nstarted = ["/bin/sh", "-c", "cat >/run/started"]\n')
    # the guard would come before the kernel
    box.succeed("rm -f /run/ended /run/started; swapoff -a; systemctl stop plimsoll-guard; swapon --show")
    box.run("systemctl stop earlyoom")
    try:
        serve(box, "start bursting")
        box.wait_until_succeeds("test -s /run/started", timeout_s=ACT_TIMEOUT_S)
        assert "Killed process" in box.succeed("dmesg"), f"regime {regime}"
        ended = json.loads(box.read("/run/ended"))
        assert (ended["cause"], ended["next"]) == ("kernel", "modest")
        assert model(box, "bursting")["state"] == "failed"
        found = model(box, "modest")
        assert (found["state"], found["fallback_for"], found["attended"]) == ("ready", "bursting", True)
        assert found["usual_load_s"] > 100
        assert box.succeed("systemctl show -p Result --value bursting").strip() == "success", "reset-failed"
        serve(box, "stop modest")
    finally:
        box.run("systemctl start plimsoll-guard", ACT_TIMEOUT_S)


@pytest.mark.parametrize("regime", ["A", "B"], indirect=True)
def test_serve_itself_killed_at_any_point(box: Machine, regime: str) -> None:
    """The next call says what was cut off, and ends where the killed one would have: one process, or none."""
    declare(box, "large", LARGE, FOOTPRINT)
    dice = random.Random(f"kills {regime}")  # noqa: S311  # repeatable on purpose
    cut_off = 0
    for _ in range(KILLS):
        killed = box.run(f"timeout -s KILL {dice.uniform(0.5, 40):.1f} plimsoll serve start large", ACT_TIMEOUT_S)
        if killed.rc != 0:
            cut_off += "was cut off while it was" in _brought(box, "start large", "ready")
        assert len(fakegb10.processes(box)) == 1
        killed = box.run(f"timeout -s KILL {dice.uniform(0.5, 15):.1f} plimsoll serve stop large", ACT_TIMEOUT_S)
        if killed.rc != 0:
            cut_off += "was cut off while it was" in _brought(box, "stop large", "stopped")
        assert fakegb10.state(box).in_use_kib == 0
        assert box.succeed("plimsoll reserve --list", timeout_s=120).strip() == "nothing is reserved"
    assert cut_off > 0, "no kill came in the middle: the times have to be changed"
    assert_nobody_was_hurt(box)


def _brought(box: Machine, words: str, state: str) -> str:
    """Repeat a command that was killed; return what it told once the model is in this state."""
    done = box.run(f"plimsoll serve {words}", ACT_TIMEOUT_S)
    # a start that was killed after its work was done is refused: it runs
    assert done.rc in (0, 75), f"{words}: {done.err}"
    assert model(box, "large")["state"] == state, done.err
    return done.err
