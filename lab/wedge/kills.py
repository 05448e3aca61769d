"""Who was killed, and by whom, out of the logs of a machine. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

KERNEL = re.compile(r"ut of memory: Killed process (?P<pid>\d+) \((?P<name>.*)\) total-vm:")
"""Of the machine's memory, or of a cgroup's."""
EARLYOOM = re.compile(r"sending (?P<signal>SIGTERM|SIGKILL) to process (?P<pid>\d+) (?:uid \d+ )?\"(?P<name>.*?)\":")
OOMD = re.compile(r"Killed (?P<cgroup>/\S+) due to (?P<reason>memory pressure|memory used|swap used)")
ENDED = re.compile(r"(?P<unit>\S+): Main process exited, code=killed, status=\d+/(?P<signal>\w+)")
TOLD = "signal"
"""What a kill is said to be by where only its signal is known."""
GONE_WRONG = re.compile(r"NVRM: |Out of memory|out of memory|oom-kill|blocked for more than|soft lockup|hung_task")
"""Lines of the kernel that tell of an incident."""


class Kill(NamedTuple):
    """One process or cgroup that was killed; `by` is `kernel`, `earlyoom`, `systemd-oomd`, `plimsoll` or `signal NAME`.

    `pid` is 0 where a whole cgroup was killed, or the log does not say which process it was.
    """

    pid: int
    name: str
    by: str


def by_kernel(lines: Iterable[str]) -> Iterator[Kill]:
    """Yield whom the OOM killer shot, by the kernel's log."""
    for line in lines:
        if match := KERNEL.search(line):
            yield Kill(int(match["pid"]), match["name"], "kernel")


def by_others(messages: Iterable[tuple[str, str]]) -> Iterator[Kill]:
    """Yield whom anybody else killed, from (identifier, message) of the journal."""
    for identifier, message in messages:
        if identifier == "earlyoom" and (match := EARLYOOM.search(message)):
            yield Kill(int(match["pid"]), match["name"], "earlyoom")
        elif identifier == "systemd-oomd" and (match := OOMD.search(message)):
            yield Kill(0, match["cgroup"].rpartition("/")[2], "systemd-oomd")
        elif identifier == "systemd" and (match := ENDED.search(message)):
            yield Kill(0, match["unit"], f"{TOLD} {match['signal']}")


def by_guard(lines: Iterable[str]) -> Iterator[Kill]:
    """Yield whom Plimsoll's guard has sent a signal, by its own log; a line that was cut off is none."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("kind") == "signalled" and (victim := record.get("victim")):
            cgroup = victim["cgroup"].rpartition("/")[2]
            pids = [process["pid"] for process in victim["processes"]]
            whole = victim["whole_cgroup"] and cgroup
            yield Kill(0 if whole else pids[0] if pids else 0, cgroup if whole else victim["name"], "plimsoll")


def collected(
    kernel: Iterable[str],
    messages: Iterable[tuple[str, str]],
    guard: Iterable[str],
    is_engine: Callable[[Kill], bool],
) -> list[Kill]:
    """Return each kill once; a second signal to the same process is no second kill.

    systemd tells of the end of a unit's main process, whoever killed it: that counts where nobody else's word on
    it is there.
    """
    found: dict[tuple[str, int | str], Kill] = {}
    for kill in (*by_kernel(kernel), *by_others(messages), *by_guard(guard)):
        found.setdefault((kill.by, kill.pid or kill.name), kill)
    direct = [kill for kill in found.values() if not kill.by.startswith(TOLD)]
    known = {is_engine(kill) for kill in direct}
    return direct + [kill for kill in found.values() if kill.by.startswith(TOLD) and is_engine(kill) not in known]


def is_engine(kill: Kill, comms: Sequence[str], cgroup: str) -> bool:
    """Say whether a kill hit the workload that the bench had started: by process name, or by its cgroup's pattern."""
    return kill.name in comms or re.fullmatch(cgroup, kill.name) is not None


def count_incidents(lines: Iterable[str]) -> int:
    """Count the kernel's lines that tell of an incident."""
    return sum(1 for line in lines if GONE_WRONG.search(line))
