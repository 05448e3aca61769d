"""What `plimsoll serve` has begun, and what became of it: written before each act, so that nothing is lost with it.

The state of a model is for one boot, in /run; who reads one whose author is gone knows what was cut off, and where.
The history of a model lasts, in /var/lib: how long its loads took, what it took, how it last ended, and why.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from plimsoll.box import files
from plimsoll.box.errors import INTERNAL, BoxError
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.guard.places import printable
from plimsoll.box.host import Host
from plimsoll.box.observing import regular_text
from plimsoll.box.serve.locking import Actor
from plimsoll.box.serve.model import Running

STATES = "/run/plimsoll/serve"
HISTORIES = "/var/lib/plimsoll/serve"
STATE_SCHEMA = "plimsoll.serve-state/1"
HISTORY_SCHEMA = "plimsoll.serve-history/1"
MAX_KEPT = 20
"""Loads, ends and automatic starts that a history remembers."""
_LATEST_UNIX_S = 253402300800.0
"""The year 10000, of which no calendar here knows."""
_MODE = 0o644
"""`serve status` is for everybody."""


class Phase(StrEnum):
    """How far a model is; each is written before what it names begins."""

    STARTING = "starting"
    """It is admitted, and is being launched."""
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    RECLAIMING = "reclaiming"
    """Its processes are gone; its memory is not back yet."""
    STOPPED = "stopped"
    FAILED = "failed"
    """It ended, or did not become ready, without being stopped."""


ACTING = frozenset({Phase.STARTING, Phase.LOADING, Phase.STOPPING, Phase.RECLAIMING})
"""Phases in which somebody is at work; without him they are cut off."""
OVER = frozenset({Phase.STOPPED, Phase.FAILED})
_BETWEEN = {Phase.LOADING: Phase.STARTING, Phase.RECLAIMING: Phase.STOPPING}
"""What it is called where it matters only that its memory is on its way."""


class RecordError(BoxError):
    """A record is there and cannot be used."""

    exit_code = INTERNAL


@dataclass(frozen=True)
class Baseline:
    """Memory just before a start, KiB; None for what could not be read."""

    available_kib: int | None = None
    level_kib: int | None = None
    """What is available, and what programs have of their own; see `holders.level_kib`."""


@dataclass(frozen=True)
class State:
    """A model in this boot. Times in seconds: `_unix_s` since 1970, others of the monotonic clock."""

    name: str
    phase: Phase
    by: Actor
    baseline: Baseline
    began_s: float
    began_unix_s: float
    phase_s: float
    unit: str = ""
    container: str = ""
    cgroup: str = ""
    pids: tuple[int, ...] = ()
    """Those whose end is its end: the main process, and who holds the GPU."""
    reservation: str = ""
    steady_line_kib: int | None = None
    """The line that the guard goes by once it is ready."""
    ready_unix_s: float | None = None
    footprint_kib: int | None = None
    """The largest difference in available memory that was seen since the baseline."""
    held_kib: int | None = None
    """The largest difference in the level: of its footprint, what is no program's own."""
    ended_s: float | None = None
    fallback_for: str = ""
    said: str = ""
    """Why it ended."""

    @property
    def selector(self) -> str:
        """What the guard calls it."""
        return self.unit or self.container[:12]


@dataclass(frozen=True)
class Load:
    """One start, as it went."""

    at_unix_s: float
    took_s: float
    ready: bool
    footprint_kib: int | None = None


@dataclass(frozen=True)
class End:
    """One end, and its cause as `causes` names it."""

    at_unix_s: float
    kind: str
    said: str
    life_unix_s: float = 0.0
    """When the life began that ended so: the clock may be set between two ends, and none is to be taken for another."""


@dataclass(frozen=True)
class History:
    """What is remembered of a model, the oldest first."""

    loads: tuple[Load, ...] = ()
    ends: tuple[End, ...] = ()
    again_unix_s: tuple[float, ...] = ()
    """When it was started again by itself."""
    instead_unix_s: tuple[float, ...] = ()
    """When its fallback was started in its place."""

    @property
    def usual_load_s(self) -> float | None:
        """What a load takes here: the median of those that became ready; None before the first."""
        took_s = sorted(each.took_s for each in self.loads if each.ready)
        half = len(took_s) // 2
        # without `statistics`, whose import with decimal and fractions takes longer than all of this module
        return (took_s[half] + took_s[~half]) / 2 if took_s else None


def advanced(state: State, phase: Phase, by: Actor, **changes: Any) -> State:  # noqa: ANN401  # any of its fields
    """Return a state in another phase, from now on, by somebody."""
    at_s = time.monotonic()
    ended_s = at_s if phase in OVER else None
    return replace(state, **{"phase": phase, "by": by, "phase_s": at_s, "ended_s": ended_s, **changes})


def gib(kib: int | None) -> str:
    """Return an amount for people."""
    return "an unknown amount" if kib is None else f"{kib / KIB_PER_GIB:.1f} GiB"


def boot_id(host: Host) -> str:
    """Return what tells this boot from others."""
    return host.text_or_none("/proc/sys/kernel/random/boot_id") or ""


# --- states -----------------------------------------------------------------------------------------


def read(host: Host, name: str) -> State | None:
    """Return a model's state, None where there is none of this boot; raises RecordError for a damaged one."""
    path = f"{STATES}/{name}.json"
    content = _content(host, path, STATE_SCHEMA)
    if content is None or content.get("boot_id") != boot_id(host):
        return None
    found = _checked(path, _state, content)
    if found.name != name:
        raise _damaged(path, ValueError(f"is of the model {found.name!r}"))
    return found


def write(host: Host, state: State) -> None:
    """Keep a state, whole or not at all; raises OSError."""
    _write(host, f"{STATES}/{state.name}.json", {"schema": STATE_SCHEMA, "boot_id": boot_id(host), **asdict(state)})


def every(host: Host) -> tuple[State, ...]:
    """Return the states of all models that were started in this boot; raises RecordError for a damaged one."""
    found, problems = look(host)
    if problems:
        raise RecordError("; ".join(problems))
    return found


def look(host: Host) -> tuple[tuple[State, ...], tuple[str, ...]]:
    """Return the states of all models that were started in this boot, and what is wrong with the others' records."""
    found: list[State] = []
    problems: list[str] = []
    for name in host.names(STATES):
        if not _is_record(name):
            continue
        try:
            state = read(host, name.removesuffix(".json"))
        except RecordError as error:
            problems.append(str(error))
        else:
            found += [state] if state is not None else []
    return tuple(found), tuple(problems)


def running(host: Host, but: Sequence[str] = ()) -> tuple[Running, ...]:
    """Return the models that are there, or on their way, but those named; for an admission."""
    there = (each for each in every(host) if each.phase not in OVER and each.name not in but)
    return tuple(Running(each.name, _BETWEEN.get(each.phase, each.phase).value, each.footprint_kib) for each in there)


def _is_record(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _state(content: Mapping[str, Any]) -> State:
    by = content["by"]
    texts = {key: str(content[key]) for key in ("name", "unit", "container", "cgroup", "reservation", "said")}
    return State(
        **texts,
        phase=Phase(content["phase"]),
        by=Actor(int(by["pid"]), int(by["start_ticks"]), str(by["what"]), _finite(by["since_s"])),
        baseline=Baseline(*(_whole(content["baseline"][key]) for key in ("available_kib", "level_kib"))),
        began_s=_finite(content["began_s"]),
        began_unix_s=_date(content["began_unix_s"]),
        phase_s=_finite(content["phase_s"]),
        steady_line_kib=_whole(content["steady_line_kib"]),
        pids=tuple(int(each) for each in content["pids"]),
        ready_unix_s=_number(content["ready_unix_s"]),
        footprint_kib=_whole(content["footprint_kib"]),
        held_kib=_whole(content["held_kib"]),
        ended_s=_number(content["ended_s"]),
        fallback_for=str(content["fallback_for"]),
    )


# --- histories --------------------------------------------------------------------------------------


def history(host: Host, name: str) -> History:
    """Return what is remembered of a model, empty where it was never started; raises RecordError."""
    path = f"{HISTORIES}/{name}.json"
    content = _content(host, path, HISTORY_SCHEMA)
    return History() if content is None else _checked(path, _history, content)


def remember(host: Host, name: str, change: Callable[[History], History]) -> History:
    """Change what is remembered of a model; only its last MAX_KEPT of each kind stay. Raises RecordError, OSError."""
    found = change(history(host, name))
    kept = History(*(getattr(found, each.name)[-MAX_KEPT:] for each in fields(History)))
    _write(host, f"{HISTORIES}/{name}.json", {"schema": HISTORY_SCHEMA, **asdict(kept)})
    return kept


def _history(content: Mapping[str, Any]) -> History:
    loads = (
        Load(_date(each["at_unix_s"]), _finite(each["took_s"]), each["ready"] is True, _whole(each["footprint_kib"]))
        for each in content["loads"]
    )
    ends = (
        End(_date(each["at_unix_s"]), str(each["kind"]), str(each["said"]), _finite(each.get("life_unix_s", 0)))
        for each in content["ends"]
    )
    again, instead = (tuple(_date(each) for each in content[key]) for key in ("again_unix_s", "instead_unix_s"))
    return History(tuple(loads), tuple(ends), again, instead)


# --- files ------------------------------------------------------------------------------------------

Found = TypeVar("Found")


def _content(host: Host, path: str, schema: str) -> Mapping[str, Any] | None:
    try:
        content = json.loads(regular_text(host, path))
        if not isinstance(content, dict) or content.get("schema") != schema:
            raise ValueError(f"is not of the schema {schema}")  # noqa: TRY301  # one way to report all of them
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return content


def _checked(path: str, build: Callable[[Mapping[str, Any]], Found], content: Mapping[str, Any]) -> Found:
    try:
        return build(content)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> RecordError:
    said = printable(str(error))
    return RecordError(f"{path}: cannot be used ({said}); look at what runs, then remove the file")


def _write(host: Host, path: str, content: Mapping[str, Any]) -> None:
    real = host.path(path)
    os.makedirs(os.path.dirname(real), mode=0o755, exist_ok=True)
    files.sweep(real)
    files.write_atomically(real, json.dumps(content, indent=1).encode(), _MODE)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004  # all that is wrong with a file is one
    return _finite(value)


def _finite(value: Any) -> float:  # noqa: ANN401  # as JSON has it, which in Python knows Infinity
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} is not a number to go by")
    return found


def _date(value: Any) -> float:  # noqa: ANN401  # as above
    found = _finite(value)
    if not 0 <= found < _LATEST_UNIX_S:
        raise ValueError(f"{found} is no time")
    return found


def _whole(value: object) -> int | None:
    found = _number(value)
    return None if found is None else round(found)
