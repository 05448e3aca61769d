"""The background's one round: what runs, what the driver tells, what is reserved, and what is kept ready for a kill.

For a thread of its own. Nothing here is waited for by the thread that decides: it takes the last `Round`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll.box.guard import reserve as reserving
from plimsoll.box.guard.act import Hand
from plimsoll.box.guard.aftermath import Kept
from plimsoll.box.guard.choose import against
from plimsoll.box.guard.discovery import Discovered, Discovery
from plimsoll.box.guard.gpu import Asking, driver_held_kib
from plimsoll.box.guard.model import Known, Reservation, Sample, Settings, Workload
from plimsoll.box.guard.reserve import Keeping, ReservationError, Store
from plimsoll.box.guard.shm import Shared, SharedMemory
from plimsoll.box.host import Host
from plimsoll.box.memory import misc_reclaimable_kib, parse_meminfo

ASK_EVERY_S = 5.0
"""One question to nvidia-smi takes some 50 ms of a core; while memory falls it is asked again at once."""
SHARED_EVERY_S = 30.0
MAX_SHARED = 4
"""Victims of which it is remembered what they have mapped in /dev/shm: the likeliest."""


@dataclass(frozen=True)
class Round:
    """All that one round found."""

    known: Known = field(default_factory=Known)
    discovered: Discovered = field(default_factory=lambda: Discovered(0.0))
    ended: tuple[tuple[str, str], ...] = ()
    """Reservations that ended, by id, with the reason."""
    refused: tuple[tuple[str, str], ...] = ()
    """Reservations that were found and cannot be kept, by id, with the reason; each is said once."""
    shared: Mapping[str, frozenset[Shared]] = field(default_factory=dict)
    """What the likeliest victims have mapped in /dev/shm, by the workload's key."""
    kept: Kept | None = None
    """What the driver keeps, to tell whether it is stranded."""
    problems: tuple[str, ...] = ()


class Scout:
    """Goes round after round; one caller at a time."""

    def __init__(
        self, host: Host, settings: Settings, discovery: Discovery, hand: Hand, store: Store, asking: Asking
    ) -> None:
        self.shared_memory = SharedMemory(host)
        self._host = host
        self.settings = settings
        """By what it tells who is likely to be stopped; replaced, whole, by others."""
        self.discovery = discovery
        self._hand = hand
        self._store = store
        self._asking = asking
        self._keeping = Keeping()
        self._selectors: frozenset[str] = frozenset()
        self._judged: dict[str, bool] = {}
        """Reservations that were looked at, by id, and whether they can be kept."""
        self._shared: dict[str, frozenset[Shared]] = {}
        self._shared_s = float("-inf")
        self._asked_s = float("-inf")

    def round(self, sample: Sample, *, hurry: bool = False) -> Round:
        """Look at everything once; `hurry`: memory falls, or is low."""
        if hurry or sample.at_s - self._asked_s >= ASK_EVERY_S:
            self._asked_s = sample.at_s if self._asking.ask() else self._asked_s
        told = self._asking.told
        found, refused, problems = self._reservations(sample)
        reserved = frozenset(each.workload for each in found)
        seen = self.discovery.look(sample.at_s, told, sample.available_kib, reserved, thorough=hurry)
        selectors = frozenset().union(*(each.selectors for each in seen.workloads))
        self._keeping = reserving.keep(self._keeping, found, selectors, sample.at_s)
        likeliest = self._likeliest(seen.workloads)
        self._hand.prepare(likeliest, seen.targets)
        self._remember_shared(likeliest, sample.at_s)
        return Round(
            Known(seen.workloads, self._keeping.reservations, sample.at_s),
            seen,
            self._keeping.ended,
            refused,
            dict(self._shared),
            self.kept(sample, seen, seen.meminfo),
            (*seen.problems, *problems, *self._forget(self._keeping.ended)),
        )

    def _reservations(
        self, sample: Sample
    ) -> tuple[tuple[Reservation, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Return those that can be kept, those that cannot and were not judged before, and what was not understood."""
        try:
            found, problems = self._store.read()
        except ReservationError as error:
            return (), (), (str(error),)
        refused = []
        for each in found:
            if each.id not in self._judged and sample.available_kib is not None:
                accepted = [other for other in found if self._judged.get(other.id)]
                reason = reserving.admit(each, sample, self.settings.lines, accepted)
                self._judged[each.id] = reason is None
                refused += [(each.id, reason)] if reason is not None else []
        present = {each.id for each in found}
        self._judged = {identity: fits for identity, fits in self._judged.items() if identity in present}
        return tuple(each for each in found if self._judged.get(each.id)), tuple(refused), problems

    def _forget(self, ended: Sequence[tuple[str, str]]) -> list[str]:
        """Remove the files of reservations that ended; return what could not be removed."""
        problems = []
        for identity, _ in ended:
            self._judged[identity] = False
            try:
                self._store.remove(identity)
            except (OSError, ReservationError) as error:
                problems.append(f"reservation {identity} cannot be removed: {error}")
        return problems

    def _likeliest(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return those that may be stopped, the likeliest victims first, and the largest containers after them."""

        def rank(workload: Workload) -> tuple[bool, bool, int, float]:
            is_suitable = against(workload, self.settings) is None
            return is_suitable, workload.preferred, max(workload.grew_kib, workload.resident_kib), workload.started_s

        may = [each for each in workloads if each.protected is None]
        return sorted(may, key=rank, reverse=True)

    def _remember_shared(self, likeliest: Sequence[Workload], at_s: float) -> None:
        victims = [each for each in likeliest[:MAX_SHARED] if each.holds_gpu]
        if at_s - self._shared_s < SHARED_EVERY_S and all(each.key in self._shared for each in victims):
            return
        self._shared_s = at_s
        self._shared = {each.key: self.shared_memory.mapped(each.processes) for each in victims}

    def kept(self, sample: Sample, seen: Discovered, meminfo: Mapping[str, int] | None = None) -> Kept:
        """Return what the driver keeps, now or by `meminfo`, and who was seen to be using it."""
        now = parse_meminfo(self._host.text_or_none("/proc/meminfo") or "") if meminfo is None else meminfo
        computes, told = bool(seen.computing), self._asking.told.by_pid
        return Kept(sample.at_s, sample.regime, misc_reclaimable_kib(now), driver_held_kib(now), computes, told)
