"""Reports of the kernel's OOM killer, whole, cut, or as single lines, in the wordings of kernels 3.10 to 6.18."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll.box.incident import meminfo, victim
from plimsoll.box.incident.model import Invoker, Line, OomKill, Victim
from plimsoll.box.incident.sink import Sink, within
from plimsoll.box.incident.stalls import FRAME, HARDWARE, KERNEL, PROCESS

REPORT_S = 120.0
"""A report through a serial console of 115200 baud with 5,000 tasks takes 40 s."""
SUMMARY_S = 5.0
"""The last two lines of a report are printed without anything between them."""
MAX_REPORT_LINES = 100_000
MAX_STRAYS = 200
MAX_EXCERPT_LINES = 500
"""Of a report whose first line is missing, where no stamps say what belongs together."""
_INVOKED = re.compile(r"(.*?) invoked oom-killer\b:? ?(.*)")
_GFP = re.compile(r"gfp_mask=(0x[0-9a-fA-F]+(?:\([^)]*\)?)?)")
_ORDER = re.compile(r"\border=(-?\d+)")
_ADJ = re.compile(r"oom_(?:score_)?adj[=:] ?(-?\d+)")
_SUMMARY = re.compile(r"oom-kill: ?(?=\w+=)(.*)")
_FIELDS = {
    "constraint": re.compile(r"constraint=(\w+)"),
    "cpuset": re.compile(r"cpuset=([^,]*)"),
    "oom_memcg": re.compile(r"\boom_memcg=([^,]*)"),
    "task_memcg": re.compile(r"task_memcg=([^,]*)"),
}
_TASK = re.compile(r"\btask=(.*?),\s*pid=(\d+)")
_UID = re.compile(r"\b(?:uid=|UID:|UID )(\d+)")
_SIZE = re.compile(r"(total-vm|anon-rss|file-rss|shmem-rss|pgtables):\s*(\d+)\s*kB")
_SCORE = re.compile(r"score (\d+)")
_KILL = re.compile(
    r"(?:(?P<wording>(?:Memory cgroup o|O)ut of memory)(?: \([^)]*\))?: )?(?P<verb>Kill|Killed|Killing) process "
    r"(?P<pid>\d+)(?:,? UID (?P<uid>\d+),?)? \((?P<comm>.{0,64}?)\)"
    r"(?=,? *(?:total-vm|score|oom_score_adj|anon-rss|[Uu][Ii][Dd]\b|sharing|with |in |\()|[,.:;]|\s*$)(?P<rest>.*)"
)
_REAPED = re.compile(r"oom_reaper: (?:reaped process|unable to reap pid:?) ?(\d+) \((.*?)\)")
_LIMITED = re.compile(r"Task in (\S+) killed as a result of limit of (\S+)")
_GROUP = re.compile(r"Tasks in (\S+) are going to be killed due to memory\.oom\.group set")
_MANUAL = re.compile(r"(?:sysrq: )?(?:SysRq : )?Manual OOM execution")
_PANIC_ON_OOM = re.compile(r"Kernel panic - not syncing: (?:Out of memory|System is deadlocked on memory)")
_NONE_LEFT = re.compile(r"(?:Out of memory|Memory cgroup out of memory).*no killable processes")
_EXITING = re.compile(r".{0,200}?\bOOM victim (\d{1,10}) \((.{0,64}?)\) is already exiting")
SAME_VICTIM_S = 1.0
"""Of a cgroup that is killed as a whole the kernel names the victim twice."""
MAX_COMM = 15
MAX_SHOWN = 64
"""Of a name that is longer than any task's, so much of its end can be one with marks before it."""
_DRIVER_FRAME = re.compile(r"(?:uvm_|nvUvm|nvidia_|nv_|rm_|phys_mem_|sysmem|_?memdesc|os_alloc_|_?iovaspace)\w*$")
_SCOPES = {
    "CONSTRAINT_NONE": "host",
    "CONSTRAINT_MEMCG": "memcg",
    "CONSTRAINT_CPUSET": "cpuset",
    "CONSTRAINT_MEMORY_POLICY": "mempolicy",
}


@dataclass
class _Report:
    """A report that is being read."""

    common: dict[str, Any]
    first: Line
    invoker: Invoker | None = None
    summary: dict[str, str | None] = field(default_factory=dict)
    summarised: bool = False
    victim: Victim | None = None
    wording: str | None = None
    manual: bool = False
    in_memcg: bool = False
    group: str | None = None
    outcome: str = "killed"
    account: meminfo.Account = field(default_factory=meminfo.Account)
    began_with_kill: bool = False

    def is_over(self, line: Line) -> bool:
        most = MAX_REPORT_LINES if self.invoker else MAX_EXCERPT_LINES
        return line.number - self.first.number > most or not within(self.first.stamp, line.stamp, self.window_s())

    def window_s(self) -> float:
        return REPORT_S if self.invoker else SUMMARY_S


class Oom:
    """Reads the OOM killer's lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: _Report | None = None
        self._strays = 0
        self._recent: dict[int, int] = {}
        """The events of the last victims, by pid."""
        self._group: tuple[Line, str] | None = None
        self._manual: Line | None = None

    @property
    def wants_more(self) -> bool:
        """Whether the lines that follow belong to a report."""
        return self._open is not None

    def read(self, line: Line) -> bool:
        """Take a line of a report; False for anything else."""
        if not line.may_be_kernel:
            return False
        if self._open and self._open.is_over(line):
            # a stray line of another time says nothing about the report; many of them say that it is cut off
            self._strays += 1
            if self._strays <= MAX_STRAYS and not _is_ours(line.text):
                return False
            self.close()
        return any(read(line) for read in (self._begins, self._summary, self._kill, self._aside, self._detail))

    def close(self) -> None:
        """End the report that is being read, and keep what there is of it."""
        report, self._open = self._open, None
        self._strays = 0
        if report is None:
            return
        if report.invoker or report.summarised or report.victim:
            self._emit(report)
        elif (account := report.account.report()) and (text := meminfo.describe(account)):
            self._sink.note(report.first, "memory_report", text, report=account)

    def _begins(self, line: Line) -> bool:
        match = _INVOKED.match(line.text) if "invoked oom-killer" in line.text else None
        if not match:
            return False
        self.close()
        gfp, order, adj = (pattern.search(match[2]) for pattern in (_GFP, _ORDER, _ADJ))
        invoker = Invoker(
            comm=_comm(match[1].strip()) or None, gfp_mask=gfp[1] if gfp else None,
            order=int(order[1]) if order else None, oom_score_adj=int(adj[1]) if adj else None,
        )  # fmt: skip
        self._open = _Report(self._sink.common(line), line, invoker, manual=self._asked(line))
        return True

    def _asked(self, line: Line) -> bool:
        return self._manual is not None and within(self._manual.stamp, line.stamp, SUMMARY_S)

    def _summary(self, line: Line) -> bool:
        match = _SUMMARY.match(line.text)
        if not match:
            return False
        found = {name: (m[1] if (m := pattern.search(match[1])) else None) for name, pattern in _FIELDS.items()}
        task, uid = _TASK.search(match[1]), _UID.search(match[1])
        if self._open and (self._open.summarised or self._open.victim):
            self.close()
        report = self._open or _Report(self._sink.common(line), line, manual=self._asked(line))
        report.summary, report.summarised = found, True
        if "global_oom" in match[1] and not found["constraint"]:
            report.summary["constraint"] = "CONSTRAINT_NONE"
        if task:
            known = Victim(int(task[2]), task[1], uid=int(uid[1]) if uid else None)
            report.victim = replace(known, **_sizes(match[1]))
        self._open = report
        if report.first is not line:
            # what completes the record is what a reader looks for
            report.common["raw"] = line.text[: len(line.text)]
        return True

    def _kill(self, line: Line) -> bool:
        match = _KILL.match(line.text)
        if not match or "sharing same memory" in match["rest"]:
            return bool(match)
        score, uid = _SCORE.search(match["rest"]), match["uid"] or (m[1] if (m := _UID.search(match["rest"])) else None)
        killed = Victim(
            int(match["pid"]), match["comm"], uid=int(uid) if uid else None, score=int(score[1]) if score else None
        )
        killed = replace(killed, **_sizes(match["rest"]))
        report = self._fitting(killed, line)
        if match["verb"] == "Kill":
            report.victim, report.wording = killed, match["wording"]
            self._open = report
            return True
        report.victim = _merged(report.victim, killed)
        report.wording = match["wording"] or report.wording
        self._open = None
        self._emit(report, line)
        return True

    def _fitting(self, killed: Victim, line: Line) -> _Report:
        """Return the report that a kill ends: the open one if it can be of the same victim, else a new one."""
        report = self._open
        if report is not None:
            known = report.victim
            # an old kernel names the parent first and then kills a child of it
            same = known is None or known.pid == killed.pid or known.score is not None
            near = not report.summarised or within(report.first.stamp, line.stamp, report.window_s())
            if same and near:
                return report
            self.close()
        began = _Report(self._sink.common(line), line, manual=self._asked(line), began_with_kill=True)
        if self._group and within(self._group[0].stamp, line.stamp, SUMMARY_S):
            began.group = self._group[1]
        return began

    def _aside(self, line: Line) -> bool:
        """Take the lines around a kill: what was reaped, the older kernels' cgroup, a whole cgroup, SysRq."""
        if match := _REAPED.match(line.text):
            self._reaped(line, int(match[1]), match[2])
        elif match := _LIMITED.match(line.text):
            report = self._open = self._open or _Report(self._sink.common(line), line)
            report.summary |= {"constraint": "CONSTRAINT_MEMCG", "task_memcg": match[1], "oom_memcg": match[2]}
        elif match := _GROUP.match(line.text):
            self._group = (line, match[1])
        elif _MANUAL.match(line.text):
            self._manual = line
        elif match := _EXITING.match(line.text):
            report = self._open = self._open or _Report(self._sink.common(line), line)
            report.victim = _merged(report.victim, Victim(int(match[1]), match[2]))
            report.outcome = "already_exiting"
            self.close()
        elif _NONE_LEFT.match(line.text):
            report = self._open = self._open or _Report(self._sink.common(line), line, began_with_kill=True)
            report.wording, report.outcome = report.wording or "Out of memory", "nobody_found"
            self._open = None
            self._emit(report)
        elif _PANIC_ON_OOM.match(line.text):
            self.close()
            return False
        else:
            return False
        return True

    def _reaped(self, line: Line, pid: int, comm: str) -> None:
        number = self._recent.get(pid)
        if number is not None and within(self._sink.events[number].stamp, line.stamp, REPORT_S):
            self._sink.amend(number, reaped=True)
        else:
            self.close()
            self._recent[pid] = self._add(OomKill(**self._sink.common(line), victim=Victim(pid, comm), reaped=True))

    def _detail(self, line: Line) -> bool:
        """Take what a report says between its first line and its last."""
        report = self._open
        if report is None:
            if not meminfo.begins(line.text):
                return False
            report = self._open = _Report(self._sink.common(line), line)
        if report.account.read(line.text):
            return True
        if match := PROCESS.match(line.text):
            if kernel := KERNEL.search(match[3]):
                self._sink.platform["kernel"] = kernel[1]
            if report.invoker:
                report.invoker = replace(report.invoker, pid=int(match[1]))
        elif match := HARDWARE.match(line.text):
            self._sink.platform["hardware"] = match[1]
        elif report.invoker and (match := FRAME.match(line.text)):
            self._frame(report, report.invoker, match)
        else:
            return False
        return True

    def _frame(self, report: _Report, invoker: Invoker, found: re.Match[str]) -> None:
        name, module = found[2], found[3] or ""
        report.manual |= name == "moom_callback"
        report.in_memcg |= name.startswith("mem_cgroup_out_of_memory")
        if (module.startswith("nvidia") or _DRIVER_FRAME.match(name)) and len(invoker.driver_frames) < 8:  # noqa: PLR2004
            report.invoker = replace(invoker, driver_frames=(*invoker.driver_frames, name))

    def _add(self, event: OomKill) -> int:
        number = self._sink.add(event)
        return len(self._sink.events) - 1 if number is None else number

    def _emit(self, report: _Report, line: Line | None = None) -> None:
        summary = report.summary
        constraint = summary.get("constraint")
        scope = _scope(report, constraint)
        memory = report.account.report()
        tasks = report.account.tasks()
        pid = report.victim.pid if report.victim else None
        if line is not None:
            report.common["raw"] = line.text[:400]
        told = self._recent.get(pid) if report.group and pid is not None else None
        if told is not None and within(self._sink.events[told].stamp, report.common["stamp"], SAME_VICTIM_S):
            self._sink.amend(told, group=True, memcg=report.group)
            return
        limit_memcg = summary.get("oom_memcg") or report.group
        event = OomKill(
            **report.common, invoker=report.invoker, victim=report.victim, constraint=constraint, scope=scope,
            memcg=limit_memcg or summary.get("task_memcg"), task_memcg=summary.get("task_memcg"),
            cpuset=summary.get("cpuset"), outcome=report.outcome, group=report.group is not None, memory=memory,
            tasks=victim.worth_keeping(tasks, victim.total_pages(memory, scope), pid),
            unkillable=sum(task.oom_score_adj == victim.UNKILLABLE for task in tasks), rows=report.account.rows,
        )  # fmt: skip
        number = self._add(event)
        if pid is not None:
            self._recent = dict([*self._recent.items()][-63:]) | {pid: number}


def _comm(text: str) -> str:
    """Return a task's name without what somebody's tool has put before it: no name is longer than 15 characters."""
    if len(text) <= MAX_COMM:
        return text
    end = text[-MAX_SHOWN:]
    return min((end.rpartition(mark)[2] for mark in ("] ", "kernel: ")), key=len).strip() or text


def _is_ours(text: str) -> bool:
    """Say whether a line is of some report, if not of the one that is open."""
    return meminfo.begins(text) or any(p.match(text) for p in (_INVOKED, _SUMMARY, _KILL, _REAPED, _LIMITED, _GROUP))


def _scope(report: _Report, constraint: str | None) -> str | None:
    if report.manual or (report.invoker is not None and report.invoker.order == -1):
        return "sysrq"
    if constraint:
        return _SCOPES.get(constraint)
    if report.wording and report.wording.startswith("Memory cgroup"):
        return "memcg"
    if report.group or (report.in_memcg and (not report.wording or report.outcome == "nobody_found")):
        return "memcg"
    return "host" if report.wording or report.account.report() else None


def _sizes(text: str) -> dict[str, Any]:
    """Return the figures of a kill's line, as fields of Victim."""
    found: dict[str, Any] = {f"{name.replace('-', '_')}_kib": int(value) for name, value in _SIZE.findall(text)}
    if adj := _ADJ.search(text):
        found["oom_score_adj"] = int(adj[1])
    return found


def _merged(known: Victim | None, killed: Victim) -> Victim:
    """Return the victim with what the lines before said of it, where it is the same process."""
    if known is None:
        return killed
    if known.pid != killed.pid:
        return replace(killed, score=None)
    kept = {name: value for name, value in vars(known).items() if getattr(killed, name) is None}
    return replace(killed, **kept)
