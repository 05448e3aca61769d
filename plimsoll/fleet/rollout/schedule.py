"""Who comes when: the canary, then batches, never two hosts of one cluster at a time; and when to stop. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.fleet.rollout.model import ENDED, Begin, Failure, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from plimsoll.fleet.rollout.progress import Progress

_SIZE = re.compile(r"([0-9]{1,4})(%?)")
_PERCENT = 100


def batch_size(text: str, hosts: int) -> int:
    """Return how many hosts `N` or `N%` of them are, at least one; raises ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    number = int(match[1]) if match else 0
    if not match or not number or (match[2] and number > _PERCENT):
        raise ValueError(f"{text!r} must be a number of hosts, such as 5, or a part of them, such as 25%")
    return max(1, hosts * number // _PERCENT) if match[2] else number


def batches(
    hosts: Sequence[str], canaries: Collection[str], size: int, clusters: Sequence[Collection[str]]
) -> tuple[tuple[str, ...], ...]:
    """Return every host once, in batches: the canaries, then up to `size` at a time, in the order of `hosts`.

    Hosts of one cluster are in different batches, so that there may be more of them than the numbers ask for.
    """
    first = [host for host in hosts if host in canaries]
    rest = [host for host in hosts if host not in canaries]
    return (*_packed(first, len(first), clusters), *_packed(rest, size, clusters))


def _packed(hosts: Sequence[str], size: int, clusters: Sequence[Collection[str]]) -> list[tuple[str, ...]]:
    waiting, found = list(hosts), []
    while waiting:
        batch: list[str] = []
        for host in waiting:
            if len(batch) < size and not partners(host, clusters) & set(batch):
                batch.append(host)
        found.append(tuple(batch))
        waiting = [host for host in waiting if host not in batch]
    return found


def partners(host: str, clusters: Sequence[Collection[str]]) -> set[str]:
    """Return the other hosts that serve a model together with this one."""
    together = {member for cluster in clusters if host in cluster for member in cluster}
    return together - {host}


def next_batch(begin: Begin, phases: Mapping[str, Phase]) -> tuple[str, ...]:
    """Return the hosts of the first batch that has not ended, those that have ended left out; empty at the end."""
    for batch in begin.batches:
        open_ones = tuple(host for host in batch if phases[host] not in ENDED)
        if open_ones:
            return open_ones
    return ()


def stop_reason(begin: Begin, phases: Mapping[str, Phase]) -> str:
    """Return why no further batch may begin, empty if it may."""
    failed = [host for batch in begin.batches for host in batch if phases[host] is Phase.FAILED]
    canaries = [host for host in failed if host in begin.canaries]
    if canaries:
        return f"the canary {', '.join(canaries)} failed"
    allowed = begin.settings.max_failures
    if len(failed) > allowed:
        return f"{len(failed)} failed ({', '.join(failed)}), {allowed} may"
    return ""


def failed_partner(begin: Begin, phases: Mapping[str, Phase], host: str) -> str | None:
    """Return a host of the same cluster that failed: a second one down would end what the cluster serves."""
    return next((p for p in sorted(partners(host, begin.clusters)) if phases.get(p) is Phase.FAILED), None)


_BY_FAILURE = {Failure.UNKNOWN: 3, Failure.BUSY: 75, Failure.BAD: 2}
"""The project's exit codes, in the order in which the worse one is told."""


def exit_code(progress: Progress) -> int:
    """Return 0 if every host is as it was to be; else 3, 75 or 2 by the worst host: not told, busy, or not done."""
    failures = {host.failure for host in progress.hosts.values()}
    told = next((code for failure, code in _BY_FAILURE.items() if failure in failures), 0)
    return told or (0 if progress.all_good else _BY_FAILURE[Failure.BAD])
