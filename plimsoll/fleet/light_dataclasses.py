"""Stands in for `dataclasses` where a state is read: as much of it as is used there.

The original imports `inspect` and compiles the methods of each class: 14 ms of the 90 that a reading took. That
nobody assigns to a frozen object is seen where the original is used, which is everywhere else.
"""

from collections.abc import Callable
from typing import Any


class _Made:
    """A default that is made anew for each object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], Any]) -> Any:  # noqa: ANN401  # it stands for a value of any type
    """Return the default of a field, to be made by calling `default_factory`."""
    return _Made(default_factory)


def dataclass(cls: type | None = None, *, frozen: bool = False) -> Any:  # noqa: ANN401, ARG001  # a class, or what makes one; both forms are the same here
    """Give a class its fields as arguments, and make objects with the same values equal."""
    return _with_fields if cls is None else _with_fields(cls)


def _with_fields(cls: Any) -> type:  # noqa: ANN401  # any class
    names = tuple(cls.__annotations__)
    defaults = {name: vars(cls)[name] for name in names if name in vars(cls)}

    def init(self: object, *values: object, **named: object) -> None:
        given = {**dict(zip(names, values, strict=False)), **named}
        if len(given) != len(values) + len(named) or not given.keys() <= set(names):
            raise TypeError(f"{cls.__name__} has the fields {', '.join(names)}")
        for name in names:
            value = given[name] if name in given else defaults[name]
            object.__setattr__(self, name, value.make() if isinstance(value, _Made) else value)

    cls.__init__ = init
    cls.__eq__ = lambda self, other: type(self) is type(other) and vars(self) == vars(other)
    cls.__hash__ = lambda self: hash(tuple(vars(self).values()))
    return cls  # type: ignore[no-any-return]  # a class came in
