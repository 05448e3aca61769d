"""Rules about what makes a finding, as data: the shipped ones, and those of `rules.yml` beside the inventory.

A rule looks at one kind of observation (plimsoll.box.protections.FIELDS), at sshd's settings or at the platform, and
holds where all its conditions do. Nothing holds over a field that is not known, but for `known: false`.
"""

from __future__ import annotations

import fnmatch
import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, ValidationError, model_validator

from plimsoll import yaml_lines
from plimsoll.box.protections import FIELDS
from plimsoll.fleet import sshd

# the one way in which a file of the operator's is described when it is wrong
from plimsoll.inventory import InventoryError, describe, not_blank, parse_date, shown
from plimsoll.policy import Model, as_mapping, as_tuple, nearest, wrong

SHIPPED = Path(__file__).resolve().parent / "rules"
USERS = "rules.yml"
PLATFORM = "platform"
Boot = Literal["running", "next"]
BOOTS: tuple[Boot, ...] = ("running", "next")
PLATFORM_FIELDS = (
    "boot", "kernel", "cmdline", "nvidia_module", "driver", "open_module", "firmware", "firmware_files",
    "system_memory_pools", "architecture", "board_vendor", "board_name", "product_name", "bios_version", "bios_date",
    "os_id", "os_version", "dgx_release", "dgx_ota", "cma_total_kib", "cma_free_kib", "mem_total_kib", "regime",
)  # fmt: skip
TEXTS = frozenset(PLATFORM_FIELDS) - {
    "nvidia_module", "open_module", "firmware_files", "system_memory_pools", "cma_total_kib", "cma_free_kib",
    "mem_total_kib",
}  # fmt: skip
"""Fields of the platform that hold text: 580.95 without quotes is a number, and equals none of them."""
FLAGS = frozenset({
    "nvidia_module", "open_module", "running", "uses_gpu", "swap_forbidden", "skips_memory_check", "container_seen",
    "limit_reported", "moving_denominator", "absolute", "dryrun", "enabled",
})  # fmt: skip
"""Fields that are true or false: `yes` is a text, and equals neither."""
COMMON_FIELDS = ("subject", "file", "line")
KNOWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    PLATFORM: PLATFORM_FIELDS,
    sshd.KIND: (*COMMON_FIELDS, *sshd.FIELDS),
    **{kind: (*COMMON_FIELDS, *fields) for kind, fields in FIELDS.items()},
}
UNITS = {"bytes": 0, "kib": 10}
"""What may follow a field in `seen`: `{memory_bytes:bytes}` becomes `64 GiB`."""
MAX_MATCHED = 4096
"""Characters of a text that a pattern is tried on: a host chooses the text."""

Scalar = str | int | float | bool
Record = Mapping[str, Any]

_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")
_COMPARISON = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(-?[0-9][0-9A-Za-z.+~-]{0,98})\s*")
_PIECE = re.compile(r"[0-9]+|[^0-9.+~-]+")


def _comparisons(spec: str) -> list[tuple[str, str]]:
    """Return `>=590,<596` as operator and operand; raises ValueError."""
    found = [_COMPARISON.fullmatch(part) for part in spec.split(",")]
    pairs = [(match[1], match[2]) for match in found if match]
    if len(pairs) < len(found):
        raise ValueError(f"must be comparisons with commas between them, such as '>=590,<596', not {spec!r}")
    return pairs


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return what versions are ordered by: numbers as numbers, a number above a word, missing parts lowest."""
    pieces = _PIECE.findall(text)
    return tuple(
        (1, int(p), "") if p.isascii() and p.isdigit() else (0, 0, p) for p in pieces if len(p) < _LONGEST_NUMBER
    )


_LONGEST_NUMBER = 100


def _compared(order: int, operator: str) -> bool:
    holds = {">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0, "==": order == 0, "!=": order != 0}
    return holds[operator]


def _order(one: Any, other: Any) -> int:  # noqa: ANN401  # two of anything that has an order
    return int(one > other) - int(one < other)


def _version_spec(spec: str) -> str:
    try:
        _comparisons(spec)
    except ValueError as error:
        raise wrong(str(error)) from None
    return spec


def _number_spec(spec: str) -> str:
    try:
        [float(operand) for _operator, operand in _comparisons(spec)]
    except ValueError:
        raise wrong(f"must compare with numbers, such as '>0' or '>=1,<60', not {spec!r}") from None
    return spec


def _pattern(text: str) -> str:
    try:
        with warnings.catch_warnings():
            # of `[[:alpha:]]` Python only warns, and matches something else than is meant
            warnings.simplefilter("error", FutureWarning)
            re.compile(text)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise wrong(f"is no regular expression: {error}") from None
    return text


def _scalars(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    if not values:
        raise wrong("must name at least one value")
    return values


Values = Annotated[tuple[Scalar, ...], BeforeValidator(as_tuple), AfterValidator(_scalars)]


class Condition(Model):
    """What is asked of one field; all that is given must hold."""

    equals: Scalar | None = None
    one_of: Values | None = None
    none_of: Values | None = None
    glob: str | None = None
    regex: Annotated[str, AfterValidator(_pattern)] | None = None
    word: str | None = None
    """One of the words that blanks separate in a text, such as an option on the kernel's command line."""
    version: Annotated[str, AfterValidator(_version_spec)] | None = None
    number: Annotated[str, AfterValidator(_number_spec)] | None = None
    same_as: str | None = None
    differs_from: str | None = None
    more_than: str | None = None
    within: str | None = None
    not_within: str | None = None
    known: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: object) -> object:
        if isinstance(data, list):
            return {"one_of": data}
        if data is None:
            return {}
        return {"equals": data} if isinstance(data, str | int | float) else data

    @model_validator(mode="after")
    def _asks_something(self) -> Condition:
        if not self.model_fields_set:
            raise wrong("asks nothing: give a value, a list of them, or `known: true`")
        return self

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The values that the field is compared with."""
        given = () if self.equals is None else (self.equals,)
        return (*given, *(self.one_of or ()), *(self.none_of or ()))

    @property
    def other_fields(self) -> list[str]:
        """The fields that this one is compared with."""
        others = (self.same_as, self.differs_from, self.more_than, self.within, self.not_within)
        return [other for other in others if other is not None]

    def holds(self, field: str, record: Record) -> bool:
        """Say whether the condition holds over `field`; False for what cannot be told, whatever is asked."""
        value = record.get(field)
        if self.known is not None and (value is not None) != self.known:
            return False
        if value is None:
            return self.known is False
        return self._over_value(value) and self._over_fields(value, record)

    def _over_value(self, value: Any) -> bool:  # noqa: ANN401  # whatever a host has written
        tests = (
            self.equals is None or _equal(value, self.equals),
            self.one_of is None or any(_equal(value, each) for each in self.one_of),
            self.none_of is None or not any(_equal(value, each) for each in self.none_of),
            self.number is None or _number_fits(value, self.number),
        )
        return all(tests) and self._over_text(value)

    def _over_text(self, value: Any) -> bool:  # noqa: ANN401  # as above
        wanted = (self.glob, self.regex, self.word, self.version)
        if wanted == (None,) * len(wanted):
            return True
        if not isinstance(value, str):
            return False
        text = value[:MAX_MATCHED]
        return (
            (self.glob is None or fnmatch.fnmatchcase(text, self.glob))
            and (self.regex is None or re.search(self.regex, text) is not None)
            and (self.word is None or self.word in text.split())
            and (self.version is None or _version_fits(text, self.version))
        )

    def _over_fields(self, value: Any, record: Record) -> bool:  # noqa: ANN401  # as above
        others = {name: record.get(name) for name in self.other_fields}
        if any(other is None for other in others.values()):
            return False
        return (
            (self.same_as is None or _equal(value, others[self.same_as]))
            and (self.differs_from is None or not _equal(value, others[self.differs_from]))
            and (self.more_than is None or _is_more(value, others[self.more_than]))
            and (self.within is None or _is_within(value, others[self.within]) is True)
            and (self.not_within is None or _is_within(value, others[self.not_within]) is False)
        )


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401  # as above
    """Compare without taking True for 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _is_number(value: object) -> bool:
    # not-a-number, which JSON in Python's dialect may hold, has no order
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _number_fits(value: Any, spec: str) -> bool:  # noqa: ANN401  # as above
    if not _is_number(value):
        return False
    return all(_compared(_order(value, float(operand)), operator) for operator, operand in _comparisons(spec))


def _version_fits(text: str, spec: str) -> bool:
    """Compare as far as the operand goes: 590.48 is neither above nor below 590."""
    own = version_key(text)
    if not own:
        return False
    for operator, operand in _comparisons(spec):
        wanted = version_key(operand)
        order = _order(own[: len(wanted)] if operator in ("<=", ">", "==", "!=") else own, wanted)
        if not _compared(order, operator):
            return False
    return True


def _is_more(value: Any, other: Any) -> bool:  # noqa: ANN401  # as above
    return _is_number(value) and _is_number(other) and bool(value > other)


def _is_within(value: Any, members: Any) -> bool | None:  # noqa: ANN401  # as above
    """Say whether a list has a value; None for an empty list and for what is none: nothing is known of it."""
    return value in members if isinstance(members, list) and members else None


Text = Annotated[str, AfterValidator(not_blank)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else as_tuple(value))
]


def _identity(value: str) -> str:
    if not _ID.fullmatch(value):
        raise wrong(f"must be a-z, 0-9, '.' and '-', not {value!r}")
    return value


class Rule(Model):
    """When something is worth a finding, and what to say of it."""

    id: Annotated[str, AfterValidator(_identity)]
    kind: Literal["false_protection", "known_bad"]
    looks_at: Annotated[Names, AfterValidator(_scalars)]
    when: Annotated[dict[str, Condition], BeforeValidator(as_mapping)]
    applies: Annotated[tuple[Boot, ...], BeforeValidator(as_tuple), AfterValidator(_scalars)] = BOOTS
    """Of the platform: the kernel that runs, the one that boots next, or both."""
    title: Text
    seen: Text
    """A template over the record's fields: `{name}`, or `{memory_bytes:bytes}` for a size."""
    why: Text
    evidence: Text
    source: Text
    dated: Annotated[str, AfterValidator(lambda value: parse_date(value).isoformat())]
    advice: Text

    def problems(self) -> Iterator[tuple[yaml_lines.Path, str]]:
        """Yield what is wrong with the rule as a whole, each with the place in it."""
        if not self.when:
            yield ("when",), "`when` must have at least one condition"
        for kind in self.looks_at:
            if kind not in KNOWN_FIELDS:
                yield ("looks_at",), f"unknown kind of observation {kind!r}; {nearest(kind, KNOWN_FIELDS)}"
        try:
            named = [*self._asked(), *((("seen",), field) for field in self.shown())]
        except ValueError as error:
            yield ("seen",), f"`seen`: {error}"
            return
        for kind in (each for each in self.looks_at if each in KNOWN_FIELDS):
            for path, field in named:
                if field not in KNOWN_FIELDS[kind]:
                    yield path, f"{kind} has no field {field!r}; {nearest(field, KNOWN_FIELDS[kind])}"
        yield from self._never_equal()

    def _never_equal(self) -> Iterator[tuple[yaml_lines.Path, str]]:
        """Yield the values that a field cannot have, because they are of another type than it is."""
        for field, value in ((field, value) for field, asked in self.when.items() for value in asked.values):
            if field in FLAGS and not isinstance(value, bool):
                yield ("when", field), f"{field} is true or false, never {value!r}"
            if field in TEXTS and not isinstance(value, str):
                yield ("when", field), f"{field} is text, never {value!r}: put it in quotes"

    def _asked(self) -> list[tuple[yaml_lines.Path, str]]:
        fields = ((field, name) for field, asked in self.when.items() for name in (field, *asked.other_fields))
        return [(("when", field), name) for field, name in fields]

    def shown(self) -> list[str]:
        """Return the fields of the template; raises ValueError for one that is none."""
        pieces = [each for each in string.Formatter().parse(self.seen) if each[1] is not None]
        if any(conversion or spec not in ("", *UNITS) for _text, _field, spec, conversion in pieces):
            raise ValueError(f"after a field may stand {' or '.join(':' + unit for unit in UNITS)}, nothing else")
        return [str(field) for _text, field, _spec, _conversion in pieces]

    def holds(self, record: Record) -> bool:
        """Say whether a record of one of the kinds that the rule looks at is what it is about."""
        return all(condition.holds(field, record) for field, condition in self.when.items())

    def describe(self, record: Record) -> str:
        """Return `seen` with the record's values; what is not known is called so."""
        pieces = string.Formatter().parse(self.seen)
        return "".join(
            text + ("" if field is None else _value(record.get(field), spec)) for text, field, spec, _ in pieces
        )


MAX_VALUE = 200


def _value(value: object, spec: str | None) -> str:
    if value is None:
        return "unknown"
    if spec and _is_number(value):
        return _size(float(str(value)) * 2 ** UNITS[spec])
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _size(size_bytes: float) -> str:
    unit, factor = next((each for each in _SIZES if abs(size_bytes) >= each[1]), _SIZES[-1])
    return f"{size_bytes / factor:.4g} {unit}"


_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


# --- files ------------------------------------------------------------------------------------------


class _File(Model):
    rules: Annotated[tuple[Rule, ...], BeforeValidator(as_tuple)] = ()


def load_rules(inventory: Path | None = None) -> tuple[Rule, ...]:
    """Return the shipped rules and those of `rules.yml` beside the inventory file, if there is one.

    Raises InventoryError for whatever is wrong with a file, and for an id that is there twice.
    """
    files = sorted(SHIPPED.glob("*.yml"))
    if inventory is not None and (inventory.parent / USERS).exists():
        files.append(inventory.parent / USERS)
    rules: list[Rule] = []
    for file in files:
        rules += load_file(file, taken=Counter(rule.id for rule in rules))
    return tuple(rules)


def load_file(path: Path, taken: Mapping[str, int] | None = None) -> list[Rule]:
    """Return the rules of one file. Raises InventoryError."""
    document = _parsed(path)
    try:
        rules = _File.model_validate({} if document.value is None else document.value).rules
    except ValidationError as error:
        found = [describe(each) for each in error.errors(include_url=False)]
        where, message = min(found, key=lambda each: document.line(each[0]))
        _fail(path, message, document.line(where))
    ids = Counter(rule.id for rule in rules) + Counter(taken or {})
    for index, rule in enumerate(rules):
        for place, message in rule.problems():
            _fail(path, message, document.line(("rules", index, *place)))
        if ids[rule.id] > 1:
            _fail(
                path,
                f"the id {rule.id!r} is taken by another rule: choose another",
                document.line(("rules", index, "id")),
            )
    return list(rules)


def _parsed(path: Path) -> yaml_lines.Document:
    try:
        return yaml_lines.parse(path.read_bytes())
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror or error}", None)
    except yaml_lines.YamlError as error:
        _fail(path, error.message, error.line)


def _fail(path: Path, message: str, line: int | None) -> NoReturn:
    raise InventoryError(message, shown(path), line) from None
