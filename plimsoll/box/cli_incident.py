"""`plimsoll incident`: what happened, from logs that somebody names or from this box's own."""

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from plimsoll.box.cli_status import of_guard
from plimsoll.box.errors import GOOD, UNKNOWN, UsageError
from plimsoll.box.files import write_atomically
from plimsoll.box.host import Host
from plimsoll.box.incident import bundle, document, page, report, sources, timeline, watching
from plimsoll.box.incident.clocks import Clocks
from plimsoll.box.incident.prefix import Prefix
from plimsoll.box.incident.redact import Redactor
from plimsoll.box.incident.wording import describe


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


def incident(arguments: argparse.Namespace, host: Host, _program: bytes) -> int:
    """Say what happened; 0 also where nothing did, 3 where nothing could be read, or nobody is found for --who."""
    if arguments.watch:
        return _watch(arguments, host)
    progress = _progress(shown=sys.stderr.isatty())
    unread: dict[str, str] = {}
    if arguments.files:
        found = sources.read_paths(arguments.files, progress)
    else:
        found, unread = sources.read_box(host, progress)
    progress("")
    line = _within(timeline.build(found, time.time()), arguments)
    standing = () if arguments.files else _standing(host)
    here = None if arguments.files else host
    hosts = document.hosts_of(line) | ({host.text_or_none("/proc/sys/kernel/hostname") or ""} if here else set())
    beside = _Beside(unread, standing, Redactor(hosts) if arguments.redact else None)
    if arguments.html:
        text = page.page(line, unread)
        _write("--html", arguments.html, (beside.redactor.text(text) if beside.redactor else text).encode())
    if arguments.bundle:
        _write("--bundle", arguments.bundle, _bundle(line, beside, here, Redactor(hosts)))
    code = _answer(arguments, line, beside)
    readable = any(each.problem is None or each.events for each in line.sources)
    return code if readable else UNKNOWN


class _Beside(NamedTuple):
    """What an answer has beside the time line."""

    unread: dict[str, str]
    standing: Sequence[str]
    redactor: Redactor | None


def _answer(arguments: argparse.Namespace, line: timeline.Timeline, beside: _Beside) -> int:
    if arguments.who:
        return _who(arguments, line, beside.redactor)
    if arguments.json:
        _print_document(document.document(line, beside.unread, beside.standing), beside.redactor)
    else:
        lines = report.lines(line, beside.unread, standing=beside.standing, verbose=arguments.verbose)
        _print_lines(lines, beside.redactor)
    return GOOD


def _standing(host: Host) -> Sequence[str]:
    """Return how this box is guarded now: what would have prevented it may be in place since."""
    status, problem = of_guard(host)
    if status is None:
        return (f"the guard does not run: {problem}",)
    rules = ", ".join(f"{rule['rule']} {'armed' if rule['armed'] else 'observes'}" for rule in status["rules"])
    return (f"the guard runs: {rules}",)


def _watch(arguments: argparse.Namespace, host: Host) -> int:
    if arguments.files:
        raise UsageError("--watch takes no files: it reads this box's kernel log as it comes")

    def tell(timed: timeline.Timed) -> None:
        text = json.dumps(document.event(timed)) if arguments.json else f"{timed.moment.text}  {describe(timed.event)}"
        print(report.printable(text), flush=True)

    watching.watch(host, tell)
    return GOOD


def _who(arguments: argparse.Namespace, line: timeline.Timeline, redactor: Redactor | None) -> int:
    kills = document.who(line, arguments.who)
    if arguments.json:
        found = {**document.document(line, {}), "events": [document.event(each) for each in kills]}
        _print_document(found, redactor)
    elif kills:
        rows = (
            f"{t.moment.text or '(no time)'}  {describe(t.event)}  [{t.event.place.file}:{t.event.place.line}]"
            for t in kills
        )
        _print_lines(rows, redactor)
    else:
        _print_lines([f"nobody is on record as having killed {arguments.who} for want of memory"], redactor)
    return GOOD if kills else UNKNOWN


def _print_document(found: dict[str, Any], redactor: Redactor | None) -> None:
    if redactor:
        found = {**redactor.value(found), "redacted": redactor.summary()}
    print(json.dumps(found, indent=1))


def _print_lines(lines: Iterable[str], redactor: Redactor | None) -> None:
    for text in lines:
        print(report.printable(redactor.text(text) if redactor else text))
    if redactor:
        print(f"\n{redactor.sentence()}")


def _bundle(line: timeline.Timeline, beside: _Beside, host: Host | None, redactor: Redactor) -> bytes:
    answer = document.document(line, beside.unread, beside.standing)
    text = "\n".join(report.lines(line, beside.unread, standing=beside.standing, verbose=True))
    return bundle.archive(answer, page.page(line, beside.unread), report.printable(text) + "\n", host, redactor)


def _write(option: str, path: str, content: bytes) -> None:
    try:
        write_atomically(os.path.abspath(path), content, mode=0o600)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror}; name a file in a directory that can be written"
        ) from error


def _progress(*, shown: bool) -> Callable[[str], None]:
    def show(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\033[K{'reading ' + text[-100:] if text else ''}")
            sys.stderr.flush()

    return show


def _within(line: timeline.Timeline, arguments: argparse.Namespace) -> timeline.Timeline:
    """Leave out what is outside --since and --until; what has no time stays, for it may be inside."""
    limits = [_limit(arguments.since, "--since", line), _limit(arguments.until, "--until", line)]
    if limits == [None, None]:
        return line
    return timeline.between(line, *limits)


def _limit(text: str | None, option: str, line: timeline.Timeline) -> timeline.Limit | None:
    if text is None:
        return None
    plain = text.replace("T", " ") if text.count(":") != 1 else f"{text.replace('T', ' ')}:00"
    if "-" in plain and ":" not in plain:
        plain = f"{plain} 00:00:00"
    stamp = Prefix().parse(0, f"{plain} ").stamp
    if stamp.form not in ("date", "day"):
        raise UsageError(f"{option} {text}: not a time; write 2026-09-12, 2026-09-12T13:00, or 13:00")
    moment = Clocks(line.sources, datetime.datetime.now(datetime.UTC).timestamp()).resolve(stamp, line.sources[0])
    return timeline.Limit(moment.axis, moment.at_s or 0.0)
