"""`plimsoll replay`: what the guard would have done in a recording."""

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from plimsoll.box.errors import DRIFT, GOOD, UNKNOWN, UsageError
from plimsoll.box.guard import config, configured, foreign, picture, recording
from plimsoll.box.guard import replay as replaying
from plimsoll.box.guard.model import KIB_PER_GIB, Rule, Sample, Settings
from plimsoll.box.guard.when import Clock, duration
from plimsoll.box.host import Host
from plimsoll.box.texts import printable

SCHEMA = "plimsoll.replay/1"
MAX_GIB = 1 << 20
_SHORTEST_S = 0.001
FOREIGN_GAP_S = 300.0
"""Other tools sample once a minute, and miss one."""
MAX_SHOWN = 50
"""More decisions than that are in the JSON only."""


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="the oldest first; none: this box's own recording")
    parser.add_argument("--config", metavar="FILE", help=f"what to go by instead of {config.PATH}")
    parser.add_argument("--columns", metavar="NAME=COLUMN,...", help=f"of another tool's table: {foreign.WANTED}")
    parser.add_argument("--mem-total-gib", type=_gib_given, metavar="X", help="judge a box with this much memory")
    parser.add_argument("--step-s", type=_seconds, metavar="S", help="time between two looks; default: as configured")
    parser.add_argument("--json", action="store_true", help="print it as plimsoll.replay/1")
    parser.add_argument("--picture", metavar="FILE", help="draw it, as SVG")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if _SHORTEST_S <= (found := float(text)) < math.inf:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {_SHORTEST_S:g} on")


def _gib_given(text: str) -> float:
    with suppress(ValueError):
        if 0 < (found := float(text)) <= MAX_GIB:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no size of a machine's memory in GiB")


def replay(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Return 0 where nothing would have been done, 2 where something would, 3 where that could not be told."""
    source = Source(arguments.files or _own_files(host), arguments.columns)
    samples = source.samples()
    # what a recording was made on stands before its first sample
    first = next(samples, None)
    if first is None:
        raise UsageError(source.why_nothing())
    given_kib = round((arguments.mem_total_gib or 0) * KIB_PER_GIB)
    settings, total_kib = _settings(arguments.config, host, given_kib or source.mem_total_kib)
    tally, trace = replaying.Tally(settings.lines, source.gap_s), picture.Trace(source.gap_s)
    recorded = trace.watch(tally.watch(chain([first], samples)))
    looked_at = replaying.stretch(recorded, arguments.step_s or settings.period_ms / 1000, source.gap_s)
    decided = tuple(replaying.replay(settings, looked_at, gap_s=source.gap_s))
    is_ours = not given_kib and source.mem_total_kib is None
    result = Result(source, settings, total_kib, tally, decided, is_ours)
    if arguments.picture:
        drawn = picture.draw(result.title, result.clock, trace, settings.lines, result.decided)
        _write(arguments.picture, drawn)
    print(json.dumps(result.to_json(), indent=1) if arguments.json else "\n".join(map(printable, result.text())))
    return result.exit_code


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _own_files(host: Host) -> list[str]:
    paths = [host.path(path) for path in (f"{recording.PATH}.1", recording.PATH)]
    found = [path for path in paths if os.path.exists(path)]
    if not found:
        raise UsageError(f"{recording.PATH}: there is no recording on this box yet; name a file")
    return found


def _settings(named: str | None, host: Host, known_kib: int | None) -> tuple[Settings, int]:
    """Return what to go by, with every rule armed that would arm itself, and the MemTotal that it was scaled to."""
    total_kib = known_kib or configured.mem_total_kib(host)
    if total_kib is None:
        raise UsageError("neither the recording nor /proc/meminfo says MemTotal, which the lines are scaled to")
    if named:
        found = config.load("".join(_lines_of(named)), named, total_kib)
    else:
        found = configured.load(host, total_kib).config
    armed = frozenset(rule for rule, arming in found.arming.items() if _would_act(rule, arming))
    return replace(found.settings, armed=armed), total_kib


def _would_act(rule: Rule, arming: config.Arming) -> bool:
    return arming is config.Arming.ARMED or (arming is config.Arming.AUTO and rule is not Rule.STALL)


def _lines_of(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            yield from file
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


class Source:
    """The files of a recording, one after another, whichever of the two kinds they are."""

    def __init__(self, paths: Sequence[str], declared: str | None) -> None:
        self.paths = paths
        self._columns = None if declared is None else foreign.columns(declared)
        self._own: recording.Reader | None = None
        self._tables: list[foreign.Table] = []

    @property
    def name(self) -> str:
        """The files, as they were called."""
        return ", ".join(self.paths)

    @property
    def gap_s(self) -> float:
        """The longest time between two samples of which something is known."""
        return recording.GAP_S if self._columns is None else FOREIGN_GAP_S

    def samples(self) -> Iterator[Sample]:
        """Yield the samples; raises UsageError for a file that cannot be read or used."""
        if self._columns is None:
            self._own = recording.Reader(chain.from_iterable(map(_lines_of, self.paths)))
            return recording.samples(self._own)
        return chain.from_iterable(map(self._table, self.paths))

    def _table(self, path: str) -> foreign.Table:
        assert self._columns is not None  # noqa: S101  # for the type checker: only then this is called
        table = foreign.Table(_lines_of(path), path, self._columns)
        self._tables.append(table)
        return table

    @property
    def mem_total_kib(self) -> int | None:
        """MemTotal of the machine that it was recorded on, where it says that."""
        return self._own.mem_total_kib if self._own else None

    @property
    def is_unix_time(self) -> bool:
        """Whether its times are since 1970."""
        return all(table.is_unix_time for table in self._tables)

    @property
    def unreadable(self) -> int:
        """How many lines could not be read."""
        return (self._own.unreadable if self._own else 0) + sum(table.unreadable for table in self._tables)

    def why_nothing(self) -> str:
        """Say why there is not one sample in it."""
        first = next((table.first_unreadable for table in self._tables if table.first_unreadable), "")
        if first:
            return f"{first}; none of {self.unreadable} lines can be read: are these the right columns?"
        if self.unreadable:
            other = f"{self.unreadable} lines, none of a recording of Plimsoll's"
            declared = "declare another tool's columns, such as --columns at=TIME,available_mib=AVAILABLE"
            return f"{self.paths[0]}:1: {other}: {declared}"
        return f"{self.name}: holds no samples"


@dataclass(frozen=True)
class Result:
    """What came of a replay."""

    source: Source
    settings: Settings
    mem_total_kib: int
    tally: replaying.Tally
    decided: tuple[replaying.Decided, ...]
    by_this_machine: bool
    """Whether MemTotal is that of the machine that this runs on, for want of another."""

    @property
    def clock(self) -> Clock:
        """How its times are to be shown."""
        return Clock(self.source.is_unix_time, self.tally.first_s or 0.0)

    @property
    def acts(self) -> list[replaying.Decided]:
        """What would have been done, beside what would only have been said."""
        return [each for each in self.decided if each.action.armed]

    @property
    def is_unknown(self) -> bool:
        """Whether there are no two samples, near each other, of which the level is known."""
        return self.tally.samples - self.tally.unknown - self.tally.gaps < 2  # noqa: PLR2004  # a rule needs two

    @property
    def exit_code(self) -> int:
        """See `replay`."""
        if self.acts:
            return DRIFT
        return UNKNOWN if self.is_unknown else GOOD

    @property
    def title(self) -> str:
        """One line that says what it is."""
        return f"{self.source.name}: {self.verdict}"

    @property
    def verdict(self) -> str:
        """What it comes to."""
        if self.acts:
            times = f"{len(self.acts)} times" if len(self.acts) > 1 else "once"
            return f"the guard would have acted {times}"
        if self.is_unknown:
            return "it cannot be told: no two samples near each other say how much memory was available"
        return "the guard would have done nothing"

    def text(self) -> Iterator[str]:
        """Yield the result for a person, line by line."""
        yield from self._summary()
        yield ""
        width = max((len(self.clock.shown(each.at_s)) for each in self.decided), default=0)
        for number, each in enumerate(self.decided[:MAX_SHOWN], 1):
            action, at = each.action, self.clock.shown(each.at_s)
            would = action.verb.value if action.armed else f"({action.verb.value})"
            yield f"{number:>3}  {at:<{width}}  {action.rule.value:<5}  {would:<8}  {action.reason}"
        if len(self.decided) > MAX_SHOWN:
            yield f"     and {len(self.decided) - MAX_SHOWN} more; --json has them all"
        if len(self.acts) < len(self.decided):
            yield "     in brackets: what a rule that is not armed would have said"
        yield self.verdict

    def _summary(self) -> Iterator[str]:
        tally, lines = self.tally, self.settings.lines
        start_s = tally.first_s or 0.0
        length = duration(tally.last_s - start_s)
        whose = ", which is this machine's (--mem-total-gib for another)" if self.by_this_machine else ""
        yield f"{self.source.name}: {tally.samples} samples over {length}, from {self.clock.shown(start_s)}"
        yield (
            f"lines for {_gib(self.mem_total_kib)} of memory{whose}: floor {_gib(lines.floor_kib)}, slow "
            f"{_gib(lines.slow_enter_kib)}, left above {_gib(lines.slow_leave_kib)}; "
            f"armed: {', '.join(rule.value for rule in Rule if rule in self.settings.armed) or 'nothing'}"
        )
        if tally.lowest is not None:
            yield f"lowest: {_gib(tally.lowest.available_kib or 0)} at {self.clock.shown(tally.lowest.at_s)}"
        yield f"falls below the slow line: {tally.crossings}, in episodes: {tally.episodes}"
        if tally.gaps:
            longest = duration(tally.longest_gap_s)
            yield f"gaps of which nothing is known: {tally.gaps}, the longest of {longest} (off, or wedged)"
        if tally.unknown:
            yield f"samples that do not say how much was available: {tally.unknown}"
        if self.source.unreadable:
            yield f"lines left out because they cannot be read: {self.source.unreadable}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plimsoll.replay/1."""
        tally, lines = self.tally, self.settings.lines
        return {
            "schema": SCHEMA,
            "files": list(self.source.paths),
            "mem_total_kib": self.mem_total_kib,
            "lines": {
                "floor_kib": lines.floor_kib,
                "slow_enter_kib": lines.slow_enter_kib,
                "slow_leave_kib": lines.slow_leave_kib,
            },
            "armed": [rule.value for rule in Rule if rule in self.settings.armed],
            "verdict": self.verdict,
            "samples": tally.samples,
            "unknown_samples": tally.unknown,
            "unreadable_lines": self.source.unreadable,
            "from": self.clock.shown(tally.first_s or 0.0),
            "to": self.clock.shown(tally.last_s),
            "gaps": tally.gaps,
            "longest_gap_s": round(tally.longest_gap_s, 1),
            "lowest_available_kib": None if tally.lowest is None else tally.lowest.available_kib,
            "slow_line_crossings": tally.crossings,
            "slow_line_episodes": tally.episodes,
            "decisions": [self._decision(each) for each in self.decided],
        }

    def _decision(self, decided: replaying.Decided) -> dict[str, Any]:
        action = decided.action
        return {
            "at": self.clock.shown(decided.at_s),
            "at_s": round(decided.at_s, 3),
            "rule": action.rule.value,
            "verb": action.verb.value,
            "armed": action.armed,
            "reason": action.reason,
            "available_kib": decided.sample.available_kib,
            "margins_kib": dict(action.margins_kib),
        }


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"
