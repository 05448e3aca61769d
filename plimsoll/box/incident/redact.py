"""Replaces what names a machine, a person or a place, the same by the same throughout one answer. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_KEPT_PATHS = (
    "/proc", "/sys", "/dev", "/usr/bin", "/usr/sbin", "/usr/lib", "/lib", "/etc/systemd", "/etc/sysctl", "/run/systemd",
    "/var/log/kern.log", "/system.slice", "/user.slice", "/kubepods", "/docker", "/init.scope", "/machine.slice",
)  # fmt: skip
"""The same on every machine; a cgroup's path says what was limited."""
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", re.compile(r"\b[\w.+-]+@(?!\d+\.service|\w+\.service|\.)[\w-]+(?:\.[\w-]+)+\b")),
    ("mac", re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")),
    ("address", re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]|-\d)")),
    (
        "address",
        re.compile(
            r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4})+(?![\w:.])|(?<![\w:])fe80::[0-9a-fA-F:]+"
        ),
    ),
    ("id", re.compile(r"(?<![0-9a-fA-F])[0-9a-f]{32,}(?![0-9a-fA-F])")),
    (
        "id",
        re.compile(
            r"(?:(?<![0-9a-f])|(?<=pod))[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}(?![0-9a-f])"
        ),
    ),
    ("id", re.compile(r"(?<=docker-)[0-9a-f]{12}(?=\.scope)|(?i:(?<=container )|(?<=container=))[0-9a-f]{12,31}\b")),
    ("serial", re.compile(r"(?i)(?<=serial_number: )[\w-]+|(?<=serial_number=)[\"']?[\w-]+")),
    ("serial", re.compile(r"(?i)(?<=serial number: )[\w-]+|(?<=serial: )[\w-]+")),
    (
        "user",
        re.compile(
            r"(?<=/home/)[\w.-]+|(?<=/Users/)[\w.-]+|(?<=\bfor user )[\w.-]+|(?<=\bof user )[\w.-]+"
            r"|(?i:(?<=\buser=)|(?<=\bUSER=\"))[a-z_][\w.-]*"
        ),
    ),
)
_NO_DOMAIN = "service|scope|slice|socket|timer|mount|target|log|gz|bz2|xz|txt|json|jsonl|csv|pyz|gguf"
_PATH = re.compile(r"(?<![\w/.])/[\w.@+-]+(?:/[\w.@+-]+)+")
LEFT = (
    "names of processes and units",
    "numbers of processes and users",
    "times",
    "sizes",
    "versions",
    "names of devices",
)


class Redactor:
    """Remembers what it has replaced by what."""

    def __init__(self, hosts: Iterable[str]) -> None:
        names = sorted({name for name in hosts if len(name) > 1}, key=lambda name: (-len(name), name))
        # a name goes with its domain; what ends like a unit or a file is one that happens to be called the same
        own = "|".join(map(re.escape, names))
        domain = rf"(?:\.(?!(?:{_NO_DOMAIN})\b)[A-Za-z][\w-]*)*"
        self._hosts = re.compile(rf"(?<![\w-])(?:{own})(?![\w-]){domain}") if names else None
        self._known: dict[tuple[str, str], str] = {}

    def _name(self, kind: str, value: str) -> str:
        if (kind, value) not in self._known:
            number = 1 + sum(known == kind for known, _value in self._known)
            self._known[kind, value] = f"{kind}-{number}"
        return self._known[kind, value]

    def text(self, text: str) -> str:
        """Return a text with everything replaced that has to be."""
        if self._hosts:
            text = self._hosts.sub(lambda m: self._name("host", m[0]), text)
        for kind, pattern in _RULES:
            text = pattern.sub(lambda m, kind=kind: self._name(kind, m[0]), text)  # type: ignore[misc]  # a default is no type problem
        return _PATH.sub(self._path, text)

    def _path(self, match: re.Match[str]) -> str:
        path = match[0]
        if path.startswith(_KEPT_PATHS) or path.startswith("/lxc"):
            return path
        return f"/{self._name('path', path)}"

    def value(self, value: Any) -> Any:  # noqa: ANN401  # a JSON value
        """Return a JSON value with all its texts replaced; keys that are names of files are texts too."""
        if isinstance(value, dict):
            return {self.text(key) if "/" in key else key: self._of_key(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _of_key(self, key: str, value: Any) -> Any:  # noqa: ANN401  # a JSON value
        return self._name("serial", value) if "serial" in key and isinstance(value, str) else self.value(value)

    def summary(self) -> dict[str, Any]:
        """Return how many of each kind were replaced, and what was left."""
        return {"replaced": dict(Counter(kind for kind, _value in self._known)), "left": list(LEFT)}

    def sentence(self) -> str:
        """Return the same in words."""
        replaced = ", ".join(f"{count} {kind}" for kind, count in self.summary()["replaced"].items()) or "nothing"
        return f"Replaced: {replaced}. Left as they are: {', '.join(LEFT)}. Read it through before you send it."
