"""`plimsoll rollout [HOST|GROUP...]`: a canary, then batches, each proven before the next; stops at a bad host."""

from __future__ import annotations

import asyncio
import datetime
import getpass
import hashlib
import re
import signal
import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from plimsoll import inventory
from plimsoll.box.errors import REFUSED
from plimsoll.fleet import findings, gather, page
from plimsoll.fleet.files import real_path, unwritable, write_atomically
from plimsoll.fleet.rollout import plan, schedule, screen, state, steps, summary
from plimsoll.fleet.rollout.model import Begin, Event, OnFailure, Planned, RunEvent, Settings, to_line
from plimsoll.fleet.rollout.processes import ROOT
from plimsoll.fleet.rollout.run import MAX_DEPLOYS, Rollout
from plimsoll.fleet.targets import connecting, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.fleet.report import HostReport
    from plimsoll.fleet.rollout.progress import Progress
    from plimsoll.inventory import Host, Inventory

_FILE = click.Path(dir_okay=False, path_type=Path)
_SPAN = re.compile(r"([0-9]{1,6})(s|m|h)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}
_OF_A_RESUME = {"resume", "as_json", "html"}
LIMITS = steps.Limits()


class _Duration(click.ParamType[float]):
    """A time such as 90s, 10m or 2h, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's signature
        """Return the seconds."""
        match = _SPAN.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} must be a time such as 90s, 10m or 1h", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


@click.command(short_help="Deploy to many hosts, a canary first.")
@click.argument("names", nargs=-1, metavar="[HOST|GROUP]...")
@click.option("--canary", default="1", show_default=True, metavar="HOST|N", help="Who comes first, and alone.")
@click.option("--batch", default="25%", show_default=True, metavar="N|N%", help="How many come at a time after that.")
@click.option(
    "--soak",
    type=_Duration(),
    default="10m",
    show_default=True,
    help="How long each host is watched before the next batch.",
)
@click.option("--max-failures", type=click.IntRange(0), default=0, show_default=True, help="More than these stop it.")
@click.option(
    "--on-failure", type=click.Choice([each.value for each in OnFailure]), default="stop", show_default=True,
    help="Keep what was done when it stops, or take it back where this was the first deploy.",
)  # fmt: skip
@click.option("--allow-restart", is_flag=True, help="Do also what disturbs a model that is being served.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", is_flag=True, help="Go on with the last rollout, with its hosts and options.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON (schema plimsoll.rollout/1).")
@click.option("--html", type=_FILE, metavar="FILE", help="Write the page of an audit of all its hosts at the end.")
@connecting
@click.pass_context
def command(context: click.Context, /, names: tuple[str, ...], *, ssh: gather.Ssh, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Deploy to hosts, a canary first, and stop at the first that is not as it should be; without a name, to all.

    Each host is locked, deployed to, logged in to anew, verified, and watched (--soak) for stalls, failed units and
    errors of the kernel. Exit codes: 0 every host is done, 2 one is not, 3 one was not reached, 75 somebody else is
    at work there or a rollout of this fleet is under way.
    """
    known = inventory.load(inventory.inventory_path())
    _check_html(options["html"])
    fleet = state.fleet_directory(known.path)
    owner = f"{getpass.getuser()}@{socket.gethostname()}"
    try:
        with state.only_one(fleet, f"{owner}, since {datetime.datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"):
            session = Session(known, fleet, options)
            if options["resume"]:
                _check_resume(context, names)
                return session.resume()
            return session.begin(names, ssh, owner)
    except state.BusyError as error:
        click.echo(f"plimsoll: {error}", err=True)
        return REFUSED


def _check_html(file: Path | None) -> None:
    problem = unwritable(file) if file else ""
    if problem:
        raise click.FileError(str(file), problem)


def _check_resume(context: click.Context, names: Sequence[str]) -> None:
    """Refuse what `--resume` takes from the rollout that it goes on with."""
    given = [
        name for name in context.params if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    others = sorted(f"--{name.replace('_', '-')}" for name in given if name not in {*_OF_A_RESUME, "names", "yes"})
    if names or others:
        raise click.UsageError(
            f"--resume takes hosts and options from the last rollout: leave out {' '.join([*others, *names])}"
        )


@dataclass(frozen=True)
class Session:
    """One run of the command, once the fleet is ours."""

    known: Inventory
    fleet: Path
    options: dict[str, Any]

    @property
    def for_people(self) -> Console:
        """Where plan and summary go: standard output is a program's with --json."""
        return Console(highlight=False, stderr=self.options["as_json"])

    # --- a new one ---

    def begin(self, names: Sequence[str], ssh: gather.Ssh, owner: str) -> int:
        """Look, plan, ask, and go."""
        hosts = resolve(names, self.known)
        if any(host.name == gather.LOCAL for host in hosts):
            raise click.UsageError("a rollout goes over SSH: on this machine itself it is `pyinfra @local deploy.py`")
        looked = self._look(hosts, ssh)
        begin = self._confirmed_plan([planned for planned, _report in looked], ssh, owner)
        summary.show_plan(begin, self.for_people)
        if begin.batches and not self.options["yes"] and not _confirmed(begin):
            return 0
        self._say_if_unfinished()
        journal = state.create(self.fleet, begin)
        for _planned, report in looked:
            if report.reached:
                journal.keep_report(report)
        self._print(begin)
        return self._carry_out(journal, journal.load(), hosts)

    def _look(self, hosts: Sequence[Host], ssh: gather.Ssh) -> list[tuple[Planned, HostReport]]:
        today = datetime.datetime.now().astimezone().date()
        rules = findings.load_rules(self.known.path)
        allow = self.options["allow_restart"]

        def each(answer: gather.Answer) -> tuple[Planned, HostReport]:
            return plan.looked(answer, rules, today, allow_restart=allow)

        return gather.gather(hosts, ssh, each)

    def _confirmed_plan(self, hosts: Sequence[Planned], ssh: gather.Ssh, owner: str) -> Begin:
        to_do = [host.name for host in hosts if host.steps and not host.problem]
        canaries = _canaries(self.options["canary"], to_do, hosts)
        try:
            size = schedule.batch_size(self.options["batch"], max(1, len(to_do) - len(canaries)))
        except ValueError as error:
            raise click.UsageError(f"--batch: {error}") from None
        clusters = tuple(self.known.groups[name] for name in self.known.clusters)
        now_s = time.time()
        return Begin(
            id=_new_id(self.fleet, now_s),
            at_s=now_s,
            owner=owner,
            inventory=str(self.known.path),
            basis=basis(self.known.path),
            settings=self._settings(ssh),
            hosts=tuple(hosts),
            canaries=tuple(canaries),
            batches=schedule.batches(to_do, canaries, size, clusters),
            clusters=clusters,
        )

    def _settings(self, ssh: gather.Ssh) -> Settings:
        return Settings(
            soak_s=self.options["soak"],
            max_failures=self.options["max_failures"],
            on_failure=OnFailure(self.options["on_failure"]),
            allow_restart=self.options["allow_restart"],
            ssh_config=None if ssh.config is None else str(ssh.config.resolve()),
            timeout_s=ssh.timeout_s,
        )

    def _say_if_unfinished(self) -> None:
        last = state.latest(self.fleet)
        standing = last.load() if last is not None else None
        if standing is not None and standing.resumable:
            click.echo(f"the rollout {standing.begin.id} had not come to its end; this one takes its place", err=True)

    # --- an earlier one ---

    def resume(self) -> int:
        """Go on with the last rollout, or say again how it ended."""
        journal = state.latest(self.fleet)
        if journal is None:
            raise click.UsageError(f"no rollout of {self.known.path} was ever begun on this machine")
        standing = journal.load()
        if not standing.resumable:
            click.echo("there is nothing left to do:", err=True)
            return self._end(journal, standing)
        hosts = resolve([host.name for host in standing.begin.hosts], self.known)
        if not standing.takes_back:
            journal.append(RunEvent(time.time(), "resume"))
        return self._carry_out(journal, journal.load(), hosts)

    # --- both ---

    def _carry_out(self, journal: state.Journal, standing: Progress, hosts: Sequence[Host]) -> int:
        with screen.watching(Console(stderr=True, highlight=False), standing) as watch:

            def seen(event: Event, progress: Progress) -> None:
                watch(event, progress)
                self._print(event)

            rollout = Rollout({host.name: host for host in hosts}, standing, journal, seen)
            shared = self._shared(journal, standing.begin, rollout)
            with _saying_what_is_left(rollout):
                asyncio.run(_interruptible(rollout, shared))
        return self._end(journal, rollout.progress)

    def _shared(self, journal: state.Journal, begin: Begin, rollout: Rollout) -> steps.Shared:
        settings = begin.settings
        config = None if settings.ssh_config is None else Path(settings.ssh_config)
        return steps.Shared(
            fleet=self.fleet,
            journal=journal,
            settings=settings,
            owner=f"{begin.id} {begin.owner}",
            ssh=gather.Ssh(config, settings.timeout_s),
            rules=findings.load_rules(self.known.path),
            limits=LIMITS,
            deploys=asyncio.Semaphore(MAX_DEPLOYS),
            interrupted=asyncio.Event(),
            tell=rollout.tell,
            still_as_confirmed=lambda: basis(self.known.path) == begin.basis,
        )

    def _end(self, journal: state.Journal, progress: Progress) -> int:
        if self.options["html"]:
            taken = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            text = page.page(summary.report(progress, journal, taken))
            try:
                write_atomically(real_path(self.options["html"]), text, errors="replace")
            except OSError as error:
                raise click.FileError(str(self.options["html"]), error.strerror) from error
        if self.options["as_json"]:
            click.echo(to_line(summary.of(progress, journal)))
        else:
            summary.show_end(progress, journal, self.for_people)
        return schedule.exit_code(progress)

    def _print(self, entry: Begin | Event) -> None:
        if self.options["as_json"]:
            click.echo(to_line(entry))


def _canaries(wanted: str, to_do: Sequence[str], hosts: Sequence[Planned]) -> list[str]:
    """Return the hosts that come first: the first N that have something to do, or the one that is named."""
    if wanted.isdecimal():
        return list(to_do[: int(wanted)])
    planned = next((host for host in hosts if host.name == wanted), None)
    if planned is None:
        raise click.UsageError(f"--canary {wanted}: it is none of the hosts of this rollout")
    if planned.problem:
        raise click.UsageError(f"--canary {wanted}: it is left out: {planned.problem}")
    if not planned.steps and to_do:
        raise click.UsageError(f"--canary {wanted}: nothing is left to do there: name one of {', '.join(to_do[:5])}")
    return [wanted] if planned.steps else []


def _confirmed(begin: Begin) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --yes to begin without a question")
    number = sum(len(batch) for batch in begin.batches)
    soak = screen.duration(begin.settings.soak_s)
    return click.confirm(f"Do this on {number} host{'s' * (number != 1)}, each watched for {soak}?", err=True)


def _new_id(fleet: Path, now_s: float) -> str:
    """Return a name that sorts after all earlier ones; two within a second are told apart."""
    stem = f"{datetime.datetime.fromtimestamp(now_s, datetime.UTC):%Y%m%dT%H%M%SZ}"
    taken = {directory.name for directory in fleet.iterdir()}
    return stem if stem not in taken else next(name for n in range(2, 100) if (name := f"{stem}-{n:02}") not in taken)


_WHAT_IS_DEPLOYED = ("deploy.py", "config.py", "group_data", "templates", "facts", "plimsoll/box", "plimsoll/controls",
                     "plimsoll/provision", "plimsoll/policy.py", "plimsoll/inventory.py")  # fmt: skip


def basis(inventory_file: Path) -> str:
    """Return a digest of all that decides what a deploy does: the inventory, and this checkout's part in it."""
    digest = hashlib.sha256(inventory_file.read_bytes())
    for name in _WHAT_IS_DEPLOYED:
        top = ROOT / name
        for file in [top] if top.is_file() else sorted(f for f in top.rglob("*") if f.suffix in (".py", ".j2")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


async def _interruptible(rollout: Rollout, shared: steps.Shared) -> None:
    """Run a rollout that is interrupted by Ctrl-C, SIGTERM and the end of a terminal, as far as those are not ignored.

    The first time what was begun is carried to its end, the second time it is left to itself.
    """
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  # this is one, which only the type checker cannot know
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(ending, running.cancel)
    await rollout.run(shared)


@contextmanager
def _saying_what_is_left(rollout: Rollout) -> Iterator[None]:
    """Say, when it is interrupted, what goes on by itself and how the rest is gone on with."""
    try:
        yield
    except asyncio.CancelledError:
        for line in summary.interrupted(rollout.progress):
            click.echo(line, err=True)
        raise KeyboardInterrupt from None
