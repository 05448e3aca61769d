"""What service units, also those of users, say about memory limits, scores and restarts, by file and line."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.box import cmdline, engines, units
from plimsoll.box.containers import (
    SKIP_CHECK,
    client_arguments,
    client_engine,
    client_facts,
    run_options,
    stays_in_unit,
)
from plimsoll.box.host import Host
from plimsoll.box.model import OWN_UNITS, Place
from plimsoll.box.observing import Observed, is_on, regular_text
from plimsoll.box.quantities import parse_bytes, parse_number, parse_span_us
from plimsoll.box.resolve import Assignment, FileText, in_order, ini_list, parse_ini
from plimsoll.box.words import split_words

MAX_UNITS = 200
MAX_DROP_INS = 20
LOCAL_DIRECTORIES = (
    "/etc/systemd/system",
    "/run/systemd/transient",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
)
"""Where administrators put units, by way of Quadlet too; those of packages count only where an engine runs in one."""
USER_DIRECTORY = "/etc/systemd/user"
HOME_DIRECTORIES = (".config/systemd/user", ".local/share/systemd/user")
ACTIONS = ("FailureAction", "StartLimitAction", "JobTimeoutAction")
"""What systemd does to the whole machine when a unit fails; in [Service] too, for old units' sake."""
RESTARTS = ("reboot", "poweroff", "halt", "kexec", "exit")
LIMITS = ("MemoryMax", "MemoryHigh", "MemoryLimit")
CONTAINER_LIMIT = "--memory"
DEFAULT_RESTART_S = 0.1
"""RestartSec of systemd.service(5)."""


@dataclass(frozen=True)
class Unit:
    """A service, by its files in the order in which systemd reads them."""

    name: str
    scope: str
    """`system` or `user`."""
    files: Sequence[FileText]


def read(
    host: Host, homes: Iterable[str], running: Iterable[str], mem_total_bytes: int | None, found: Observed
) -> set[str]:
    """Observe the settings of local system units, of those named in `running`, and of users' units.

    Returns the names of the units that were seen to have a memory limit.
    """
    limited = set()
    for unit in (*_system_units(host, running, found), *_user_units(host, homes, found)):
        limited |= {unit.name} if _observe(host, unit, mem_total_bytes, found) else set()
    return limited


def _system_units(host: Host, running: Iterable[str], found: Observed) -> Iterator[Unit]:
    names = {name for d in LOCAL_DIRECTORIES for name in found.names(host, d, MAX_UNITS, ".service")}
    for name in sorted({*names, *running})[:MAX_UNITS]:
        found_files = units.files_of(host, name)
        files: list[FileText] = [*found_files["fragments"][:1], *in_order(found_files["drop_ins"])]
        for unreadable in (each for each in files if "error" in each):
            found.missed(unreadable["path"], unreadable["error"])
        if files and not files[0].get("masked"):
            yield Unit(name, "system", files)


def _user_units(host: Host, homes: Iterable[str], found: Observed) -> Iterator[Unit]:
    left = MAX_UNITS
    for directory in (USER_DIRECTORY, *(f"{home}/{d}" for home in homes for d in HOME_DIRECTORIES)):
        names = {*found.names(host, directory, left, ".service")}
        # a drop-in alone is for a unit that comes with a package
        names |= {name.removesuffix(".d") for name in found.names(host, directory, left, ".service.d")}
        for name in sorted(names)[:left]:
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


def _observe(host: Host, unit: Unit, mem_total_bytes: int | None, found: Observed) -> bool:
    every = [line for file in unit.files for line in parse_ini(file)]
    lines = [line for line in every if line.section == "Service"]
    last = {line.key: line for line in lines}
    command, words = _command(unit.files, last)
    if words and engines.is_template(words[0]):
        return False
    facts = {**_what_it_runs(words), "mem_total_bytes": mem_total_bytes}
    limits = [last[key] for key in LIMITS if key in last and last[key].value not in ("", "infinity")]
    if facts["runs"] != "other":
        for line in limits:
            _saw(found, unit, line, facts, number=parse_bytes(line.value))
        _restart(found, unit, last, facts)
        _skipped_check(host, found, unit, [*lines, command] if command else lines, facts)
    if command:
        _container_limit(found, unit, command, words, facts)
    for line in {line.key: line for line in every if line.key in ACTIONS}.values():
        if unit.scope == "system" and line.value.startswith(RESTARTS) and not unit.name.startswith(OWN_UNITS):
            _saw(found, unit, line, facts)
    score = last.get("OOMScoreAdjust")
    number = parse_number(score.value) if score else None
    if score and number is not None and number < 0 and (unit.scope == "user" or facts["runs"] != "other"):
        _saw(found, unit, score, facts, number=number)
    return bool(limits)


def _command(files: Sequence[FileText], last: Mapping[str, Assignment]) -> tuple[Assignment | None, list[str]]:
    """Return the ExecStart that counts here, with its words: of several the first that runs an engine or a container.

    systemd takes several for a service of Type=oneshot alone.
    """
    every = ini_list(files, "Service", "ExecStart")
    if len(every) > 1 and (last["Type"].value if "Type" in last else "") != "oneshot":
        return None, []
    split = [(line, split_words(line.value, c_escapes=True)) for line in every]
    telling = (each for each in split if _what_it_runs(each[1])["runs"] != "other")
    return next(telling, split[0] if split else (None, []))


def _container_limit(
    found: Observed, unit: Unit, command: Assignment, words: Sequence[str], facts: dict[str, Any]
) -> None:
    """Observe the limit that a unit gives to its container, unless the container itself was seen."""
    arguments = client_arguments(words)
    if arguments is None:
        return
    options = run_options(arguments)
    there = {each["name"] for each in found.observations if each["kind"] == "container"}
    number = client_facts(arguments)["memory_bytes"]
    if number is not None and not there & set(options.get("name", [])):
        limit = Assignment("", CONTAINER_LIMIT, options["memory"][-1], command.place)
        _saw(found, unit, limit, facts, number=number)


def _restart(found: Observed, unit: Unit, last: dict[str, Assignment], facts: dict[str, Any]) -> None:
    restart = last.get("Restart")
    if restart is None or restart.value in ("", "no"):
        return
    pause = parse_span_us(last["RestartSec"].value) if "RestartSec" in last else None
    _saw(found, unit, restart, facts, restart_s=DEFAULT_RESTART_S if pause is None else pause / 1_000_000)


def _skipped_check(host: Host, found: Observed, unit: Unit, lines: Sequence[Assignment], facts: dict[str, Any]) -> None:
    """Look for the one variable in the unit, its EnvironmentFile and its command; nothing else of them is kept.

    Of several the last one counts: a file beats the unit's own lines, and the command what it was started with.
    """
    value, place = None, None
    for line in _added_up(lines, "Environment"):
        for word in split_words(line.value, c_escapes=True):
            if word.startswith(f"{SKIP_CHECK}="):
                value, place = word.partition("=")[2], line.place
    for line in _added_up(lines, "EnvironmentFile"):
        path = line.value.removeprefix("-")
        if "%" in path or not path.startswith("/"):
            continue
        with found.reading(path):
            there = cmdline.parse_environment_file(regular_text(host, path)).get(SKIP_CHECK)
            if there:
                value, place = there[0], Place(path, there[1])
    for line in lines[-1:]:
        if match := _IN_COMMAND.search(line.value if line.key == "ExecStart" else ""):
            value, place = match[1], line.place
    if place is not None and is_on(value):
        _saw(found, unit, Assignment("", SKIP_CHECK, "1", place), facts)


_IN_COMMAND = re.compile(rf"""\b{SKIP_CHECK}=["']?([^\s"';&|]*)""")
"""The variable as `env`, a shell or `docker run -e` is given it."""


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


def _what_it_runs(words: Sequence[str]) -> dict[str, Any]:
    """Return `{runs: engine|docker|other, engine, uses_gpu}` of a command line; None where it is not said."""
    arguments = client_arguments(words)
    if arguments is None:
        engine = engines.of_command(words)
        return {"runs": "engine" if engine else "other", "engine": engine, "uses_gpu": engine is not None}
    engine = client_engine(arguments)
    # What a compose file or an existing container asks for is not on the command line.
    asked = client_facts(arguments)["uses_gpu"] if run_options(arguments) else None
    uses_gpu = True if engine else asked
    in_unit = "engine" if uses_gpu and stays_in_unit(arguments) else "docker"
    return {"runs": in_unit, "engine": engine or "container", "uses_gpu": uses_gpu}
