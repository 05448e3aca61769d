"""`plimsoll audit [HOST|GROUP...]`: is it still as it was left, who changed it, and what to do. Read only.

What draws a table, a page or a bar is loaded only where one is asked for: 0.1 s, in which no host is asked yet.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plimsoll import inventory
from plimsoll.fleet import compare, findings, gather, waivers
from plimsoll.fleet.files import PRIVATE, READABLE, real_path, unwritable, write_atomically
from plimsoll.fleet.judging import host_report
from plimsoll.fleet.report import HostReport, Report
from plimsoll.fleet.targets import connecting, resolve, resolve_one
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.inventory import Host, Inventory

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Say what has drifted, who overrides whom, and what to do.")
@click.argument("names", nargs=-1, metavar="[HOST|GROUP]...")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (schema plimsoll.audit/1).")
@click.option("--html", type=_FILE, metavar="FILE", help="Write one self-contained page.")
@click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="Write a JUnit report.")
@click.option("--metrics", "metrics_file", type=_FILE, metavar="FILE", help="Write metrics for node_exporter.")
@click.option("--save", type=_FILE, metavar="FILE", help="Keep the report, to compare with later.")
@click.option("--against", metavar="FILE|HOST", help="Show what differs from a saved report or from another host.")
@click.option("--strict", is_flag=True, help="Let what is pending, and findings, count as drift.")
@click.option("--all", "every", is_flag=True, help="List the controls that are as they should be, too.")
@click.option(
    "--parallel", type=click.IntRange(1, 256), default=gather.DEFAULT_PARALLEL, show_default=True,
    help="How many hosts are asked at a time.",
)  # fmt: skip
@connecting
def command(names: tuple[str, ...], against: str | None, parallel: int, ssh: gather.Ssh, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Compare hosts with what the inventory wants of them; without a name, all of them.

    HOST may also be an alias of ~/.ssh/config, or @local for this machine. Nothing is changed or written on a
    host. Exit codes: 0 no drift, 2 drift, 3 a host was not reached or something could not be told.
    """
    known = inventory.load(inventory.inventory_path())
    rules = findings.load_rules(known.path)
    hosts = resolve(names, known)
    reference = Reference.named(against, known)
    reference.check(hosts)
    _check_files(options, reference)
    now = datetime.datetime.now().astimezone()
    asked = reference.added_to(hosts)
    with _progress(len(asked), quiet=not sys.stderr.isatty()) as answered:

        def judged(answer: gather.Answer) -> HostReport:
            answered(answer)
            return host_report(answer, rules, now.date())

        found = tuple(gather.gather(asked, ssh, judged, parallel=parallel))
    report = Report(now.isoformat(timespec="seconds"), found, waivers.notes(known, found, now.date()))
    differences = reference.differences(report)
    named = {host.name for host in hosts}
    report = replace(report, hosts=tuple(host for host in report.hosts if host.name in named))
    _write(report, options)
    _print(report, differences, options, reference)
    worst = 0 if differences is None else compare.exit_code(differences, strict=options["strict"])
    return max(report.exit_code(strict=options["strict"]), worst)


@dataclass(frozen=True)
class Reference:
    """What a report is compared with: a saved one, another host, or nothing."""

    name: str = ""
    saved: Report | None = None
    host: Host | None = None

    @classmethod
    def named(cls, name: str | None, known: Inventory) -> Reference:
        """Return the saved report of that name if there is such a file, else the host; raises ReportFileError.

        What is named as files are is never taken for a host: a mistyped one would be asked for over the network.
        """
        if name is None:
            return cls()
        is_named_as_files_are = "/" in name or (name.endswith(".json") and name not in known.hosts)
        if os.path.lexists(name) or is_named_as_files_are:
            return cls(name, saved=compare.load(Path(name)))
        return cls(name, host=resolve_one(name, known))

    def check(self, hosts: Sequence[Host]) -> None:
        """Raise click.UsageError where there is nothing to compare: a host is always like itself."""
        if self.host is not None and {host.name for host in hosts} == {self.host.name}:
            raise click.UsageError(f"--against {self.name}: name another host to compare with it")

    def added_to(self, hosts: Sequence[Host]) -> list[Host]:
        """Return the hosts to be asked: the one that others are compared with is one of them."""
        names = {host.name for host in hosts}
        return [*hosts, *([self.host] if self.host is not None and self.host.name not in names else [])]

    def differences(self, report: Report) -> Sequence[compare.Difference] | None:
        """Return what differs, None where nothing was to be compared."""
        if self.saved is not None:
            return compare.against_report(self.saved, report)
        if self.host is None:
            return None
        own = next(host for host in report.hosts if host.name == self.host.name)
        return compare.against_host(own, report.hosts)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[gather.Answer], None]]:
    """Show on stderr how many hosts have answered; nothing where nobody watches."""
    if quiet:
        yield lambda _answer: None
        return
    from rich.console import Console  # noqa: PLC0415  # said at the top
    from rich.progress import (  # noqa: PLC0415  # said at the top
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("hosts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def answered(answer: gather.Answer) -> None:
            said = printable(answer.problem) if answer.problem else "answered"
            progress.update(task, advance=1, description=f"{printable(answer.host.name)} {said}"[:60])

        yield answered


_RENDERERS = (("html", "page", PRIVATE), ("junit_file", "junit", PRIVATE), ("metrics_file", "metrics", READABLE))
"""Option, the module that makes it by its function of the same name, and who may read the file."""
_OUTPUTS = ("html", "junit_file", "metrics_file", "save")


def _check_files(options: dict[str, Any], reference: Reference) -> None:
    """Refuse, before any host is asked, a file that cannot be written, and one that something else needs."""
    files = [Path(options[option]) for option in _OUTPUTS if options[option]]
    for file in files:
        problem = unwritable(file)
        if problem:
            raise click.FileError(str(file), problem)
    if len({real_path(file) for file in files}) < len(files):
        raise click.UsageError("one file is named for two reports: the second would replace the first")
    if options["save"]:
        compare.check_target(options["save"])
    _check_reference(options, reference)


def _check_reference(options: dict[str, Any], reference: Reference) -> None:
    """Keep the report that is compared with; only a later report of the same form may take its place (`--save`)."""
    if reference.saved is None:
        return
    compared = real_path(Path(reference.name))
    for option in _OUTPUTS:
        if option != "save" and options[option] and real_path(options[option]) == compared:
            raise click.UsageError(f"{options[option]} is what --against compares with: name another file to write to")


def _write(report: Report, options: dict[str, Any]) -> None:
    """Write what was asked for; numbers are for a program of another user, everything else for the owner only."""
    for option, name, mode in _RENDERERS:
        if options[option]:
            render: Callable[[Report], str] = getattr(import_module(f"plimsoll.fleet.{name}"), name)
            try:
                write_atomically(real_path(options[option]), render(report), mode, "replace")
            except OSError as error:
                raise click.FileError(str(options[option]), error.strerror) from error
    if options["save"]:
        compare.save(report, options["save"])


def _print(
    report: Report, differences: Sequence[compare.Difference] | None, options: dict[str, Any], reference: Reference
) -> None:
    if options["as_json"]:
        compared = {} if differences is None else {"compared": compare.to_json(differences)}
        # laid out for eyes it takes four times as long: 45 ms for fifty hosts
        indent = 1 if sys.stdout.isatty() else None
        click.echo(json.dumps({**report.to_json(), **compared}, indent=indent))
        return
    from rich.console import Console  # noqa: PLC0415  # said at the top

    from plimsoll.fleet import difference_table, table  # noqa: PLC0415  # said at the top

    console = Console(highlight=False)
    table.show(report, console, every=options["every"])
    if differences is not None:
        names = (reference.name, "now" if reference.saved is not None else "the others")
        difference_table.show(differences, console, names)
