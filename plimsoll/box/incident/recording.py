"""Statements that are no logs: `name=value` facts, settings, messages of an admission, a box's release file."""

import re

from plimsoll.box.incident.model import Line, Target, UserspaceKill
from plimsoll.box.incident.prefix import Prefix
from plimsoll.box.incident.sink import Sink
from plimsoll.box.incident.table import to_gib

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_FACT = re.compile(r"([A-Za-z][\w.]*)=(.*)")
_COUNTER = re.compile(
    r"(?:vmstat_|memory\.events_?|memory_events_)?(oom_kill|oom_group_kill|oom|allocstall\w*|oom_kills)"
)
_VMSTAT = re.compile(r"(oom_kill|oom_group_kill) (\d+)$")


def _watchdog(status: int) -> str:
    if status:
        return f"the watchdog's bootstatus is {status}: something was recorded; 32 is a restart by the watchdog"
    return "the watchdog's bootstatus is 0, which proves nothing: it was 0 after a hang with an armed watchdog too"


class Facts:
    """Reads `name=value` lines: counters, what somebody wrote down, the release file of a box."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._values: dict[str, tuple[Line, str]] = {}

    def read(self, line: Line) -> bool:
        """Take a line of facts."""
        vmstat = _VMSTAT.match(line.text)
        match = vmstat or _FACT.fullmatch(line.text.strip())
        if not match or len(self._values) > 1000 or line.prefixed:  # noqa: PLR2004  # nobody writes down that much
            return False
        # of repeated keys the last holds: a release file gains a pair with each update
        self._values[match[1]] = (line, match[2].strip().strip("\"'"))
        return True

    def close(self) -> None:
        """Say what the facts are."""
        for name, (line, value) in self._values.items():
            counter = _COUNTER.fullmatch(name)
            if counter and value.isascii() and value.isdigit() and int(value):
                self._sink.note(
                    line, "counter",
                    f"{name} is {value}: such a counter runs since boot and has no date: it is evidence of no incident",
                    name=name, value=int(value),
                )  # fmt: skip
            elif name.endswith("bootstatus") and value.isascii() and value.isdigit():
                self._sink.note(line, "watchdog", _watchdog(int(value)), value=int(value))
            elif name.startswith("DGX_"):
                self._sink.platform[name.casefold()] = value
        self._falls()
        self._acts()

    def _number(self, name: str) -> float | None:
        _line, value = self._values.get(name, (None, ""))
        return float(value) if _NUMBER.fullmatch(value) else None

    def _falls(self) -> None:
        for name, (line, _value) in self._values.items():
            other = name.replace("_before", "_after")
            before, after = self._number(name), self._number(other)
            if other == name or before is None or after is None or "avail" not in name.casefold():
                continue
            window = self._number("window_s")
            high, low = to_gib(before, name), to_gib(after, other)
            self._sink.note(
                line, "memory_fall",
                f"available memory fell from {high:g} to {low:g} GiB" + ("" if window is None else f" in {window:g} s"),
                from_gib=high, to_gib=low, seconds=window, drop_gib=round(high - low, 3),
            )  # fmt: skip

    def _acts(self) -> None:
        """Take a signal and the driver's first line, where they are written down with their times."""
        for name in ("sigterm", "sigkill"):
            if name not in self._values:
                continue
            line, value = self._values[name]
            timed = line._replace(stamp=Prefix().parse(line.number, f"{value} ").stamp)
            kill = UserspaceKill(**self._sink.common(timed), killer="unnamed", victim=Target(), signal=name.upper())
            self._sink.add(kill)
            offset_ms = self._number("first_nvrm_offset_ms")
            if offset_ms is not None:
                when = "after" if offset_ms >= 0 else "before"
                self._sink.note(
                    line,
                    "order",
                    f"the driver's first line came {abs(offset_ms):g} ms {when} the {name.upper()}",
                    offset_ms=offset_ms,
                )


_ADMISSION = re.compile(
    r".{0,40}\bpreflight\b.*\b(?:waits?|waiting|starts?|refus\w+|block\w*|fail\w*|abort\w*|insufficient|not enough)\b",
    re.IGNORECASE,
)
_PSI_LIMIT = re.compile(r"ManagedOOM(MemoryPressure|Swap)(Limit)?\s*=\s*(\S+)")
_EARLYOOM = re.compile(r"(?:.*\b(?:EARLYOOM_ARGS=|earlyoom )[\"']?|)(-[a-zA-Z-].*)")
_SHORT = re.compile(r"(?:^|\s)-([ms])\s*(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?(?=[\s\"']|$)")
_PREFER = re.compile(r"--prefer[ =]['\"]?([^'\" ]+)")
ALWAYS_PERCENT = 100.0


def settings(sink: Sink, line: Line) -> bool:
    """Note what a line sets that decides which killer acts: earlyoom's arguments, systemd-oomd's slices."""
    if match := _PSI_LIMIT.match(line.text):
        sink.note(
            line,
            "setting",
            f"systemd-oomd: {line.text.strip()} (healthy starts of a model were seen at 45.6 % PSI full)",
        )
        return True
    if _ADMISSION.match(line.text):
        sink.note(line, "admission", line.text.strip())
        return True
    match = _EARLYOOM.match(line.text) if not line.prefixed else None
    found = {name: float(low) for name, low, _kill in _SHORT.findall(match[1])} if match else {}
    if not found:
        return False
    swap = found.get("s", 10.0)
    what = (
        "free swap is no condition"
        if swap >= ALWAYS_PERCENT
        else f"it acts only while less than {swap:g} % of swap is free too, and GPU memory never goes to swap"
    )
    whom = " and kills the whole process group" if re.search(r"(?:^|\s)-g(?=\s|$)", line.text) else ""
    first = f"; first whatever is like {prefer[1]}" if (prefer := _PREFER.search(line.text)) else ""
    text = f"earlyoom acts at {found.get('m', 10.0):g} % of memory{whom}; {what}{first}"
    sink.note(line, "setting", text, **found)
    return True
