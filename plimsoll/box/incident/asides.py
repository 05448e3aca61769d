"""What others say beside the events: refused allocations, lost messages, a manager's word of an OOM kill, exit 137."""

import re
from typing import NamedTuple

from plimsoll.box.incident.model import Line
from plimsoll.box.incident.sink import Sink

MAX_NOTES = 100


class _Aside(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    text: str
    """With the groups of the pattern."""
    of_kernel: bool


_ASIDES = (
    _Aside(
        "allocation_failure",
        re.compile(
            r"(?:warn_alloc: )?(?P<who>.{1,40}?): page allocation failure(?:: |\. )order:(?P<order>\d+), mode:\S+"
        ),
        "the kernel could not give {who} a block of order {order}: memory was short or in pieces",
        of_kernel=True,
    ),
    _Aside(
        "allocation_stall",
        re.compile(r"(?P<who>.{1,40}?): page allocation stalls for (?P<ms>\d+)ms"),
        "{who} waited {ms} ms for memory",
        of_kernel=True,
    ),
    _Aside(
        "journal_pressure",
        re.compile(r"Under memory pressure, flushing caches"),
        "journald dropped its caches under memory pressure",
        of_kernel=False,
    ),
    _Aside(
        "journal_lost",
        re.compile(r"Missed (?P<count>\d+) kernel messages"),
        "the journal lost {count} messages of the kernel: kern.log may have them",
        of_kernel=False,
    ),
    _Aside(
        "reported_oom",
        re.compile(r".*\bOOM encountered, victim process: (?P<comm>[^,]+), pid: (?P<pid>\d+)"),
        "a manager reports that the kernel's OOM killer took {comm} ({pid})",
        of_kernel=False,
    ),
    _Aside(
        "container_oom",
        re.compile(r".*\bOOMKilled[\"']?\s*[:=]\s*[\"']?true\b|.*\b(?:Reason|reason)[\"']?\s*[:=]\s*[\"']?OOMKilled\b"),
        "a container's state says that the OOM killer took it",
        of_kernel=False,
    ),
    _Aside(
        "exit_137",
        re.compile(r".*\b[Ee]xit(?:ed)?[ _]?(?:with )?(?:[Cc]ode|[Ss]tatus)?[\"']?[ :=]*\(?137\b"),
        "something ended with 137: by SIGKILL, whoever sent it",
        of_kernel=False,
    ),
    _Aside(
        "gpu_allocation",
        re.compile(r".*\b(?:CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation)\b"),
        "a program was refused GPU memory and said so itself",
        of_kernel=False,
    ),
)


class Asides:
    """Reads such lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._noted = 0

    def read(self, line: Line) -> bool:
        """Take a line of one of these forms."""
        for aside in _ASIDES:
            theirs = line.may_be_kernel if aside.of_kernel else line.program != "kernel"
            match = aside.pattern.match(line.text) if theirs else None
            if match:
                self._noted += 1
                if self._noted <= MAX_NOTES:
                    self._sink.note(line, aside.kind, aside.text.format(**match.groupdict()), **match.groupdict())
                return True
        return False
