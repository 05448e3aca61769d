"""The results file: one run a line, written through to the disk, so that a bench that is cut off goes on later."""

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.paths import lab_dir
from lab.wedge.case import Case

Run = dict[str, Any]
"""As in the schema plimsoll.wedge/1, with `samples`, which `document` leaves out."""
SCHEMA = "plimsoll.wedge/1"
KEY = ("defence", "scenario", "regime", "place", "index", "seed", "arch")


def default_file() -> Path:
    """Where results are kept unless another file is named."""
    return lab_dir() / "wedge" / "results.jsonl"


def append(file: Path, run: Run) -> None:
    """Add a run; it is on the disk when this returns. A line that was cut off before is closed first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        size = opened.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(opened.fileno(), 1, size - 1) != b"\n"
        opened.write((b"\n" if torn else b"") + json.dumps(run).encode() + b"\n")
        opened.flush()
        os.fsync(opened.fileno())


def load(file: Path) -> list[Run]:
    """All runs of a file, in the order they were made; a line that was cut off is no run."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(errors="replace").splitlines():
        try:
            run = json.loads(line)
        except ValueError:
            continue
        if isinstance(run, dict):
            found.append(run)
    return found


def counted(runs: Iterable[Run]) -> list[Run]:
    """Leave out what was discarded."""
    return [run for run in runs if not run["discarded"]]


def newest(runs: Iterable[Run]) -> list[Run]:
    """Keep of each case the run that was made last."""
    return list({tuple(run[name] for name in KEY): run for run in runs}.values())


def preferred(runs: Iterable[Run]) -> list[Run]:
    """Put what was discarded before what counts, so that `newest` keeps the latter."""
    return sorted(runs, key=lambda run: not run["discarded"])


def remaining(cases: Sequence[tuple[Case, str]], runs: Iterable[Run]) -> list[Case]:
    """Return the cases that have no counted run with their fingerprint."""
    done = {(*(run[name] for name in KEY), run["fingerprint"]) for run in counted(runs)}
    return [case for case, print_ in cases if (*(getattr(case, name) for name in KEY), print_) not in done]


def document(runs: Iterable[Run]) -> dict[str, Any]:
    """Return the document that programs read: everything but the samples."""
    kept = [{key: value for key, value in run.items() if key != "samples"} for run in runs]
    return {"schema": SCHEMA, "runs": kept}
