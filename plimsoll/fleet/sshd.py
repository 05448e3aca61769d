"""What sshd's files say about a login to a box in trouble, as records for the rules. Pure.

A state has the texts of sshd_config and of all that it includes; whose line decides is worked out here. Everything
in a state is the word of a host and may be of any form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plimsoll.box.resolve_sshd import MAIN, SshdRefusesError, sshd_lines, sshd_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plimsoll.box.resolve_sshd import SshdLine

KIND = "sshd"
FIELDS = ("keyword", "value", "seconds")
"""The fields of a record, beside kind, subject, file and line; `seconds` is None where the value is no time span."""
DEFAULTS = {"LoginGraceTime": "120", "UsePAM": "no"}
"""The keywords that are looked at, and what sshd takes where no line sets them (sshd_config(5))."""
_SPAN = re.compile(r"(?:[0-9]{1,6}[smhdw]?)+", re.IGNORECASE)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def records(files: object) -> list[dict[str, Any]]:
    """Return a record for each keyword of DEFAULTS; none where sshd's files are not there or cannot be told."""
    texts = _texts(files)
    if MAIN not in texts or not_seen(files):
        return []
    lines = sshd_lines(texts)
    return [_record(keyword, sshd_value(lines, keyword)) for keyword in DEFAULTS]


def not_seen(files: object) -> list[str]:
    """Return why it cannot be told what sshd goes by; empty where it can, and where there is no sshd."""
    unread = [f"{file['path']}: {file['error']}" for file in _files(files) if "error" in file]
    try:
        sshd_lines(_texts(files))
    except SshdRefusesError as refusal:
        unread.append(f"sshd's settings: it may not start with these files, `sshd -t` tells: {refusal}")
    return unread


def _files(files: object) -> list[Mapping[str, Any]]:
    every = files if isinstance(files, list) else []
    return [file for file in every if isinstance(file, Mapping) and isinstance(file.get("path"), str)]


def _texts(files: object) -> dict[str, str]:
    return {file["path"]: file["text"] for file in _files(files) if isinstance(file.get("text"), str)}


def _record(keyword: str, deciding: Sequence[SshdLine]) -> dict[str, Any]:
    line = deciding[0] if deciding else None
    value = line.arguments[0] if line and line.arguments else DEFAULTS[keyword]
    place = {"file": line.place.file, "line": line.place.line} if line else {"file": MAIN, "line": 0}
    return {"kind": KIND, "subject": "sshd", **place, "keyword": keyword, "value": value, "seconds": span_s(value)}


def span_s(text: str) -> int | None:
    """Return a time span as sshd writes it (`90`, `1m30s`) in seconds; None for what is none."""
    if not _SPAN.fullmatch(text):
        return None
    parts: Iterable[tuple[str, str]] = re.findall(r"([0-9]+)([a-zA-Z]?)", text)
    return sum(int(number) * _UNIT_S[unit.lower()] for number, unit in parts)
