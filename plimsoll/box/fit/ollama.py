"""Ollama: a server without a model of its own; it loads what requests name, several at a time."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.box.fit import flags, gguf, kv, llama
from plimsoll.box.fit.architecture_gguf import read_metadata
from plimsoll.box.fit.checkpoint import Checkpoint, outside
from plimsoll.box.fit.context import Context
from plimsoll.box.fit.flags import Flag, Read, Table
from plimsoll.box.fit.model import NOTHING, Amount, CannotTellError, Estimate, Item, Launch, total
from plimsoll.box.host import Host

DEFAULT_LOADED = 3
"""Models at a time, for each GPU."""
DEFAULT_CONTEXT = (4096, 262144)
"""Older versions take the first; later ones up to the second where a GPU has 48 GiB."""
MAX_MANIFESTS = 2000
MAX_MANIFEST_BYTES = 1 << 20
_MODEL = "application/vnd.ollama.image.model"
_PARAMETERS = "application/vnd.ollama.image.params"
_DIRECTORIES = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama/models")


def _variable(name: str, unit: str, read: Callable[[str], object]) -> Flag:
    return Flag(name, unit, read, variable=name)


TABLE = Table(
    (
        _variable("OLLAMA_CONTEXT_LENGTH", "tokens", flags.count),
        _variable("OLLAMA_NUM_PARALLEL", "requests for each model", flags.count),
        _variable("OLLAMA_MAX_LOADED_MODELS", "models", flags.count),
        _variable("OLLAMA_KV_CACHE_TYPE", "type of the cache", flags.word),
        _variable("OLLAMA_FLASH_ATTENTION", "switch", flags.word),
        _variable("OLLAMA_GPU_OVERHEAD", "bytes left alone", flags.count),
        _variable("OLLAMA_KEEP_ALIVE", "time", flags.word),
        _variable("OLLAMA_MODELS", "directory", flags.word),
        _variable("OLLAMA_MAX_QUEUE", "requests", flags.count),
        _variable("OLLAMA_SCHED_SPREAD", "switch", flags.word),
        _variable("OLLAMA_LOAD_TIMEOUT", "time", flags.word),
    ),
    frozenset(),
    frozenset(),
)


def estimate(launch: Launch, context: Context) -> Estimate:
    """Return what `ollama serve` may come to hold: the largest of its models, up to as many as it loads."""
    read = flags.read(TABLE, (), launch.environment, launch.place)
    base = Estimate(
        launch, settings=tuple(read.settings),
        warnings=("it is the requests that choose models; Ollama was seen to count swap as free memory",),
    )  # fmt: skip
    unknowns = [*launch.unknowns, *read.unknowns]
    models = sorted(_models(context.host, launch, read), key=lambda each: -each.size)
    if not models:
        unknowns.append("which models it will load cannot be told: it names none, and none were found on this machine")
        return replace(base, unknowns=tuple(unknowns))
    most = read.get("OLLAMA_MAX_LOADED_MODELS") or DEFAULT_LOADED
    largest = _one(models[0], read, unknowns)
    others = total(Amount.exactly(each.size) for each in models[1:most])
    items = [*largest, Item("process", llama.PROCESS, llama.PROCESS_BASIS)]
    if others != NOTHING:
        basis = f"weights of the {min(most, len(models)) - 1} next largest: OLLAMA_MAX_LOADED_MODELS is {most}"
        items.insert(1, Item("further models", Amount(0, 0, others.high), basis))
    return replace(base, items=tuple(items), unknowns=tuple(unknowns), model=models[0].name)


@dataclass(frozen=True)
class _Model:
    name: str
    path: str
    size: int
    context: int | None
    """Its own num_ctx, which goes before the server's."""


def _models(host: Host, launch: Launch, read: Read) -> Iterator[_Model]:
    """Yield the models that were pulled."""
    named = read.get("OLLAMA_MODELS")
    candidates = [outside(host, launch, str(named))] if named else []
    candidates += [outside(host, launch, "/root/.ollama/models")] if launch.contained else []
    candidates += [host.path(each) for each in (*_DIRECTORIES, *(f"{home}/.ollama/models" for home in launch.homes))]
    root = next((each for each in candidates if os.path.isdir(os.path.join(each, "manifests"))), None)
    if root is None:
        return
    looked_at = 0
    for directory, _directories, names in os.walk(os.path.join(root, "manifests")):
        for name in names:
            looked_at += 1
            if looked_at > MAX_MANIFESTS:
                return
            found = _manifest(root, os.path.join(directory, name))
            if found is not None:
                yield found


def _manifest(root: str, path: str) -> _Model | None:
    """Return the model of a manifest, None for one that is none."""
    document = _json(path)
    layers = document.get("layers")
    blobs = {
        str(each.get("mediaType")): os.path.join(root, "blobs", str(each.get("digest")).replace(":", "-"))
        for each in (layers if isinstance(layers, list) else ())
        if isinstance(each, dict)
    }
    blob = blobs.get(_MODEL, "")
    if not os.path.isfile(blob):
        return None
    context = _json(blobs.get(_PARAMETERS, "")).get("num_ctx")
    name = ":".join(path.split("/")[-2:])
    return _Model(name, blob, os.stat(blob).st_size, context if isinstance(context, int) and context > 0 else None)


def _json(path: str) -> dict[str, Any]:
    """Return a JSON object, empty for anything else."""
    # a FIFO of that name would never end
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _one(found: _Model, read: Read, unknowns: list[str]) -> list[Item]:
    try:
        header = gguf.read(found.path)
    except (CannotTellError, OSError) as error:
        unknowns.append(f"{found.name}: {error}")
        return []
    described = read_metadata(header.metadata)
    basis = f"sum of {header.tensor_count} tensors of {found.name}, the largest model here"
    checkpoint = Checkpoint(found.path, "gguf", header.tensor_bytes, basis, described)
    asked = found.context or read.get("OLLAMA_CONTEXT_LENGTH")
    slots = read.get("OLLAMA_NUM_PARALLEL") or 1
    short, long = (asked, asked) if asked else DEFAULT_CONTEXT
    long = min(long, described.context or long)
    computed = [_computed(checkpoint, read, length * slots, slots, unknowns) for length in (short, long)]
    items = [Item("weights", Amount.exactly(header.tensor_bytes), basis)]
    for low, high in zip(*computed, strict=False):
        band = Amount(low.amount.low, high.amount.likely, high.amount.high)
        items.append(replace(high, amount=band))
    return items


def _computed(found: Checkpoint, read: Read, tokens: int, slots: int, unknowns: list[str]) -> list[Item]:
    kind = str(read.get("OLLAMA_KV_CACHE_TYPE") or llama.DEFAULT_TYPE)
    asked = llama.Sizes(
        kv.padded(tokens), llama.DEFAULT_UBATCH, llama.DEFAULT_UBATCH, slots, False, (kind, kind), False, True
    )
    return llama.computed(found, asked, unknowns)
