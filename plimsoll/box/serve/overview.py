"""All models at one moment, for people and programs: what is declared, what runs, and how it last ended."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from plimsoll.box.errors import BoxError
from plimsoll.box.host import Host
from plimsoll.box.serve import attendant, config, locking, peaks, reclaim, records
from plimsoll.box.serve.launch import Seen, launcher
from plimsoll.box.serve.model import Compose, Model, Unit
from plimsoll.box.serve.records import History, Phase, State, gib

SCHEMA = "plimsoll.serve/1"
UNKNOWN_STATE = "unknown"
_BYTES_PER_KIB = 1 << 10


def document(host: Host, only: str | None = None) -> dict[str, Any]:
    """Return every model, or one; nothing is changed and no lock is needed. Raises ConfigError for one not declared."""
    if only is not None:
        models, problems = {only: config.load(host, only)}, list[str]()
    else:
        models, problems = config.look(host)
        left = (each.name for each in _states(host, problems) if each.name not in models)
        problems += [f"{name} was started, and its file is gone" for name in left]
    actor = locking.holder(host)
    whole = only is not None
    return {
        "schema": SCHEMA,
        "available_bytes": _bytes(reclaim.available_kib(host)),
        "at_work": None
        if actor is None
        else {"pid": actor.pid, "command": actor.what, "seconds": round(time.monotonic() - actor.since_s, 1)},
        "models": [_model(host, model, whole=whole) for model in models.values()],
        "problems": problems,
    }


def _states(host: Host, problems: list[str]) -> tuple[State, ...]:
    try:
        return records.every(host)
    except BoxError as error:
        problems.append(str(error))
        return ()


def _model(host: Host, model: Model, *, whole: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": model.name,
        "file": model.file,
        "runs_as": "compose"
        if isinstance(model.place, Compose)
        else "unit"
        if isinstance(model.place, Unit)
        else "command",
        "unit": model.unit or None,
        "fallback": model.fallback,
        "restart": model.restart.value,
    }
    try:
        seen = launcher(host, model).look()
        state, history = records.read(host, model.name), records.history(host, model.name)
    except BoxError as error:
        return {**found, "state": UNKNOWN_STATE, **_nothing(), "problem": str(error)}
    return {**found, "state": _state(seen, state), **_known(host, seen, state, history, whole=whole), "problem": None}


def _state(seen: Seen, state: State | None) -> str:
    """Return what it is, where what is written and what runs may differ."""
    phase = None if state is None or state.phase in records.OVER else state.phase
    if not seen.there:
        over = Phase.STOPPED if state is None else state.phase
        return over.value if over in records.OVER else "ended unnoticed"
    return phase.value if phase is not None else "started by others"


def _known(host: Host, seen: Seen, state: State | None, history: History, *, whole: bool) -> dict[str, Any]:
    now = None if state is None or not seen.there else reclaim.taken(state, reclaim.measure(host).level)
    largest = _largest(host, now) if now and whole else now.footprint_kib if now else None
    return {
        "said": seen.said,
        "main_pid": seen.main_pid or None,
        "container": seen.selector or None,
        "uptime_s": None if now is None else round(time.monotonic() - now.began_s, 1),
        "footprint_bytes": _bytes(largest if now else state.footprint_kib if state else None),
        "fallback_for": (state.fallback_for or None) if state and seen.there else None,
        "attended": attendant.is_there(host, state.name) if state and state.phase is Phase.READY else None,
        "usual_load_s": history.usual_load_s,
        "last_end": _last_end(history),
    }


def _largest(host: Host, state: State) -> int | None:
    """Return the largest footprint over a life, by the guard's recording: to read days of it takes seconds."""
    baseline_kib = state.baseline.available_kib
    if baseline_kib is None:
        return None
    points = peaks.recorded(host, state.began_unix_s, baseline_kib)
    return max([each.footprint_kib for each in points] + [state.footprint_kib or 0])


def _nothing() -> dict[str, Any]:
    keys = (
        "said", "main_pid", "container", "uptime_s", "footprint_bytes", "fallback_for", "attended", "usual_load_s",
        "last_end",
    )  # fmt: skip
    return dict.fromkeys(keys)


def _last_end(history: History) -> dict[str, Any] | None:
    if not history.ends:
        return None
    end = history.ends[-1]
    return {
        "at": datetime.fromtimestamp(end.at_unix_s, UTC).isoformat("T", "seconds"),
        "cause": end.kind,
        "said": end.said,
    }


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib * _BYTES_PER_KIB


# --- for people -------------------------------------------------------------------------------------


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Return the document as lines of text."""
    yield f"{_gib(found['available_bytes'])} available"
    if found["at_work"]:
        at_work = found["at_work"]
        yield f"at work: {at_work['command']} (pid {at_work['pid']}), {at_work['seconds']:.0f} s"
    for model in found["models"]:
        yield from _of_model(model)
    if not found["models"]:
        yield f"no model is declared in {config.DIRECTORY}"
    yield from (f"problem: {each}" for each in found["problems"])


def _of_model(model: Mapping[str, Any]) -> Iterator[str]:
    parts = [model["state"]]
    if model["uptime_s"] is not None:
        parts.append(f"for {_duration(model['uptime_s'])}")
    if model["footprint_bytes"] is not None:
        parts.append(f"{_gib(model['footprint_bytes'])} at most")
    if model["fallback_for"]:
        parts.append(f"in place of {model['fallback_for']}")
    if model["attended"] is False:
        parts.append("nobody waits for its end")
    yield f"{model['name']}: {', '.join(parts)}"
    if model["problem"]:
        yield f"    {model['problem']}"
    if model["last_end"]:
        yield f"    last end {model['last_end']['at']}: {model['last_end']['said']}"


def _gib(size: int | None) -> str:
    return gib(None if size is None else size // _BYTES_PER_KIB)


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"
