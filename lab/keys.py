"""The lab's key pairs: one for its users, one for its machines' ssh servers."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.paths import lab_dir, locked


@dataclass(frozen=True)
class Keys:
    """Private key files; the public half lies beside each, with .pub."""

    user: Path
    host: Path

    def user_public(self) -> str:
        """The line for authorized_keys."""
        return public_half(self.user).read_text()

    def host_public(self) -> str:
        """Type and key, as known_hosts wants them."""
        return " ".join(public_half(self.host).read_text().split()[:2])


def public_half(private: Path) -> Path:
    """The file of the public key that belongs to a private one."""
    return private.with_name(private.name + ".pub")


def keys() -> Keys:
    """The lab's keys, made on first use."""
    directory = lab_dir() / "keys"
    pairs = Keys(user=directory / "id_ed25519", host=directory / "ssh_host_ed25519_key")
    with locked(lab_dir() / "keys.lock"):
        directory.mkdir(mode=0o700, exist_ok=True)
        for private, comment in ((pairs.user, "lab user"), (pairs.host, "lab machine")):
            if not public_half(private).exists():
                private.unlink(missing_ok=True)
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(private)],
                    check=True,
                )
    return pairs
