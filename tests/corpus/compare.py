"""What the resolver makes of an arrangement, beside what the real program made of it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.box import state, units
from plimsoll.box.host import Host
from plimsoll.box.quantities import INFINITY, meaning, parse_bytes, parse_span_us
from plimsoll.box.resolve import FileText, after_reboot, in_order, ini_list, ini_value
from plimsoll.box.resolve_sshd import SshdRefusesError, sshd_lines, sshd_value
from plimsoll.box.resolve_sysctl import sysctl_value
from plimsoll.box.resolve_units import is_masked, manager_files_in_order, unit_files_in_order
from plimsoll.box.words import split_words
from tests.corpus.case import Case

Answer = Mapping[str, Any]
Pairs = Iterator[tuple[str, Any, Any]]
"""What was asked for, what the resolver says, and what the real program said."""


def disagreements(case: Case, answer: Answer, root: Path) -> list[str]:
    """Return a line for each thing that resolver and program see differently; `root` is an empty directory."""
    case.lay_out(root)
    pairs = KINDS[case.name.partition(":")[0]](case, answer, Host(root=str(root)))
    return [f"{what}: resolver {ours!r}, program {theirs!r}" for what, ours, theirs in pairs if ours != theirs]


# --- sysctl -----------------------------------------------------------------------------------------


def _sysctl(case: Case, answer: Answer, host: Host) -> Pairs:
    files = state.sysctl_files(host)["sysctl_d"]
    read = after_reboot(files) if case.rebooted else in_order(files)
    for key, theirs in answer["values"].items():
        winner = sysctl_value(read, key).winner
        yield key, winner.value if winner else None, theirs


# --- units ------------------------------------------------------------------------------------------


def _unit(case: Case, answer: Answer, host: Host) -> Pairs:
    (own,), names = answer["Id"], answer["Names"][0].split()
    found = units.files_of(host, own, sorted({*names} - {own}))
    files = unit_files_in_order(found, rebooted=case.rebooted)
    masked = is_masked(found, rebooted=case.rebooted)
    yield "masked", masked, answer["LoadState"] == ["masked"]
    there = bool(found["fragments"])
    yield "there", there, answer["LoadState"] != ["not-found"]
    for section, key in case.ask["keys"] if there and not masked else ():
        ours, theirs = PROPERTIES[key](files, section, key), answer.get(SHOWN_AS.get(key, key), [])
        yield f"{section}.{key}", ours(own) if callable(ours) else ours, READ[key](theirs)


SHOWN_AS = {"EnvironmentFile": "EnvironmentFiles"}


def _number(files: Sequence[FileText], section: str, key: str) -> int:
    winner = ini_value(files, section, key).winner
    found = meaning(key, winner.value) if winner else 0
    return found if isinstance(found, int) else int(found or 0)


def _text(default: str) -> Callable[[Sequence[FileText], str, str], str]:
    def read(files: Sequence[FileText], section: str, key: str) -> str:
        winner = ini_value(files, section, key).winner
        return (winner.value if winner else "") or default

    return read


def _description(files: Sequence[FileText], section: str, key: str) -> Callable[[str], str]:
    return lambda own: _text(own)(files, section, key)


def _words(files: Sequence[FileText], section: str, key: str) -> set[str]:
    return {word for line in ini_list(files, section, key) for word in line.value.split() if word.startswith("corpus-")}


def _environment(files: Sequence[FileText], section: str, key: str) -> dict[str, str]:
    words = (w for line in ini_list(files, section, key) for w in split_words(line.value, c_escapes=True))
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _paths(files: Sequence[FileText], section: str, key: str) -> list[str]:
    values = [line.value for line in ini_list(files, section, key)]
    return [f"{v.removeprefix('-')} (ignore_errors={'yes' if v.startswith('-') else 'no'})" for v in values]


def _commands(files: Sequence[FileText], section: str, key: str) -> list[list[str]]:
    return [split_words(line.value, c_escapes=True) for line in ini_list(files, section, key)]


PROPERTIES: Mapping[str, Callable[[Sequence[FileText], str, str], Any]] = {
    **dict.fromkeys(("OOMScoreAdjust", "MemoryMin", "MemoryLow", "CPUWeight", "IOWeight", "Nice"), _number),
    "Restart": _text("no"),
    "Description": _description,
    "Environment": _environment,
    "EnvironmentFile": _paths,
    "ExecStart": _commands,
    "After": _words,
    "Wants": _words,
}


def _read_number(lines: list[str]) -> int:
    known = {"infinity": INFINITY, "[not set]": 0}
    return known[lines[0]] if lines[0] in known else int(lines[0])


READ: Mapping[str, Callable[[list[str]], Any]] = {
    **dict.fromkeys(("OOMScoreAdjust", "MemoryMin", "MemoryLow", "CPUWeight", "IOWeight", "Nice"), _read_number),
    "Restart": lambda lines: lines[0],
    "Description": lambda lines: lines[0],
    "Environment": lambda lines: {n: v for n, _, v in (w.partition("=") for line in lines for w in line.split())},
    "EnvironmentFile": lambda lines: [line for line in lines if line],
    "ExecStart": lambda lines: [m[1].split() for line in lines if (m := re.search(r"argv\[\]=(.*?) ;", line))],
    "After": lambda lines: {word for line in lines for word in line.split() if word.startswith("corpus-")},
    "Wants": lambda lines: {word for line in lines for word in line.split() if word.startswith("corpus-")},
}


# --- managers ---------------------------------------------------------------------------------------


def _manager(case: Case, answer: Answer, host: Host) -> Pairs:
    found = state.manager_files(host, case.ask["manager"])
    files = manager_files_in_order(case.ask["manager"], found, answer["Version"][0], rebooted=case.rebooted)
    for key in case.ask["keys"]:
        name = key.replace("Sec", "USec")
        read = MANAGER_VALUES.get(key, int)
        winner = ini_value(files, case.ask["section"], key).winner
        # An empty value is the same as none at all, and what a manager has then depends on the machine.
        ours = read(winner.value) if winner and winner.value else read(answer["baseline"][name][0])
        yield key, ours, read(answer[name][0])


def _mebibytes(text: str) -> float:
    return round((parse_bytes(text) or 0) / 1024**2, 1)


MANAGER_VALUES: Mapping[str, Callable[[str], Any]] = {
    "DefaultOOMScoreAdjust": lambda text: meaning("DefaultOOMScoreAdjust", text),
    "DefaultTimeoutStartSec": parse_span_us,
    "SystemMaxUse": _mebibytes,
}


# --- sshd -------------------------------------------------------------------------------------------


def _sshd(case: Case, answer: Answer, host: Host) -> Pairs:
    texts = {file["path"]: file.get("text", "") for file in state.sshd_files(host)}
    try:
        lines = sshd_lines(texts)
    except SshdRefusesError as error:
        yield f"starts ({error})", False, not answer["refused"]
        return
    yield "starts", True, not answer["refused"]
    for key in case.ask["keys"] if not answer["refused"] else ():
        theirs = answer["values"][key.lower()]
        hits = sshd_value(lines, key)
        if not hits:
            continue
        if key in ("AcceptEnv", "AllowUsers", "DenyUsers"):
            yield key, [a for line in hits for a in line.arguments], theirs
        else:
            yield key, [" ".join(line.arguments) for line in hits], theirs


KINDS: Mapping[str, Callable[[Case, Answer, Host], Pairs]] = {
    "sysctl": _sysctl,
    "unit": _unit,
    "system": _manager,
    "user": _manager,
    "journald@corpus": _manager,
    "sshd": _sshd,
}
