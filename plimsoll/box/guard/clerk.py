"""Reads files anew while the guard runs: its configuration, what was armed by word, the last day's recording.

For a thread of its own. A bad file changes nothing: the guard goes on by what it had, and says so.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from plimsoll.box.guard import arming, config
from plimsoll.box.guard.arming import Replayed
from plimsoll.box.guard.config import ConfigError
from plimsoll.box.guard.configured import Loaded, load
from plimsoll.box.guard.loop import Telling
from plimsoll.box.guard.model import Settings
from plimsoll.box.guard.records import Event, Kind
from plimsoll.box.host import Host

REPLAY_EVERY_S = 600.0
"""A replay of a day takes seconds of a core, in a child of its own."""
_NOT_YET = Replayed(0.0, problem="the recording of the last day was not looked at yet")


class Clerk:
    """Knows the configuration and how the rules stand; `settings` is what the loop is to go by."""

    def __init__(
        self, host: Host, loaded: Loaded, scribe: Telling, ask: Callable[[], Replayed], *, dry_run: bool
    ) -> None:
        self.loaded = loaded
        self.trouble = ""
        """Why the configuration on disk is not the one that holds."""
        self.arming, problem = arming.load(host)
        self._host = host
        self._scribe = scribe
        self._ask = ask
        self._dry_run = dry_run
        self._replayed = _NOT_YET
        self._replayed_s = float("-inf")
        if problem:
            self._say(Kind.WARNING, problem)

    @property
    def settings(self) -> Settings:
        """The settings, with the rules armed that may act."""
        observes = self._dry_run or self.loaded.config.dry_run
        return replace(self.loaded.config.settings, armed=frozenset() if observes else self.arming.armed)

    def reload(self) -> None:
        """Read configuration and word anew."""
        try:
            self.loaded = load(self._host)
        except (ConfigError, OSError) as error:
            self.trouble = f"{error}; the configuration before this one holds"
            self._say(Kind.WARNING, self.trouble)
        else:
            self.trouble = ""
            self._say(Kind.CONFIG, f"goes by {config.PATH}, read anew")
        kept, problem = arming.load(self._host)
        if problem:
            self._say(Kind.WARNING, problem)
        else:
            self.arming = replace(kept, standings=self.arming.standings)

    def reckon(self, available_kib: int | None, *, first: bool = False) -> None:
        """Find out how the rules stand; `first`: without the recording, for which nobody waits at the start."""
        if not first and time.monotonic() - self._replayed_s >= REPLAY_EVERY_S and self._waits_for_a_day():
            self._replayed_s = time.monotonic()
            self._replayed = self._ask()
        wanted, before = self.loaded.config, self.arming
        now_s = time.time()
        self.arming = arming.reckon(wanted.arming, before, wanted.settings, available_kib, self._replayed, now_s)
        if first or self.arming.armed != before.armed:
            standing = "; ".join(f"{each.rule}: {each.why}" for each in self.arming.standings)
            self._say(Kind.ARMING, standing)
        if self.arming.kept != before.kept:
            self._keep()

    def _waits_for_a_day(self) -> bool:
        """Say whether a rule would arm itself after a clean day, and has not yet."""
        return any(each.mode is config.Arming.AUTO and not each.armed for each in self.arming.standings)

    def _keep(self) -> None:
        try:
            arming.save(self._host, self.arming)
        except OSError as error:
            self._say(Kind.WARNING, f"{arming.PATH}: {error.strerror}: what is armed is forgotten with this process")

    def _say(self, kind: Kind, text: str) -> None:
        self._scribe.put(Event(kind, time.monotonic(), time.time(), text))
