"""What the guard sees, as one document (plimsoll.status/1), and as metrics. Pure but for `write`.

The guard writes it once a second; `plimsoll status` shows it, and makes what it can of it where no guard runs. Sizes
are bytes. What is not known is null, and never 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll.box.guard import whole
from plimsoll.box.guard.arming import Arming
from plimsoll.box.guard.choose import choose, fallback
from plimsoll.box.guard.model import Known, Reservation, Rule, Sample, Settings, State, Workload
from plimsoll.box.guard.rules import Situation, margins_kib, rate
from plimsoll.box.heartbeat import STATUS_SCHEMA
from plimsoll.box.host import Host
from plimsoll.box.texts import printable

MAX_CANDIDATES = 64
MAX_ACTIONS = 20
_KIB = 1024


@dataclass(frozen=True)
class Guard:
    """The process that looks."""

    pid: int
    started_unix_s: float
    program_sha256: str
    config_sha256: str
    sampled_monotonic_s: float
    locked_kib: int | None = None
    longest_gap_ms: float | None = None
    """The longest time between two samples since it was started."""
    problems: tuple[str, ...] = ()
    """What it cannot do, each with the reason."""


@dataclass(frozen=True)
class Seen:
    """All that a status is made of; plain data that the deciding thread hands over without formatting any of it."""

    unix_s: float
    settings: Settings
    state: State
    sample: Sample
    basis: str
    """What the figure of available memory rests on."""
    mem_total_kib: int | None
    mem_available_kib: int | None
    """As the kernel has it: not what the guard goes by."""
    known: Known
    guard: Guard | None = None
    arming: Arming = field(default_factory=Arming)
    actions: Sequence[Mapping[str, Any]] = ()
    """The last records, as JSON types, the newest last."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each rule has had somebody stopped since the guard was started."""


def document(seen: Seen) -> dict[str, Any]:
    """Return the status as JSON types, in the form of plimsoll.status/1."""
    sample, lines = seen.sample, seen.settings.lines
    known = sample.available_kib is not None
    now = Situation(seen.settings, seen.state, sample, seen.known)
    return {
        "schema": STATUS_SCHEMA,
        "unix_s": round(seen.unix_s, 3),
        "guard": _guard(seen),
        "regime": sample.regime,
        "basis": seen.basis,
        "available_bytes": _bytes(sample.available_kib),
        "mem_available_bytes": _bytes(seen.mem_available_kib),
        "mem_total_bytes": _bytes(seen.mem_total_kib),
        "free_bytes": _bytes(sample.free_kib),
        "full_percent": None if sample.full_percent is None else round(sample.full_percent, 2),
        "falls_bytes_per_s": round(rate(seen.state) * _KIB) if known else None,
        "lines": {
            "floor_bytes": lines.floor_kib * _KIB,
            "slow_enter_bytes": lines.slow_enter_kib * _KIB,
            "slow_leave_bytes": lines.slow_leave_kib * _KIB,
        },
        "margins": {name: kib * _KIB if known else None for name, kib in margins_kib(now).items()},
        "rules": [_rule(rule, seen) for rule in Rule],
        "candidates": candidates(seen.known.workloads, seen.settings),
        "reservations": [_reservation(each, sample) for each in seen.known.reservations],
        "stopping": _stopping(seen.state),
        "actions": list(seen.actions)[-MAX_ACTIONS:],
    }


def _guard(seen: Seen) -> dict[str, Any] | None:
    guard = seen.guard
    if guard is None:
        return None
    return {
        "pid": guard.pid,
        "started_unix_s": round(guard.started_unix_s, 3),
        "program_sha256": guard.program_sha256,
        "config_sha256": guard.config_sha256,
        "sampled_monotonic_s": round(guard.sampled_monotonic_s, 3),
        "locked_bytes": _bytes(guard.locked_kib),
        "longest_gap_ms": guard.longest_gap_ms,
        "problems": list(guard.problems),
    }


def _rule(rule: Rule, seen: Seen) -> dict[str, Any]:
    standing = seen.arming.of(rule)
    return {
        "rule": rule.value,
        # what the decisions really go by: `--dry-run` disarms all that is armed
        "armed": rule in seen.settings.armed,
        "why": "" if standing is None else standing.why,
        "since_unix_s": None if standing is None else round(standing.since_s, 3),
        "stopped": seen.counts.get(rule.value, 0),
    }


def candidates(workloads: Sequence[Workload], settings: Settings) -> list[dict[str, Any]]:
    """Return whom the guard would stop, the one that it would stop now first, each with what speaks for or against it.

    `verdict`: `next`, `possible`, `spared`, or `fallback`, the container that goes where nobody holds the GPU.
    """
    choice = choose(workloads, settings)
    reasons = dict(zip((each.key for each in workloads), choice.considered, strict=True))
    last = None if choice.victim else fallback(workloads, settings)
    found = [_candidate(each, reasons[each.key][1], choice.victim, last, settings) for each in workloads]
    order = {"next": 0, "fallback": 1, "possible": 2, "spared": 3}
    return sorted(found, key=lambda each: order[each["verdict"]])[:MAX_CANDIDATES]


def _candidate(
    workload: Workload, reason: str, victim: Workload | None, last: Workload | None, settings: Settings
) -> dict[str, Any]:
    if victim is not None and workload.key == victim.key:
        verdict = "next"
    elif last is not None and workload.key == last.key:
        verdict = "fallback"
    else:
        verdict = "spared" if choose([workload], settings).victim is None else "possible"
    return {
        "name": workload.name,
        "kind": workload.kind,
        "key": workload.key,
        "engine": workload.engine,
        "verdict": verdict,
        "reason": reason,
        "attributed_bytes": _bytes(workload.attributed_kib),
        "resident_bytes": workload.resident_kib * _KIB,
        "grew_bytes": workload.grew_kib * _KIB,
        "processes": len(workload.processes),
    }


def _reservation(each: Reservation, sample: Sample) -> dict[str, Any]:
    return {
        "id": each.id,
        "workload": each.workload,
        "allocate_bytes": each.allocate_kib * _KIB,
        "remaining_bytes": each.remaining_kib(sample) * _KIB,
        "ends_in_s": round(each.until_s - sample.at_s, 1),
        "steady_line_bytes": each.steady_line_kib * _KIB,
    }


def _stopping(state: State) -> dict[str, Any] | None:
    stopping = state.mood.stopping
    if stopping is None:
        return None
    return {
        "name": stopping.workload.name,
        "key": stopping.workload.key,
        "rule": stopping.rule.value,
        "for_s": round(state.at_s - stopping.term_s, 1),
        "killed": stopping.killed_s is not None,
        "released": stopping.released_s is not None,
    }


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib * _KIB


# --- metrics ----------------------------------------------------------------------------------------

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LONGEST_LABEL = 200


@dataclass
class _Family:
    name: str
    kind: str
    help: str
    samples: dict[str, str] = field(default_factory=dict)

    def add(self, value: float | None, **labels: str) -> None:
        """Add a sample; what is not known has none, and what a name occurs twice for is kept once."""
        if value is None:
            return
        said = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
        suffix = "_total" if self.kind == "counter" else ""
        self.samples[f"{self.name}{suffix}{{{said}}}" if said else f"{self.name}{suffix}"] = f"{value:.15g}"

    def lines(self) -> Iterator[str]:
        # A Prometheus before OpenMetrics knows a counter by its whole name only.
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from (f"{name} {value}" for name, value in self.samples.items())


def _label(text: str) -> str:
    return printable(text, _LONGEST_LABEL).translate(_ESCAPES)


def metrics(status: Mapping[str, Any]) -> str:
    """Return a status as OpenMetrics text, which node_exporter's textfile collector takes as well."""
    families = [*_memory_families(status), *_guard_families(status)]
    lines = [line for family in families if family.samples for line in family.lines()]
    return "\n".join([*lines, "# EOF", ""])


def _memory_families(status: Mapping[str, Any]) -> Iterable[_Family]:
    available = _Family("plimsoll_memory_available_bytes", "gauge", "What programs and the driver can still have.")
    available.add(status["available_bytes"], regime=status["regime"])
    yield available
    kernel = _Family("plimsoll_memory_kernel_available_bytes", "gauge", "MemAvailable, as the kernel reckons it.")
    kernel.add(status["mem_available_bytes"])
    yield kernel
    margin = _Family("plimsoll_memory_margin_bytes", "gauge", "How far available memory is above a line of the guard.")
    for name, size in status["margins"].items():
        margin.add(size, line=name)
    yield margin
    stalled = _Family("plimsoll_memory_full_ratio", "gauge", "Share of the last interval in which everybody stalled.")
    percent = status["full_percent"]
    stalled.add(None if percent is None else percent / 100)
    yield stalled


def _guard_families(status: Mapping[str, Any]) -> Iterable[_Family]:
    sampled = _Family("plimsoll_guard_sample_timestamp_seconds", "gauge", "When memory was last looked at (Unix time).")
    sampled.add(status["unix_s"])
    yield sampled
    armed = _Family("plimsoll_guard_rule_armed", "gauge", "Whether a rule acts (1) or only observes (0).")
    stopped = _Family("plimsoll_guard_stopped", "counter", "Workloads stopped since the guard was started, by rule.")
    for rule in status["rules"]:
        armed.add(rule["armed"], rule=rule["rule"])
        stopped.add(rule["stopped"], rule=rule["rule"])
    yield armed
    yield stopped
    held = _Family(
        "plimsoll_guard_candidate_attributed_bytes", "gauge", "GPU memory of a workload, as the driver says."
    )
    for each in status["candidates"]:
        held.add(each["attributed_bytes"], name=each["name"], verdict=each["verdict"])
    yield held
    guard = status["guard"] or {}
    gap = _Family("plimsoll_guard_longest_gap_seconds", "gauge", "Longest time between two samples since the start.")
    milliseconds = guard.get("longest_gap_ms")
    gap.add(None if milliseconds is None else milliseconds / 1000)
    yield gap
    locked = _Family("plimsoll_guard_locked_bytes", "gauge", "Memory of the guard that is locked.")
    locked.add(guard.get("locked_bytes"))
    yield locked


def write(host: Host, path: str, text: str) -> None:
    """Replace a file for everybody to read, whole or not at all; raises OSError. For a thread that may wait.

    Not synced: after a reset the next one is a second away, and a disk that is stuck would hold it up.
    """
    whole.write(host, path, text.encode("utf-8", "backslashreplace"), 0o644, sync=False)
