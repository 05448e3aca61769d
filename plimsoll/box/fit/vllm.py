"""vLLM: a fraction of the whole pool, or a fixed size of the KV cache; what it comes to on this box."""

from dataclasses import dataclass, replace
from typing import Any

from plimsoll.box.containers import SKIP_CHECK
from plimsoll.box.fit import context as shared
from plimsoll.box.fit import flags, vllm_flags, vllm_offload
from plimsoll.box.fit.architecture import Architecture, with_draft_layers
from plimsoll.box.fit.carrying import Wanted, carry
from plimsoll.box.fit.checkpoint import Checkpoint
from plimsoll.box.fit.context import Context, Ranks
from plimsoll.box.fit.engine_config import with_config
from plimsoll.box.fit.flags import Read
from plimsoll.box.fit.model import GIB, Amount, CannotTellError, Estimate, Item, Launch
from plimsoll.box.fit.sizes import gib
from plimsoll.box.observing import is_on

DEFAULT_UTILIZATION = 0.92
"""Of current versions; older ones take 0.90."""
DEFAULT_BATCHED_TOKENS = 8192
"""Of the server on a GPU with more than 70 GiB."""
DEFAULT_SEQUENCES = 256
_QUANTIZED_ON_LOAD = {"fp8": 2, "bitsandbytes": 4, "experts_int8": 2}
"""What a 16-bit checkpoint is divided by when it is quantized while it loads."""


@dataclass(frozen=True)
class _Asked:
    """What a command line asks for."""

    read: Read
    model: str
    utilization: float | None
    """None where it is set to something that cannot be understood."""
    fixed: int | None
    length: int | None
    sequences: int
    tokens: int
    cache_type: str
    offloaded: tuple[Item, ...] = ()
    """What is kept of the cache in the host's memory."""


def estimate(launch: Launch, context: Context) -> Estimate:
    """Return what one `vllm serve` takes."""
    words, missing = with_config(context.host, launch)
    launch = replace(launch, unknowns=(*launch.unknowns, *missing))
    read = flags.read(vllm_flags.TABLE, words, launch.environment, launch.place)
    asked = _asked(read, launch)
    ranks, assumed = _ranks(read, context)
    unknowns = [*launch.unknowns, *read.unknowns]
    offloaded = vllm_offload.items(read, launch.environment, ranks.here, unknowns)
    asked = replace(asked, offloaded=tuple(offloaded))
    if not asked.model and not read.settings:
        return Estimate(launch, unknowns=(*unknowns, "it names neither a model nor a size: nothing can be added up"))
    found = shared.attempt(lambda: context.model(launch, asked.model, revision=read.get("--revision", "")), unknowns)
    base = Estimate(
        launch, settings=tuple(read.settings), unknown_flags=tuple(read.unknown_flags), model=asked.model,
        warnings=(*assumed, *_warnings(read, launch, context)),
    )  # fmt: skip
    weights = None if found is None else _weights(found, read, ranks)
    draft, draft_unknowns = _draft(launch, read, context)
    done, held = replace(base, unknowns=(*unknowns, *draft_unknowns)), _Weights(weights, draft, ranks)
    if asked.utilization is None and asked.fixed is None:
        return replace(done, items=held.items)
    if asked.fixed is not None:
        return _fixed(done, asked, found, held, asked.fixed * ranks.here)
    return _fraction(done, asked, found, held, context.box.total)


def _ranks(read: Read, context: Context) -> tuple[Ranks, list[str]]:
    parts = read.get("--tensor-parallel-size", 1) * read.get("--pipeline-parallel-size", 1)
    replicas = read.get("--data-parallel-size-local", read.get("--data-parallel-size", 1))
    return shared.ranks_of(context.box, parts, replicas, read.get("--nnodes"), spread=True)


@dataclass(frozen=True)
class _Weights:
    main: Item | None
    draft: Item | None
    ranks: Ranks

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(each for each in (self.main, self.draft) if each is not None)

    @property
    def likely(self) -> int | None:
        return None if self.main is None else sum(each.amount.likely for each in self.items)


def _asked(read: Read, launch: Launch) -> _Asked:
    # where a part of the flags is not known, the default is none
    unsure = launch.unknowns or any(each.startswith("--gpu-memory-utilization ") for each in read.unknowns)
    utilization = read.get("--gpu-memory-utilization", None if unsure else DEFAULT_UTILIZATION)
    if any(each.startswith("--kv-cache-memory-bytes ") for each in read.unknowns):
        # whatever it is, vLLM takes it in place of the fraction
        utilization = None
    length = read.get("--max-model-len")
    return _Asked(
        read, str(read.get("--model") or next(iter(read.positional), "")), utilization,
        read.get("--kv-cache-memory-bytes"), None if length == "auto" else length,
        read.get("--max-num-seqs", DEFAULT_SEQUENCES), read.get("--max-num-batched-tokens", DEFAULT_BATCHED_TOKENS),
        read.get("--kv-cache-dtype", "auto"),
    )  # fmt: skip


def _weights(found: Checkpoint, read: Read, ranks: Ranks) -> Item:
    item = shared.exact_items(found, ranks)
    size = item.amount.likely
    by_type = found.by_type or {}
    if by_type.get("F32", 0) * 2 > found.weight_bytes and read.get("--dtype", "auto") not in ("float", "float32"):
        halved = size - ranks.share(by_type["F32"]) // 2
        return replace(item, amount=Amount(halved, halved, size), basis=f"{item.basis}; 32-bit tensors become 16-bit")
    divisor = _QUANTIZED_ON_LOAD.get(str(read.get("--quantization")), 1)
    if divisor > 1 and not (found.config or {}).get("quantization_config"):
        amount = Amount(size // divisor, size, size)
        return replace(item, amount=amount, basis=f"{item.basis}; quantized while it loads")
    return item


def _draft(launch: Launch, read: Read, context: Context) -> tuple[Item | None, list[str]]:
    """Return the line of a draft model, and what is not known of it."""
    speculative: dict[str, Any] = read.get("--speculative-config") or {}
    method, model = str(speculative.get("method") or ""), speculative.get("model")
    if not speculative:
        return None, []
    if not isinstance(model, str) or model == read.get("--model"):
        inside = ", its layers are part of the model's own files" if "mtp" in method else ""
        item = Item("draft model", Amount.exactly(0), f"method {method}{inside}")
        if "mtp" in method or method in ("ngram", "suffix"):
            return item, []
        return None, [f"speculative decoding {method or 'of an unknown method'}: what it takes is not known"]
    unknowns: list[str] = []
    found = shared.attempt(lambda: context.model(launch, model), unknowns)
    if found is None:
        return None, unknowns
    basis = f"{method or 'draft'} model {model}: {found.basis}"
    return Item("draft model", Amount.exactly(found.weight_bytes), basis), []


# --- the two ways to divide -------------------------------------------------------------------------


def _fraction(base: Estimate, asked: _Asked, found: Checkpoint | None, weights: _Weights, total: int) -> Estimate:
    """A fraction of the whole pool of `total` bytes: keys and values get what is left of it."""
    utilization = asked.utilization or 0
    budget = round(utilization * total) * weights.ranks.here
    written = "" if asked.read.get("--gpu-memory-utilization") else " (the default)"
    basis = f"{utilization:g}{written} of the whole {gib(total)}, not of what is free"
    gpu = not weights.ranks.unified
    outside = _outside(asked, shared.spike_item(weights.likely, fixed=False), gpu)
    if weights.likely is None or found is None:
        return replace(base, items=(Item("budget", Amount.exactly(budget), basis, gpu=gpu), *outside))
    peak = _peak(found.architecture, asked, weights.ranks)
    left = budget - weights.likely - peak.likely
    held = Item("keys and values", Amount.exactly(max(0, left)), f"what is left of the budget: {basis}", gpu=gpu)
    compute = Item("compute peak", Amount.exactly(min(peak.likely, max(0, budget - weights.likely))),
                   f"{_peak_basis(found, asked)}; inside of the budget", gpu=gpu)  # fmt: skip
    items = (*weights.items, held, compute, *outside)
    if left <= 0 and not gpu:
        never = (
            shared.shortfall(budget, weights.likely)
            if weights.likely > budget
            else (f"nothing is left for keys and values of a budget of {gib(budget)}: the engine gives up")
        )
        return replace(base, items=items, never=never)
    return _with_concurrency(replace(base, items=items), asked, found, weights.ranks, left)


def _fixed(base: Estimate, asked: _Asked, found: Checkpoint | None, weights: _Weights, size: int) -> Estimate:
    """A fixed size of the KV cache: the fraction is not looked at, and there is no profiling pass."""
    gpu = not weights.ranks.unified
    held = Item("keys and values", Amount.exactly(size), "--kv-cache-memory-bytes", gpu=gpu)
    outside = _outside(asked, shared.spike_item(weights.likely, fixed=True), gpu)
    if found is None:
        return replace(base, items=(*weights.items, held, *outside))
    peak = Item("compute peak", _peak(found.architecture, asked, weights.ranks), _peak_basis(found, asked), gpu=gpu)
    done = replace(base, items=(*weights.items, held, peak, *outside))
    return _with_concurrency(done, asked, found, weights.ranks, size)


def _outside(asked: _Asked, spike: Item, gpu: bool) -> tuple[Item, ...]:
    """Return what lies outside of the budget."""
    found = [Item("host side", shared.HOST_SIDE, shared.HOST_SIDE_BASIS), replace(spike, gpu=gpu)]
    if asked.read.get("--enforce-eager") is not True:
        found.append(Item("graphs", shared.GRAPHS, shared.GRAPHS_BASIS, gpu=gpu))
    found += asked.offloaded
    swap = asked.read.get("--swap-space")
    if swap:
        basis = "--swap-space, GiB; the V1 engine ignores it"
        found.append(Item("swap space", shared.at_least(round(swap * GIB)), basis))
    return tuple(found)


def _peak(architecture: Architecture, asked: _Asked, ranks: Ranks) -> Amount:
    peak = shared.compute_peak(architecture, asked.tokens, min(asked.sequences, asked.tokens), ranks.model_parts)
    return peak.times(ranks.here)


def _peak_basis(found: Checkpoint, asked: _Asked) -> str:
    return shared.compute_basis(found.architecture, asked.tokens, min(asked.sequences, asked.tokens))


def _with_concurrency(base: Estimate, asked: _Asked, found: Checkpoint, ranks: Ranks, held: int) -> Estimate:
    """Add how many requests the cache really carries."""
    architecture = found.architecture
    if architecture.unknown:
        return replace(base, warnings=(*base.warnings, f"concurrency is not known: {architecture.unknown}"))
    if "mtp" in str((asked.read.get("--speculative-config") or {}).get("method")):
        architecture = with_draft_layers(architecture)
    length = asked.length or architecture.context
    whole = asked.read.get("--disable-hybrid-kv-cache-manager") is True
    try:
        per_rank = held // max(1, ranks.here)
        wanted = Wanted(asked.cache_type, length, asked.sequences, asked.tokens, ranks.model_parts, not whole)
        carried = carry(architecture, wanted, per_rank)
    except CannotTellError as error:
        return replace(base, warnings=(*base.warnings, f"concurrency is not known: {error}"))
    if carried["full_length_requests"] == 0 and asked.read.get("--max-model-len") != "auto":
        never = f"the cache ({gib(held)}) does not hold one request of {length} tokens: the engine gives up"
        return replace(base, concurrency=carried, never=never)
    return replace(base, concurrency=carried)


# --- what is no protection --------------------------------------------------------------------------


def _warnings(read: Read, launch: Launch, context: Context) -> list[str]:
    found = []
    if is_on(launch.environment.get(SKIP_CHECK)):
        found.append(f"{SKIP_CHECK} takes away the only check before the start")
    if read.get("--kv-cache-memory-bytes") is not None and read.get("--gpu-memory-utilization") is not None:
        found.append("--gpu-memory-utilization is not looked at beside --kv-cache-memory-bytes")
    if read.get("--cpu-offload-gb") and context.box.unified:
        found.append("--cpu-offload-gb frees nothing here: both sides are the same memory")
    if read.get("--enable-lora"):
        found.append("adapters (LoRA) are not counted")
    if read.get("--enable-sleep-mode"):
        found.append("sleep and wake-up on a box with one pool of memory have stopped hosts")
    if read.get("--num-gpu-blocks-override"):
        found.append("--num-gpu-blocks-override is not followed here: it sets the cache whatever there is room for")
    if read.get("--distributed-executor-backend") == "ray":
        found.append(f"Ray ends its workers when 95 % of the box are in use ({gib(context.box.total * 95 // 100)})")
    allocator = launch.environment.get("PYTORCH_CUDA_ALLOC_CONF") or launch.environment.get("PYTORCH_ALLOC_CONF")
    if allocator:
        found.append(f"allocator {allocator}: reports contradict each other on what it does to the start; try both")
    return found
