"""Docker containers, from the daemon's own files, and `docker run` command lines. No argument of a container leaves."""

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from plimsoll.box import engines
from plimsoll.box.host import Host
from plimsoll.box.observing import Observed, is_on, regular_text
from plimsoll.box.units import CGROUP

MAX_CONTAINERS = 200
DATA_ROOT = "/var/lib/docker"
SNAP_ROOT = "/var/snap/docker/common/var-lib-docker"
SKIP_CHECK = "VLLM_SKIP_INIT_MEMORY_CHECK"
COMPOSE_FILES = "com.docker.compose.project.config_files"
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


def read(
    host: Host, homes: Iterable[str], cgroups: Collection[str], mem_total_bytes: int | None, found: Observed
) -> dict[str, bool]:
    """Observe every container of the system's daemon and of rootless ones; `cgroups` are those of all processes.

    Returns `{container id: true}` of those seen, and `{data root: false}` of those that could not be looked into.
    """
    seen: dict[str, bool] = {}
    roots = [*data_roots(host, found), SNAP_ROOT, *(f"{home}/.local/share/docker" for home in homes)]
    for root in dict.fromkeys(roots):
        directory = f"{root}/containers"
        before = len(found.problems) + len(found.denied)
        for identity in found.names(host, directory, MAX_CONTAINERS):
            if CONTAINER_ID.fullmatch(identity):
                with found.reading(f"{directory}/{identity[:12]}"):
                    group = cgroup_of(identity, cgroups)
                    _container(host, f"{directory}/{identity}", group, mem_total_bytes, found)
                    seen[identity] = True
        if len(found.problems) + len(found.denied) > before:
            seen[root] = False
    return seen


def data_roots(host: Host, found: Observed) -> list[str]:
    """Return where the daemon keeps its data: daemon.json may say, else the default."""
    settings = "/etc/docker/daemon.json"
    with found.reading(settings):
        root = as_mapping(json.loads(regular_text(host, settings))).get("data-root")
        if isinstance(root, str) and root.startswith("/"):
            return [posixpath.normpath(root)]
    return [DATA_ROOT]


def _container(host: Host, directory: str, cgroup: str, mem_total_bytes: int | None, found: Observed) -> None:
    file = f"{directory}/hostconfig.json"
    settings = as_mapping(json.loads(regular_text(host, file)))
    config = as_mapping(json.loads(regular_text(host, f"{directory}/config.v2.json")))
    inner = as_mapping(config.get("Config"))
    identity = posixpath.basename(directory)
    engine = _engine(inner)
    name = as_text(config.get("Name")).removeprefix("/") or identity[:12]
    memory, swap = as_number(settings.get("Memory")), as_number(settings.get("MemorySwap"))
    policy = as_mapping(settings.get("RestartPolicy"))
    found.saw(
        "container",
        name,
        file,
        name=name,
        id=identity[:12],
        running=as_mapping(config.get("State")).get("Running") is True,
        uses_gpu=bool(engine) or _asks_for_gpu(settings),
        engine=engine,
        memory_bytes=memory,
        memory_swap_bytes=swap,
        swap_forbidden=bool(memory) and memory == swap,
        swap_max_live=host.text_or_none(f"{CGROUP}{cgroup}/memory.swap.max") if cgroup else None,
        mem_total_bytes=mem_total_bytes,
        restart=as_text(policy.get("Name")) or "no",
        restart_max=as_number(policy.get("MaximumRetryCount")),
        ipc=as_text(settings.get("IpcMode")),
        shm_bytes=as_number(settings.get("ShmSize")),
        oom_score_adj=as_number(settings.get("OomScoreAdj")),
        skips_memory_check=is_on(skip_check_of(as_list(inner.get("Env")))),
        compose_file=as_text(as_mapping(inner.get("Labels")).get(COMPOSE_FILES)) or None,
    )


def _asks_for_gpu(settings: Mapping[str, Any]) -> bool:
    requests = [as_mapping(each) for each in as_list(settings.get("DeviceRequests"))]
    wanted = (
        as_text(each.get("Driver")) in ("nvidia", "cdi") or "gpu" in str(each.get("Capabilities")) for each in requests
    )
    devices = (as_text(as_mapping(each).get("PathOnHost")) for each in as_list(settings.get("Devices")))
    by_device = any(device.startswith("/dev/nvidia") for device in devices)
    return as_text(settings.get("Runtime")).startswith("nvidia") or any(wanted) or by_device


def _engine(config: Mapping[str, Any]) -> str | None:
    """Return which model server a container runs, by its command, else by its image."""
    words = [as_text(word) for word in (*as_list(config.get("Entrypoint")), *as_list(config.get("Cmd")))]
    return engines.of_command(words) or engines.of_image(as_text(config.get("Image")))


def skip_check_of(environment: Iterable[object]) -> str | None:
    """Return what a container's `NAME=value` texts set SKIP_CHECK to, the last one counting; None for nothing."""
    pairs = (as_text(each).partition("=") for each in environment)
    return {name: value for name, _, value in pairs if name == SKIP_CHECK}.get(SKIP_CHECK)


def cgroup_of(identity: str, cgroups: Iterable[str]) -> str:
    """Return the cgroup of a running container, wherever its daemon and its parent slice have put it; else empty."""
    inside = (cgroup.partition(identity) for cgroup in cgroups if identity in cgroup)
    return next((f"{before}{own}{rest.partition('/')[0]}" for before, own, rest in inside if ".." not in before), "")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of somebody's JSON, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a list of somebody's JSON, an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a text of somebody's JSON, an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_number(value: object) -> int | None:
    """Return a whole number of somebody's JSON, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- command lines ----------------------------------------------------------------------------------

CLIENTS = ("docker", "podman", "nerdctl")
_STARTS = ("run", "create", "start", "exec", "compose")
_ALONE = (
    "detach", "disable-content-trust", "env-host", "help", "http-proxy", "init", "interactive", "no-healthcheck",
    "no-hostname", "no-hosts", "oom-kill-disable", "passwd", "privileged", "publish-all", "quiet", "read-only",
    "read-only-tmpfs", "replace", "rm", "rmi", "rootfs", "sig-proxy", "tls-verify", "tty", "unsetenv-all",
    "use-api-socket",
)  # fmt: skip
"""Options of `run` that take no value: without them the image could not be told from a value."""
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def client_arguments(words: Sequence[str]) -> list[str] | None:
    """Return the arguments after `docker`, if a command line starts something in a container; None otherwise.

    `env`, `sh -c` and the like around it are seen through.
    """
    for program, *following in engines.commands(words):
        name = engines.program_name(program)
        if name in ("docker-compose", "podman-compose"):
            return ["compose", *following]
        if name in CLIENTS and _subcommand(following) in _STARTS:
            return list(following)
    return None


def _subcommand(words: Sequence[str]) -> str:
    values = {index + 1 for index, word in enumerate(words) if word in _GLOBAL}
    plain = [word for index, word in enumerate(words) if index not in values and not word.startswith("-")]
    first = plain[0] if plain else ""
    return plain[1] if first == "container" and len(plain) > 1 else first


_GLOBAL = ("-c", "--context", "-H", "--host", "-l", "--log-level", "--config", "--url", "--connection")
"""Options before the subcommand that take a value."""


def run_options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of `docker run`, by name without dashes, up to the image; empty for other subcommands."""
    return run_parts(arguments)[0]


def run_parts(arguments: Sequence[str]) -> tuple[dict[str, list[str]], Sequence[str]]:
    """Return the options of `docker run`, and what follows: the image and its command."""
    if _subcommand(arguments) not in ("run", "create"):
        return {}, ()
    position = next(index for index, word in enumerate(arguments) if word in ("run", "create")) + 1
    found: dict[str, list[str]] = {}
    while position < len(arguments) and arguments[position].startswith("-"):
        name, value, position = _option(arguments, position)
        found.setdefault(_LONG.get(name, name), []).append(value)
    return found, arguments[position:]


def client_engine(arguments: Sequence[str]) -> str | None:
    """Return which model server `docker run` starts; of other subcommands, which one their words speak of."""
    options, rest = run_parts(arguments)
    if not rest:
        return engines.among(arguments)
    return engines.of_command([*options.get("entrypoint", []), *rest[1:]]) or engines.of_image(rest[0])


_LONG = {"m": "memory", "e": "env", "d": "detach", "i": "interactive", "t": "tty"}


def _option(arguments: Sequence[str], position: int) -> tuple[str, str, int]:
    """Return an option's name, its value and where the next one begins."""
    word = arguments[position]
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--") and len(name) > 1:
        together = word[1:].lstrip("ditPq")
        if len(together) != 1:
            return together[:1] or name[0], together[1:], position + 1
        name, equals = together, ""
    if equals or name in _ALONE or name in ("d", "i", "t", "P", "q"):
        return name, value, position + 1
    return name, arguments[position + 1] if position + 1 < len(arguments) else "", position + 2


def stays_in_unit(arguments: Sequence[str]) -> bool:
    """Say whether podman was told to leave the container in the cgroup of the unit that starts it, as Quadlet does."""
    return run_options(arguments).get("cgroups", [""])[-1] in ("split", "disabled")


def size_bytes(text: str) -> int | None:
    """Return a size as docker understands it (`64g`, `512MiB`, plain bytes); None for what is none."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def client_facts(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what `docker run` was told about memory, restarts and the GPU; sizes in bytes."""
    options = run_options(arguments)
    memory = size_bytes(options["memory"][-1]) if "memory" in options else None
    score = options.get("oom-score-adj", [""])[-1]
    runtime, devices = options.get("runtime", [""])[-1], " ".join(options.get("device", []))
    environment = dict(each.partition("=")[::2] for each in options.get("env", []))
    return {
        "memory_bytes": memory,
        "restart": options.get("restart", ["no"])[-1],
        "oom_score_adj": int(score) if re.fullmatch(r"-?[0-9]{1,4}", score) else None,
        "uses_gpu": "gpus" in options or runtime.startswith("nvidia") or "nvidia" in devices,
        "skips_memory_check": is_on(environment.get(SKIP_CHECK)),
    }


def client(process: Mapping[str, Any], limit: Mapping[str, Any], found: Observed, *, container_seen: bool) -> None:
    """Observe a running `docker run`; the limit of its own cgroup holds for the client alone."""
    arguments = client_arguments(process["argv"]) if process["comm"] in CLIENTS else None
    if arguments is None:
        return
    found.saw(
        "docker_client",
        f"{process['comm']} (pid {process['pid']})",
        pid=process["pid"],
        unit=limit["unit"],
        client_limit_bytes=limit["memory_max_bytes"],
        limited_by=limit["limited_by"],
        container_seen=container_seen,
        **client_facts(arguments),
    )
