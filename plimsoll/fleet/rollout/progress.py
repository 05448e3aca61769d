"""Where a rollout stands: what its journal adds up to. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.fleet.rollout.model import (
    ENDED,
    GOOD,
    RESUMABLE,
    Begin,
    Event,
    Failure,
    HostEvent,
    OnFailure,
    Phase,
    Planned,
    RunEvent,
    Sample,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class HostProgress:
    """One host."""

    phase: Phase
    since_s: float
    """When it came to this phase, in seconds since 1970."""
    detail: str = ""
    failure: Failure = Failure.NONE
    touched: bool = False
    """Whether a deploy was begun there by this rollout."""
    baseline: Sample | None = None
    soaking_since_s: float | None = None
    """When it was first seen to be as it should be; kept over an interruption."""
    pending: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """All hosts, by name in the order of the plan."""

    begin: Begin
    hosts: Mapping[str, HostProgress]
    stopped: str = ""
    """Why no further batch was begun; empty if that is not so."""
    ended: bool = False
    """Whether it came to its end, be that a stop; one that is not was interrupted, or is running."""

    @property
    def phases(self) -> dict[str, Phase]:
        """Where each host stands."""
        return {name: host.phase for name, host in self.hosts.items()}

    @property
    def counts(self) -> Counter[Phase]:
        """How many hosts are in which phase."""
        return Counter(host.phase for host in self.hosts.values())

    @property
    def all_good(self) -> bool:
        """Whether every host is as it was to be."""
        return all(host.phase in GOOD for host in self.hosts.values())

    @property
    def takes_back(self) -> bool:
        """Whether it was interrupted while it took back what was done."""
        return bool(self.stopped) and not self.ended and self.begin.settings.on_failure is OnFailure.REVERT

    @property
    def resumable(self) -> bool:
        """Whether something is left that `--resume` can do; what was taken back is not begun again."""
        phases = set(self.phases.values())
        return self.takes_back or (Phase.REVERTED not in phases and bool((phases - ENDED) | (phases & RESUMABLE)))

    @property
    def batch_number(self) -> int:
        """Which batch is at work, from 1; the number of all of them once nothing is left to do."""
        batches = self.begin.batches
        open_ones = (n for n, batch in enumerate(batches, 1) if any(self.hosts[h].phase not in ENDED for h in batch))
        return next(open_ones, len(batches))


def first(begin: Begin) -> Progress:
    """Return where a rollout stands before its first event."""
    return Progress(begin, {planned.name: _first_of_host(planned, begin.at_s) for planned in begin.hosts})


def _first_of_host(planned: Planned, at_s: float) -> HostProgress:
    if planned.problem:
        return HostProgress(Phase.LEFT_OUT, at_s, planned.problem, planned.failure)
    return HostProgress(Phase.WAITING, at_s) if planned.steps else HostProgress(Phase.UNCHANGED, at_s, planned.waits)


def after(progress: Progress, event: Event) -> Progress:
    """Return where it stands after one more event; one of a host that is not in the plan changes nothing."""
    if isinstance(event, RunEvent):
        return _after_run(progress, event)
    before = progress.hosts.get(event.host)
    if before is None:
        return progress
    return replace(progress, hosts={**progress.hosts, event.host: _after_host(before, event)})


def _after_host(before: HostProgress, event: HostEvent) -> HostProgress:
    soaks_first = event.phase is Phase.SOAKING and before.soaking_since_s is None
    starts_over = event.phase in (Phase.APPLYING, *RESUMABLE)
    return HostProgress(
        phase=event.phase,
        since_s=event.at_s,
        detail=event.detail,
        failure=event.failure,
        touched=before.touched or event.phase is Phase.APPLYING,
        baseline=before.baseline or event.baseline,
        soaking_since_s=event.at_s if soaks_first else None if starts_over else before.soaking_since_s,
        pending=event.pending or before.pending,
    )


def _after_run(progress: Progress, event: RunEvent) -> Progress:
    match event.event:
        case "stop":
            return replace(progress, stopped=event.detail)
        case "end":
            return replace(progress, ended=True)
        case "resume":
            hosts = {name: _tried_again(host, event.at_s) for name, host in progress.hosts.items()}
            return replace(progress, hosts=hosts, stopped="", ended=False)
        case _:
            return progress


def _tried_again(host: HostProgress, at_s: float) -> HostProgress:
    """Return a host as `--resume` begins with it: one that failed waits again, and is measured against a new start."""
    if host.phase not in RESUMABLE:
        return host
    return HostProgress(Phase.WAITING, at_s, touched=host.touched)


def of(begin: Begin, events: Iterable[Event]) -> Progress:
    """Return what a journal adds up to."""
    progress = first(begin)
    for event in events:
        progress = after(progress, event)
    return progress
