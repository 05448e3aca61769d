"""Podman's containers, from its own database, read without asking podman and without writing: as docker's are.

Since 4.8 podman keeps them in SQLite, in `db.sql` below its storage: a row of ContainerConfig a container, with a JSON
document. An older one has a database of another kind, which is not read: that is said.
"""

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box import containers, engines
from plimsoll.box.containers import CONTAINER_ID, as_list, as_mapping, as_number, as_text
from plimsoll.box.host import Host
from plimsoll.box.observing import MAX_FILE_BYTES, Observed, is_on, regular_text
from plimsoll.box.units import CGROUP

STORAGE = "/var/lib/containers/storage"
STORAGE_OF_USER = ".local/share/containers/storage"
SETTINGS = "/etc/containers/storage.conf"
MAX_DATABASE_BYTES = 64 << 20
"""A row is some 10 kB."""
MAX_STEPS = 2_000_000
"""Of SQLite's machine, 0.1 s: a user's database may hold a view that never ends."""
_RUNNING, _PAUSED = 3, 5
"""As podman numbers the states of a container."""


@dataclass(frozen=True)
class _Row:
    identity: str
    running: bool
    text: str


def read(
    host: Host, homes: Iterable[str], cgroups: Collection[str], mem_total_bytes: int | None, found: Observed
) -> dict[str, bool]:
    """Observe every container of root's podman and of users'; arguments and result as of `containers.read`."""
    seen: dict[str, bool] = {}
    for root in dict.fromkeys([_graph_root(host, found), *(f"{home}/{STORAGE_OF_USER}" for home in homes)]):
        before = len(found.problems) + len(found.denied)
        path = f"{root}/db.sql"
        with found.reading(path):
            for row in _rows(host, path):
                with found.reading(f"{path} {row.identity[:12]}"):
                    group = containers.cgroup_of(row.identity, cgroups)
                    swap_max = host.text_or_none(f"{CGROUP}{group}/memory.swap.max") if group else None
                    live = {"swap_max_live": swap_max, "mem_total_bytes": mem_total_bytes}
                    _container(path, row, live, found)
                    seen[row.identity] = True
        _note_older(host, root, found)
        if len(found.problems) + len(found.denied) > before:
            seen[root] = False
    return seen


def _graph_root(host: Host, found: Observed) -> str:
    with found.reading(SETTINGS):
        text = regular_text(host, SETTINGS)
        import tomllib  # noqa: PLC0415  # 3 ms, which a host without podman is spared

        root = as_mapping(tomllib.loads(text).get("storage")).get("graphroot")
        if isinstance(root, str) and root.startswith("/") and "$" not in root:
            return root.rstrip("/")
    return STORAGE


def _note_older(host: Host, root: str, found: Observed) -> None:
    path, listed = f"{root}/libpod/bolt_state.db", f"{root}/overlay-containers/containers.json"
    with found.reading(listed):
        if host.exists(path) and not host.exists(f"{root}/db.sql") and as_list(json.loads(regular_text(host, listed))):
            found.missed(path, "podman's database of before 4.8 is not read: what its containers were told is unknown")


def _rows(host: Host, path: str) -> list[_Row]:
    """Return at most MAX_CONTAINERS; raises OSError and ValueError."""
    descriptor = _open(host, path)
    try:
        return _query(descriptor)
    finally:
        os.close(descriptor)


def _open(host: Host, path: str) -> int:
    real = host.path(path)
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise ValueError("is no regular file")
    descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_DATABASE_BYTES:
        os.close(descriptor)
        raise ValueError(f"is no regular file of at most {MAX_DATABASE_BYTES} bytes")
    return descriptor


_QUERY = """\
SELECT ContainerConfig.ID, ContainerState.State, ContainerConfig.JSON
FROM ContainerConfig LEFT JOIN ContainerState ON ContainerState.ID = ContainerConfig.ID
LIMIT ?"""


def _query(descriptor: int) -> list[_Row]:
    import sqlite3  # noqa: PLC0415  # 9 ms, which a host without podman is spared

    # immutable: no lock is taken and nothing beside it is opened; a change in this moment is an error at worst
    try:
        connection = sqlite3.connect(f"file:/proc/self/fd/{descriptor}?mode=ro&immutable=1", uri=True)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_FILE_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.set_progress_handler(lambda: 1, MAX_STEPS)
            rows = connection.execute(_QUERY, (containers.MAX_CONTAINERS,)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(str(error)) from error
    well_formed = [row for row in rows if CONTAINER_ID.fullmatch(as_text(row[0])) and isinstance(row[2], str)]
    return [_Row(identity, state in (_RUNNING, _PAUSED), text) for identity, state, text in well_formed]


def _container(path: str, row: _Row, live: Mapping[str, Any], found: Observed) -> None:
    config = as_mapping(json.loads(row.text))
    process = as_mapping(as_mapping(config.get("spec")).get("process"))
    linux = as_mapping(as_mapping(config.get("spec")).get("linux"))
    limits = as_mapping(as_mapping(linux.get("resources")).get("memory"))
    memory, swap = as_number(limits.get("limit")), as_number(limits.get("swap"))
    words = [as_text(word) for word in as_list(process.get("args"))]
    engine = engines.of_command(words) or engines.of_image(as_text(config.get("rootfsImageName")))
    name = as_text(config.get("name")) or row.identity[:12]
    found.saw(
        "container",
        name,
        path,
        name=name,
        id=row.identity[:12],
        running=row.running,
        uses_gpu=bool(engine) or _asks_for_gpu(config, linux),
        engine=engine,
        memory_bytes=memory,
        memory_swap_bytes=swap,
        swap_forbidden=bool(memory) and memory == swap,
        restart=as_text(config.get("restart_policy")) or "no",
        restart_max=as_number(config.get("restart_retries")) or 0,
        ipc=_ipc(linux),
        shm_bytes=as_number(config.get("shmSize")),
        oom_score_adj=as_number(process.get("oomScoreAdj")),
        skips_memory_check=is_on(containers.skip_check_of(as_list(process.get("env")))),
        compose_file=as_text(as_mapping(config.get("labels")).get(containers.COMPOSE_FILES)) or None,
        **live,
    )


def _asks_for_gpu(config: Mapping[str, Any], linux: Mapping[str, Any]) -> bool:
    by_name = any(as_text(each).startswith("nvidia.com/") for each in as_list(config.get("cdiDevices")))
    devices = (as_text(as_mapping(each).get("path")) for each in as_list(linux.get("devices")))
    return by_name or any(device.startswith("/dev/nvidia") for device in devices)


def _ipc(linux: Mapping[str, Any]) -> str:
    """Return `host` where the container has no IPC namespace of its own; empty where it has."""
    kinds = {as_text(as_mapping(each).get("type")) for each in as_list(linux.get("namespaces"))}
    return "host" if kinds and "ipc" not in kinds else ""
