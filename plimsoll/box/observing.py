"""How things that nobody here set are looked at: as root, in places where any user may have put anything."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from plimsoll.box.host import Host

MAX_FILE_BYTES = 1 << 20
"""A container's config.v2.json is some 5 kB, a unit file less."""
MAX_TEXT = 200
"""Characters of a text that come from somebody else: names and values, which are all shorter when honest."""
MAX_OBSERVATIONS = 2000
MAX_PROBLEMS = 100
MAX_NAMED = 8

Value = str | int | float | bool | list[str] | None


@dataclass
class Observed:
    """What was seen, as plain records, and what could not be looked at, with the reason."""

    observations: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    """What only root may see."""

    @property
    def not_seen(self) -> list[str]:
        """What could not be looked at, and why; all that only root may see is one entry."""
        named, more = self.denied[:MAX_NAMED], len(self.denied) - MAX_NAMED
        rest = f" and {more} more" if more > 0 else ""
        return [*([f"permission denied, read as root: {', '.join(named)}{rest}"] if named else []), *self.problems]

    def saw(self, kind: str, subject: str, file: str = "", line: int = 0, **fields: Value) -> None:
        """Record one observation; texts are cut, and what is beyond MAX_OBSERVATIONS is said to be missing."""
        if len(self.observations) >= MAX_OBSERVATIONS:
            self.missed("more than can be reported", f"only the first {MAX_OBSERVATIONS} observations are kept")
            return
        known = {"kind": kind, "subject": cut(subject), "file": file, "line": line}
        cut_fields = {key: cut(value) if isinstance(value, str) else value for key, value in fields.items()}
        self.observations.append(known | cut_fields)

    def missed(self, what: str, why: str) -> None:
        """Record once that something could not be looked at."""
        text = cut(f"{what}: {why}")
        if text not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Turn whatever is wrong with a file into a note that it was not seen; what is not there is no problem."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            pass
        except PermissionError:
            if what not in self.denied:
                self.denied.append(cut(what))
        except OSError as error:
            self.missed(what, error.strerror or str(error))
        except RecursionError:
            self.missed(what, "is nested too deeply")
        except ValueError as error:
            self.missed(what, f"cannot be understood: {error}")

    def names(self, host: Host, directory: str, limit: int, suffix: str = "") -> list[str]:
        """Return the sorted names in a directory, `limit` of them at most."""
        found: list[str] = []
        with self.reading(directory):
            found = sorted(name for name in os.listdir(host.path(directory)) if name.endswith(suffix))
        if len(found) > limit:
            self.missed(directory, f"{len(found)} entries, only the first {limit} were looked at")
        return found[:limit]


def cut(text: str) -> str:
    """Return a text's beginning."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def regular_text(host: Host, path: str, limit: int = MAX_FILE_BYTES) -> str:
    """Return a regular file's text; raises OSError, and ValueError for anything else or for a larger file.

    A user may put a FIFO or a device where a file is expected: opening that must neither wait nor have an effect.
    """
    real = host.path(path)
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise ValueError("is no regular file")
    descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"is larger than {limit} bytes")
    return content.decode("utf-8", "replace")


def variables(host: Host, pid: int, names: tuple[str, ...]) -> dict[str, str]:
    """Return those of `names` that a process was started with; nothing else of its environment is kept.

    Raises OSError, and ValueError for an environment above MAX_FILE_BYTES.
    """
    pairs = (each.partition("=") for each in regular_text(host, f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs if name in names}


def is_on(value: str | None) -> bool:
    """Say whether a program takes a variable for switched on."""
    return value is not None and value.strip().lower() not in ("", "0", "false", "no", "off")
