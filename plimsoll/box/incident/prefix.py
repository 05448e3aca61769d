"""What stands before a message: the stamps, host and program names that syslog, journalctl, dmesg and people put there.

Forms: syslog with or without a year and in any language, ISO 8601 (rsyslog, journalctl, dmesg), journalctl short,
short-precise, short-full, short-unix, short-monotonic, RFC 5424, dmesg plain, -T, -H, -d and --decode, /dev/kmsg,
pstore, netconsole, a bare time of day, and none. Pure; an odd line is a line without a prefix, never an error.
"""

import calendar
import datetime
import re

from plimsoll.box.incident.model import NO_STAMP, Line, Stamp
from plimsoll.box.incident.months import month_number

MAX_HOSTS = 100
LEAP_YEAR = 1972
"""Stands in for the year that a stamp does not have, so that 29 February is a date."""
_ANSI = re.compile(
    r"(?:\x1b|#033)\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|\x1b[()][0-9A-B]|[\x00\r\ufeff]"
)
_BEGINNING = (
    r"(?=[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:"
    r"|\[\s*\d+\.\d{3,}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d )"
)
"""What a stamp looks like that may stand behind something else."""
_LISTED = re.compile(
    rf"\s*(?:[-+*]\s?|\d{{1,7}}[:.)]?\s|[\w.@/-]{{1,64}}\s*\|\s?|\[[\w./-]{{1,120}}\]\s)\s*{_BEGINNING}"
)
"""Marks of a list, a patch, numbered lines, and the name of a container or a pod."""
_SECOND = re.compile(_BEGINNING)
_ELIDED = re.compile(r"^\[(?:\.{3}|\u2026)\]\s*")
"""A stamp that somebody left out."""
_CONSOLE = re.compile(r"^[\w.-]+ login: +(?=\[ *\d+\.\d+\])")
"""What stands on a serial console when the kernel writes there."""
_ENDLESS = re.compile(r"([0-9]{40})[0-9]+")
"""No figure has so many digits, and Python refuses to read one of 4,300."""
_MAY_BE_ENDLESS = 300
"""A shorter line has no figure that is too large for a float."""
_QUOTED = re.compile(r"^(?:\s*(?:[>`]|\|(?= ))\s?)+(?=\s*\S)")
_GREPPED = re.compile(r"^[\w./+-]{2,120}?:(?:\d+:)?(?=[A-Z][a-z]{2} [ \d]\d |\d{4}-\d\d-\d\dT|\[\s*\d+\.\d)")
_PRIORITY = re.compile(r"^<\d{1,3}>(?:1 (?=\d{4}-))?")
_DECODED = re.compile(
    r"^(?:[\w.-]+: (?=kern: ))?"
    r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *: *\w+ *: ?"
)
_KMSG = re.compile(r"^(?:[\w.+~-]+,)?\d{1,3},\d+,(\d+),[^;\s]{1,80};")
_TIME = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_DATE = r"(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)"
_MONTH = r"(?P<mon>[^\W\d_]{2,10}\.?|\d{1,2}[月월])\s*(?P<d>\d{1,2})"
_ZONE = r"(?P<z>Z|[+-]\d\d:?\d\d|[A-Z]{3,5}\b)"
_ISO = re.compile(rf"^(?:[^\W\d_]{{2,5}}\.? )?{_DATE}[T ]{_TIME} ?{_ZONE}?(?: |$)")
_BRACKETED_ISO = re.compile(rf"^\[{_DATE}[T ]{_TIME} ?{_ZONE}?[^\]]{{0,40}}\]:?\s?")
_SYSLOG = re.compile(
    rf"^(?:(?P<y>\d{{4}}) )?(?:[^\W\d_]{{2,5}}[.,]* )?{_MONTH},?(?: (?P<y2>\d{{4}}))? {_TIME}"
    r"(?: (?P<y3>20\d\d))?:?(?: |$)"
)
_CTIME = re.compile(rf"^\[\s*(?:[^\W\d_]{{1,6}}\.?\s+)?{_MONTH}\s+{_TIME}\s+(?P<y>\d{{4}})\s*\]\s?")
_HUMAN = re.compile(rf"^\[{_MONTH} (?P<h>\d\d):(?P<mi>\d\d)\]\s?")
_DELTA = re.compile(r"^\[\s*\+(\d+\.\d+)\]\s?")
_LOGFMT = re.compile(rf"^time=\"?{_DATE}[T ]{_TIME} ?{_ZONE}?\"? (?=\w+=)")
"""Containerd's and dockerd's own form; the rest of it stays as it is."""
_UNIX = re.compile(r"^(\d{10}\.\d{3,6}) ")
_OF_DAY = re.compile(rf"^\[?{_TIME}\]?(?:\s+|$)")
_TORN = re.compile(r"^(\d{1,9}\.\d{6})\]\s")
"""A stamp of the kernel whose bracket was left behind when somebody copied it."""
_UPTIME = re.compile(r"^\[\s*(\d{1,9}\.\d{1,9})(?:\s*<\s*\d+\.\d+\s*>)?\s*\]\s?(?:\[\s*[TC]\d+\]\s?)?")
_HOST_BEFORE_UPTIME = re.compile(r"^[\w.:-]+\s+(?=\[\s*\d+\.\d{3,}\])")
_FACILITY = r"(?:(?:kern|user|mail|daemon|auth|syslog|cron|authpriv|local\d)\.\w{3,7}\s+)?"
"""BusyBox's syslogd writes it between host and program."""
_HOST_PROGRAM = re.compile(
    rf"^(?P<host>[\w.:@<>*-]+)\s+{_FACILITY}(?P<program>\(?[\w./@+-]+\)?)(?:\[[^\]\s]{{1,20}}\])?: ?"
)
_IPV6 = re.compile(r"[0-9a-fA-F:.]+$")
_STRUCTURED = re.compile(r"^\S+ (?P<program>[\w./@+-]+) \S+ \S+ (?:-|\[(?:[^\]\\]|\\.)*\]) ?\ufeff?")
_PROGRAM = re.compile(r"^(?P<program>\(?[\w./@+-]+\)?)(?:\[\d+\])?: ?")
_DAEMONS = frozenset({
    "kernel", "earlyoom", "systemd-oomd", "systemd", "dockerd", "containerd", "systemd-logind", "systemd-journald",
    "plimsoll", "plimsoll-guard", "sshd", "rsyslogd",
})  # fmt: skip
"""Programs that are told from the first word of a message where no host stands before them."""
_NO_HOST = frozenset({("Hardware", "name"), ("Internal", "error"), ("Call", "trace"), ("Call", "Trace")})
_KERNEL_WORDS = frozenset({
    "NVRM", "INFO", "BUG", "watchdog", "rcu", "oom-kill", "oom_reaper", "Oops", "sysrq", "SysRq", "Mem-Info", "CPU",
    "memory", "swap", "reboot", "audit", "AER", "pcieport", "NMI",
})  # fmt: skip
"""What begins a message of the kernel and could be taken for a program's name."""


def clean(raw: bytes) -> str:
    """Return a line's text without NUL bytes, escape sequences and the marks of a quotation."""
    text = raw.decode("utf-8", "replace")
    # most lines have nothing to take out, which takes a twentieth of the time to see
    if not text.isprintable() or "#033" in text:
        text = _ANSI.sub("", text).replace("\xa0", " ")
    if len(text) > _MAY_BE_ENDLESS:
        text = _ENDLESS.sub(r"\1", text)
    return _QUOTED.sub("", text) if text[:1] in "> |`" else text


class Prefix:
    """Takes prefixes off, one line after the other; only `dmesg -H` needs to know the lines before."""

    def __init__(self) -> None:
        self._human: Stamp | None = None
        self.hosts: set[str] = set()
        """The names of machines that were taken off."""

    def parse(self, number: int, text: str) -> Line:
        """Return a cleaned line in its parts."""
        text = text.rstrip("\n").rstrip("`")
        found = self._parsed(number, text)
        if found.stamp == NO_STAMP and (inner := _behind_marks(text)) is not None:
            marked = self._parsed(number, inner)
            return found if marked.stamp == NO_STAMP else marked._replace(width=len(text))
        return found

    def _parsed(self, number: int, text: str) -> Line:
        width = len(text)
        rest = _GREPPED.sub("", _PRIORITY.sub("", text, count=1), count=1)
        rest = _ELIDED.sub("", rest, count=1)
        rest = _CONSOLE.sub("", rest, count=1) if " login: " in rest[:80] else rest
        decoded = _DECODED.match(rest)
        rest = rest[decoded.end() :] if decoded else rest
        stamp, end, may_have_host = self._stamp(rest)
        if stamp is None:
            program, message = self._program(rest, None, may_have_host=False)
            uptime = _UPTIME.match(message) if program else None
            found = Stamp(uptime_s=float(uptime[1])) if uptime else NO_STAMP
            changed = len(rest) != len(text) or program is not None
            return Line(number, found, program, message[uptime.end() :] if uptime else message, changed, width)
        if stamp.wall_s is not None and _SECOND.match(rest[end:]):
            # who has stamped a log's lines anew, as Docker does, knows the year as well
            own, length, may_have_host_too = self._stamp(rest[end:])
            if own is not None and own.wall_s is not None:
                end, may_have_host = end + length, may_have_host_too
        program, message = self._program(rest[end:], stamp.form, may_have_host=may_have_host and not decoded)
        uptime = _UPTIME.match(message) if stamp.uptime_s is None else None
        if uptime:
            stamp, message = stamp._replace(uptime_s=float(uptime[1])), message[uptime.end() :]
        return Line(number, stamp, program, message, prefixed=True, width=width)

    def _stamp(self, text: str) -> tuple[Stamp | None, int, bool]:
        """Return the stamp, where it ends, and whether a host's name may follow."""
        if text[:1] == "[" or _TORN.match(text):
            return self._bracketed(text)
        if match := _KMSG.match(text):
            return Stamp(uptime_s=int(match[1]) / 1e6), match.end(), False
        if match := _UNIX.match(text):
            return Stamp(float(match[1]), "date", 0), match.end(), True
        if match := _LOGFMT.match(text):
            return _dated(match), match.end(), False
        match = _ISO.match(text) or _SYSLOG.match(text) or _OF_DAY.match(text)
        if match is None:
            return None, 0, False
        # util-linux writes the fraction of ISO 8601 after a comma, and no host; journald and rsyslog write a point.
        no_host = match[0].endswith(": ") or (match.re is _ISO and "," in match[0])
        return _dated(match), match.end(), not no_host

    def _bracketed(self, text: str) -> tuple[Stamp | None, int, bool]:
        if match := _UPTIME.match(text) or _TORN.match(text):
            return Stamp(uptime_s=float(match[1])), match.end(), True
        if match := _CTIME.match(text) or _BRACKETED_ISO.match(text):
            return _dated(match), match.end(), False
        if match := _HUMAN.match(text):
            self._human = _dated(match)
            return self._human, match.end(), False
        if match := _DELTA.match(text):
            base = self._human
            if base is not None and base.wall_s is not None:
                self._human = base._replace(wall_s=base.wall_s + float(match[1]))
            return self._human or NO_STAMP, match.end(), False
        if match := _OF_DAY.match(text):
            return _dated(match), match.end(), True
        return None, 0, False

    def _program(self, text: str, form: str | None, *, may_have_host: bool) -> tuple[str | None, str]:
        """Return the program and the message; None where what stands first is no program.

        `form` is the stamp's. Behind a date a host does stand, unless somebody has cut it out.
        """
        if may_have_host:
            text = _HOST_BEFORE_UPTIME.sub("", text, count=1)
            match = _HOST_PROGRAM.match(text)
            if match and self._is_host(match, certain=form in ("date", "yearless")):
                return self._behind_host(text, match)
            if form == "date" and (match := _STRUCTURED.match(text)):
                return match["program"], text[match.end() :]
        match = _PROGRAM.match(text)
        if match and (match["program"] in _DAEMONS or "[" in match[0]):
            return match["program"], text[match.end() :]
        return None, text

    @staticmethod
    def _is_host(match: re.Match[str], *, certain: bool) -> bool:
        """Say whether two words before a colon are a host and a program, and not a message's own beginning."""
        if ":" in match["host"] and not _IPV6.match(match["host"]):
            return False
        told = match["program"] in _DAEMONS or "[" in match[0]
        return told or (certain and (match["host"], match["program"]) not in _NO_HOST)

    def _behind_host(self, text: str, match: re.Match[str]) -> tuple[str | None, str]:
        if len(self.hosts) < MAX_HOSTS:
            self.hosts.add(match["host"])
        if match["program"] in _KERNEL_WORDS:
            return None, text[match.start("program") :]
        return match["program"], text[match.end() :]


def _behind_marks(text: str) -> str | None:
    """Return what stands behind blanks, or the marks of a list before a stamp; None where there is neither."""
    if marks := _LISTED.match(text):
        return text[marks.end() :]
    return text.lstrip() if text[:1].isspace() else None


def _dated(match: re.Match[str]) -> Stamp | None:
    """Return the stamp of a match with named groups; None for a date that does not exist."""
    found = match.groupdict()
    year = found.get("y") or found.get("y2") or found.get("y3")
    month = int(found["mo"]) if found.get("mo") else month_number(found["mon"]) if found.get("mon") else None
    if found.get("mon") and month is None:
        return None
    form = "day" if month is None else "date" if year else "yearless"
    date = (1970, 1, 1) if month is None else (int(year or LEAP_YEAR), month, int(found["d"]))
    try:
        moment = datetime.datetime(
            *date, int(found["h"]), int(found["mi"]), min(59, int(found.get("s") or 0)), tzinfo=datetime.UTC
        )
    except ValueError:
        return None
    fraction = float(f"0.{found['f']}") if found.get("f") else 0.0
    return Stamp(calendar.timegm(moment.utctimetuple()) + fraction, form, _offset_s(found.get("z")))


def _offset_s(zone: str | None) -> int | None:
    if zone in ("Z", "UTC", "GMT"):
        return 0
    if not zone or zone[0] not in "+-":
        return None
    seconds = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return -seconds if zone[0] == "-" else seconds
