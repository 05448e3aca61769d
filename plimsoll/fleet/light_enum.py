"""Stands in for `enum` where a state is read: texts with names, and nothing else of it."""

from typing import Any


class _Texts(type):
    """Makes a member of each text in a class."""

    members: dict[str, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "_Texts":
        made = super().__new__(cls, name, bases, body)
        made.members = {}
        for key, text in body.items():
            if not key.startswith("_") and isinstance(text, str):
                member: Any = str.__new__(made, text)  # type: ignore[arg-type]  # a class of texts, made just now
                made.members[text] = member
                setattr(made, key, member)
        return made

    def __call__(cls, text: str) -> Any:  # noqa: ANN401  # a member
        if text not in cls.members:
            raise ValueError(f"{text!r} is not a valid {cls.__name__}")
        return cls.members[text]


class StrEnum(str, metaclass=_Texts):
    """A text that is one of those that its class has."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """Return the text."""
        return str(self)
