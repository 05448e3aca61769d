"""What of a model decides about memory beside its weights: layers that keep keys and values, windows, states. Pure.

`read_config` reads Hugging Face's config.json, `fit.architecture_gguf` the metadata of a GGUF file. What is not known
is said in `unknown`, and then nothing is computed from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Config = Mapping[str, Any]

MAX_LAYERS = 1000
MAX_NUMBER = 1 << 40


@dataclass(frozen=True)
class Cache:
    """Layers that are alike and keep keys and values: per token `heads` times `key + value` elements."""

    layers: int
    heads: int
    key: int
    value: int
    window: int = 0
    """How many tokens back they look; 0: all of them."""
    latent: bool = False
    """One latent for all heads (MLA): not divided between ranks."""

    @property
    def elements(self) -> int:
        """Elements of one token in all of these layers."""
        return self.layers * self.heads * (self.key + self.value)


@dataclass(frozen=True)
class State:
    """Layers that keep a state of fixed size for every sequence (Mamba, linear attention, short convolution)."""

    layers: int
    convolution: int
    """Elements of one layer's window of the convolution."""
    recurrent: int
    """Elements of one layer's recurrent state, which engines keep in 32 bits unless told otherwise."""


@dataclass(frozen=True)
class Architecture:
    """One model. Counts of 0 stand for what a model of this kind does not have."""

    name: str
    context: int = 0
    hidden: int = 0
    heads: int = 0
    vocabulary: int = 0
    feed_forward: int = 0
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    caches: tuple[Cache, ...] = ()
    states: tuple[State, ...] = ()
    state_bytes: int = 4
    """Bytes of an element of a recurrent state."""
    index_bytes: int = 0
    """Bytes per token that a sparse attention keeps beside keys and values."""
    draft_layers: int = 0
    """Layers for predicting several tokens (MTP) that are part of the model's own files."""
    fp8_cache: bool = False
    """The engine keeps its cache in 8 bits unless told otherwise."""
    unknown: str = ""
    """Why keys and values cannot be told; empty where they can."""


class _UnclearError(Exception):
    """A value that decides is missing or is none."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


_PLAIN = words(
    """afmoe apertus arcee baichuan bailing_moe bailing_moe_v2 cohere cohere2 dots1 ernie4_5 ernie4_5_moe exaone
    exaone4 falcon gemma gemma2 gemma3 gemma3_text gemma3n_text glm glm4 glm4_moe glm4v_moe_text glm4v_text gpt_oss
    granite granitemoe helium hunyuan_v1_dense hunyuan_v1_moe internlm2 internlm3 llama llama4_text mimo minimax_m2
    ministral ministral3 mistral mistral3 mixtral nemotron olmo olmo2 olmo3 olmoe phi phi3 phimoe qwen2
    qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_vl_moe_text qwen3_vl_text seed_oss
    smollm3 solar stablelm starcoder2"""
)
_LATENT = words(
    "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 kimi_k25 longcat_flash minicpm3"
)
_LINEAR = words("qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text")
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_SPARSE_INDEX_BYTES = 132
"""Of the indexer of DeepSeek's sparse attention, a token and layer: 128 elements in 8 bits and a scale."""


def read_config(config: Config) -> Architecture:
    """Return the architecture that a config.json describes; what cannot be told is in `unknown`."""
    inner = _innermost(config)
    kind = str(inner.get("model_type") or config.get("model_type") or "")
    try:
        base = _common(kind or "model", inner)
    except _UnclearError as error:
        return Architecture(kind or "model", unknown=str(error))
    reader = _reader(kind, inner)
    if reader is None:
        why = f"the architecture {kind or 'of this model'} is not known here, so what it keeps per token is not either"
        return replace(base, unknown=why)
    try:
        return reader(base, inner)
    except _UnclearError as error:
        return replace(base, unknown=str(error), caches=(), states=())


def _innermost(config: Config) -> Config:
    """Return the part that describes the language model, where a vision or audio model is around it."""
    for _ in range(3):
        inner = next((config[name] for name in _NESTED if isinstance(config.get(name), dict)), None)
        if inner is None:
            break
        config = {"model_type": config.get("model_type"), **inner}
    return config


def _reader(kind: str, config: Config) -> Callable[[Architecture, Config], Architecture] | None:
    if kind in _OWN:
        return _OWN[kind]
    if kind in _LINEAR:
        return _gated_delta
    if kind in _LATENT and "kv_lora_rank" in config:
        return _latent
    return _attention if kind in _PLAIN and "kv_lora_rank" not in config else None


def with_draft_layers(architecture: Architecture) -> Architecture:
    """Return an architecture with the caches of its own layers for predicting several tokens (MTP)."""
    whole = next((each for each in architecture.caches if not each.window), None)
    if whole is None or not architecture.draft_layers:
        return architecture
    return replace(architecture, caches=(*architecture.caches, replace(whole, layers=architecture.draft_layers)))


# --- reading ----------------------------------------------------------------------------------------


def number(config: Config, *names: str, default: int | None = None) -> int:
    """Return the first of these that is there; raises for a value that is no count."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
            raise _UnclearError(f"config.json: {name} is {value!r}, which is no count")
        return value
    if default is None:
        raise _UnclearError(f"config.json does not say {names[0]}")
    return default


def _names(config: Config, name: str, layers: int) -> list[str] | None:
    """Return a list with one name for each layer, None where there is none."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < layers:
        raise _UnclearError(f"config.json: {name} does not name all {layers} layers")
    return [str(each) for each in value[:layers]]


def _layers(config: Config) -> int:
    layers = number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if layers > MAX_LAYERS:
        raise _UnclearError(f"config.json: {layers} layers cannot be")
    return layers


def _common(kind: str, config: Config) -> Architecture:
    text = str(config.get("mamba_ssm_dtype") or "")
    return Architecture(
        name=kind,
        context=number(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0),
        hidden=number(config, "hidden_size", "n_embd", "d_model", default=0),
        heads=number(config, "num_attention_heads", "n_head", "n_heads", default=0),
        vocabulary=number(config, "vocab_size", default=0),
        feed_forward=number(config, "intermediate_size", "ffn_hidden_size", default=0),
        experts=number(config, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", default=0),
        experts_used=number(config, "num_experts_per_tok", "num_experts_per_token", "moe_k", default=0),
        expert_feed_forward=number(config, "moe_intermediate_size", "intermediate_size", default=0),
        state_bytes=2 if text in ("bfloat16", "float16") else 4,
        draft_layers=number(config, "num_nextn_predict_layers", "mtp_num_hidden_layers", default=0),
    )


# --- attention --------------------------------------------------------------------------------------


def _attention(base: Architecture, config: Config) -> Architecture:
    layers = _layers(config)
    shared = number(config, "num_kv_shared_layers", default=0)
    kinds = _window_kinds(config, layers)[: layers - shared]
    window = _window(config)
    full, looking_back = kinds.count("full"), kinds.count("window")
    caches = [_cache(config, full, 0)] if full else []
    if looking_back:
        caches.append(_cache(config, looking_back, window))
    return replace(base, caches=tuple(caches))


def _cache(config: Config, layers: int, window: int) -> Cache:
    heads = number(config, "num_attention_heads", "n_head", "n_heads")
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        shared = 1
    else:
        shared = number(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=heads)
    own = number(config, "head_dim", "kv_channels", "attention_head_dim", default=0)
    hidden = number(config, "hidden_size", "n_embd", "d_model")
    if not own and (not heads or hidden % heads):
        raise _UnclearError(f"config.json: {hidden} is no multiple of {heads} heads, and head_dim is not said")
    size = own or hidden // heads
    return Cache(layers, shared, size, number(config, "v_head_dim", default=size), window)


def _window(config: Config) -> int:
    return number(config, "sliding_window", "attention_chunk_size", "sliding_window_size", default=0)


_EVERY: Mapping[str, int] = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""Every how many layers one sees all tokens, where a config of this kind does not say so."""
_OPTIONAL = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl_text")
"""Kinds that name a window and use it only if `use_sliding_window` says so."""
_FULL = ("full_attention", "attention", "full", "global")
_SLIDING = ("sliding_attention", "chunked_attention", "sliding", "local")


def _window_kinds(config: Config, layers: int) -> list[str]:
    """Return `full` or `window` for every layer."""
    named = _names(config, "layer_types", layers)
    if named is not None:
        strange = {each for each in named if each not in (*_FULL, *_SLIDING)}
        if strange:
            raise _UnclearError(f"config.json: layers of the kind {', '.join(sorted(strange))} are not known here")
        return ["full" if each in _FULL else "window" for each in named]
    kind = str(config.get("model_type"))
    unused = kind in _OPTIONAL and config.get("use_sliding_window") is not True
    if not _window(config) or unused:
        return ["full"] * layers
    if kind in _OPTIONAL:
        first = number(config, "max_window_layers", default=layers)
        return ["full" if index < first else "window" for index in range(layers)]
    every = number(config, "sliding_window_pattern", default=_EVERY.get(kind, 0))
    if kind == "llama4_text":
        every = every or 4
    return ["full" if every and (index + 1) % every == 0 else "window" for index in range(layers)]


def _latent(base: Architecture, config: Config) -> Architecture:
    layers = _layers(config)
    size = number(config, "kv_lora_rank") + number(config, "qk_rope_head_dim")
    index = number(config, "index_n_heads", default=0)
    return replace(
        base,
        caches=(Cache(layers, 1, size, 0, latent=True),),
        index_bytes=_SPARSE_INDEX_BYTES * layers if index else 0,
        fp8_cache=bool(index),
    )


# --- states -----------------------------------------------------------------------------------------


def _gated_delta(base: Architecture, config: Config) -> Architecture:
    layers = _layers(config)
    named = _names(config, "layer_types", layers)
    if named is None:
        every = number(config, "full_attention_interval")
        named = ["full_attention" if every and (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    _refuse_others(named, "full_attention", "linear_attention")
    key_heads, values = number(config, "linear_num_key_heads"), number(config, "linear_num_value_heads")
    key, value = number(config, "linear_key_head_dim"), number(config, "linear_value_head_dim")
    tail = number(config, "linear_conv_kernel_dim") - 1
    state = State(named.count("linear_attention"), tail * (2 * key_heads * key + values * value), values * key * value)
    return replace(base, caches=(_cache(config, named.count("full_attention"), 0),), states=(state,))


def _refuse_others(named: Sequence[str], *known: str) -> None:
    strange = sorted(set(named) - set(known))
    if strange:
        raise _UnclearError(f"config.json: layers of the kind {', '.join(strange)} are not known here")


def _mamba2(config: Config, layers: int, heads: int, size: int) -> State:
    """Return the states of Mamba-2 layers with `heads` heads of `size` elements."""
    groups = number(config, "n_groups", "mamba_n_groups")
    state = number(config, "ssm_state_size", "mamba_d_state")
    tail = number(config, "conv_kernel", "mamba_d_conv") - 1
    return State(layers, tail * (heads * size + 2 * groups * state), heads * size * state)


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(base: Architecture, config: Config) -> Architecture:
    pattern = config.get("hybrid_override_pattern") or config.get("layers_block_type")
    if isinstance(pattern, str):
        named = [_NEMOTRON.get(letter, letter) for letter in pattern]
    elif isinstance(pattern, list):
        named = [str(each) for each in pattern]
    else:
        raise _UnclearError("config.json does not say hybrid_override_pattern")
    _refuse_others(named, "mamba", "attention", "mlp", "moe")
    heads, size = number(config, "mamba_num_heads"), number(config, "mamba_head_dim")
    state = _mamba2(config, named.count("mamba"), heads, size)
    return replace(base, caches=(_cache(config, named.count("attention"), 0),), states=(state,))


def _granite_hybrid(base: Architecture, config: Config) -> Architecture:
    named = _names(config, "layer_types", _layers(config))
    if named is None:
        raise _UnclearError("config.json does not say layer_types")
    _refuse_others(named, "mamba", "attention")
    heads = number(config, "mamba_n_heads")
    size = number(config, "mamba_d_head", default=number(config, "hidden_size") * 2 // max(1, heads))
    state = _mamba2(config, named.count("mamba"), heads, size)
    return replace(base, caches=(_cache(config, named.count("attention"), 0),), states=(state,))


def _falcon_h1(base: Architecture, config: Config) -> Architecture:
    layers = _layers(config)
    state = _mamba2(config, layers, number(config, "mamba_n_heads"), number(config, "mamba_d_head"))
    return replace(base, caches=(_cache(config, layers, 0),), states=(state,))


def _jamba(base: Architecture, config: Config) -> Architecture:
    layers = _layers(config)
    period, offset = number(config, "attn_layer_period"), number(config, "attn_layer_offset")
    if not period:
        raise _UnclearError("config.json: attn_layer_period is 0")
    attention = sum(index % period == offset for index in range(layers))
    inner = number(config, "hidden_size") * number(config, "mamba_expand")
    tail = number(config, "mamba_d_conv") - 1
    state = State(layers - attention, tail * inner, inner * number(config, "mamba_d_state"))
    return replace(base, caches=(_cache(config, attention, 0),), states=(state,))


def _lfm2(base: Architecture, config: Config) -> Architecture:
    named = _names(config, "layer_types", _layers(config))
    if named is None:
        raise _UnclearError("config.json does not say layer_types")
    _refuse_others(named, "conv", "full_attention")
    tail = number(config, "conv_L_cache") - 1
    state = State(named.count("conv"), tail * number(config, "hidden_size"), 0)
    return replace(base, caches=(_cache(config, named.count("full_attention"), 0),), states=(state,))


def _kimi_linear(base: Architecture, config: Config) -> Architecture:
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict) or not isinstance(linear.get("full_attn_layers"), list):
        raise _UnclearError("config.json does not say linear_attn_config")
    full = len(linear["full_attn_layers"])
    heads, size = number(linear, "num_heads"), number(linear, "head_dim")
    tail = number(linear, "short_conv_kernel_size") - 1
    state = State(_layers(config) - full, tail * 3 * heads * size, heads * size * size)
    latent = number(config, "kv_lora_rank") + number(config, "qk_rope_head_dim")
    return replace(base, caches=(Cache(full, 1, latent, 0, latent=True),), states=(state,))


_OWN: Mapping[str, Callable[[Architecture, Config], Architecture]] = {
    "nemotron_h": _nemotron_h,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "kimi_linear": _kimi_linear,
}
