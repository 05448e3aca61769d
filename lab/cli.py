"""`python -m lab`: up, ssh-config, ssh, down, list."""

import os
import platform
import sys

import click

from lab import machine as machines
from lab import sshfiles
from lab.errors import LabError
from lab.host import ARCHITECTURES, RELEASES
from lab.machine import Machine
from lab.progress import Progress
from lab.snapshot import Spec, describe
from lab.wedge.cli import wedge

name_option = click.option("--name", default="gx10", show_default=True, help="The machine's name.")
user_option = click.option(
    "--user", default="admin", show_default=True, type=click.Choice(sshfiles.USERS), help="Who logs in."
)


@click.group()
def cli() -> None:
    """A real Debian machine in QEMU, restored in seconds."""


@cli.command()
@name_option
@click.option("--release", default="trixie", show_default=True, type=click.Choice(RELEASES), help="Of Debian.")
@click.option("--memory", "memory_mib", default=1536, show_default=True, metavar="MIB", help="The machine's.")
@click.option("--ubuntu-ssh", is_flag=True, help="Arrange ssh as Ubuntu 24.04 does: by a socket.")
@click.option("--containers", is_flag=True, help="With Docker and podman.")
@click.option("--arch", type=click.Choice(list(ARCHITECTURES)), default=platform.machine, help="Default: this host's.")
def up(name: str, *, release: str, memory_mib: int, ubuntu_ssh: bool, containers: bool, arch: str) -> None:
    """Start a machine; the first one of its kind is built and booted."""
    progress = Progress()
    if record := machines.record_of(name):
        kind = describe(record.spec)
        progress.say(f"{name} is running already ({kind}, port {record.port})")
        return
    spec = Spec(release, memory_mib, ubuntu_ssh, containers, arch)
    started = Machine.restore(spec, name, progress=progress, dies_with_us=False)
    progress.say(f"{name} is up (port {started.port}): python -m lab ssh --name {name}")


@cli.command("ssh-config")
@name_option
@user_option
def ssh_config(name: str, user: str) -> None:
    """Print the Host block for a running machine."""
    home = Machine.attach(name).write_home(user)
    click.echo((home / ".ssh" / "config").read_text(), nl=False)


@cli.command(context_settings={"ignore_unknown_options": True})
@name_option
@user_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, user: str, command: tuple[str, ...]) -> None:
    """Log in, or run a command."""
    home = Machine.attach(name).write_home(user)
    os.execvp("ssh", ["ssh", "-F", str(home / ".ssh" / "config"), name, *command])


@cli.command()
@name_option
def down(name: str) -> None:
    """End a machine and forget it."""
    if machines.record_of(name):
        Machine.attach(name).close()
    else:
        machines.forget(name)
        click.echo(f"{name} is not running", err=True)


cli.add_command(wedge)


@cli.command("list")
def list_machines() -> None:
    """Show the machines that run."""
    for record in machines.running():
        kind = describe(record.spec)
        click.echo(f"{record.name}\t{kind}\tport {record.port}\tpid {record.pid}")


def main() -> None:
    """Run the command line; an error of the lab is one message and its exit code."""
    try:
        cli.main(prog_name="python -m lab")
    except LabError as error:
        click.echo(f"lab: {error}", err=True)
        sys.exit(error.exit_code)
