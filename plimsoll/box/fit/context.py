"""What every estimate goes by: the box, the models on its disk, and the figures that were measured, not computed."""

from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll.box.fit import checkpoint
from plimsoll.box.fit.architecture import Architecture
from plimsoll.box.fit.box import Box
from plimsoll.box.fit.checkpoint import Checkpoint
from plimsoll.box.fit.model import GIB, MIB, NOTHING, Amount, CannotTellError, Item, Launch
from plimsoll.box.fit.sizes import gib
from plimsoll.box.host import Host


@dataclass
class Context:
    """One question: what is estimated for which box. A model is read once, however often it is asked for."""

    host: Host
    box: Box
    _models: dict[tuple[object, ...], Checkpoint | CannotTellError] = field(default_factory=dict)

    def model(self, launch: Launch, reference: str, *, revision: str = "", wanted: str = "") -> Checkpoint:
        """Return a model's files; raises CannotTellError."""
        key = (reference, revision, wanted, launch.mounts, launch.homes, launch.directory)
        if key not in self._models:
            try:
                found = checkpoint.load(self.host, launch, reference, revision=revision, wanted=wanted)
                self._models[key] = found
            except CannotTellError as error:
                self._models[key] = error
        answer = self._models[key]
        if isinstance(answer, CannotTellError):
            raise answer
        return answer

    @property
    def models(self) -> list[Checkpoint]:
        """The models that were read so far."""
        return [each for each in self._models.values() if isinstance(each, Checkpoint)]


@dataclass(frozen=True)
class Ranks:
    """Into how many parts a model is divided, and how many of them run on this box."""

    model_parts: int
    here: int
    unified: bool
    """Whether the GPU's memory is the box's."""

    def share(self, size: int) -> int:
        """Return this box's part of the weights."""
        return -(-size * self.here // self.model_parts)


# --- what is measured and not computed --------------------------------------------------------------

HOST_SIDE = Amount(2 * GIB, 4 * GIB, round(5.6 * GIB))
HOST_SIDE_BASIS = "processes of the engine outside of its GPU budget; 5.6 GiB a box was measured with GLM on two GB10"
GRAPHS = Amount(MIB * 256, MIB * 768, 2 * GIB)
GRAPHS_BASIS = "CUDA context and graphs, captured after the budget was divided; usual figures, not computed"

SPIKE_LIKELY = round(9.1 * GIB)
SPIKE_HIGH = 29 * GIB
SPIKE_LIKELY_SHARE = 0.13
SPIKE_HIGH_SHARE = 0.6
SPIKE_BASIS = (
    "KV allocation, profiling pass, repacking of FP4 weights, page cache of the checkpoint: the fraction does not "
    "bound it. Measured on GB10: 9 GiB above the budget (0.85, NVFP4 122B: the driver held 112.5 of 103.4 GiB), 29 GiB "
    "(0.70, bf16 26B: 112 GiB in use of 83); 0.70 froze a box with Nemotron-3-Super"
)
SPIKE_FIXED_BASIS = (
    "repacking of FP4 weights, warm-up, page cache of the checkpoint; with a fixed KV size there is no profiling pass. "
    "Measured on GB10 with one: 9 GiB above the budget"
)


def spike(weights: int | None, *, fixed: bool) -> Amount:
    """Return what a start takes beyond what is kept; in proportion to the weights where they are known.

    The two measured cases are 9.1 GiB for some 70 GiB of weights, and 29 GiB for 48 GiB.
    """
    likely, high = SPIKE_LIKELY, SPIKE_HIGH
    if weights is not None:
        likely = min(likely, round(weights * SPIKE_LIKELY_SHARE))
        high = min(high, round(weights * SPIKE_HIGH_SHARE))
    return Amount(0, likely // 2, likely) if fixed else Amount(0, likely, high)


def spike_item(weights: int | None, *, fixed: bool) -> Item:
    """Return the line of the start-up spike, with its evidence."""
    basis = SPIKE_FIXED_BASIS if fixed else SPIKE_BASIS
    return Item("start-up spike", spike(weights, fixed=fixed), basis, passing=True)


WORKSPACE = 400 * MIB
"""Of FlashInfer and cuBLAS, allocated once."""
COMPUTE_BAND = (0.5, 3.0)


def compute_peak(architecture: Architecture, tokens: int, sequences: int, ranks: int = 1) -> Amount:
    """Return the peak of a forward pass of `tokens` in 16 bits, and of the logits of `sequences`, with its band."""
    dense = 4 * architecture.hidden + 3 * architecture.feed_forward // ranks
    routed = 0
    if architecture.experts:
        each = 2 * architecture.expert_feed_forward // ranks + 2 * architecture.hidden
        routed = architecture.experts_used * each
        dense = 4 * architecture.hidden
    logits = 2 * 4 * architecture.vocabulary * sequences
    likely = WORKSPACE + 2 * tokens * (dense + routed) + logits
    return Amount(round(likely * COMPUTE_BAND[0]), likely, round(likely * COMPUTE_BAND[1]))


def compute_basis(architecture: Architecture, tokens: int, sequences: int) -> str:
    """Say how the peak was computed."""
    experts = f", {architecture.experts_used} of {architecture.experts} experts" if architecture.experts else ""
    low, high = COMPUTE_BAND
    return (
        f"activations of {tokens} tokens a step{experts}, logits of {sequences} sequences, workspaces; "
        f"an estimate, between {low:g} and {high:g} times that"
    )


# --- parallel ranks ---------------------------------------------------------------------------------


def ranks_of(box: Box, parts: int, replicas: int, nodes: int | None, *, spread: bool) -> tuple[Ranks, list[str]]:
    """Return how the ranks lie, and what was assumed. `spread`: something else starts the ranks on other machines."""
    every = parts * replicas
    if every == 1:
        own = "the GPU has a memory of its own, which is not judged: the verdict is on the machine's memory"
        return Ranks(1, 1, box.unified is not False), [] if box.unified is not False else [own]
    if nodes and nodes > 1:
        here = max(1, every // nodes)
        return Ranks(parts, here, box.unified is not False), [f"{every} ranks on {nodes} machines: {here} of them here"]
    if box.unified and (spread or box.live):
        return Ranks(parts, 1, unified=True), [
            f"{every} ranks, and a box like this has one GPU: taken as {every} boxes with one rank each"
        ]
    if box.unified:
        return Ranks(parts, every, unified=True), [f"{every} ranks, all of them taken to run on this box"]
    assumed = (
        f"{every} ranks on one machine have a GPU each: the memory of the GPUs is not the machine's, and is not judged"
    )
    return Ranks(parts, every, unified=False), [assumed]


def exact_items(found: Checkpoint, ranks: Ranks, name: str = "weights") -> Item:
    """Return the line of a model's weights on this box."""
    share = f", {ranks.here} of {ranks.model_parts} parts" if ranks.model_parts != ranks.here else ""
    return Item(name, Amount.exactly(ranks.share(found.weight_bytes)), f"{found.basis}{share}", gpu=not ranks.unified)


def attempt(work: Callable[[], Checkpoint], unknowns: list[str]) -> Checkpoint | None:
    """Return a model, or None with the reason added to what is unknown."""
    try:
        return work()
    except CannotTellError as error:
        unknowns.append(str(error))
        return None


def at_least(size: int) -> Amount:
    """Return an amount of which only the lower end is known to be more than nothing."""
    return Amount(0, 0, size) if size else NOTHING


def shortfall(budget: int, weights: int) -> str:
    """Say that a budget cannot hold the weights."""
    return f"the weights ({gib(weights)}) alone are more than the budget of {gib(budget)}: the engine gives up"
