"""The same from a GGUF file's metadata, by the rules of llama.cpp. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.box.fit.architecture import MAX_LAYERS, MAX_NUMBER, Architecture, Cache, State, words
from plimsoll.box.fit.gguf import Skipped, Value

_PLAIN = words(
    """apertus arcee baichuan bailingmoe bailingmoe2 cohere2 command-r deepseek dots1 ernie4_5 ernie4_5-moe exaone
    exaone4 falcon gemma gemma2 gemma3 glm4 glm4moe gpt-oss granite granitemoe grok hunyuan-dense hunyuan-moe
    internlm2 llama llama4 mimo2 minimax-m2 minicpm mistral3 nemotron olmo olmo2 olmoe orion phi2 phi3 phimoe qwen
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss smollm3 stablelm starcoder2"""
)
_LATENT = frozenset(("deepseek2", "glm-dsa", "minicpm3", "plm"))
_RECURRENT = frozenset(
    ("falcon-h1", "granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe",
     "qwen35", "qwen35moe", "qwen3next")
)  # fmt: skip
_EVERY: Mapping[str, int] = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gpt-oss": 2, "llama4": 4, "exaone4": 4}
"""Every how many layers one sees all tokens, where the file does not say so."""
_INTERVAL = ("qwen3next", "qwen35", "qwen35moe")
_DEFAULT_INTERVAL = 4
_PARALLEL = ("falcon-h1",)
"""Kinds in which every layer has both a cache and a state."""


class _UnclearError(Exception):
    """A value that decides is missing or is none."""


class _Metadata:
    """The keys of one architecture."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self.all = metadata
        self.name = str(metadata.get("general.architecture") or "")

    def value(self, key: str) -> Value | None:
        return self.all.get(f"{self.name}.{key}")

    def number(self, key: str, default: int | None = None) -> int:
        value = self.value(key)
        if value is None:
            if default is None:
                raise _UnclearError(f"the file does not say {self.name}.{key}")
            return default
        if isinstance(value, list):
            numbers = [each for each in value if isinstance(each, int)]
            return max(numbers, default=0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
            raise _UnclearError(f"{self.name}.{key} is {value!r}, which is no count")
        return value

    def each(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """Return one number for each layer: the key holds a list, or one number for all."""
        value = self.value(key)
        if not isinstance(value, list):
            return [self.number(key, default)] * layers
        if len(value) < layers or not all(isinstance(each, int) and 0 <= each <= MAX_NUMBER for each in value):
            raise _UnclearError(f"{self.name}.{key} does not have a count for each of {layers} layers")
        return [int(each) for each in value[:layers]]


def read_metadata(metadata: Mapping[str, Value]) -> Architecture:
    """Return the architecture that a GGUF file describes; what cannot be told is in `unknown`."""
    keys = _Metadata(metadata)
    if not keys.name:
        return Architecture("model", unknown="the file does not say general.architecture")
    try:
        base = _common(keys)
        if keys.name not in _PLAIN | _LATENT | _RECURRENT:
            why = f"the architecture {keys.name[:60]} is not known here, so what it keeps per token is not either"
            return replace(base, unknown=why)
        return _caches(base, keys)
    except _UnclearError as error:
        return Architecture(keys.name, unknown=str(error))


def _common(keys: _Metadata) -> Architecture:
    tokens = keys.all.get("tokenizer.ggml.tokens")
    vocabulary = keys.number("vocab_size", tokens.length if isinstance(tokens, Skipped) else 0)
    return Architecture(
        name=keys.name,
        context=keys.number("context_length", 0),
        hidden=keys.number("embedding_length", 0),
        heads=keys.number("attention.head_count", 0),
        vocabulary=vocabulary,
        feed_forward=keys.number("feed_forward_length", 0),
        experts=keys.number("expert_count", 0),
        experts_used=keys.number("expert_used_count", 0),
        expert_feed_forward=keys.number("expert_feed_forward_length", keys.number("feed_forward_length", 0)),
        draft_layers=keys.number("nextn_predict_layers", 0),
    )


def _caches(base: Architecture, keys: _Metadata) -> Architecture:
    layers = keys.number("block_count") - base.draft_layers
    if not 0 < layers <= MAX_LAYERS:
        raise _UnclearError(f"{keys.name}.block_count: {layers} layers cannot be")
    recurrent = _recurrent(keys, layers)
    with_cache = [not each or keys.name in _PARALLEL for each in recurrent]
    count = sum(recurrent)
    states = (_state(keys, count),) if count else ()
    if keys.name in _LATENT and keys.value("attention.key_length_mla") is not None:
        latent = Cache(sum(with_cache), 1, keys.number("attention.key_length"), 0, latent=True)
        return replace(base, caches=(latent,), states=states)
    return replace(base, caches=_by_window(keys, layers, with_cache), states=states)


def _by_window(keys: _Metadata, layers: int, with_cache: list[bool]) -> tuple[Cache, ...]:
    heads = keys.each("attention.head_count", layers)
    shared = keys.each("attention.head_count_kv", layers, max(heads))
    default = keys.number("embedding_length") // max(1, *heads)
    key, value = (
        keys.each("attention.key_length", layers, default),
        keys.each("attention.value_length", layers, default),
    )
    window = keys.number("attention.sliding_window", keys.number("attention.chunk_size", 0))
    looking_back = _looking_back(keys, layers, window)
    found: dict[tuple[int, int, int, bool], int] = {}
    for index in range(layers - keys.number("attention.shared_kv_layers", 0)):
        short = looking_back[index]
        sizes = (
            keys.number("attention.key_length_swa", key[index]) if short else key[index],
            keys.number("attention.value_length_swa", value[index]) if short else value[index],
        )
        if with_cache[index] and shared[index]:
            group = (shared[index], *sizes, short)
            found[group] = found.get(group, 0) + 1
    return tuple(
        Cache(count, heads_kv, key_size, value_size, window if short else 0)
        for (heads_kv, key_size, value_size, short), count in found.items()
    )


def _looking_back(keys: _Metadata, layers: int, window: int) -> list[bool]:
    """Say of every layer whether it looks back no further than the window."""
    pattern = keys.value("attention.sliding_window_pattern")
    if not window:
        return [False] * layers
    if isinstance(pattern, list):
        if len(pattern) < layers:
            raise _UnclearError(f"{keys.name}.attention.sliding_window_pattern does not name all {layers} layers")
        return [bool(each) for each in pattern[:layers]]
    every = keys.number("attention.sliding_window_pattern", _EVERY.get(keys.name, -1))
    if every < 0:
        # llama.cpp uses the window of phi3 for none, and knows no pattern for what is not in the list above
        return [False] * layers
    return [every == 0 or index % every < every - 1 for index in range(layers)]


def _recurrent(keys: _Metadata, layers: int) -> list[bool]:
    if keys.name not in _RECURRENT:
        return [False] * layers
    if keys.name in _PARALLEL or keys.name in ("mamba", "mamba2"):
        return [True] * layers
    if keys.name in _INTERVAL:
        every = keys.number("full_attention_interval", _DEFAULT_INTERVAL) or 1
        return [(index + 1) % every != 0 for index in range(layers)]
    shared = keys.each("attention.head_count_kv", layers)
    if keys.name.startswith("nemotron_h"):
        dense = keys.each("feed_forward_length", layers, 0)
        return [not heads and not size for heads, size in zip(shared, dense, strict=True)]
    return [not heads for heads in shared]


def _state(keys: _Metadata, layers: int) -> State:
    short = keys.number("shortconv.l_cache", 0)
    if short:
        return State(layers, (short - 1) * keys.number("embedding_length"), 0)
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    tail = max(0, keys.number("ssm.conv_kernel") - 1)
    return State(layers, tail * (inner + 2 * keys.number("ssm.group_count", 0) * state), state * inner)
