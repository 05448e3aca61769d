"""The options of `docker run` and `docker exec`, as far as a start depends on them."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from plimsoll.box import containers
from plimsoll.box.fit.model import Guards, Mount
from plimsoll.box.host import Host

Options = Mapping[str, list[str]]
"""Values by the name of the option, without dashes."""
_EXEC_VALUES = ("-e", "--env", "-u", "--user", "-w", "--workdir", "--env-file", "--detach-keys", "--preserve-fds")
_LONG = {"e": "env", "w": "workdir", "u": "user"}


def run_parts(arguments: Sequence[str]) -> tuple[Options, Sequence[str]]:
    """Return the options of `docker run`, and the image with its command.

    A variable that is not known, where an option is expected, stands for options: they are left out.
    """
    options, rest = containers.run_parts(arguments)
    while len(rest) > 1 and rest[0].startswith("$") and rest[1].startswith("-"):
        position = len(arguments) - len(rest)
        arguments = [*arguments[:position], *arguments[position + 1 :]]
        options, rest = containers.run_parts(arguments)
    return options, rest


def exec_parts(arguments: Sequence[str]) -> tuple[Options, Sequence[str]]:
    """Return the options of `docker exec`, and the container with its command; nothing for other subcommands."""
    if "exec" not in arguments:
        return {}, ()
    options: dict[str, list[str]] = {}
    position = list(arguments).index("exec") + 1
    while position < len(arguments) and arguments[position].startswith("-"):
        written, equals, value = arguments[position].partition("=")
        if written.startswith("-e") and len(written) > 2:  # noqa: PLR2004  # -eNAME=value
            written, value = "-e", arguments[position][2:]
        elif not equals and written in _EXEC_VALUES:
            position += 1
            value = "".join(arguments[position : position + 1])
        name = written.lstrip("-")
        options.setdefault(_LONG.get(name, name), []).append(value)
        position += 1
    return options, arguments[position:]


def environment(
    host: Host, options: Options, directory: str, outer: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a container is given, and what of them is not known."""
    found: dict[str, str] = {}
    unknowns = []
    for path in options.get("env-file", []):
        text = host.text_or_none(posixpath.normpath(posixpath.join(directory, path)))
        if text is None:
            unknowns.append(f"--env-file {path} cannot be read: what it sets is not known")
        for line in (text or "").splitlines():
            # no shell reads it: quotes are part of the value, and a # is one within a line
            if line.strip() and not line.lstrip().startswith("#"):
                found |= _pair(line.lstrip(), outer)
    for each in options.get("env", []):
        found |= _pair(each, outer)
    return found, tuple(unknowns)


def _pair(written: str, outer: Mapping[str, str]) -> dict[str, str]:
    """Return what `NAME=value` sets, or `NAME`, which hands on a variable from outside."""
    name, equals, value = written.partition("=")
    if equals:
        return {name: value}
    return {name: outer[name]} if name in outer else {}


def guards(arguments: Sequence[str], options: Options, outer: Guards) -> Guards:
    """Return what the options of `docker run` are taken to protect, on top of what is around."""
    facts = containers.client_facts(arguments)
    memory, score, restart = facts["memory_bytes"], facts["oom_score_adj"], str(facts["restart"])
    shm = containers.size_bytes(options["shm-size"][-1]) if "shm-size" in options else None
    return replace(
        outer,
        memory_bytes=memory if isinstance(memory, int) else None,
        restart=restart if restart != "no" else outer.restart,
        restart_place=None if restart != "no" else outer.restart_place,
        shm_bytes=shm,
        ipc_host="host" in options.get("ipc", []),
        oom_score_adj=score if isinstance(score, int) else outer.oom_score_adj,
        client_only=True,
    )


def outside(path: str, mounts: Sequence[Mount]) -> str | None:
    """Return where a path inside of a container lies outside of it; None where nothing is mounted there."""
    for mount_here in sorted(mounts, key=lambda each: -len(each.inside)):
        inside = mount_here.inside.rstrip("/")
        if path == inside or path.startswith(f"{inside}/"):
            return mount_here.outside.rstrip("/") + path[len(inside) :]
    return None
