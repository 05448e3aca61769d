"""YAML in brackets, `[a, b]` and `{a: b}`, from one text. Pure."""

from typing import Protocol

from plimsoll.box.fit.yaml_nodes import Mapping, Node, Scalar, Sequence, YamlError
from plimsoll.box.fit.yaml_scalars import parts_of, unquoted


class Parser(Protocol):
    """What the parser of the whole text does for a part of it."""

    def count_node(self, depth: int) -> None:
        """Count one node; raises YamlError for too many."""

    def alias(self, name: str, line: int) -> Node:
        """Return what an alias names; raises YamlError."""
        ...


class Flow:
    """A form in brackets, read from one text."""

    def __init__(self, parser: Parser, text: str, line: int) -> None:
        self.parser = parser
        self.text = text
        self.line = line
        self.position = 0

    def node(self, depth: int = 0) -> Node:
        """Return what begins here; raises YamlError."""
        self.parser.count_node(depth)
        self._skip()
        first = self.text[self.position : self.position + 1]
        if first == "[":
            return self._list(depth)
        if first == "{":
            return self._map(depth)
        return self._scalar(",]}")

    def _skip(self) -> None:
        while self.text[self.position : self.position + 1] in (" ", "\t", "\n", "\r") and self.position < len(
            self.text
        ):
            self.position += 1

    def _next(self, expected: str) -> bool:
        self._skip()
        if self.text[self.position : self.position + 1] == expected:
            self.position += 1
            return True
        return False

    def _list(self, depth: int) -> Node:
        self.position += 1
        found = Sequence(self.line)
        while not self._next("]"):
            found.items.append(self.node(depth + 1))
            if not self._next(",") and self.text[self.position : self.position + 1] != "]":
                raise YamlError(self.line, f"{self.text[self.position :][:20]!r} in a list is not understood")
        return found

    def _map(self, depth: int) -> Node:
        self.position += 1
        found = Mapping(self.line)
        while not self._next("}"):
            key = self._scalar(":,}")
            has_value = self._next(":")
            value = self.node(depth + 1) if has_value else Scalar("", self.line)
            if not isinstance(key, Scalar) or key.text in found.items or key.text == "<<":
                raise YamlError(self.line, "a key in { } is there twice, or is none")
            found.items[key.text], found.lines[key.text] = value, self.line
            if not self._next(",") and self.text[self.position : self.position + 1] != "}":
                raise YamlError(self.line, f"{self.text[self.position :][:20]!r} in {{ }} is not understood")
        return found

    def _scalar(self, ends: str) -> Node:
        self._skip()
        first = self.text[self.position : self.position + 1]
        if first in ("'", '"'):
            start, end = next(parts_of(self.text[self.position :]))
            written = self.text[self.position + start : self.position + end]
            self.position += end
            return Scalar(unquoted(written, self.line), self.line, quoted=True)
        if first in ("&", "!", "?", "%", "@", "`", "|", ">"):
            raise YamlError(self.line, f"{first} inside of brackets is not understood here")
        start = self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            following = self.text[self.position + 1 : self.position + 2]
            if character in ",[]{}" or (character == ":" and following in (" ", "\n", ",", "]", "}", "")):
                break
            self.position += 1
        text = " ".join(self.text[start : self.position].split())
        if not text and self.text[self.position : self.position + 1] not in tuple(ends):
            raise YamlError(self.line, f"{self.text[self.position :][:20]!r} in brackets is not understood")
        if text.startswith("*"):
            return self.parser.alias(text[1:], self.line)
        return Scalar(text, self.line)
