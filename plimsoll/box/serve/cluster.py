"""A model on two hosts: both are admitted, or neither starts."""

from plimsoll.box.errors import REFUSED
from plimsoll.box.host import Host
from plimsoll.box.serve.acting import RefusedError
from plimsoll.box.serve.model import Cluster

ASK_TIMEOUT_S = 60.0
_CONNECT_S = 10
REMOTE = ("sudo", "--non-interactive", "/usr/local/bin/plimsoll", "serve", "check")


def ask(host: Host, name: str, cluster: Cluster) -> None:
    """Ask the other host whether it would admit its half now; raises RefusedError where it would not say yes."""
    ran = host.run(
        "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "--", cluster.host, *REMOTE, name,
        timeout_s=ASK_TIMEOUT_S,
    )  # fmt: skip
    if ran.code == REFUSED:
        raise RefusedError(f"{name} is not started: {cluster.host} would not admit its half: {ran.problem}")
    if ran.code != 0:
        raise RefusedError(
            f"{name} is not started: {cluster.host} cannot be asked about its half: {ran.problem}; check that "
            f"ssh {cluster.host} {' '.join(REMOTE)} {name} works without a password"
        )
