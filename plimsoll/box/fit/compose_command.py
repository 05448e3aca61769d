"""The command line of `docker compose`: which options take a value, and which services it starts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

_OF_COMPOSE = frozenset({
    "--ansi", "--env-file", "--file", "--parallel", "--profile", "--progress", "--project-directory", "--project-name",
    "--workdir",
})  # fmt: skip
"""Options before the subcommand that take a value; the others take none."""
_OF_VERB = {
    "up": frozenset({
        "--attach", "--exit-code-from", "--no-attach", "--pull", "--scale", "--timeout", "--wait-timeout",
    }),
    "create": frozenset({"--pull", "--scale"}),
    "start": frozenset({"--wait-timeout"}),
    "restart": frozenset({"--timeout"}),
    "run": frozenset({
        "--cap-add", "--cap-drop", "--entrypoint", "--env", "--env-from-file", "--label", "--name", "--publish",
        "--pull", "--user", "--volume", "--workdir",
    }),
}  # fmt: skip
_LONG = {"-f": "--file", "-p": "--project-name"}
_LONG_OF_VERB = {
    "up": {"-t": "--timeout"},
    "restart": {"-t": "--timeout"},
    "run": {
        "-e": "--env", "-l": "--label", "-p": "--publish", "-u": "--user", "-v": "--volume", "-w": "--workdir",
    },
}  # fmt: skip

Options = dict[str, list[str]]


@dataclass(frozen=True)
class Asked:
    """What is to be started of which files; paths as they are written."""

    services: tuple[str, ...] = ()
    """Empty for all that start by themselves."""
    files: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    profiles: frozenset[str] = frozenset()
    project_directory: str = ""
    alone: bool = False
    """Without what the services depend on."""
    command: tuple[str, ...] = ()
    """What `run` gives to its service instead of the command in the file."""
    run: Options = field(default_factory=dict)
    """Options of `run` with their values."""


def asked(words: Sequence[str]) -> Asked | None:
    """Return what the words after `docker compose` start; None for a subcommand that starts nothing."""
    options, rest = _options(words, _OF_COMPOSE, _LONG)
    verb = rest[0] if rest else ""
    if verb not in _OF_VERB:
        return None
    own, names = _options(rest[1:], _OF_VERB[verb], _LONG_OF_VERB.get(verb, {}), mixed=verb != "run")
    services, command = (names[:1], names[1:]) if verb == "run" else (names, ())
    return Asked(
        tuple(services), tuple(options.get("--file", ())), tuple(options.get("--env-file", ())),
        frozenset(options.get("--profile", ())), "".join(options.get("--project-directory", ())[-1:]),
        "--no-deps" in own, tuple(command), own if verb == "run" else {},
    )  # fmt: skip


def _options(
    words: Sequence[str], with_value: frozenset[str], long: dict[str, str], *, mixed: bool = False
) -> tuple[Options, Sequence[str]]:
    """Return the options by their long names, and the other words; `mixed`: options may stand behind those."""
    found: Options = {}
    others: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            return found, [*others, *words[position:]]
        if not word.startswith("-") or word == "-":
            others.append(word)
            if mixed:
                continue
            return found, [*others, *words[position:]]
        name, value = _named(word, with_value, long)
        if value is None and name in with_value:
            value = "".join(words[position : position + 1])
            position += 1
        found.setdefault(name, []).append(value or "")
    return found, others


def _named(word: str, with_value: frozenset[str], long: dict[str, str]) -> tuple[str, str | None]:
    """Return the long name of an option, and the value that is in the same word (`--x=1`, `-f1`)."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    # several letters in one word (`-dt 5`): the last one may take a value
    for index, letter in enumerate(word[1:], 1):
        name = long.get(f"-{letter}", "")
        if name in with_value:
            return name, word[index + 1 :].removeprefix("=") or None
    return word, None
