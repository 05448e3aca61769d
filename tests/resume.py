"""Results that outlast a run: with `--resume` each test's outcome is kept, and what passed is not run again.

A result counts for the files that it was seen with. For a test in a virtual machine these are the program, the
lab, what the tests share, and its own file; for every other test, all there are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".lab" / "results"
# the report of these very results
_NOT_TESTED = ":(exclude)docs/test-results.md"


_IN_A_MACHINE = re.compile(r"tests/vm/test_\w+\.py")
_NOT_OF_A_MACHINE = (":(exclude)docs", ":(exclude)*.md", ":(exclude)tests/unit", ":(exclude)tests/bench")
_OTHER_TESTS = ":(exclude)tests/vm/test_*.py"


def fingerprints() -> Callable[[str], str]:
    """Return the function that names, for a test's node id, the files that its result depends on, as they are now."""
    whole = tree()
    shared = tree(*_NOT_OF_A_MACHINE, _OTHER_TESTS)

    def of(node: str) -> str:
        file = node.partition("::")[0]
        if not _IN_A_MACHINE.fullmatch(file):
            return whole
        return hashlib.sha256(shared.encode() + (ROOT / file).read_bytes()).hexdigest()

    return of


def tree(*left_out: str) -> str:
    """Return git's name for the files as they are now, without touching index or repository."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            "GIT_INDEX_FILE": f"{directory}/index",
            "GIT_OBJECT_DIRECTORY": directory,
        }
        for command in (["add", "--all", "--", ".", _NOT_TESTED, *left_out], ["write-tree"]):
            done = subprocess.run(
                ["git", *command], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
            )
    return done.stdout.strip()


MOST_LINES = 4
MOST_CHARACTERS = 500


def result_file(node: str) -> Path:
    """Return where the result of a test is kept."""
    return RESULTS / f"{hashlib.sha256(node.encode()).hexdigest()[:32]}.json"


def result(node: str, fingerprint: str) -> dict[str, Any] | None:
    """Return `{node, files, outcome, reason, duration_s, at_s}`, or None when it was not run for these files."""
    try:
        found: dict[str, Any] = json.loads(result_file(node).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if found.get("files") == fingerprint else None


class _Chooser:
    """Leaves out what has passed before, wherever tests are collected."""

    def __init__(self, fingerprint: Callable[[str], str]) -> None:
        self.fingerprint = fingerprint

    @pytest.hookimpl(tryfirst=True)  # before a worker adds its group to the names
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = [item for item in items if self._passed(item.nodeid)]
        items[:] = [item for item in items if item not in passed]
        config.hook.pytest_deselected(items=passed)
        for item in items:
            item.user_properties.append(("node", item.nodeid))

    def _passed(self, node: str) -> bool:
        found = result(node, self.fingerprint(node))
        return found is not None and found["outcome"] == "passed"


def _reason(report: pytest.TestReport) -> str:
    """Return where a test failed, and what pytest has said of it."""
    lines = str(report.longrepr).splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return " ".join([lines[-1], *said[:MOST_LINES]])[:MOST_CHARACTERS]


class _Recorder:
    """Keeps the results of one run, where they all come together."""

    def __init__(self, fingerprint: Callable[[str], str]) -> None:
        self.fingerprint = fingerprint
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
            "files": self.fingerprint(node),
            "outcome": bad[0].outcome if bad else "passed",
            "reason": _reason(bad[0]) if bad else "",
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
    fingerprint = fingerprints()
    config.pluginmanager.register(_Chooser(fingerprint), "plimsoll-resume-chooser")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(fingerprint), "plimsoll-resume-recorder")
