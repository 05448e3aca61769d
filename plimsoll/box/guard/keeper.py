"""What is done once a second: the recording, the status, the metrics.

Each in a thread of its own, because disks stall.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from plimsoll.box.guard import status
from plimsoll.box.guard.loop import Tick
from plimsoll.box.guard.probe import EVERY_S, Probe
from plimsoll.box.guard.recording import NOT_TRIED, Reached, Recording
from plimsoll.box.guard.sampler import SlowReader
from plimsoll.box.guard.worker import Worker
from plimsoll.box.heartbeat import STATUS
from plimsoll.box.host import Host

_WAITING_MAX = 5
"""Seconds that may wait for a disk; what is older is no status any more."""
STATUS_EVERY = 2
"""Seconds: to make a status of it all takes longer than to take a second's ten samples."""


@dataclass(frozen=True)
class Second:
    """One second's news."""

    unix_s: float
    tick: Tick


class Keeper:
    """Takes a second's news and never waits. `document` makes the status of it, in the status's own thread."""

    def __init__(
        self, host: Host, recording: Recording, document: Callable[[Second], dict[str, object]], metrics_file: str
    ) -> None:
        self.metrics_file = metrics_file
        self._host = host
        self._recording = recording
        self._document = document
        self._slow = SlowReader(host)
        self._probe = Probe(host)
        self._reached: Reached = NOT_TRIED
        self._probed_s = float("-inf")
        self._seconds = 0
        self._recorder = Worker[Second]("recording", self._record, _WAITING_MAX)
        self._status = Worker[Second]("status", self._tell, _WAITING_MAX)
        self._metrics = Worker[str]("metrics", self._publish, 1)
        self._prober = Worker[float]("probe", self._look, 1)

    def start(self) -> None:
        """Start the threads."""
        for worker in (self._recorder, self._status, self._metrics, self._prober):
            worker.start()

    @property
    def troubles(self) -> dict[str, str]:
        """What cannot be written, and why."""
        found = {"the recording": self._recorder.trouble, STATUS: self._status.trouble}
        found |= {self.metrics_file: self._metrics.trouble, "the probe": self._prober.trouble}
        return {what: trouble for what, trouble in found.items() if trouble}

    def put(self, second: Second) -> None:
        """Take a second's news."""
        self._recorder.put(second)
        self._seconds += 1
        if self._seconds % STATUS_EVERY == 0:
            self._status.put(second)
        if second.tick.sample.at_s - self._probed_s >= EVERY_S:
            self._probed_s = second.tick.sample.at_s
            self._prober.put(self._probed_s)

    def stop(self, timeout_s: float) -> None:
        """Write what waits."""
        self._recorder.stop(timeout_s)
        self._status.stop(timeout_s)

    def _record(self, second: Second) -> None:
        reached, self._reached = self._reached, NOT_TRIED
        slow = self._slow.read(time.monotonic())
        self._recording.write(second.unix_s, second.tick.sample, slow, reached)

    def _tell(self, second: Second) -> None:
        document = self._document(second)
        status.write(self._host, STATUS, json.dumps(document))
        if self.metrics_file:
            self._metrics.put(status.metrics(document))

    def _publish(self, text: str) -> None:
        status.write(self._host, self.metrics_file, text)

    def _look(self, _at_s: float) -> None:
        self._reached = self._probe.look()
