"""Bytes of keys, values and states, from an architecture and what its engine makes of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.box.fit.architecture import Architecture, Cache
from plimsoll.box.fit.ggml_types import TYPES
from plimsoll.box.fit.model import CannotTellError

BITS: Mapping[str, int] = {
    "auto": 16, "half": 16, "float16": 16, "fp16": 16, "bfloat16": 16, "bf16": 16, "float": 32, "float32": 32,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "int8": 8, "fp8_ds_mla": 8,
}  # fmt: skip
"""What vLLM and SGLang call an element of the cache, and its bits; what has a scale for each block is not here."""
_SPARSE_LATENT_BYTES = 656
"""fp8_ds_mla: 512 elements in 8 bits, 4 scales in 32, and 64 elements of position in 16."""
_SPARSE_LATENT = 576
_GGML = {name.lower(): (block, size) for name, block, size in TYPES.values()}
CELL_PADDING = 256
"""llama.cpp rounds the cells of a cache up to this."""


@dataclass(frozen=True)
class Sequences:
    """How much is to be kept: `tokens` over all sequences, of which there are `count`; `batch` arrive in one go."""

    tokens: int
    count: int
    batch: int
    window_is_kept: bool = True
    """Whether layers that look back through a window keep no more than that."""


# --- vLLM and SGLang --------------------------------------------------------------------------------


def token_bytes(architecture: Architecture, kind: str, ranks: int = 1) -> int:
    """Return what a token costs on one of `ranks` ranks in layers that see all; raises CannotTellError."""
    return sum(_token(each, kind, ranks, architecture) for each in architecture.caches if not each.window) + (
        architecture.index_bytes
    )


def window_token_bytes(architecture: Architecture, kind: str, ranks: int = 1) -> int:
    """Return the same for layers that look back through a window."""
    return sum(_token(each, kind, ranks, architecture) for each in architecture.caches if each.window)


def _token(cache: Cache, kind: str, ranks: int, architecture: Architecture) -> int:
    bits = BITS.get(kind)
    if bits is None:
        raise CannotTellError(f"how large an element of the type {kind} is in the cache is not known here")
    if (
        cache.latent
        and cache.key == _SPARSE_LATENT
        and architecture.fp8_cache
        and kind in ("auto", "fp8_ds_mla", "fp8")
    ):
        return cache.layers * _SPARSE_LATENT_BYTES
    heads = cache.heads if cache.latent else -(-cache.heads // ranks)
    return cache.layers * heads * (cache.key + cache.value) * bits // 8


def state_bytes(architecture: Architecture, element: int, ranks: int = 1) -> int:
    """Return what the states of one sequence take on one rank; `element` are the bytes of the recurrent part."""
    return sum(each.layers * (each.convolution * 2 + each.recurrent * element) // ranks for each in architecture.states)


def bytes_of(architecture: Architecture, kind: str, kept: Sequences, ranks: int = 1) -> int:
    """Return what all of it takes on one rank; raises CannotTellError for an unknown type."""
    found = token_bytes(architecture, kind, ranks) * kept.tokens
    for cache in (each for each in architecture.caches if each.window):
        each_keeps = kept.tokens // max(1, kept.count)
        if kept.window_is_kept:
            each_keeps = min(each_keeps, cache.window + kept.batch)
        found += _token(cache, kind, ranks, architecture) * each_keeps * kept.count
    return found + state_bytes(architecture, architecture.state_bytes, ranks) * kept.count


# --- llama.cpp and Ollama ---------------------------------------------------------------------------


def padded(cells: int) -> int:
    """Return a number of cells rounded up as llama.cpp does."""
    return -(-cells // CELL_PADDING) * CELL_PADDING


def ggml_row_bytes(kind: str, elements: int) -> int:
    """Return the bytes of a row of a type of llama.cpp; raises CannotTellError for one that it would refuse."""
    if kind.lower() not in _GGML:
        raise CannotTellError(f"the cache type {kind} is not known here")
    block, size = _GGML[kind.lower()]
    if elements % block:
        raise CannotTellError(f"a row of {elements} elements is no whole number of blocks of {block} ({kind})")
    return elements // block * size


def llama_bytes(architecture: Architecture, kinds: tuple[str, str], kept: Sequences, *, one_pool: bool = False) -> int:
    """Return what llama.cpp allocates for keys, values and states; `kinds` are the types of both.

    `kept.tokens` is the whole context, which the sequences share: by parts, or as `one_pool`.
    """
    streams = 1 if one_pool else max(1, kept.count)
    cells_each = padded(-(-kept.tokens // streams))
    found = 0
    for cache in architecture.caches:
        cells = cells_each
        if cache.window and kept.window_is_kept:
            windows = cache.window * (kept.count if one_pool else 1)
            cells = min(cells, padded(windows + kept.batch))
        key = ggml_row_bytes(kinds[0], cache.heads * cache.key)
        value = ggml_row_bytes(kinds[1], cache.heads * cache.value)
        found += cache.layers * (key + value) * cells * streams
    states = sum(each.layers * (each.convolution + each.recurrent) * 4 for each in architecture.states)
    return found + states * max(1, kept.count)
