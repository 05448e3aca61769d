"""Findings as lines of JSON and back: what a box hands to the operator's side, which makes the answer of it. Pure.

A line each for every event and note, then one for their source; at the end one for the box itself. What comes over a
network is untrusted: whatever does not fit the types of the model is an error, and nothing of it is run or shown raw.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from plimsoll.box.incident.model import Event, Findings, MemoryReport, Note

SCHEMA = "plimsoll.findings/1"
MAX_LINE_BYTES = 4 << 20
"""An event with the twelve largest rows of its table has 4 kB; the stamps of a source, at most 4,000 points, 300 kB."""


class WireError(Exception):
    """A line that is not what a box hands over."""


@dataclass(frozen=True)
class About:
    """What is known beside the logs."""

    now_s: float
    names: tuple[str, ...] = ()
    """What the machine is called, to be replaced where that is asked for."""
    standing: tuple[str, ...] = ()
    """How it is guarded now."""
    unread: Mapping[str, str] | None = None
    """What could not be read, and why."""
    files: Mapping[str, str] | None = None
    """What the machine is, file by file; None where the logs are another machine's or nobody asked."""
    excerpts: Mapping[str, str] | None = None
    """The logs around the incident, by their name."""


def of_findings(found: Findings) -> Iterator[str]:
    """Yield the lines of one source."""
    for event in found.events:
        yield _line(event={**_encoded(event), "kind": event.kind})
    for note in found.notes:
        yield _line(note=_encoded(note))
    yield _line(source=_encoded(replace(found, events=(), notes=())))


def of_progress(text: str) -> str:
    """Return a line that says what is being read; it also says that the box still lives."""
    return _line(reading=text)


def of_box(about: About) -> str:
    """Return the last line."""
    return _line(box=_encoded(about))


def _line(**content: Any) -> str:  # noqa: ANN401  # plain values
    return json.dumps({"schema": SCHEMA, **content}, separators=(",", ":"))


class Receiver:
    """Takes lines and keeps what they say."""

    def __init__(self) -> None:
        self.found: list[Findings] = []
        self.about: About | None = None
        """None until the last line has come: before it nothing is complete."""
        self.reading = ""
        """What the other side is at."""
        self._events: list[Event] = []
        self._notes: list[Note] = []

    def take(self, line: str | bytes) -> bool:
        """Take a line; False for one that is something else, such as what a login prints. Raises WireError."""
        record = _record(line)
        if record is None:
            return False
        try:
            self._keep(record)
        except (TypeError, ValueError) as error:
            raise WireError(str(error)) from error
        return True

    def _keep(self, record: dict[str, Any]) -> None:
        if "event" in record:
            self._events.append(_event(record["event"]))
        elif "note" in record:
            self._notes.append(_decoded(Note, record["note"]))
        elif "source" in record:
            source: Findings = _decoded(Findings, record["source"])
            self.found.append(replace(source, events=tuple(self._events), notes=tuple(self._notes)))
            self._events, self._notes = [], []
        elif "reading" in record:
            self.reading = _of(str, record["reading"])
        elif "box" in record:
            self.about = _decoded(About, record["box"])


def _record(line: str | bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None


def _event(raw: Any) -> Event:  # noqa: ANN401  # what came
    kinds = {kind.kind: kind for kind in Event.__subclasses__()}
    if not isinstance(raw, dict) or raw.get("kind") not in kinds:
        raise WireError("an event of a kind that is not known here: is the other side of another version?")
    event: Event = _decoded(kinds[raw["kind"]], {key: value for key, value in raw.items() if key != "kind"})
    return event


def _encoded(value: Any) -> Any:  # noqa: ANN401  # any value of the model
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _encoded(item) for key, item in value.items()}
    return [_encoded(each) for each in value] if isinstance(value, tuple | frozenset) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decoded(hint: Any, raw: Any) -> Any:  # noqa: ANN401, PLR0911  # a type, and a value of it; a line each kind of type
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        # of the facts of a note only a report of memory is no plain value
        return _decoded(MemoryReport, raw) if isinstance(raw, dict) else raw
    if origin is UnionType:
        inner = next(each for each in arguments if each is not NoneType)
        return None if raw is None and NoneType in arguments else _decoded(inner, raw)
    if origin in (tuple, frozenset):
        return origin(_items(arguments, _of(list, raw)))
    if origin is not None:
        return {arguments[0](name): _decoded(arguments[1], each) for name, each in _of(dict, raw).items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return hint(**_structured(hint, _of(dict, raw)))
    if issubclass(hint, tuple):
        names, values = list(_hints(hint)), _of(list, raw)
        return hint(**_structured(hint, dict(zip(names, values, strict=False))))
    return float(_of(int | float, raw)) if hint is float else _of(hint, raw)


def _items(arguments: tuple[Any, ...], raw: list[Any]) -> Iterable[Any]:
    if arguments[-1] is Ellipsis or len(arguments) == 1:
        return (_decoded(arguments[0], each) for each in raw)
    if len(arguments) != len(raw):
        raise WireError(f"{len(raw)} values instead of {len(arguments)}")
    return (_decoded(hint, each) for hint, each in zip(arguments, raw, strict=True))


def _structured(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401  # as above
    hints = _hints(kind)
    unknown = [name for name in raw if name not in hints]
    if unknown:
        raise WireError(f"{kind.__name__} has no {unknown[0][:40]!r} here: is the other side of another version?")
    return {name: _decoded(hints[name], each) for name, each in raw.items()}


def _of(kind: Any, raw: Any) -> Any:  # noqa: ANN401  # a type, and a value that should be of it
    if not isinstance(raw, kind) or (isinstance(raw, bool) and kind is not bool):
        raise WireError(f"{type(raw).__name__} where another type belongs")
    return raw
