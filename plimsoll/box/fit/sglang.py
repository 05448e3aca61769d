"""SGLang: a static fraction for weights and cache, and a second cache on the host for each rank."""

from dataclasses import dataclass, replace

from plimsoll.box.fit import context as shared
from plimsoll.box.fit import flags, kv, sglang_flags
from plimsoll.box.fit.carrying import Wanted, carry
from plimsoll.box.fit.checkpoint import Checkpoint
from plimsoll.box.fit.context import Context, Ranks
from plimsoll.box.fit.engine_config import with_config
from plimsoll.box.fit.flags import Read
from plimsoll.box.fit.model import GIB, MIB, Amount, CannotTellError, Estimate, Item, Launch
from plimsoll.box.fit.sizes import gib

GB = 10**9
DEFAULT_PREFILL = 8192
DEFAULT_GRAPH_SEQUENCES = 256
"""Both of a GPU with 60 to 160 GiB."""
DEFAULT_HICACHE_RATIO = 2.0
HICACHE_RESERVE = 10 * GIB
DEFAULT_HICACHE_FRACTION = 0.8
"""Of what is free after a reserve of 10 GiB; current versions (0.5.23) cut the default ratio down to that."""
SAFE_FRACTION = 0.5
"""Above this the static fraction was reported to have taken a GB10 to zero (one operator's kit)."""


@dataclass(frozen=True)
class _Static:
    fraction: float | None
    basis: str
    size: int
    """Bytes on all ranks here."""


def estimate(launch: Launch, context: Context) -> Estimate:
    """Return what one SGLang server takes."""
    words, missing = with_config(context.host, launch)
    read = flags.read(sglang_flags.TABLE, words, launch.environment, launch.place)
    launch = replace(launch, unknowns=(*launch.unknowns, *missing, *_refused(read)))
    parts = read.get("--tp-size", 1) * read.get("--pp-size", 1)
    replicas = 1 if read.get("--enable-dp-attention") else read.get("--dp-size", 1)
    ranks, assumed = shared.ranks_of(context.box, parts, replicas, read.get("--nnodes"), spread=False)
    unknowns = [*launch.unknowns, *read.unknowns]
    model = str(read.get("--model-path") or "")
    if not model and not read.settings:
        return Estimate(launch, unknowns=(*unknowns, "it names neither a model nor a size: nothing can be added up"))
    found = shared.attempt(lambda: context.model(launch, model, revision=read.get("--revision", "")), unknowns)
    static = _static(read, context, ranks, unsure=bool(launch.unknowns))
    weights = None if found is None else shared.exact_items(found, ranks)
    draft = _draft(launch, read, context, ranks, unknowns)
    base = Estimate(
        launch, settings=tuple(read.settings), unknown_flags=tuple(read.unknown_flags), model=model,
        warnings=(*assumed, *_warnings(read, context, static)),
    )  # fmt: skip
    items = [*_held(static, weights, ranks), *draft, *_outside(read, found, weights, ranks)]
    cache = _cache_bytes(read, static, weights, found)
    items += _hierarchical(read, context, ranks, cache, unknowns)
    done = replace(base, items=tuple(items), unknowns=tuple(unknowns))
    if weights is not None and static.size and weights.amount.likely >= static.size and ranks.unified:
        return replace(done, never=shared.shortfall(static.size, weights.amount.likely))
    return _with_concurrency(done, read, found, ranks, cache)


def _refused(read: Read) -> list[str]:
    """Return the flags that SGLang's parser does not take, which it would with `-` in place of `_`."""
    known = sglang_flags.TABLE
    names = {each.name for each in known.flags} | known.switches | known.values | known.lists
    return [
        f"{flag}: SGLang takes no _ in a flag and refuses to start: write {flag.replace('_', '-')}"
        for flag in read.unknown_flags
        if "_" in flag and flag.replace("_", "-") in names
    ]


def _static(read: Read, context: Context, ranks: Ranks, *, unsure: bool) -> _Static:
    fraction = read.get("--mem-fraction-static")
    if fraction is None and (unsure or any(each.startswith("--mem-fraction-static ") for each in read.unknowns)):
        return _Static(None, "", 0)
    fraction, written = read.get("--mem-fraction-static"), ""
    if fraction is None:
        fraction, written = default_fraction(read, context.box.total, ranks), " (its own default here)"
    basis = f"{fraction:g}{written} of {gib(context.box.total)}: weights and cache; of what is free before loading"
    return _Static(fraction, basis, round(fraction * context.box.total) * ranks.here)


def default_fraction(read: Read, total: int, ranks: Ranks) -> float:
    """Return the fraction that SGLang chooses itself for a GPU with `total` bytes."""
    tokens = max(read.get("--chunked-prefill-size", DEFAULT_PREFILL), 2048)
    graphs = read.get("--cuda-graph-max-bs", DEFAULT_GRAPH_SEQUENCES)
    reserved = (
        512 + tokens * 1.5 + ranks.model_parts / 8 * 1024 + (0 if read.get("--disable-cuda-graph") else graphs * 2)
    )
    return float(round(1 - max(reserved, 10 * 1024) * MIB / total, 3))


def _held(static: _Static, weights: Item | None, ranks: Ranks) -> list[Item]:
    gpu = not ranks.unified
    if static.fraction is None:
        return [] if weights is None else [weights]
    if weights is None:
        return [Item("static memory", Amount.exactly(static.size), static.basis, gpu=gpu)]
    left = max(0, static.size - weights.amount.likely)
    return [weights, Item("keys and values", Amount.exactly(left), f"what is left of {static.basis}", gpu=gpu)]


def _cache_bytes(read: Read, static: _Static, weights: Item | None, found: Checkpoint | None) -> int | None:
    """Return the bytes of the cache on all ranks here; None where they cannot be told."""
    if weights is None or static.fraction is None:
        return None
    left = max(0, static.size - weights.amount.likely)
    most = read.get("--max-total-tokens")
    if most and found is not None and not found.architecture.unknown:
        try:
            left = min(left, most * kv.token_bytes(found.architecture, read.get("--kv-cache-dtype", "auto")))
        except CannotTellError:
            return None
    return left


def _outside(read: Read, found: Checkpoint | None, weights: Item | None, ranks: Ranks) -> list[Item]:
    gpu = not ranks.unified
    items = [Item("host side", shared.HOST_SIDE, shared.HOST_SIDE_BASIS)]
    size = None if weights is None else weights.amount.likely
    items.append(replace(shared.spike_item(size, fixed=False), gpu=gpu))
    if not read.get("--disable-cuda-graph"):
        items.append(Item("graphs", shared.GRAPHS, shared.GRAPHS_BASIS, gpu=gpu))
    if found is not None:
        tokens = read.get("--chunked-prefill-size", DEFAULT_PREFILL)
        tokens = tokens if tokens > 0 else read.get("--max-prefill-tokens", 16384)
        sequences = read.get("--max-running-requests", DEFAULT_GRAPH_SEQUENCES)
        peak = shared.compute_peak(found.architecture, tokens, sequences, ranks.model_parts).times(ranks.here)
        basis = f"{shared.compute_basis(found.architecture, tokens, sequences)}; outside of the fraction"
        items.append(Item("compute peak", peak, basis, gpu=gpu))
    return items


def _draft(launch: Launch, read: Read, context: Context, ranks: Ranks, unknowns: list[str]) -> list[Item]:
    """Return the line of a draft model, which is loaded outside of the static fraction."""
    method, model = read.get("--speculative-algorithm"), read.get("--speculative-draft-model-path")
    if method is None and model is None:
        return []
    if model is None:
        if str(method).upper() in ("NGRAM", "LOOKAHEAD"):
            return [Item("draft model", Amount.exactly(0), f"method {method}: no model")]
        return [
            Item("draft model", Amount.exactly(0), f"method {method}: its layers are part of the model's own files")
        ]
    found = shared.attempt(lambda: context.model(launch, model), unknowns)
    return (
        []
        if found is None
        else [replace(shared.exact_items(found, ranks, "draft model"), basis=f"{method} model {model}: {found.basis}")]
    )


def _hierarchical(read: Read, context: Context, ranks: Ranks, cache: int | None, unknowns: list[str]) -> list[Item]:
    """Return the second cache on the host. Every rank allocates the whole of --hicache-size for itself."""
    size, ratio = read.get("--hicache-size"), read.get("--hicache-ratio")
    if not read.get("--enable-hierarchical-cache"):
        return []
    if size:
        each = round(size * GB)
        basis = f"--hicache-size {size:g} GB for each of {ranks.here} ranks here, not for all of them together"
        return [Item("hierarchical cache", Amount.exactly(each * ranks.here), basis)]
    if cache is None:
        unknowns.append("--hicache-ratio is a multiple of the cache on the GPU, which is not known")
        return []
    wanted = round(cache * (DEFAULT_HICACHE_RATIO if ratio is None else ratio))
    if ratio is not None:
        basis = f"--hicache-ratio {ratio:g} times the cache on the GPU ({gib(cache)}), on each rank"
        return [Item("hierarchical cache", Amount.exactly(wanted), basis)]
    share = read.get("--hicache-host-memory-fraction", DEFAULT_HICACHE_FRACTION)
    free = context.box.empty if context.box.available is None else context.box.available
    most = max(0, round((free - HICACHE_RESERVE) * share))
    basis = f"twice the cache on the GPU ({gib(cache)}); current versions stop at {share:g} of what is free"
    return [Item("hierarchical cache", Amount(0, min(wanted, most), wanted), basis)]


def _with_concurrency(
    base: Estimate, read: Read, found: Checkpoint | None, ranks: Ranks, cache: int | None
) -> Estimate:
    asked = read.get("--max-running-requests")
    most = read.get("--max-total-tokens")
    if found is None or found.architecture.unknown or cache is None:
        carried: dict[str, int | str | None] = {"asked": asked, "kv_tokens": most}
        if most and asked:
            carried["tokens_each"] = most // asked
        return replace(base, concurrency=carried if most or asked else {})
    length = read.get("--context-length") or found.architecture.context
    kind = read.get("--kv-cache-dtype", "auto")
    wanted = Wanted(kind, length, asked or DEFAULT_GRAPH_SEQUENCES, DEFAULT_PREFILL, ranks.model_parts)
    try:
        return replace(base, concurrency=carry(found.architecture, wanted, cache // ranks.here))
    except CannotTellError as error:
        return replace(base, warnings=(*base.warnings, f"concurrency is not known: {error}"))


def _warnings(read: Read, context: Context, static: _Static) -> list[str]:
    found = []
    size = read.get("--hicache-size")
    if size and not float(size).is_integer():
        found.append(f"--hicache-size {size:g}: SGLang takes whole GB alone, so write {int(size)}")
    if (size or read.get("--hicache-ratio")) and not read.get("--enable-hierarchical-cache"):
        found.append("--hicache-size and --hicache-ratio do nothing without --enable-hierarchical-cache")
    if size and read.get("--hicache-ratio"):
        found.append("--hicache-ratio is not looked at beside --hicache-size")
    if context.box.unified and (static.fraction or 0) > SAFE_FRACTION:
        found.append(f"a static fraction above {SAFE_FRACTION:g} was reported to take a GB10 down to nothing")
    if read.get("--cpu-offload-gb") and context.box.unified:
        found.append("--cpu-offload-gb frees nothing here: both sides are the same memory")
    if read.get("--enable-lora"):
        found.append("adapters (LoRA) are not counted")
    return found
