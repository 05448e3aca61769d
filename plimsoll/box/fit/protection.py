"""What in a command looks like a protection and is none. Pure."""

from collections.abc import Iterator

from plimsoll.box.fit.box import Box
from plimsoll.box.fit.model import GIB, Launch
from plimsoll.box.fit.sizes import gib


def false_ones(launch: Launch, box: Box) -> list[str]:
    """Return what limits, restarts and scores around a command do not do, each with its place."""
    return [*_limits(launch, box), *_restarts(launch), *_others(launch)]


def _limits(launch: Launch, box: Box) -> Iterator[str]:
    guards = launch.guards
    if guards.memory_bytes is not None:
        beyond = f", and lies above the {gib(box.total)} of the box" if guards.memory_bytes >= box.total else ""
        yield (
            f"--memory {gib(guards.memory_bytes)} is no limit for the model: memory that the driver takes for the GPU "
            f"is not charged to the container{beyond}"
        )
    for name, value, place in guards.limits:
        if guards.client_only:
            yield f"{name}={value} ({place}) bounds the client of the container daemon, not the engine"
        else:
            yield f"{name}={value} ({place}) does not see what the driver takes for the GPU (0.2 % of it was counted)"


def _restarts(launch: Launch) -> Iterator[str]:
    guards = launch.guards
    if guards.restart:
        where = f" ({guards.restart_place})" if guards.restart_place else ""
        yield (
            f"restart {guards.restart}{where}: a new start begins before the memory of the last one is back, and fails "
            "or takes somebody else's; free memory sinks with every try"
        )


def _others(launch: Launch) -> Iterator[str]:
    guards = launch.guards
    if launch.environment.get("RAY_memory_monitor_refresh_ms") == "0":
        yield "RAY_memory_monitor_refresh_ms=0 takes away Ray's own guard against running out of memory"
    if guards.oom_score_adj is not None and guards.oom_score_adj < 0:
        yield f"oom_score_adj {guards.oom_score_adj} makes the kernel shoot everything else before the engine"
    if guards.ipc_host and guards.shm_bytes:
        yield f"shm_size {gib(guards.shm_bytes)} does nothing beside ipc: host"
    elif guards.shm_bytes and guards.shm_bytes >= 32 * GIB:
        yield f"shm_size {gib(guards.shm_bytes)}: what is written there is memory of the box as well"
