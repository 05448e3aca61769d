"""The guard's memory is locked, the heap stays as it is, and what could not be done is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import memory
from plimsoll.box.guard import locking
from plimsoll.box.host import Host
from tests.unit.builders import NEEDS_ROOT, write_tree

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("config", "decide", "locking", "probe", "records", "recording", "sampler", "spawn", "worker")
# a program of its own: what locks the memory of this one would stay for all other tests
PROGRAM = """
import gc, json, resource, sys, threading
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2].split(","):
    __import__("plimsoll.box.guard." + name)
from plimsoll.box import memory
from plimsoll.box.guard import locking
from plimsoll.box.host import Host
if sys.argv[3] != "root":
    # without the right to lock, what remains is the limit
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[3]), int(sys.argv[3])))
    import os
    os.setuid(65534)
problems = locking.prepare() + locking.lock()
before = memory.locked_kib(Host())
small = [bytes(100) for _ in range(5_000)]
large = [bytes(10_000) for _ in range(60)]
with_a_scan = memory.locked_kib(Host())
del small, large
over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(3)]
for thread in threads:
    thread.start()
kept = [bytes(100_000) for _ in range(100)]
with_threads = memory.locked_kib(Host())
del kept
after = memory.locked_kib(Host())
over.set()
print(json.dumps({
    "problems": problems, "before": before, "with_a_scan": with_a_scan, "with_threads": with_threads, "after": after,
    "collects": gc.isenabled(), "frozen": gc.get_freeze_count(),
}))
"""


def _run(limit: str = "root") -> dict[str, Any]:
    argv = (sys.executable, "-I", "-c", PROGRAM, str(ROOT), ",".join(MODULES), limit)
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@NEEDS_ROOT
def test_everything_is_locked() -> None:
    """All memory is locked, and so is what comes later; with all of this part's modules that is less than 32 MiB."""
    found = _run()
    assert found["problems"] == []
    assert 8 << 10 < found["before"] < 32 << 10
    assert found["with_threads"] > found["before"]


@NEEDS_ROOT
def test_threads_are_small_and_the_heap_stays() -> None:
    """A thread costs its small stack and no arena of 64 MiB; what was freed is not given back to the kernel."""
    found = _run()
    kept_kib = 100 * 100_000 / 1024
    stacks_kib = 3 * 512
    assert found["with_threads"] - found["before"] < kept_kib * 1.1 + stacks_kib + 1024
    assert found["after"] >= found["with_threads"]


@NEEDS_ROOT
def test_memory_is_held_ready() -> None:
    """A moment's work, of 0.6 MB in small objects and as much in large ones, asks the kernel for nothing."""
    found = _run()
    assert found["with_a_scan"] == found["before"]


@NEEDS_ROOT
def test_the_collector_rests() -> None:
    """What exists is frozen, and the collector does not run."""
    found = _run()
    assert not found["collects"]
    assert found["frozen"] > 1000


@NEEDS_ROOT
@pytest.mark.parametrize("limit", [0, 8 << 20])
def test_it_may_not_lock(limit: int) -> None:
    """Where memory cannot be locked the guard goes on, and says why and what to do."""
    found = _run(str(limit))
    (problem,) = found["problems"]
    assert problem.startswith("memory is not locked: ")
    assert f"the limit is {limit >> 10} KiB" in problem
    assert "LimitMEMLOCK=infinity" in problem
    assert found["before"] == 0


RUNNING = """
import os, sys, tempfile, time
sys.path.insert(0, sys.argv[1])
root = tempfile.mkdtemp()
for path in ("dev", "var/log", "proc"):
    os.makedirs(f"{root}/{path}")
open(f"{root}/dev/kmsg", "w").close()
for name in sys.argv[2].split(","):
    __import__("plimsoll.box.guard." + name)
from plimsoll.box.guard import locking, probe, recording, records, sampler, spawn
from plimsoll.box.guard.model import Action, Rule, Verb
from plimsoll.box.host import Host
locking.prepare()
scribe = records.Scribe(Host(root), "1")
taking, slow = sampler.Sampler(Host()), sampler.SlowReader(Host())
writing = recording.Recording(Host(root), 100_000)
scribe.start()
before = set(sys.modules)
for number in range(3):
    sample = taking.sample(time.monotonic())
    writing.write(time.time(), sample, slow.read(time.monotonic()), probe.Probe(Host(root)).look(5.0))
    action = Action(Verb.NOBODY, Rule.FLOOR, True, None, "why\\n\\x1b\\udc80\\U0001f4a5", {}, (("\\xe9", "\\0"),))
    event = records.Event(records.Kind.DECISION, 1.0, time.time(), "", sample, 1.0, taking.basis, action)
    assert scribe.put(event)
spawn.run(("sleep", "9"), 0.1)
os.rename(f"{root}/var/log/plimsoll", f"{root}/gone")
assert scribe.put(event) and scribe.stop(20)
assert len(records.read_records(open(f"{root}/gone/guard.jsonl").read()).records) >= 1
print(" ".join(sorted(set(sys.modules) - before)))
"""


def test_nothing_is_imported_later() -> None:
    """What samples, writes and probes has all its modules from the start: on a wedged machine nothing is read anew."""
    argv = (sys.executable, "-I", "-c", RUNNING, str(ROOT), ",".join(MODULES))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("VmLck:\t   15816 kB\n", 15816),
        ("VmLck:\n", None),
        ("VmLck: x kB\n", None),
        ("VmRSS: 5 kB\n", None),
        (None, None),
    ],
)
def test_how_much_is_locked(tmp_path: Path, status: str | None, expected: int | None) -> None:
    """The kernel's figure is taken, and a missing one is unknown, not zero."""
    if status is not None:
        write_tree(tmp_path, {"/proc/self/status": f"Name:\tx\n{status}"})
    assert memory.locked_kib(Host(str(tmp_path))) == expected


class _OtherLibrary:
    """A C library without these functions, or with ones that refuse."""

    def __init__(self, **functions: int) -> None:
        self._functions = functions

    def __call__(self, *_arguments: object, **_named: object) -> "_OtherLibrary":
        return self

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a C function
        if name not in self._functions:
            raise AttributeError(name)
        return lambda *_: self._functions[name]


@pytest.mark.parametrize("library", [_OtherLibrary(), _OtherLibrary(mallopt=0, mlockall=-1)])
def test_another_c_library(monkeypatch: pytest.MonkeyPatch, library: _OtherLibrary) -> None:
    """Where the C library has no such functions, or they refuse, that is said, and nothing breaks."""
    monkeypatch.setattr("ctypes.CDLL", library)
    for name in ("collect", "freeze", "disable"):
        monkeypatch.setattr(f"gc.{name}", lambda: None)
    monkeypatch.setattr("threading.stack_size", lambda _size: None)
    assert [problem.partition(":")[0] for problem in locking.prepare() + locking.lock()] == [
        "the heap is left as it is",
        "memory is not locked",
    ]
