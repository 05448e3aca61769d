"""Which hosts a command line means, and how they are reached."""

from __future__ import annotations

import difflib
import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plimsoll.fleet.gather import DEFAULT_TIMEOUT_S, LOCAL, Ssh
from plimsoll.inventory import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.inventory import Host, Inventory


def resolve(names: Sequence[str], inventory: Inventory) -> list[Host]:
    """Return the hosts meant by names of hosts and groups, each once; without a name every host of the inventory.

    A name that the inventory does not have is an alias of ~/.ssh/config, and gets the default policy; said on stderr
    where the inventory has one that is nearly the same. Raises click.UsageError where there is nothing to do.
    """
    if not names and not inventory.hosts:
        raise click.UsageError(f"{inventory.path} has no hosts: name one, as you would for ssh")
    wanted = list(names) or list(inventory.hosts)
    single = [host for name in wanted for host in inventory.groups.get(name, (name,))]
    if not single:
        raise click.UsageError(f"there is no host in {', '.join(wanted)}: add one in {inventory.path}")
    for name in single:
        _say_if_mistyped(name, inventory)
    found = {host.name: host for host in (_host(name, inventory) for name in single)}
    return list(found.values())


def resolve_one(name: str, inventory: Inventory) -> Host:
    """Return the host of that name; raises click.UsageError for a group as well."""
    if name in inventory.groups:
        raise click.UsageError(f"{name!r} is a group: name one host")
    _say_if_mistyped(name, inventory)
    return _host(name, inventory)


def _say_if_mistyped(name: str, inventory: Inventory) -> None:
    """Say that a name gets the default policy where it may have been meant for one of the inventory."""
    known = {*inventory.hosts, *inventory.groups}
    if name in known or name == LOCAL:
        return
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        click.echo(
            f"{name!r} is not in {shown(inventory.path)}, so it gets the default policy; did you mean {near[0]!r}?",
            err=True,
        )


def _host(name: str, inventory: Inventory) -> Host:
    host = inventory.host(name)
    if not host.name or host.name.startswith("-") or not host.name.isprintable() or " " in host.name:
        raise click.UsageError(f"{name!r} is no host name")
    # what the inventory has under this machine's own name says what is wanted of it, not how it is reached
    return replace(host, name=LOCAL) if name == LOCAL else host


def connecting(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a connection; it gets them as one argument `ssh`."""

    @click.option(
        "-F", "--ssh-config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="Read this instead of ~/.ssh/config.",
    )  # fmt: skip
    @click.option(
        "--timeout-s", type=click.FloatRange(1, 3600), default=DEFAULT_TIMEOUT_S, show_default=True,
        help="How long a host has for its answer.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_connection(*arguments: Any, ssh_config: Path | None, timeout_s: float, **options: Any) -> int:  # noqa: ANN401 - click's values
        return command(*arguments, ssh=Ssh(ssh_config, timeout_s), **options)

    return with_connection
