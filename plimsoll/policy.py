"""The operator's choices: typed, validated, with defaults.

Every model is frozen and refuses unknown keys. What depends on the host (a line above its MemTotal) is
checked where the host is known; whether a control exists and what its value may be, where the controls are.
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, create_model, model_validator
from pydantic_core import PydanticCustomError

from plimsoll.box.guard.config import WrongValueError
from plimsoll.box.serve import config as served
from plimsoll.box.serve import keys as served_keys

if TYPE_CHECKING:
    from plimsoll.box.guard.config import Key

KIB_PER_GIB = 1024 * 1024
KERNEL_RESERVE = "kernel/vm.min_free_kbytes"

# Shape of a systemd unit name, systemd.unit(5): at most 255 characters, with a type suffix.
_UNIT_NAME = re.compile(
    r"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]*)?"
    r"\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)"
)
_UNIT_NAME_MAX = 255
# Without one of these nobody gets in again, so no policy may stop them.
_WAY_IN = re.compile(
    r"(sshd?(@.*)?\.(service|socket)|dbus(-broker)?\.(service|socket)"
    r"|systemd-(journald|logind|networkd|udevd).*\.(service|socket)|(NetworkManager|networking)\.service"
    # without the first sshd turns all but root away; what runs in a slice goes with it
    r"|systemd-user-sessions\.service|user@.*\.service|(-|system|user)\.slice|init\.scope|-\.mount"
    # what the boot goes through: with its default target masked a box comes up in emergency mode
    r"|(basic|default|graphical|local-fs|multi-user|network|slices|sockets|sysinit)\.target)"
)

# A hint is one line: all keys of a section fit, all controls do not.
_HINT_MAX = 12

Scalar = str | int | float | bool | None


def nearest(word: str, known: Iterable[str]) -> str:
    """Hint for a misspelt `word`: the nearest known one, or all that are known."""
    names = sorted(known)
    match = difflib.get_close_matches(word, names, n=1)
    if match:
        return f"did you mean {match[0]!r}?"
    shown = [*names[:_HINT_MAX], *(["…"] if len(names) > _HINT_MAX else [])]
    return f"known: {', '.join(shown) or 'none'}"


def wrong(message: str, *paths: tuple[str, ...]) -> PydanticCustomError:
    """Build an error whose message stands as it is; `paths` are what it is about, for the line to name."""
    return PydanticCustomError("plimsoll", "{message}", {"message": message, "paths": paths})


def as_tuple(value: object) -> object:
    """Turn a YAML list into a tuple; an empty section is an empty tuple."""
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, tuple):
        return value
    raise wrong(f"must be a list, not {value!r}")


def as_mapping(value: object) -> object:
    """Let an empty section be an empty mapping."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    raise wrong(f"must be a mapping (key: value), not {value!r}")


def _scalar(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    raise wrong("must be one value, not a list or a mapping")


class Model(BaseModel):
    """Base of all policy: frozen, strict, and helpful about a misspelt key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        if isinstance(data, cls):
            return data
        section = as_mapping(data)
        assert isinstance(section, Mapping)  # noqa: S101 - what as_mapping returns, said to mypy
        for key in section:
            if key not in cls.model_fields:
                hint = nearest(str(key), cls.model_fields)
                raise PydanticCustomError("unknown_key", "unknown key {key}; {hint}", {"key": key, "hint": hint})
        return section


class Layers(Model):
    """Which layers are applied. The opt-in ones can change how the box behaves when nothing is wrong."""

    kernel: bool = True
    slices: bool = True
    journald: bool = True
    sshd: bool = True
    user_manager: bool = True
    earlyoom: bool = True
    guard: bool = True
    models: bool = True
    recovery: bool = False
    driver_option: bool = False


class Lines(NamedTuple):
    """The ladder on one host, in KiB of available memory."""

    slow_leave_kib: int
    slow_enter_kib: int
    floor_kib: int


class Ladder(Model):
    """The lines of available memory, in GiB of a box with `reference_gib`; each lies above the next."""

    slow_leave_gib: float = Field(default=9.0, gt=0)
    slow_enter_gib: float = Field(default=8.0, gt=0)
    floor_gib: float = Field(default=3.0, gt=0)
    # MemTotal of a DGX Spark or Ascent GX10, the box that the defaults were chosen on
    reference_gib: float = Field(default=121.6, gt=0)

    def scaled(self, mem_total_kib: int) -> Lines:
        """Scale the lines to a host with `mem_total_kib` of memory."""
        share = mem_total_kib / self.reference_gib
        return Lines(
            round(self.slow_leave_gib * share),
            round(self.slow_enter_gib * share),
            round(self.floor_gib * share),
        )


# earlyoom reads POSIX extended expressions, and exits at once at what is none: `(?`, a brace without its end.
_NOT_POSIX = re.compile(r"\(\?|\{(?!\d*,?\d*\})")
_BRACKETS = re.compile(r"\[\^?\]?(\[[:.=].*?[:.=]\]|[^]])*\]")
"""A bracket expression, in which neither means anything; it may begin with its own end, and hold classes."""


def _check_pattern(pattern: object) -> object:
    if not isinstance(pattern, str):
        return pattern
    if not pattern or not pattern.isprintable() or re.search(r"[\s'\"\\]", pattern):
        raise wrong(f"{pattern!r} must be a regular expression without blanks, quotes and backslashes")
    if found := _NOT_POSIX.search(_BRACKETS.sub("", pattern)):
        raise wrong(f"{pattern!r} is no POSIX extended regular expression, as earlyoom reads them: {found[0]!r}")
    try:
        with warnings.catch_warnings():
            # `[[:alpha:]]`, a class of POSIX, is a set that might be meant for another one in a later Python
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise wrong(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


Percent = Annotated[int, Field(ge=1, le=100)]
Patterns = Annotated[tuple[Annotated[str, BeforeValidator(_check_pattern)], ...], BeforeValidator(as_tuple)]


class Earlyoom(Model):
    """The backstop below the guard. A percentage left open is chosen by the installed version."""

    term_percent: Percent | None = None
    kill_percent: Percent | None = None
    # process names as the kernel cuts them, at 15 characters
    prefer: Patterns = ("vllm", "VLLM::.*", "llama-server", "ollama", "sglang::schedul")


class Sshd(Model):
    """Choices about sshd that a default install leaves alone."""

    retire_socket: bool = False


def _check_unit(name: object) -> object:
    if not isinstance(name, str):
        return name
    if len(name) > _UNIT_NAME_MAX or not _UNIT_NAME.fullmatch(name):
        raise wrong(f"{name!r} is no unit name: give it with its suffix, such as cups.service")
    if _WAY_IN.fullmatch(name):
        raise wrong(f"{name} must not be trimmed: the box could not be reached without it")
    return name


def _check_argument(argument: object) -> object:
    if isinstance(argument, str) and not argument.isprintable():
        raise wrong(f"{argument!r} holds control characters")
    return argument


Units = Annotated[tuple[Annotated[str, BeforeValidator(_check_unit)], ...], BeforeValidator(as_tuple)]
Argv = Annotated[tuple[Annotated[str, BeforeValidator(_check_argument)], ...], BeforeValidator(as_tuple)]


class Verify(Model):
    """What the box does when it judges itself."""

    notify_command: Argv = ()

    @model_validator(mode="after")
    def _absolute(self) -> Self:
        if self.notify_command and not self.notify_command[0].startswith("/"):
            raise wrong(
                f"notify_command must begin with an absolute path, not {self.notify_command[0]!r}",
                ("notify_command",),
            )
        return self


# Workload selectors as guard.toml has them; patterns are a shell's.
_SELECTOR = re.compile(r"(cgroup|unit|command):\S.*")
# Shape of a group name, groupadd(8).
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def _check_selector(selector: object) -> object:
    if isinstance(selector, str) and not (selector.isprintable() and _SELECTOR.fullmatch(selector)):
        raise wrong(f"{selector!r} must be cgroup:PATTERN, unit:PATTERN or command:PATTERN")
    return selector


def _check_path(path: object) -> object:
    if isinstance(path, str) and not (path.isprintable() and path.startswith("/")):
        raise wrong(f"{path!r} must be an absolute path")
    return path


def _check_group(name: object) -> object:
    if isinstance(name, str) and not _GROUP.fullmatch(name):
        raise wrong(f"{name!r} is no name of a group")
    return name


Mode = Literal["auto", "observe", "armed"]
Selectors = Annotated[tuple[Annotated[str, BeforeValidator(_check_selector)], ...], BeforeValidator(as_tuple)]
Paths = Annotated[tuple[Annotated[str, BeforeValidator(_check_path)], ...], BeforeValidator(as_tuple)]
Groups = Annotated[tuple[Annotated[str, BeforeValidator(_check_group)], ...], BeforeValidator(as_tuple)]


class GuardRules(Model):
    """How single rules stand, where that is not as all of them do."""

    floor: Mode | None = None
    rate: Mode | None = None
    slow: Mode | None = None
    stall: Mode | None = None


class Guard(Model):
    """What the guard may do on a host, to whom, and whom it tells."""

    mode: Mode = "auto"
    rules: GuardRules = GuardRules()
    protect: Selectors = ()
    prefer: Selectors = ()
    gpu_devices: Paths = ()
    attributed_min_mib: Annotated[float, Field(ge=1, le=1 << 20)] | None = None
    fallback_min_gib: Annotated[float, Field(ge=0.1, le=4096)] | None = None
    hook_command: Argv = ()
    metrics_file: Annotated[str, BeforeValidator(_check_path)] | None = None
    reserve_groups: Groups = ()
    last_resort: bool = False

    @model_validator(mode="after")
    def _absolute(self) -> Self:
        if self.hook_command and not self.hook_command[0].startswith("/"):
            raise wrong(
                f"hook_command must begin with an absolute path, not {self.hook_command[0]!r}", ("hook_command",)
            )
        return self


def _as_key(key: Key) -> Any:  # noqa: ANN401 - what a field of a pydantic model is declared with
    """Declare a field that takes what the box takes for a key of a model's file."""

    def check(value: object) -> object:
        if value is None:
            raise wrong("null is no value for it: leave the key out")
        try:
            key.kind.read(key, value)
            json.dumps(value, ensure_ascii=False).encode()
        except WrongValueError as error:
            raise wrong(str(error)) from None
        except UnicodeEncodeError:
            raise wrong("holds half of a pair of surrogates, which is no character") from None
        return value

    return Annotated[Any, BeforeValidator(check)], None


def _section(name: str) -> type[Model]:
    fields = {key.name: _as_key(key) for key in served_keys.BY_SECTION[name].values()}
    return create_model(f"Served{name.capitalize()}", __base__=Model, **fields)


if TYPE_CHECKING:
    Served = Model
else:
    # From the box's own table: a key that it learns is one that an inventory may have.
    Served = create_model(
        "Served", __base__=Model, **{name: (_section(name) | None, None) for name in served_keys.BY_SECTION}
    )


def _check_model(name: object) -> object:
    if isinstance(name, str) and not served_keys.NAME.fullmatch(name):
        raise wrong(f"{name!r} is not {served_keys.MODEL.accepts}")
    return name


class Serve(Model):
    """Who may start and stop models, besides root."""

    operators: Groups = ()


class _Line(NamedTuple):
    path: tuple[str, ...]
    gib: float

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} ({self.gib:.4g} GiB)"


class Policy(Model):
    """What one host should be like. Valid as a whole: no line of memory lies above the one before it."""

    layers: Layers = Layers()
    values: Annotated[Mapping[str, Annotated[Scalar, BeforeValidator(_scalar)]], BeforeValidator(as_mapping)] = Field(
        default_factory=dict
    )
    ladder: Ladder = Ladder()
    earlyoom: Earlyoom = Earlyoom()
    guard: Guard = Guard()
    models: Annotated[Mapping[Annotated[str, BeforeValidator(_check_model)], Served], BeforeValidator(as_mapping)] = (
        Field(default_factory=dict)
    )
    serve: Serve = Serve()
    sshd: Sshd = Sshd()
    trims: Units = ()
    verify: Verify = Verify()

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return what each model's file says: name -> section -> key -> value, as it was given."""
        given = {name: model.model_dump(exclude_unset=True) for name, model in self.models.items()}
        return {name: {key: value for key, value in each.items() if value} for name, each in given.items()}

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> Self:
        context = info.context or {}
        # One level of an inventory may raise a line and leave the line above it to another level.
        if not context.get("one_level"):
            self._check_ladder()
            self._check_earlyoom()
            self._check_models()
            reserve = self.values.get(KERNEL_RESERVE, context.get("kernel_reserve_kib"))
            if isinstance(reserve, int):
                self.check_kernel_reserve(reserve)
        return self

    def _check_ladder(self) -> None:
        ladder = self.ladder
        leave = _Line(("ladder", "slow_leave_gib"), ladder.slow_leave_gib)
        enter = _Line(("ladder", "slow_enter_gib"), ladder.slow_enter_gib)
        _check_above(_Line(("ladder", "reference_gib"), ladder.reference_gib), leave)
        _check_above(leave, enter)
        _check_above(enter, self._floor())

    def _floor(self) -> _Line:
        return _Line(("ladder", "floor_gib"), self.ladder.floor_gib)

    def check_kernel_reserve(self, reserve_kib: int) -> None:
        """Raise ValueError, naming both lines, unless the guard's floor lies above the kernel's own reserve.

        `reserve_kib` is vm.min_free_kbytes as it would be on a box of the ladder's reference size.
        """
        _check_above(self._floor(), _Line(("values", KERNEL_RESERVE), reserve_kib / KIB_PER_GIB))

    def _check_models(self) -> None:
        """Refuse what the box would refuse: keys that do not go together, a fallback that is none."""
        documents = self.documents()
        for fault in served.check(documents):
            there = documents[fault.model]
            path: tuple[str, ...] = ("models", fault.model)
            if fault.section in there:
                path += (fault.section, fault.key) if fault.key in there[fault.section] else (fault.section,)
            raise wrong(f"models.{fault.model}: {fault.message}", path)

    def _check_earlyoom(self) -> None:
        """Refuse a backstop above the slow line: it would shoot what the guard leaves alone.

        Percentages are read as of MemTotal, as up to version 1.7; later ones fire below that, never above.
        """
        term, kill = self.earlyoom.term_percent, self.earlyoom.kill_percent
        share_gib = self.ladder.reference_gib / 100
        if kill is not None and term is None:
            raise wrong("earlyoom.kill_percent needs earlyoom.term_percent", ("earlyoom", "kill_percent"))
        if term is None:
            return
        term_line = _Line(("earlyoom", "term_percent"), term * share_gib)
        _check_above(_Line(("ladder", "slow_enter_gib"), self.ladder.slow_enter_gib), term_line)
        if kill is not None:
            _check_above(term_line, _Line(("earlyoom", "kill_percent"), kill * share_gib))


def _check_above(upper: _Line, lower: _Line) -> None:
    if upper.gib <= lower.gib:
        raise wrong(f"{upper} must lie above {lower}", upper.path, lower.path)
