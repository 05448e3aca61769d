"""What service units, also those of users, say about memory limits, scores and restarts, by file and line."""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box import cmdline, units
from plimsoll.box.containers import SKIP_CHECK, client_arguments, client_facts, run_options, unwrapped
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed, is_on, regular_text
from plimsoll.box.quantities import parse_bytes, parse_number, parse_span_us
from plimsoll.box.resolve import Assignment, FileText, in_order, parse_ini
from plimsoll.box.resolve_units import UNIT_DIRECTORIES

MAX_UNITS = 200
MAX_DROP_INS = 20
LOCAL_DIRECTORIES = (
    "/etc/systemd/system",
    "/run/systemd/transient",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
)
"""Where administrators put units; those of packages are looked at only where an engine runs in one."""
USER_DIRECTORY = "/etc/systemd/user"
LIMITS = ("MemoryMax", "MemoryHigh", "MemoryLimit")
DEFAULT_RESTART_S = 0.1
"""RestartSec of systemd.service(5)."""


@dataclass(frozen=True)
class Unit:
    """A service, by its files in the order in which systemd reads them."""

    name: str
    scope: str
    """`system` or `user`."""
    files: Sequence[FileText]


def read(host: Host, homes: Iterable[str], running: Iterable[str], found: Observed) -> set[str]:
    """Observe the settings of local system units, of those named in `running`, and of users' units.

    Returns the names of the units that were seen to have a memory limit.
    """
    limited = set()
    for unit in (*_system_units(host, running, found), *_user_units(host, homes, found)):
        limited |= {unit.name} if _observe(host, unit, found) else set()
    return limited


def _system_units(host: Host, running: Iterable[str], found: Observed) -> Iterator[Unit]:
    names = {name for d in LOCAL_DIRECTORIES for name in found.names(host, d, MAX_UNITS, ".service")}
    for name in sorted({*names, *running})[:MAX_UNITS]:
        fragments = [file for d in UNIT_DIRECTORIES if (file := host.file(f"{d}/{name}"))]
        files: list[FileText] = [*fragments[:1], *in_order(units.drop_ins(host, name))]
        for unreadable in (each for each in files if "error" in each):
            found.missed(unreadable["path"], unreadable["error"])
        if files and not files[0].get("masked"):
            yield Unit(name, "system", files)


def _user_units(host: Host, homes: Iterable[str], found: Observed) -> Iterator[Unit]:
    left = MAX_UNITS
    for directory in (USER_DIRECTORY, *(f"{home}/.config/systemd/user" for home in homes)):
        for name in found.names(host, directory, left, ".service"):
            left -= 1
            paths = [
                f"{directory}/{name}.d/{n}" for n in found.names(host, f"{directory}/{name}.d", MAX_DROP_INS, ".conf")
            ]
            yield Unit(name, "user", [*_readable(host, [f"{directory}/{name}", *paths], found)])


def _readable(host: Host, paths: Iterable[str], found: Observed) -> Iterator[FileText]:
    for path in paths:
        text = None
        with found.reading(path):
            text = regular_text(host, path)
        if text is not None:
            yield {"path": path, "text": text}


def _observe(host: Host, unit: Unit, found: Observed) -> bool:
    lines = [line for file in unit.files for line in parse_ini(file) if line.section == "Service"]
    last = {line.key: line for line in lines}
    facts = _what_it_runs(unit.files)
    limits = [last[key] for key in LIMITS if key in last and last[key].value not in ("", "infinity")]
    if facts["runs"] != "other":
        for line in limits:
            _saw(found, unit, line, facts, number=parse_bytes(line.value))
        _restart(found, unit, last, facts)
        _skipped_check(host, found, unit, lines, facts)
    score = last.get("OOMScoreAdjust")
    number = parse_number(score.value) if score else None
    if score and number is not None and number < 0 and (unit.scope == "user" or facts["runs"] != "other"):
        _saw(found, unit, score, facts, number=number)
    return bool(limits)


def _restart(found: Observed, unit: Unit, last: dict[str, Assignment], facts: dict[str, Any]) -> None:
    restart = last.get("Restart")
    if restart is None or restart.value in ("", "no"):
        return
    pause = parse_span_us(last["RestartSec"].value) if "RestartSec" in last else None
    _saw(found, unit, restart, facts, restart_s=DEFAULT_RESTART_S if pause is None else pause / 1_000_000)


def _skipped_check(host: Host, found: Observed, unit: Unit, lines: Sequence[Assignment], facts: dict[str, Any]) -> None:
    """Look for the one variable in the unit and in its EnvironmentFile; nothing else of them is kept."""
    for line in _added_up(lines, "Environment"):
        for word in cmdline.split_words(line.value, c_escapes=True):
            name, _, value = word.partition("=")
            if name == SKIP_CHECK and is_on(value):
                _saw(found, unit, Assignment("", SKIP_CHECK, "1", line.place), facts)
    for line in _added_up(lines, "EnvironmentFile"):
        path = line.value.removeprefix("-")
        if "%" in path or not path.startswith("/"):
            continue
        with found.reading(path):
            value, number = cmdline.parse_environment_file(regular_text(host, path)).get(SKIP_CHECK, ("", 0))
            if is_on(value):
                found.saw("unit_setting", unit.name, path, number, **_fields(unit, SKIP_CHECK, "1", facts))


def _added_up(lines: Iterable[Assignment], key: str) -> list[Assignment]:
    """Return the lines of a setting that adds up; an empty one clears those before it."""
    kept: list[Assignment] = []
    for line in (each for each in lines if each.key == key):
        kept = [*kept, line] if line.value else []
    return kept


def _saw(
    found: Observed,
    unit: Unit,
    line: Assignment,
    facts: dict[str, Any],
    *,
    number: int | None = None,
    restart_s: float | None = None,
) -> None:
    fields = _fields(unit, line.key, line.value, facts) | {"number": number, "restart_s": restart_s}
    found.saw("unit_setting", unit.name, line.place.file, line.place.line, **fields)


def _fields(unit: Unit, setting: str, value: str, facts: dict[str, Any]) -> dict[str, Any]:
    nothing = {"number": None, "restart_s": None}
    return {"unit": unit.name, "scope": unit.scope, "setting": setting, "value": value, **nothing, **facts}


def _what_it_runs(files: Sequence[FileText]) -> dict[str, Any]:
    """Return `{runs: engine|docker|other, engine, uses_gpu}` from what decides ExecStart; None where it is not said."""
    command = cmdline.effective_exec_start(files)
    words = cmdline.split_words(command.value, c_escapes=True) if command else []
    arguments = client_arguments(words)
    if arguments is None:
        engine = engine_name(words)
        return {"runs": "engine" if engine else "other", "engine": engine, "uses_gpu": engine is not None}
    match = units.ENGINES.search(" ".join(arguments))
    # What a compose file or an existing container asks for is not on the command line.
    asked = client_facts(arguments)["uses_gpu"] if run_options(arguments) else None
    return {"runs": "docker", "engine": match[0] if match else "container", "uses_gpu": bool(match) or asked}


def engine_name(words: Sequence[str]) -> str | None:
    """Return which model server a command line starts, None for anything else."""
    plain = [word for word in unwrapped(words) if "=" not in word and posixpath.basename(word) not in ("env", "exec")]
    match = units.ENGINES.search(" ".join(plain[:4]))
    return match[0] if match else None
