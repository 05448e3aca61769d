"""The table, the picture, the page, the JSON document, and what the documentation says about adding a scenario."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from lab.cli import cli
from lab.errors import HostError, UsageError
from lab.wedge import defences, picture, places, report, results, scenarios, table
from lab.wedge import run as runner
from lab.wedge.case import Case
from lab.wedge.disk import Entry, Logs
from lab.wedge.probe import Login
from lab.wedge.quiet import Load
from tests.unit.test_docs import _fits, _problems, _schema
from tests.unit.wedge_builders import START_S, TOTAL_KIB, login, recorded, run

ORDER = list(defences.DEFENCES)
EARLYOOM_KILL = {"pid": 501, "name": "VLLM::EngineCor", "by": "earlyoom"}
SHOT = {"pid": 812, "name": "systemd", "by": "kernel"}
SVG = "{http://www.w3.org/2000/svg}"


def test_a_row_is_a_group_of_runs() -> None:
    """Runs that differ only in their number are one row; the order is that of the defences."""
    runs = [run(defence="oomd"), *(run(survived=index > 0, index=index) for index in range(3))]
    first, second = table.rows(runs, ORDER)
    assert (first.defence, first.survived, second.defence) == ("stock", "2 of 3", "oomd")
    assert first.came_back == "7 of 45, 60 of 60, 60 of 60"
    assert first.recovery_s == "0.0 (0.0-0.0); never in 1 of 3"
    assert first.worst_s == "2.0 (2.0-30.0)"


def test_kills_are_named_with_their_number() -> None:
    """Who was killed by whom, and in how many of the runs; the innocent have a column of their own."""
    runs = [run(killed=[EARLYOOM_KILL, SHOT], bystanders_killed=[SHOT]), run(index=1, killed=[EARLYOOM_KILL])]
    (row,) = table.rows(runs, ORDER)
    assert row.killed == "VLLM::EngineCor (by earlyoom) in 2, systemd (by kernel) in 1"
    assert row.wrongly == "systemd (by kernel) in 1"
    assert table.rows([run()], ORDER)[0].killed == "nobody"


def test_discarded_runs_are_no_figures() -> None:
    """They are listed with their reason and are in no row."""
    runs = [run(), run(index=1, discarded="this host was busy")]
    assert table.rows(runs, ORDER)[0].survived == "1 of 1"
    assert table.discards(runs) == ["stock, ramp, C, unit: this host was busy"]


def test_the_terminal_shows_everything() -> None:
    """Each column and each defence is in the table."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table.terminal([run(survived=False), run(defence="layers")], ORDER))
    shown = console.export_text()
    assert all(word in shown for word in ("stock", "layers", "0 of 1", "1 of 1", "never", "7 of 45"))


# --- the document -----------------------------------------------------------------------------------


def test_the_document_fits_its_schema() -> None:
    """A frozen run, one that survived with kills, and one that was discarded have the promised form."""
    why = UsageError("no guard")
    dropped = runner.discarded(Case("stock", "ramp", "C", "unit"), "0" * 16, why)
    document = results.document([run(survived=False), run(killed=[EARLYOOM_KILL]), dropped])
    assert not any("samples" in each for each in document["runs"])
    _fits("wedge", document)


@pytest.mark.parametrize("key", ["defence", "survived", "logins", "killed", "bystanders_killed", "recovery_s"])
def test_the_schema_demands_what_programs_rely_on(key: str) -> None:
    """A run without one of the promised keys does not pass."""
    incomplete = {name: value for name, value in run().items() if name != key}
    schema = _schema("wedge")
    assert _problems({"schema": results.SCHEMA, "runs": [incomplete]}, schema, schema)


# --- judging ----------------------------------------------------------------------------------------


def observed(console: str, load: Load | None = None, problem: str = "") -> runner.Observed:
    """What a run of two logins brings home."""
    journal = [
        Entry(START_S - 5, "systemd", "engine.service: Main process exited, code=killed, status=9/KILL", False),
        Entry(START_S + 9, "kernel", "NVRM: x", True),
        Entry(START_S + 10, "earlyoom", 'sending SIGTERM to process 501 uid 0 "VLLM::EngineCor": x', False),
    ]
    logs = Logs(["k: NVRM: x", "k: NVRM: x"], journal, [], ())
    logins = [Login(0.0, 2.0, True), Login(2.0, 2.1, True)]
    return runner.Observed(START_S, logins, load or Load(0.01, 0.0), console, logs, problem)


def console_of(lowest_kib: int) -> str:
    """A console with two samples before the start, and one after it."""
    after = recorded(round(START_S * 1000) + 9000, f"{lowest_kib} 5 5 5 5 5 5 5 5")
    before = recorded(round(START_S * 1000) - 1000, f"{TOTAL_KIB - 300000} 5 5 5 5 5 5 5 5")
    return before + "[    9.100000] NVRM: a\r\n" * 3 + after


def test_a_run_is_judged() -> None:
    """Logins, kills and logs become a run of the schema; what the journal had before the start is no part of it."""
    found = runner.assess(Case("stock", "ramp", "C", "unit"), observed(console_of(40000)), 1.9, TOTAL_KIB)
    assert (found["discarded"], found["survived"], found["recovery_s"]) == ("", True, 0.0)
    assert found["killed"] == [EARLYOOM_KILL]
    assert found["bystanders_killed"] == []
    assert found["lowest_mem_free_kib"] == 40000
    assert found["logs"] == {
        "console_lines": 3,
        "kern_log_lines": 2,
        "journal_lines": 1,
        "journal_ends_at_s": 10.0,
        "problems": [],
    }


def test_a_healthy_workload_must_not_be_killed() -> None:
    """Where nobody has a reason to kill the workload, killing it is wrong."""
    found = runner.assess(Case("stock", "healthy", "C", "unit"), observed(console_of(40000)), 1.9, TOTAL_KIB)
    assert found["bystanders_killed"] == [EARLYOOM_KILL]


@pytest.mark.parametrize(
    ("console", "load", "problem", "why"),
    [
        (console_of(TOTAL_KIB - 310000), None, "", "the workload did not run: it took 9 MiB"),
        ("", None, "", "nothing was recorded in the machine"),
        (console_of(40000), Load(0.4, 0.0), "", "this host was busy with other work: 40% of its cores"),
        (console_of(TOTAL_KIB - 310000), None, "docker: no such image", "docker: no such image"),
        (console_of(40000), None, "Failed to connect to bus", ""),
    ],
    ids=["idle", "blind", "busy", "not started", "started late"],
)
def test_a_run_that_proves_nothing_is_discarded(console: str, load: Load | None, problem: str, why: str) -> None:
    """A busy host, a workload that did not run, no recording: none is a survivor. A start that failed late may be."""
    found = runner.assess(Case("stock", "ramp", "C", "unit"), observed(console, load, problem), 1.9, TOTAL_KIB)
    assert found["discarded"] == why


# --- picture and page -------------------------------------------------------------------------------


def test_the_picture_has_a_row_for_each_defence() -> None:
    """Each run has its name, three panels, its curves, and a red dot for each login that did not come back."""
    runs = [run(survived=False), run(defence="layers", logins=[login(0), login(2)])]
    root = ElementTree.fromstring(picture.svg(runs, "a <title>"))  # noqa: S314  # our own
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "a <title>" in texts
    assert {"stock", "layers", "never as before"} <= set(texts)
    circles = [element.get("class") for element in root.iter(f"{SVG}circle")]
    assert (circles.count("lost"), circles.count("ok")) == (38, 9)
    kinds = [element.get("class") for element in root.iter(f"{SVG}polyline")]
    assert kinds == ["asked", "available", "free", "pressure"] * 2


def test_curves_stay_in_their_panels() -> None:
    """Nothing is drawn above, below or beside a panel, whatever the figures are."""
    wild = run(asked=[[0, 0], [5, 400]], samples=[[t, 10**9, 0, 0, 0, 0, 0, t, t * 10**9] for t in range(-50, 300)])
    root = ElementTree.fromstring(picture.svg([wild], "t"))  # noqa: S314  # our own
    for line in root.iter(f"{SVG}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in (line.get("points") or "").split()]
        assert points
        assert all(0 <= x <= picture.WIDTH and 0 <= y <= picture.HEIGHT for x, y in points)


def test_without_a_converter_there_is_no_png(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tool that is missing is named with its package; page and SVG are written all the same."""
    monkeypatch.setattr("lab.wedge.picture.shutil.which", lambda _: None)
    with pytest.raises(HostError, match="apt-get install librsvg2-bin"):
        picture.write_png(tmp_path / "x.svg")
    problems = report.write([run()], tmp_path / "wedge.md")
    assert len(problems) == 1
    assert "(wedge/ramp-regime-c.svg)" in (tmp_path / "wedge.md").read_text()
    assert ".png" not in (tmp_path / "wedge.md").read_text()
    assert (tmp_path / "wedge" / "ramp-regime-c.svg").exists()


def test_the_page_has_it_all() -> None:
    """Both regimes, other scenarios, the defences that were not measured, hosts, versions, logs and discards."""
    versions = {"kernel": "6.12.1", "earlyoom": "1.8.2"}
    runs = [run(survived=False), run(regime="A", machine={**run()["machine"], "versions": versions})]
    text = report.page([*runs, run(scenario="control", place="shell", regime="B")], 3, png=True)
    assert "## The ramp in regime A\n\n| defence |" in text
    assert "## The ramp in regime C\n\n| defence |" in text
    assert "earlyoom 1.8.2, kernel 6.12.1" in text
    assert "| stock | control | B | shell | 1 of 1 |" in text
    assert "| frozen | 1 | 920.0 | 300.0 | 12.0 | 14.5 |" in text
    assert "3 runs were discarded" in text
    assert all(f"`{name}`" in text for name in ORDER)


def test_nothing_measured_is_no_page(tmp_path: Path) -> None:
    """Without a counted run nothing is written, and what to do is said."""
    with pytest.raises(UsageError, match="python -m lab wedge --matrix"):
        report.write([run(discarded="busy")], tmp_path / "wedge.md")
    assert not (tmp_path / "wedge.md").exists()


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--report` measures nothing, and writes the page from the file that is named."""
    file = tmp_path / "results.jsonl"
    results.append(file, run())
    monkeypatch.setattr(report.write, "__defaults__", (tmp_path / "wedge.md",))
    done = CliRunner().invoke(cli, ["wedge", "--report", "--results", str(file)])
    assert done.exit_code == 0, done.output
    assert "| stock | ramp | C | unit | 1 of 1 |" in (tmp_path / "wedge.md").read_text()


# --- the documentation ------------------------------------------------------------------------------

PAGE = (defences.ROOT / "docs" / "lab.md").read_text()


def example(named: str) -> str:
    """The Python example of the page that begins with a record of this kind."""
    (found,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith(named)]
    return str(found)


def test_the_scenario_of_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is at most ten lines, is a scenario as it stands, can be chosen, planned and drawn."""
    text = example("Scenario(")
    assert len(text.splitlines()) <= 10
    (added,) = eval(f"({text})", dict(vars(scenarios)))  # noqa: S307  # our own page
    assert added.name not in scenarios.SCENARIOS
    monkeypatch.setitem(scenarios.SCENARIOS, added.name, added)
    case = Case("stock", added.name, "C", "unit")
    assert case.plan().timeline()[-1].at_s < runner.WINDOW_S
    assert case.plan().peak_percent > 65
    assert f"--scenario {added.name}" in PAGE


def test_the_defence_of_the_page_works() -> None:
    """The example of a defence is a record as it stands, that can be had."""
    (added,) = eval(f"({example('Defence(')})", dict(vars(defences)))  # noqa: S307  # our own page
    assert added.name not in defences.DEFENCES
    assert added.script
    assert not added.missing()


def test_the_page_names_every_record() -> None:
    """Each scenario, defence and place is in docs/lab.md."""
    for name in (*scenarios.SCENARIOS, *defences.DEFENCES, *places.PLACES):
        assert f"`{name}`" in PAGE, name
