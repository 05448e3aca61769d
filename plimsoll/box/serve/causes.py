"""What ended a model: the kernel, the guard, another killer, or itself; unknown where nobody says so.

A process that the kernel has killed left no word of it, and its own log just stops. So it is asked of those who keep
records: the guard's own, the journal of the kernel, of earlyoom, systemd-oomd and systemd, and the container's daemon.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from plimsoll.box import systemctl
from plimsoll.box.containers import SNAP_ROOT, data_roots
from plimsoll.box.guard import records
from plimsoll.box.guard.places import printable
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed

if TYPE_CHECKING:
    from plimsoll.box.incident.model import Event, OomKill, Stamp, UserspaceKill

PROPERTIES = ("LoadState", "Result", "ExecMainCode", "ExecMainStatus")
PROGRAMS = ("earlyoom", "systemd-oomd", "systemd", "nohang", "raylet", "dockerd", "containerd")
MAX_LINES = 20_000
"""One report of the kernel's OOM killer on a desktop has some 600 lines."""
MAX_TAIL_BYTES = 1 << 20
"""Of the guard's records: some thousand of them."""
JOURNAL_TIMEOUT_S = 20.0
CLOCK_SLACK_S = 2.0
"""Stamps have whole seconds in places, and who writes them has read the clock a little later."""
LAST_WORDS = 5
PAUSES_S = (0.5, 1.5)
"""What the kernel says is in the journal a little later, and nobody tells when."""
_EXITED, _KILLED, _DUMPED = "1", "2", "3"
"""CLD_EXITED and so on, as systemd shows ExecMainCode."""
_BY_SIGNAL = 128
_MAIN_EXIT = re.compile(r"Main process exited, code=(exited|killed|dumped), status=(\d+)/(\S+)")
_RESULT = re.compile(r"Failed with result '([a-z-]+)'")


class CauseKind(StrEnum):
    """Who or what it was."""

    KERNEL = "kernel"
    """Its OOM killer, for want of memory on the whole box."""
    KERNEL_CGROUP = "cgroup limit"
    """Its OOM killer, for a limit of the cgroup: docker's --memory, a unit's MemoryMax."""
    GUARD = "guard"
    EARLYOOM = "earlyoom"
    OOMD = "systemd-oomd"
    OTHER_KILLER = "another killer"
    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


_MAY_BE_LATE = frozenset({CauseKind.SIGNAL, CauseKind.UNKNOWN})


@dataclass(frozen=True)
class Ended:
    """What is known of who ended; times in seconds since 1970."""

    unit: str = ""
    container: str = ""
    """Its id; the first 12 digits do."""
    pids: tuple[int, ...] = ()
    since_unix_s: float = 0.0
    """When it was started; what was before is not about it."""
    until_unix_s: float | None = None


@dataclass(frozen=True)
class Cause:
    """What ended it, for people; with the lines that say so, and what could not be read."""

    kind: CauseKind
    said: str
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kill:
    """One kill of anybody, as its author or the kernel recorded it."""

    kind: CauseKind
    at_s: float
    said: str
    raw: str
    pid: int | None = None
    places: tuple[str, ...] = ()
    """Cgroups, units and containers that it names."""


@dataclass(frozen=True)
class Exit:
    """How a unit or a container ended, by its manager."""

    code: int | None = None
    signal: int | None = None
    result: str = ""
    """systemd's: success, exit-code, signal, oom-kill, timeout, watchdog."""
    oom_killed: bool = False
    raw: str = ""


@dataclass(frozen=True)
class Evidence:
    """All that was found."""

    kills: tuple[Kill, ...] = ()
    unit: Exit | None = None
    container: Exit | None = None
    last_words: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def find(host: Host, ended: Ended, pauses_s: Sequence[float] = PAUSES_S) -> Cause:
    """Return what ended a model; never raises for what cannot be read, which is told instead.

    Where nobody has a record yet it looks again, after each of the pauses.
    """
    cause = decide(ended, _evidence(host, ended))
    for pause_s in pauses_s:
        if cause.kind not in _MAY_BE_LATE:
            break
        time.sleep(pause_s)
        cause = decide(ended, _evidence(host, ended))
    return cause


# --- deciding: pure ----------------------------------------------------------------------------------------


def decide(ended: Ended, evidence: Evidence) -> Cause:
    """Return the cause by the best evidence: a record of a kill, then what its manager says."""
    kills = sorted((each for each in evidence.kills if _is_ours(each, ended)), key=lambda each: each.at_s)
    if kills:
        first = kills[0]
        raws = tuple(dict.fromkeys(each.raw for each in kills if each.raw))
        return Cause(first.kind, first.said, raws, evidence.problems)
    for manager, exited in (("systemd", evidence.unit), ("the container's daemon", evidence.container)):
        found = _of_exit(exited, manager, evidence) if exited is not None else None
        if found is not None:
            return found
    why = f": {'; '.join(evidence.problems)}" if evidence.problems else ": neither its manager nor the journal says"
    return Cause(CauseKind.UNKNOWN, f"what ended it is not known{why}", evidence.last_words, evidence.problems)


def _is_ours(kill: Kill, ended: Ended) -> bool:
    if not ended.since_unix_s - CLOCK_SLACK_S <= kill.at_s <= (ended.until_unix_s or float("inf")) + CLOCK_SLACK_S:
        return False
    if kill.pid is not None and kill.pid in ended.pids:
        return True
    parts = {part for place in kill.places for part in place.split("/")}
    if ended.unit and ended.unit in parts:
        return True
    identity = ended.container[:12]
    return bool(identity) and any(identity in part for part in parts)


def _of_exit(exited: Exit, manager: str, evidence: Evidence) -> Cause | None:
    raws = tuple(each for each in (exited.raw, *evidence.last_words) if each)

    def cause(kind: CauseKind, said: str) -> Cause:
        return Cause(kind, said, raws, evidence.problems)

    if exited.result == "oom-kill" or exited.oom_killed:
        return cause(CauseKind.KERNEL, f"the kernel's OOM killer took it, {manager} says; there is no record of it")
    if exited.result in ("timeout", "watchdog"):
        return cause(CauseKind.TIMEOUT, f"{manager} ended it: {exited.result}")
    number = exited.signal
    if number is not None:
        return cause(CauseKind.SIGNAL, f"{_signal_name(number)} ended it; {_by_whom(number, evidence)}")
    if exited.code:
        words = f"; its last words: {evidence.last_words[-1]}" if evidence.last_words else ""
        return cause(CauseKind.EXIT, f"it ended by itself, with exit code {exited.code}{words}")
    if exited.code == 0:
        return cause(CauseKind.STOPPED, "it ended in order, with exit code 0: it was stopped, or had done its work")
    return None


def _by_whom(number: int, evidence: Evidence) -> str:
    if number not in (signal.SIGKILL, signal.SIGTERM):
        return "a fault of the program itself"
    if evidence.problems:
        return f"by whom is not known: {'; '.join(evidence.problems)}"
    return "by whom is not known: neither the kernel nor any killer has a record of it, so somebody did it by hand"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- reading -----------------------------------------------------------------------------------------------


def _evidence(host: Host, ended: Ended) -> Evidence:
    lines, problems = _journal(host, ended)
    kills = [*_of_guard(host, problems), *_of_journal(lines)]
    unit = _unit_exit(host, ended, lines, problems) if ended.unit else None
    container = _container_exit(host, ended.container, problems) if ended.container else None
    words = _last_words(host, ended) if ended.unit and not host.root else ()
    return Evidence(tuple(kills), unit, container, words, tuple(problems))


def _journal(host: Host, ended: Ended) -> tuple[list[bytes], list[str]]:
    """Return what the kernel and the killers have written since, as JSON lines; and why not."""
    who = ("_TRANSPORT=kernel", "+", *(f"SYSLOG_IDENTIFIER={name}" for name in PROGRAMS))
    since = f"--since=@{max(0, int(ended.since_unix_s - CLOCK_SLACK_S))}"
    ran = host.run(
        "journalctl", "--no-pager", "--quiet", "-o", "json", since, f"--lines={MAX_LINES}", *who,
        timeout_s=JOURNAL_TIMEOUT_S,
    )  # fmt: skip
    problems = [] if ran.code == 0 else [f"journalctl: {ran.problem}"]
    if ran.code == 0 and "insufficient permissions" in ran.err:
        problems.append("journalctl: without root it does not show everything")
    return ran.out.encode().splitlines(), problems


def _of_journal(lines: Sequence[bytes]) -> Iterator[Kill]:
    from plimsoll.box.incident import reader  # noqa: PLC0415  # a tenth of a second, and few starts fail
    from plimsoll.box.incident.model import OomKill, UserspaceKill  # noqa: PLC0415  # as above

    for event in reader.read("journal", [b"\n".join([*lines, b""])]).events if lines else ():
        at_s = _unix_s(event.stamp)
        if at_s is None:
            continue
        if isinstance(event, OomKill) and event.victim is not None:
            yield _of_kernel(event, at_s)
        elif isinstance(event, UserspaceKill) and event.outcome != "failed":
            yield _of_killer(event, at_s)


def _unix_s(stamp: "Stamp") -> float | None:
    return None if stamp.wall_s is None or stamp.form != "date" else stamp.wall_s - (stamp.offset_s or 0)


def _of_kernel(event: "OomKill", at_s: float) -> Kill:
    victim = event.victim
    assert victim is not None  # noqa: S101  # asked before, said to mypy
    of_limit = event.scope == "memcg"
    kind = CauseKind.KERNEL_CGROUP if of_limit else CauseKind.KERNEL
    for_what = f"the limit of {printable(event.memcg or 'its cgroup')}" if of_limit else "want of memory on the box"
    invoker = event.invoker
    by = f"; the allocation was {printable(invoker.comm)}'s" if invoker is not None and invoker.comm else ""
    score = "" if victim.oom_score_adj is None else f", oom_score_adj {victim.oom_score_adj}"
    who = f"{printable(victim.comm or '?')} (pid {victim.pid}{score})"
    places = tuple(each for each in (event.task_memcg, event.memcg if of_limit else None) if each)
    return Kill(kind, at_s, f"the kernel's OOM killer took {who} for {for_what}{by}", event.raw, victim.pid, places)


def _of_killer(event: "UserspaceKill", at_s: float) -> Kill:
    kinds = {"earlyoom": CauseKind.EARLYOOM, "systemd-oomd": CauseKind.OOMD, "plimsoll": CauseKind.GUARD}
    kind = kinds.get(event.killer, CauseKind.OTHER_KILLER)
    victim = event.victim
    who = " ".join(printable(each) for each in (victim.comm, victim.unit) if each) or "it"
    number = f" (pid {victim.pid})" if victim.pid is not None else ""
    why = f": {printable(event.reason)}" if event.reason else ""
    sent = f" by {event.signal}" if event.signal else ""
    said = f"{event.killer} stopped {who}{number}{sent}{why}"
    return Kill(kind, at_s, said, _raw(event), victim.pid, (victim.unit,) if victim.unit else ())


def _raw(event: "Event") -> str:
    return printable(event.raw) if event.raw.startswith("{") else event.raw


def _of_guard(host: Host, problems: list[str]) -> Iterator[Kill]:
    """Yield what the guard has stopped, from its own records, which name every process of a victim."""
    from datetime import datetime  # noqa: PLC0415  # as above

    for record in records.read_records(_tail(host, records.PATH, problems)).records:
        victim = record.get("victim")
        signalled = record.get("kind") == records.Kind.SIGNALLED.value
        if not signalled or not isinstance(victim, dict):
            continue
        try:
            at_s = datetime.fromisoformat(str(record.get("at"))).timestamp()
        except ValueError:
            continue
        places = tuple(str(victim[name]) for name in ("cgroup", "name") if victim.get(name))
        said = f"the guard stopped it: {printable(str(record.get('text') or record.get('reason')))}"
        for pid in _pids(victim) or [None]:
            yield Kill(CauseKind.GUARD, at_s, said, str(record.get("text")), pid, places)


def _pids(victim: dict[str, Any]) -> list[int | None]:
    listed = victim.get("processes")
    rows = listed if isinstance(listed, list) else []
    return [each["pid"] for each in rows if isinstance(each, dict) and isinstance(each.get("pid"), int)]


def _tail(host: Host, path: str, problems: list[str]) -> str:
    """Return the end of a log, from the beginning of a line; that there is none yet is no problem."""
    try:
        with open(host.path(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_TAIL_BYTES))
            content = file.read(MAX_TAIL_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return ""
    return content.decode("utf-8", "replace")


def _unit_exit(host: Host, ended: Ended, lines: Iterable[bytes], problems: list[str]) -> Exit | None:
    """Return how a unit ended, as the manager has it, else as it has said it: a transient unit may be gone."""
    ran = host.run("systemctl", "show", "-p", ",".join(PROPERTIES), "--", ended.unit)
    shown = systemctl.parse_show(ran.out)[0] if ran.code == 0 and ran.out.strip() else {}
    if ran.code != 0:
        problems.append(f"systemctl: {ran.problem}")
    found = of_properties(shown)
    return found or of_messages(ended.unit, lines)


def of_properties(shown: dict[str, str]) -> Exit | None:
    """Return how a unit's main process ended, by systemd's properties; None where they do not say."""
    code, status = shown.get("ExecMainCode"), shown.get("ExecMainStatus", "")
    if shown.get("LoadState") == "not-found" or code not in (_EXITED, _KILLED, _DUMPED) or not status.isdecimal():
        return None
    raw = f"Result={shown.get('Result', '')} ExecMainCode={code} ExecMainStatus={status}"
    number = int(status)
    result = shown.get("Result", "")
    if code == _EXITED:
        return _by_code(number, result, raw)
    return Exit(signal=number, result=result, raw=raw)


def _by_code(code: int, result: str, raw: str) -> Exit:
    """Return an exit by its code; a shell, and docker, report a signal as 128 and its number."""
    is_signal = _BY_SIGNAL < code < _BY_SIGNAL + signal.NSIG
    return Exit(signal=code - _BY_SIGNAL, result=result, raw=raw) if is_signal else Exit(code, result=result, raw=raw)


def of_messages(unit: str, lines: Iterable[bytes]) -> Exit | None:
    """Return how a unit ended last, by what systemd has written to the journal; None where it did not."""
    found: Exit | None = None
    for line in lines:
        if unit.encode() not in line:
            continue
        message = _message(line)
        if not message.startswith(f"{unit}: "):
            continue
        if main := _MAIN_EXIT.search(message):
            number = int(main[2])
            found = _by_code(number, "", message) if main[1] == "exited" else Exit(signal=number, raw=message)
        elif result := _RESULT.search(message):
            before = found or Exit(raw=message)
            found = Exit(before.code, before.signal, result[1], before.oom_killed, before.raw)
    return found


def _message(line: bytes) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    message = found.get("MESSAGE") if isinstance(found, dict) else None
    return message if isinstance(message, str) else ""


def _container_exit(host: Host, identity: str, problems: list[str]) -> Exit | None:
    """Return how a container ended, from the file that its daemon keeps; None where it runs or is gone."""
    homes = (f"/home/{name}/.local/share/docker" for name in host.names("/home"))
    for root in (*data_roots(host, Observed()), SNAP_ROOT, *homes):
        directory = f"{root}/containers"
        full = next((name for name in host.names(directory) if name.startswith(identity[:12])), None)
        if full is None:
            continue
        path = f"{directory}/{full}/config.v2.json"
        try:
            return of_container(json.loads(host.text(path)))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path}: {error}")
    return None


def of_container(document: Any) -> Exit | None:  # noqa: ANN401  # what a file of docker's holds
    """Return how a container ended, from docker's config.v2.json; None while it runs."""
    state = document.get("State") if isinstance(document, dict) else None
    code = state.get("ExitCode") if isinstance(state, dict) else None
    if not isinstance(state, dict) or state.get("Running") is not False or not isinstance(code, int):
        return None
    killed = state.get("OOMKilled") is True
    raw = f"ExitCode={code} OOMKilled={str(killed).lower()}"
    found = _by_code(code, "", raw)
    return Exit(found.code, found.signal, "", killed, raw)


def _last_words(host: Host, ended: Ended) -> tuple[str, ...]:
    """Return the last lines that the unit itself has written."""
    ran = host.run(
        "journalctl", "--no-pager", "--quiet", "-o", "cat", f"--since=@{max(0, int(ended.since_unix_s))}",
        f"--lines={LAST_WORDS}", f"_SYSTEMD_UNIT={ended.unit}", timeout_s=JOURNAL_TIMEOUT_S,
    )  # fmt: skip
    return tuple(printable(line) for line in ran.out.splitlines() if line.strip()) if ran.code == 0 else ()
