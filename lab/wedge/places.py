"""Where a model server is started: records. `{command}` is its command line."""

from dataclasses import dataclass
from typing import Literal

IMAGE = "lab-engine"
CONTAINER_OPTIONS = (
    f"--network host --device /dev/fakegb10 --volume /usr:/usr:ro --volume /etc:/etc:ro --pull never {IMAGE}"
)
"""The image has no files of its own: the machine's are mounted."""
UNIT = "engine"
LOG = "/run/engine.log"
DOCKER = rf"(docker-[0-9a-f]{{64}}\.scope|{UNIT})"
"""Its cgroup, or the container's name."""


@dataclass(frozen=True)
class Place:
    """One place. `script` is given to root's shell, or over ssh to admin's; it does not wait for the engine's end.

    `cgroup` is a pattern for the last part of the cgroup in which the engine then is.
    """

    name: str
    what: str
    script: str
    cgroup: str = rf"{UNIT}\.service"
    by: Literal["root", "ssh"] = "root"
    needs_containers: bool = False


PLACES = {
    place.name: place
    for place in (
        Place(
            "unit",
            "a system unit",
            f"printf '[Service]\\nExecStart={{command}}\\n' >/etc/systemd/system/{UNIT}.service && "
            f"systemctl daemon-reload && systemctl start --no-block {UNIT}.service",
        ),
        Place(
            "scope",
            "a transient scope of the system's manager",
            f"setsid systemd-run --quiet --scope --unit={UNIT} {{command}} >{LOG} 2>&1 &",
            rf"{UNIT}\.scope",
        ),
        Place(
            "user",
            "a unit of a user's manager",
            f"systemd-run --quiet --user --machine=admin@.host --unit={UNIT} {{command}}",
        ),
        Place(
            "shell",
            "a login shell",
            "setsid --fork {command} >/tmp/engine.log 2>&1 </dev/null",
            r"session-\d+\.scope",
            by="ssh",
        ),
        Place(
            "container",
            "a Docker container",
            f"docker run --detach --name {UNIT} {CONTAINER_OPTIONS} {{command}}",
            DOCKER,
            needs_containers=True,
        ),
        Place(
            "exec",
            "executed in a Docker container whose own command is `sleep infinity`",
            f"docker run --detach --name {UNIT} {CONTAINER_OPTIONS} sleep infinity && "
            f"docker exec --detach {UNIT} {{command}}",
            DOCKER,
            needs_containers=True,
        ),
        Place(
            "podman",
            "a podman container of root's",
            f"podman run --detach --name {UNIT} {CONTAINER_OPTIONS} {{command}}",
            r"(libpod-[0-9a-f]{64}(\.scope)?|container|engine)",
            needs_containers=True,
        ),
    )
}
