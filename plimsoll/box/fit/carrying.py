"""How many requests a cache of a given size really carries. Pure."""

from dataclasses import dataclass

from plimsoll.box.fit import kv
from plimsoll.box.fit.architecture import Architecture


@dataclass(frozen=True)
class Wanted:
    """What a cache is asked to carry on each of `parts` ranks."""

    kind: str
    """Type of its elements, as the engine calls it."""
    length: int
    """Tokens of one request."""
    requests: int
    batch: int
    parts: int = 1
    window_is_kept: bool = True


def carry(architecture: Architecture, wanted: Wanted, held: int) -> dict[str, int | str | None]:
    """Return `{asked, context, kv_tokens, full_length_requests, tokens_each}` of a cache of `held` bytes on a rank.

    `tokens_each` is how long the requests may be if as many run as were asked for. Raises CannotTellError.
    """
    kept = kv.Sequences(wanted.length, 1, wanted.batch, wanted.window_is_kept)
    one = kv.bytes_of(architecture, wanted.kind, kept, wanted.parts)
    token = kv.token_bytes(architecture, wanted.kind, wanted.parts)
    if not wanted.window_is_kept:
        token += kv.window_token_bytes(architecture, wanted.kind, wanted.parts)
    state = kv.state_bytes(architecture, architecture.state_bytes, wanted.parts)
    running = min(wanted.requests, max(1, held // max(1, one)))
    return {
        "asked": wanted.requests,
        "context": wanted.length,
        "kv_tokens": max(0, held - state * running) // token if token else None,
        "full_length_requests": held // one if one else None,
        "tokens_each": max(0, held // max(1, wanted.requests) - state) // token if token else None,
    }
