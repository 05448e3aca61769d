"""`plimsoll watch [HOST|GROUP...]`: does each box still let somebody in, and what to do when it does not.

A wedged box answers pings and runs no hook of its own, so it takes another machine to see it and to act: an operator's,
or any small one that is always on.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from plimsoll import inventory
from plimsoll.box.output import ReaderLeft, say
from plimsoll.fleet import gather
from plimsoll.fleet.login import DOWN, Kind, Login, fresh_login
from plimsoll.fleet.targets import connecting, resolve
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plimsoll.inventory import Host

WATCH_SCHEMA = "plimsoll.watch/1"
EVERY_S = 60
FAILURES = 3
"""With 60 s between them: a box that shoots the right process within a minute or two is not switched off meanwhile."""
COMMAND_TIMEOUT_S = 120


@click.command(short_help="Log in to each host again and again; tell of changes.")
@click.argument("names", nargs=-1, metavar="[HOST|GROUP]...")
@click.option(
    "--every-s", type=click.FloatRange(1, 86_400), default=EVERY_S, show_default=True,
    help="From one login to a host to the next.",
)  # fmt: skip
@click.option(
    "--failures", type=click.IntRange(1, 100), default=FAILURES, show_default=True,
    help="Logins that fail one after the other before a host counts as down.",
)  # fmt: skip
@click.option("--on-down", metavar="COMMAND", help="Run this, once for each time that a host goes down.")
@click.option("--on-up", metavar="COMMAND", help="Run this when a host that was down lets somebody in again.")
@click.option("--json", "as_json", is_flag=True, help="Print every login as a line of JSON (schema plimsoll.watch/1).")
@connecting
def command(names: tuple[str, ...], *, as_json: bool, ssh: gather.Ssh, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Log in to each host again and again, and tell of every change; ends when it is interrupted.

    The commands are run by `sh` with PLIMSOLL_HOST, PLIMSOLL_KIND (silent: connections are accepted and nobody is let
    in; unreachable: nobody answers), PLIMSOLL_SINCE and PLIMSOLL_PROBLEM. One that fails is run again after the
    next login that fails. If no host answers any more, this machine's own network is the likelier cause, and
    nothing is run.
    """
    hosts = resolve(names, inventory.load(inventory.inventory_path()))
    if any(host.name == gather.LOCAL for host in hosts):
        raise click.UsageError("this machine cannot watch itself: name hosts that are reached over SSH")
    settings = Settings(**options)
    # without a command to run, nothing is left to do once nobody reads
    print_line = click.echo if settings.on_down or settings.on_up else say

    def tell(event: Event) -> None:
        if as_json:
            print_line(event.json())
        elif event.changed:
            print_line(event.line())

    try:
        asyncio.run(Watcher(hosts, ssh, settings, tell).run())
    except* ReaderLeft:
        pass
    return 0


@dataclass(frozen=True)
class Settings:
    """How it is watched."""

    every_s: float = EVERY_S
    failures: int = FAILURES
    on_down: str | None = None
    on_up: str | None = None


# --- what follows from a login: pure ----------------------------------------------------------------


class Status(enum.StrEnum):
    """What is held to be true of a host."""

    UP = "up"
    FAILING = "failing"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Watched:
    """What is known of one host; times in seconds of a monotonic clock."""

    status: Status | None = None
    kind: Kind | None = None
    failures: int = 0
    """Logins that failed one after the other."""
    since_s: float | None = None
    """When the first of them ended."""
    answered_s: float | None = None
    """When the host last answered at all, be it that it let nobody in."""
    acted: bool = False
    """Whether the command for this outage was carried out."""


def after(before: Watched, login: Login, at_s: float, limit: int) -> Watched:
    """Return what is known after one more login, which ended at `at_s`.

    One that could not be tried neither counts nor excuses; sshd that refuses is a box that is well.
    """
    if login.kind is Kind.UNKNOWN:
        return replace(before, status=Status.UNKNOWN, kind=login.kind)
    answered_s = before.answered_s if login.kind is Kind.UNREACHABLE else at_s
    if login.kind not in DOWN:
        status = Status.UP if login.kind is Kind.IN else Status.UNKNOWN
        return Watched(status, login.kind, answered_s=answered_s)
    failures = before.failures + 1
    return replace(
        before,
        status=Status.DOWN if failures >= limit else Status.FAILING,
        kind=login.kind,
        failures=failures,
        since_s=at_s if before.since_s is None else before.since_s,
        answered_s=answered_s,
    )


def is_held(host: Watched, others: Iterable[Watched]) -> bool:
    """Say whether a host that is down may be so only for us: nobody else answered either since it began to fail.

    Who accepts a connection is reached, and so is a host that is watched alone held to be.
    """
    known = [other.answered_s for other in others]
    since_s = host.since_s or 0.0
    witnessed = any(answered_s is not None and answered_s >= since_s for answered_s in known)
    return host.kind is Kind.UNREACHABLE and bool(known) and not witnessed


@dataclass(frozen=True)
class Event:
    """One login, or one command that was run, and what is held to be true since."""

    host: str
    event: str
    status: Status
    failures: int
    kind: Kind
    took_s: float
    problem: str
    changed: bool
    """Whether it is something else than what the login before it showed."""
    time: str = field(default_factory=lambda: _now().isoformat(timespec="seconds"))

    def json(self) -> str:
        """Return the line of JSON (schema plimsoll.watch/1)."""
        return json.dumps({"schema": WATCH_SCHEMA, **vars(self), "took_s": round(self.took_s, 3)})

    def line(self) -> str:
        """Return the line for a person."""
        said = printable(self.problem) or f"a login took {self.took_s:.1f} s"
        what = f"{self.status}: " if self.event == "login" else f"{self.event}: "
        count = f" ({self.failures} in a row, {self.kind})" if self.failures and self.event == "login" else ""
        return f"{self.time}  {printable(self.host)}  {what}{said}{count}"


def _now() -> datetime.datetime:
    return datetime.datetime.now().astimezone()


def environment(host: str, watched: Watched, problem: str) -> list[str]:
    """Return what a command is told, as `env` takes it."""
    since_s = time.monotonic() if watched.since_s is None else watched.since_s
    since = _now() - datetime.timedelta(seconds=time.monotonic() - since_s)
    told = {
        "HOST": host,
        "KIND": watched.kind or "",
        "SINCE": since.isoformat(timespec="seconds"),
        "PROBLEM": printable(problem),
    }
    return [f"PLIMSOLL_{name}={value}" for name, value in told.items()]


# --- the edge ---------------------------------------------------------------------------------------


class Watcher:
    """Logs in to hosts, each by itself: one that hangs delays no other."""

    def __init__(
        self, hosts: Sequence[Host], ssh: gather.Ssh, settings: Settings, tell: Callable[[Event], None]
    ) -> None:
        self.hosts = hosts
        self.ssh = ssh
        self.settings = settings
        self.tell = tell
        self.watched = {host.name: Watched() for host in hosts}

    async def run(self) -> None:
        """Watch until cancelled; the first logins are spread over one period, and so are all that follow."""
        apart_s = self.settings.every_s / len(self.hosts)
        async with asyncio.TaskGroup() as group:
            for number, host in enumerate(self.hosts):
                group.create_task(self._watch(host, number * apart_s))

    async def _watch(self, host: Host, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            started_s = time.monotonic()
            await self.look(host)
            await asyncio.sleep(max(0.0, started_s + self.settings.every_s - time.monotonic()))

    async def look(self, host: Host) -> None:
        """Log in once, tell of it, and run what is to be run."""
        before = self.watched[host.name]
        login = await fresh_login(host, self.ssh)
        now = after(before, login, time.monotonic(), self.settings.failures)
        self.watched[host.name] = now
        self._tell("login", host, login, changed=(now.status, now.kind) != (before.status, before.kind))
        if now.status is Status.DOWN and not now.acted:
            await self._on_down(host, login, before)
        elif now.status is Status.UP and before.acted and self.settings.on_up:
            await self._run(self.settings.on_up, host, before, login)

    def _tell(self, event: str, host: Host, login: Login, *, changed: bool) -> None:
        now = self.watched[host.name]
        status = now.status or Status.UNKNOWN
        self.tell(Event(host.name, event, status, now.failures, login.kind, login.took_s, login.problem, changed))

    async def _on_down(self, host: Host, login: Login, before: Watched) -> None:
        now = self.watched[host.name]
        others = [watched for name, watched in self.watched.items() if name != host.name]
        if is_held(now, others):
            held = "no host answers any more: this machine's own network may be gone, nothing is run"
            self._tell("held", host, replace(login, problem=held), changed=before.status is not Status.DOWN)
            return
        carried_out = self.settings.on_down is None or await self._run(self.settings.on_down, host, now, login)
        self.watched[host.name] = replace(self.watched[host.name], acted=carried_out)

    async def _run(self, command: str, host: Host, watched: Watched, login: Login) -> bool:
        """Run a command for a host; returns whether it succeeded, and tells of it either way."""
        started_s = time.monotonic()
        words = ["env", *environment(host.name, watched, login.problem), "sh", "-c", command]
        try:
            output, complaint, code = await gather.execute(words, bytes, COMMAND_TIMEOUT_S)
            said = gather.last_line(complaint) or gather.last_line(output)
        except (OSError, gather.AnswerError) as error:
            said, code = str(error), 1
        result = "the command succeeded" if code == 0 else f"the command failed with {code}"
        ran = replace(login, problem=f"{result}: {said}" if said else result, took_s=time.monotonic() - started_s)
        self._tell("command", host, ran, changed=True)
        return code == 0
