"""One host of a rollout: lock -> look -> deploy -> fresh login, verify, guard -> soak."""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import os
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.fleet import gather
from plimsoll.fleet.judging import host_report
from plimsoll.fleet.rollout import plan, processes, remote, soak
from plimsoll.fleet.rollout.model import Failure, HostEvent, Phase, Planned, Sample
from plimsoll.fleet.rollout.reasons import explained
from plimsoll.fleet.rollout.remote import HostError
from plimsoll.fleet.rollout.state import host_lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from plimsoll.fleet.findings import Rule
    from plimsoll.fleet.rollout.model import Settings
    from plimsoll.fleet.rollout.progress import HostProgress
    from plimsoll.fleet.rollout.state import Journal
    from plimsoll.inventory import Host

LOGIN_TRIES = 3


@dataclass(frozen=True)
class Limits:
    """How long things are waited for, in seconds."""

    deploy_s: float = 1800
    """Twice what the slowest single layer may take; a first deploy takes 20 to 60 s."""
    lost_s: float = 120
    """How long a deploy goes on once the connection of the lock is gone: a stalled box may come back."""
    proof_s: float = 60
    """A login that took about 50 s was seen on a box under memory pressure."""
    soak_period_s: float = 15


class Interrupted(Exception):  # noqa: N818  # no error: the operator wants to stop
    """This host is left as it is, to be gone on with later."""


@dataclass(frozen=True)
class Shared:
    """What all hosts of a rollout have in common."""

    fleet: Path
    journal: Journal
    settings: Settings
    owner: str
    """The rollout's id, a blank, and who runs it from where."""
    ssh: gather.Ssh
    rules: Sequence[Rule]
    limits: Limits
    deploys: asyncio.Semaphore
    """How many deploys there may be at a time: each is a process of 56 MiB."""
    interrupted: asyncio.Event
    tell: Callable[[HostEvent], None]
    still_as_confirmed: Callable[[], bool]


class HostRun:
    """One host, from where it stands to its end."""

    def __init__(self, host: Host, before: HostProgress, shared: Shared) -> None:
        self.host = host
        self.before = before
        self.shared = shared
        self.fresh = replace(shared.ssh, fresh=True, timeout_s=shared.limits.proof_s)
        self.log = shared.journal.log(host.name)

    async def run(self) -> None:
        """Do everything that is left to do, and say how it ended; raises nothing but Interrupted."""
        try:
            await self._run()
        except HostError as error:
            self._tell(Phase.FAILED, str(error), failure=error.failure)
        except OSError as error:
            self._tell(Phase.FAILED, f"this machine: {error}", failure=Failure.UNKNOWN)

    async def _run(self) -> None:
        self._tell(Phase.LOCKING)
        async with self._exclusively() as lock, remote.held(self.host, self.shared.ssh, self.shared.owner) as lease:
            planned = await self._plan()
            baseline = self.before.baseline or await self._baseline()
            if planned.steps:
                await self._apply(planned, baseline, lock, lease)
            self._stop_if_interrupted()
            self._tell(Phase.VERIFYING, baseline=baseline)
            pending = await self._verify(planned)
            await self._soak(baseline, None if planned.steps else self.before.soaking_since_s)
            self._tell(Phase.DONE, planned.waits, pending=pending)

    # --- locks and plan ---

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[int]:
        """Hold the host on this machine; a deploy that a killed rollout has left behind is waited for."""
        descriptor = host_lock(self.shared.fleet, self.host.name)
        try:
            await self._until_free(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    async def _until_free(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        self._tell(Phase.LOCKING, "waits for a deploy that an earlier run has left behind")
        free = processes.in_background(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX))
        interrupted = asyncio.ensure_future(self.shared.interrupted.wait())
        limit_s = self.shared.limits.deploy_s
        first: set[asyncio.Future[Any]] = {free, interrupted}
        await asyncio.wait(first, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not free.done():
            self._stop_if_interrupted()
            raise HostError(f"a deploy of an earlier run has not ended after {limit_s:g} s", Failure.BUSY)

    async def _baseline(self) -> Sample:
        found = await remote.look(self.host, self.fresh)
        blind = soak.blind(found)
        if blind:
            raise HostError(f"it could not be watched after a change: {blind}", Failure.UNKNOWN)
        return found

    async def _plan(self) -> Planned:
        """Look again at what there is to do: an earlier run may have done it, and an engine may have been started."""
        if not self.shared.still_as_confirmed():
            raise HostError("the inventory or this checkout has changed since the plan was confirmed: begin anew")
        answer = await gather.ask(self.host, self.shared.ssh)
        today = datetime.datetime.now().astimezone().date()
        allow = self.shared.settings.allow_restart
        found, _report = plan.looked(answer, self.shared.rules, today, allow_restart=allow)
        if found.problem:
            raise HostError(found.problem, found.failure)
        return found

    # --- the deploy ---

    async def _apply(self, planned: Planned, baseline: Sample, lock: int, lease: remote.Lease) -> None:
        async with self.shared.deploys:
            self._stop_if_interrupted()
            self._tell(Phase.APPLYING, f"{len(planned.steps)} steps", baseline=baseline)
            held = [each.layer for each in planned.held]
            begin = processes.size(self.log)
            command = processes.deploy_command(self.host, self.shared.ssh, held)
            process = processes.start(command, self.log, (lock, lease.stdin))
            problem = await self._awaited(process, lease)
            if problem or process.returncode != 0:
                why = problem or processes.reason(self.log, begin)
                raise HostError(f"{why}; {await self._afterwards(baseline)}")

    async def _awaited(self, process: subprocess.Popen[bytes], lease: remote.Lease) -> str:
        """Wait for a deploy; return why it was ended before its own end, empty if it was not."""
        limits = self.shared.limits
        deploy = asyncio.ensure_future(processes.ended(process))
        lost = asyncio.ensure_future(lease.lost.wait())
        try:
            await asyncio.wait({deploy, lost}, timeout=limits.deploy_s, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not deploy.done():
                await asyncio.wait({deploy}, timeout=limits.lost_s)
            if deploy.done():
                return ""
            processes.end(process.pid)
            await deploy
            was_lost = "its connection was lost during the deploy"
            return was_lost if lost.done() else f"the deploy had not ended after {limits.deploy_s:g} s"
        finally:
            lost.cancel()

    async def _afterwards(self, baseline: Sample) -> str:
        """Return what became of a host on which a deploy failed."""
        try:
            now = await remote.look(self.host, self.fresh, baseline.kernel_seq or 0)
        except HostError as error:
            return f"a fresh login does not work now: {error}"
        return "it has restarted meanwhile" if now.boot_id != baseline.boot_id else "a fresh login works"

    # --- the proof ---

    async def _verify(self, planned: Planned) -> tuple[str, ...]:
        """Log in anew and look; returns what is pending. Raises HostError for a host that is not as it should be."""
        answer = await self._fresh_answer()
        today = datetime.datetime.now().astimezone().date()
        report = host_report(answer, self.shared.rules, today)
        if answer.state is None or not report.reached:
            problem = explained(report.problem)
            raise HostError(f"no fresh login after {LOGIN_TRIES} tries: {problem}", Failure.UNKNOWN)
        self.shared.journal.keep_report(report)
        wrong, only_unknown = soak.drift(report, planned.held)
        guard = soak.guard_problem(self.host.policy, answer.state)
        if wrong or guard:
            failure = Failure.UNKNOWN if only_unknown and not guard else Failure.BAD
            raise HostError(soak.told([*([guard] if guard else []), *wrong]), failure)
        return soak.pending(report)

    async def _fresh_answer(self) -> gather.Answer:
        for _try in range(LOGIN_TRIES):
            answer = await gather.ask(self.host, self.fresh)
            if answer.state is not None:
                break
        return answer

    async def _soak(self, baseline: Sample, since_s: float | None) -> None:
        """Watch the host until its time is over; what happened during an interruption shows afterwards."""
        self._tell(Phase.SOAKING)
        end_s = (time.time() if since_s is None else since_s) + self.shared.settings.soak_s
        while True:
            # from before the last look to after it: a soak of no time looks once
            is_over = time.time() >= end_s
            found = soak.problems(baseline, await self._sample(baseline))
            if found:
                raise HostError(soak.told(found))
            if is_over:
                return
            await self._pause(min(self.shared.limits.soak_period_s, end_s - time.time()))

    async def _sample(self, baseline: Sample) -> Sample:
        for attempt in range(1, LOGIN_TRIES + 1):
            try:
                return await remote.look(self.host, self.fresh, baseline.kernel_seq or 0)
            except HostError as error:
                if attempt == LOGIN_TRIES:
                    raise HostError(f"no fresh login after {attempt} tries: {error}", Failure.UNKNOWN) from error
                self._stop_if_interrupted()
        raise AssertionError  # the last try returns or raises

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.shared.interrupted.wait()
        except TimeoutError:
            return
        raise Interrupted

    def _stop_if_interrupted(self) -> None:
        if self.shared.interrupted.is_set():
            raise Interrupted

    def _tell(
        self, phase: Phase, detail: str = "", *, failure: Failure = Failure.NONE,
        baseline: Sample | None = None, pending: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.shared.tell(HostEvent(time.time(), self.host.name, phase, detail, failure, baseline, pending))
