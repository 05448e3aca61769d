"""Events in one line for people. Pure."""

from plimsoll.box.incident.grounds import duration
from plimsoll.box.incident.meminfo import size
from plimsoll.box.incident.model import (
    Boot,
    DriverAllocFailure,
    Event,
    Gap,
    HungTask,
    Lockup,
    OomKill,
    Panic,
    Process,
    UserspaceKill,
    Xid,
)

_WAITING = frozenset({
    "__switch_to", "__schedule", "schedule", "io_schedule", "schedule_timeout", "schedule_preempt_disabled",
    "context_switch", "wait_for_completion", "__wait_for_common",
})  # fmt: skip
"""Functions that say that a task waits, and not for what."""


def describe(event: Event) -> str:
    """Return what an event is, without its time."""
    match event:
        case DriverAllocFailure():
            companions = f" (with {', '.join(event.companions)})" if event.companions else ""
            what = "large pages refused" if event.severity == "soft" else "allocation failed"
            text = f"driver, {event.severity}: {what}, {event.function or 'function not told'}{companions}"
        case Xid():
            device = f" on {event.device}" if event.device else ""
            text = f"Xid {event.code} ({event.category}){device}: {event.text[:90]}"
        case OomKill():
            text = _oom_kill(event)
        case HungTask():
            text = _hung(event)
        case Lockup():
            text = _lockup(event)
        case Panic():
            text = _panic(event)
        case UserspaceKill():
            text = _userspace(event)
        case Gap():
            end = "then the next boot" if event.ended_by == "boot" else "then it goes on"
            text = f"nothing recorded for {duration(event.seconds)}, {end}; {event.before or ''}"[:160]
        case Boot():
            stop = {
                True: "after an orderly stop",
                False: "without an orderly stop before",
                None: "how it stopped is not told",
            }
            text = f"boot{f' of {event.kernel}' if event.kernel else ''}, {stop[event.clean_stop]}"
        case _:
            raise AssertionError(event.kind)
    # of one failed allocation the driver prints two lines or more
    counted = "lines" if isinstance(event, DriverAllocFailure) and event.severity == "hard" else "times"
    return text + (f" [{event.count} {counted}]" if event.count > 1 else "")


def name(process: Process | None) -> str:
    """Return `llama-server (1234)`."""
    if process is None:
        return "a process that the record does not name"
    pid = f" ({process.pid})" if process.pid is not None else ""
    return f"{process.comm or 'unnamed'}{pid}"


def _oom_kill(kill: OomKill) -> str:
    scope = {
        "host": "for want of the host's memory", "memcg": f"at the limit of {kill.memcg or 'its cgroup'}",
        "cpuset": "within a cpuset", "mempolicy": "within a NUMA policy", "sysrq": "by SysRq, on demand",
        None: "for what shortage is not told",
    }[kill.scope]  # fmt: skip
    sizes = ""
    if kill.victim:
        figures = {
            "anon": kill.victim.anon_rss_kib,
            "shmem": kill.victim.shmem_rss_kib,
            "file": kill.victim.file_rss_kib,
        }
        told = [f"{key} {size(kib)}" for key, kib in figures.items() if kib]
        total = kill.memory.total_kib if kill.memory else None
        if told and total:
            told.append(f"{100 * sum(kib or 0 for kib in figures.values()) / total:.0f} % of all memory")
        adj = [] if kill.victim.oom_score_adj is None else [f"oom_score_adj {kill.victim.oom_score_adj}"]
        sizes = f", {', '.join([*told, *adj])}" if told or adj else ""
    invoker = f"; {name(kill.invoker)} had asked for memory" if kill.invoker else ""
    inside = (
        f" inside the driver ({kill.invoker.driver_frames[0]})" if kill.invoker and kill.invoker.driver_frames else ""
    )
    if kill.outcome == "nobody_found":
        return f"OOM killer {scope}: it found nobody whom it may kill{invoker}{inside}"
    exiting = ", which was ending already and was not killed" if kill.outcome == "already_exiting" else ""
    return f"OOM kill {scope}: {name(kill.victim)}{exiting}{sizes}{invoker}{inside}"


def _hung(hung: HungTask) -> str:
    told = f" for more than {hung.seconds} s" if hung.seconds else ""
    mode = f" ({hung.owner_mode})" if hung.owner_mode else ""
    owner = f"; the {hung.lock} it waits for is held by {name(hung.owner)}{mode}" if hung.owner else ""
    place = next((frame for frame in hung.frames if frame not in _WAITING), None)
    inside = f", in {place}" if place else ""
    return f"{name(hung.task)} hung{told}{inside}{owner}"


def _lockup(lockup: Lockup) -> str:
    cpu = f" of CPU {lockup.cpu}" if lockup.cpu is not None else ""
    told = f" for {lockup.seconds} s" if lockup.seconds else ""
    return f"{lockup.type} lockup{cpu}{told}" + (f" in {name(lockup.task)}" if lockup.task else "")


def _panic(panic: Panic) -> str:
    what = "panic" if panic.fatal else "oops"
    asked = ", asked for" if panic.deliberate else ""
    where = f" in {panic.function}" if panic.function else ""
    module = f" [{panic.module}]" if panic.module else ""
    return f"{what}{asked}{where}{module}: {panic.reason[:110]}" + (f", task {name(panic.task)}" if panic.task else "")


def _userspace(kill: UserspaceKill) -> str:
    victim = kill.victim
    told = victim.pid is not None or victim.comm is not None
    count = f"{victim.processes} process{'es' * (victim.processes != 1)}" if victim.processes else ""
    whom = victim.unit or (name(victim) if told else count or "a process that is not named")
    more = f", {count}" if count and whom != count else ""
    killer = "a guard that is not named" if kill.killer == "unnamed" else kill.killer
    rss = f", {size(victim.rss_kib)} resident" if victim.rss_kib else ""
    outcome = {"failed": "; it failed", "exited": "; it exited", "killed": "", "unknown": ""}[kill.outcome]
    took = f" after {kill.took_s:g} s" if kill.took_s is not None else ""
    reason = f": {kill.reason}" if kill.reason else ""
    return f"{killer} sent {kill.signal or 'a signal'} to {whom}{more}{rss}{outcome}{took}{reason}"
