"""Starts of the machine, and how the run before ended: boot lines, journal marks, `--list-boots`, `last -x`."""

import re
from dataclasses import replace
from typing import Any

from plimsoll.box.incident.clocks import iso
from plimsoll.box.incident.grounds import duration
from plimsoll.box.incident.model import NO_STAMP, Boot, Gap, Line, Stamp
from plimsoll.box.incident.prefix import Prefix, clean
from plimsoll.box.incident.sink import Sink, elapsed_s

SAME_BOOT_LINES = 50
MIN_GAP_S = 30.0
"""From a restart in order to the first line of the next boot takes longer than that on most machines."""
_LINUX = re.compile(r"Linux version (\S+)")
_MARK = re.compile(r"-- (?:Boot [0-9a-f]{32}|Reboot) --")
_IN_ORDER = re.compile(
    r"systemd-shutdown\[|\]: Shutting down\.|reboot: (?:Restarting system|Power down|System halted)"
    r"|kexec_core: Starting new|System is (?:rebooting|powering down|halting)"
    r"|Reached target \S*(?:[Rr]eboot|[Pp]ower-?[Oo]ff|[Hh]alt|[Ss]hutdown)"
    r"|Reached target .*(?:System (?:Reboot|Power Off|Shutdown|Halt))|Journal stopped|exiting on signal 15"
)
_USERS_MANAGER = re.compile(r"\bsystemd\[(?!1\])\d+\]: ")
"""A user's manager reaches its own shutdown.target when its user logs out."""
_LOGS_ON = re.compile(r"systemd-journald\[\d+\]: Journal started|rsyslogd(?:\[\d+\])?: .*\] start\b")
_LOGGING_ENDS = re.compile(r"Journal stopped|exiting on signal 15")
"""As at the end of an initrd, and where rsyslog is restarted: somebody logs again after it."""
_EARLY = re.compile(r"Booting Linux on physical CPU")
"""What an arm64 kernel says before its version."""
EARLY_S = 10.0
"""From a reset to the first line of a log it takes longer, also on machines without firmware checks."""
MAX_CONTEXT_LINES = 80
MAX_LOGINS = 2000
_LOGIN = re.compile(r"(?P<what>reboot|shutdown)\s+system (?:boot|down)\s+(?P<kernel>\S+)\s+(?P<when>.+)")
_MINUTE = re.compile(r"(\S+ \S+ +\d+ \d\d:\d\d)(?::\d\d)?( \d{4})?\b")
_ROW = re.compile(
    r"\s*-?\d+ [0-9a-f]{31,32} (.+?)\s*(?:\u2014|\u2013|(?<=[A-Z0-9]) (?=[A-Z][a-z]{1,5}\.? \d{4}-))\s*(.+?)\s*$"
)


_JSON_LIST = '[{"index":'
_JSON_ROW = re.compile(r'"first_entry":(\d{10,17}),"last_entry":(\d{10,17})')


class Boots:
    """Reads boot lines; `context` is what stood before the line."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._last: tuple[Line, int | None] | None = None
        """The last boot's line, and its event."""
        self._last_end: tuple[Stamp, str] | None = None
        self._mark: tuple[Line, bytes] | None = None
        self._logins: list[Boot | Stamp] = []

    @property
    def wants_more(self) -> bool:
        """Whether the next line says when a boot was."""
        return self._mark is not None

    def read(self, line: Line, context: bytes) -> bool:
        """Take a line that tells of a boot."""
        if self._mark is not None and line.stamp != NO_STAMP:
            # journalctl's mark has no time: the first line after it has
            (mark, before), self._mark = self._mark, None
            self._boot(mark._replace(stamp=line.stamp), None, before)
        linux = _LINUX.match(line.text) if line.may_be_kernel else None
        if linux:
            self._boot(line, linux[1], context)
        elif _MARK.match(line.text):
            self._mark = line, context
        elif match := _ROW.match(line.text):
            self._row(line, match[1], match[2])
        elif line.text.startswith(_JSON_LIST):
            self._json(line)
        elif match := _LOGIN.match(line.text):
            self._login(line, match)
        else:
            return False
        return True

    def close(self) -> None:
        """Keep the boots of a list of logins, which begins with the newest."""
        for index, found in enumerate(self._logins):
            if isinstance(found, Boot):
                older = self._logins[index + 1 : index + 2]
                clean = isinstance(older[0], Stamp) if older else None
                self._sink.add(replace(found, clean_stop=clean))

    def _login(self, line: Line, found: re.Match[str]) -> None:
        """Take a row of `last -x`: the start of a boot, or an orderly end of one."""
        stamp = _login_stamp(found["when"])
        if len(self._logins) >= MAX_LOGINS:
            return
        if found["what"] == "shutdown":
            self._logins.append(stamp)
        else:
            self._logins.append(Boot(**self._sink.common(line._replace(stamp=stamp)), kernel=found["kernel"]))

    def _boot(self, line: Line, kernel: str | None, context: bytes) -> None:
        last = self._last
        if kernel:
            self._sink.platform["kernel"] = kernel
        # journalctl's mark and the kernel's own first line are one boot; two marks are two, however short the first was
        if kernel and last is not None and line.number - last[0].number <= SAME_BOOT_LINES and last[1] is not None:
            known = self._sink.events[last[1]]
            if isinstance(known, Boot) and known.kernel is None:
                self._sink.amend(last[1], kernel=kernel)
                return
        clean, before = how_it_ended(context, line.stamp)
        common = self._sink.common(line)
        apart = elapsed_s(_wall(before.stamp), _wall(line.stamp)) if before else None
        if before and clean is not True and apart is not None and apart >= MIN_GAP_S:
            self._gap(common, before.stamp, apart, before.text, certain=clean is False)
        self._last = line, self._sink.add(Boot(**common, kernel=kernel, clean_stop=clean))

    def _gap(self, common: dict[str, Any], began: Stamp, seconds: float, before: str, *, certain: bool = True) -> None:
        gap = {**common, "stamp": began}
        self._sink.add(Gap(**gap, seconds=seconds, ended_by="boot", before=before[:200], certain=certain))

    def _json(self, line: Line) -> None:
        """Take `journalctl --list-boots -o json`: one line of all boots."""
        for first, last in _JSON_ROW.findall(line.text):
            began, ended = (Stamp(int(us) / 1e6, "date", 0) for us in (first, last))
            self._boot_of_list(line, began, ended, iso(int(last) / 1e6))

    def _row(self, line: Line, first: str, last: str) -> None:
        """Take a row of `journalctl --list-boots`."""
        prefix = Prefix()
        began, ended = prefix.parse(line.number, first).stamp, prefix.parse(line.number, last).stamp
        self._boot_of_list(line, began, ended, last)

    def _boot_of_list(self, line: Line, began: Stamp, ended: Stamp, last: str) -> None:
        """Keep a boot, and the gap between the one before and it."""
        known = replace_stamp(line, began)
        common = self._sink.common(known)
        if self._last_end is not None:
            apart = elapsed_s(self._last_end[0], began)
            if apart is not None and apart >= MIN_GAP_S:
                self._gap(common, self._last_end[0], apart, self._last_end[1])
        self._sink.add(Boot(**common, clean_stop=None))
        lasted_s = elapsed_s(began, ended)
        told = "" if lasted_s is None else f", {duration(lasted_s)} after its first"
        self._last_end = (ended, f"the last entry of the boot before, {last}{told}")


def _login_stamp(when: str) -> Stamp:
    """Return the stamp that a row of `last` begins with: ISO 8601, or a date to the minute or the second."""
    match = _MINUTE.match(when)
    if match and ":" not in when[match.end(1) : match.end(1) + 1]:
        when = f"{match[1]}:00{match[2] or ''} "
    return Prefix().parse(0, when).stamp


def _wall(stamp: Stamp) -> Stamp:
    """Return a stamp without its uptime, which begins anew with each boot."""
    return stamp._replace(uptime_s=None)


def replace_stamp(line: Line, stamp: Stamp) -> Line:
    """Return a line with another stamp."""
    return line._replace(stamp=stamp)


def _stops_in_order(texts: list[str]) -> bool:
    """Say whether the last lines of a run tell of an orderly stop of the machine."""
    own = [text for text in texts if not _USERS_MANAGER.search(text)]
    found = [number for number, text in enumerate(own) if _IN_ORDER.search(text)]
    logs_on = max((number for number, text in enumerate(own) if _LOGS_ON.search(text)), default=-1)
    return any(number > logs_on or not _LOGGING_ENDS.search(own[number]) for number in found)


def how_it_ended(context: bytes, boot: Stamp) -> tuple[bool | None, Line | None]:
    """Return whether the run before ended in order, and its last line; None where the log cannot tell.

    A kern.log holds no word of a stop even where there was one: rsyslog is ended before the kernel says it.
    """
    texts = [text for text in clean(context.replace(b"\0", b"")).splitlines() if text.strip()][-MAX_CONTEXT_LINES:]
    # how the boot before that one ended says nothing of it
    marks = [number for number, text in enumerate(texts, 1) if _MARK.match(text)]
    texts = texts[marks[-1] :] if marks else texts
    prefix = Prefix()
    lines = [
        line for text in texts if (line := prefix.parse(0, text)).stamp != NO_STAMP and not _EARLY.match(line.text)
    ]
    # of one boot the daemons' first lines may stand before the kernel's
    before = [
        line
        for line in lines
        if (apart := elapsed_s(_wall(line.stamp), _wall(boot))) is None or not 0 <= apart < EARLY_S
    ]
    last = before[-1] if before else None
    if _stops_in_order(texts):
        return True, last
    full_log = any(line.program not in (None, "kernel") for line in lines)
    return (False if full_log and last else None), last
