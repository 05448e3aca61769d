"""What userspace says of memory: earlyoom 1.3 to 1.8, systemd-oomd, Ray, dockerd, unit results."""

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from plimsoll.box.incident.model import Line, Target, UserspaceKill
from plimsoll.box.incident.samples import Sample, Samples
from plimsoll.box.incident.sink import Sink, within

KIB_PER_MIB = 1024
FOLLOWS_S = 60.0
"""earlyoom waits up to 10 s for a victim; a manager says what became of a unit within seconds."""
MAX_OOMD_KILLS = 64
MIN_UNIT_CHARACTERS = 8
"""Somebody who shortens a cgroup's path leaves at least its end."""
LOW_PERCENT = 5.0
FREE_SWAP_PERCENT = 10.0
"""earlyoom's own defaults are 10 and 10; half of it for memory is low by any setting in use."""
MAX_LOW_NOTES = 50
_AVAILABLE = re.compile(
    r"(?:low memory! )?mem avail:\s*(\d+) of\s*(\d+) MiB \(\s*(\d+(?:[.,]\d+)?) ?%\),"
    r" swap free:\s*\d+ of\s*\d+ MiB \(\s*(\d+(?:[.,]\d+)?) ?%\)"
)
_SENDING = re.compile(
    r"[Ss]ending (SIG[A-Z]+) to process (?:group )?(\d+)(?: uid (\d+))? \"(.*?)\": "
    r"(?:badness|oom_score) (-?\d+)(?:, oom_score_adj -?\d+)?(?:, VmRSS (\d+) MiB)?"
)
_SENDING_SHORT = re.compile(r"[Ss]ending (SIG[A-Z]+) to process (?:group )?(\d+)(.*)")
_KILLING = re.compile(
    r"(?:[Kk]illing process:? ['\"]?(?P<comm>.+?)['\"]?(?: with signal (?P<signal>\d+))?, pid:? (?P<pid>\d+)"
    r"|killing process (?P<pid2>\d+) \"(?P<comm2>.*?)\" with signal (?P<signal2>\d+))"
    r"(?:.*\bVmRSS:? (?P<rss>\d+) MiB)?"
)
"""Up to version 1.2."""
_EXITED = re.compile(r"process (?:\d+ )?exited after (\d+(?:[.,]\d+)?) seconds")
_ESCALATING = re.compile(r"escalating to (SIG[A-Z]+) after (\d+(?:[.,]\d+)?) seconds")
_KILL_FAILED = re.compile(r"(?:kill failed|error: could not kill process|process (?:\d+ )?did not exit)\b[: ]*(.*)")
_THRESHOLDS = re.compile(r"sending (SIG[A-Z]+) when mem\b")
_TOTALS = re.compile(r"mem total:\s*(\d+) MiB, user mem total:\s*(\d+) MiB")
_DRY = re.compile(r"dryrun\b.*(?:not actually sending|no signal)|dry ?run mode")
_DRY_REASON = "a dry run: no signal was sent"
_ACTS = re.compile(r"low memory! at or below|[Ss]ending SIG\w+ to|[Kk]illing process", re.IGNORECASE)
_OOMD = re.compile(r"(Killed|Marked) (\S*[/.]\S*)(?: for killing)? due to (.+)")
_OOMD_PRESSURE = re.compile(r"memory pressure for (\S+) being ([\d.]+%) > ([\d.]+%)(?: for > (\S+))?")
_OOMD_BEFORE_249 = re.compile(
    r"Memory pressure for (\S+) is greater than (\d+) for more than (\d+) seconds and there was reclaim activity"
    r"|Swap used \([^()]{0,40}\) (?:/ total \([^()]{0,40}\) )?is more than \S+"
)
_OOMD_FAILED = re.compile(
    r"Failed to kill (?:any )?(?:cgroup\(s\)|cgroup\S*|\S+)(?: under)?(?: (/\S*))?(?: based on (\w+))?[^:]*: (.+)"
)
_OOMD_UNIT = re.compile(r"(\S+): systemd-oomd killed (\d+|some) process\(es\) in this unit")
_UNIT_OOM = re.compile(r"(\S+): A process of this unit has been killed by the OOM killer")
_UNIT_EXIT = re.compile(r"(\S+): Main process exited, code=(?:killed|dumped), status=(\d+)/(\w+)")
_UNIT_RESULT = re.compile(r"(\S+): Failed with result '(oom-kill|watchdog|timeout|signal)'")
_RAY = re.compile(r"(\d+) worker\(s\) were killed due to the node running low on memory")
_RAY_NODE = re.compile(
    r"Memory on the node \([^)]*\)(?: where .*?)? was ([\d.]+ ?[GM]i?B) / ([\d.]+ ?[GM]i?B) \((\d+(?:\.\d+)?)\)"
)
_RAYLET = re.compile(r"\b([1-9]\d*) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)")
_DOCKER_FORCE = re.compile(
    r"[Cc]ontainer (?P<id>[0-9a-f]{12,64})? ?failed to exit within (?P<grace>\S+?)(?: seconds)? "
    r"of signal (?P<signal>\d+) ?- ?using the force"
)
_CONTAINER = re.compile(r"\bcontainer=\"?([0-9a-f]{12,64})")
_DOCKER_EVENT = re.compile(r"container (kill|oom) ([0-9a-f]{12,64}) \((.*)\)")
_EVENT_NAME = re.compile(r"\bname=([^,)]+)")
_EVENT_SIGNAL = re.compile(r"\bsignal=(\w+)")
_TASK_OOM = re.compile(r"TaskOOM event.*?container_id:\\?\"?([0-9a-f]{12,64})")
_GUARDIAN = re.compile(r"oom|guard|nohang|bustd|memwatch", re.IGNORECASE)
_GENERIC = re.compile(r"\b(SIGKILL|SIGTERM)\b(?! (?:when|if|at|limit))")
_GENERIC_PID = re.compile(r"\b(?:pid|process|PID)\b[ =:#]*(\d+)(?:[ ,]+[\"'(]([^\"')]{1,64})[\"')])?")
_SIGNALS = {"9": "SIGKILL", "15": "SIGTERM", "KILL": "SIGKILL", "TERM": "SIGTERM"}


def _float(text: str) -> float:
    return float(text.replace(",", "."))


@dataclass
class _OomdKill:
    """A kill by systemd-oomd, of which it tells itself, and so does the manager of the unit."""

    line: Line
    number: int | None
    unit: str
    by_oomd: bool = False
    by_manager: bool = False
    is_marked: bool = False
    processes: int | None = None


def _is_unit_of(unit: str, cgroup: str) -> bool:
    """Say whether a unit's name ends the path of a cgroup, of which somebody may have left out the middle."""
    _before, shortened, end = cgroup.rpartition("…")
    return end.endswith(unit[-MIN_UNIT_CHARACTERS:]) if shortened else f"/{cgroup}".endswith(f"/{unit}")


class Userspace:
    """Reads programs' lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._samples = Samples(sink, "earlyoom", is_regular=False)
        self._low = 0
        self._totals: set[int] = set()
        self._idle: tuple[Line, dict[str, Any]] | None = None
        """A report of little memory, as long as nothing has followed it."""
        self._dry = False
        self._last: tuple[Line, int | None] | None = None
        """The last kill by earlyoom, to which what follows belongs."""
        self._oomd: deque[_OomdKill] = deque(maxlen=MAX_OOMD_KILLS)

    def read(self, line: Line) -> bool:
        """Take a line that a known program wrote, or that can only be one of its."""
        if line.program == "kernel":
            return False
        readers = (
            self._sample,
            self._earlyoom,
            self._systemd_oomd,
            self._systemd,
            self._ray,
            self._docker,
            self._generic,
        )
        return any(read(line) for read in readers)

    def close(self) -> None:
        """Say what the samples show."""
        self._was_idle()
        self._samples.close()

    def _kill(self, line: Line, killer: str, victim: Target, **fields: Any) -> int | None:  # noqa: ANN401
        if killer == "earlyoom" and self._dry:
            fields |= {"outcome": "failed", "reason": _DRY_REASON}
        return self._sink.add(UserspaceKill(**self._sink.common(line), killer=killer, victim=victim, **fields))

    # earlyoom

    def _sample(self, line: Line) -> bool:
        match = _AVAILABLE.match(line.text)
        if not match or line.program not in (None, "earlyoom"):
            return False
        available, total = int(match[1]), int(match[2])
        percent, swap_percent = _float(match[3]), _float(match[4])
        self._samples.take(Sample(line, available_gib=available / KIB_PER_MIB))
        self._denominator(line, total)
        self._was_idle()
        if percent <= LOW_PERCENT and swap_percent > FREE_SWAP_PERCENT:
            self._idle = line, {
                "available_mib": available, "total_mib": total, "percent": percent, "swap_free_percent": swap_percent,
            }  # fmt: skip
        return True

    def _was_idle(self) -> None:
        """Say that earlyoom did nothing, where no act followed a report of so little memory."""
        idle, self._idle = self._idle, None
        if idle is None or self._low >= MAX_LOW_NOTES:
            return
        self._low += 1
        line, facts = idle
        self._sink.note(
            line, "low_and_idle",
            f"earlyoom saw {facts['available_mib']} of {facts['total_mib']} MiB available ({facts['percent']:g} %) and "
            f"did nothing: {facts['swap_free_percent']:g} % of swap was free, and it acts only when both are low",
            **facts,
        )  # fmt: skip

    def _user_total(self, line: Line, total: int, user: int) -> None:
        self._sink.note(
            line, "moving_total",
            f"earlyoom counts in percent of {user} MiB (MemAvailable + AnonPages), not of {total}: since version 1.8; "
            f"5 % of it is {user // 20} MiB, and what a driver holds is in neither",
            total_mib=total, user_total_mib=user,
        )  # fmt: skip
        self._totals |= {total, user}

    def _denominator(self, line: Line, total: int) -> None:
        """Say once that the total moves: since 1.8 it is MemAvailable + AnonPages, without what a driver holds."""
        if len(self._totals) == 1 and total not in self._totals:
            self._sink.note(
                line, "moving_total",
                f"earlyoom's total moves ({min(self._totals)}, {total} MiB): version 1.8 or later, whose percentages "
                "are of MemAvailable + AnonPages; with 100 GiB held by a driver, 5 % of it is 0.1 to 0.2 GiB",
            )  # fmt: skip
        if len(self._totals) < 2:  # noqa: PLR2004
            self._totals.add(total)

    def _earlyoom(self, line: Line) -> bool:
        if line.program not in (None, "earlyoom"):
            return False
        text = line.text
        if self._idle and _ACTS.match(text):
            self._idle = None
        if _THRESHOLDS.match(text):
            self._sink.note(line, "setting", f"earlyoom: {text.strip()}")
        elif match := _TOTALS.match(text):
            self._user_total(line, int(match[1]), int(match[2]))
        elif _DRY.match(text):
            self._dry = True
            if self._last:
                self._sink.amend(self._last[1], outcome="failed", reason=_DRY_REASON)
        elif match := _SENDING.match(text):
            rss = int(match[6]) * KIB_PER_MIB if match[6] else None
            victim = Target(int(match[2]), match[4], int(match[3]) if match[3] else None, None, rss, int(match[5]))
            self._last = line, self._kill(line, "earlyoom", victim, signal=match[1])
        elif match := _SENDING_SHORT.match(text):
            self._last = line, self._kill(line, "earlyoom", Target(int(match[2])), signal=match[1])
        elif match := _KILLING.match(text):
            pid, comm, signal = (match[name] or match[f"{name}2"] for name in ("pid", "comm", "signal"))
            rss_kib = int(match["rss"]) * KIB_PER_MIB if match["rss"] else None
            victim = Target(int(pid), comm, rss_kib=rss_kib)
            self._last = line, self._kill(line, "earlyoom", victim, signal=_SIGNALS.get(signal or ""))
        else:
            return self._became(line)
        return True

    def _became(self, line: Line) -> bool:
        """Take what became of the last victim."""
        changes: dict[str, Any]
        if match := _EXITED.match(line.text):
            changes = {"outcome": "exited", "took_s": _float(match[1])}
        elif match := _ESCALATING.match(line.text):
            changes = {"signal": match[1], "took_s": _float(match[2])}
        elif match := _KILL_FAILED.match(line.text):
            changes = {"outcome": "failed", "reason": match[1] or match[0]}
        else:
            return False
        if self._last and within(self._last[0].stamp, line.stamp, FOLLOWS_S):
            self._sink.amend(self._last[1], **changes)
        else:
            self._last = line, self._kill(line, "earlyoom", Target(), **changes)
        return True

    # systemd

    def _systemd_oomd(self, line: Line) -> bool:
        if line.program not in (None, "systemd-oomd"):
            return False
        if match := _OOMD.match(line.text):
            self._oomd_kill(line, match[2], match[3], "killed" if match[1] == "Killed" else "unknown")
            if pressure := _OOMD_PRESSURE.match(match[3]):
                self._sink.note(
                    line, "pressure", f"{pressure[1]} was at {pressure[2]}, above the limit of {pressure[3]}"
                )
        elif _OOMD_BEFORE_249.match(line.text):
            self._sink.note(line, "pressure", f"systemd-oomd: {line.text}")
        elif line.program and (match := _OOMD_FAILED.match(line.text)):
            by = f"based on {match[2]}" if match[2] else None
            reason = ": ".join(part for part in (by, match[3]) if part)
            self._kill(line, "systemd-oomd", Target(unit=match[1]), reason=reason, outcome="failed")
        else:
            return False
        return True

    def _oomd_kills(self, line: Line) -> list["_OomdKill"]:
        """Return the kills that a line may be of, the oldest first."""
        return [kill for kill in self._oomd if within(kill.line.stamp, line.stamp, FOLLOWS_S)]

    def _oomd_kill(self, line: Line, unit: str, reason: str, outcome: str) -> None:
        """Keep a kill; since version 258 a cgroup is marked first, and then killed."""
        for kill in self._oomd_kills(line):
            if kill.is_marked and kill.unit == unit:
                kill.is_marked = False
                self._sink.amend(kill.number, outcome=outcome)
                return
            if kill.by_manager and not kill.by_oomd and unit.endswith(f"/{kill.unit}"):
                # the service manager was the first to say so
                kill.unit, kill.by_oomd, kill.is_marked = unit, True, outcome == "unknown"
                self._sink.amend(kill.number, victim=Target(unit=unit, processes=kill.processes), reason=reason)
                return
        target = Target(unit=unit)
        number = self._kill(line, "systemd-oomd", target, signal="SIGKILL", reason=reason, outcome=outcome)
        self._oomd.append(_OomdKill(line, number, unit, by_oomd=True, is_marked=outcome == "unknown"))

    def _systemd(self, line: Line) -> bool:
        if line.program not in (None, "systemd"):
            return False
        text = line.text
        if match := _OOMD_UNIT.match(text):
            self._oomd_unit(line, match[1], int(match[2]) if match[2].isdigit() else None)
        elif match := _UNIT_OOM.match(text):
            self._sink.note(
                line, "unit_result", f"{match[1]}: the kernel's OOM killer took a process of it", unit=match[1]
            )
        elif match := _UNIT_EXIT.match(text):
            self._sink.note(
                line,
                "unit_result",
                f"{match[1]}: its main process was killed by SIG{match[3]}",
                unit=match[1],
                signal=match[3],
            )
        elif match := _UNIT_RESULT.match(text):
            self._sink.note(
                line, "unit_result", f"{match[1]}: failed with result {match[2]}", unit=match[1], result=match[2]
            )
        else:
            return False
        return True

    def _oomd_unit(self, line: Line, unit: str, processes: int | None) -> None:
        """Put the number of processes to the kill of that cgroup; alone it is a kill of its own."""
        for kill in self._oomd_kills(line):
            if not kill.by_manager and _is_unit_of(unit, kill.unit):
                kill.by_manager = True
                self._sink.amend(kill.number, victim=Target(unit=kill.unit, processes=processes), outcome="killed")
                return
        victim = Target(unit=unit, processes=processes)
        number = self._kill(line, "systemd-oomd", victim, signal="SIGKILL", outcome="killed")
        self._oomd.append(_OomdKill(line, number, unit, by_manager=True, processes=processes))

    # Ray, Docker, others

    def _ray(self, line: Line) -> bool:
        match = _RAY.search(line.text) or _RAYLET.search(line.text)
        if not match:
            return False
        node = _RAY_NODE.search(line.text)
        reason = (
            f"memory on the node {node[1]} of {node[2]} ({float(node[3]):.1%})"
            if node
            else "the node ran low on memory"
        )
        self._kill(line, "ray", Target(processes=int(match[1])), reason=reason, outcome="killed")
        return True

    def _docker(self, line: Line) -> bool:
        text = line.text
        if match := _DOCKER_FORCE.search(text):
            container = match["id"] or (m[1] if (m := _CONTAINER.search(text)) else None)
            reason = f"it did not exit within {match['grace']} of signal {match['signal']}"
            self._kill(line, "dockerd", Target(unit=container), signal="SIGKILL", reason=reason, outcome="killed")
        elif match := _DOCKER_EVENT.match(text):
            name, signal = _EVENT_NAME.search(match[3]), _EVENT_SIGNAL.search(match[3])
            unit = name[1] if name else match[2]
            if match[1] == "kill":
                self._kill(
                    line, "docker", Target(unit=unit), signal=_SIGNALS.get(signal[1], signal[1]) if signal else None
                )
            else:
                self._sink.note(line, "container_oom", f"container {unit} reached its memory limit", unit=unit)
        elif match := _TASK_OOM.search(text):
            self._sink.note(
                line, "container_oom", f"containerd: container {match[1][:12]} had an OOM kill", unit=match[1]
            )
        else:
            return False
        return True

    def _generic(self, line: Line) -> bool:
        """Take a kill by any other program whose name says what it is for."""
        if not line.program or not _GUARDIAN.search(line.program) or line.program in ("earlyoom", "systemd-oomd"):
            return False
        signal = _GENERIC.search(line.text)
        if not signal:
            return False
        who = _GENERIC_PID.search(line.text)
        victim = Target(int(who[1]), who[2]) if who else Target()
        self._kill(line, line.program, victim, signal=signal[1], reason=line.text[:200])
        return True
