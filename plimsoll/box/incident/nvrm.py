"""What NVIDIA's driver says in the kernel log. Soft and hard are told apart by function and companions.

`nvCheckOkFailedNoLog … returned from _memdescAllocInternal` is what the driver prints when large pages are refused and
it goes on with smaller ones: 4,286 of them in three weeks were counted on a box without any trouble, and a failed start
had none. The line number in the driver's source differs with each release and says nothing.
"""

import re

from plimsoll.box.incident.model import DriverAllocFailure, Line, Xid
from plimsoll.box.incident.sink import Sink, within

EPISODE_S = 60.0
COMPANION_S = 1.0
LOST_LINES = 3
MAX_FAULTS = 20
"""A crash of the firmware is told in a hundred lines."""
_NVRM = re.compile(
    r"(?:(?:nvidia \S+ )?NVRM: ?|nvidia-uvm: |(?=nv(?:Check|Assert)OkFailed|_(?:memdesc|iovaspace|kgsp)\w+: ))"
    r"(?:GPU[0-9]+ |GPU at \S+ |\(?GPU [0-9a-fA-F:.]+\)?:? )?(.*)",
    re.DOTALL,
)
_XID = re.compile(
    r"Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d+)"
    r"(?:, pid='?(?P<pid>[^,']*)'?)?(?:, name='?(?P<name>[^,']*)'?)?,? ?(?P<text>.*)",
    re.DOTALL,
)
_RETURNED = re.compile(r"(?:returned from|\.{3}|…)\s*(\w+(?:(?:->|\.)\w+)*)\s*(?:\(|$|@)")
_FUNCTION = re.compile(r"(\w+): ")
_ERROR = re.compile(r"\[(NV_ERR_\w+)\]|\b(NV_ERR_\w+)")
_REFUSED = re.compile(r"NV_ERR_NO_MEMORY|Out of memory|[Ff]ailed to allocate|[Oo]ut of (?:sysmem|vidmem)|\(0x0*51\)")
_RETRIED = frozenset({"_memdescAllocInternal", "memdescAllocInternal", "memdescAlloc"})
"""Functions whose callers try again with smaller pages."""
_AGAIN = re.compile(r"\(?(?:repeats|repeated)\b")
_HISTORY = re.compile(r"\s*-?\d+\s+\d+\s+[A-Z_]+\s|.*RPC (?:history|event history)|\s*entry function")
"""The table of calls that follows a call without an answer."""
_FIRMWARE = re.compile(r"GSP|RPC|[Hh]eartbeat|RmInitAdapter|API mismatch|rcWatchdog|Assertion failed")
_LOST_NAME = re.compile(r"The NVIDIA GPU ([0-9a-fA-F:.]+)\s*$")
_LOST = re.compile(r"fallen off the bus")
"""Told in one line, or, as long as the kernel took several for one message, in three."""
_LOADING = re.compile(r"loading NVIDIA UNIX .*?(?:for (\S+)\s+)?(\d{3}\.\d+(?:\.\d+)?)\b")
_CATEGORIES = {
    "application": (8, 13, 31, 32, 43, 44, 45, 68, 69, 137),
    "memory errors": (48, 63, 64, 92, 93, 94, 95, 140, 171, 172),
    "bus": (38, 74, 79, 110, 121, 149, 150),
    "driver or firmware": (16, 56, 57, 58, 61, 62, 109, 119, 120, 122, 123, 143, 154),
}
"""By NVIDIA's list of Xid errors; none of them is about host memory running out."""


def category(code: int) -> str:
    """Return what a Xid is about."""
    return next((name for name, codes in _CATEGORIES.items() if code in codes), "other")


class Nvrm:
    """Reads the driver's lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._faults = 0
        self._lost: tuple[Line, str] | None = None
        self._soft: int | None = None
        self._last: Line | None = None
        """The last line of a refusal, of whichever kind, and its event."""
        self._last_event: int | None = None
        self._xids: dict[tuple[int, str | None], tuple[int | None, Line]] = {}

    def read(self, line: Line, times: int = 1) -> bool:
        """Take a line if it is the driver's; `times` is how often syslog says that it was repeated."""
        match = _NVRM.match(line.text)
        if not match or not line.may_be_kernel:
            return False
        text = match[1]
        if xid := _XID.match(text):
            self._xid(line, xid)
        elif _AGAIN.match(text):
            self._sink.repeat(self._last_event, line, times)
        elif loading := _LOADING.match(text):
            self._sink.platform["driver"] = loading[2]
        elif _REFUSED.search(text):
            self._refusal(line, text, times)
        elif lost := _LOST_NAME.match(text):
            self._lost = line, lost[1]
        elif _LOST.search(text):
            self._lost_gpu(line, text)
        elif _FIRMWARE.search(text) and not _HISTORY.match(text) and self._faults < MAX_FAULTS:
            self._faults += 1
            self._sink.note(line, "driver_fault", f"the driver reports: {text}")
        return True

    def _lost_gpu(self, line: Line, text: str) -> None:
        """Note a GPU that no longer answers; its name may stand two lines above, with the only stamp."""
        first, device = self._lost or (line, None)
        self._lost = None
        near = line.number - first.number <= LOST_LINES
        whom = f"the GPU {device}: {text}" if device and near else text
        where = first._replace(text=line.text) if near else line
        self._sink.note(where, "pcie", f"the driver reports: {whom}", device=device if near else None)

    def _refusal(self, line: Line, text: str, times: int) -> None:
        returned, error = _RETURNED.search(text), _ERROR.search(text)
        named = _FUNCTION.match(text)
        function = returned[1] if returned else named[1] if named else None
        soft = function in _RETRIED and "Assert" not in text and "system_mem.c" not in text
        previous = self._last if self._last and within(self._last.stamp, line.stamp, COMPANION_S) else None
        if soft:
            self._note_soft(line, function, error, times)
        elif not self._joins_hard(line, function, previous, times):
            self._note_hard(line, function, error, previous, times)
        self._last = line

    def _note_soft(self, line: Line, function: str | None, error: re.Match[str] | None, times: int) -> None:
        known = None if self._soft is None else self._sink.events[self._soft]
        if known and within(known.last or known.stamp, line.stamp, EPISODE_S):
            self._sink.repeat(self._soft, line, times)
        else:
            self._soft = self._sink.add(
                DriverAllocFailure(
                    **self._sink.common(line), severity="soft", function=function, error=_named(error), count=times
                )
            )
        self._last_event = self._soft

    def _joins_hard(self, line: Line, function: str | None, previous: Line | None, times: int) -> bool:
        """Count a line with the hard failure just before it, of which it is a part or a repetition."""
        known = None if self._last_event is None else self._sink.events[self._last_event]
        if previous is None or not isinstance(known, DriverAllocFailure) or known.severity != "hard":
            return False
        if function and function != known.function and function not in known.companions:
            self._sink.amend(self._last_event, companions=(*known.companions, function)[:8])
        self._sink.repeat(self._last_event, line, times)
        return True

    def _note_hard(
        self, line: Line, function: str | None, error: re.Match[str] | None, previous: Line | None, times: int
    ) -> None:
        """Keep a hard failure, and with it the soft line that belongs to it: the one just before."""
        soft = None if self._soft is None else self._sink.events[self._soft]
        companions: tuple[str, ...] = ()
        common = self._sink.common(line)
        if previous is not None and self._last_event == self._soft and isinstance(soft, DriverAllocFailure):
            companions = (soft.function,) if soft.function else ()
            times += 1
            if soft.count == 1:
                self._sink.amend(
                    self._soft, severity="hard", function=function, companions=companions, count=times,
                    last=line.stamp, raw=f"{soft.raw} / {line.text}",
                )  # fmt: skip
                self._last_event, self._soft = self._soft, None
                return
            self._sink.amend(self._soft, count=soft.count - 1)
            common["stamp"] = previous.stamp
        failure = DriverAllocFailure(
            **common, severity="hard", function=function, error=_named(error), companions=companions, count=times
        )
        self._last_event = self._sink.add(failure)

    def _xid(self, line: Line, found: re.Match[str]) -> None:
        code, device, pid, name = int(found["code"]), found["device"], found["pid"], found["name"]
        key = (code, device)
        number, last = self._xids.get(key, (None, None))
        if last is not None and within(last.stamp, line.stamp, EPISODE_S):
            self._sink.repeat(number, line)
        else:
            number = self._sink.add(
                Xid(
                    **self._sink.common(line), code=code, device=device, text=found["text"].strip(),
                    pid=int(pid) if pid and pid.isascii() and pid.isdigit() else None,
                    name=name if name and name != "<unknown>" else None, category=category(code),
                    severity="soft" if category(code) == "application" else "hard",
                )
            )  # fmt: skip
        self._xids = dict([*self._xids.items()][-63:]) | {key: (number, line)}


def _named(error: re.Match[str] | None) -> str | None:
    return (error[1] or error[2]) if error else None
