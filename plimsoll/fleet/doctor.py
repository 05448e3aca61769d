"""`plimsoll doctor [HOST|GROUP...]`: is this machine ready to reach the hosts? Nothing is connected to.

pyinfra comes with a client of its own, which reads less of OpenSSH's configuration than `ssh` does: what works for one
of them need not work for the other, and both are used.
"""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plimsoll import inventory
from plimsoll.fleet import doctor_hosts, gather
from plimsoll.fleet.doctor_checks import DOCTOR_SCHEMA, Check, Health, exit_code, grouped, ran
from plimsoll.fleet.findings import load_rules
from plimsoll.fleet.targets import resolve
from plimsoll.fleet.text import printable
from plimsoll.inventory import InventoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Sized

    from plimsoll.inventory import Host, Inventory

ROOT = Path(__file__).resolve().parents[2]
_STYLES = {Health.GOOD: "green", Health.NOTE: "yellow", Health.UNKNOWN: "magenta"}
"""What is not named here has to be mended, and is red."""
_AT_ONCE = 16


@click.command(short_help="Say whether this machine is ready to deploy.")
@click.argument("names", nargs=-1, metavar="[HOST|GROUP]...")
@click.option(
    "-F", "--ssh-config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Read this instead of ~/.ssh/config.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema plimsoll.doctor/1).")
def command(names: tuple[str, ...], ssh_config: Path | None, *, as_json: bool) -> int:
    """Check this machine before the first run: versions, inventory, SSH agent, keys, known_hosts.

    Without a name, for all hosts of the inventory. Exit codes: 0 ready, 2 something has to be mended first,
    3 something could not be told, 4 the inventory is invalid.
    """
    found = list(examine(names, ssh_config))
    if as_json:
        click.echo(json.dumps({"schema": DOCTOR_SCHEMA, "checks": [check.to_json() for check in found]}, indent=1))
    else:
        _show(found, Console(highlight=False))
    return exit_code(found)


def examine(names: Sequence[str], ssh_config: Path | None) -> Iterator[Check]:
    """Yield what was found, the machine first; raises click.UsageError for names that mean no host."""
    yield from versions(metadata.requires("plimsoll") or ())
    yield programs()
    yield working_directory(Path.cwd())
    try:
        known = inventory.load(inventory.inventory_path())
    except InventoryError as error:
        yield Check("inventory", Health.INVALID, str(error), "mend it; without it no host can be looked at")
        return
    yield from of_inventory(known, datetime.datetime.now().astimezone().date())
    hosts = resolve(names, known) if names or known.hosts else []
    yield from of_hosts([host for host in hosts if host.name != gather.LOCAL], ssh_config)


# --- this machine -----------------------------------------------------------------------------------


def versions(required: Iterable[str]) -> Iterator[Check]:
    """Yield whether Python and each package is of a version that Plimsoll was made for."""
    python = ".".join(map(str, sys.version_info[:3]))
    wanted = metadata.metadata("plimsoll")["Requires-Python"] or ""
    fits = SpecifierSet(wanted).contains(python)
    advice = "" if fits else f"make an environment with Python {wanted} (make setup)"
    yield Check("python", Health.GOOD if fits else Health.BAD, f"{python}, {sys.executable}", advice)
    problems = [problem for problem in map(_unmet, map(Requirement, required)) if problem]
    if problems:
        yield Check("packages", Health.BAD, "; ".join(problems), "make setup")
    else:
        yield Check("packages", Health.GOOD, f"pyinfra {metadata.version('pyinfra')} and what else is required")


def _unmet(requirement: Requirement) -> str:
    """Return what is wrong with the installed version of a package; empty for one that fits or is optional."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    fits = requirement.specifier.contains(found, prereleases=True)
    return "" if fits else f"{requirement.name} is {found}, {requirement.specifier} is wanted"


def programs() -> Check:
    """Return whether there is a client of SSH, and whether typing `pyinfra` starts the one of this environment."""
    lacking = [name for name in ("ssh", "ssh-keygen", "ssh-add") if shutil.which(name) is None]
    if lacking:
        return Check("programs", Health.BAD, f"not found: {', '.join(lacking)}", "install OpenSSH's client")
    version = ran("ssh", "-V").err.strip()
    own, typed = Path(sys.executable).with_name("pyinfra"), shutil.which("pyinfra")
    if typed is None or Path(typed).resolve() != own.resolve():
        said = f"`pyinfra` means {typed}" if typed else "`pyinfra` is not on PATH"
        return Check("programs", Health.NOTE, f"{version}; {said}", f"type {own}, or activate its environment")
    return Check("programs", Health.GOOD, f"{version}; {typed}")


def working_directory(here: Path) -> Check:
    """Return whether pyinfra would find its settings: it reads them from the directory that it is started in."""
    if (here / "group_data" / "all.py").is_file() and (here / "deploy.py").is_file():
        return Check("directory", Health.GOOD, str(here))
    advice = f"cd {ROOT} before you run pyinfra: it reads group_data/ there (strict host keys, time-outs)"
    return Check("directory", Health.NOTE, f"{here} is not the repository's root", advice)


# --- the inventory ----------------------------------------------------------------------------------


def _counted(those: Sized, what: str) -> str:
    return f"{len(those)} {what}{'' if len(those) == 1 else 's'}"


def of_inventory(known: Inventory, today: datetime.date) -> Iterator[Check]:
    """Yield what the inventory holds, and what in it has run out."""
    said = f"{inventory.shown(known.path)}: {_counted(known.hosts, 'host')} in {_counted(known.groups, 'group')}"
    if known.hosts:
        yield Check("inventory", Health.GOOD, said)
    else:
        yield Check("inventory", Health.NOTE, said, "name each host there: a group, a policy and a waiver need it")
    for waiver in known.waivers:
        if not waiver.holds(today):
            until = f"{waiver.control}: the waiver ran out on {waiver.until.isoformat()}"
            yield Check("waivers", Health.NOTE, until, "it excuses nobody any more: renew it, or take it out")
    yield _rules(known.path)


def _rules(path: Path) -> Check:
    try:
        rules = load_rules(path)
    except InventoryError as error:
        return Check("rules", Health.INVALID, str(error), "mend it: an audit does not begin without it")
    return Check("rules", Health.GOOD, f"{len(rules)} rules to tell known problems by")


# --- the hosts --------------------------------------------------------------------------------------


def of_hosts(hosts: Sequence[Host], ssh_config: Path | None) -> list[Check]:
    """Return what was found for each host, equal findings of several hosts as one."""
    if not hosts or shutil.which("ssh") is None:
        return []
    agent = doctor_hosts.agent()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # a name server that does not answer takes seconds for each name
        found = list(pool.map(lambda host: doctor_hosts.checks(host, ssh_config, agent), hosts))
    return [doctor_hosts.of_agent(agent), *grouped([check for checks in found for check in checks])]


# --- for a person -----------------------------------------------------------------------------------


def _show(found: Sequence[Check], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for check in found:
        who = f"{', '.join(check.hosts)}: " if check.hosts else ""
        lines = [Text(printable(who + check.said))]
        lines += [Text(printable(check.advice), "bold")] if check.advice else []
        table.add_row(check.subject, Text(check.health, _STYLES.get(check.health, "bold red")), Text("\n").join(lines))
    console.print(table)
    wrong = sum(check.health not in (Health.GOOD, Health.NOTE) for check in found)
    console.print("ready; next: plimsoll audit" if not wrong else f"not ready: {wrong} to be mended, see above")
