"""Which models of llama-swap run at the same time: its groups, and the sets of its matrix, expanded. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plimsoll.box.fit import yaml_subset as yaml
from plimsoll.box.fit.model import CannotTellError, Place

POOL = "models that are swapped"
MAX_COMBINATIONS = 1000
"""As many as llama-swap itself takes."""
MAX_DEPTH = 50
MAX_TEXT = 20_000
_TOKEN = re.compile(r"\s*(?:([()&|])|(\+?)([^\s()&|+]+))")
Combinations = list[frozenset[str]]


@dataclass(frozen=True)
class Share:
    """How a model shares memory with others: `exclusive` and `mixes` of a launch."""

    exclusive: str = POOL
    mixes: tuple[str, ...] = ()


def shares(document: yaml.Mapping, path: str) -> dict[str, Share]:
    """Return how each model shares that a group or the matrix names; raises CannotTellError.

    Any other model runs alone of the pool.
    """
    groups, matrix = document.items.get("groups"), document.items.get("matrix")
    if matrix is None:
        return _of_groups(groups) if isinstance(groups, yaml.Mapping) else {}
    place = Place(path, document.lines["matrix"])
    if groups is not None:
        raise CannotTellError(f"{place}: groups and a matrix exclude each other: llama-swap refuses")
    if not isinstance(matrix, yaml.Mapping):
        raise CannotTellError(f"{place}: the matrix is no mapping: which models run together is not known")
    return _of_matrix(matrix, place)


# --- groups -----------------------------------------------------------------------------------------


def _of_groups(groups: yaml.Mapping) -> dict[str, Share]:
    found: dict[str, Share] = {}
    for name, group in groups.items.items():
        members = group.items.get("members") if isinstance(group, yaml.Mapping) else None
        if isinstance(group, yaml.Mapping) and isinstance(members, yaml.Sequence):
            share = _of_group(name, group)
            found |= {each.text: share for each in members.items if isinstance(each, yaml.Scalar)}
    return found


def _of_group(name: str, group: yaml.Mapping) -> Share:
    swaps, exclusive = _is_on(group, "swap", default=True), _is_on(group, "exclusive", default=True)
    if exclusive and not _is_on(group, "persistent", default=False):
        # two of these never run at once: each unloads the other
        return Share(mixes=() if swaps else (f"group {name}",))
    return Share(f"group {name}" if swaps else "")


def _is_on(group: yaml.Mapping, key: str, *, default: bool) -> bool:
    value = group.items.get(key)
    return value.text.lower() in ("true", "yes", "on") if isinstance(value, yaml.Scalar) else default


# --- the matrix -------------------------------------------------------------------------------------


def _of_matrix(matrix: yaml.Mapping, place: Place) -> dict[str, Share]:
    names, sets = _scalars(matrix.items.get("vars")), _scalars(matrix.items.get("sets"))
    if not names or not sets:
        raise CannotTellError(f"{place}: a matrix needs vars and sets: llama-swap refuses")
    mixes: dict[str, list[str]] = {}
    count = 0
    reader = _Sets(sets, place)
    for name in sets:
        for number, combination in enumerate(reader.expanded(name), 1):
            count += 1
            for variable in combination:
                if variable not in names:
                    raise CannotTellError(f"{place}: the set {name} names {variable}, which is none of the vars")
                mixes.setdefault(names[variable], []).append(f"{name} {number}")
        reader.limit(count)
    return {model: Share(mixes=tuple(dict.fromkeys(each))) for model, each in mixes.items()}


def _scalars(node: yaml.Node | None) -> dict[str, str]:
    items = node.items.items() if isinstance(node, yaml.Mapping) else ()
    return {name: each.text for name, each in items if isinstance(each, yaml.Scalar)}


class _Sets:
    """Expands sets, each once; every error says that llama-swap refuses, or that there are too many."""

    def __init__(self, sets: Mapping[str, str], place: Place) -> None:
        self.sets = sets
        self.place = place
        self.done: dict[str, Combinations] = {}
        self.open: list[str] = []

    def limit(self, count: int) -> None:
        """Raise CannotTellError for too many combinations."""
        if count > MAX_COMBINATIONS:
            raise CannotTellError(f"{self.place}: more than {MAX_COMBINATIONS} combinations of models")

    def expanded(self, name: str) -> Combinations:
        """Return the combinations of a set; raises CannotTellError."""
        if name not in self.done:
            if name not in self.sets or name in self.open or len(self.open) > MAX_DEPTH:
                raise CannotTellError(f"{self.place}: +{name} is no set, or one inside of itself: llama-swap refuses")
            self.open.append(name)
            tokens = list(self._tokens(name))
            found = self._either(tokens, name, 0)
            if tokens:
                raise self._refused(name)
            self.open.pop()
            self.done[name] = found
        return self.done[name]

    def _refused(self, name: str) -> CannotTellError:
        return CannotTellError(f"{self.place}: the set {name} ({self.sets[name][:80]!r}) is not understood")

    def _tokens(self, name: str) -> Iterator[str]:
        text, position = self.sets[name].strip(), 0
        if len(text) > MAX_TEXT:
            raise self._refused(name)
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._refused(name)
            position = match.end()
            yield match[1] or match[2] + match[3]

    def _either(self, tokens: list[str], name: str, depth: int) -> Combinations:
        found = self._together(tokens, name, depth)
        while tokens[:1] == ["|"]:
            del tokens[0]
            found = found + self._together(tokens, name, depth)
            self.limit(len(found))
        return found

    def _together(self, tokens: list[str], name: str, depth: int) -> Combinations:
        found = self._one(tokens, name, depth)
        while tokens[:1] == ["&"]:
            del tokens[0]
            other = self._one(tokens, name, depth)
            self.limit(len(found) * len(other))
            found = [one | two for one in found for two in other]
        return found

    def _one(self, tokens: list[str], name: str, depth: int) -> Combinations:
        first = tokens.pop(0) if tokens else ""
        if first == "(" and depth < MAX_DEPTH:
            found = self._either(tokens, name, depth + 1)
            if tokens[:1] != [")"]:
                raise self._refused(name)
            del tokens[0]
            return found
        if first.startswith("+"):
            return self.expanded(first[1:])
        if first in ("", "&", "|", "(", ")"):
            raise self._refused(name)
        return [frozenset((first,))]
