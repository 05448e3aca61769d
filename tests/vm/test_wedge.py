"""The bench itself: a stock machine freezes, and what was recorded, judged and read of it is so."""

import itertools
from dataclasses import replace

import pytest

from lab import fakegb10
from lab.machine import Machine
from lab.progress import Progress
from lab.wedge import case as cases
from lab.wedge import run as runner
from lab.wedge import ship
from lab.wedge.case import Case
from lab.wedge.places import PLACES
from lab.wedge.recording import Sample, full_percent
from lab.wedge.results import Run
from lab.wedge.scenarios import SCENARIOS, STEADY
from plimsoll.box import engines

pytestmark = [pytest.mark.vm, pytest.mark.alone, pytest.mark.timeout(1800)]

QUIET = Progress(quiet=True)
SHORT_WINDOW_S = 60.0
"""Logins hang from 12 to 18 s on, later on a busy host, and each is given up after 30 s."""


def measured(case: Case) -> Run:
    """Make one run, of which only the load of this host may say that it does not count."""
    run = runner.run(case, cases.fingerprint(case, "test"), QUIET)
    assert not run["discarded"] or run["discarded"].startswith("this host"), run["discarded"]
    return run


def samples_of(run: Run) -> list[Sample]:
    """Return what was recorded."""
    return [Sample(*values) for values in run["samples"]]


@pytest.mark.slow
def test_a_stock_machine_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In regime C no login comes back; it is recorded all the while, and console, kern.log and journal are read."""
    monkeypatch.setattr(runner, "WINDOW_S", SHORT_WINDOW_S)
    run = measured(Case("stock", "ramp", "C", "unit"))
    assert not run["survived"]
    assert run["recovery_s"] is None
    assert run["logins"][0]["ok"]
    assert [login["took_s"] for login in run["logins"] if not login["ok"]].count(30.0) >= 1
    recorded = samples_of(run)
    times = [sample.at_s for sample in recorded]
    assert times[0] < 0
    assert times[-1] > run["logins"][-1]["at_s"]
    # the recorder needs no memory, so it does not stop when there is none
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 5
    assert max(percent for _, percent in full_percent(recorded)) > 30
    in_the_end = recorded[-1]
    assert in_the_end.misc_reclaimable_kib is not None
    assert in_the_end.misc_reclaimable_kib > run["machine"]["memory_kib"] / 2
    assert in_the_end.mem_available_kib is not None
    assert in_the_end.mem_free_kib is not None
    assert in_the_end.mem_available_kib > 4 * in_the_end.mem_free_kib
    assert run["logs"]["console_lines"] > 0
    assert run["logs"]["problems"] == []
    assert run["logs"]["journal_ends_at_s"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["A", "C"])
def test_ordinary_memory_never_freezes(regime: cases.Regime) -> None:
    """The same amount of ordinary memory leaves the machine reachable."""
    run = measured(Case("stock", "control", regime, "unit"))
    assert run["survived"]
    assert len(run["logins"]) > 20


@pytest.mark.slow
def test_a_healthy_workload_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stock machine nobody touches it, and every login comes back."""
    monkeypatch.setattr(runner, "WINDOW_S", 100.0)
    run = measured(Case("stock", "healthy", "C", "unit"))
    assert run["survived"]
    assert run["killed"] == []


@pytest.mark.slow
def test_the_published_arguments_of_earlyoom_hold_in_regime_a() -> None:
    """Where the driver's memory is in no counter, earlyoom without the swap condition kills it, and nobody else."""
    run = measured(Case("earlyoom-seed", "ramp", "A", "unit"))
    assert run["survived"]
    assert {kill["by"] for kill in run["killed"]} == {"earlyoom"}
    assert run["bystanders_killed"] == []
    assert "earlyoom" in run["machine"]["versions"]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_place_runs_the_workload(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is started, it takes its memory from the driver: a steady model is there after half a minute."""
    monkeypatch.setattr(runner, "WINDOW_S", 30.0)
    steady = replace(SCENARIOS["healthy"], plan=replace(SCENARIOS["healthy"].plan, phases=STEADY))
    monkeypatch.setitem(SCENARIOS, "healthy", steady)
    run = measured(Case("stock", "healthy", "C", place))
    assert run["survived"]
    misc = [s.misc_reclaimable_kib for s in samples_of(run) if s.misc_reclaimable_kib is not None]
    assert misc[-1] / run["machine"]["memory_kib"] == pytest.approx(0.65, abs=0.05)


@pytest.mark.slow
def test_a_model_server_is_known_and_answers(machine: Machine) -> None:
    """In a real unit it has the real names, answers a prompt, and ends with success some seconds after SIGTERM."""
    ship.install(machine, QUIET)
    fakegb10.load(machine, regime="C")
    steady = replace(SCENARIOS["healthy"], plan=replace(SCENARIOS["healthy"].plan, phases=STEADY))
    command = ship.install_model(machine, steady, steady.plan, 1 << 30)
    machine.succeed(PLACES["unit"].script.format(command=command))
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/v1/models', timeout=9).read().decode())"
    assert "/models/healthy" in machine.wait_until_succeeds(f'python3 -c "{ask}"', 120)
    for comm, engine in (("VLLM::EngineCor", "vllm"), ("vllm", "vllm")):
        pid = machine.succeed(f"pgrep --exact '{comm}'").strip()
        words = machine.succeed(f"tr '\\0' '\\n' </proc/{pid}/cmdline").splitlines()
        assert engines.of_process(comm, words) == engine
    assert fakegb10.state(machine).vmm_kib > 800 << 10
    machine.succeed("systemctl stop engine.service")
    assert machine.succeed("systemctl show -p Result --value engine.service") == "success\n"
    assert fakegb10.state(machine).in_use_kib == 0
