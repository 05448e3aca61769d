"""Which runs are made, what their outcome rests on, and which of them are there already."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lab.errors import LabError, UsageError
from lab.progress import Progress
from lab.snapshot import Spec
from lab.wedge import case as cases
from lab.wedge import cli, quiet, results
from lab.wedge import run as runner
from lab.wedge.case import Case
from lab.wedge.defences import DEFENCES
from lab.wedge.places import PLACES
from lab.wedge.scenarios import SCENARIOS
from tests.unit.wedge_builders import run

SOME = ["stock", "earlyoom-15", "layers"]
CASE = Case("stock", "ramp", "C", "unit")


def test_the_core_is_five_runs_of_each_defence_in_both_regimes() -> None:
    """Five of the ramp as a system unit, for each defence in regimes A and C; one of each comes before any second."""
    core = cases.core(SOME, 0)
    assert len(core) == len(set(core)) == 5 * 2 * len(SOME)
    assert {(case.scenario, case.place) for case in core} == {("ramp", "unit")}
    assert Counter((case.defence, case.regime) for case in core) == dict.fromkeys(
        [(name, regime) for name in SOME for regime in "AC"], 5
    )
    assert [case.index for case in core] == sorted(case.index for case in core)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairs_are_covered_as_far_as_forty_runs_go(seed: int) -> None:
    """Every two properties meet in core or pairs, or forty runs are spent; no pair of the core is sought again."""
    names = list(DEFENCES)
    chosen = cases.pairwise(names, seed)
    missing = cases.pairs_missing(cases.everything(names), [*cases.core(names, seed), *chosen])
    assert len(chosen) <= 40
    assert not missing or len(chosen) == 40
    assert len(missing) < 30
    assert {case.scenario for case in chosen} == set(SCENARIOS)
    assert {case.place for case in chosen} == set(PLACES)


def test_all_pairs_are_covered_where_runs_are_allowed() -> None:
    """With runs enough no pair is left out, and no run is made that brings no new pair."""
    core, chosen = cases.core(SOME, 0), cases.pairwise(SOME, 0, most=100)
    wanted = cases.everything(SOME)
    assert not cases.pairs_missing(wanted, [*core, *chosen])
    for number in range(len(chosen)):
        before, after = (cases.pairs_missing(wanted, [*core, *chosen[:end]]) for end in (number, number + 1))
        assert after < before


def test_the_seed_chooses_the_pairs() -> None:
    """The same seed gives the same runs, another one others."""
    assert cases.matrix(SOME, 3) == cases.matrix(SOME, 3)
    assert cases.pairwise(SOME, 3) != cases.pairwise(SOME, 4)


def test_every_defence_meets_the_same_ramps() -> None:
    """Rates differ from run to run, and are the same for each defence, regime and place."""
    plans = [[Case(name, "ramp", "A", "unit", index).plan() for index in range(5)] for name in SOME]
    assert plans[0] == plans[1] == plans[2]
    rates = [plan.phases[-1].rate for plan in plans[0]]
    assert len(set(rates)) == 5
    assert all(14 <= rate <= 34 for rate in rates)
    assert Case("stock", "ramp", "A", "unit", seed=1).plan() != plans[0][0]


# --- what a run's outcome rests on ------------------------------------------------------------------


def test_a_fingerprint_is_of_what_matters() -> None:
    """Another machine, defence, place or plan gives another; another regime or number of the same plan may not."""
    of = cases.fingerprint
    assert of(CASE, "m") == of(Case("stock", "ramp", "A", "unit"), "m")
    others = [
        Case("oomd", "ramp", "C", "unit"),
        Case("stock", "leak", "C", "unit"),
        Case("stock", "ramp", "C", "scope"),
        Case("stock", "ramp", "C", "unit", index=1),
        Case("layers", "ramp", "C", "unit"),
    ]
    assert len({of(CASE, "m"), of(CASE, "other"), *(of(case, "m") for case in others)}) == 7


def test_plimsoll_itself_matters_only_where_it_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed template gives new runs of the defences that deploy, and keeps all others."""
    before = {name: cases.fingerprint(Case(name, "ramp", "C", "unit"), "m") for name in DEFENCES}
    monkeypatch.setattr(cases, "PLIMSOLL", cases.PLIMSOLL[:-1])
    after = {name: cases.fingerprint(Case(name, "ramp", "C", "unit"), "m") for name in DEFENCES}
    assert {name for name in DEFENCES if before[name] != after[name]} == {"layers", "plimsoll", "plimsoll-new"}


# --- the results file -------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Each run is a line; a line that was cut off is no run, and the next one begins on a line of its own."""
    file = tmp_path / "deep" / "results.jsonl"
    assert results.load(file) == []
    results.append(file, run())
    with file.open("a") as opened:
        opened.write('{"defence": "sto')
    results.append(file, run(defence="oomd"))
    assert [found["defence"] for found in results.load(file)] == ["stock", "oomd"]
    assert results.load(file)[0] == json.loads(json.dumps(run()))


def test_only_what_is_there_is_not_run_again() -> None:
    """A discarded run, one with another fingerprint and one of another number are run; the one that is there is not."""
    second = Case("stock", "ramp", "C", "unit", index=1)
    wanted = [(CASE, "a" * 16), (second, "b" * 16)]
    assert results.remaining(wanted, []) == [CASE, second]
    assert results.remaining(wanted, [run(fingerprint="a" * 16)]) == [second]
    assert results.remaining(wanted, [run(fingerprint="a" * 16, discarded="busy")]) == [CASE, second]
    assert results.remaining(wanted, [run(fingerprint="c" * 16)]) == [CASE, second]
    assert results.remaining(wanted, [run(fingerprint="b" * 16, index=1)]) == [CASE]


def test_the_newest_counted_run_is_shown() -> None:
    """Of one case the last run that counts stands for it, whatever was discarded after it."""
    runs = [run(at="1"), run(at="2"), run(at="3", discarded="busy")]
    assert [found["at"] for found in results.newest(results.preferred(runs))] == ["2"]


# --- the command ------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """A bench without machines: each run notes its case and counts; that of the second case is discarded once."""
    made: list[Case] = []

    def one(case: Case, fingerprint: str, _: Progress) -> results.Run:
        made.append(case)
        busy = "busy" if len(made) == 2 else ""
        key = {name: getattr(case, name) for name in results.KEY}
        return {**run(discarded=busy), **key, "fingerprint": fingerprint}

    monkeypatch.setattr(runner, "run", one)
    monkeypatch.setattr(runner, "machine_key", lambda *_: "m")
    monkeypatch.setattr(quiet, "await_quiet", lambda *_: quiet.Load(0, 0))
    return made


def measure(file: Path, attempts: int) -> list[results.Run]:
    """Measure three runs of the stock machine."""
    return cli.measure([Case("stock", "ramp", "C", "unit", n) for n in range(3)], file, attempts, Progress(quiet=True))


def test_a_bench_goes_on_where_it_was(bench: list[Case], tmp_path: Path) -> None:
    """A second call makes only what was discarded, a third nothing; each returns all runs."""
    file = tmp_path / "r.jsonl"
    assert [bool(run["discarded"]) for run in measure(file, 1)].count(True) == 1
    assert [case.index for case in bench] == [0, 1, 2]
    assert not any(run["discarded"] for run in measure(file, 1))
    assert [case.index for case in bench] == [0, 1, 2, 1]
    assert len(measure(file, 1)) == 3
    assert len(bench) == 4


def test_discarded_runs_are_repeated_when_asked(bench: list[Case], tmp_path: Path) -> None:
    """With several attempts one call is enough."""
    assert not any(run["discarded"] for run in measure(tmp_path / "r.jsonl", 3))
    assert [case.index for case in bench] == [0, 1, 2, 1]


def test_a_machine_that_cannot_be_made_stops_only_its_own_runs(
    bench: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an image for containers all other runs are made; without any machine the reason is the command's."""

    def key(spec: Spec, _: Progress) -> str:
        if spec.containers:
            raise LabError("no docker")
        return "m"

    monkeypatch.setattr(runner, "machine_key", key)
    pair = [Case("stock", "ramp", "C", "container"), CASE]
    found = cli.measure(pair, tmp_path / "r.jsonl", 1, Progress(quiet=True))
    assert [run["place"] for run in found] == ["unit"]
    assert bench == [CASE]
    with pytest.raises(LabError, match="no docker"):
        cli.measure(pair[:1], tmp_path / "r.jsonl", 1, Progress(quiet=True))


def test_a_machine_that_fails_is_recorded(bench: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that did not come about is in the file with its reason, and the next one is made."""
    del bench

    def fail(*_: object) -> results.Run:
        raise LabError("the deploy failed\nwith details")

    monkeypatch.setattr(runner, "run", fail)
    found = measure(tmp_path / "r.jsonl", 1)
    assert [run["discarded"] for run in found] == ["the deploy failed"] * 3


def test_a_defence_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name it is an error that says why; not asked for, Plimsoll without its guard takes its place."""
    monkeypatch.setattr("lab.wedge.defences.Layers.model_fields", {})
    assert cli.chosen_defences([]) == ["stock", "layers"]
    with pytest.raises(UsageError, match="the defence plimsoll is not available: no guard layer"):
        cli.chosen_defences(["oomd", "plimsoll"])
    assert cli.chosen_defences(["oomd"]) == ["oomd"]


def test_plimsoll_with_its_guard_is_shown_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guard layer the whole of Plimsoll stands beside the stock machine, and its policy turns the guard on."""
    monkeypatch.setattr("lab.wedge.defences.Layers.model_fields", {"guard": None})
    assert cli.chosen_defences([]) == ["stock", "plimsoll"]
    assert DEFENCES["plimsoll"].policy()["layers"] == {"guard": True}
    assert DEFENCES["layers"].policy()["layers"] == {"guard": False}
    assert DEFENCES["layers"].policy()["values"]["sshd/MemoryMin"] == "64M"
