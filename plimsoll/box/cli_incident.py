"""`plimsoll incident`: what happened, from logs that somebody names or from this box's own."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from plimsoll.box.cli_status import of_guard
from plimsoll.box.errors import GOOD, UsageError
from plimsoll.box.host import Host
from plimsoll.box.incident import answering, bundle, excerpt, report, sources, watching, wire
from plimsoll.box.incident.classify import classify, leading
from plimsoll.box.incident.model import Findings
from plimsoll.box.incident.redact import Redactor
from plimsoll.box.incident.timeline import Timeline

_ONLY_LATER = ("html", "bundle", "who", "since", "until")
"""What is made of logs that are there already."""


def incident_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="logs, directories or - ; none: this box's own logs")
    parser.add_argument("--json", action="store_true", help="print the document plimsoll.incident/1")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page with the time line")
    parser.add_argument("--who", metavar="NAME|PID", help="who killed this process, unit or container")
    parser.add_argument("--redact", action="store_true", help="replace hosts, users, addresses, paths and ids")
    parser.add_argument(
        "--since", metavar="TIME", help="leave out what was before: 2026-09-12, 2026-09-12T13:00, 13:00"
    )
    parser.add_argument("--until", metavar="TIME", help="leave out what was after")
    parser.add_argument("--bundle", metavar="FILE", help="write an archive for a maintainer, redacted")
    parser.add_argument("--watch", action="store_true", help="tell of each event of this box as it comes")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all, not a page")
    parser.add_argument("--findings", action="store_true", help="hand over what was found, for the operator's side")


def incident(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Say what happened; 0 also where nothing did, 3 where nothing could be read, or nobody is found for --who."""
    if arguments.watch:
        return _watch(arguments, host)
    if arguments.findings:
        return _hand_over(arguments, host)
    show = progress(shown=sys.stderr.isatty())
    found, unread = _read(arguments.files, host, show)
    show("")
    now_s = time.time()
    line = answering.line_of(arguments, found, now_s)
    about = _about(arguments, host, line, unread, now_s)
    return answering.answer(arguments, line, about)


def _read(
    files: Sequence[str], host: Host, tell: Callable[[str], None], each: Callable[[Findings], None] | None = None
) -> tuple[list[Findings], dict[str, str]]:
    """Return what the sources hold, and what could not be read and why; `each` is told of every one as it is read."""
    found: list[Findings] = []
    unread: dict[str, str] = {}
    for name, findings, problem in sources.read_paths(files, tell) if files else sources.read_box(host, tell):
        if findings is not None:
            found.append(findings)
            if each:
                each(findings)
        if problem:
            unread[name] = problem
    return found, unread


def _about(
    arguments: argparse.Namespace, host: Host, line: Timeline, unread: dict[str, str], now_s: float
) -> wire.About:
    """Return what is known beside the logs: of this box, or, where files were named, of nothing but them."""
    around = excerpt.ranges(leading(classify(line))) if arguments.bundle else {}
    excerpts = {name: excerpt.cut(sources.again(name, host), *lines) for name, lines in around.items()}
    excerpts = {name: text for name, text in excerpts.items() if text}
    if arguments.files:
        return wire.About(now_s, unread=unread, excerpts=excerpts)
    names = (name,) if (name := host.text_or_none("/proc/sys/kernel/hostname")) else ()
    files = bundle.of_host(host) if arguments.bundle else None
    return wire.About(now_s, names, _standing(host), unread, files, excerpts)


def _hand_over(arguments: argparse.Namespace, host: Host) -> int:
    """Print what the sources hold, each as it has been read, for an operator's side that makes the answer."""

    def hand_over(findings: Findings) -> None:
        for text in wire.of_findings(findings):
            print(text)
        sys.stdout.flush()

    def read_on(text: str) -> None:
        print(wire.of_progress(text), flush=True)

    found, unread = _read(arguments.files, host, read_on, hand_over)
    now_s = time.time()
    line = answering.line_of(arguments, found, now_s)
    print(wire.of_box(_about(arguments, host, line, unread, now_s)), flush=True)
    return GOOD


def _standing(host: Host) -> tuple[str, ...]:
    """Return how this box is guarded now: what would have prevented it may be in place since."""
    status, problem = of_guard(host)
    if status is None:
        return (f"the guard does not run: {problem}",)
    rules = ", ".join(f"{rule['rule']} {'armed' if rule['armed'] else 'observes'}" for rule in status["rules"])
    return (f"the guard runs: {rules}",)


def refuse_beside_watch(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option that is about logs that are there already."""
    refused = [f"--{name}" for name in _ONLY_LATER if getattr(arguments, name)]
    if refused:
        raise UsageError(f"--watch goes with --json and --redact only, not with {', '.join(refused)}")


def _watch(arguments: argparse.Namespace, host: Host) -> int:
    if arguments.files:
        raise UsageError("--watch takes no files: it reads this box's kernel log as it comes")
    refuse_beside_watch(arguments)
    name = host.text_or_none("/proc/sys/kernel/hostname")
    redactor = Redactor([name] if name else []) if arguments.redact else None

    def tell(told: watching.Told) -> None:
        found = redactor.value(told.document) if redactor else told.document
        text = redactor.text(told.text) if redactor else told.text
        print(report.printable(json.dumps(found) if arguments.json else text), flush=True)

    watching.watch(host, tell)
    return GOOD


def progress(*, shown: bool) -> Callable[[str], None]:
    """Return what shows on a terminal which log is being read; an empty text takes it away."""

    def show(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\033[K{'reading ' + text[-100:] if text else ''}")
            sys.stderr.flush()

    return show
