"""Launches as they are read from command lines and files, for tests of the sources."""

from pathlib import Path
from typing import Any

from plimsoll.box.fit import ask
from plimsoll.box.fit.ask import Question
from plimsoll.box.fit.model import Launch
from plimsoll.box.host import Host

HOST = Host(environment={"HOME": "/root"})


def launches(*command: str, host: Host = HOST, **question: Any) -> list[Launch]:  # noqa: ANN401  # fields of a question
    """Return what a command, or the files that a question names, would start."""
    return ask.launches(host, Question(command, **question))


def written(tmp_path: Path, name: str, text: str) -> str:
    """Write a file and return its path."""
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def command_lines(found: list[Launch]) -> list[tuple[str, str]]:
    """Return each launch's engine and its arguments as one line."""
    return [(each.engine, " ".join(each.arguments)) for each in found]
