"""YAML that remembers where each value stands, read without YAML 1.1's surprises.

Only `true` and `false` are booleans and dates stay text. A plain scalar that programs read differently
(octal, base 60, digit groups) is refused, because a guess would silently set another number than was meant.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

Path = tuple[str | int, ...]

# Aliases of aliases grow exponentially; an inventory of 1000 hosts has some 10 000 nodes.
MAX_NODES = 200_000


class YamlError(ValueError):
    """The text is no YAML that can be trusted; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values (dict, list, str, int, float, bool, None) and the line of each path in them."""

    value: object
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Line of the value at `path`, or of the nearest value around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars as below instead of as YAML 1.1 does."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own class attribute, replaced before it is filled


class _Quick(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # PyYAML may come without libyaml
    """The same by libyaml, for what is in order: 15 ms for the rules on a busy machine, where Python takes 98."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


_AMBIGUOUS = "!ambiguous"
_MERGE = "tag:yaml.org,2002:merge"
_STR = "tag:yaml.org,2002:str"
_RESOLVERS = {
    "tag:yaml.org,2002:bool": r"true|false",
    "tag:yaml.org,2002:null": r"null|~|",
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]*)",
    "tag:yaml.org,2002:float": r"[-+]?(0|[1-9][0-9]*)?\.[0-9]+([eE][-+]?[0-9]+)?|[-+]?(0|[1-9][0-9]*)\.",
    _MERGE: r"<<",
    # leading zero; other bases; digit groups; base 60; exponent without a dot; infinity and not-a-number
    _AMBIGUOUS: r"[-+]?(0[0-9_]+|0[xXoObB][0-9a-fA-F_]+|[0-9]+_[0-9_.]*|[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"
    r"|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
}
for _tag, _pattern in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), None)


def parse(data: bytes) -> Document:
    """Parse one YAML document; an empty one has the value None. Raises YamlError and nothing else."""
    text = _decode(data)
    try:
        node = _compose(text)
        builder = _Builder()
        value = None if node is None else builder.build(node, ())
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"the control character U+{error.character:04X}: remove it", line) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    except RecursionError:
        raise YamlError("lists or mappings are nested too deeply", 1) from None
    return Document(value, builder.lines)


def _compose(text: str) -> yaml.Node | None:
    """Return the node of a document; what libyaml refuses is told in the words of the other, which knows more of it."""
    try:
        return yaml.compose(text, Loader=_Quick)
    except yaml.YAMLError:
        return yaml.compose(text, Loader=_Loader)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError("not UTF-8: save the file in that encoding", line) from None


def _syntax_error(error: yaml.MarkedYAMLError) -> YamlError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "not YAML"
    if "'\\t'" in problem:
        problem = "a tab where YAML allows none: use spaces"
    elif error.context:
        problem = f"{error.context}, {problem}"
    return YamlError(problem, mark.line + 1 if mark else 1)


def _error(node: yaml.Node, message: str) -> YamlError:
    return YamlError(message, node.start_mark.line + 1)


class _Builder:
    """Turns nodes into values and notes the line of each path."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._inside: set[int] = set()
        self._count = 0

    def build(self, node: yaml.Node, path: Path) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > MAX_NODES:
            raise _error(node, f"more than {MAX_NODES} values: too many aliases of aliases")
        if id(node) in self._inside:
            raise _error(node, "an anchor that contains itself")
        self._inside.add(id(node))
        try:
            return self._value(node, path)
        finally:
            self._inside.discard(id(node))

    def _value(self, node: yaml.Node, path: Path) -> object:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
            return self._mapping(node, path)
        raise _error(node, f"the tag {node.tag!r}: write plain YAML")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        own: dict[str, yaml.Node] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged |= self._merged(value_node, path)
                continue
            key = _key(key_node)
            if key in own:
                first = self.lines[*path, key]
                raise _error(key_node, f"the key {key!r} is there twice (first on line {first})")
            own[key] = value_node
            self.lines[*path, key] = key_node.start_mark.line + 1
        return merged | {key: self.build(value, (*path, key)) for key, value in own.items()}

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, object]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, object] = {}
        for each in reversed(nodes):  # the first mapping of a list wins
            if not isinstance(each, yaml.MappingNode):
                raise _error(node, "'<<' needs a mapping or a list of mappings")
            value = self.build(each, path)
            assert isinstance(value, dict)  # noqa: S101 - what build() returns for a mapping, said to mypy
            result |= value
        return result


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, "a key must be text, not a list or a mapping")
    if node.tag != _STR:
        raise _error(node, f"the key {node.value!r} must be text: put it in quotes")
    return str(node.value)


def _scalar(node: yaml.ScalarNode) -> object:
    kind = node.tag.rpartition(":")[2]
    text = str(node.value)
    if node.tag == _STR:
        return text
    if kind == "bool":
        return text == "true"
    if kind == "null":
        return None
    if kind in {"int", "float"}:
        return _number(node, kind, text)
    if node.tag == _AMBIGUOUS:
        raise _error(node, f"programs read {text} differently: write a plain decimal number, or put it in quotes")
    raise _error(node, f"the tag {node.tag!r}: write plain YAML")


def _number(node: yaml.ScalarNode, kind: str, text: str) -> int | float:
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        raise _error(node, f"{text[:40]!r} is no number") from None
    if not math.isfinite(number):
        raise _error(node, f"{text[:40]!r} is no finite number")
    return number
