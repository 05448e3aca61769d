"""Whom the kernel's OOM killer would take first: scores of sshd, of sessions and of user managers. Pure."""

from collections.abc import Mapping
from typing import Any

from plimsoll.box.model import State
from plimsoll.box.units import is_user_manager

LISTENER_SCORE = -1000
"""sshd's listener sets this for itself (OpenSSH, platform_pre_listen) and gives sessions what it had before."""
MAX_NAMED = 5
"""A desktop that was logged in before a change has dozens of processes with their old score."""

Process = Mapping[str, Any]


def started_unix_s(process: Process, state: State) -> float:
    """Return when a process was started, in seconds of the clock that file times are in.

    The start is counted in ticks of 10 ms since boot and is rounded down, hence the tick that is added.
    """
    taken = state["taken"]
    return float(taken["unix_s"] - taken["uptime_s"] + process["started_s"] + 0.01)


def is_older_than(process: Process, file: str, state: State) -> bool:
    """Say whether a process was started before `file` of ours came to be what it is, which it may if nobody knows."""
    replaced_s = state["files"].get(file, {}).get("replaced_s")
    return replaced_s is None or started_unix_s(process, state) < replaced_s


def user_managers(state: State) -> list[Process]:
    """Return the running user managers of people (root's and system users' included)."""
    return [p for p in state["processes"] if is_user_manager(p)]


def managers_with_old_default(state: State, file: str, wanted: int) -> list[str]:
    """Return the uids of user managers that may still give new processes another score than `wanted`.

    A manager is sound if its own score allows it (an unprivileged one cannot go below itself: with 100 of
    its own and a default of 0 a new process has 100), and it was either started after `file` was written or
    seen to give a new process the wanted score.
    """
    changed_s = state["files"].get(file, {}).get("changed_s")
    if changed_s is None:
        return []
    proofs = state["proofs"].get("user_managers", {})
    return [str(m["uid"]) for m in user_managers(state) if not _is_sound(m, state, changed_s, proofs, wanted)]


def _is_sound(manager: Process, state: State, changed_s: float, proofs: Mapping[str, Any], wanted: int) -> bool:
    if int(manager["oom_score_adj"]) > wanted:
        return False
    proof = proofs.get(str(manager["pid"]), {})
    proven = proof.get("started_s") == manager["started_s"] and proof.get("score") == wanted
    return proven or started_unix_s(manager, state) >= changed_s


def session_scores(listener: Process, state: State) -> tuple[list[int], list[int]]:
    """Return the scores of sshd's session processes started since the listener was, and of those before it."""
    sessions = [p for p in state["processes"] if p["comm"].startswith("sshd") and p["pid"] != listener["pid"]]
    new = [int(p["oom_score_adj"]) for p in sessions if p["started_s"] >= listener["started_s"]]
    old = [int(p["oom_score_adj"]) for p in sessions if p["started_s"] < listener["started_s"]]
    return new, old


def preferred_victims(state: State, wanted: int) -> str:
    """Name what people run with a higher score than `wanted`, chosen by itself or from before a change; empty for none.

    Electron programs set 300 for themselves: that is theirs to decide, and nothing is done about it.
    """
    people = [p for p in state["processes"] if p["cgroup"].startswith("/user.slice/") and not _is_managers_own(p)]
    higher = [p for p in people if int(p["oom_score_adj"]) > wanted]
    named = [f"{p['comm']} (pid {p['pid']}) has {p['oom_score_adj']}" for p in higher[:MAX_NAMED]]
    more = [f"{len(higher) - MAX_NAMED} more"] if len(higher) > MAX_NAMED else []
    return f"left as they are: {', '.join([*named, *more])}" if named else ""


def _is_managers_own(process: Process) -> bool:
    """Say whether a process is a user manager or the one that holds its PAM session."""
    return is_user_manager(process) or process["comm"] == "(sd-pam)"
