"""guard.toml: one table of keys drives what is read, what is refused, and what the documentation says.

A file is judged as a whole, so that one look mends it; what it does not say has the default.
"""

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from plimsoll.box.errors import USAGE, BoxError
from plimsoll.box.guard.model import KIB_PER_GIB, Lines, Rule, Settings
from plimsoll.box.guard.processes import GPU_DEVICES

PATH = "/etc/plimsoll/guard.toml"
KIB_PER_MIB = 1 << 10
REFERENCE_KIB = round(121.6 * KIB_PER_GIB)
"""MemTotal of the box that the default lines were measured on; elsewhere they are scaled to MemTotal."""


class ConfigError(BoxError):
    """The file cannot be used; every line of the message says what, where, and what to do."""

    exit_code = USAGE


class Arming(StrEnum):
    """Whether a rule acts."""

    ARMED = "armed"
    OBSERVE = "observe"
    AUTO = "auto"
    """Floor: at once, unless something sits below it already. Rate and slow: after a clean day. Stall: never."""


class Selector(NamedTuple):
    """What an operator calls a workload by."""

    kind: str
    """`cgroup`, `unit` or `command`."""
    pattern: str
    """A shell pattern over all of it; over the command's first word without its directory."""

    def fits(self, cgroup: str, unit: str | None, command: str) -> bool:
        """Say whether the workload with this cgroup, unit (or container) and command line is meant."""
        words = command.split(maxsplit=1)
        name = words[0].rpartition("/")[2] if words else ""
        looked_at = {"cgroup": cgroup, "unit": unit or "", "command": name}[self.kind]
        return fnmatchcase(looked_at, self.pattern)


@dataclass(frozen=True)
class Config:
    """All that the guard goes by. `settings.armed` is what holds until the recording was looked at."""

    settings: Settings
    arming: Mapping[Rule, Arming]
    protect: tuple[Selector, ...]
    prefer: tuple[Selector, ...]
    gpu_devices: tuple[str, ...]
    """Shell patterns."""
    hook_command: tuple[str, ...]
    hook_timeout_s: float
    recording_max_mib: float
    metrics_file: str
    reserve_groups: tuple[str, ...]
    dry_run: bool


class WrongValueError(Exception):
    """A value does not do; the message says why, and what would."""


@dataclass(frozen=True)
class Kind:
    """How a value is written: what a person is told it is, and the function that checks and converts it."""

    accepts: str
    read: Callable[["Key", Any], Any]


@dataclass(frozen=True)
class Key:
    """One key of the file; `target` is the field that it sets, `factor` its unit in that of the field."""

    section: str
    name: str
    kind: Kind
    target: str
    means: str
    within: tuple[float, float] = (-math.inf, math.inf)
    """What a number may be, both ends included."""
    factor: int = 1
    own_default: Any = None
    """Where the rules' own settings have none."""

    @property
    def dotted(self) -> str:
        """Its name with its section's."""
        return f"{self.section}.{self.name}"

    @property
    def accepts(self) -> str:
        """What it takes, with the range of a number."""
        if self.kind not in (NUMBER, WHOLE):
            return self.kind.accepts
        return f"{self.kind.accepts} from {self.within[0]:g} to {self.within[1]:g}"

    @property
    def default(self) -> Any:  # noqa: ANN401  # as the file would say it
        """What holds where the file says nothing; of a line, on the box that it was measured on."""
        if self.own_default is not None:
            return self.own_default
        return getattr(_SETTINGS, self.target) / self.factor


def _number(key: Key, value: Any) -> Any:  # noqa: ANN401  # what a file holds, and what a field takes
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    # written so that it refuses nan as well
    if not key.within[0] <= value <= key.within[1]:
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return round(value * key.factor) if key.factor > 1 else float(value)


def _whole(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    found = _number(key, value)
    if found != round(found):
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return round(found)


def _flag(_key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not isinstance(value, bool):
        raise WrongValueError(f"{value!r} is not true or false, without quotes")
    return value


def _path(_key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not isinstance(value, str) or (value and not value.startswith("/")) or "\0" in value:
        raise WrongValueError(f'{value!r} is not a path from the root, nor "" for none')
    return value


def _texts(_key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not isinstance(value, list) or not all(isinstance(each, str) and each and "\0" not in each for each in value):
        raise WrongValueError(f'{value!r} is not a list of texts, such as ["one", "two"]')
    return tuple(value)


def _argv(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    words = _texts(key, value)
    if words and not words[0].startswith("/"):
        raise WrongValueError(f"{words[0]!r} is not a path from the root: no shell looks for it")
    return words


def _devices(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    paths = _texts(key, value)
    if not paths or not all(path.startswith("/dev/") for path in paths):
        raise WrongValueError(f"{value!r} is not {key.accepts}; without the key it is the NVIDIA driver's")
    return paths


def _selectors(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    found = []
    for text in _texts(key, value):
        kind, colon, pattern = text.partition(":")
        if kind not in ("cgroup", "unit", "command") or not colon or not pattern:
            raise WrongValueError(f'{text!r} is not "cgroup:PATTERN", "unit:PATTERN" or "command:PATTERN"')
        found.append(Selector(kind, pattern))
    return tuple(found)


def _arming(_key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    try:
        return Arming(value)
    except ValueError:
        raise WrongValueError(f'{value!r} is not "armed", "observe" or "auto"') from None


NUMBER = Kind("a number", _number)
WHOLE = Kind("a whole number", _whole)
FLAG = Kind("true or false", _flag)
PATHNAME = Kind('a path from the root, or ""', _path)
DEVICES = Kind("a list of device files, such as /dev/nvidia*, of one at least", _devices)
NAMES = Kind("a list of names", _texts)
ARGV = Kind("a list: a program with its path, and its arguments", _argv)
SELECTORS = Kind('a list of "cgroup:PATTERN", "unit:PATTERN" or "command:PATTERN"', _selectors)
ARMING = Kind('"armed", "observe" or "auto"', _arming)

_SETTINGS = Settings(Lines(0, 0, 0))
_ANY_LINE = (0.01, 4096.0)
_TO_A_MINUTE = (0.0, 60.0)
_TO_TEN_MINUTES = (0.1, 600.0)
_LINES = (
    Key("lines", "slow_leave_gib", NUMBER, "slow_leave_kib", "an episode below the slow line ends above this",
        _ANY_LINE, KIB_PER_GIB, 9),
    Key("lines", "slow_enter_gib", NUMBER, "slow_enter_kib", "the slow line: time below it counts",
        _ANY_LINE, KIB_PER_GIB, 8),
    Key("lines", "floor_gib", NUMBER, "floor_kib", "below this a workload is killed at once",
        _ANY_LINE, KIB_PER_GIB, 3),
)  # fmt: skip
"""From the top of the ladder down; each lies above the next."""
KEYS: tuple[Key, ...] = (
    *_LINES,
    Key("floor", "ahead_s", NUMBER, "floor_ahead_s",
        "below twice the floor: one that is reached within this time counts as reached", (0, 1)),
    Key("rate", "horizon_s", NUMBER, "horizon_s", "how far ahead a fall is projected onto the floor", (0, 10)),
    Key("slow", "dwell_s", NUMBER, "slow_dwell_s", "time below the slow line before SIGTERM", (0, 3600)),
    Key("slow", "term_grace_s", NUMBER, "term_grace_s", "time from SIGTERM to SIGKILL", (0, 600)),
    Key("slow", "needs_full_percent", NUMBER, "slow_needs_full_percent",
        "above 0: only time counts in which PSI full was at least that high", (0, 100)),
    Key("stall", "full_percent", NUMBER, "stall_full_percent", "PSI full from which time counts as a stall", (1, 100)),
    Key("stall", "for_s", NUMBER, "stall_s", "how long a stall lasts before an engine is killed for it", (10, 7200)),
    Key("armed", "floor", ARMING, "floor", "auto: at once, unless something sits below the floor already",
        own_default="auto"),
    Key("armed", "rate", ARMING, "rate", "auto: after 24 hours in which it would have stopped nothing",
        own_default="auto"),
    Key("armed", "slow", ARMING, "slow", "auto: after 24 hours in which it would have stopped nothing",
        own_default="auto"),
    Key("armed", "stall", ARMING, "stall", "auto: observes, and does not act", own_default="auto"),
    Key("armed", "dry_run", FLAG, "dry_run", "observe only, whatever is armed", own_default=False),
    Key("sampling", "period_ms", WHOLE, "period_ms", "time between two samples", (20, 1000)),
    Key("sampling", "fast_period_ms", WHOLE, "fast_period_ms", "the same while memory falls fast", (5, 1000)),
    Key("sampling", "fast_below_s", NUMBER, "fast_below_s", "fast: the floor would be reached within this time",
        _TO_A_MINUTE),
    Key("victims", "protect", SELECTORS, "protect", "what is never stopped", own_default=()),
    Key("victims", "prefer", SELECTORS, "prefer", "what is stopped before others", own_default=()),
    Key("victims", "gpu_devices", DEVICES, "gpu_devices", "who has one of these files open holds the GPU",
        own_default=GPU_DEVICES),
    Key("victims", "attributed_min_mib", NUMBER, "attributed_min_kib",
        "who holds less of the GPU's memory than this, and did not grow by as much, is not stopped", (1, 1 << 20),
        KIB_PER_MIB),
    Key("victims", "fallback_min_gib", NUMBER, "fallback_min_kib",
        "where nobody holds the GPU, the largest container is killed if it has at least this much", (0.1, 4096),
        KIB_PER_GIB),
    Key("victims", "next_after_s", NUMBER, "next_victim_after_s",
        "a second victim is taken, below the floor, after this time", (1, 600)),
    Key("victims", "settle_s", NUMBER, "settle_s", "how long memory may go on coming back after a victim is gone",
        _TO_A_MINUTE),
    Key("loop", "kills", WHOLE, "loop_kills", "stopped so often, a workload that comes back is killed early", (1, 100)),
    Key("loop", "within_s", NUMBER, "loop_within_s", "the time in which they are counted", (1, 86400)),
    Key("hooks", "command", ARGV, "hook_command",
        "run after an act, with the record on its standard input; for a webhook name a program that sends it",
        own_default=()),
    Key("hooks", "timeout_s", NUMBER, "hook_timeout_s", "the command is killed after this time", _TO_TEN_MINUTES,
        own_default=10),
    Key("recording", "max_mib", NUMBER, "recording_max_mib", "size of the recording, both of its files together",
        (1, 4096), own_default=80),
    Key("metrics", "file", PATHNAME, "metrics_file", 'OpenMetrics for a textfile collector; "" for none',
        own_default=""),
    Key("reserve", "groups", NAMES, "reserve_groups", "groups whose members may reserve memory, beside root",
        own_default=()),
)  # fmt: skip
_BY_SECTION = {
    section: {key.name: key for key in KEYS if key.section == section}
    for section in dict.fromkeys(key.section for key in KEYS)
}


class Row(NamedTuple):
    """A key as the documentation shows it."""

    key: str
    accepts: str
    default: str
    means: str


def describe() -> list[Row]:
    """Return one row for every key, in the order in which a person would look for them."""
    return [Row(key.dotted, key.accepts, _shown_default(key), key.means) for key in KEYS]


def _shown_default(key: Key) -> str:
    if key in _LINES:
        return f"{key.default} of {REFERENCE_KIB / KIB_PER_GIB:g} GiB, scaled to MemTotal"
    return shown(key.default)


def shown(value: object) -> str:
    """Return a value as a file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def load(text: str, path: str, mem_total_kib: int | None) -> Config:
    """Return what a file says; raises ConfigError with every fault of it.

    `mem_total_kib` scales the default lines; where it is not known there are none, and the file has to give them.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        raise ConfigError(f"{path}:{found[1] if found else 1}: not TOML: {error}") from error
    reader = _Reader(text, path, mem_total_kib)
    config = reader.read(document)
    if reader.faults:
        raise ConfigError("\n".join(fault for _line, fault in sorted(reader.faults)))
    return config


class _Reader:
    """Collects the faults of one file, each with its line."""

    def __init__(self, text: str, path: str, mem_total_kib: int | None) -> None:
        self._lines = text.splitlines()
        self._path = path
        self._mem_total_kib = mem_total_kib
        self._values: dict[Key, Any] = {}
        self.faults: list[tuple[int, str]] = []

    def read(self, document: Mapping[str, Any]) -> Config:
        for section, content in document.items():
            self._section(section, content)
        values = {key: self._values.get(key, self._default(key)) for key in KEYS}
        self._check_ladder(values)
        self._check_periods(values)
        return _config({key.dotted: value for key, value in values.items()})

    def _section(self, section: str, content: object) -> None:
        known = _BY_SECTION.get(section)
        if known is None:
            self._fault(section, None, f"unknown section [{section}]; {nearest(section, _BY_SECTION)}")
        elif not isinstance(content, dict):
            self._fault(section, None, f"{section} is a section: write [{section}] and its keys below")
        else:
            for name, value in content.items():
                self._value(known, section, name, value)

    def _value(self, known: Mapping[str, Key], section: str, name: str, value: object) -> None:
        key = known.get(name)
        if key is None:
            self._fault(section, name, f"unknown key {section}.{name}; {nearest(name, known)}")
            return
        try:
            self._values[key] = key.kind.read(key, value)
        except WrongValueError as wrong:
            self._fault(section, name, f"{key.dotted}: {wrong}")

    def _default(self, key: Key) -> Any:  # noqa: ANN401  # as above
        if key in _LINES:
            return round(key.default * KIB_PER_GIB * (self._mem_total_kib or REFERENCE_KIB) / REFERENCE_KIB)
        return key.kind.read(key, list(key.default) if isinstance(key.default, tuple) else key.default)

    def _check_ladder(self, values: Mapping[Key, Any]) -> None:
        top, missing = _LINES[0], [key.dotted for key in _LINES if key not in self._values]
        if self._mem_total_kib is None and missing:
            scaled = "MemTotal is not known here, to which the default lines are scaled"
            self._fault("lines", None, f"{scaled}: give {', '.join(missing)}")
            return
        if self._mem_total_kib is not None and values[top] >= self._mem_total_kib:
            total = f"MemTotal ({self._mem_total_kib / KIB_PER_GIB:.2f} GiB)"
            self._fault(top.section, top.name, f"{self._shown(top, values)} must lie below {total}: lower it")
        for upper, lower in itertools.pairwise(_LINES):
            if values[upper] <= values[lower]:
                wrong = lower if lower in self._values else upper
                message = (
                    f"{self._shown(upper, values)} must lie above {self._shown(lower, values)}: change one of them"
                )
                self._fault(wrong.section, wrong.name, message)

    def _shown(self, key: Key, values: Mapping[Key, Any]) -> str:
        where = f"line {self._line(key.section, key.name)}" if key in self._values else "the default here"
        return f"{key.dotted} ({values[key] / KIB_PER_GIB:g} GiB, {where})"

    def _check_periods(self, values: Mapping[Key, Any]) -> None:
        slow, fast = _BY_SECTION["sampling"]["period_ms"], _BY_SECTION["sampling"]["fast_period_ms"]
        if values[fast] > values[slow]:
            message = (
                f"{fast.dotted} ({values[fast]}) is longer than {slow.dotted} ({values[slow]}): change one of them"
            )
            self._fault(fast.section, fast.name if fast in self._values else slow.name, message)

    def _fault(self, section: str, name: str | None, message: str) -> None:
        line = self._line(section, name)
        self.faults.append((line, f"{self._path}:{line}: {message}"))

    def _line(self, section: str, name: str | None) -> int:
        return line_of(self._lines, section, name)


def line_of(lines: Sequence[str], section: str, name: str | None) -> int:
    """Return the line, from 1, of a key of a TOML file, else of its section; tomllib keeps none."""
    header, within = 0, ""
    for number, line in enumerate(lines, 1):
        if opened := _HEADER.match(line):
            within = opened[1].strip("\"' ")
            header = header or (number if within.partition(".")[0] == section else 0)
            continue
        names = [word.strip("\"' ") for word in line.partition("=")[0].split(".")]
        path = [*([within] if within else []), *names]
        if path[:2] == [section, name] or (name and path[0] == section and _begins_with(line, name)):
            return number
        header = header or (number if path[0] == section else 0)
    return header or 1


_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")


def _begins_with(line: str, name: str) -> bool:
    """Say whether an inline table, `section = {name = 1}`, has the key."""
    return re.search(rf"[{{,]\s*[\"']?{re.escape(name)}[\"']?\s*=", line) is not None


def nearest(word: str, known: Mapping[str, Any]) -> str:
    """Return which of the names that are known a mistaken one is likely to mean, else all of them."""
    from difflib import get_close_matches  # noqa: PLC0415  # needed for a mistake only, and what is imported is locked

    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


def _config(values: Mapping[str, Any]) -> Config:
    lines = Lines(**{key.target: values[key.dotted] for key in _LINES})
    arming = {rule: values[f"armed.{rule.value}"] for rule in Rule}
    named = {key.target: values[key.dotted] for key in KEYS}
    fields = {field.name for field in dataclasses.fields(Settings)} - {"lines", "armed"}
    settings = Settings(
        lines=lines,
        armed=frozenset() if named["dry_run"] else frozenset(rule for rule in Rule if _holds(rule, arming[rule])),
        **{name: value for name, value in named.items() if name in fields},
    )
    rest = {field.name for field in dataclasses.fields(Config)} - {"settings", "arming"}
    return Config(settings, arming, **{name: named[name] for name in rest})


def _holds(rule: Rule, arming: Arming) -> bool:
    """Say whether a rule acts before anything is known of the past."""
    return arming is Arming.ARMED or (arming is Arming.AUTO and rule in _SETTINGS.armed)
