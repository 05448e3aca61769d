"""What a YAML text comes to: texts, lists and mappings with their lines."""

from dataclasses import dataclass, field


class YamlError(Exception):
    """What is not understood; `line` is where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Scalar:
    """A text, and whether it was written in quotes or as a block, so that `"8080"` is no number."""

    text: str
    line: int
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        """Whether it stands for no value."""
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass
class Sequence:
    """A list."""

    line: int
    items: "list[Node]" = field(default_factory=list)


@dataclass
class Mapping:
    """A mapping with its keys' lines; merge keys are resolved."""

    line: int
    items: "dict[str, Node]" = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping
