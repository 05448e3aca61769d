"""ssh_config and known_hosts for a machine; the real ~/.ssh is never read or written."""

import shutil
from pathlib import Path

from lab.errors import UsageError
from lab.keys import Keys
from lab.paths import home_dir

USERS = ("root", "admin", "operator")


def known_hosts_line(port: int, pairs: Keys) -> str:
    """The machine's host key, known since its image was built."""
    return f"[127.0.0.1]:{port} {pairs.host_public()}\n"


def config_block(name: str, port: int, user: str, pairs: Keys, known_hosts: Path) -> str:
    """A Host block that needs no other file than the two it names by their absolute paths.

    Raises UsageError for a user that the machine does not have.
    """
    if user not in USERS:
        raise UsageError(f"no user {user!r} in the machine: choose {', '.join(USERS)}")
    return "\n".join(
        [
            f"Host {name}",
            "    HostName 127.0.0.1",
            f"    Port {port}",
            f"    User {user}",
            f'    IdentityFile "{pairs.user}"',
            "    IdentitiesOnly yes",
            f'    UserKnownHostsFile "{known_hosts}"',
            "    GlobalKnownHostsFile none",
            "    StrictHostKeyChecking yes",
            "",
        ]
    )


def write_home(name: str, port: int, user: str, pairs: Keys) -> Path:
    """A HOME whose .ssh knows the machine by its name as `user`; returns its path."""
    ssh = home_dir(name, user) / ".ssh"
    known_hosts = ssh / "known_hosts"
    block = config_block(name, port, user, pairs, known_hosts)
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    known_hosts.write_text(known_hosts_line(port, pairs))
    (ssh / "config").write_text(block)
    return ssh.parent


def remove_homes(name: str) -> None:
    """Forget the machine in every HOME made for it."""
    for user in USERS:
        shutil.rmtree(home_dir(name, user), ignore_errors=True)
