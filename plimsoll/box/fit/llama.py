"""llama.cpp: weights, a cache for the whole context, and the compute graph of one micro-batch."""

import re
from dataclasses import dataclass, replace

from plimsoll.box.fit import checkpoint, flags, kv, llama_flags
from plimsoll.box.fit import context as shared
from plimsoll.box.fit.architecture import Architecture
from plimsoll.box.fit.checkpoint import Checkpoint
from plimsoll.box.fit.context import Context
from plimsoll.box.fit.flags import Read
from plimsoll.box.fit.model import GIB, MIB, Amount, CannotTellError, Estimate, Item, Launch
from plimsoll.box.fit.sizes import gib

DEFAULT_BATCH = 2048
DEFAULT_UBATCH = 512
DEFAULT_SLOTS = 4
DEFAULT_CACHE_RAM_MIB = 8192
DEFAULT_CHECKPOINTS = 32
CHECKPOINT_STEP = 8192
"""Tokens between two checkpoints of a slot."""
DEFAULT_TYPE = "f16"
PROCESS = Amount(256 * MIB, 768 * MIB, 2 * GIB)
PROCESS_BASIS = "the program, its CUDA context and pools; usual figures, not computed"
GRAPH_BAND = (0.4, 1.8)
"""Small models were logged at half of it, as tensors share their memory; the field report lies at the upper end."""
MASK_BYTES = 6
"""Of an element of the attention mask: once in 32 bits and once in 16."""
GRAPH_BUFFERS = 4
"""How many tensors of a step live at the same time, in 32 bits."""
STATE_CHUNK = 64
"""Tokens for which a linear attention computes one state."""


@dataclass(frozen=True)
class Sizes:
    """What a server of llama.cpp is told about its context."""

    context: int
    batch: int
    ubatch: int
    slots: int
    one_pool: bool
    kinds: tuple[str, str]
    whole_window: bool
    flash: bool


def estimate(launch: Launch, context: Context) -> Estimate:
    """Return what one llama-server takes."""
    read = flags.read(llama_flags.TABLE, launch.arguments, launch.environment, launch.place)
    unknowns = [*launch.unknowns, *read.unknowns]
    base = Estimate(
        launch, settings=tuple(read.settings), unknown_flags=tuple(read.unknown_flags), model=_named(read),
        warnings=tuple(_warnings(read)),
    )  # fmt: skip
    found = shared.attempt(lambda: model(launch, read, context), unknowns)
    if found is None:
        return replace(base, unknowns=tuple(unknowns))
    asked = sizes_of(read, found.architecture)
    items = [shared.exact_items(found, shared.Ranks(1, 1, unified=context.box.unified is not False))]
    items += _projector(launch, read, context, unknowns)
    items += _draft(launch, read, context, asked, unknowns)
    process = Item("process", PROCESS, PROCESS_BASIS)
    if launch.unknowns and not (read.get("--ctx-size") or read.get("--kv-unified-per-slot")):
        unknowns.append("how long the context is (-c): it may be in what is not known of the command")
        return replace(base, items=(*items, process), unknowns=tuple(unknowns))
    items += computed(found, asked, unknowns)
    items += _kept_prompts(read, found.architecture, asked)
    done = replace(base, items=(*items, process), unknowns=tuple(unknowns))
    return replace(done, concurrency=carried(asked), warnings=(*done.warnings, *_on_context(read, asked)))


def carried(asked: Sizes) -> dict[str, int | str | None]:
    """Return how many requests the slots carry, and how long each may be."""
    each = asked.context if asked.one_pool else asked.context // max(1, asked.slots)
    return {
        "asked": asked.slots,
        "context": each,
        "kv_tokens": asked.context,
        "full_length_requests": asked.context // each if each else 0,
        "tokens_each": asked.context // max(1, asked.slots),
    }


def _named(read: Read) -> str:
    names = ("--model", "--hf-repo", "--model-url", "--docker-repo", "--models-preset", "--models-dir")
    return next((str(read.get(name)) for name in names if read.get(name)), "")


def model(launch: Launch, read: Read, context: Context, kind: str = "") -> Checkpoint:
    """Return the files of the model, or of its draft (`-draft`); raises CannotTellError."""
    path, repository = read.get(f"--model{kind}"), read.get(f"--hf-repo{kind}")
    if path:
        return context.model(launch, str(path))
    if not repository:
        raise CannotTellError("the command names no model (-m or -hf): what it loads is not known")
    name, _, quantization = str(repository).partition(":")
    wanted = "" if kind else str(read.get("--hf-file") or "")
    return context.model(launch, name, wanted=wanted.removesuffix(".gguf") or quantization or "Q4_K_M")


def sizes_of(read: Read, architecture: Architecture) -> Sizes:
    """Return the sizes that are asked for, with the server's own defaults."""
    slots = read.get("--parallel", -1)
    asked_slots = slots if slots > 0 else DEFAULT_SLOTS
    pool = slots <= 0 if read.get("--kv-unified") is None else bool(read.get("--kv-unified"))
    per_slot = read.get("--kv-unified-per-slot")
    tokens = read.get("--ctx-size") or (per_slot * asked_slots if per_slot else 0) or architecture.context
    batch = read.get("--batch-size", DEFAULT_BATCH)
    return Sizes(
        context=kv.padded(tokens),
        batch=batch,
        ubatch=min(read.get("--ubatch-size", DEFAULT_UBATCH), batch),
        slots=asked_slots,
        one_pool=(pool or bool(per_slot)) and not read.get("--no-kv-unified"),
        kinds=(str(read.get("--cache-type-k", DEFAULT_TYPE)), str(read.get("--cache-type-v", DEFAULT_TYPE))),
        whole_window=bool(read.get("--swa-full")),
        flash=str(read.get("--flash-attn", "auto")).lower() not in ("off", "0", "false", "disabled"),
    )


# --- what is computed -------------------------------------------------------------------------------


def computed(found: Checkpoint, asked: Sizes, unknowns: list[str]) -> list[Item]:
    """Return the cache and the compute graph; what cannot be told is added to `unknowns`."""
    architecture = found.architecture
    if architecture.unknown:
        unknowns.append(architecture.unknown)
        return []
    if not asked.context:
        unknowns.append("neither the command nor the file says how long the context is (-c)")
        return []
    try:
        held = Item("keys and values", cache(architecture, asked), cache_basis(architecture, asked))
    except CannotTellError as error:
        unknowns.append(str(error))
        return []
    return [held, Item("compute peak", graph(architecture, asked), graph_basis(architecture, asked))]


def cache(architecture: Architecture, asked: Sizes) -> Amount:
    """Return the cache of the whole context; raises CannotTellError for types that llama.cpp would refuse."""
    kept = kv.Sequences(asked.context, asked.slots, asked.ubatch, not asked.whole_window)
    size = kv.llama_bytes(architecture, asked.kinds, kept, one_pool=asked.one_pool)
    if not any(each.latent for each in architecture.caches):
        return Amount.exactly(size)
    # Older builds keep the values of a latent a second time.
    return Amount(size, size, size * 2)


def cache_basis(architecture: Architecture, asked: Sizes) -> str:
    """Say what the cache was computed from."""
    layers = sum(each.layers for each in architecture.caches)
    looking_back = sum(each.layers for each in architecture.caches if each.window)
    window = f", {looking_back} of them with a window" if looking_back else ""
    states = sum(each.layers for each in architecture.states)
    with_state = f", and the states of {states} layers for {asked.slots} slots" if states else ""
    return f"{asked.context} tokens in {layers} layers{window}, {'/'.join(asked.kinds)}{with_state}"


def graph(architecture: Architecture, asked: Sizes) -> Amount:
    """Return the compute graph of one micro-batch against the full context, with its band."""
    tokens = asked.ubatch
    logits = 4 * architecture.vocabulary * tokens
    mask = MASK_BYTES * asked.context * tokens
    routed = architecture.experts_used * (2 * architecture.expert_feed_forward + architecture.hidden)
    step = 4 * tokens * GRAPH_BUFFERS * (architecture.hidden + max(architecture.feed_forward, routed))
    scores = 0 if asked.flash else 4 * architecture.heads * asked.context * tokens
    states = max((4 * tokens * each.recurrent // STATE_CHUNK for each in architecture.states), default=0)
    likely = logits + mask + step + scores + states
    return Amount(round(likely * GRAPH_BAND[0]), likely, round(likely * GRAPH_BAND[1]))


def graph_basis(architecture: Architecture, asked: Sizes) -> str:
    """Say what the graph was computed from."""
    experts = f", {architecture.experts_used} of {architecture.experts} experts" if architecture.experts else ""
    scores = "" if asked.flash else ", attention scores (flash attention is off)"
    low, high = GRAPH_BAND
    return (
        f"graph of {asked.ubatch} tokens against {asked.context}{experts}: mask, logits, activations{scores}; an "
        f"estimate, between {low:g} and {high:g} times that (a figure without the graph was 9 GiB too low)"
    )


def _kept_prompts(read: Read, architecture: Architecture, asked: Sizes) -> list[Item]:
    """Return what the server keeps of prompts in ordinary memory: it grows with use."""
    limit = read.get("--cache-ram", DEFAULT_CACHE_RAM_MIB)
    items = []
    if limit < 0:
        without_limit = Amount(0, DEFAULT_CACHE_RAM_MIB * MIB, 1 << 40)
        items.append(Item("prompt cache", without_limit, "--cache-ram -1: without a limit"))
    elif limit:
        written = "" if read.get("--cache-ram") is not None else "the default, "
        basis = f"--cache-ram {limit} MiB ({written}fills with use; older builds have none)"
        items.append(Item("prompt cache", Amount(0, limit * MIB, limit * MIB), basis))
    state = sum(each.layers * (each.convolution + each.recurrent) * 4 for each in architecture.states)
    most = read.get("--ctx-checkpoints", DEFAULT_CHECKPOINTS)
    count = min(most, asked.context // max(1, asked.slots) // CHECKPOINT_STEP) * asked.slots
    if state and count > 0:
        basis = f"{count} checkpoints of the states ({gib(state)} each), at most"
        items.append(Item("context checkpoints", Amount(0, 0, state * count), basis))
    return items


def _projector(launch: Launch, read: Read, context: Context, unknowns: list[str]) -> list[Item]:
    path = read.get("--mmproj")
    if not path:
        return []
    try:
        size = checkpoint.weigh(context.host, launch, str(path))
    except CannotTellError as error:
        unknowns.append(str(error))
        return []
    return [Item("projector", Amount.exactly(size), f"size of {path}")]


def _draft(launch: Launch, read: Read, context: Context, asked: Sizes, unknowns: list[str]) -> list[Item]:
    """Return the lines of a draft model: it has a cache and a graph of its own."""
    if not read.get("--model-draft") and not read.get("--hf-repo-draft"):
        method = str(read.get("--spec-type") or "none")
        if method == "none" or not re.search("draft|eagle|mtp", method):
            return []
        basis = f"--spec-type {method} without a draft model: its layers are part of the model's own file"
        return [Item("draft model", Amount.exactly(0), basis)]
    found = shared.attempt(lambda: model(launch, read, context, "-draft"), unknowns)
    if found is None:
        return []
    kinds = (str(read.get("--cache-type-k-draft", DEFAULT_TYPE)), str(read.get("--cache-type-v-draft", DEFAULT_TYPE)))
    own = replace(asked, context=kv.padded(read.get("--ctx-size-draft") or asked.context), kinds=kinds)
    parts = [each.amount for each in computed(found, own, unknowns)]
    size = sum(parts, Amount.exactly(found.weight_bytes))
    return [Item("draft model", size, f"{found.basis}; its own cache and graph for {own.context} tokens")]


# --- what to say ------------------------------------------------------------------------------------


def _warnings(read: Read) -> list[str]:
    found = []
    if read.get("--no-mmap") or str(read.get("--load-mode", "")) in ("none", "dio"):
        found.append("without mmap the file is read into buffers: the page cache of it is not used")
    if read.get("--cpu-moe") or read.get("--n-cpu-moe") or read.get("--no-kv-offload"):
        found.append("what is kept on the CPU's side frees nothing here: both sides are the same memory")
    return found


def _on_context(read: Read, asked: Sizes) -> list[str]:
    found = []
    if not read.get("--ctx-size"):
        found.append(
            f"no -c: all {asked.context} tokens of the model are taken, or as many as --fit finds room for but 1 GiB"
        )
    if read.get("--batch-size") and read.get("--batch-size") < read.get("--ubatch-size", DEFAULT_UBATCH):
        found.append("-ub is larger than -b and is cut down to it")
    if asked.kinds[1] != DEFAULT_TYPE and not asked.flash:
        found.append("a quantized V cache needs flash attention: llama.cpp refuses to start")
    return found
