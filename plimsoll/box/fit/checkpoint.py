"""A model's files: where they are, what they weigh, and what they say of the model. Nothing is downloaded."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box.fit import architecture, docker
from plimsoll.box.fit.architecture import Architecture
from plimsoll.box.fit.flags import UNRESOLVED
from plimsoll.box.fit.model import CannotTellError, Launch
from plimsoll.box.host import Host

GGUF_MAGIC = b"GGUF"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 << 20
"""The index of a model with 512 experts in 96 layers is some 15 MB."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_ORIGINAL = re.compile(r"consolidated.*\.safetensors")
"""Mistral's own form of the same weights, which lies beside the usual one."""
_LATER_PART = re.compile(r".*-(?!00001)[0-9]{5}-of-[0-9]{5}\.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """A model as it lies on the disk. `weight_bytes` is the sum over its tensors."""

    path: str
    kind: str
    """`safetensors`, `gguf` or `bin`."""
    weight_bytes: int
    basis: str
    architecture: Architecture
    by_type: Mapping[str, int] | None = None
    config: Mapping[str, Any] | None = None
    largest_tensor_bytes: int = 0
    expert_bytes: int = 0
    """Of these, what belongs to experts, where the names of the tensors are known."""


def load(host: Host, launch: Launch, reference: str, *, revision: str = "", wanted: str = "") -> Checkpoint:
    """Return the model that `reference` names: a path as the engine sees it, or a repository in a cache.

    `wanted` tells one GGUF of several by a part of its name. Raises CannotTellError where it cannot be had.
    """
    if not reference or UNRESOLVED.search(reference):
        raise CannotTellError(f"which model {reference or 'it is'} cannot be told: its weights are not known")
    path = locate(host, launch, reference, revision)
    try:
        return _load(path, wanted)
    except OSError as error:
        raise CannotTellError(f"{path}: {error.strerror or error}; the weights of {reference} are not known") from error


def weigh(host: Host, launch: Launch, reference: str) -> int:
    """Return the bytes of a file that is loaded as it is, such as a projector; raises CannotTellError."""
    path = outside(host, launch, reference)
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise CannotTellError(f"{reference}: {error.strerror or error}; its size is not known") from error


# --- where it is ------------------------------------------------------------------------------------


def locate(host: Host, launch: Launch, reference: str, revision: str = "") -> str:
    """Return where a model lies on this machine; raises CannotTellError."""
    direct = outside(host, launch, reference)
    if os.path.exists(direct):
        return direct
    if reference.startswith(("/", "./", "../", "~")) or not _REPOSITORY.fullmatch(reference):
        raise CannotTellError(f"{reference}: not found on this machine{_inside(launch)}: its weights are not known")
    for cache in _caches(host, launch):
        found = _snapshot(os.path.join(cache, f"models--{reference.replace('/', '--')}"), revision)
        if found:
            return found
    raise CannotTellError(
        f"{reference}: not in a model cache on this machine, so its weights are not known; "
        "download it first, or name its directory"
    )


def _inside(launch: Launch) -> str:
    return " (nor in what the container mounts)" if launch.contained else ""


def outside(host: Host, launch: Launch, path: str) -> str:
    """Return where a path that the engine sees lies on this machine: mounted, or relative to its directory."""
    if path.startswith("~/") and launch.homes:
        path = f"{launch.homes[0]}/{path[2:]}"
    full = os.path.normpath(os.path.join(launch.directory, path))
    mounted = docker.outside(full, launch.mounts)
    return host.path(full if mounted is None else mounted)


def _caches(host: Host, launch: Launch) -> Iterator[str]:
    """Yield the directories in which downloaded repositories may lie, the likeliest first."""
    environment = launch.environment
    named = [environment.get("HF_HUB_CACHE"), environment.get("HUGGINGFACE_HUB_CACHE")]
    homes = [environment.get("HF_HOME"), _below(environment.get("XDG_CACHE_HOME"), "huggingface")]
    for each in (*named, *(_below(home, "hub") for home in homes)):
        if each:
            yield outside(host, launch, each)
    for mount in launch.mounts:
        yield host.path(f"{mount.outside.rstrip('/')}/hub")
        yield host.path(mount.outside)
    for home in launch.homes:
        yield host.path(f"{home}/.cache/huggingface/hub")
        yield host.path(f"{home}/.cache/llama.cpp")


def _below(directory: str | None, name: str) -> str | None:
    return f"{directory.rstrip('/')}/{name}" if directory else None


def _snapshot(repository: str, revision: str) -> str | None:
    """Return the snapshot of a repository that would be taken, None where there is none or several could be."""
    snapshots = os.path.join(repository, "snapshots")
    try:
        names = sorted(os.listdir(snapshots))
    except OSError:
        return None
    try:
        with open(os.path.join(repository, "refs", revision or "main"), encoding="ascii", errors="replace") as file:
            chosen = file.read(64).strip()
    except OSError:
        chosen = revision
    if chosen in names:
        return os.path.join(snapshots, chosen)
    return os.path.join(snapshots, names[0]) if len(names) == 1 and not revision else None


# --- what it weighs ---------------------------------------------------------------------------------


def _load(path: str, wanted: str) -> Checkpoint:
    if os.path.isfile(path):
        return _gguf(path) if _is_gguf(path) else _single(path)
    names = sorted(os.listdir(path))
    tensors = [name for name in names if name.endswith(".safetensors") and not _ORIGINAL.fullmatch(name)]
    tensors = tensors or [name for name in names if name.endswith(".safetensors")]
    if tensors and not wanted:
        return _safetensors(path, tensors)
    models = [name for name in ggufs(path) if wanted.lower() in name.lower()]
    if models:
        return _one_gguf(path, models)
    if tensors:
        return _safetensors(path, tensors)
    old = [name for name in names if re.fullmatch(r"pytorch_model.*\.bin|.*\.pth?", name)]
    if old:
        size = sum(os.stat(os.path.join(path, name)).st_size for name in old)
        described, config = _described(path)
        return Checkpoint(path, "bin", size, f"size of {len(old)} files", described, config=config)
    raise CannotTellError(f"{path}: no weights in it (safetensors, GGUF or .bin): incomplete, or not a model")


def _is_gguf(path: str) -> bool:
    with open(path, "rb") as file:
        return path.endswith(".gguf") or file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _single(path: str) -> Checkpoint:
    if not path.endswith(".safetensors"):
        raise CannotTellError(f"{path}: neither GGUF nor safetensors, so its weights are not known")
    return _safetensors(os.path.dirname(path), [os.path.basename(path)])


def ggufs(path: str) -> list[str]:
    """Return the GGUF files of a directory and of those in it, each model's first file alone; projectors are none."""
    found = []
    for directory, directories, names in os.walk(path, followlinks=False):
        if directory[len(path) :].count("/"):
            directories.clear()
        found += [os.path.relpath(os.path.join(directory, name), path) for name in names if name.endswith(".gguf")]
    return sorted(name for name in found if not _LATER_PART.fullmatch(name) and "mmproj" not in name.lower())


def _one_gguf(path: str, names: list[str]) -> Checkpoint:
    if len(names) > 1:
        raise CannotTellError(f"{path}: {len(names)} GGUF models ({', '.join(names[:3])}, …): say which one")
    return _gguf(os.path.join(path, names[0]))


def _gguf(path: str) -> Checkpoint:
    from plimsoll.box.fit import architecture_gguf, gguf  # noqa: PLC0415  # a model has one form or the other

    header = gguf.read_all(path)
    described = architecture_gguf.read_metadata(header.metadata)
    count = len(gguf.parts(path))
    files = f"{count} files" if count > 1 else os.path.basename(path)
    experts = sum(size for name, size in header.tensors.items() if "_exps." in name)
    return Checkpoint(
        path, "gguf", header.tensor_bytes, f"sum of {header.tensor_count} tensors in the GGUF header of {files}",
        described, largest_tensor_bytes=header.largest_tensor_bytes, expert_bytes=experts,
    )  # fmt: skip


def _safetensors(path: str, names: list[str]) -> Checkpoint:
    from plimsoll.box.fit import safetensors  # noqa: PLC0415  # as above

    index = _json(os.path.join(path, INDEX))
    missing: list[str] = []
    if index is not None and isinstance(index.get("weight_map"), dict):
        listed = sorted({str(each) for each in index["weight_map"].values()})
        there = {name: os.path.exists(os.path.join(path, name)) for name in listed}
        missing = [name for name, is_there in there.items() if not is_there]
        names = [name for name, is_there in there.items() if is_there]
    if missing:
        return _from_index(path, index or {}, missing)
    header = safetensors.read_all([os.path.join(path, name) for name in names])
    described, config = _described(path)
    tensors = header.tensors or {}
    return Checkpoint(
        path, "safetensors", header.tensor_bytes, f"sum of the tensors in {len(names)} safetensors files", described,
        header.by_type, config, max(tensors.values(), default=0),
        sum(size for name, size in tensors.items() if ".experts." in name),
    )  # fmt: skip


def _from_index(path: str, index: Mapping[str, Any], missing: list[str]) -> Checkpoint:
    """Return what an index says where not all of its files are there (yet)."""
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise CannotTellError(f"{path}: {missing[0]} and {len(missing) - 1} more files are missing: weights not known")
    described, config = _described(path)
    basis = f"total_size of {INDEX}; {len(missing)} of its files are not there"
    return Checkpoint(path, "safetensors", size, basis, described, config=config)


def _described(path: str) -> tuple[Architecture, Mapping[str, Any] | None]:
    config = _json(os.path.join(path, "config.json"))
    if config is None:
        why = f"{path}: there is no config.json, so what it keeps per token is not known"
        return Architecture("model", unknown=why), None
    return architecture.read_config(config), config


def _json(path: str) -> dict[str, Any] | None:
    """Return a JSON object; None where there is no file. Raises CannotTellError for anything else."""
    if not os.path.lexists(path):
        return None
    # a FIFO of that name would never end
    if not os.path.isfile(path):
        raise CannotTellError(f"{path}: is no regular file")
    with open(path, "rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    try:
        found = json.loads(content) if len(content) <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError) as error:
        raise CannotTellError(f"{path}: is no JSON ({str(error)[:80]})") from error
    if not isinstance(found, dict):
        raise CannotTellError(f"{path}: is no JSON object, or larger than {MAX_JSON_BYTES} bytes")
    return found
