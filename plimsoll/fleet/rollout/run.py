"""A rollout: batch after batch until the end, a stop, or an interruption; then what was done is kept or taken back."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from plimsoll.fleet.rollout import processes, progress, remote, schedule
from plimsoll.fleet.rollout.model import Event, Failure, HostEvent, OnFailure, Phase, RunEvent
from plimsoll.fleet.rollout.remote import HostError
from plimsoll.fleet.rollout.state import host_lock
from plimsoll.fleet.rollout.steps import HostRun, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from plimsoll.fleet.rollout.progress import Progress
    from plimsoll.fleet.rollout.state import Journal
    from plimsoll.fleet.rollout.steps import Shared
    from plimsoll.inventory import Host

MAX_DEPLOYS = 16
"""At a time: 0.9 GiB and 11 s of processor time for their start alone."""


class Rollout:
    """The one that decides; every event goes through it to the journal, and from there to who watches."""

    def __init__(
        self, hosts: Mapping[str, Host], standing: Progress, journal: Journal, watch: Callable[[Event, Progress], None]
    ) -> None:
        self.hosts = hosts
        self.progress = standing
        self.journal = journal
        self.watch = watch

    def tell(self, event: Event) -> None:
        """Write an event down, and only then let it be seen."""
        self.journal.append(event)
        self.progress = progress.after(self.progress, event)
        # who watches may be gone, as `head` is: that is no reason to stop
        with suppress(OSError):
            self.watch(event, self.progress)

    async def run(self, shared: Shared) -> None:
        """Go on from where it stands; raises asyncio.CancelledError when interrupted, with everything written down."""
        if not self.progress.stopped:
            await self._forward(shared)
        if self.progress.stopped and shared.settings.on_failure is OnFailure.REVERT:
            await self._take_back(shared)
        self.tell(RunEvent(time.time(), "end"))

    async def _forward(self, shared: Shared) -> None:
        begin = self.progress.begin
        while True:
            # before the next batch, and after the last
            reason = schedule.stop_reason(begin, self.progress.phases)
            if reason:
                self.tell(RunEvent(time.time(), "stop", reason))
                return
            batch = schedule.next_batch(begin, self.progress.phases)
            if not batch:
                return
            fit = [name for name in batch if not self._skipped(name)]
            self.tell(RunEvent(time.time(), "batch", " ".join(fit)))
            await self._together([self._host(name, shared) for name in fit], shared)

    def _skipped(self, name: str) -> bool:
        partner = schedule.failed_partner(self.progress.begin, self.progress.phases, name)
        if partner is None:
            return False
        detail = f"it serves a model together with {partner}, which failed"
        self.tell(HostEvent(time.time(), name, Phase.SKIPPED, detail, Failure.BAD))
        return True

    async def _host(self, name: str, shared: Shared) -> None:
        await HostRun(self.hosts[name], self.progress.hosts[name], shared).run()

    async def _together(self, work: Sequence[Coroutine[None, None, None]], shared: Shared) -> None:
        """Let all of them come to their end, or, when interrupted, to where they can be gone on with."""
        tasks = [asyncio.create_task(each) for each in work]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            shared.interrupted.set()
            self.tell(RunEvent(time.time(), "interrupt", "what was begun on a host is carried to its end"))
            # another Ctrl-C ends this at once, and leaves the deploys to themselves
            await asyncio.wait(tasks)
            raise
        for task in tasks:
            error = task.exception()
            if error is not None and not isinstance(error, Interrupted):
                raise error

    # --- back ---

    async def _take_back(self, shared: Shared) -> None:
        begin = self.progress.begin
        before = {planned.name for planned in begin.hosts if planned.deployed_before}
        standing = self.progress.hosts.items()
        touched = [name for name, host in standing if host.touched and host.phase is not Phase.REVERTED]
        left = [name for name in touched if name not in before]
        for batch in schedule.batches(left, (), MAX_DEPLOYS, begin.clusters):
            await self._together([self._revert(name, shared) for name in batch], shared)

    async def _revert(self, name: str, shared: Shared) -> None:
        if shared.interrupted.is_set():
            raise Interrupted
        was = self.progress.hosts[name]
        self.tell(HostEvent(time.time(), name, Phase.REVERTING, was.detail, was.failure))
        try:
            async with remote.held(self.hosts[name], shared.ssh, shared.owner) as lease:
                why = await self._reverting(name, shared, lease)
        except HostError as error:
            why = str(error)
        if why:
            event = HostEvent(time.time(), name, Phase.FAILED, f"it could not be taken back: {why}", Failure.BAD)
        else:
            detail = f"taken back; it had failed: {was.detail}" if was.failure else "taken back"
            event = HostEvent(time.time(), name, Phase.REVERTED, detail, was.failure or Failure.BAD)
        self.tell(event)

    async def _reverting(self, name: str, shared: Shared, lease: remote.Lease) -> str:
        """Run `plimsoll revert` for a host, which proves a fresh login itself; return why it failed, empty if not."""
        log = self.journal.log(name)
        begin = processes.size(log)
        lock = host_lock(shared.fleet, name)
        try:
            command = processes.revert_command(self.hosts[name], shared.ssh)
            process = processes.start(command, log, (lock, lease.stdin))
        finally:
            os.close(lock)
        try:
            async with asyncio.timeout(shared.limits.deploy_s):
                code = await processes.ended(process)
        except TimeoutError:
            processes.end(process.pid)
            process.wait()
            return f"it had not ended after {shared.limits.deploy_s:g} s"
        return processes.reason(log, begin) if code else ""
