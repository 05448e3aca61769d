"""Records of `journalctl -o json` and `-o export`, and JSON lines of programs, as lines with stamps. Pure."""

import datetime
import json
import re
from typing import Any

from plimsoll.box.incident.model import NO_STAMP, Line, Stamp

EXPORT = re.compile(rb"(?m)^(?:__CURSOR|__REALTIME_TIMESTAMP|_BOOT_ID|__MONOTONIC_TIMESTAMP)=")
GUARD_SCHEMA = "plimsoll.guard/"
_TIMES = ("at", "time", "timestamp", "ts", "@timestamp")
_MESSAGES = ("MESSAGE", "log", "message", "msg")
BYTE_VALUES = 256
_MAX_JSON_BYTES = 1 << 20


def json_lines(number: int, raw: bytes) -> list[Line]:
    """Return the lines of one JSON record; empty for what is none (a torn one, a list)."""
    if len(raw) > _MAX_JSON_BYTES:
        return []
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    if not isinstance(record, dict):
        return []
    if str(record.get("schema", "")).startswith(GUARD_SCHEMA):
        return [Line(number, _any_stamp(record), "plimsoll", raw.decode("utf-8", "replace"), prefixed=True)]
    guards = record.get("PLIMSOLL_RECORD")
    return json_lines(number, guards.encode()) if isinstance(guards, str) else _lines(number, record)


def export_lines(number: int, raw: bytes) -> list[Line]:
    """Return the lines of one record of the export format, which begins at line `number`."""
    record: dict[str, Any] = {}
    rest = raw.strip(b"\0")
    while rest:
        head, _, rest = rest.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals and head and len(rest) >= 8:  # noqa: PLR2004  # a 64-bit length stands before binary content
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[9 + length :]
        record[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return _lines(number, record)


def _lines(number: int, record: dict[str, Any]) -> list[Line]:
    message = next((record[key] for key in _MESSAGES if record.get(key) is not None), None)
    if isinstance(message, list):
        message = bytes(each for each in message if each in range(BYTE_VALUES)).decode("utf-8", "replace")
    if not isinstance(message, str):
        return []
    kernel = record.get("_TRANSPORT") == "kernel"
    program = "kernel" if kernel else record.get("SYSLOG_IDENTIFIER") or record.get("_COMM")
    stamp = _journal_stamp(record) or _any_stamp(record)
    name = program if isinstance(program, str) else None
    return [Line(number, stamp, name, text, prefixed=True) for text in message.rstrip("\n").split("\n")]


def _journal_stamp(record: dict[str, Any]) -> Stamp | None:
    wall = _micro(record, "_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP")
    uptime = _micro(record, "_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP")
    if wall is None:
        return None if uptime is None else Stamp(uptime_s=uptime)
    return Stamp(wall, "date", 0, uptime)


def _micro(record: dict[str, Any], *names: str) -> float | None:
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:  # noqa: PLR2004  # 64 bits
            return int(value) / 1e6
    return None


def _any_stamp(record: dict[str, Any]) -> Stamp:
    """Return the stamp of a program's record: ISO 8601 or seconds since 1970."""
    value = next((record[key] for key in _TIMES if key in record), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 < value < 1e10:  # noqa: PLR2004  # 2001 to 2286
        return Stamp(float(value), "date", 0)
    if not isinstance(value, str):
        return NO_STAMP
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return NO_STAMP
    offset = moment.utcoffset()
    wall_s = moment.replace(tzinfo=datetime.UTC).timestamp()
    return Stamp(wall_s, "date", None if offset is None else int(offset.total_seconds()))
