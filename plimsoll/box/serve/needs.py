"""What a model will take of this box's memory: declared, or computed from its command, or at least its weights."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from plimsoll.box import memory
from plimsoll.box.fit import unified
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.host import Host
from plimsoll.box.serve.model import Command, Compose, Model, Need, Needed, Unit

if TYPE_CHECKING:
    from plimsoll.box.fit.model import Amount, Estimate, Launch

MAX_FILES = 20_000
"""Entries of a checkpoint's directory that are looked at; the largest models have a few hundred files."""
_FORMS = (
    re.compile(r"(?!consolidated).*\.safetensors"),
    re.compile(r".*\.safetensors"),
    re.compile(r".*\.gguf"),
    re.compile(r".*\.(?:bin|pth?)"),
)
"""Of one model in several forms, an engine loads the first of these."""


@dataclass(frozen=True)
class Asked:
    """What the model's own command says of it."""

    estimates: tuple["Estimate", ...] = ()
    files: tuple[str, ...] = ()
    """The files of its weights, as paths that can be opened."""
    why_not: str = ""
    """Why there is no estimate."""


def needed(host: Host, model: Model) -> Needed:
    """Return what a model needs; raises CannotTellError where not even its weights are found."""
    declared = model.need.declared_kib is not None
    asked = Asked() if declared and model.need.weights else ask_command(host, model)
    weights_kib = _weights_kib(host, model, asked)
    return decide(model, asked, weights_kib)


def checkpoint_files(host: Host, model: Model) -> tuple[str, ...]:
    """Return the files of a model's weights, as paths of the host; empty where they are not found."""
    found = _declared_files(host, model.need) if model.need.weights else ask_command(host, model).files
    return tuple(path.removeprefix(host.root) for path in found)


# --- deciding: pure ----------------------------------------------------------------------------------------


def decide(model: Model, asked: Asked, weights_kib: int | None) -> Needed:
    """Return what is needed, by what was declared, else computed, else found on the disk; raises CannotTellError."""
    never = next((each.never for each in asked.estimates if each.never), "")
    if model.need.declared_kib is not None:
        return _declared(model.need.declared_kib, weights_kib, never)
    unknowns = [each for estimate in asked.estimates for each in estimate.unknowns]
    if asked.estimates and not unknowns:
        return _computed(asked.estimates, weights_kib, never)
    why = asked.why_not or "; ".join(unknowns)
    return _least(model, asked.estimates, weights_kib, never, why)


def _declared(declared_kib: int, weights_kib: int | None, never: str) -> Needed:
    notes: tuple[str, ...] = ()
    basis = "declared as need.gib"
    if weights_kib is not None and weights_kib > declared_kib:
        basis = f"the size of its weights, which is more than the {_gib(declared_kib)} declared as need.gib"
        notes = ("need.gib is less than the weights alone: mend it",)
    kib = max(declared_kib, weights_kib or 0)
    return Needed(kib, kib, basis, kib == declared_kib, weights_kib, never, notes)


def _computed(estimates: Sequence["Estimate"], weights_kib: int | None, never: str) -> Needed:
    kept, passing = _together(estimates)
    engines = " and ".join(dict.fromkeys(each.launch.engine for each in estimates))
    basis = f"computed from how {engines} is started; the upper end of what its start may take"
    least = weights_kib or 0
    peak_kib, steady_kib = -(-(kept + passing).high >> 10), -(-kept.likely >> 10)
    return Needed(max(peak_kib, least), max(steady_kib, least), basis, exact=True, weights_kib=weights_kib, never=never)


def _least(model: Model, estimates: Sequence["Estimate"], weights_kib: int | None, never: str, why: str) -> Needed:
    kept_kib = _together(estimates)[0].low >> 10 if estimates else 0
    kib = max(weights_kib or 0, kept_kib)
    if not kib:
        _cannot_tell(
            f"what {model.name} needs cannot be told ({why or 'its command says nothing'}), and its weights were not "
            f"found: give need.gib in {model.file}"
        )
    of_what = "the size of its weights" if weights_kib and kib == weights_kib else "what is known of it"
    notes = (f"it will take more than that: {why}", f"give need.gib in {model.file}")
    return Needed(kib, kib, f"the least it can take: {of_what}", False, weights_kib, never, notes)


def _together(estimates: Sequence["Estimate"]) -> tuple["Amount", "Amount"]:
    from plimsoll.box.fit.verdict import together  # noqa: PLC0415  # a declared need is taken without all of fit

    return together(estimates)


def _cannot_tell(why: str) -> NoReturn:
    from plimsoll.box.fit.model import CannotTellError  # noqa: PLC0415  # as above

    raise CannotTellError(why)


def _gib(kib: int) -> str:
    return f"{kib / KIB_PER_GIB:.2f} GiB"


# --- reading -----------------------------------------------------------------------------------------------


def ask_command(host: Host, model: Model) -> Asked:
    """Return what `plimsoll fit` makes of how a model is started; never raises for what it cannot tell."""
    from plimsoll.box.fit import ask, box  # noqa: PLC0415  # as above
    from plimsoll.box.fit.context import Context  # noqa: PLC0415  # as above
    from plimsoll.box.fit.model import CannotTellError  # noqa: PLC0415  # as above

    context = Context(host, box.of_host(host))
    try:
        estimates = ask.estimates(_launches(host, model), context)
    except CannotTellError as error:
        return Asked(why_not=str(error))
    files = (path for checkpoint in context.models for path in weight_files(checkpoint.path))
    return Asked(tuple(estimates), tuple(dict.fromkeys(files)))


def _launches(host: Host, model: Model) -> list["Launch"]:
    from plimsoll.box.fit import ask, starting  # noqa: PLC0415  # as above

    match model.place:
        case Unit(unit):
            return ask.launches(host, ask.Question(unit=unit))
        case Compose(file, service):
            return ask.launches(host, ask.Question(compose=(file, service)))
        case Command(argv, user, directory, environment):
            homes = tuple(dict.fromkeys((_home(host, user), *starting.homes(host))))
            around = starting.Around(model.name, None, environment, homes=homes, directory=directory)
            found = starting.launches(host, argv, around)
            return found or _cannot_tell(f"{argv[0]}: starts no model server that is known here")


def _home(host: Host, user: str) -> str:
    rows = (line.split(":") for line in (host.text_or_none("/etc/passwd") or "").splitlines())
    homes = (row[5] for row in rows if len(row) == 7 and row[0] == user)  # noqa: PLR2004  # passwd(5)
    return next(homes, "/root" if user == "root" else f"/home/{user}")


def _weights_kib(host: Host, model: Model, asked: Asked) -> int | None:
    """Return what of its weights comes into this box's memory; None where they are not found.

    Where the command says how they are divided over ranks and graphics cards, that is gone by. Otherwise a model on
    two hosts has half of them on each, and a GPU with memory of its own leaves none in the box's.
    """
    weights = [item for each in asked.estimates for item in each.items if item.name == "weights"]
    if weights and not model.need.weights:
        return sum(item.amount.likely for item in weights if not item.gpu) >> 10
    size = _size(_declared_files(host, model.need) if model.need.weights else asked.files)
    if not size:
        return None
    total = memory.parse_meminfo(host.text_or_none("/proc/meminfo") or "").get("MemTotal", 0) << 10
    return 0 if unified.of_host(host, total) is False else (size >> 10) // (2 if model.cluster else 1)


def _declared_files(host: Host, need: Need) -> Iterator[str]:
    """Yield the files of the declared weights; raises CannotTellError where one of the paths has none."""
    for path in need.weights:
        found = weight_files(host.path(path))
        if not found:
            _cannot_tell(f"need.weights: {path}: no weights there (safetensors, GGUF or .bin)")
        yield from found


def weight_files(path: str) -> list[str]:
    """Return the files of the weights at a path that can be opened: of a directory, those of one form."""
    if os.path.isfile(path):
        from plimsoll.box.fit import gguf  # noqa: PLC0415  # only a single file may have other parts

        return [part for part in gguf.parts(path) if os.path.isfile(part)]
    files = sorted(_below(path))
    for form in _FORMS:
        found = [each for each in files if form.fullmatch(os.path.basename(each))]
        if found:
            return found
    return []


def _below(directory: str) -> Iterator[str]:
    seen = 0
    for base, _directories, names in os.walk(directory):
        seen += len(names)
        if seen > MAX_FILES:
            return
        yield from (os.path.join(base, name) for name in names)


def _size(files: Iterable[str]) -> int:
    """Return the bytes of files; one that is named by several links counts once."""
    sizes = {}
    for path in files:
        try:
            found = os.stat(path)
        except OSError:
            continue
        sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())
