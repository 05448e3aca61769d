"""The kernel's own account of memory in a report: Mem-Info, zones, free lists, cgroup figures, the table of tasks.

Kernels 3.10 to 6.18 and excerpts of any of it. Everything becomes KiB; the page's size is told from the free lists.
"""

import re

from plimsoll.box.incident.model import MemoryReport, Task

PAGE_KIB = 4
MAX_TASKS = 65_536
"""More rows than a kernel's default pid_max on small machines; what lies beyond is counted, not kept."""
KEPT_TASKS = 12
HIGH_ORDER = 9
"""2 MiB with pages of 4 KiB: what the driver asks for first."""
_PAGES = re.compile(r"\b([a-z_]+(?:\(\w+\))?):(\d+)(?![\dk])")
_LISTED = frozenset({
    "active_anon", "inactive_anon", "isolated_anon", "active_file", "inactive_file", "isolated_file", "unevictable",
    "free", "free_pcp", "slab_reclaimable", "slab_unreclaimable", "pagetables", "sec_pagetables",
    "kernel_misc_reclaimable", "bounce",
})  # fmt: skip
"""Counters that do not overlap: shmem and mapped are within the LRU lists, free_cma is within free."""
_KIB = re.compile(r"\b([a-z_]+(?:\(\w+\))?): ?(\d+)kB")
_ZONE = re.compile(r"(?:Node \d+ )?(\w+) free:(\d+)kB.*? min:(\d+)kB")
_NODE = re.compile(r"Node \d+ (?:active_anon:|hugepages_total=)")
_BUDDY = re.compile(r"(?:Node \d+ )?\w+: ((?:\d+\*\d+kB(?: \([A-Z]*\))? ?)+)")
_BLOCKS = re.compile(r"(\d+)\*(\d+)kB")
_SWAP = re.compile(r"(Free|Total) swap\s*= ?(\d+)kB(?:\s*/\s*(\d+)kB)?")
_COUNTED = re.compile(r"(\d+) pages (RAM|reserved)\b")
_HUGE = re.compile(r"hugepages_total=(\d+) .*hugepages_size=(\d+)kB")
_LIMIT = re.compile(r"(memory|swap|memory\+swap): usage (\d+)kB, limit (\d+)kB")
_HEADING = re.compile(r"\[\s*pid\s*\]\s+(uid\s.*)$")
_ROW = re.compile(r"\[\s*(\d+)\]\s+(\d.*)$")
UNLIMITED_KIB = 1 << 50
"""A cgroup without a limit shows 9007199254740988 kB."""
_BEGINS = re.compile(r"(?:Mem-Info:|active_anon:\d|(?:Free|Total) swap\s*=|\d+ pages RAM|Node \d+ \w+ free:)")


GB10_KIB = 127_506_842
"""121.6 GiB, what Linux calls MemTotal on a box sold with 128 GB."""


def describe(report: MemoryReport) -> str:
    """Return in words what a report shows: what the lists hold, what they do not, watermarks, swap."""
    parts = []
    if report.accounted_kib is not None:
        parts.append(_accounted(report, report.accounted_kib))
    if report.zone_below_min:
        parts.append(f"{report.zone_below_min}: below the reserve")
    if report.all_unreclaimable:
        parts.append("nothing could be reclaimed")
    if report.swap_total_kib and report.swap_free_kib is not None:
        parts.append(
            f"{100 * report.swap_free_kib / report.swap_total_kib:.0f} % of {size(report.swap_total_kib)} swap was free"
        )
    elif report.swap_total_kib == 0 or (report.swap_free_kib == 0 and report.swap_total_kib is None):
        parts.append("no swap was free, or there was none")
    if report.limit_kib is not None and report.usage_kib is not None:
        parts.append(f"the cgroup used {size(report.usage_kib)} of its limit of {size(report.limit_kib)}")
    if report.orders_free and not any(count for order, count in report.orders_free.items() if order >= HIGH_ORDER):
        parts.append("no free block of 2 MiB or more was left")
    return "; ".join(parts)


def _accounted(report: MemoryReport, accounted_kib: int) -> str:
    if report.residual_kib is not None and report.total_kib:
        share = 100 * report.residual_kib / report.total_kib
        return (
            f"all lists and counters hold {size(accounted_kib)} of {size(report.total_kib)}; "
            f"{size(report.residual_kib)} ({share:.0f} %) are in none: a driver's, or in use by the kernel itself"
        )
    if "active_anon" not in report.lists_kib:
        return f"the lists in this excerpt hold {size(accounted_kib)}"
    rest = size(max(0, GB10_KIB - accounted_kib))
    return (
        f"all lists and counters hold {size(accounted_kib)}; the total is not in this excerpt "
        f"(of the 121.6 GiB of a GB10, {rest} would be in none: held by a driver)"
    )


def size(kib: float) -> str:
    """Return a size for people: MiB below one GiB."""
    return f"{kib / (1 << 20):.1f} GiB" if abs(kib) >= 1 << 20 else f"{kib / 1024:.0f} MiB"


def begins(text: str) -> bool:
    """Say whether a line is of a memory report, wherever it is cut."""
    return bool(_BEGINS.match(text))


class Account:
    """Collects the figures of one report."""

    def __init__(self) -> None:
        self._page_kib: int | None = None
        self._pages: dict[str, int] = {}
        self._kib: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._managed_kib = 0
        self._swap: dict[str, int] = {}
        self._limits: dict[str, tuple[int, int]] = {}
        self._below_min: str | None = None
        self._unreclaimable = False
        self._orders: dict[int, int] = {}
        self._columns: list[str] = []
        self._rows: list[tuple[int, list[str]]] = []
        self.rows = 0

    def read(self, text: str) -> bool:
        """Take a line of the report; False for anything else."""
        readers = (self._row, self._heading, self._counts, self._node, self._buddy, self._totals, self._limit)
        return any(read(text) for read in readers)

    def _heading(self, text: str) -> bool:
        match = _HEADING.match(text)
        if match:
            # a table that begins anew, with other columns, is another report's
            self._columns, self._rows = match[1].split(), []
        return bool(match)

    def _row(self, text: str) -> bool:
        match = _ROW.match(text) if self._columns else None
        if not match:
            return False
        values = match[2].split(None, len(self._columns) - 1)
        self.rows += 1
        if len(values) == len(self._columns) and self.rows <= MAX_TASKS:
            self._rows.append((int(match[1]), values))
        return True

    def _counts(self, text: str) -> bool:
        if text.startswith("Node ") or "kB" in text.partition("Free swap")[0]:
            return False
        # a stack has no colon, and is the longest part of many reports
        found = {name: int(value) for name, value in _PAGES.findall(text) if name in _LISTED} if ":" in text else {}
        self._pages |= found
        self._totals(text)
        return bool(found)

    def _node(self, text: str) -> bool:
        zone = _ZONE.match(text)
        if not zone and not _NODE.match(text):
            return False
        figures = {name: int(value) for name, value in _KIB.findall(text)}
        if zone and int(zone[2]) < int(zone[3]) and self._below_min is None:
            self._below_min = f"{zone[1]}: free {zone[2]} kB, min {zone[3]} kB"
        self._unreclaimable |= bool(re.search(r"all_unreclaimable(?:\? yes|\s*$)", text))
        self._managed_kib += figures.get("managed", 0)
        self._kib["kernel_stack"] = self._kib.get("kernel_stack", 0) + figures.get("kernel_stack", 0)
        if huge := _HUGE.search(text):
            self._kib["hugetlb"] = self._kib.get("hugetlb", 0) + int(huge[1]) * int(huge[2])
        return True

    def _buddy(self, text: str) -> bool:
        match = _BUDDY.match(text)
        if not match:
            return False
        blocks = [(int(count), int(size)) for count, size in _BLOCKS.findall(match[1])]
        self._page_kib = blocks[0][1] or PAGE_KIB
        for order, (count, _size) in enumerate(blocks):
            self._orders[order] = self._orders.get(order, 0) + count
        return True

    def _totals(self, text: str) -> bool:
        swaps = _SWAP.findall(text) if "swap" in text else []
        counts = _COUNTED.findall(text) if " pages " in text else []
        for name, value, total in swaps:
            self._swap[name] = int(value)
            if total:
                self._swap["Total"] = int(total)
        self._counted |= {name: int(value) for value, name in counts}
        return bool(swaps or counts)

    def _limit(self, text: str) -> bool:
        match = _LIMIT.match(text)
        if match:
            self._limits[match[1]] = (int(match[2]), int(match[3]))
        return bool(match)

    @property
    def page_kib(self) -> int:
        """The size of a page; 4 where the report does not show it."""
        return self._page_kib or PAGE_KIB

    def report(self) -> MemoryReport | None:
        """Return what was collected; None where there was nothing."""
        if not (self._pages or self._kib or self._counted or self._swap or self._limits):
            return None
        listed = {name: count * self.page_kib for name, count in self._pages.items()}
        listed |= {name: kib for name, kib in self._kib.items() if kib}
        usage, limit = self._limits.get("memory", (None, None))
        swap_limit = self._limits.get("swap", (None, None))[1]
        return MemoryReport(
            page_kib=self.page_kib,
            total_kib=self._total_kib(),
            lists_kib=listed,
            swap_total_kib=self._swap.get("Total"),
            swap_free_kib=self._swap.get("Free"),
            zone_below_min=self._below_min,
            all_unreclaimable=self._unreclaimable,
            orders_free=self._orders,
            limit_kib=limit if limit is None or limit < UNLIMITED_KIB else None,
            usage_kib=usage,
            swap_limit_kib=swap_limit if swap_limit is None or swap_limit < UNLIMITED_KIB else None,
        )

    def _total_kib(self) -> int | None:
        """Return what the kernel manages: all pages less those reserved, or else the sum of the zones."""
        if "RAM" in self._counted:
            return (self._counted["RAM"] - self._counted.get("reserved", 0)) * self.page_kib
        return self._managed_kib or None

    def tasks(self) -> list[Task]:
        """Return the rows of the table; a row that is torn is left out."""
        found = (self._task(pid, dict(zip(self._columns, values, strict=True))) for pid, values in self._rows)
        return [task for task in found if task]

    def _task(self, pid: int, row: dict[str, str]) -> Task | None:
        try:
            tables = int(row.get("nr_ptes", 0)) + int(row.get("nr_pmds", 0)) + int(row.get("nr_puds", 0))
            if "pgtables_bytes" in row:
                tables = int(row["pgtables_bytes"]) // (self.page_kib << 10)
            kinds = [int(row[key]) if key in row else None for key in ("rss_anon", "rss_file", "rss_shmem")]
            adj = row.get("oom_score_adj", row.get("oom_adj", "0"))
            return Task(
                pid, int(row["uid"]), row["name"], int(row["total_vm"]), int(row["rss"]), tables,
                int(row.get("swapents", 0)), int(adj), *kinds,
            )  # fmt: skip
        except (ValueError, KeyError):
            return None
