"""One arrangement of configuration files, and the question that is put to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SEED = 20260417
"""The corpus is the same in every run: what disagrees once can be looked at again."""

LINK_TO_NULL = {"link": "/dev/null"}
DIRECTORY = {"directory": True}

Content = str | Mapping[str, Any]
"""The text of a file; `{link: target}` or `{directory: true}` for what is none."""


@dataclass(frozen=True)
class Case:
    """Files by path, and what is asked of the program that reads them."""

    name: str
    files: Mapping[str, Content]
    ask: Mapping[str, Any]
    rebooted: bool = False
    """Whether it is asked as it is after a reboot: the program then does not get to see what lies in /run."""

    def after_reboot(self) -> "Case":
        """Return the same arrangement, asked as it is after a reboot."""
        return replace(self, name=f"{self.name}, after a reboot", rebooted=True)

    def to_json(self) -> dict[str, Any]:
        """Return what the program that lays it out is given."""
        shown = {p: c for p, c in self.files.items() if not (self.rebooted and p.startswith("/run/"))}
        return {"name": self.name, "files": shown, "ask": self.ask}

    def lay_out(self, root: Path) -> None:
        """Make the files below `root`, those in /run included, as the resolver gets to see them."""
        for path, content in self.files.items():
            real = root / path.lstrip("/")
            real.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                real.write_text(content, newline="")
            elif "link" in content:
                target = str(content["link"])
                within = target.startswith("/") and target != "/dev/null"
                real.symlink_to(root / target[1:] if within else target)
            else:
                real.mkdir()

    def shown(self) -> str:
        """Return the arrangement as a person reads it."""
        return "\n".join(f"--- {path}\n{content}" for path, content in self.files.items())


def with_reboots(cases: list[Case]) -> list[Case]:
    """Add to every arrangement that has something in /run the same one after a reboot."""
    changing = [case for case in cases if any(path.startswith("/run/") for path in case.files)]
    return [*cases, *(case.after_reboot() for case in changing)]
