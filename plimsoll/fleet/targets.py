"""Which hosts a command line means, and how they are reached."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plimsoll.fleet.gather import DEFAULT_TIMEOUT_S, Ssh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.inventory import Host, Inventory


def resolve(names: Sequence[str], inventory: Inventory) -> list[Host]:
    """Return the hosts meant by names of hosts and groups, each once; without a name every host of the inventory.

    A name that the inventory does not have is an alias of ~/.ssh/config, and gets the default policy. Raises
    click.UsageError where there is nothing to do.
    """
    if not names and not inventory.hosts:
        raise click.UsageError(f"{inventory.path} has no hosts: name one, as you would for ssh")
    wanted = list(names) or list(inventory.hosts)
    single = [host for name in wanted for host in inventory.groups.get(name, (name,))]
    for name in single:
        if name.startswith("-") or not name.isprintable() or " " in name:
            raise click.UsageError(f"{name!r} is no host name")
    return [inventory.host(name) for name in dict.fromkeys(single)]


def connecting(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a connection; it gets them as one argument `ssh`."""

    @click.option(
        "-F", "--ssh-config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="Read this instead of ~/.ssh/config.",
    )  # fmt: skip
    @click.option(
        "--timeout-s", type=click.FloatRange(1, 3600), default=DEFAULT_TIMEOUT_S, show_default=True,
        help="The whole time that a host has for its answer.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_connection(*arguments: Any, ssh_config: Path | None, timeout_s: float, **options: Any) -> int:  # noqa: ANN401 - click's values
        return command(*arguments, ssh=Ssh(ssh_config, timeout_s), **options)

    return with_connection
