"""Stands in for nvidia-smi on a GB10: no totals of memory, memory by process; it waits while the driver is stuck."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

PROCESSES = Path("/proc/driver/fakegb10/processes")
VERSION = Path("/proc/driver/nvidia/version")
NOT_AVAILABLE = "[N/A]"
INVALID_FIELD = 2
NO_DRIVER = 9
GPU_FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
)
APP_FIELDS = ("pid", "process_name", "used_gpu_memory")
ALIASES = {"used_memory": "used_gpu_memory", "gpu_name": "name"}
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "used_gpu_memory": "MiB"}
UNITS["utilization.gpu"] = "%"
Row = dict[str, str]


def gpu_row(banner: str) -> Row:
    """The one GPU, which has no memory of its own to tell of."""
    version = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", banner)
    known = {"index": "0", "name": "NVIDIA GB10", "driver_version": version[0] if version else NOT_AVAILABLE}
    return {field: known.get(field, NOT_AVAILABLE) for field in GPU_FIELDS}


def app_rows(processes: str) -> list[Row]:
    """Each process that has the device open, with its memory where the driver tells it."""
    rows = []
    for line in processes.splitlines():
        pid, *kib = line.split()
        used = str(int(kib[0]) // 1024) if kib else NOT_AVAILABLE
        rows.append({"pid": pid, "process_name": process_name(pid), "used_gpu_memory": used})
    return rows


def process_name(pid: str) -> str:
    """The program that a process runs, as it was called."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace") or "[Not Found]"
    except OSError:
        return "[Not Found]"


def chosen(text: str, known: Sequence[str]) -> list[str]:
    """The fields of a query. Raises ValueError naming the first that there is not."""
    fields = [ALIASES.get(field.strip(), field.strip()) for field in text.split(",")]
    for field in fields:
        if field not in known:
            raise ValueError(f'Field "{field}" is not a valid field to query.')
    return fields


def csv(fields: Sequence[str], rows: Sequence[Row], style: Sequence[str]) -> list[str]:
    """Lines of CSV; `style` may hold noheader and nounits."""
    units = {} if "nounits" in style else {field: UNITS[field] for field in fields if field in UNITS}
    header = ", ".join(f"{field} [{units[field]}]" if field in units else field for field in fields)
    lines = [", ".join(with_unit(row[field], units.get(field)) for field in fields) for row in rows]
    return lines if "noheader" in style else [header, *lines]


def with_unit(value: str, unit: str | None) -> str:
    """A figure with its unit; what is not available has none."""
    return f"{value} {unit}" if unit and value != NOT_AVAILABLE else value


def overview(gpu: Row, apps: Sequence[Row]) -> list[str]:
    """What it prints without a query."""
    lines = [f"NVIDIA-SMI {gpu['driver_version']}   {gpu['name']}   Memory-Usage: Not Supported"]
    return [*lines, *(f"{app['pid']:>10}  {app['used_gpu_memory']:>8} MiB  {app['process_name']}" for app in apps)]


def parser() -> argparse.ArgumentParser:
    """The part of the command line that is used on these boxes."""
    found = argparse.ArgumentParser(prog="nvidia-smi", description=__doc__)
    queries = found.add_mutually_exclusive_group()
    queries.add_argument("--query-gpu", metavar="FIELDS")
    queries.add_argument("--query-compute-apps", metavar="FIELDS")
    found.add_argument("--format", default="csv", help="csv[,noheader][,nounits]")
    return found


def main() -> int:
    """Answer one query; like the original it asks the driver first, and waits for it."""
    arguments = parser().parse_args()
    try:
        apps, gpu = app_rows(PROCESSES.read_text()), gpu_row(VERSION.read_text())
    except FileNotFoundError:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", file=sys.stderr)
        return NO_DRIVER
    style = [word.strip() for word in arguments.format.split(",")]
    try:
        if arguments.query_gpu:
            lines = csv(chosen(arguments.query_gpu, GPU_FIELDS), [gpu], style)
        elif arguments.query_compute_apps:
            lines = csv(chosen(arguments.query_compute_apps, APP_FIELDS), apps, style)
        else:
            lines = overview(gpu, apps)
    except ValueError as error:
        print(error, file=sys.stderr)
        return INVALID_FIELD
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
