"""`plimsoll incident HOST` or `FILE...`: what happened, from a box's logs over SSH or from files on this machine.

The box reads its own logs, with the program that travels with the connection, and hands over what it found; the answer
is made here. What a host sends is untrusted: it is bounded, fitted to the types of the model, and shown without what
could steer a terminal or run in a browser.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from plimsoll import inventory, zipapp
from plimsoll.box import cli_incident
from plimsoll.box.errors import UNKNOWN, USAGE, BoxError
from plimsoll.box.host import Host as ThisMachine
from plimsoll.box.incident import answering, wire
from plimsoll.fleet import gather
from plimsoll.fleet.files import unwritable
from plimsoll.fleet.targets import connecting, resolve_one
from plimsoll.fleet.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.inventory import Host

MAX_BYTES = 512 << 20
"""20,000 events of each of some twenty sources, with the tables of those that have one, come to half of it."""
_END_S = 10.0
_CHUNK_BYTES = 64 << 10


@click.command(short_help="Say what happened, on a host or in logs.")
@click.argument("names", nargs=-1, required=True, metavar="HOST|FILE...")
@click.option("--json", "json", is_flag=True, help="Print the document plimsoll.incident/1.")
@click.option("--html", metavar="FILE", help="Write one self-contained page with the time line.")
@click.option("--who", metavar="NAME|PID", help="Say who killed this process, unit or container.")
@click.option("--redact", is_flag=True, help="Replace hosts, users, addresses, paths and ids.")
@click.option("--since", metavar="TIME", help="Leave out what was before: 2026-09-12, 2026-09-12T13:00, 13:00.")
@click.option("--until", metavar="TIME", help="Leave out what was after.")
@click.option("--bundle", metavar="FILE", help="Write an archive for a maintainer, redacted.")
@click.option("--watch", is_flag=True, help="Tell of each event of HOST as its kernel logs it, until interrupted.")
@click.option("-v", "--verbose", is_flag=True, help="Show all, not a page.")
@connecting
def command(names: tuple[str, ...], ssh: gather.Ssh, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Say what happened on HOST, or in logs: files, directories, or - for standard input.

    HOST is one of the inventory, an alias of ~/.ssh/config, or @local for this machine; what is there, or has a slash
    in it, is a file. Nothing is changed or written on a host. --timeout-s is the longest time without a word from
    it, except with --watch. Exit codes: 0 also where nothing happened, 3 where nothing could be read, or nobody is
    on record for --who.
    """
    arguments = argparse.Namespace(files=list(names), findings=False, **options)
    try:
        if any(_is_file(name) for name in names):
            return cli_incident.incident(arguments, ThisMachine(), b"")
        if len(names) > 1:
            raise click.UsageError(f"{names[0]!r} and {names[1]!r} are no files here: name one host at a time")
        host = resolve_one(names[0], inventory.load(inventory.inventory_path()))
        return _watch(host, ssh, arguments) if arguments.watch else _ask(host, ssh, arguments)
    except BoxError as error:
        click.echo(f"plimsoll: {error}", err=True)
        return error.exit_code


def _is_file(name: str) -> bool:
    return name == "-" or "/" in name or os.path.lexists(name)


def _ask(host: Host, ssh: gather.Ssh, arguments: argparse.Namespace) -> int:
    # before anybody is asked: a time that is none, and a file that cannot be written
    answering.line_of(arguments, [], time.time())
    _check_files(arguments)
    # so that the logs around the incident are those of the one that is shown
    limits = [
        word for name in ("since", "until") if (value := getattr(arguments, name)) for word in (f"--{name}", value)
    ]
    receiver, complaint = _receive(host, ssh, ["--findings", *limits, *(["--bundle", "-"] if arguments.bundle else [])])
    if receiver.about is None:
        click.echo(f"plimsoll: {host.name}: {complaint}{_perhaps_a_file(complaint)}", err=True)
        return UNKNOWN
    line = answering.line_of(arguments, receiver.found, receiver.about.now_s)
    return answering.answer(arguments, line, receiver.about)


def _check_files(arguments: argparse.Namespace) -> None:
    for file in (Path(name) for name in (arguments.html, arguments.bundle) if name):
        if problem := unwritable(file):
            raise click.FileError(str(file), problem)


def _perhaps_a_file(complaint: str) -> str:
    return "; there is no file of that name here either" if "resolve hostname" in complaint else ""


def _receive(host: Host, ssh: gather.Ssh, words: Sequence[str]) -> tuple[wire.Receiver, str]:
    """Return what a host hands over, and why it is not all of it; empty if it is."""
    receiver = wire.Receiver()
    show = cli_incident.progress(shown=sys.stderr.isatty())
    with tempfile.TemporaryFile() as said, _running(host, ssh, words, said) as process:
        try:
            for line in _bounded(_lines(process, ssh.timeout_s)):
                if receiver.take(line):
                    show(printable(f"{receiver.reading} of {host.name}"))
        except (wire.WireError, _AnswerError) as error:
            return wire.Receiver(), f"{error}{_in_brackets(_last_line(said))}"
        finally:
            show("")
        if receiver.about is not None:
            return receiver, ""
        code = process.wait()
        return wire.Receiver(), _last_line(said) or f"it ended with exit code {code} before it had answered"


class _AnswerError(Exception):
    """A host did not answer, or with too much."""


def _bounded(lines: Iterator[bytes]) -> Iterator[bytes]:
    received = 0
    for line in lines:
        received += len(line)
        if received > MAX_BYTES:
            raise _AnswerError(f"it sent more than {MAX_BYTES >> 20} MiB: say --since and --until")
        yield line


def _lines(process: subprocess.Popen[bytes], silence_s: float | None) -> Iterator[bytes]:
    """Yield what a process prints, line by line; raises _AnswerError after `silence_s` without a word."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], silence_s)[0]:
            raise _AnswerError(f"not a word from it for {silence_s:g} s")
        chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if not chunk or len(rest) > wire.MAX_LINE_BYTES:
            yield from [rest] if rest else []
            return


def _last_line(said: IO[bytes]) -> str:
    """Return what a program complained of last."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _CHUNK_BYTES))
    lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return printable(lines[-1].strip()) if lines else ""


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


@contextmanager
def _running(
    host: Host, ssh: gather.Ssh, words: Sequence[str], stderr: IO[bytes] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the box's own `incident` on a host, from memory, as root where that needs no password; then end it."""
    there = ["sh", "-c", _as_root(zipapp.from_memory("incident", *words))]
    argv = there if host.name == gather.LOCAL else [*gather.ssh_command(host, ssh), shlex.join(there)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            _give(process, f"{zipapp.first_line()}\n".encode())
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _give(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    with suppress(BrokenPipeError):  # a host that does not listen says why itself
        process.stdin.write(content)
    with suppress(BrokenPipeError):
        process.stdin.close()


def _as_root(program: str) -> str:
    # the program's own exit code says something here: it must not run a second time because of it
    return (
        f"if [ -w / ]; then exec {program}; elif sudo -n true </dev/null 2>/dev/null; then exec sudo -n {program}; "
        f"else exec {program}; fi"
    )


def _watch(host: Host, ssh: gather.Ssh, arguments: argparse.Namespace) -> int:
    """Show what a host tells, line by line, until the connection ends or somebody interrupts it."""
    cli_incident.refuse_beside_watch(arguments)
    words = ["--watch", *(f"--{name}" for name in ("json", "redact") if getattr(arguments, name))]
    with _running(host, ssh, words, None) as process:
        for line in _lines(process, None):
            click.echo(printable(line.decode("utf-8", "replace"), wire.MAX_LINE_BYTES))
            sys.stdout.flush()
        code = process.wait()
    click.echo(f"plimsoll: {host.name}: the connection ended, exit code {code}", err=True)
    # what the box says of a call that cannot work stays what it is; an end by itself is never good news
    return code if code == USAGE else UNKNOWN
