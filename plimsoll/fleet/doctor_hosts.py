"""What `plimsoll doctor` asks about one host: names, keys and known keys, as `ssh` and as pyinfra read them."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.fleet.doctor_checks import Check, Health, ran

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plimsoll.inventory import Host

NO_KEYS, NO_AGENT = 1, 2
"""Exit codes of `ssh-add -L`."""


@dataclass(frozen=True)
class Agent:
    """The SSH agent: its public keys (the base64 part of each), and why there are none."""

    keys: frozenset[str]
    problem: str = ""


@dataclass(frozen=True)
class Target:
    """Where a connection goes, and by what, as `ssh -G` says it."""

    name: str
    hostname: str
    port: int
    known_hosts: tuple[Path, ...]
    """The files in which pyinfra looks for the host's key; `ssh` has more of them."""
    other_known_hosts: tuple[Path, ...]
    host_key_alias: str
    identities: tuple[Path, ...]
    jumps: tuple[str, ...]
    agent: str
    """The socket of its agent; empty for the one of the environment."""

    @property
    def key_name(self) -> str:
        """The name that the host's key is kept under."""
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"  # noqa: PLR2004 - ssh's port


def checks(host: Host, config: Path | None, agent: Agent) -> list[Check]:
    """Return what was found for a host; asks programs of OpenSSH and the resolver, and connects to nothing."""
    asked = ran(*_ssh(config), *_overrides(host), "-G", "--", host.name)
    if asked.code != 0:
        problem = Check("ssh config", Health.BAD, asked.err.strip() or "ssh -G failed", "mend the file", (host.name,))
        return [problem]
    target = parse(host.name, asked.out)
    found = [
        pyinfra_name(host, target),
        host_key(target, known_as(target)),
        own_key(agent_of(target, agent), keys_of(target)),
    ]
    found += _jumps(target, config)
    return [replace(check, hosts=(host.name,)) for check in found]


def _ssh(config: Path | None) -> list[str]:
    return ["ssh"] if config is None else ["ssh", "-F", str(config)]


def _overrides(host: Host) -> list[str]:
    given = {"HostName": host.address, "Port": host.port, "User": host.user}
    return [word for key, value in given.items() if value is not None for word in ("-o", f"{key}={value}")]


def parse(name: str, text: str) -> Target:
    """Return the target from what `ssh -G` prints."""
    pairs = [line.partition(" ")[::2] for line in text.splitlines()]
    said = dict(pairs)
    user_files = _paths(said.get("userknownhostsfile", ""))
    jumps = said.get("proxyjump", "none")
    return Target(
        name=name,
        hostname=said.get("hostname", name),
        port=int(said.get("port", "22")),
        # without the keyword pyinfra reads the first of ssh's own two
        known_hosts=tuple(path for path in user_files if path.name != "known_hosts2"),
        other_known_hosts=(*user_files, *_paths(said.get("globalknownhostsfile", ""))),
        host_key_alias=said.get("hostkeyalias", ""),
        identities=tuple(Path(value).expanduser() for key, value in pairs if key == "identityfile"),
        jumps=() if jumps == "none" else tuple(jumps.split(",")),
        agent=said.get("identityagent", "").removeprefix("SSH_AUTH_SOCK"),
    )


def _paths(words: str) -> tuple[Path, ...]:
    return tuple(Path(word).expanduser() for word in words.split() if word != "none")


# --- the agent --------------------------------------------------------------------------------------


def agent(**environment: str) -> Agent:
    """Ask the SSH agent for its keys."""
    asked = ran("ssh-add", "-L", **environment)
    if asked.code == 0:
        return Agent(frozenset(line.split()[1] for line in asked.out.splitlines() if len(line.split()) > 1))
    return Agent(frozenset(), "it has no keys" if asked.code == NO_KEYS else "there is none")


def agent_of(target: Target, usual: Agent) -> Agent:
    """Return the agent that is asked for this host."""
    if not target.agent:
        return usual
    if target.agent == "none":
        return Agent(frozenset(), "it is switched off for this host (IdentityAgent none)")
    return agent(SSH_AUTH_SOCK=os.path.expandvars(os.path.expanduser(target.agent)))  # noqa: PTH111 - with variables


def of_agent(found: Agent) -> Check:
    """Return what is known of the agent; whether one is needed is told host by host."""
    return Check("SSH agent", Health.GOOD, found.problem or f"it has {len(found.keys)} keys")


# --- names ------------------------------------------------------------------------------------------


def resolves(name: str) -> bool:
    """Say whether the system's resolver knows a name."""
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def pyinfra_name(host: Host, target: Target) -> Check:
    """Return whether `pyinfra HOST` finds the host: one whose name it cannot resolve is none to it.

    A file or directory of that name in the working directory is taken for an inventory.
    """
    if Path(host.name).exists():
        said = f"./{host.name} is here, which pyinfra would take for an inventory"
        return Check("name", Health.NOTE, said, "type `pyinfra @ssh/NAME deploy.py`, or run it from elsewhere")
    if resolves(target.hostname) or resolves(host.name):
        return Check("name", Health.GOOD, "pyinfra finds it by its name")
    if target.jumps:
        said = "only a jump host resolves its name: `pyinfra NAME` would find no host"
        return Check("name", Health.NOTE, said, "type `pyinfra @ssh/NAME deploy.py`")
    said = "its name cannot be resolved, and ~/.ssh/config has no address for it"
    return Check("name", Health.BAD, said, "give it a HostName in ~/.ssh/config, or an address in the inventory")


# --- the host's key ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownAs:
    """Where the host's key was found."""

    for_pyinfra: bool
    for_ssh: bool


def known_as(target: Target) -> KnownAs:
    """Look for the host's key in the files of known hosts, under the names that the two clients use."""
    alias = target.host_key_alias or target.key_name
    return KnownAs(
        any(_has(path, target.key_name) for path in target.known_hosts),
        any(_has(path, alias) for path in target.other_known_hosts),
    )


def _has(path: Path, name: str) -> bool:
    return path.is_file() and ran("ssh-keygen", "-F", name, "-f", str(path)).code == 0


def host_key(target: Target, known: KnownAs) -> Check:
    """Return whether the host's key is known: a deploy and an audit connect to no other host."""
    if known.for_pyinfra and known.for_ssh:
        return Check("host key", Health.GOOD, "known")
    if known.for_ssh:
        file = target.known_hosts[0] if target.known_hosts else "~/.ssh/known_hosts"
        said = f"ssh knows it, pyinfra does not: it reads {file} alone, and no HostKeyAlias"
        return Check("host key", Health.BAD, said, f"put a line for {target.key_name} into {file}")
    advice = (
        "log in once (ssh NAME) and compare the fingerprint with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` "
        "at the box's own console"
    )
    return Check("host key", Health.BAD, "not known", advice)


# --- the operator's key -----------------------------------------------------------------------------


def keys_of(target: Target) -> dict[Path, str | None]:
    """Return each private key that is there -> the base64 part of its public one; None if it needs a passphrase.

    One that cannot be read for another reason is left out: ssh does not use it either.
    """
    return {path: key for path in target.identities if path.is_file() and (key := _public(path)) != ""}


def _public(path: Path) -> str | None:
    # no program may pop up and ask for the passphrase
    derived = ran("ssh-keygen", "-y", "-P", "", "-f", str(path), SSH_ASKPASS="", DISPLAY="")
    if derived.code == 0:
        return derived.out.split()[1]
    return None if "passphrase" in derived.err else ""


def own_key(agent: Agent, keys: Mapping[Path, str | None]) -> Check:
    """Return whether a login works without anybody typing: nobody can, for many hosts at once."""
    open_keys = [path for path, key in keys.items() if key is not None]
    if open_keys:
        return Check("own key", Health.GOOD, f"{open_keys[0]} needs no passphrase")
    locked = [path for path, key in keys.items() if key is None]
    if any(_is_loaded(path, agent) for path in locked):
        return Check("own key", Health.GOOD, "the agent has it")
    if agent.keys:
        said = f"the agent has {len(agent.keys)} keys; whether the host takes one is not known before a login"
        return Check("own key", Health.NOTE, said)
    if locked:
        said = f"{locked[0]} needs a passphrase, and of the SSH agent: {agent.problem}"
        return Check(
            "own key", Health.BAD, said, f"ssh-add {locked[0]} (first, where there is no agent: eval $(ssh-agent))"
        )
    advice = "make one (ssh-keygen -t ed25519) and bring it to the box (ssh-copy-id)"
    return Check("own key", Health.BAD, f"there is no key, and of the SSH agent: {agent.problem}", advice)


def _is_loaded(path: Path, agent: Agent) -> bool:
    try:
        words = Path(f"{path}.pub").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return len(words) > 1 and words[1] in agent.keys


# --- jump hosts -------------------------------------------------------------------------------------


def _jumps(target: Target, config: Path | None) -> Iterator[Check]:
    for jump in target.jumps:
        asked = ran(*_ssh(config), "-G", "--", *_destination(jump))
        if asked.code != 0:
            yield Check("jump host", Health.BAD, f"{jump}: {asked.err.strip()}", "mend ~/.ssh/config")
            continue
        hop = parse(jump, asked.out)
        yield of_jump(hop, known_as(hop))


def _destination(jump: str) -> Sequence[str]:
    """Return a hop as `ssh -G` prints it, `[user@]host[:port]`, as arguments of ssh; it puts addresses in brackets."""
    head, colon, port = jump.rpartition(":")
    return (f"ssh://{jump}",) if colon and port.isdigit() and head else (re.sub(r"[\[\]]", "", jump),)


def of_jump(hop: Target, known: KnownAs) -> Check:
    """Return whether pyinfra gets through a jump host: for one whose key it does not know, it stops and asks."""
    if hop.jumps:
        said = f"{hop.name} is itself behind {', '.join(hop.jumps)}, which pyinfra leaves out"
        return Check(
            "jump host", Health.BAD, said, f"name all of them for the host: ProxyJump {hop.jumps[0]},{hop.name}"
        )
    if not known.for_pyinfra:
        said = f"the key of {hop.name} is not known: pyinfra stops there and asks, and nobody answers it"
        return Check("jump host", Health.BAD, said, f"log in there once: ssh {hop.name}")
    return Check("jump host", Health.GOOD, f"{hop.name} is known")
