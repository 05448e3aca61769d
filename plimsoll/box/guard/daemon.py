"""`plimsoll guard`: sets everything up once, locks it in memory, and goes round until it is told to stop.

The main thread has the loop and the signals. What may wait has threads of its own: the scout, who looks at what runs;
the scribe and the keeper, who write; the aftercare of a kill; the clerk, who reads files anew.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from plimsoll.box import memory
from plimsoll.box.errors import GOOD, REFUSED, BoxError
from plimsoll.box.guard import act, arming, handover, hashes, locking, status
from plimsoll.box.guard.act import Hand
from plimsoll.box.guard.aftercare import Aftercare, Hook
from plimsoll.box.guard.aftermath import Kept, Stranded, is_stranded, looked, reclaimed
from plimsoll.box.guard.clerk import Clerk
from plimsoll.box.guard.configured import Loaded, load
from plimsoll.box.guard.discovery import Discovery
from plimsoll.box.guard.gpu import Asking
from plimsoll.box.guard.keeper import Keeper, Second
from plimsoll.box.guard.loop import Loop, Tick
from plimsoll.box.guard.model import CALM
from plimsoll.box.guard.recording import Recording
from plimsoll.box.guard.records import Event, Kind, Scribe, record
from plimsoll.box.guard.reserve import ReservationError, Store
from plimsoll.box.guard.rules import rate
from plimsoll.box.guard.sampler import Sampler
from plimsoll.box.guard.scout import Round, Scout
from plimsoll.box.host import Host

LOCK = "/run/plimsoll/guard.lock"
LOCK_VARIABLE = "PLIMSOLL_GUARD_LOCK"
"""The descriptor of the lock that a successor inherits."""
SWITCH_INTERVAL_S = 0.0005
"""How long another thread may keep the interpreter from the main one; Python's own is 5 ms."""
SCOUT_EVERY_S, SCOUT_HURRIES_S = 3.0, 0.2
"""A round takes 3 ms of a core on a small machine, and 20 where every open file is looked at."""
HURRY_BEFORE_S = 10.0
"""The scout hurries when memory would be at the floor so soon."""
CLERK_EVERY_S = 60.0
STOP_WITHIN_S = 3.0
SHOWN_ACTIONS = 20


class RunningError(BoxError):
    """Another guard runs on this host."""

    exit_code = REFUSED


class Memory:
    """Hands events to the scribe, and remembers the last ones for the status."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._last: deque[Event] = deque(maxlen=SHOWN_ACTIONS)
        self.stopped: Counter[str] = Counter()

    def put(self, event: Event) -> bool:
        """Take one, without waiting."""
        self._last.append(event)
        if event.kind is Kind.SIGNALLED and event.action is not None:
            self.stopped[event.action.rule.value] += 1
        return self._scribe.put(event)

    def say(self, kind: Kind, text: str, details: Mapping[str, Any] | None = None) -> None:
        """Put what happens now."""
        self.put(Event(kind, time.monotonic(), time.time(), text, details=details))

    @property
    def last(self) -> list[Event]:
        """The last events, the newest last."""
        return list(self._last)


class Guard:
    """All parts of the running guard, and the threads between them."""

    def __init__(self, host: Host, loaded: Loaded, program: str, *, dry_run: bool) -> None:
        self._host = host
        self._program = program
        self._sha256 = hashes.sha256_of(program) or ""
        self._started_s = time.time()
        self._problems: tuple[str, ...] = ()
        config = loaded.config
        self.scribe = Scribe(host, self._sha256[:12])
        self.memory = Memory(self.scribe)
        self.clerk = Clerk(host, loaded, self.memory, lambda: arming.ask_last_day(program), dry_run=dry_run)
        self._sampler = Sampler(host)
        self._hand = Hand(host)
        self._asking = Asking()
        self._store = Store(host, config.reserve_groups)
        discovery = Discovery(host, config.gpu_devices, config.protect, config.prefer)
        self._scout = Scout(host, config.settings, discovery, self._hand, self._store, self._asking)
        shared_memory = self._scout.shared_memory
        self._aftercare = Aftercare(
            host, self.memory, shared_memory, self._available_kib, self._gone, self._sha256[:12]
        )
        self.loop = Loop(config.settings, self._sampler, self._hand, self.memory, self._aftercare)
        recording = Recording(host, round(config.recording_max_mib * (1 << 20)))
        self._keeper = Keeper(host, recording, self._document, config.metrics_file)
        self._round = Round()
        self._wake_clerk = threading.Event()
        self.successor: handover.Successor | None = None

    def _available_kib(self) -> int | None:
        return self.loop.tick.sample.available_kib

    def _gone(self, key: str) -> None:
        self.loop.gone(key)

    # --- set up ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every thread, find out how the rules stand, and lock all of it in memory."""
        problems = [f"{each.what}: {each.problem}" for each in act.self_test(self._host) if each.problem]
        try:
            self._store.create()
        except (OSError, ReservationError) as error:
            problems.append(f"nothing can be reserved: {error}")
        self.clerk.reckon(self._available_kib(), first=True)
        self._apply()
        for part in (self.scribe, self._asking, self._aftercare):
            part.start()
        for name, work in (("scout", self._scouting), ("clerk", self._clerking)):
            threading.Thread(target=work, name=name, daemon=True).start()
        problems += locking.lock()
        self._problems = tuple(problems)
        locked = memory.locked_kib(self._host)
        details = {"problems": problems, "locked_kib": locked, "pid": os.getpid()}
        self.memory.say(Kind.START, f"guards, with {locked or 0} KiB locked", details)

    def _apply(self) -> None:
        """Have the parts go by the clerk's present settings."""
        config, settings = self.clerk.loaded.config, self.clerk.settings
        self.loop.settings = settings
        self._scout.settings = settings
        self._scout.discovery.go_by(config.gpu_devices, config.protect, config.prefer)
        self._aftercare.hook = Hook(config.hook_command, config.hook_timeout_s)
        self._keeper.metrics_file = config.metrics_file

    # --- threads --------------------------------------------------------------------------------------

    def _scouting(self) -> None:
        stranded = Stranded()
        while True:
            tick = self.loop.tick
            hurry = _hurries(tick)
            try:
                self._round = found = self._scout.round(tick.sample, hurry=hurry)
                self.loop.known = found.known
                self._aftercare.shared = found.shared
                self._tell_reservations(found)
                stranded = self._stranded(found.kept, stranded)
            except Exception as error:  # noqa: BLE001  # whatever it stumbles over, the next round is in a second
                self.memory.say(Kind.WARNING, f"the scout: {type(error).__name__}: {error}")
            time.sleep(SCOUT_HURRIES_S if hurry else SCOUT_EVERY_S)

    def _tell_reservations(self, found: Round) -> None:
        for identity, reason in found.refused:
            self.memory.say(Kind.RESERVATION, f"reservation {identity} is not kept: {reason}")
        for identity, reason in found.ended:
            self.memory.say(Kind.RESERVATION, f"reservation {identity} has ended: {reason}")

    def _stranded(self, kept: Kept | None, stranded: Stranded) -> Stranded:
        """Empty the driver's pool where nobody uses the GPU."""
        if kept is None:
            return stranded
        stranded = looked(stranded, kept)
        if not is_stranded(stranded, kept):
            return stranded
        self._aftercare.reclaim_stranded()
        after = self._scout.kept(self.loop.tick.sample, self._round.discovered)
        return reclaimed(stranded, kept, after)

    def _clerking(self) -> None:
        while True:
            anew = self._wake_clerk.wait(CLERK_EVERY_S)
            self._wake_clerk.clear()
            try:
                if anew:
                    self.clerk.reload()
                self._sampler.look_at_driver()
                self.clerk.reckon(self._available_kib())
                self._apply()
                if anew:
                    self._prepare_successor()
            except Exception as error:  # noqa: BLE001  # as above, in a minute
                self.memory.say(Kind.WARNING, f"the clerk: {type(error).__name__}: {error}")

    def _prepare_successor(self) -> None:
        """Make a new version ready beside this one, if another program is installed."""
        installed = hashes.sha256_of(self._program)
        if installed in (None, self._sha256) or self.successor is not None:
            return
        argv = [sys.executable, "-I", self._program, "guard"]
        successor = handover.start(argv, int(os.environ[LOCK_VARIABLE]))
        problem = successor.wait()
        if problem:
            self.memory.say(Kind.WARNING, f"the new version {problem}; this one goes on")
        else:
            self.successor = successor

    # --- for the main thread --------------------------------------------------------------------------

    def begin(self) -> None:
        """Be the guard of this host from now on: until then another one may write the status and the recording."""
        self._keeper.start()

    def reload(self) -> None:
        """Have the clerk read everything anew."""
        self._wake_clerk.set()

    def second(self) -> None:
        """Hand over a second's news."""
        self._keeper.put(Second(time.time(), self.loop.tick))

    def is_at_rest(self) -> bool:
        """Say whether another may take over: nobody is being stopped, and nothing that follows is under way."""
        return handover.may_hand_over(self.loop.tick.state) and self._aftercare.is_idle

    def stop(self, why: str) -> None:
        """Write what waits, for as long as a stop may take."""
        self.memory.say(Kind.STOP, why)
        self._keeper.stop(STOP_WITHIN_S)
        self.scribe.stop(STOP_WITHIN_S)

    # --- the status -----------------------------------------------------------------------------------

    def _document(self, second: Second) -> dict[str, Any]:
        tick = second.tick
        meminfo = memory.parse_meminfo(self._host.text_or_none("/proc/meminfo") or "")
        boot_id = self._host.text_or_none("/proc/sys/kernel/random/boot_id") or "unknown"
        return status.document(
            status.Seen(
                second.unix_s,
                tick.settings,
                tick.state,
                tick.sample,
                self._sampler.basis,
                meminfo.get("MemTotal"),
                meminfo.get("MemAvailable"),
                self.loop.known,
                self._itself(tick),
                self.clerk.arming,
                [record(each, boot_id, self._sha256[:12]) for each in self.memory.last],
                dict(self.memory.stopped),
            )
        )

    def _itself(self, tick: Tick) -> status.Guard:
        return status.Guard(
            os.getpid(),
            self._started_s,
            self._sha256,
            self.clerk.loaded.sha256,
            tick.sample.at_s,
            memory.locked_kib(self._host),
            round(tick.longest_gap_s * 1000, 1),
            tuple(self._troubles()),
        )

    def _troubles(self) -> list[str]:
        parts = (self.scribe.troubles, self._keeper.troubles, self._aftercare.troubles)
        found = [f"{what}: {trouble}" for part in parts for what, trouble in part.items()]
        configuration = [self.clerk.trouble] if self.clerk.trouble else []
        return [*self._problems, *configuration, *found, *self._round.problems]


def _hurries(tick: Tick) -> bool:
    """Say whether it may soon matter who is there: memory is low, or falls fast."""
    headroom = (tick.sample.available_kib or 0) - tick.settings.lines.floor_kib
    return tick.state.mood is not CALM or rate(tick.state) * HURRY_BEFORE_S > headroom


# --- the process ------------------------------------------------------------------------------------


def run(host: Host, program: str, *, dry_run: bool = False) -> int:
    """Guard until SIGTERM, or until a successor has taken over; raises ConfigError and RunningError."""
    before = handover.predecessor(os.environ)
    if before is not None:
        os.environ[LOCK_VARIABLE] = str(before.kept[0])
    notifier = handover.Notifier(os.environ)
    trouble = locking.prepare()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _hold_lock(host)
    guard = Guard(host, load(host), program, dry_run=dry_run)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, lambda *_: guard.reload())
    guard.start()
    for each in trouble:
        guard.memory.say(Kind.WARNING, each)
    if before is not None and not before.ready():
        guard.stop("was not needed: the guard before it goes on")
        return GOOD
    if before is not None:
        guard.loop.remember(before.remembered())
    guard.begin()
    notifier.ready("guards")
    _go_round(guard, notifier, stopping)
    return GOOD


def _hold_lock(host: Host) -> None:
    """Hold the lock of the one guard, or go on with the one that was inherited."""
    if _has_lock(host):
        return
    os.makedirs(host.path(os.path.dirname(LOCK)), mode=0o755, exist_ok=True)
    descriptor = os.open(host.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunningError("a guard runs on this host already: `plimsoll status` shows it") from None
    os.environ[LOCK_VARIABLE] = str(descriptor)


def _has_lock(host: Host) -> bool:
    """Say whether the lock was inherited: a hook, which is no successor, inherits the variable alone."""
    try:
        return os.path.samestat(os.fstat(int(os.environ.get(LOCK_VARIABLE, ""))), os.stat(host.path(LOCK)))
    except (ValueError, OSError):
        return False


def _go_round(guard: Guard, notifier: handover.Notifier, stopping: threading.Event) -> None:
    """Go round; once a second the others get the news, and systemd a sign of life."""
    next_s = time.monotonic()
    while not stopping.is_set():
        rest_s = guard.loop.turn()
        now_s = time.monotonic()
        if now_s >= next_s:
            notifier.ping()
            guard.second()
            next_s = max(next_s + 1.0, now_s)
        successor = guard.successor
        if successor is not None and guard.is_at_rest():
            if successor.hand_over(notifier, guard.loop.tick.state.mood.kills):
                guard.stop("another version has taken over")
                return
            guard.successor = None
        if rest_s > 0:
            time.sleep(rest_s)
    guard.stop("was told to stop")
