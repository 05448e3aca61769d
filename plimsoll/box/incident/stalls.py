"""Hung tasks, lockups, oopses and panics, in the wordings of kernels 3.10 to 6.18."""

import re
from typing import Any

from plimsoll.box.incident.model import HungTask, Line, Lockup, Panic, Process
from plimsoll.box.incident.sink import Sink, within

MAX_FRAMES = 12
REPORT_S = 30.0
MAX_LINES = 200
"""How many lines a report of a hung task or an oops may have; with its registers and modules about 80."""
_HUNG = re.compile(r"(?:INFO: )?task (.{1,64}):(\d+) blocked (?:in I/O wait )?for more than (\d+) seconds")
_BLOCKER = re.compile(
    r"(?:INFO: )?task (?P<task>.+?)(?::(?P<pid>\d+))?(?:\(T\d+\))?(?: <\w+>)? (?:is )?blocked on an? (?P<lock>[\w-]+)"
    r"(?: likely)?(?: last)? (?:owned|held) by task (?P<owner>.+?)(?::(?P<owner_pid>\d+))?(?:\(T\d+\))?"
    r"(?: [(<](?P<mode>\w+)[)>])?\.?$"
)
_STATE = re.compile(r"task:(.{1,64}?)\s+state:(\w)\b.*?\bpid:\s*(\d+)\b")
_OLD_STATE = re.compile(r"(.{1,64}?)\s+D\s+(?:[0-9a-f]{8,16}\s+)?\d+\s+(\d+)\s+\d+\s+0x")
FRAME = re.compile(r"\s*(?:\[<[0-9a-f]+>\] )?(\? )?([\w.$]+)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(\w+)(?: [0-9a-f]+)?\])?")
_FRAME_OF_ARM = re.compile(
    r"\s*(?:\[<[0-9a-f]+>\] )?(?P<guess>\? )?\(?(?P<name>[\w.$]+)(?: \[(?P<module>\w+)\])?\)? from (?:\[<|[\w.$]+\+0x)"
)
"""32-bit ARM names the caller beside each function."""
_SUPPRESSED = re.compile(r"Future hung task reports are suppressed")
_SOFT = re.compile(r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#(\d+) stuck for (\d+)s! \[(.*): ?(\d+)\]")
_HARD = re.compile(
    r"(?:(?:NMI )?watchdog: )?(?:Watchdog detected hard LOCKUP on cpu (\d+)"
    r"|CPU:? ?\d+ detected hard LOCKUP on other CPUs? ([\d,-]+)"
    r"|Watchdog CPU:(\d+) Hard LOCKUP|CPU(\d+): Watchdog detected hard LOCKUP)",
    re.IGNORECASE,
)
_OF_LOCKUPS = ("lockup", "LOCKUP", "stall", "starved")
"""Looked for first: most lines have none of them, and four searches of each took a tenth of all time."""
_RCU = re.compile(
    r"(?:rcu: )?(?:INFO: )?(\w+) (?:self-)?detected (?:expedited )?stalls? on CPU|rcu: .*kthread starved for"
)
_WORKQUEUE = re.compile(r"BUG: workqueue lockup - pool.*? stuck for (\d+)s!")
_OOPS = re.compile(
    r"BUG: (?!soft lockup|workqueue)(?:unable to handle|kernel |stack guard|KASAN|KFENCE).*|kernel BUG at .*"
    r"|(?:Internal error: )?Oops\b.*|Internal error: .*|Unable to handle kernel .*|general protection fault.*"
    r"|\[\s*#\d+\].*|invalid opcode: .*\[#\d+\].*"
)
_PANIC = re.compile(r"Kernel panic - not syncing: ?(.*)")
PROCESS = re.compile(r"CPU: \d+ (?:UID: \d+ )?PID: (\d+) Comm: (.+?) (?:Kdump: .*?)?(?:Tainted|Not tainted)(.*)")
KERNEL = re.compile(r"\b(\d+\.\d+\.\d+[\w.+~-]*|\d+\.\d+\.\d+)(?=\s|$)")
HARDWARE = re.compile(r"Hardware name: (.+?)\s*$")
_WHERE = re.compile(
    r"(?:pc : |RIP: \S+?:?|IP: |RIP  ?)(?:\[<[0-9a-f]+>\]\s+)*(?:\[<[0-9a-f]+>\])?\s*([A-Za-z_][\w.]*)\+0x"
)
_ASKED = re.compile(
    r"sysrq(?: triggered crash|_handle_crash)|SysRq : Trigger a crash|[Ss]ys[Rr]q: .*[Tt]rigger a crash|lkdtm"
)
_SYSRQ = re.compile(r"sysrq: .*Trigger a crash|SysRq : Trigger a crash|lkdtm: Performing direct entry")
_START_WORDS = (
    "blocked ", "state:", " D ", *_OF_LOCKUPS, "Oops", "BUG", "panic", "nternal error", "Unable to handle", "fault",
    "opcode", "[#", "[ #", "ysrq", "ysRq", "lkdtm",
)  # fmt: skip
_STARTS = (_HUNG, _BLOCKER, _STATE, _OLD_STATE, _SOFT, _HARD, _RCU, _WORKQUEUE, _OOPS, _PANIC, _SYSRQ)


def frame(text: str) -> str | None:
    """Return `function` or `function [module]` of a line of a call trace; None for anything else, and for guesses."""
    match = FRAME.match(text) or _FRAME_OF_ARM.match(text)
    if not match or match[1]:
        return None
    return f"{match[2]} [{match[3]}]" if match[3] else match[2]


def _may_start(text: str) -> bool:
    """Say whether a line begins a report; eleven searches of every line after one took most of all time."""
    return any(word in text for word in _START_WORDS) and any(pattern.search(text) for pattern in _STARTS)


class Stalls:
    """Reads what the kernel says of tasks and processors that do not get on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: int | None = None
        """The event whose report is being read: a hung task or an oops."""
        self._began: Line | None = None
        self._asked: Line | None = None

    @property
    def wants_more(self) -> bool:
        """Whether the lines that follow belong to a report."""
        return self._began is not None

    def read(self, line: Line) -> bool:
        """Take a line if it is about a stall or a crash, or belongs to such a report."""
        if not line.may_be_kernel:
            return False
        if self._began and line.number - self._began.number > MAX_LINES:
            self.close()
        if self._began and not within(self._began.stamp, line.stamp, REPORT_S):
            # a stray line of another time ends nothing
            if not _may_start(line.text):
                return False
            self.close()
        return any(read(line) for read in (self._hung, self._lockup, self._crash, self._detail))

    def close(self) -> None:
        """End the report that is being read."""
        self._open = self._began = None

    def _add(self, event: HungTask | Lockup | Panic, line: Line) -> None:
        self._open, self._began = self._sink.add(event), line

    def _hung(self, line: Line) -> bool:
        if match := _HUNG.match(line.text):
            task = Process(int(match[2]), match[1])
            self._add(HungTask(**self._sink.common(line), task=task, seconds=int(match[3])), line)
        elif match := _BLOCKER.match(line.text):
            self._owner(line, match)
        elif match := _STATE.match(line.text):
            if match[2] == "D":
                self._state(line, Process(int(match[3]), match[1].strip()))
            else:
                self.close()
        elif " D " in line.text and (match := _OLD_STATE.match(line.text)):
            self._state(line, Process(int(match[2]), match[1].strip()))
        elif "suppressed" in line.text and _SUPPRESSED.search(line.text):
            self._sink.note(
                line, "limit", "the kernel reports no further hung tasks: kernel.hung_task_warnings is used up"
            )
        else:
            return False
        return True

    def _hung_open(self) -> HungTask | None:
        event = None if self._open is None else self._sink.events[self._open]
        return event if isinstance(event, HungTask) else None

    def _owner(self, line: Line, found: re.Match[str]) -> None:
        """Put the owner of the lock to the task that waits for it."""
        pid, owner_pid = found["pid"], found["owner_pid"]
        owner = Process(int(owner_pid) if owner_pid else None, found["owner"])
        known = self._hung_open()
        if known is None or known.task.comm != found["task"] or (pid and known.task.pid != int(pid)):
            task = Process(int(pid) if pid else None, found["task"])
            self._add(HungTask(**self._sink.common(line), task=task), line)
        self._sink.amend(self._open, owner=owner, owner_mode=found["mode"], lock=found["lock"])

    def _state(self, line: Line, task: Process) -> None:
        known = self._hung_open()
        if known is not None and known.owner is not None and known.owner.pid == task.pid:
            self.close()  # the kernel shows where the owner is: that makes it no victim of the hang
            return
        if known is None or known.task.pid != task.pid:
            self._add(HungTask(**self._sink.common(line), task=task), line)

    def _lockup(self, line: Line) -> bool:
        text, common = line.text, self._sink.common(line)
        if not any(word in text for word in _OF_LOCKUPS):
            return False
        if match := _SOFT.search(text):
            task = Process(int(match[4]), match[3])
            event = Lockup(**common, type="soft", cpu=int(match[1]), seconds=int(match[2]), task=task)
        elif match := _HARD.search(text):
            cpu = next(found for found in match.groups() if found)
            event = Lockup(**common, type="hard", cpu=int(cpu) if cpu.isdigit() else None)
        elif _RCU.match(text):
            event = Lockup(**common, type="rcu")
        elif match := _WORKQUEUE.search(text):
            event = Lockup(**common, type="workqueue", seconds=int(match[1]))
        else:
            return False
        # what follows are the registers of the processor that is stuck, not a new event
        self._add(event, line)
        return True

    def _crash(self, line: Line) -> bool:
        if _SYSRQ.match(line.text):
            self._asked = line
            return True
        panic = _PANIC.match(line.text)
        oops = None if panic else _OOPS.match(line.text)
        if not panic and not oops:
            return False
        known = None if self._open is None else self._sink.events[self._open]
        asked = bool(_ASKED.search(line.text)) or (
            self._asked is not None
            and within(self._asked.stamp, line.stamp, 5)
            and line.number - self._asked.number <= 10  # noqa: PLR2004
        )
        if isinstance(known, Panic):
            self._sink.amend(self._open, fatal=known.fatal or bool(panic), deliberate=known.deliberate or asked)
            return True
        reason = panic[1] if panic else line.text
        self._add(Panic(**self._sink.common(line), reason=reason, fatal=bool(panic), deliberate=asked), line)
        return True

    def _detail(self, line: Line) -> bool:
        """Take what a report says beside its first line."""
        if match := PROCESS.match(line.text):
            if kernel := KERNEL.search(match[3]):
                self._sink.platform["kernel"] = kernel[1]
            self._amend_panic(task=Process(int(match[1]), match[2]))
        elif match := HARDWARE.match(line.text):
            self._sink.platform["hardware"] = match[1]
        elif match := _WHERE.match(line.text):
            self._amend_panic(function=match[1], deliberate_if=bool(_ASKED.search(line.text)))
        elif name := frame(line.text):
            self._frame(name)
        else:
            return False
        return self._began is not None

    def _amend_panic(self, *, deliberate_if: bool = False, **changes: Any) -> None:  # noqa: ANN401  # fields of Panic
        known = None if self._open is None else self._sink.events[self._open]
        if isinstance(known, Panic):
            new = {key: value for key, value in changes.items() if getattr(known, key) is None}
            self._sink.amend(self._open, **new, deliberate=known.deliberate or deliberate_if)

    def _frame(self, name: str) -> None:
        known = None if self._open is None else self._sink.events[self._open]
        if isinstance(known, HungTask) and len(known.frames) < MAX_FRAMES:
            self._sink.amend(self._open, frames=(*known.frames, name))
        elif isinstance(known, Panic) and "[" in name:
            self._amend_panic(module=name.partition("[")[2].rstrip("]"))
        if isinstance(known, Panic):
            self._amend_panic(deliberate_if="sysrq" in name)
