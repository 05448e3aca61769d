"""Results that outlast a run: with `--resume` each test's outcome is kept, and what passed is not run again.

A result counts for the tree of files that it was seen with, so that any change runs everything anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".lab" / "results"
# the report of these very results
_NOT_TESTED = ":(exclude)docs/test-results.md"


def tree() -> str:
    """Return git's name for the files as they are now, without touching index or repository."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            "GIT_INDEX_FILE": f"{directory}/index",
            "GIT_OBJECT_DIRECTORY": directory,
        }
        for command in (["add", "--all", "--", ".", _NOT_TESTED], ["write-tree"]):
            done = subprocess.run(
                ["git", *command], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
            )
    return done.stdout.strip()


def result_file(node: str) -> Path:
    """Return where the result of a test is kept."""
    return RESULTS / f"{hashlib.sha256(node.encode()).hexdigest()[:32]}.json"


def result(node: str, of_tree: str) -> dict[str, Any] | None:
    """Return `{node, tree, outcome, reason, duration_s, at_s}`, or None when it was not run for that tree."""
    try:
        found: dict[str, Any] = json.loads(result_file(node).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if found.get("tree") == of_tree else None


class _Chooser:
    """Leaves out what has passed before, wherever tests are collected."""

    def __init__(self, of_tree: str) -> None:
        self.tree = of_tree

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = [item for item in items if self._passed(item.nodeid)]
        items[:] = [item for item in items if item not in passed]
        config.hook.pytest_deselected(items=passed)
        for item in items:
            # a worker adds its group to the name that it reports
            item.user_properties.append(("node", item.nodeid))

    def _passed(self, node: str) -> bool:
        found = result(node, self.tree)
        return found is not None and found["outcome"] == "passed"


class _Recorder:
    """Keeps the results of one run, where they all come together."""

    def __init__(self, of_tree: str) -> None:
        self.tree = of_tree
        self._phases: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node = str(dict(report.user_properties)["node"])
        phases = self._phases.setdefault(node, [])
        phases.append(report)
        if report.when == "teardown":
            self._write(node, self._phases.pop(node))

    def _write(self, node: str, phases: list[pytest.TestReport]) -> None:
        bad = [phase for kind in ("failed", "skipped") for phase in phases if phase.outcome == kind]
        record = {
            "node": node,
            "tree": self.tree,
            "outcome": bad[0].outcome if bad else "passed",
            "reason": str(bad[0].longrepr).splitlines()[-1] if bad else "",
            "duration_s": round(sum(phase.duration for phase in phases), 2),
            "at_s": round(time.time()),
        }
        file = result_file(node)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(record))
        temporary.replace(file)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # everything has passed before; whether that is so for every test, the report says
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--resume`."""
    parser.addoption("--resume", action="store_true", help="keep results, skip what passed for the same files")


def pytest_configure(config: pytest.Config) -> None:
    """Keep results when asked to."""
    if not config.getoption("--resume"):
        return
    of_tree = tree()
    config.pluginmanager.register(_Chooser(of_tree), "plimsoll-resume-chooser")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(of_tree), "plimsoll-resume-recorder")
