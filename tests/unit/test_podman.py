"""Podman's containers, as its database has them: real databases, and whatever a user may put in their place."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import podman
from tests.unit.protection_builders import GIB, ID, SECRETS, only, process, read

OTHER = "b2" * 32
CONFIG: dict[str, Any] = {
    "id": ID,
    "name": "vllm-head",
    "rootfsImageName": "docker.io/vllm/vllm-openai:latest",
    "restart_policy": "on-failure",
    "restart_retries": 3,
    "shmSize": GIB,
    "labels": {"com.docker.compose.project.config_files": "/srv/vllm/compose.yml"},
    "spec": {
        "process": {
            "args": ["vllm", "serve", "m", "--api-key", "sk-secret"],
            "env": ["HF_TOKEN=hf_secret", "VLLM_SKIP_INIT_MEMORY_CHECK=1"],
            "oomScoreAdj": -500,
        },
        "linux": {
            "resources": {"memory": {"limit": 64 * GIB, "swap": 64 * GIB}},
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
        },
    },
}


def database(root: Path, *rows: tuple[str, int, object], storage: str = podman.STORAGE) -> Path:
    """Write podman's database below `root`: (id, state, configuration) a container."""
    path = root / storage.lstrip("/") / "db.sql"
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE ContainerConfig (ID TEXT PRIMARY KEY, Name TEXT, PodID TEXT, JSON TEXT)")
    connection.execute("CREATE TABLE ContainerState (ID TEXT PRIMARY KEY, State INTEGER, ExitCode INTEGER, JSON TEXT)")
    for identity, state, config in rows:
        text = config if isinstance(config, str) else json.dumps(config)
        connection.execute("INSERT INTO ContainerConfig VALUES (?, 'n', NULL, ?)", (identity, text))
        connection.execute("INSERT INTO ContainerState VALUES (?, ?, NULL, '{}')", (identity, state))
    connection.commit()
    connection.close()
    return path


def _containers(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["subject"]: each for each in found["observations"] if each["kind"] == "container"}


def test_a_container_of_podmans(tmp_path: Path) -> None:
    """What bears on memory is read as from docker's files; arguments and other variables stay where they are."""
    database(tmp_path, (ID, 3, CONFIG))
    scope = f"/machine.slice/libpod-{ID}.scope"
    live = {f"/sys/fs/cgroup{scope}/memory.swap.max": "max\n"} | process(9, "sleep", ["sleep"], cgroup=f"{scope}/x")
    found = read(tmp_path, live)
    seen = only(found, "container")
    wanted = {
        "subject": "vllm-head",
        "file": "/var/lib/containers/storage/db.sql",
        "running": True,
        "uses_gpu": True,
        "engine": "vllm",
        "memory_bytes": 64 * GIB,
        "swap_forbidden": True,
        "swap_max_live": "max",
        "restart": "on-failure",
        "restart_max": 3,
        "ipc": "host",
        "shm_bytes": GIB,
        "oom_score_adj": -500,
        "skips_memory_check": True,
        "compose_file": "/srv/vllm/compose.yml",
    }
    assert {key: seen[key] for key in wanted} == wanted
    assert not [secret for secret in SECRETS if secret in json.dumps(found)]
    assert found["not_seen"] == []


def test_what_a_container_was_not_told(tmp_path: Path) -> None:
    """Without a policy nothing restarts it; without a limit there is none; a GPU may be asked for by name alone."""
    bare = {"spec": {"linux": {"namespaces": [{"type": "ipc"}]}}, "cdiDevices": ["nvidia.com/gpu=all"]}
    database(tmp_path, (ID, 6, bare))
    seen = only(read(tmp_path, {}), "container")
    assert (seen["restart"], seen["restart_max"], seen["memory_bytes"], seen["ipc"]) == ("no", 0, None, "")
    assert (seen["running"], seen["uses_gpu"], seen["engine"], seen["name"]) == (False, True, None, ID[:12])


def test_databases_of_users_and_elsewhere(tmp_path: Path) -> None:
    """A user's podman has its own database, and root's storage may have been moved."""
    database(tmp_path, (ID, 3, {"name": "moved"}), storage="/srv/pods")
    database(tmp_path, (OTHER, 3, {"name": "own"}), storage=f"/home/alice/{podman.STORAGE_OF_USER}")
    found = read(tmp_path, {podman.SETTINGS: '[storage]\ngraphroot = "/srv/pods/"\n'})
    assert set(_containers(found)) == {"moved", "own"}


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    """Neither a lock nor a journal appears beside the database, and the database stays as it was."""
    path = database(tmp_path, (ID, 3, CONFIG))
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    read(tmp_path, {})
    assert [each.name for each in path.parent.iterdir()] == ["db.sql"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "broken",
    [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 4096],
    ids=["empty", "text", "damaged"],
)
def test_what_is_no_database_is_said(tmp_path: Path, broken: bytes) -> None:
    """A file that SQLite does not take for podman's is not seen, and breaks nothing."""
    database(tmp_path).write_bytes(broken)
    found = read(tmp_path, {})
    assert _containers(found) == {}
    assert [note for note in found["not_seen"] if "db.sql" in note]


def test_one_odd_row_hides_no_other(tmp_path: Path) -> None:
    """A row that is no JSON is named; the others are seen."""
    database(tmp_path, (ID, 3, "{"), (OTHER, 3, {"name": "good"}))
    found = read(tmp_path, {})
    assert set(_containers(found)) == {"good"}
    assert [note for note in found["not_seen"] if ID[:12] in note]


def test_a_query_that_never_ends_is_ended(tmp_path: Path) -> None:
    """A user's database may hold a view that counts for ever in the place of a table."""
    path = database(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE ContainerConfig")
    connection.execute(
        "CREATE VIEW ContainerConfig AS WITH RECURSIVE endless(ID) AS (SELECT 1 UNION ALL SELECT ID + 1 FROM endless)"
        " SELECT ID, 'x' AS JSON FROM endless WHERE ID < 0"
    )
    connection.commit()
    connection.close()
    assert [note for note in read(tmp_path, {})["not_seen"] if "interrupted" in note]


def test_a_fifo_in_its_place_is_not_opened(tmp_path: Path) -> None:
    """Whoever puts a FIFO where the database is expected makes nobody wait."""
    path = database(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert [note for note in read(tmp_path, {})["not_seen"] if "no regular file" in note]


def test_an_older_database_is_said_not_to_be_read(tmp_path: Path) -> None:
    """Before 4.8 podman kept another kind of database: it is named where it has containers, and only there."""
    older = f"{podman.STORAGE}/libpod/bolt_state.db"
    listed = f"{podman.STORAGE}/overlay-containers/containers.json"
    assert not read(tmp_path, {older: "x", listed: "[]"})["not_seen"]
    assert [note for note in read(tmp_path, {listed: '[{"id": "x"}]'})["not_seen"] if older in note]


def test_a_client_whose_container_was_seen(tmp_path: Path) -> None:
    """What a running `podman run` was told is not reported twice once its container was seen."""
    client = process(50, "podman", ["podman", "run", "-m", "64g", "vllm/vllm-openai"])
    assert only(read(tmp_path, client), "docker_client")["container_seen"] is False
    database(tmp_path, (ID, 3, CONFIG))
    assert only(read(tmp_path, {}), "docker_client")["container_seen"] is True
