"""Writes docs/test-results.md from the kept results: `python -m tests.report`.

Exits with 1, having written the page all the same, unless every test there is has passed for these files.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from tests.resume import ROOT, fingerprints, result, tree

PAGE = ROOT / "docs" / "test-results.md"


def collect() -> list[str]:
    """Return the node ids of every test there is."""
    command = [sys.executable, "-m", "pytest", "-m", "not bench", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    nodes = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not nodes:
        sys.exit(f"the tests cannot be collected:\n{done.stdout}{done.stderr}")
    return nodes


def page(results: dict[str, dict[str, Any] | None], of_tree: str) -> str:
    """Return the page: totals, a line a file, and every test that has not passed, with the reason."""
    outcomes = {node: found["outcome"] if found else "not run" for node, found in results.items()}
    lines = ["# Test results", "", *_summary(results, outcomes, of_tree), "", *_files(results, outcomes)]
    bad = [node for node, outcome in outcomes.items() if outcome != "passed"]
    if bad:
        lines += ["", "## Not passed", ""]
        lines += [f"- {outcomes[node]}: `{node}` {reason(results[node])}".rstrip() for node in bad]
    return "\n".join(lines) + "\n"


def reason(found: dict[str, Any] | None) -> str:
    """Return why a test has not passed, without where this checkout lies; empty where nothing is known."""
    return str((found or {}).get("reason", "")).replace(f"{ROOT}/", "")


def _summary(results: dict[str, dict[str, Any] | None], outcomes: dict[str, str], of_tree: str) -> list[str]:
    counts = [f"{list(outcomes.values()).count(kind)} {kind}" for kind in ("passed", "failed", "skipped", "not run")]
    last_s = max((found["at_s"] for found in results.values() if found), default=0)
    day = datetime.fromtimestamp(last_s, UTC).date().isoformat() if last_s else "never"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return [
        f"{len(outcomes)} tests: {', '.join(counts)}.",
        f"Last run {day} on {machine}, for the files of git tree `{of_tree}` (this page left out).",
        "Written by `make test-long`.",
    ]


def _files(results: dict[str, dict[str, Any] | None], outcomes: dict[str, str]) -> list[str]:
    files: dict[str, list[str]] = defaultdict(list)
    for node in results:
        files[node.partition("::")[0]].append(node)
    rows = ["| file | tests | passed | seconds |", "|---|---:|---:|---:|"]
    for file, nodes in sorted(files.items()):
        passed = sum(outcomes[node] == "passed" for node in nodes)
        took_s = sum((results[node] or {}).get("duration_s", 0) for node in nodes)
        rows.append(f"| {file} | {len(nodes)} | {passed} | {took_s:.0f} |")
    return rows


def main() -> int:
    """Write the page; 0 when every test has passed."""
    fingerprint = fingerprints()
    results = {node: result(node, fingerprint(node)) for node in collect()}
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results, tree()))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0 if results and all(found and found["outcome"] == "passed" for found in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
