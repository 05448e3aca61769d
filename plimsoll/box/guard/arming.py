"""Which rules may act, and why: a default install stops nothing that was healthy. Pure but for `load` and `save`.

The floor is armed at once unless something is below it already, and then as soon as nothing is. rate and slow watch
until a day of recording is there, and arm themselves if a replay of the last day has them stop nobody whom the floor
would not have stopped as well. stall never arms itself. What an operator said on the box holds until taken back.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from plimsoll.box.errors import GOOD, UNKNOWN
from plimsoll.box.guard import spawn, whole
from plimsoll.box.guard.config import Arming as Mode
from plimsoll.box.guard.model import KIB_PER_GIB, Rule, Sample, Settings, Verb
from plimsoll.box.guard.recording import PATH as RECORDING
from plimsoll.box.guard.recording import Reader, Row
from plimsoll.box.guard.recording import samples as recorded_samples
from plimsoll.box.guard.replay import replay, stretch
from plimsoll.box.host import Host

PATH = "/var/lib/plimsoll/guard/arming.json"
"""0600. Neither in /run, which a boot empties, nor beside the recording, which is rotated."""
SCHEMA = "plimsoll.arming/1"
WINDOW_S = 24 * 3600.0
"""What a clean replay must cover: a day has the night's jobs as well as the day's."""
SAME_FALL_S = 30.0
"""A rule that acts this close to the floor is about the same load: memory that fell at 17 to 41 GiB/s was gone in
seconds, and a SIGTERM is followed by SIGKILL after 10 s."""
MAX_NAMED = 3
_SELF_ARMING = (Rule.RATE, Rule.SLOW)


@dataclass(frozen=True)
class Standing:
    """One rule: whether it may act, why, and since when (Unix time)."""

    rule: Rule
    mode: Mode
    armed: bool
    why: str
    since_s: float


@dataclass(frozen=True)
class Arming:
    """All rules, and what was chosen on the box; `lines` are those that it was reckoned for."""

    standings: tuple[Standing, ...] = ()
    choices: Mapping[Rule, Mode] = field(default_factory=dict)
    lines: str = ""

    @property
    def armed(self) -> frozenset[Rule]:
        """The rules that may act."""
        return frozenset(each.rule for each in self.standings if each.armed)

    @property
    def kept(self) -> tuple[object, ...]:
        """What is worth writing to disk: not the reasons, of which one counts the hours that are recorded."""
        return [(each.rule, each.armed, each.since_s) for each in self.standings], self.choices, self.lines

    def of(self, rule: Rule) -> Standing | None:
        """Return how a rule stands, None if that was never reckoned."""
        return next((each for each in self.standings if each.rule is rule), None)


@dataclass(frozen=True)
class Would:
    """What a rule would have done in a recording: when (its own clock), and for what reason."""

    rule: Rule
    at_s: float
    reason: str


@dataclass(frozen=True)
class Replayed:
    """What a replay of the recording's last day came to."""

    covered_s: float
    """How much of it there are samples of: time that the box was off, or the guard was, does not count."""
    would: tuple[Would, ...] = ()
    problem: str = ""
    """Why there is nothing to go by."""

    def against(self, rule: Rule) -> list[Would]:
        """Return what a rule would have done and the floor would not."""
        floor = [each.at_s for each in self.would if each.rule is Rule.FLOOR]
        mine = [each for each in self.would if each.rule is rule]
        return [each for each in mine if not any(abs(at_s - each.at_s) <= SAME_FALL_S for at_s in floor)]


def covered_s(times: Iterable[float], longest_gap_s: float = 10.0) -> float:
    """Return how much time a recording has samples of, from the times of its rows; a gap or a step back is left out."""
    total, before = 0.0, None
    for at_s in times:
        if before is not None and 0 < at_s - before <= longest_gap_s:
            total += at_s - before
        before = at_s
    return total


def from_recording(settings: Settings, rows: Iterable[Row], now_s: float) -> Replayed:
    """Return what the rules would have done in the last day of a recording, were none of them armed."""
    recent = (row for row in rows if abs(now_s - row.unix_s) <= WINDOW_S)
    times: list[float] = []

    def noted(samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            times.append(sample.at_s)
            yield sample

    watching = dataclasses.replace(settings, armed=frozenset())
    fine = stretch(noted(recorded_samples(recent)), settings.period_ms / 1000)
    decided = [each for each in replay(watching, fine) if each.action.verb in (Verb.TERM, Verb.KILL)]
    would = tuple(Would(each.action.rule, each.at_s, each.action.reason) for each in decided)
    return Replayed(covered_s(times), would)


def last_day(host: Host, settings: Settings, now_s: float) -> Replayed:
    """Return what `from_recording` says of this host's own recording. It takes seconds of a core: for a child."""
    try:
        reader = Reader(_recorded_lines(host))
        return from_recording(settings, reader, now_s)
    except OSError as error:
        return Replayed(0.0, problem=f"the recording cannot be read: {error.filename}: {error.strerror}")


LAST_DAY_WITHIN_S = 300.0
"""A day of 864,000 steps takes some seconds of a core, and this is the idlest process of a busy box."""


def ask_last_day(program: str) -> Replayed:
    """Have a child of the lowest priority look at the last day; for a thread that may wait."""
    argv = ("/usr/bin/nice", "-n", "19", sys.executable, "-I", program, "guard", "last-day", "--json")
    ran = spawn.run(argv, LAST_DAY_WITHIN_S)
    if ran.code not in (GOOD, UNKNOWN):
        return Replayed(0.0, problem=f"the recording could not be replayed: {ran.problem}")
    return replayed_from_json(ran.out)


def replayed_to_json(found: Replayed) -> dict[str, Any]:
    """Return it as JSON types, for the guard that had a child look."""
    return dataclasses.asdict(found)


def replayed_from_json(text: str) -> Replayed:
    """Read it back; what is not one is a recording that nothing is known of."""
    try:
        data = json.loads(text)
        would = tuple(Would(Rule(each["rule"]), float(each["at_s"]), str(each["reason"])) for each in data["would"])
        return Replayed(float(data["covered_s"]), would, str(data["problem"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Replayed(0.0, problem=f"the recording could not be replayed: {error}")


def _recorded_lines(host: Host) -> Iterator[str]:
    """Yield the lines of the recording, the older file first; one that is not there has none."""
    for path in (f"{RECORDING}.1", RECORDING):
        with suppress(FileNotFoundError), open(host.path(path), encoding="ascii", errors="replace") as file:
            yield from file


def reckon(
    modes: Mapping[Rule, Mode],
    before: Arming,
    settings: Settings,
    available_kib: int | None,
    replayed: Replayed,
    now_s: float,
) -> Arming:
    """Return how every rule stands now; one that armed itself stays armed for as long as its lines are the same."""
    lines = _lines(settings)
    kept = before if before.lines == lines else Arming(choices=before.choices)
    standings = []
    for rule in Rule:
        chosen = before.choices.get(rule)
        mode = chosen or modes.get(rule, Mode.AUTO)
        armed, why = _stand(rule, mode, kept.of(rule), settings, available_kib, replayed)
        if mode is not Mode.AUTO:
            why = f"{'armed' if armed else 'observes'}: {'set on this box' if chosen else 'the configuration says so'}"
        old = before.of(rule)
        since_s = old.since_s if old is not None and old.armed == armed else now_s
        standings.append(Standing(rule, mode, armed, why, since_s))
    return Arming(tuple(standings), dict(before.choices), lines)


def choose(before: Arming, rules: Iterable[Rule], mode: Mode) -> Arming:
    """Return what is known after an operator has said how rules shall stand; `auto` takes an earlier word back."""
    chosen = dict.fromkeys(rules, mode)
    choices = {**before.choices, **chosen}
    kept = {rule: each for rule, each in choices.items() if each is not Mode.AUTO}
    # What was armed by word is not to be taken for what has armed itself.
    standings = tuple(each for each in before.standings if each.rule not in chosen)
    return Arming(standings, kept, before.lines)


def _stand(
    rule: Rule, mode: Mode, kept: Standing | None, settings: Settings, available_kib: int | None, replayed: Replayed
) -> tuple[bool, str]:
    if mode is not Mode.AUTO:
        return mode is Mode.ARMED, ""
    if kept is not None and kept.armed and kept.mode is Mode.AUTO:
        return True, kept.why
    if rule is Rule.FLOOR:
        return _floor(settings, available_kib)
    if rule in _SELF_ARMING:
        return _after_a_day(rule, replayed)
    return False, f"observes: it never arms itself; `plimsoll guard arm {rule}` does, once its recording was looked at"


def _floor(settings: Settings, available_kib: int | None) -> tuple[bool, str]:
    floor = settings.lines.floor_kib
    if available_kib is None:
        return False, "observes: how much memory is available is not known here"
    if available_kib < floor:
        return False, (
            f"observes: {_gib(available_kib)} are available, below the floor of {_gib(floor)} already, so that what "
            "runs would be stopped at once; it is armed when memory is above"
        )
    return True, f"armed: nothing was below the floor of {_gib(floor)}"


def _after_a_day(rule: Rule, replayed: Replayed) -> tuple[bool, str]:
    against = replayed.against(rule)
    if replayed.problem:
        return False, f"observes: {replayed.problem}"
    if against:
        named = "; ".join(each.reason for each in against[:MAX_NAMED])
        more = f" and {len(against) - MAX_NAMED} more" if len(against) > MAX_NAMED else ""
        times = f"{len(against)} times" if len(against) > 1 else "once"
        return False, f"observes: in the last day it would have stopped what went on well, {times}: {named}{more}"
    if replayed.covered_s < WINDOW_S * _ENOUGH:
        return False, f"observes: {replayed.covered_s / 3600:.1f} h of {WINDOW_S / 3600:.0f} h are recorded"
    return True, f"armed: a replay of {replayed.covered_s / 3600:.0f} h has it stop nobody whom the floor would not"


_ENOUGH = 0.99
"""Of a day at one sample a second a few are always late or lost: to a rotation, a restart, a wedge."""


def _lines(settings: Settings) -> str:
    lines = settings.lines
    times = f"{settings.horizon_s:g} {settings.slow_dwell_s:g}"
    return f"{lines.floor_kib} {lines.slow_enter_kib} {lines.slow_leave_kib} {times}"


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"


# --- kept over a boot -------------------------------------------------------------------------------


def load(host: Host) -> tuple[Arming, str]:
    """Return what was kept, and what is wrong with it; nothing known and "" where nothing was kept yet."""
    try:
        data = json.loads(host.text(PATH))
        return _from_json(data), ""
    except FileNotFoundError:
        return Arming(), ""
    except OSError as error:
        return Arming(), f"{PATH}: {error.strerror}: nothing is known of what was armed"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Arming(), f"{PATH}: damaged ({error}): every rule begins anew"


def _from_json(data: Any) -> Arming:  # noqa: ANN401  # whatever the file holds is checked here
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
    standings = tuple(
        Standing(Rule(name), Mode(each["mode"]), each["armed"] is True, str(each["why"]), float(each["since_s"]))
        for name, each in data["rules"].items()
    )
    choices = {Rule(name): Mode(mode) for name, mode in data["choices"].items()}
    return Arming(standings, choices, str(data["lines"]))


def to_json(arming: Arming) -> dict[str, Any]:
    """Return the record as JSON types."""
    rules = {
        each.rule.value: {"mode": each.mode.value, "armed": each.armed, "why": each.why, "since_s": each.since_s}
        for each in arming.standings
    }
    choices = {rule.value: mode.value for rule, mode in arming.choices.items()}
    return {"schema": SCHEMA, "lines": arming.lines, "choices": choices, "rules": rules}


def save(host: Host, arming: Arming) -> None:
    """Write it, whole or not at all; raises OSError."""
    whole.write(host, PATH, json.dumps(to_json(arming), indent=1).encode(), 0o600, sync=True)
