"""What service units, also those of users, are seen to set, with the file and line that decides."""

import json
from pathlib import Path

import pytest

from tests.unit.protection_builders import GIB, SYSTEM, USER, container_files, only, process, read, service, settings


def test_unit_of_an_engine(tmp_path: Path) -> None:
    """Each setting is named with the file and line that decides it; a drop-in beats the unit's own file."""
    unit = service("ExecStart=/opt/venv/bin/vllm serve x", "MemoryMax=100G", "OOMScoreAdjust=-900")
    variables = "Environment=A=hf_secret VLLM_SKIP_INIT_MEMORY_CHECK=1"
    drop_in = service("MemoryMax=80G", "Restart=always", "RestartSec=5", variables)
    files = {f"{SYSTEM}/vllm.service": unit, f"{SYSTEM}/vllm.service.d/x.conf": drop_in}
    found = read(tmp_path, files)
    assert settings(found) == {
        "MemoryMax": (f"{SYSTEM}/vllm.service.d/x.conf", 2),
        "Restart": (f"{SYSTEM}/vllm.service.d/x.conf", 3),
        "VLLM_SKIP_INIT_MEMORY_CHECK": (f"{SYSTEM}/vllm.service.d/x.conf", 5),
        "OOMScoreAdjust": (f"{SYSTEM}/vllm.service", 4),
    }
    numbers = {each["setting"]: (each["number"], each["restart_s"]) for each in found["observations"]}
    assert numbers["MemoryMax"] == (80 * GIB, None)
    assert numbers["Restart"] == (None, 5.0)
    assert numbers["OOMScoreAdjust"] == (-900, None)
    assert all(each["engine"] == "vllm" and each["scope"] == "system" for each in found["observations"])
    assert "hf_secret" not in json.dumps(found)


def test_who_else_restarts_the_box(tmp_path: Path) -> None:
    """A unit whose failure restarts or stops the machine is named, in either section; ours, and others' pains, not."""
    watchdog = service("ExecStart=/usr/local/sbin/alive", "WatchdogSec=360", "FailureAction=reboot-immediate")
    files = {
        f"{SYSTEM}/alive.service": watchdog,
        f"{SYSTEM}/job.service": "[Unit]\nJobTimeoutAction=poweroff\n[Service]\nExecStart=/bin/true\n",
        f"{SYSTEM}/plimsoll-last-resort.service": watchdog,
        f"{SYSTEM}/calm.service": service("ExecStart=/bin/true", "FailureAction=none"),
        f"{USER}/mine.service": service("ExecStart=/bin/true", "FailureAction=reboot"),
    }
    seen = [(each["unit"], each["setting"], each["line"]) for each in read(tmp_path, files)["observations"]]
    assert seen == [("alive.service", "FailureAction", 4), ("job.service", "JobTimeoutAction", 2)]


def test_unit_around_docker(tmp_path: Path) -> None:
    """A unit that runs a docker client is told from one that runs the engine itself."""
    command = "ExecStart=/usr/bin/env -i /usr/bin/docker run --rm \\\n  --gpus all --memory 128g x"
    unit = service("MemoryMax=256M", "Restart=always", command)
    found = read(tmp_path, {f"{USER}/llm.service": unit})
    assert set(settings(found)) == {"MemoryMax", "Restart", "--memory"}
    assert {(each["runs"], each["scope"], each["uses_gpu"]) for each in found["observations"]} == {
        ("docker", "user", True)
    }


def test_limit_of_a_units_container(tmp_path: Path) -> None:
    """What a unit gives its container is named by the line of ExecStart, unless the container itself is seen."""
    unit = service("UMask=0077", "ExecStart=/usr/bin/docker run \\", "  --gpus all --name llm --memory 128g x")
    files = {f"{SYSTEM}/llm.service": unit}
    assert settings(read(tmp_path, files)) == {"--memory": (f"{SYSTEM}/llm.service", 3)}
    assert settings(read(tmp_path, files | container_files({}, {"Name": "/llm"}))) == {}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/bin/podman run --cgroups=split --device nvidia.com/gpu=all x", ("engine", "container", True)),
        ("/usr/bin/podman run --cgroups=split x/vllm", ("engine", "vllm", True)),
        ("/usr/bin/podman run --cgroups=no-conmon x/vllm", ("docker", "vllm", True)),
        ("/usr/bin/docker run -e A=vllm prom/x --target http://vllm:8000", ("docker", "container", False)),
        ("/usr/bin/docker run --gpus all --entrypoint vllm x serve m", ("docker", "vllm", True)),
        ("/usr/bin/docker compose -f /srv/vllm/compose.yml up", ("docker", "vllm", True)),
        ("/usr/bin/docker start -a llm", ("docker", "container", None)),
    ],
)
def test_what_a_unit_runs(tmp_path: Path, command: str, expected: tuple[str, str, bool | None]) -> None:
    """A container of podman's may stay in the unit's own cgroup; what runs is told by image and command."""
    found = read(tmp_path, {"/run/systemd/generator/x.service": service(f"ExecStart={command}", "MemoryMax=9G")})
    seen = only(found, "unit_setting")
    assert (seen["runs"], seen["engine"], seen["uses_gpu"]) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Environment=VLLM_SKIP_INIT_MEMORY_CHECK=1 A=1", "Environment=VLLM_SKIP_INIT_MEMORY_CHECK=0"], None),
        (["Environment=VLLM_SKIP_INIT_MEMORY_CHECK=0", "EnvironmentFile=/e"], ("/e", 1)),
        (["ExecStart=", "ExecStart=/usr/bin/env VLLM_SKIP_INIT_MEMORY_CHECK=1 vllm serve"], (f"{SYSTEM}/v.service", 4)),
        (["ExecStart=", "ExecStart=/bin/sh -c 'export VLLM_SKIP_INIT_MEMORY_CHECK=\"1\"; vllm serve'"],
         (f"{SYSTEM}/v.service", 4)),
        (["ExecStart=", "ExecStart=/usr/bin/docker run -e VLLM_SKIP_INIT_MEMORY_CHECK=1 vllm/x"],
         (f"{SYSTEM}/v.service", 4)),
        (["EnvironmentFile=/e", "ExecStart=", "ExecStart=env VLLM_SKIP_INIT_MEMORY_CHECK=0 vllm serve"], None),
    ],
)  # fmt: skip
def test_where_the_check_is_skipped(tmp_path: Path, lines: list[str], expected: tuple[str, int] | None) -> None:
    """Of several the last one counts: a file beats the unit, and what the command sets beats both."""
    files = {f"{SYSTEM}/v.service": service("ExecStart=/x/vllm serve", *lines)}
    found = settings(read(tmp_path, files | {"/e": "VLLM_SKIP_INIT_MEMORY_CHECK=1\n"}))
    assert found.get("VLLM_SKIP_INIT_MEMORY_CHECK") == expected


@pytest.mark.parametrize(("type_", "expected"), [("oneshot", {"docker"}), ("simple", set())])
def test_unit_with_several_commands(tmp_path: Path, type_: str, expected: set[str]) -> None:
    """A oneshot service runs one command after the other; for any other type systemd refuses the unit."""
    unit = service(f"Type={type_}", "MemoryMax=1G", "ExecStart=/bin/true", "ExecStart=/usr/bin/docker compose up -d")
    found = read(tmp_path, {f"{SYSTEM}/llm.service": unit})
    assert {each["runs"] for each in found["observations"]} == expected


@pytest.mark.parametrize(
    "path",
    [
        "/home/alice/.local/share/systemd/user/sysmon.service",
        f"{USER}/sysmon.service.d/score.conf",
        f"{USER}/sysmon@.service",
    ],
)
def test_where_users_put_units(tmp_path: Path, path: str) -> None:
    """A score that a user cannot lower is found in data directories, templates and drop-ins without their unit too."""
    found = read(tmp_path, {path: "[Service]\nOOMScoreAdjust=-900\n"})
    assert settings(found) == {"OOMScoreAdjust": (path, 2)}


@pytest.mark.parametrize("cgroup", ["/system.slice/system-llm.slice/llm@a.service", "/models.slice/llm@a.service/x"])
def test_instance_of_a_packages_unit(tmp_path: Path, cgroup: str) -> None:
    """An engine that runs in an instance leads to its template, in whatever slice it runs."""
    path = "/usr/lib/systemd/system/llm@.service"
    files = {path: service("ExecStart=/usr/bin/vllm serve %i", "MemoryMax=9G")}
    files |= process(10, "vllm", ["vllm", "serve"], cgroup=cgroup)
    found = read(tmp_path, files)
    assert settings(found) == {"MemoryMax": (path, 3)}
    assert [each["unit"] for each in found["observations"] if each["kind"] == "unit_setting"] == ["llm@a.service"]


def test_template_of_a_unit(tmp_path: Path) -> None:
    """A file with placeholders is no unit that runs, whatever it sets."""
    unit = service("ExecStart=__DIR__/.venv/bin/vllm serve x", "MemoryMax=9G", "OOMScoreAdjust=-900", "Restart=always")
    assert read(tmp_path, {f"{SYSTEM}/vllm.service": unit, f"{USER}/vllm.service": unit})["observations"] == []


def test_settings_that_are_reset_or_belong_to_others(tmp_path: Path) -> None:
    """`infinity` is no limit, an empty list forgets what was before, and other services are nobody's business here."""
    skipped = ("Environment=VLLM_SKIP_INIT_MEMORY_CHECK=1", "Environment=")
    limits = ("MemoryMax=9G", "MemoryMax=infinity")
    engine = service("ExecStart=/usr/bin/llama-server", *limits, *skipped, "Restart=no")
    other = "[Service]\nExecStart=/usr/bin/x\nMemoryMax=1G\nRestart=always\nOOMScoreAdjust=-900\n"
    assert read(tmp_path, {f"{SYSTEM}/a.service": engine, f"{SYSTEM}/b.service": other})["observations"] == []


def test_variable_from_an_environment_file(tmp_path: Path) -> None:
    """Of a file of variables, which holds secrets, only the one name is told, with its line."""
    files = {
        f"{SYSTEM}/v.service": service(
            "ExecStart=/x/vllm serve", "EnvironmentFile=-/etc/vllm.env", "EnvironmentFile=/no"
        ),
        "/etc/vllm.env": "HF_TOKEN=hf_secret\nVLLM_SKIP_INIT_MEMORY_CHECK=1\n",
    }
    found = read(tmp_path, files)
    assert settings(found) == {"VLLM_SKIP_INIT_MEMORY_CHECK": ("/etc/vllm.env", 2)}
    assert "hf_secret" not in json.dumps(found)


def test_negative_score_in_a_users_unit(tmp_path: Path) -> None:
    """It is observed whatever the unit runs, in homes and in /etc."""
    text = "[Service]\nExecStart=%h/bin/sysmon.sh\nOOMScoreAdjust=-900\n"
    users = "root:x:0:0::/root:/bin/sh\nbob:x:1001:1001::/srv/bob:/bin/sh\ndaemon:x:1:1::/usr/sbin:/x\n"
    places = ("/srv/bob/.config/systemd/user", USER, "/etc/systemd/user", "/root/.config/systemd/user")
    found = read(tmp_path, {"/etc/passwd": users, **{f"{place}/sysmon.service": text for place in places}})
    assert {each["file"] for each in found["observations"]} == {f"{place}/sysmon.service" for place in places}
    assert {each["line"] for each in found["observations"]} == {3}


def test_home_on_a_network_file_system(tmp_path: Path) -> None:
    """Nothing waits for a file server that may not answer."""
    files = {f"{USER}/x.service": "[Service]\nOOMScoreAdjust=-1\n", "/proc/mounts": "nas:/h /home nfs4 rw 0 0\n"}
    found = read(tmp_path, files)
    assert found == {"observations": [], "not_seen": ["/home/alice: is on nfs4, whose server may not answer"]}
