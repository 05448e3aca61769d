"""The file that `--config` names: flags of an engine as YAML, one a key. The command line goes before it."""

import os
from collections.abc import Iterator

from plimsoll.box.fit.checkpoint import outside
from plimsoll.box.fit.model import CannotTellError, Launch, Place
from plimsoll.box.host import Host

MAX_BYTES = 1 << 20


def with_config(host: Host, launch: Launch) -> tuple[tuple[str, ...], list[str]]:
    """Return the words of a launch, those of its configuration file before its own, and what is not known of it."""
    words = list(launch.arguments)
    name = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "--config"), "")
    name = name or next((word.partition("=")[2] for word in words if word.startswith("--config=")), "")
    if not name:
        return launch.arguments, []
    try:
        found = list(_words(host, launch, name))
    except CannotTellError as error:
        return launch.arguments, [str(error)]
    positional = words[:1] if words and not words[0].startswith("-") else []
    return (*positional, *found, *words[len(positional) :]), []


def _words(host: Host, launch: Launch, name: str) -> Iterator[str]:
    from plimsoll.box.fit import compose  # noqa: PLC0415  # few commands have such a file
    from plimsoll.box.fit import yaml_subset as yaml  # noqa: PLC0415  # as above

    path = outside(host, launch, name)
    if not os.path.isfile(path):
        raise CannotTellError(f"--config {name}: there is no such file here, so what it sets is not known")
    with open(path, encoding="utf-8", errors="replace") as file:
        document = compose.document(file.read(MAX_BYTES), path)
    for key, node in document.items.items():
        if isinstance(node, yaml.Scalar) and node.text.lower() in ("true", "false") and not node.quoted:
            yield f"--{'' if node.text.lower() == 'true' else 'no-'}{key}"
        elif isinstance(node, yaml.Scalar):
            yield from (f"--{key}", node.text)
        elif isinstance(node, yaml.Sequence):
            yield from (f"--{key}", *(each.text for each in node.items if isinstance(each, yaml.Scalar)))
        else:
            raise CannotTellError(
                f"{Place(path, document.lines[key])}: {key} is a mapping, which is not understood here"
            )
