"""`plimsoll revert HOST`: the box's own revert, over SSH; its connection is held until a new login was proven."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from plimsoll import inventory, zipapp
from plimsoll.box.errors import INTERNAL, UNKNOWN, USAGE
from plimsoll.box.model import LAYERS
from plimsoll.box.revert import NOTHING
from plimsoll.fleet import gather
from plimsoll.fleet.targets import connecting, resolve_one
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.inventory import Host

PROOF_TRIES = 3
PROOF_TIMEOUT_S = 60
"""A login that took about 50 s was seen on a box under memory pressure."""
_NO_PROGRAM = "there is no plimsoll on the host: it was never deployed to, or was reverted already"
_NO_SUDO = "sudo wants a password there: run it yourself with `ssh -t {host} sudo plimsoll revert`"
_END = "plimsoll: reverted with"


@click.command(short_help="Put everything on a host back.")
@click.argument("name", metavar="HOST")
@click.option("--layer", type=click.Choice(LAYERS), help="Only what this layer changed.")
@click.option("--dry", is_flag=True, help="Say what would be put back, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connecting
def command(name: str, *, layer: str | None, dry: bool, yes: bool, ssh: gather.Ssh) -> int:
    """Put everything on HOST back as it was before the first deploy."""
    host = resolve_one(name, inventory.load(inventory.inventory_path()))
    if host.name == gather.LOCAL:
        raise click.UsageError(f"on this machine itself it is `sudo {zipapp.installed('revert')}`")
    arguments = ["--layer", layer] if layer else []
    code, said = _announce(host, ssh, [*arguments, "--dry"])
    if dry or code != 0:
        return code
    if not yes and (said == [NOTHING] or not click.confirm(f"Put this back on {name}?", err=True)):
        return 0
    return _revert(host, ssh, arguments)


def _there(host: Host, arguments: list[str]) -> str:
    """Return the shell code for the host: the installed program, as root, with a line at the end that says how it went.

    It then waits until this side closes its input, so that the connection outlives the revert.
    """
    program = zipapp.installed("revert", *arguments)
    script = (
        f"if [ ! -e {zipapp.INSTALLED} ]; then echo {shlex.quote(_NO_PROGRAM)} >&2; code={USAGE}; "
        f"elif [ -w / ]; then {program}; code=$?; "
        f"elif sudo -n true; then sudo -n {program}; code=$?; "
        f"else code={USAGE}; echo {shlex.quote(_NO_SUDO.format(host=host.name))} >&2; fi; "
        f"echo {shlex.quote(_END)} $code; cat >/dev/null"
    )
    return shlex.join(["sh", "-c", script])


@contextmanager
def _session(host: Host, ssh: gather.Ssh, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a revert on the host and hold its connection; at the end the input is closed, which ends it."""
    with subprocess.Popen(
        [*gather.ssh_command(host, ssh), _there(host, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()


def _relay(process: subprocess.Popen[str]) -> tuple[int | None, list[str]]:
    """Show what the host says until it says how it ended; returns that exit code, None if the connection was lost.

    One that says more than a host may answer at all, in one line or in many, is as good as lost.
    """
    said: list[str] = []
    left = gather.MAX_ANSWER_BYTES
    while process.stdout is not None and left > 0 and (line := process.stdout.readline(left)):
        left -= len(line)
        if line.startswith(_END):
            code = line.removeprefix(_END).strip()
            return (int(code) if re.fullmatch(r"[0-9]{1,3}", code) else UNKNOWN), said
        said.append(line.rstrip("\n"))
        click.echo(printable(said[-1]))
    if left <= 0:
        process.kill()
        click.echo(f"plimsoll: the host says more than {gather.MAX_ANSWER_BYTES >> 20} MiB: not read on", err=True)
    return None, said


def _announce(host: Host, ssh: gather.Ssh, arguments: list[str]) -> tuple[int, list[str]]:
    with _session(host, ssh, arguments) as process:
        code, said = _relay(process)
    return (UNKNOWN if code is None else code), said


def _revert(host: Host, ssh: gather.Ssh, arguments: list[str]) -> int:
    with _session(host, ssh, arguments) as process:
        code, _said = _relay(process)
        if code is None or process.poll() is not None:
            click.echo(f"plimsoll: the connection to {host.name} was lost; look again with --dry", err=True)
            return UNKNOWN
        proof = _prove_login(host, ssh)
        if proof is not None:
            click.echo(f"a fresh login took {proof:.1f} s", err=True)
            return code
        click.echo(
            f"plimsoll: no fresh login to {host.name} works. The connection of this revert is still open: repair "
            "sshd through another one that is open, or at the console, before you let it go.",
            err=True,
        )
        if sys.stdin.isatty():
            click.prompt("Enter lets the connection go", default="", show_default=False, err=True)
    return INTERNAL


def _prove_login(host: Host, ssh: gather.Ssh) -> float | None:
    """Return the seconds that a login over a new connection took, None if none works."""
    fresh = [
        *gather.ssh_command(host, replace(ssh, timeout_s=2 * PROOF_TIMEOUT_S), "-o", "ControlPath=none"),
        "echo plimsoll",
    ]
    for _try in range(PROOF_TRIES):
        started = time.monotonic()
        try:
            done = subprocess.run(
                fresh, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROOF_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            continue
        if b"plimsoll" in done.stdout:
            return time.monotonic() - started
    return None
