"""What a host shows of protections that nobody here has set: containers, units, processes, killers."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import containers, observing, protections
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed
from tests.unit.builders import NEEDS_ROOT, FakeHost, write_tree
from tests.unit.protection_builders import (
    CONFIG,
    GIB,
    HOSTCONFIG,
    ID,
    MEMORY,
    SECRETS,
    container_files,
    only,
    process,
    read,
    settings,
)

# --- containers -------------------------------------------------------------------------------------


def test_container(tmp_path: Path) -> None:
    """What bears on memory is taken from a container's files; its arguments and other variables stay there."""
    scope = f"/system.slice/docker-{ID}.scope"
    live = {f"/sys/fs/cgroup{scope}/memory.swap.max": "max\n"} | process(9, "sleep", ["sleep"], cgroup=f"{scope}/x")
    found = read(tmp_path, container_files(HOSTCONFIG, CONFIG) | live)
    seen = only(found, "container")
    assert seen["file"] == f"/var/lib/docker/containers/{ID}/hostconfig.json"
    wanted = {
        "subject": "vllm-head",
        "running": True,
        "uses_gpu": True,
        "engine": "vllm",
        "memory_bytes": 64 * GIB,
        "swap_forbidden": True,
        "swap_max_live": "max",
        "restart": "unless-stopped",
        "ipc": "host",
        "oom_score_adj": -500,
        "skips_memory_check": True,
        "compose_file": "/srv/vllm/compose.yml",
    }
    assert {key: seen[key] for key in wanted} == wanted
    assert not [secret for secret in SECRETS if secret in json.dumps(found)]
    assert found["not_seen"] == []


@pytest.mark.parametrize(
    ("hostconfig", "expected"),
    [
        ({"Runtime": "nvidia"}, True),
        ({"DeviceRequests": [{"Driver": "cdi"}]}, True),
        ({"Devices": [{"PathOnHost": "/dev/nvidia0"}]}, True),
        ({"Runtime": "runc", "DeviceRequests": None, "Devices": [{"PathOnHost": "/dev/fuse"}]}, False),
    ],
)
def test_container_with_gpu(tmp_path: Path, hostconfig: object, expected: bool) -> None:
    """A GPU is asked for by a request, a runtime or a device."""
    found = read(tmp_path, container_files(hostconfig, {"Name": "/x", "Config": {"Image": "postgres"}}))
    assert only(found, "container")["uses_gpu"] is expected


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/user.slice/user-1001.slice/user@1001.service/app.slice/docker-{ID}.scope",
        f"/a.slice/a-b.slice/docker-{ID}.scope",
        f"/docker/{ID}",
    ],
)
def test_where_a_daemon_puts_its_containers(tmp_path: Path, cgroup: str) -> None:
    """The live limit is read wherever the container runs: rootless, in a slice of its own, without systemd's driver."""
    live = {f"/sys/fs/cgroup{cgroup}/memory.swap.max": "0\n"} | process(9, "sleep", ["sleep"], cgroup=cgroup)
    assert only(read(tmp_path, container_files(HOSTCONFIG, CONFIG) | live), "container")["swap_max_live"] == "0"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"Image": "x", "Entrypoint": ["bash", "-c", "cd /x && vllm serve m"]}, "vllm"),
        ({"Image": "x", "Cmd": ["python3", "-m", "sglang.launch_server"]}, "sglang"),
        ({"Image": "lmsysorg/sglang:latest", "Cmd": ["bash"]}, "sglang"),
        ({"Image": "prom/vllm-exporter", "Cmd": ["--target", "http://vllm:8000"]}, None),
        ({"Image": "nginx", "Cmd": ["nginx", "-c", "/etc/ollama.conf"]}, None),
        ({"Image": ["x"], "Cmd": [None, {}]}, None),
    ],
)
def test_engine_of_a_container(tmp_path: Path, config: object, expected: str | None) -> None:
    """Its command tells, else its image; what only speaks of an engine does not."""
    found = read(tmp_path, container_files({}, {"Name": "/x", "Config": config}))
    assert only(found, "container")["engine"] == expected


def test_containers_of_other_daemons(tmp_path: Path) -> None:
    """The daemon may keep its data elsewhere, and a user may have a daemon of his own."""
    rootless = "/home/alice/.local/share/docker"
    files = container_files({}, {"Name": "/own"}, rootless) | container_files({}, {"Name": "/moved"}, "/srv/docker")
    files |= container_files({}, {"Name": "/snap"}, containers.SNAP_ROOT)
    found = read(tmp_path, files | {"/etc/docker/daemon.json": '{"data-root": "/srv/docker/"}'})
    assert sorted(each["subject"] for each in found["observations"]) == ["moved", "own", "snap"]


BROKEN = {
    "no JSON": "{",
    "a list": "[1]",
    "deep": "[" * 100_000,
    "not UTF-8": "\udcff",
    "too large": " " * (observing.MAX_FILE_BYTES + 1),
    "wrong types": json.dumps({key: [{"x": 1}] for key in (*HOSTCONFIG, "Name", "State", "Config")}),
    "a number too long": f'{{"Memory": {"9" * 5000}}}',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("name", ["hostconfig.json", "config.v2.json"])
def test_broken_container_files(tmp_path: Path, broken: str, name: str) -> None:
    """A file that cannot be understood is said not to be seen, or its odd values are unknown; nothing is raised."""
    files = container_files(HOSTCONFIG, CONFIG)
    path = f"/var/lib/docker/containers/{ID}/{name}"
    write_tree(tmp_path, {each: text for each, text in files.items() if each != path})
    (tmp_path / path.lstrip("/")).write_bytes(broken.encode("utf-8", "surrogateescape"))
    found = read(tmp_path, {})
    seen = [each for each in found["observations"] if each["kind"] == "container"]
    assert seen or [note for note in found["not_seen"] if ID[:12] in note]


def test_a_fifo_is_not_opened(tmp_path: Path) -> None:
    """Whoever puts a FIFO where a file is expected makes nobody wait."""
    unit = tmp_path / "home/mallory/.config/systemd/user/x.service"
    unit.parent.mkdir(parents=True)
    os.mkfifo(unit)
    found = read(tmp_path, {})
    assert found["not_seen"] == [
        "/home/mallory/.config/systemd/user/x.service: cannot be understood: is no regular file"
    ]


def test_what_only_root_may_see_is_one_note() -> None:
    """However many places a user may not look into, the report says it once and names some."""
    found = Observed()
    for number in range(20):
        with found.reading(f"/{number}"):
            raise PermissionError
    assert found.not_seen == ["permission denied, read as root: /0, /1, /2, /3, /4, /5, /6, /7 and 12 more"]


@NEEDS_ROOT
def test_without_root_it_says_what_it_could_not_see(tmp_path: Path) -> None:
    """A directory of root's is no directory without containers."""
    write_tree(tmp_path, container_files(HOSTCONFIG, CONFIG))
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o755)
    (tmp_path / "var/lib/docker").chmod(0o700)
    found = Observed()
    os.seteuid(65534)
    try:
        containers.read(Host(root=str(tmp_path)), (), (), None, found)
    finally:
        os.seteuid(0)
    assert found.observations == []
    assert found.not_seen == ["permission denied, read as root: /var/lib/docker/containers"]


def test_bounds(tmp_path: Path) -> None:
    """Only so many containers and units are looked at, and what is left out is said."""
    names = [f"{number:064x}" for number in range(containers.MAX_CONTAINERS + 3)]
    files = {f"/var/lib/docker/containers/{name}/hostconfig.json": "{}" for name in names}
    files |= {f"/var/lib/docker/containers/{name}/config.v2.json": "{}" for name in names}
    files |= {
        f"/home/alice/.config/systemd/user/u{number}.service": "[Service]\nOOMScoreAdjust=-9\n" for number in range(203)
    }
    found = read(tmp_path, files)
    kinds = [each["kind"] for each in found["observations"]]
    assert (kinds.count("container"), kinds.count("unit_setting")) == (200, 200)
    assert [note.partition(": ")[2] for note in found["not_seen"]] == [
        "203 entries, only the first 200 were looked at",
        "203 entries, only the first 200 were looked at",
    ]


# --- docker on command lines ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["docker", "run", "--rm", "-it", "--gpus", "all", "-m", "64g", "vllm/x", "-m", "9g"], 64 * GIB),
        (["docker", "run", "--memory=100g", "x"], 100 * GIB),
        (["docker", "run", "-m64g", "x"], 64 * GIB),
        (["docker", "run", "-e", "A=-m 9g", "--name", "run", "--memory", "512MiB", "x"], 512 << 20),
        (["docker", "container", "run", "--memory", "1073741824", "x"], GIB),
        (["docker", "run", "-itm64g", "x"], 64 * GIB),
        (["docker", "run", "-dp", "8000:8000", "-m", "64g", "x"], 64 * GIB),
        (["podman", "run", "--rmi", "--no-hosts", "-m", "64g", "x"], 64 * GIB),
        (["docker", "exec", "-m", "64g", "x"], None),
        (["docker", "run", "python", "-m", "vllm"], None),
        (["docker", "run", "--memory"], None),
        (["docker", "run", "--memory", "lots", "x"], None),
        (["docker", "compose", "up", "-m"], None),
    ],
)
def test_docker_run_options(words: list[str], expected: int | None) -> None:
    """Options end at the image: what comes after is the container's own command."""
    arguments = containers.client_arguments(words)
    assert arguments is not None
    assert containers.client_facts(arguments)["memory_bytes"] == expected


@pytest.mark.parametrize(
    "words",
    [
        ["/usr/bin/env", "-i", "HOME=/x", "/usr/bin/docker", "run", "x"],
        ["/bin/bash", "-lc", "cd /srv && exec docker compose up"],
        ["docker-compose", "up"],
        ["podman-compose", "up"],
        ["sudo", "-u", "llm", "docker", "exec", "-i", "x", "vllm"],
        ["-/usr/bin/bash", "-c", "docker compose pull; docker compose up"],
        ["podman", "--log-level", "info", "run", "x"],
    ],
)
def test_docker_behind_something(words: list[str]) -> None:
    """`env` and a shell in front do not hide that a container is started."""
    assert containers.client_arguments(words)


@pytest.mark.parametrize(
    "words",
    [["systemctl", "restart", "docker"], ["backup", "docker", "start"], ["dockerd"], ["docker", "ps"], ["docker"], []],
)
def test_other_command_lines(words: list[str]) -> None:
    """Whatever starts no container is left alone."""
    assert containers.client_arguments(words) is None


def test_docker_client(tmp_path: Path) -> None:
    """The limit of the client's own cgroup is told from what the container was given."""
    argv = ["docker", "run", "--gpus", "all", "--memory", "64g", "--oom-score-adj", "-5", "-e", "K=sk-secret", "vllm/x"]
    files = process(7, "docker", argv, cgroup="/system.slice/llm.service")
    found = read(tmp_path, files | {"/sys/fs/cgroup/system.slice/llm.service/memory.max": f"{256 << 20}\n"})
    seen = only(found, "docker_client")
    assert (seen["memory_bytes"], seen["client_limit_bytes"], seen["oom_score_adj"]) == (64 * GIB, 256 << 20, -5)
    assert (seen["unit"], seen["container_seen"], seen["uses_gpu"]) == ("llm.service", False, True)
    assert not [secret for secret in SECRETS if secret in json.dumps(found)]


# --- engines and killers ----------------------------------------------------------------------------


def test_engine(tmp_path: Path) -> None:
    """Processes of one cgroup and score are one engine; the lowest limit on the way to the root counts."""
    group = "/system.slice/vllm.service"
    environ = "HF_TOKEN=hf_secret\0VLLM_SKIP_INIT_MEMORY_CHECK=1\0"
    files = {
        **process(10, "vllm", ["/x/vllm", "serve"], cgroup=group, score=-1000, environ="PATH=/bin\0"),
        **process(11, "VLLM::EngineCor", ["VLLM::EngineCore"], cgroup=group, score=-1000, environ=environ),
        f"/sys/fs/cgroup{group}/memory.max": "max\n",
        f"/sys/fs/cgroup{group}/memory.current": "1000\n",
        "/sys/fs/cgroup/system.slice/memory.max": f"{8 * GIB}\n",
    }
    found = read(tmp_path, files)
    seen = only(found, "engine")
    assert seen["subject"] == "vllm (pid 10 and 1 more)"
    assert (seen["oom_score_adj"], seen["memory_max_bytes"], seen["limited_by"]) == (-1000, 8 * GIB, "/system.slice")
    assert (seen["skips_memory_check"], seen["limit_reported"], seen["memory_current_bytes"]) == (True, False, 1000)
    assert "hf_secret" not in json.dumps(found)


def test_limit_that_is_reported_elsewhere(tmp_path: Path) -> None:
    """A limit that a container or a unit was observed to have is not reported again for its processes."""
    scope, unit = f"/system.slice/docker-{ID}.scope", "/system.slice/vllm.service"
    files = {
        **container_files(HOSTCONFIG, CONFIG),
        **process(10, "vllm", ["vllm"], cgroup=scope),
        **process(11, "vllm", ["vllm"], cgroup=unit),
        f"/sys/fs/cgroup{scope}/memory.max": "5\n",
        f"/sys/fs/cgroup{unit}/memory.max": "5\n",
        "/usr/lib/systemd/system/vllm.service": "[Service]\nExecStart=/x/vllm serve\nMemoryMax=5\n",
    }
    found = read(tmp_path, files)
    assert [each["limit_reported"] for each in found["observations"] if each["kind"] == "engine"] == [True, True]
    assert settings(found) == {"MemoryMax": ("/usr/lib/systemd/system/vllm.service", 3)}


def test_environment_that_cannot_be_read(tmp_path: Path) -> None:
    """Whether the check is skipped is then unknown, not False."""
    found = read(tmp_path, process(10, "ollama", ["ollama", "serve"]))
    assert only(found, "engine")["skips_memory_check"] is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], (10.0, 10.0)),
        (["-m", "15", "-s", "5"], (15.0, 5.0)),
        (["-r", "60", "-m", "5,3", "-s", "100,100", "-g", "--prefer", "-m"], (5.0, 100.0)),
        (["-gm4", "-s50,20"], (4.0, 50.0)),
        (["-M", "1275330"], (1.0, 10.0)),
        (["-m", "2", "-M", "99999999"], (2.0, 10.0)),
        (["-m", "x", "-s"], (10.0, 10.0)),
    ],
)
def test_earlyoom_arguments(tmp_path: Path, argv: list[str], expected: tuple[float, float]) -> None:
    """Thresholds are what the running daemon was given, its own 10 % otherwise; of two kinds the lower counts."""
    seen = only(read(tmp_path, process(9, "earlyoom", ["/usr/bin/earlyoom", *argv])), "earlyoom")
    found = (round(seen["mem_term_percent"], 2), seen["swap_term_percent"])
    assert (found, seen["dryrun"]) == (expected, False)


@pytest.mark.parametrize(("capabilities", "expected"), [("1ffffffffff", True), ("4020", True), ("4000", False)])
def test_whether_a_process_may_kill(capabilities: str, expected: bool) -> None:  # a parameter of the test
    """CAP_KILL is the sixth bit of what the kernel says is in effect; where it says nothing, nothing is known."""
    assert protections.may_kill(f"Name:\tearlyoom\nCapPrm:\t0\nCapEff:\t{capabilities:0>16}\n") is expected
    assert protections.may_kill("") is None


def test_where_earlyoom_fires(tmp_path: Path) -> None:
    """1.7 counts in MemTotal, 1.8 in what programs have: with the driver holding the rest that is far less."""
    files = process(9, "earlyoom", ["earlyoom", "-m", "5", "-s", "20"])
    old, new, unknown = (
        only(read(tmp_path, files, packages=packages), "earlyoom")
        for packages in ({"earlyoom": "1.7-1"}, {"earlyoom": "1.8.2-1"}, None)
    )
    assert (old["fires_below_kib"], new["fires_below_kib"], unknown["fires_below_kib"]) == (6_376_653, 105_263, None)
    available, anon = MEMORY["meminfo"]["MemAvailable"], MEMORY["meminfo"]["AnonPages"]
    assert (old["fires_now_kib"], new["fires_now_kib"]) == (6_376_653, round((available + anon) * 0.05))
    assert unknown["firing"] == "below ? GiB as loaded now, ? GiB once the driver has taken the rest"
    assert old["swap_used_needed_kib"] == round(16_777_212 * 0.8)
    assert [each["moving_denominator"] for each in (old, new, unknown)] == [False, True, None]


def test_killers(tmp_path: Path) -> None:
    """Killers are told by their processes, a script by the name of its file."""
    files = {
        **process(3, "systemd-oomd", ["/usr/lib/systemd/systemd-oomd"], cgroup="/system.slice/systemd-oomd.service"),
        **process(4, "python3", ["python3", "/usr/bin/nohang", "--monitor"]),
        **process(5, "bash", ["bash", "-c", "nohang"]),
        **process(6, "memguard.sh", ["/bin/bash", "/opt/memguard.sh", "--line", "3"]),
        **process(7, "python3", ["/usr/bin/python3", "-u", "/opt/memwatch.py"]),
        **process(8, "llm-guard-proxy", ["/opt/llm-guard-proxy"], cgroup="/user.slice/guard.service"),
        **process(9, "tail", ["tail", "memwatch.log"]),
    }
    found = read(tmp_path, files)["observations"]
    assert [(each["name"], each["unit"]) for each in found] == [
        ("systemd-oomd", "systemd-oomd.service"),
        ("nohang", ""),
        ("memguard", ""),
        ("memwatch", ""),
        ("llm-guard-proxy", "guard.service"),
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("A=hf_secret\0", (0.95, True, 121_156_403)),
        ("RAY_memory_usage_threshold=0.99\0RAY_memory_monitor_refresh_ms=0\0", (0.99, False, 126_257_725)),
        ("RAY_memory_usage_threshold=.5\0", (0.5, True, 63_766_528)),
        ("RAY_memory_usage_threshold=x\0", (None, True, None)),
    ],
)
def test_ray(tmp_path: Path, environ: str, expected: tuple[object, ...]) -> None:
    """Ray's monitor is on at 95 % unless its process was started with something else."""
    found = read(tmp_path, process(6, "raylet", ["raylet"], environ=environ))
    seen = only(found, "ray")
    assert (seen["threshold"], seen["enabled"], seen["fires_at_kib"]) == expected
    assert "hf_secret" not in json.dumps(found)


def test_ray_in_a_container(tmp_path: Path) -> None:
    """A limit of its container is the whole of which Ray takes its share; one above MemTotal is none."""
    group = "/system.slice/docker-x.scope"
    limit = {f"/sys/fs/cgroup{group}/memory.max": f"{100 * GIB}\n"}
    found = read(tmp_path, process(6, "raylet", ["raylet"], environ="", cgroup=group) | limit)
    assert only(found, "ray")["fires_at_kib"] == 95 << 20
    write_tree(tmp_path, {f"/sys/fs/cgroup{group}/memory.max": f"{200 * GIB}\n"})
    assert only(read(tmp_path, {}), "ray")["fires_at_kib"] == 121_156_403


def test_stock_machine_has_nothing_to_show(tmp_path: Path) -> None:
    """Where there is neither docker nor an engine nor a killer, nothing is observed and nothing is missing."""
    assert read(tmp_path, process(1, "systemd", ["/sbin/init"])) == {"observations": [], "not_seen": []}


def test_memory_that_could_not_be_read(tmp_path: Path) -> None:
    """Without /proc/meminfo figures are unknown and the rest is still observed."""
    files = {**process(9, "earlyoom", ["earlyoom"]), **process(6, "raylet", ["raylet"], environ="")}
    found = read(tmp_path, files, memory={"meminfo": None, "regime": "unknown"})
    assert only(found, "earlyoom")["fires_below_kib"] is None
    assert only(found, "ray")["fires_at_kib"] is None


@given(st.text(max_size=300), st.binary(max_size=300), st.lists(st.text(max_size=8), max_size=8))
def test_anything_goes(tmp_path_factory: pytest.TempPathFactory, unit: str, config: bytes, argv: list[str]) -> None:
    """No content of a file and no command line breaks the reading."""
    root = tmp_path_factory.mktemp("host")
    for path, content in {
        f"etc/systemd/user/{ID}.service": ("[Service]\n" + unit).encode("utf-8", "replace"),
        f"etc/systemd/system/{ID}.service": ("[Service]\nExecStart=" + unit).encode("utf-8", "replace"),
        f"var/lib/docker/containers/{ID}/config.v2.json": config,
        f"var/lib/docker/containers/{ID}/hostconfig.json": b"{}",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    base = {"pid": 1, "ppid": 0, "uid": 0, "oom_score_adj": 0, "cgroup": "/x", "started_s": 1.0}
    running = [{**base, "comm": comm, "argv": argv or [""]} for comm in ("earlyoom", "docker", "vllm", "raylet")]
    found = protections.read(FakeHost(root=str(root)), running, MEMORY, None, {})
    json.dumps(found)
