"""Results that outlast a run."""

import subprocess
from pathlib import Path

import pytest

from tests import report, resume

pytest_plugins = ["pytester"]

TESTS = """
import pytest
def test_good(): pass
def test_bad(): assert BAD == 0
def test_skipped(): pytest.skip("not here")
@pytest.fixture
def broken():
    yield
    raise OSError("teardown")
def test_teardown(broken): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a git checkout with the plugin and four tests, of which one passes."""
    pytester.makeconftest("pytest_plugins = ['tests.resume']")
    pytester.makepyfile(test_it="BAD = 1" + TESTS)
    pytester.makefile("", **{".gitignore": ".lab\n__pycache__\n.pytest_cache\n"})
    subprocess.run(["git", "init", "--quiet", pytester.path], check=True)
    monkeypatch.setattr(resume, "ROOT", pytester.path)
    monkeypatch.setattr(resume, "RESULTS", pytester.path / ".lab" / "results")
    return pytester


def _run(project: pytest.Pytester) -> dict[str, int]:
    return project.runpytest_inprocess("--resume", "-p", "no:cacheprovider").parseoutcomes()


def test_only_what_passed_is_left_out(project: pytest.Pytester) -> None:
    """A second run repeats what failed, was skipped, or broke on its way out."""
    first = _run(project)
    assert first == {"passed": 2, "failed": 1, "skipped": 1, "errors": 1}
    assert _run(project) == {"passed": 1, "failed": 1, "skipped": 1, "errors": 1, "deselected": 1}


def test_a_change_runs_everything(project: pytest.Pytester) -> None:
    """Results of other files do not count, whether or not the change is committed."""
    _run(project)
    project.makepyfile(test_it="BAD = 0" + TESTS)
    assert _run(project) == {"passed": 3, "skipped": 1, "errors": 1}


def test_a_machines_test_depends_on_the_program_and_its_own_file(project: pytest.Pytester) -> None:
    """Documents, unit tests and the other tests in machines do not count for it; the program and helpers do."""
    own, other = "tests/vm/test_a.py", "tests/vm/test_b.py"
    files = [own, other, "tests/vm/helper.py", "tests/unit/test_c.py", "docs/x.md", "README.md", "plimsoll/x.py"]
    for name in files:
        path = Path(project.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def counts(name: str) -> bool:
        before = resume.fingerprints()(f"{own}::test_x")
        Path(project.path, name).write_text(name)
        return resume.fingerprints()(f"{own}::test_x") != before

    assert {name for name in files if counts(name)} == {own, "tests/vm/helper.py", "plimsoll/x.py"}


def test_nothing_left_to_run_is_success(project: pytest.Pytester) -> None:
    """When everything has passed, a further run succeeds without running anything."""
    project.makepyfile(test_it="def test_good(): pass")
    assert _run(project) == {"passed": 1}
    assert project.runpytest_inprocess("--resume", "-p", "no:cacheprovider").ret == 0


def test_tree_leaves_the_repository_alone(project: pytest.Pytester) -> None:
    """Naming the tree adds nothing to the index, and the page of results is not part of it."""
    before = resume.tree()
    docs = project.mkdir("docs")
    (docs / "test-results.md").write_text("x")
    assert resume.tree() == before
    (docs / "other.md").write_text("x")
    assert resume.tree() != before
    index = Path(project.path, ".git", "index")
    assert not index.exists()


def test_page_names_what_has_not_passed() -> None:
    """The page counts every outcome and lists each test that failed, was skipped or was never run."""
    passed = {"outcome": "passed", "duration_s": 2.0, "at_s": 1_800_000_000, "reason": ""}
    failed = {**passed, "outcome": "failed", "reason": "E assert 1 == 0"}
    text = report.page({"a.py::x": passed, "a.py::y": failed, "b.py::z": None}, "abc")
    assert "3 tests: 1 passed, 1 failed, 0 skipped, 1 not run." in text
    assert "| a.py | 2 | 1 | 4 |" in text
    assert "- failed: `a.py::y` E assert 1 == 0\n- not run: `b.py::z`\n" in text
    assert "2027-01-15" in text


def test_every_test_is_collected(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page knows the tests that were never run too, and does not take none for all."""
    monkeypatch.setattr(report, "ROOT", project.path)
    monkeypatch.setenv("PYTHONPATH", str(resume.__file__).removesuffix("/tests/resume.py"))
    names = {node.partition("::")[2] for node in report.collect()}
    assert names == {"test_good", "test_bad", "test_skipped", "test_teardown"}
    project.path.joinpath("test_it.py").unlink()
    with pytest.raises(SystemExit, match="cannot be collected"):
        report.collect()
