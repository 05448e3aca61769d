"""What a file of ours declares, read back from its text, so that it can be compared with what is wanted.

Each function takes the text and returns plain JSON types; it raises ValueError for a text that declares nothing.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

MODEL, AT_BOOT, OPERATORS = "model", "at-boot", "operators"
SUDOERS = "sudoers"
"""Files of which sudo itself is asked whether it takes them, before they are put in place."""
SUDOERS_MAIN = "/etc/sudoers"


def includes_sudoers_d(text: str) -> bool:
    """Say whether sudo's main file has sudo read /etc/sudoers.d; `#includedir` is no comment."""
    return re.search(r"^[@#]includedir\s+/etc/sudoers\.d/?\s*$", text, re.MULTILINE) is not None


def _model(text: str) -> dict[str, Any]:
    """Return the sections of a model's file."""
    import tomllib  # noqa: PLC0415  # 3 ms, which a host without models is spared

    return tomllib.loads(text)


def _at_boot(text: str) -> list[str]:
    """Return the units that a target wants, of a drop-in."""
    lines = re.findall(r"^Wants=(.*)$", text, re.MULTILINE)
    return [unit for line in lines for unit in line.split()]


def _operators(text: str) -> dict[str, Any]:
    """Return who may run what as root without a password: `{groups, commands}`; each group has all commands."""
    plain = re.sub(r"\\\n\s*", " ", text)
    rules = [line for line in plain.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for rule in rules:
        match = re.fullmatch(r"%(\S+) ALL=\(root\) NOPASSWD: (.+)", rule)
        if match is None:
            raise ValueError(f"a rule that is none of ours: {rule[:80]}")
        found[match[1]] = [command.strip() for command in match[2].split(",")]
    commands = list(found.values())
    if any(each != commands[0] for each in commands):
        raise ValueError("its groups may run different commands")
    return {"groups": list(found), "commands": commands[0] if commands else []}


READERS: Mapping[str, Callable[[str], Any]] = {MODEL: _model, AT_BOOT: _at_boot, OPERATORS: _operators}
"""What a declaration is -> how its file is read."""


def same(name: str, value: str, text: str) -> bool:
    """Say whether a file's text declares what `value`, a JSON text, does; raises ValueError for either."""
    return bool(READERS[name](text) == json.loads(value))
