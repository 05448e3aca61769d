"""The configuration that a host has: whoever goes by it reads it here, and so by the same defaults.

Without guard.toml all is as by default. The default lines are scaled to MemTotal; where nobody knows that, the file has
to give all lines itself. A file that is there and cannot be read or used is an error, and never taken for none.
"""

from dataclasses import dataclass

from plimsoll.box import memory
from plimsoll.box.guard import config, hashes
from plimsoll.box.guard.config import Config
from plimsoll.box.host import Host


@dataclass(frozen=True)
class Loaded:
    """The configuration, and the hash of the file that it is from (empty: there is none)."""

    config: Config
    sha256: str


def load(host: Host, total_kib: int | None = None) -> Loaded:
    """Return what a host's guard.toml says; raises ConfigError with every fault of it, and OSError.

    `total_kib` is the MemTotal that the default lines are for, where it is not that of the host.
    """
    content = _content(host)
    text = (content or b"").decode("utf-8", "replace")
    found = config.load(text, config.PATH, mem_total_kib(host) if total_kib is None else total_kib)
    return Loaded(found, "" if content is None else hashes.sha256(content))


def mem_total_kib(host: Host) -> int | None:
    """Return MemTotal of a host; None where it does not say it."""
    return memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "").get("MemTotal") or None


def _content(host: Host) -> bytes | None:
    try:
        return host.content(config.PATH)
    except (FileNotFoundError, NotADirectoryError):
        return None
