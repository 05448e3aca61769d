"""What protections are read from: the files of containers, units and processes, and what was seen of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.box import containers, protections, units
from tests.unit.builders import FakeHost, process_files, write_tree

ID = "a1" * 32
GIB = 1 << 30
MEMORY: dict[str, Any] = {
    "meminfo": {
        "MemTotal": 127_533_056,
        "MemAvailable": 10_000_000,
        "AnonPages": 2_000_000,
        "SwapTotal": 16_777_212,
        "SwapFree": 16_777_212,
    },
    "regime": "A",
}
SECRETS = ("hf_secret", "sk-secret", "--api-key")


def container_files(hostconfig: object, config: object, root: str = containers.DATA_ROOT) -> dict[str, str]:
    """Return the two files that docker keeps of a container."""
    directory = f"{root}/containers/{ID}"
    return {f"{directory}/hostconfig.json": json.dumps(hostconfig), f"{directory}/config.v2.json": json.dumps(config)}


HOSTCONFIG = {
    "Memory": 64 * GIB,
    "MemorySwap": 64 * GIB,
    "OomScoreAdj": -500,
    "IpcMode": "host",
    "ShmSize": 64 * GIB,
    "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
    "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
}
CONFIG = {
    "Name": "/vllm-head",
    "State": {"Running": True},
    "Config": {
        "Image": "vllm/vllm-openai:latest",
        "Cmd": ["--model", "x", "--api-key", "sk-secret"],
        "Env": ["HF_TOKEN=hf_secret", "VLLM_SKIP_INIT_MEMORY_CHECK=1"],
        "Labels": {"com.docker.compose.project.config_files": "/srv/vllm/compose.yml"},
    },
}


def read(root: Path, files: Mapping[str, str], **given: Any) -> dict[str, Any]:  # noqa: ANN401  # what `read` takes
    """Return what is observed on a host with `files`, and that no process was started for it."""
    write_tree(root, dict(files))
    host = FakeHost(root=str(root))
    arguments: dict[str, Any] = {"memory": MEMORY, "driver": "580.95.05", "packages": {"earlyoom": "1.7-1"}} | given
    found = protections.read(host, units.processes(host), **arguments)
    assert host.calls == []
    json.dumps(found)
    return found


def only(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the one observation of a kind, which has all the fields of its kind and no other."""
    (one,) = [each for each in found["observations"] if each["kind"] == kind]
    assert set(one) == {"kind", "subject", "file", "line", *protections.FIELDS[kind]}
    return dict(one)


def process(pid: int, comm: str, argv: list[str], **given: Any) -> dict[str, str]:  # noqa: ANN401  # of process_files
    """Return the files of a process with these arguments."""
    environment = given.pop("environ", None)
    files = process_files(pid, comm, **given) | {f"/proc/{pid}/cmdline": "\0".join(argv) + "\0"}
    return files if environment is None else files | {f"/proc/{pid}/environ": environment}


SYSTEM = "/etc/systemd/system"
USER = "/home/alice/.config/systemd/user"


def service(*lines: str) -> str:
    """Return the text of a service; its first line is the file's second."""
    return "\n".join(["[Service]", *lines, ""])


def settings(found: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the settings of units that were observed, with their places."""
    seen = [each for each in found["observations"] if each["kind"] == "unit_setting"]
    return {each["setting"]: (each["file"], each["line"]) for each in seen}
