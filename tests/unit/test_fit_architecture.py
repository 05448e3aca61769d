"""What models keep per token and per sequence, from the facts of published configurations."""

from typing import Any

import pytest

from plimsoll.box.fit import kv
from plimsoll.box.fit.architecture import Architecture, read_config, with_draft_layers
from plimsoll.box.fit.architecture_gguf import read_metadata
from tests.unit.fit_builders import LLAMA_8B, QWEN3_NEXT_GGUF

NEMOTRON_H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"


def _config(kind: str, layers: int, heads: int, shared: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401  # as JSON
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "hidden_size": more.pop("hidden", heads * 128),
        **more,
    }


QWEN3_NEXT = _config(
    "qwen3_next", 48, 16, 2, hidden=2048, head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
    linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
)  # fmt: skip
DEEPSEEK_V3 = _config("deepseek_v3", 61, 128, 128, hidden=7168, kv_lora_rank=512, qk_rope_head_dim=64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA_8B, 131072),
        (_config("qwen2", 28, 28, 4, hidden=3584, use_sliding_window=False, sliding_window=131072), 57344),
        (_config("qwen3_moe", 48, 32, 4, hidden=2048, head_dim=128), 98304),
        (_config("mixtral", 32, 32, 8, hidden=4096, sliding_window=None), 131072),
        (_config("mistral", 32, 32, 8, hidden=4096, sliding_window=4096), 0),
        (QWEN3_NEXT, 24576),
        (DEEPSEEK_V3, 70272),
        (_config("gemma3_text", 62, 32, 16, hidden=5376, head_dim=128, sliding_window=1024), 81920),
        (_config("gemma2", 42, 16, 8, hidden=3584, head_dim=256, sliding_window=4096), 172032),
        (
            _config("gpt_oss", 36, 64, 8, hidden=2880, head_dim=64, sliding_window=128,
                    layer_types=["sliding_attention", "full_attention"] * 18),
            36864,
        ),
        (_config("glm4_moe", 46, 96, 8, hidden=4096, head_dim=128), 188416),
        (_config("phi3", 40, 40, 10, hidden=5120, sliding_window=None), 204800),
        (
            _config("nemotron_h", 52, 32, 8, hidden=4096, attention_head_dim=128, hybrid_override_pattern=NEMOTRON_H_8B,
                    mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4),
            16384,
        ),
        ({"model_type": "mistral3", "text_config": _config("mistral", 40, 32, 8, hidden=5120, head_dim=128)}, 163840),
        (_config("falcon", 32, 71, 71, hidden=4544, multi_query=True), 8192),
        (
            _config("kimi_linear", 27, 32, 32, hidden=2304, kv_lora_rank=512, qk_rope_head_dim=64,
                    linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32,
                                        "head_dim": 128, "short_conv_kernel_size": 4}),
            8064,
        ),
    ],
)  # fmt: skip
def test_bytes_of_a_token(config: dict[str, Any], expected: int) -> None:
    """Layers that see all tokens keep, in 16 bits, what the published configuration comes to."""
    architecture = read_config(config)
    assert architecture.unknown == ""
    assert kv.token_bytes(architecture, "auto") == expected


@pytest.mark.parametrize(
    ("config", "recurrent", "convolution", "layers"),
    [
        (QWEN3_NEXT, 32 * 128 * 128, 3 * 8192, 36),
        (
            _config("nemotron_h", 52, 32, 8, hidden=4096, head_dim=128, hybrid_override_pattern=NEMOTRON_H_8B,
                    mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4),
            128 * 64 * 128, 3 * (8192 + 2 * 8 * 128), 24,
        ),
        (
            _config("granitemoehybrid", 40, 12, 4, hidden=1536, layer_types=["mamba"] * 36 + ["attention"] * 4,
                    mamba_n_heads=48, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4),
            48 * 64 * 128, 3 * (3072 + 2 * 128), 36,
        ),
        (
            _config("jamba", 32, 32, 8, hidden=4096, attn_layer_period=8, attn_layer_offset=4, mamba_expand=2,
                    mamba_d_state=16, mamba_d_conv=4),
            8192 * 16, 3 * 8192, 28,
        ),
        (
            _config("lfm2", 16, 32, 8, hidden=2048, conv_L_cache=3, layer_types=["conv"] * 10 + ["full_attention"] * 6),
            0, 2 * 2048, 10,
        ),
    ],
)  # fmt: skip
def test_states(config: dict[str, Any], recurrent: int, convolution: int, layers: int) -> None:
    """Layers without a cache keep a state of fixed size for each sequence, and the rest of the layers a cache."""
    architecture = read_config(config)
    state = architecture.states[0]
    assert (state.recurrent, state.convolution, state.layers) == (recurrent, convolution, layers)


def test_windows_are_counted_apart() -> None:
    """Of layers with a window only the window is kept, of the others all tokens."""
    gemma = read_config(_config("gemma3_text", 62, 32, 16, hidden=5376, head_dim=128, sliding_window=1024))
    assert sorted((each.layers, each.window) for each in gemma.caches) == [(10, 0), (52, 1024)]
    one_layer = 16 * 128 * 2 * 2
    kept = kv.bytes_of(gemma, "auto", kv.Sequences(100_000, 1, 512))
    assert kept == 10 * one_layer * 100_000 + 52 * one_layer * (1024 + 512)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "deepseek_v4", "compress_ratios": [1, 4]}, "deepseek_v4 is not known"),
        ({"model_type": None}, "not known"),
        ({"num_hidden_layers": "32"}, "no count"),
        ({"num_hidden_layers": 10**9}, "cannot be"),
        ({"num_key_value_heads": -1}, "no count"),
        ({"num_key_value_heads": True}, "no count"),
        ({"hidden_size": 4095}, "no multiple"),
        ({"layer_types": ["full_attention"] * 3}, "does not name all"),
        ({"layer_types": ["hyper_attention"] * 32}, "hyper_attention"),
        ({"kv_lora_rank": 512}, "not known"),
    ],
)
def test_what_cannot_be_told(changes: dict[str, Any], why: str) -> None:
    """An unknown kind, and a value that is none, are named; nothing is computed from them."""
    architecture = read_config({**LLAMA_8B, **changes})
    assert why in architecture.unknown
    assert architecture.caches == ()


def _gguf(name: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401  # as a file has them
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}


@pytest.mark.parametrize(
    ("metadata", "cells", "expected"),
    [
        (
            _gguf("llama", block_count=32, embedding_length=4096, attention__head_count=32, attention__head_count_kv=8),
            4096, 4096 * 131072,
        ),
        (
            _gguf("deepseek2", block_count=61, embedding_length=7168, attention__head_count=128,
                  attention__head_count_kv=1, attention__key_length=576, attention__value_length=512,
                  attention__key_length_mla=192),
            1024, 1024 * 70272,
        ),
        (
            _gguf("gpt-oss", block_count=36, embedding_length=2880, attention__head_count=64, attention__key_length=64,
                  attention__head_count_kv=8, attention__value_length=64, attention__sliding_window=128),
            131072, 18 * 2048 * 131072 + 18 * 2048 * 768,
        ),
        (
            _gguf("nemotron_h", block_count=4, embedding_length=4096, attention__head_count=32,
                  attention__key_length=128, attention__value_length=128, attention__head_count_kv=[0, 0, 8, 0],
                  feed_forward_length=[0, 21504, 0, 21504], ssm__conv_kernel=4, ssm__state_size=128,
                  ssm__group_count=8, ssm__inner_size=8192),
            1024, 1024 * 4096 + 4 * (3 * (8192 + 2 * 8 * 128) + 128 * 8192),
        ),
    ],
)  # fmt: skip
def test_what_llama_allocates(metadata: dict[str, Any], cells: int, expected: int) -> None:
    """The cache of a GGUF model in 16 bits is what llama.cpp allocates for it, with a micro-batch of 512."""
    architecture = read_metadata(metadata)
    assert architecture.unknown == ""
    assert kv.llama_bytes(architecture, ("f16", "f16"), kv.Sequences(cells, 1, 512)) == expected


def test_the_cache_types_of_llama() -> None:
    """A quantized cache costs its blocks: q8_0 34 bytes for 32 elements, q4_0 18."""
    architecture = read_metadata(
        _gguf("llama", block_count=1, embedding_length=4096, attention__head_count=32, attention__head_count_kv=8)
    )
    kept = kv.Sequences(256, 1, 512)
    assert kv.llama_bytes(architecture, ("q8_0", "q4_0"), kept) == 256 * (1024 // 32 * 34 + 1024 // 32 * 18)


def test_a_hybrid_gguf() -> None:
    """Every fourth layer of a hybrid has a cache, the others a state for each slot."""
    architecture = read_metadata(QWEN3_NEXT_GGUF)
    assert [(each.layers, each.heads, each.key) for each in architecture.caches] == [(12, 2, 256)]
    assert [(each.layers, each.recurrent) for each in architecture.states] == [(36, 128 * 4096)]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({}, "general.architecture"),
        (_gguf("newarch", block_count=3), "newarch is not known"),
        (_gguf("llama", block_count=0, embedding_length=64, attention__head_count=4), "cannot be"),
        (_gguf("llama", block_count="32", embedding_length=64, attention__head_count=4), "no count"),
        (_gguf("llama", block_count=4, embedding_length=64, attention__head_count=[4, 4]), "for each of 4"),
        (_gguf("llama", block_count=4, attention__head_count=4), "embedding_length"),
    ],
)
def test_a_gguf_that_does_not_say_enough(metadata: dict[str, Any], why: str) -> None:
    """A file without a key that decides is named with the key; nothing is computed from it."""
    architecture = read_metadata(metadata)
    assert why in architecture.unknown
    assert architecture.caches == ()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("auto", 131072), ("bfloat16", 131072), ("fp8", 65536), ("fp8_e4m3", 65536), ("float32", 262144)],
)
def test_types_of_the_cache(kind: str, expected: int) -> None:
    """A cache in 8 bits costs half of one in 16."""
    assert kv.token_bytes(read_config(LLAMA_8B), kind) == expected


def test_ranks_divide_heads_and_not_latents() -> None:
    """On two ranks a token costs half of its heads on each, but all of a latent (MLA); a head cannot be divided."""
    assert kv.token_bytes(read_config(LLAMA_8B), "auto", 2) == 65536
    assert kv.token_bytes(read_config(LLAMA_8B), "auto", 16) == 131072 // 8
    assert kv.token_bytes(read_config(DEEPSEEK_V3), "auto", 8) == 70272


def test_the_sparse_attention_of_deepseek() -> None:
    """Its latent is kept in 656 bytes a layer, and its index in 132 more."""
    sparse = read_config({**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_n_heads": 64})
    assert kv.token_bytes(sparse, "auto") == 61 * (656 + 132)


def test_layers_for_several_tokens() -> None:
    """Layers of the model's own that predict several tokens (MTP) keep keys and values as the others do."""
    glm = read_config(_config("glm4_moe", 46, 96, 8, hidden=4096, head_dim=128, num_nextn_predict_layers=1))
    assert kv.token_bytes(with_draft_layers(glm), "auto") == kv.token_bytes(glm, "auto") // 46 * 47
    plain = read_config(LLAMA_8B)
    assert with_draft_layers(plain) == plain


def test_nothing_is_known_of_nothing() -> None:
    """An empty configuration is unknown, not a model without a cache."""
    assert read_config({}) == Architecture("model", unknown=read_config({}).unknown)
    assert read_config({}).unknown
