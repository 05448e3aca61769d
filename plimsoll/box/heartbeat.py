"""What the guard says of itself, and the kernel of it: that a process is alive does not say that it works."""

import json
import time
from collections.abc import Mapping
from typing import Any

from plimsoll.box import memory
from plimsoll.box.host import Host
from plimsoll.box.model import State, Wanted
from plimsoll.box.observing import regular_text

STATUS = "/run/plimsoll/status.json"
"""Written by the guard every 2 s, whole or not at all; 0644."""
STATUS_SCHEMA = "plimsoll.status/1"
FRESH_S = 10.0
"""The guard samples every 100 ms and writes every 2 s; a wedged machine was seen to hold others up for longer."""
LOCKED, FRESH = "locked", "fresh"


def document(host: Host) -> dict[str, Any] | None:
    """Return the guard's last status; None where there is none. Raises OSError, and ValueError for what is not one."""
    try:
        found = json.loads(regular_text(host, STATUS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(found, dict) or found.get("schema") != STATUS_SCHEMA:
        raise ValueError(f"is not of the schema {STATUS_SCHEMA}")
    return found


def read(host: Host) -> dict[str, Any] | None:
    """Return `{pid, program_sha256, config_sha256, sample_age_s, locked_kib}`, None for no status, or `{error}`.

    `locked_kib` is the kernel's figure for that process; None where it is gone or cannot be looked at.
    """
    try:
        found = document(host)
        if found is None:
            return None
        guard = found["guard"]
        pid, sampled_s = int(guard["pid"]), float(guard["sampled_monotonic_s"])
        hashes = {name: str(guard[name]) for name in ("program_sha256", "config_sha256")}
    except OSError as error:
        return {"error": f"{STATUS}: {error.strerror or error}"}
    except (ValueError, TypeError, KeyError) as error:
        return {"error": f"{STATUS}: cannot be understood: {error}"}
    return {"pid": pid, **hashes, "sample_age_s": age_s(sampled_s), "locked_kib": memory.locked_kib(host, pid)}


def age_s(sampled_monotonic_s: float) -> float:
    """Return how long ago something was sampled, by the clock that nobody sets."""
    return round(time.clock_gettime(time.CLOCK_MONOTONIC) - sampled_monotonic_s, 3)


def compare(control: Wanted, said: Mapping[str, Any], state: State) -> tuple[str, bool, str]:
    """Return what is live of a heartbeat control, whether that is right, and what is wrong if it is not."""
    return _COMPARE[control.name](control, said, state)


def _program(control: Wanted, said: Mapping[str, Any], state: State) -> tuple[str, bool, str]:
    del state
    live = str(said["program_sha256"])
    return live, live == control.value, "the running guard is another version than the installed program"


def _configuration(control: Wanted, said: Mapping[str, Any], state: State) -> tuple[str, bool, str]:
    live = str(said["config_sha256"])
    right = live == state["files"].get(control.file, {}).get("sha256")
    drift = f"the running guard goes by another content than that of {control.file}"
    return control.value if right else live, right, drift


def _memory(control: Wanted, said: Mapping[str, Any], state: State) -> tuple[str, bool, str]:
    del control, state
    locked = said["locked_kib"]
    right = locked is not None and locked > 0
    return LOCKED if right else "not locked", right, "its memory is not locked: it would wait for its own pages"


def _sample(control: Wanted, said: Mapping[str, Any], state: State) -> tuple[str, bool, str]:
    del control, state
    old_s = said["sample_age_s"]
    right = 0 <= old_s < FRESH_S
    return FRESH if right else f"{old_s:.0f} s old", right, f"its last sample is {old_s:.0f} s old"


_COMPARE = {"program": _program, "configuration": _configuration, "memory": _memory, "sample": _sample}
