"""What follows a decision, in threads that may wait: a victim's end, the driver's pool, the operator's hook.

Every thread is started in advance: to start one takes memory, of which there may be none.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plimsoll.box.guard.act import Ready
from plimsoll.box.guard.aftermath import Aftermath, Dropped, drop_pool, follow, run_hook
from plimsoll.box.guard.loop import Telling, Timeline
from plimsoll.box.guard.model import Action
from plimsoll.box.guard.records import Event, Kind, record
from plimsoll.box.guard.shm import Shared, SharedMemory
from plimsoll.box.guard.worker import Worker
from plimsoll.box.host import Host

FOLLOWERS = 3
"""Victims that are followed at a time: the next one is taken after 20 s, and a teardown of minutes was seen."""
_WAITING_MAX = 16


@dataclass(frozen=True)
class Victim:
    """Somebody who was signalled, and what shows when he is gone."""

    action: Action
    ready: Ready
    timeline: Timeline


@dataclass(frozen=True)
class Hook:
    """The operator's command, empty for none."""

    command: tuple[str, ...] = ()
    timeout_s: float = 10.0


class Aftercare:
    """Takes over from the main thread, which goes on at once. `shared` and `hook` are replaced, whole, by others."""

    def __init__(
        self,
        host: Host,
        scribe: Telling,
        shared_memory: SharedMemory,
        available: Callable[[], int | None],
        gone: Callable[[str], None],
        version: str,
    ) -> None:
        self.shared: Mapping[str, frozenset[Shared]] = {}
        self.hook = Hook()
        self._host = host
        self._scribe = scribe
        self._shared_memory = shared_memory
        self._available = available
        self._gone = gone
        self._version = version
        self._boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id") or "unknown"
        self._followers = [
            Worker[Victim](f"follow-{number}", self._follow, _WAITING_MAX) for number in range(FOLLOWERS)
        ]
        self._turn = 0
        self._pool = Worker[str]("pool", self._empty, 1)
        self._hooks = Worker[Event]("hook", self._tell, _WAITING_MAX)

    def start(self) -> None:
        """Start the threads."""
        self._pool.start()
        self._hooks.start()
        for worker in self._followers:
            worker.start()

    @property
    def is_idle(self) -> bool:
        """Whether no victim is followed, no pool emptied and no hook run at present."""
        return self._pool.is_idle and self._hooks.is_idle and all(each.is_idle for each in self._followers)

    @property
    def troubles(self) -> dict[str, str]:
        """What the threads failed with last."""
        found = {"following a victim": " ".join(each.trouble for each in self._followers if each.trouble)}
        found |= {"emptying the pool": self._pool.trouble, "the hook": self._hooks.trouble}
        return {what: trouble for what, trouble in found.items() if trouble}

    def follow(self, action: Action, victim: Ready, timeline: Timeline) -> None:
        """Follow a victim to its end."""
        self._followers[self._turn].put(Victim(action, victim, timeline))
        self._turn = (self._turn + 1) % FOLLOWERS

    def reclaim(self) -> None:
        """Empty the driver's pool; once at a time."""
        self._pool.put("memory is low, and nobody holds the GPU")

    def reclaim_stranded(self) -> Dropped:
        """Empty the pool that nobody uses, here and now, and tell of it."""
        return self._emptied("the driver keeps memory that nobody uses")

    def _follow(self, victim: Victim) -> None:
        workload = victim.action.victim
        if workload is None:
            return
        shared = self.shared.get(workload.key)
        after = follow(self._host, victim.ready, self._available, (self._shared_memory, shared) if shared else None)
        self._gone(workload.key)
        event = _recovered(victim, after)
        self._scribe.put(event)
        self._hooks.put(event)

    def _empty(self, why: str) -> None:
        self._emptied(why)

    def _emptied(self, why: str) -> Dropped:
        dropped = drop_pool(self._host, self._available)
        details = {"problem": dropped.problem} if dropped.problem else None
        at_s, unix_s = time.monotonic(), time.time()
        event = Event(
            Kind.RECLAIMED,
            at_s,
            unix_s,
            f"emptied the driver's pool: {why}",
            came_back_kib=dropped.came_back_kib,
            recovered_after_s=dropped.took_s,
            details=details,
        )
        self._scribe.put(event)
        return dropped

    def _tell(self, event: Event) -> None:
        hook = self.hook
        problem = run_hook(hook.command, record(event, self._boot_id, self._version), hook.timeout_s)
        if problem:
            self._scribe.put(Event(Kind.WARNING, time.monotonic(), time.time(), problem))


def _recovered(victim: Victim, after: Aftermath) -> Event:
    """Return the record of a victim's end, with what came back and in how long since it was signalled."""
    at_s = time.monotonic()
    signalled_s = victim.timeline[-1][1]
    gone: Timeline = () if after.gone_s is None else (("gone", signalled_s + after.gone_s),)
    name = victim.action.victim.name if victim.action.victim else ""
    text = f"{name} is gone, and its memory was asked back" if gone else f"{name} is still there: nothing came back"
    return Event(
        Kind.RECOVERED if gone else Kind.WARNING,
        at_s,
        time.time(),
        text,
        victim=victim.action.victim,
        timeline=(*victim.timeline, *gone, ("followed", at_s)),
        came_back_kib=after.came_back_kib,
        recovered_after_s=at_s - signalled_s,
        details=_details(after),
    )


def _details(after: Aftermath) -> dict[str, object]:
    dropped, removed = after.dropped, after.removed
    found: dict[str, object] = {"released_at_once": after.released}
    if dropped is not None:
        found["pool"] = {"came_back_kib": dropped.came_back_kib, "took_s": round(dropped.took_s, 3)}
        found |= {"problem": dropped.problem} if dropped.problem else {}
    if removed.names or removed.left:
        left = [{"name": name, "reason": reason} for name, reason in removed.left]
        found["shared_memory"] = {"removed": list(removed.names), "kib": removed.kib, "left": left}
    return found
