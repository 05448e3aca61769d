"""The guard's records: what it did is a kill, why it did or did not is a note. From its file, the journal, kern.log."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from plimsoll.box.incident.model import Line, Target, UserspaceKill
from plimsoll.box.incident.sink import Sink, within

PROGRAMS = frozenset({"plimsoll", "plimsoll-guard"})
SAME_ACT_S = 30.0
"""Decision, signal and recovery of one victim; it gives up on one after 20 s."""
SIGNALS = {"term": "SIGTERM", "kill": "SIGKILL"}
_SAID = re.compile(
    r"(?:plimsoll-guard: )?(floor|rate|slow|stall): (would, if it were armed: )?"
    r"(term|kill|reclaim|nobody)\b ?(.*?): (.*)"
)
MAX_TOLD = 400


class GuardLog:
    """Reads the guard's records, in JSON or as it says them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._last: tuple[Line, str, int | None] | None = None
        """The last act, with the victim's name."""
        self._told = 0

    def read(self, line: Line) -> bool:
        """Take a line of the guard's."""
        if line.program not in PROGRAMS and not line.text.startswith("plimsoll-guard: "):
            return False
        if line.text.startswith("{"):
            return self._record(line)
        match = _SAID.match(line.text)
        if match and match[3] in SIGNALS and not match[2]:
            self._act(line, match[4], Target(unit=match[4]), SIGNALS[match[3]], f"{match[1]}: {match[5]}", "unknown")
        elif match or line.program in PROGRAMS:
            self._note(line, line.text, {})
        return True

    def _record(self, line: Line) -> bool:
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(record, dict):
            return False
        victim = record.get("victim")
        name = str(victim.get("name")) if isinstance(victim, dict) else None
        signal = SIGNALS.get(str(record.get("verb")))
        if name and signal and record.get("armed"):
            outcome = "killed" if record.get("kind") == "signalled" else "unknown"
            reason = f"{record.get('rule')}: {record.get('reason')}"
            self._act(line, name, _target(name, victim or {}), signal, reason, outcome)
        elif name and record.get("kind") == "recovered":
            self._recovered(line, name, record)
        else:
            self._note(line, str(record.get("text") or record.get("kind")), record)
        return True

    def _act(self, line: Line, name: str, victim: Target, signal: str, reason: str, outcome: str) -> None:
        """Keep a kill, or what more is known of the last one."""
        last = self._last
        if last and last[1] == name and within(last[0].stamp, line.stamp, SAME_ACT_S):
            self._sink.amend(last[2], signal=signal, **({"outcome": outcome} if outcome != "unknown" else {}))
            return
        common = self._sink.common(line)
        kill = UserspaceKill(
            **common, killer="plimsoll", victim=victim, signal=signal, reason=reason, outcome=outcome
        )  # fmt: skip
        self._last = line, name, self._sink.add(kill)

    def _recovered(self, line: Line, name: str, record: Mapping[str, Any]) -> None:
        took_s = record.get("recovered_after_s")
        if self._last and self._last[1] == name and isinstance(took_s, int | float) and math.isfinite(took_s):
            self._sink.amend(self._last[2], outcome="exited", took_s=float(took_s))
        self._note(line, str(record.get("text") or "the victim's memory is back"), record)

    def _note(self, line: Line, text: str, record: Mapping[str, Any]) -> None:
        self._told += 1
        if self._told <= MAX_TOLD:
            facts = {key: record[key] for key in ("rule", "verb", "armed") if key in record}
            self._sink.note(line, "guard", f"the guard: {text}", record=record.get("kind"), **facts)


def _target(name: str, victim: Mapping[str, Any]) -> Target:
    held = victim.get("attributed_kib") or victim.get("resident_kib")
    count = victim.get("processes_count")
    return Target(
        unit=name, rss_kib=held if isinstance(held, int) else None, processes=count if isinstance(count, int) else None
    )
