"""Runs as the bench records them: of a machine that froze, and of one that did not."""

import platform
import zlib
from typing import Any

from lab.wedge.case import Case
from lab.wedge.recording import Sample

START_S = 1_790_000_000.0
TOTAL_KIB = 1470 << 10


def sample(at_s: float, free_kib: int = 100 << 10, full_us: int = 0) -> Sample:
    """Return one sample."""
    return Sample(at_s, free_kib, 900 << 10, 50 << 10, 200 << 10, 512 << 10, 800 << 10, full_us, full_us)


def login(at_s: float, took_s: float = 2.0, *, ok: bool = True) -> dict[str, Any]:
    """Return one login."""
    return {"at_s": at_s, "took_s": took_s, "ok": ok}


def frozen_logins() -> list[dict[str, Any]]:
    """Return logins that hang from 13 s on."""
    return [login(at_s, *((2.1,) if at_s < 13 else (30.0,)), ok=at_s < 13) for at_s in range(0, 90, 2)]


def run(*, survived: bool = True, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of all types
    """Return a counted run."""
    case = Case("stock", "ramp", "C", "unit")
    made = {
        "defence": "stock",
        "scenario": "ramp",
        "regime": "C",
        "place": "unit",
        "index": 0,
        "seed": 0,
        "arch": platform.machine(),
        "fingerprint": "0123456789abcdef",
        "at": "2026-11-30T13:00:00+00:00",
        "discarded": "",
        "survived": survived,
        "idle_login_s": 1.9,
        "logins": [login(at_s) for at_s in range(0, 120, 2)] if survived else frozen_logins(),
        "recovery_s": 0.0 if survived else None,
        "killed": [],
        "bystanders_killed": [],
        "must_live": False,
        "lowest_mem_free_kib": 30 << 10,
        "load": {"foreign": 0.01, "stolen": 0.0},
        "logs": {
            "console_lines": 0 if survived else 920,
            "kern_log_lines": 0 if survived else 300,
            "journal_lines": 0 if survived else 12,
            "journal_ends_at_s": 120.0 if survived else 14.5,
            "problems": [],
        },
        "asked": [list(point) for point in case.plan().timeline()],
        "samples": [
            list(sample(t / 10, free_kib=max(30, 1200 - 10 * max(0, t)) << 10, full_us=max(0, t - 100) * 90_000))
            for t in range(-20, 1200)
        ],
        "machine": {
            "memory_kib": TOTAL_KIB,
            "versions": {"kernel": "6.12.1", "earlyoom": ""},
            "host": "x86_64, 2 cores",
        },
    }
    return {**made, **changes}


def recorded(ms: int, values: str) -> str:
    """Return a line of the recorder as the console has it."""
    body = f"lab-rec {ms} {values}"
    return f"{body} {zlib.crc32(body.encode()):08x}\r\n"
