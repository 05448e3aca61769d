"""The part of YAML in which compose files and the configuration of model servers are written. Strict, and pure.

Mappings, sequences, flow forms, all five kinds of scalars, comments, anchors, aliases and merge keys. Whatever else
the language has (tags, complex keys, directives, several documents) is a YamlError with its line, never a guess.
"""

import re
from dataclasses import dataclass

from plimsoll.box.fit.yaml_flow import Flow
from plimsoll.box.fit.yaml_nodes import Mapping, Node, Scalar, Sequence, YamlError
from plimsoll.box.fit.yaml_scalars import block_text, flow_end, plain_text, uncommented, unquoted

__all__ = ["Mapping", "Node", "Scalar", "Sequence", "YamlError", "parse", "plain"]

MAX_TEXT = 1 << 20
MAX_DEPTH = 60
MAX_NODES = 100_000
"""Aliases included: ten lines of them could stand for a thousand million nodes."""


def plain(node: Node) -> object:
    """Return a node as texts, lists and mappings; what stands for no value is an empty text."""
    if isinstance(node, Scalar):
        return "" if node.is_null else node.text
    if isinstance(node, Sequence):
        return [plain(each) for each in node.items]
    return {key: plain(value) for key, value in node.items.items()}


def parse(text: str) -> Node:
    """Return the one document of a text; raises YamlError."""
    if len(text) > MAX_TEXT:
        raise YamlError(0, f"is longer than {MAX_TEXT} characters")
    try:
        return _Parser(text).document()
    except RecursionError as error:
        raise YamlError(0, "is nested too deeply") from error


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str
    """Without its indentation and without a comment at its end; empty for a blank line."""


_DOCUMENT = re.compile(r"(---|\.\.\.)(\s.*)?")
_KEY = re.compile(
    r"""(?P<key>"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^\s\-?:,\[\]{}#&*!|>'"%@`][^#]*?|[-?:](?=\S)[^#]*?)\s*:(?=\s|$)"""
)
_PROPERTY = re.compile(r"&([^\s\[\]{},]+)\s*")
_BLOCK = re.compile(r"([|>])(?:([1-9])?([+-])?|([+-])([1-9])?)(\s+#.*)?\s*")


class _Parser:
    def __init__(self, text: str) -> None:
        self.raw = text.removeprefix("\ufeff").split("\n")
        self.position = 0
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[str] = set()
        self.nodes = 0

    # --- lines ---

    def document(self) -> Node:
        first = self._peek()
        if first is not None and first.text.startswith("%"):
            raise YamlError(first.number, "directives are not understood here")
        if first is not None and not first.indent and _DOCUMENT.fullmatch(first.text):
            rest = first.text[3:].strip()
            if rest or first.text == "...":
                raise YamlError(first.number, "a document that begins beside --- is not understood here")
            self.position += 1
        if self._peek() is None:
            return Scalar("", 1)
        node = self._node(0, 0)
        rest_line = self._peek()
        if rest_line is not None and not (rest_line.indent == 0 and rest_line.text == "..."):
            marks = not rest_line.indent and _DOCUMENT.fullmatch(rest_line.text)
            why = "a second document" if marks else "what follows does not belong to it"
            raise YamlError(rest_line.number, f"{why}: {rest_line.text[:40]!r} is not understood")
        return node

    def _peek(self) -> _Line | None:
        """Return the next line that is neither blank nor a comment, and go to it."""
        while self.position < len(self.raw):
            line = self._line(self.position)
            if line.text:
                return line
            self.position += 1
        return None

    def _at(self, indent: int) -> _Line | None:
        """Return the next line if it is indented like this and belongs to the same document."""
        line = self._peek()
        if line is None or line.indent != indent or (indent == 0 and _DOCUMENT.fullmatch(line.text)):
            return None
        return line

    def _line(self, index: int) -> _Line:
        raw = self.raw[index].rstrip("\r")
        stripped = raw.lstrip(" ")
        if stripped.startswith("\t"):
            raise YamlError(index + 1, "a tab cannot indent")
        text = "" if stripped.startswith("#") else stripped.rstrip(" ")
        return _Line(index + 1, len(raw) - len(stripped), text)

    # --- nodes ---

    def _node(self, indent: int, depth: int) -> Node:
        """Return the node that begins on the next line, which is indented by at least `indent`."""
        self.count_node(depth)
        line = self._peek()
        if line is None or line.indent < indent or (line.indent == 0 and _DOCUMENT.fullmatch(line.text)):
            return Scalar("", line.number if line else len(self.raw))
        if _is_entry(line.text):
            return self._sequence(line.indent, depth)
        if _key(line.text):
            return self._mapping(line.indent, depth)
        self.position += 1
        return self._value(line.text, line, indent, depth)

    def count_node(self, depth: int) -> None:
        """Count one node; raises YamlError for too many."""
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise YamlError(self.position + 1, "is nested too deeply, or too large")

    def _sequence(self, indent: int, depth: int) -> Node:
        first = self._peek()
        found = Sequence(first.number if first else 0)
        while (line := self._at(indent)) is not None and _is_entry(line.text):
            content = line.text[1:]
            inner = indent + 1 + len(content) - len(content.lstrip(" "))
            content = uncommented(content.strip())
            if not content:
                self.position += 1
                found.items.append(self._node(indent + 1, depth + 1))
            elif _is_entry(content) or _key(content):
                # the entry's own content is a block that begins in the middle of this line
                self.raw[self.position] = " " * inner + self.raw[self.position][inner:]
                found.items.append(self._node(inner, depth + 1))
            else:
                self.position += 1
                found.items.append(self._value(line.text[1:].strip(), line, indent + 1, depth + 1))
        self._no_deeper(indent)
        return found

    def _no_deeper(self, indent: int) -> None:
        line = self._peek()
        if line is not None and line.indent > indent:
            raise YamlError(line.number, f"{line.text[:40]!r} is indented more than what it could belong to")

    def _mapping(self, indent: int, depth: int) -> Node:
        first = self._peek()
        found = Mapping(first.number if first else 0)
        merged: list[Mapping] = []
        while (line := self._at(indent)) is not None and not _is_entry(line.text):
            match = _key(line.text)
            if match is None:
                raise YamlError(line.number, f"{line.text[:40]!r} is no key with a value")
            key = self._scalar_text(match["key"], line.number)
            value = self._entry_value(line.text[match.end() :].strip(), line, indent, depth)
            if key == "<<" and match["key"] == "<<":
                merged += self._merged(value, line.number)
                continue
            if key in found.items:
                raise YamlError(line.number, f"the key {key!r} is there twice (first on line {found.lines[key]})")
            found.items[key], found.lines[key] = value, line.number
        self._no_deeper(indent)
        for each in merged:
            for key, value in each.items.items():
                found.items.setdefault(key, value)
                found.lines.setdefault(key, each.lines.get(key, each.line))
        return found

    def _entry_value(self, rest: str, line: _Line, indent: int, depth: int) -> Node:
        """Return the value of a key: what is beside it, or the lines below."""
        self.position += 1
        name, rest = self._anchor(rest)
        if uncommented(rest):
            return self._named(name, self._value(rest, line, indent + 1, depth + 1))
        following = self._peek()
        same = following is not None and following.indent == indent and _is_entry(following.text)
        if name:
            self.open_anchors.add(name)
        node = self._node(indent if same else indent + 1, depth + 1)
        self.open_anchors.discard(name)
        return self._named(name, node if not isinstance(node, Scalar) or node.text else Scalar("", line.number))

    def _merged(self, value: Node, line: int) -> list[Mapping]:
        parts = value.items if isinstance(value, Sequence) else [value]
        found = [each for each in parts if isinstance(each, Mapping)]
        if len(found) != len(parts):
            raise YamlError(line, "<< takes a mapping, or a list of mappings")
        return found

    def _anchor(self, rest: str) -> tuple[str, str]:
        match = _PROPERTY.match(rest)
        if match is None:
            return "", rest
        after = rest[match.end() :]
        return match[1], "" if after.startswith("#") else after

    def _named(self, name: str, node: Node) -> Node:
        if name:
            self.anchors[name] = node
        return node

    def _value(self, rest: str, line: _Line, indent: int, depth: int) -> Node:
        """Return what begins with `rest`, the remainder of a line, and may go on below."""
        self.count_node(depth)
        name, rest = self._anchor(rest)
        if name:
            return self._named(name, self._value(rest, line, indent, depth) if rest else self._node(indent, depth))
        first = rest[:1]
        if first == "*":
            return self.alias(uncommented(rest)[1:], line.number)
        if first and (first in "!%@`,]}&" or rest[:2] in ("-", "- ")):
            raise YamlError(line.number, f"{rest.split(maxsplit=1)[0][:40]} is not understood here")
        if first in ("|", ">"):
            return self._block(rest, line, indent)
        if first in ("[", "{", '"', "'"):
            return self._flow(rest, line)
        if first == "?" and rest[1:2] in ("", " "):
            raise YamlError(line.number, "a key on lines of its own (?) is not understood here")
        return self._plain(rest, line, indent)

    def alias(self, name: str, line: int) -> Node:
        """Return what an alias names; raises YamlError for nothing, for a cycle, and for too much."""
        if name in self.open_anchors:
            raise YamlError(line, f"*{name} stands inside of what it names: a cycle")
        if name not in self.anchors:
            raise YamlError(line, f"*{name} names nothing that came before")
        node = self.anchors[name]
        self.nodes += _size(node)
        if self.nodes > MAX_NODES:
            raise YamlError(line, f"*{name}: aliases make it larger than {MAX_NODES} values")
        return node

    # --- scalars ---

    def _plain(self, rest: str, line: _Line, indent: int) -> Scalar:
        parts, blanks = [plain_text(rest, line.number)], 0
        while uncommented(rest) == rest and self.position < len(self.raw):
            following = self._line(self.position)
            if not following.text:
                if self.raw[self.position].lstrip().startswith("#"):
                    break
                blanks, self.position = blanks + 1, self.position + 1
                continue
            marks = not following.indent and _DOCUMENT.fullmatch(following.text)
            if following.indent < indent or marks or _key(following.text):
                break
            rest = following.text
            parts += ["\n" * blanks or " ", plain_text(rest, following.number)]
            blanks, self.position = 0, self.position + 1
        return Scalar("".join(parts), line.number)

    def _block(self, rest: str, line: _Line, indent: int) -> Scalar:
        match = _BLOCK.fullmatch(rest)
        if match is None:
            raise YamlError(line.number, f"{rest[:20]!r} is no head of a block of text")
        chomping = match[3] or match[4] or ""
        explicit = match[2] or match[5]
        depth = indent - 1 + int(explicit) if explicit else 0
        lines: list[str] = []
        while self.position < len(self.raw):
            raw = self.raw[self.position].rstrip("\r")
            content = raw.lstrip(" ")
            if content and not depth:
                depth = max(len(raw) - len(content), 1)
                if depth < indent:
                    break
            if content and len(raw) - len(content) < depth:
                break
            lines.append(raw)
            self.position += 1
        found = [raw[depth:] for raw in lines]
        text = block_text(found, match[1], chomping)
        cut_off = self.position == len(self.raw) and found and found[-1]
        return Scalar(text.removesuffix("\n") if cut_off else text, line.number, quoted=True)

    def _scalar_text(self, written: str, line: int) -> str:
        return unquoted(written, line) if written[0] in "'\"" else written

    # --- flow forms ---

    def _flow(self, rest: str, line: _Line) -> Node:
        """Return a form in brackets or quotes, which may go on over lines."""
        text = rest if rest[0] in "'\"" else uncommented(rest)
        while (end := flow_end(text, line.number)) is None:
            if self.position >= len(self.raw):
                raise YamlError(line.number, f"{rest[:20]!r} is not closed")
            raw = self.raw[self.position].strip()
            quoted = text[0] in "'\""
            text += "\n" + (raw if quoted else uncommented(raw))
            self.position += 1
        after = text[end:].strip()
        if after and not after.startswith("#"):
            raise YamlError(line.number, f"{after[:20]!r} after a closed {text[0]} is not understood")
        return Flow(self, text[:end], line.number).node()


def _size(node: Node) -> int:
    if isinstance(node, Scalar):
        return 1
    children = node.items if isinstance(node, Sequence) else node.items.values()
    return 1 + sum(_size(each) for each in children)


def _is_entry(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _key(text: str) -> re.Match[str] | None:
    return _KEY.match(text)
