"""The recording: one line a second of memory and stalls as CSV, and what reads it again after a reset.

67 bytes a second are 80 MB a fortnight. What it begins with after every opening says the boot and MemTotal, because
the monotonic clock begins anew with a boot, and lines are scaled to MemTotal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from plimsoll.box import memory
from plimsoll.box.guard.logfile import LogFile
from plimsoll.box.guard.model import Sample
from plimsoll.box.guard.sampler import Slow
from plimsoll.box.host import Host

PATH = "/var/log/plimsoll/memory.csv"
COLUMNS = (
    "unix_s", "at_s", "available_kib", "free_kib", "full_percent", "some_percent", "swap_free_mib", "anon_mib",
    "shmem_mib", "oom_kills", "regime", "fork_ms", "sshd_ms",
)  # fmt: skip
HEADER = ",".join(COLUMNS)
GAP_S = 60.0
"""A second without a sample is a late one; a minute is a time of which nothing is known."""
_KIB_PER_MIB = 1 << 10
_BOOT = re.compile(r"# plimsoll\.recording/1 boot=(\S+) mem_total_kib=(\d+|unknown)\s*")
_REGIMES = frozenset("ABC")


class Row(NamedTuple):
    """One line; what is unknown is None."""

    boot: str
    unix_s: float
    at_s: float
    available_kib: int | None
    free_kib: int | None
    full_percent: float | None
    some_percent: float | None = None
    swap_free_mib: int | None = None
    anon_mib: int | None = None
    shmem_mib: int | None = None
    oom_kills: int | None = None
    regime: str = "unknown"
    fork_ms: float | None = None
    sshd_ms: float | None = None


class Reached(NamedTuple):
    """How long it took to run a small program, and to be greeted by sshd; None where it was not tried or failed."""

    fork_ms: float | None = None
    sshd_ms: float | None = None


NOT_TRIED = Reached()


def line(unix_s: float, sample: Sample, slow: Slow, reached: Reached = NOT_TRIED) -> str:
    """Return one line, without its newline."""
    cells = (
        f"{unix_s:.0f}",
        f"{sample.at_s:.2f}",
        _shown(sample.available_kib),
        _shown(sample.free_kib),
        _percent(sample.full_percent),
        _percent(slow.some_percent),
        _mib(slow.swap_free_kib),
        _mib(slow.anon_kib),
        _mib(slow.shmem_kib),
        _shown(slow.oom_kills),
        sample.regime if sample.regime in _REGIMES else "",
        "" if reached.fork_ms is None else f"{reached.fork_ms:.1f}",
        "" if reached.sshd_ms is None else f"{reached.sshd_ms:.1f}",
    )
    return ",".join(cells)


def _shown(figure: int | None) -> str:
    return "" if figure is None else str(figure)


def _percent(figure: float | None) -> str:
    return "" if figure is None else f"{round(figure, 2):g}"


def _mib(kib: int | None) -> str:
    return "" if kib is None else str(kib // _KIB_PER_MIB)


class Recording:
    """Appends to the recording of this boot. What it does may block as long as the disk does."""

    def __init__(self, host: Host, max_bytes: int) -> None:
        boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id") or "unknown"
        total = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "").get("MemTotal", "unknown")
        heading = f"# plimsoll.recording/1 boot={boot_id} mem_total_kib={total}\n{HEADER}\n"
        self._file = LogFile(host, PATH, max_bytes, heading.encode())

    def write(self, unix_s: float, sample: Sample, slow: Slow, reached: Reached = NOT_TRIED) -> None:
        """Append a line; raises OSError. It is not waited for until it is on disk: a reset costs some seconds of it."""
        self._file.append(f"{line(unix_s, sample, slow, reached)}\n".encode())


# --- reading it again -------------------------------------------------------------------------------


class Reader:
    """Reads a recording line by line; afterwards `unreadable` and `mem_total_kib` say what else there was."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self._boot = "unknown"
        self._form = _form(HEADER)
        self.mem_total_kib: int | None = None
        """MemTotal of the machine that it was recorded on."""
        self.unreadable = 0
        """Lines that are torn, or zeros after a hard reset, or something else."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows; a line that is none is left out and counted."""
        for raw in self._lines:
            text = raw.replace("\0", "").strip()
            found = self._form.fullmatch(text)
            if found is not None:
                yield _row(self._boot, found.groupdict())
            elif raw.strip() and not self._is_heading(text):
                self.unreadable += 1

    def _is_heading(self, text: str) -> bool:
        if begun := _BOOT.fullmatch(text):
            self._boot = begun[1]
            self.mem_total_kib = int(begun[2]) if begun[2].isdigit() else self.mem_total_kib
            return True
        if text.startswith("unix_s,at_s,"):
            # another version may write other columns
            self._form = _form(text)
            return True
        return False


def _form(header: str) -> re.Pattern[str]:
    """Return what a line looks like below a header; one that was torn off has too few cells."""
    cells = (f"(?P<{name}>{_FORMS.get(name, _WHOLE)})" if name in COLUMNS else "[^,]*" for name in header.split(","))
    return re.compile(",".join(cells))


_WHOLE = "[0-9]{0,15}"
_PART = r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?)?"
_FORMS = {
    "unix_s": "[0-9]{1,15}",
    "at_s": r"[0-9]{1,12}\.[0-9]{2}",
    "regime": "[ABC]?",
    **dict.fromkeys(("full_percent", "some_percent", "fork_ms", "sshd_ms"), _PART),
}


def _row(boot: str, cells: Mapping[str, str]) -> Row:
    return Row(
        boot,
        float(cells["unix_s"]),
        float(cells["at_s"]),
        _whole(cells.get("available_kib")),
        _whole(cells.get("free_kib")),
        _part(cells.get("full_percent")),
        _part(cells.get("some_percent")),
        _whole(cells.get("swap_free_mib")),
        _whole(cells.get("anon_mib")),
        _whole(cells.get("shmem_mib")),
        _whole(cells.get("oom_kills")),
        cells.get("regime") or "unknown",
        _part(cells.get("fork_ms")),
        _part(cells.get("sshd_ms")),
    )


def _whole(cell: str | None) -> int | None:
    return int(cell) if cell else None


def _part(cell: str | None) -> float | None:
    return float(cell) if cell else None


def samples(rows: Iterable[Row]) -> Iterator[Sample]:
    """Yield the rows as samples on one clock, Unix time that is never set: each boot's own clock from where it began.

    A boot comes more than GAP_S after the one before it, so that nobody takes the two for one.
    """
    boot, offset_s, last_s = None, 0.0, float("-inf")
    for row in rows:
        if row.boot != boot or row.at_s + offset_s < last_s - GAP_S:
            boot = row.boot
            offset_s = max(row.unix_s, last_s + GAP_S + 1) - row.at_s
        last_s = row.at_s + offset_s
        yield Sample(last_s, row.available_kib, row.free_kib, row.full_percent, row.regime)
