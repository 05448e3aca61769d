"""From findings to what was asked for: text, JSON, a page, an archive, who killed whom. The same on both sides."""

import argparse
import datetime
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from plimsoll.box.errors import GOOD, UNKNOWN, UsageError
from plimsoll.box.files import write_atomically
from plimsoll.box.incident import bundle, document, page, report, timeline
from plimsoll.box.incident.classify import classify, leading
from plimsoll.box.incident.clocks import Clocks
from plimsoll.box.incident.model import Findings
from plimsoll.box.incident.prefix import Prefix
from plimsoll.box.incident.redact import Redactor
from plimsoll.box.incident.wire import About
from plimsoll.box.incident.wording import describe


def line_of(arguments: argparse.Namespace, found: Sequence[Findings], now_s: float) -> timeline.Timeline:
    """Return the time line, without what is outside --since and --until; what has no time stays: it may be inside."""
    line = timeline.build(found, now_s)
    limits = [_limit(arguments.since, "--since", line), _limit(arguments.until, "--until", line)]
    return line if limits == [None, None] else timeline.between(line, *limits)


def answer(arguments: argparse.Namespace, line: timeline.Timeline, about: About) -> int:
    """Print and write what was asked for; 3 where nothing could be read, or nobody is on record for --who."""
    hosts = document.hosts_of(line) | set(about.names)
    redactor = Redactor(hosts) if arguments.redact else None
    unread = about.unread or {}
    if arguments.html:
        text = page.page(line, unread)
        write("--html", arguments.html, (redactor.text(text) if redactor else text).encode())
    if arguments.bundle:
        write("--bundle", arguments.bundle, _bundle(line, about, Redactor(hosts)))
    code = _print(arguments, line, about, redactor)
    readable = any(each.is_log() and (each.problem is None or each.events) for each in line.sources)
    return code if readable else UNKNOWN


def _print(arguments: argparse.Namespace, line: timeline.Timeline, about: About, redactor: Redactor | None) -> int:
    if arguments.who:
        return _who(arguments, line, redactor)
    unread = about.unread or {}
    if arguments.json:
        _print_document(document.document(line, unread, about.standing), redactor)
    else:
        _print_lines(report.lines(line, unread, standing=about.standing, verbose=arguments.verbose), redactor)
    return GOOD


def _who(arguments: argparse.Namespace, line: timeline.Timeline, redactor: Redactor | None) -> int:
    kills = document.who(line, arguments.who)
    said = document.said_of(line, arguments.who)
    if arguments.json:
        found = {
            **document.document(line, {}),
            "events": [document.event(each) for each in kills],
            "notes": [document.note(each) for each in said],
        }
        _print_document(found, redactor)
    else:
        _print_lines(_who_lines(line, arguments.who, kills, said), redactor)
    return GOOD if kills or said else UNKNOWN


def _who_lines(
    line: timeline.Timeline, name: str, kills: Sequence[timeline.Timed], said: Sequence[timeline.TimedNote]
) -> Iterator[str]:
    """Yield the kills; what others say of the end of it; what became of the machine where nobody says anything."""
    for timed in kills:
        yield f"{timed.moment.text or '(no time)'}  {describe(timed.event)}  [{report.at(timed.event.place)}]"
    for each in said:
        yield f"{each.moment.text or '(no time)'}  {each.note.text}  [{report.at(each.note.place)}]"
    if not kills and not said:
        yield f"nobody is on record as having killed {name} for want of memory"
        first = leading(classify(line))
        if first and first.label and first.label not in ("B", "D"):
            when = f", from {first.start.text} on" if first.start and first.start.text else ""
            yield f"but the machine itself was in trouble{when}: class {first.label}, {first.says}"


def _print_document(found: dict[str, Any], redactor: Redactor | None) -> None:
    if redactor:
        found = {**redactor.value(found), "redacted": redactor.summary()}
    print(json.dumps(found, indent=1))


def _print_lines(lines: Iterable[str], redactor: Redactor | None) -> None:
    for text in lines:
        print(report.printable(redactor.text(text) if redactor else text))
    if redactor:
        print(f"\n{redactor.sentence()}")


def _bundle(line: timeline.Timeline, about: About, redactor: Redactor) -> bytes:
    unread = about.unread or {}
    text = "\n".join(report.lines(line, unread, standing=about.standing, verbose=True))
    contents = bundle.Contents(
        document.document(line, unread, about.standing), page.page(line, unread), report.printable(text) + "\n",
        about.files, about.excerpts or {},
    )  # fmt: skip
    return bundle.archive(contents, redactor)


def write(option: str, path: str, content: bytes) -> None:
    """Write a file that was asked for, for its owner only; raises UsageError where that cannot be."""
    if path == "-":
        raise UsageError(f"{option} -: name a file; the text or --json is what goes to standard output")
    try:
        write_atomically(os.path.abspath(path), content, mode=0o600)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: {error.strerror}; name a file in a directory that can be written"
        ) from error


def _limit(text: str | None, option: str, line: timeline.Timeline) -> timeline.Limit | None:
    if text is None:
        return None
    plain = text.replace("T", " ") if text.count(":") != 1 else f"{text.replace('T', ' ')}:00"
    if "-" in plain and ":" not in plain:
        plain = f"{plain} 00:00:00"
    stamp = Prefix().parse(0, f"{plain} ").stamp
    if stamp.form not in ("date", "day"):
        raise UsageError(f"{option} {text}: not a time; write 2026-09-12, 2026-09-12T13:00, or 13:00")
    source = line.sources[0] if line.sources else Findings(file="")
    moment = Clocks(line.sources, datetime.datetime.now(datetime.UTC).timestamp()).resolve(stamp, source)
    return timeline.Limit(moment.axis, moment.at_s or 0.0)
