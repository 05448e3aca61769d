"""What engines take: the numbers of field reports come out, flags are understood with their units or named."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.fit import box as boxes
from plimsoll.box.fit import flags, llama_flags, sglang_flags, vllm_flags
from plimsoll.box.fit.model import GIB, MIB, Verdict
from plimsoll.box.fit.verdict import judge
from tests.unit.fit_builders import (
    LLAMA_8B,
    QWEN3_NEXT_GGUF,
    estimate_of,
    gib,
    likely,
    spark,
    verdict_of,
    write_gguf,
    write_model,
    write_safetensors,
)

QWEN35_122B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 48, "hidden_size": 3072, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
}  # fmt: skip
NEMOTRON_SUPER: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 88, "hybrid_override_pattern": "MEM*" * 22, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
    "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "vocab_size": 131072, "max_position_embeddings": 262144,
    "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
}  # fmt: skip
KIMI: dict[str, Any] = {
    "model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "vocab_size": 163840, "max_position_embeddings": 262144,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
}  # fmt: skip


# --- the numbers of field reports -------------------------------------------------------------------


def test_a_fraction_is_of_the_whole_pool(tmp_path: Path) -> None:
    """0.85 of 121.6 GiB with an NVFP4 model of 122B, which froze a box for 39 minutes, does not fit."""
    model = write_model(tmp_path / "m", QWEN35_122B, gib(71))
    estimate = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.85")
    inside = sum(likely(estimate, name) for name in ("weights", "keys and values", "compute peak"))
    assert inside == round(0.85 * spark().total)
    assert likely(estimate, "weights") == gib(71)
    assert verdict_of(estimate) is Verdict.NO


def test_weights_above_the_box_never_fit(tmp_path: Path) -> None:
    """123.5 GiB of weights do not fit in 121.6 GiB, whatever the flags say."""
    model = write_model(tmp_path / "m", QWEN35_122B, gib(123.5))
    for arguments in (("--gpu-memory-utilization", "0.99"), ("--kv-cache-memory-bytes", "1G"), ()):
        estimate = estimate_of("vllm", str(model), *arguments)
        assert verdict_of(estimate) is Verdict.NO
        assert likely(estimate, "weights") > spark().total


def test_a_lower_fraction_is_not_called_safe(tmp_path: Path) -> None:
    """0.70 with Nemotron-3-Super froze a box: it is tight, and the reason is the start."""
    model = write_model(tmp_path / "m", NEMOTRON_SUPER, gib(74))
    estimate = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.70", "--kv-cache-dtype", "fp8")
    judged = judge([estimate], spark())
    assert judged.verdict is Verdict.TIGHT
    assert any("its start may take" in reason for reason in judged.reasons)


def test_the_hierarchical_cache_is_for_each_rank() -> None:
    """300 GB for each of 8 ranks are 2.4 TB on a machine with 449 GiB; 37.5 GB each are the 300 that were meant."""
    box = boxes.of_size(449)
    common = ("--model-path", "a/b", "--tp-size", "8", "--mem-fraction-static", "0.85", "--enable-hierarchical-cache")
    wrong = estimate_of("sglang", *common, "--hicache-size", "300", box=box)
    right = estimate_of("sglang", *common, "--hicache-size", "37.5", box=box)
    assert likely(wrong, "hierarchical cache") == 2400 * 10**9
    assert likely(right, "hierarchical cache") == 300 * 10**9
    assert judge([wrong], box).verdict is Verdict.NO
    assert right.steady.high < box.empty - box.lines.slow_leave
    assert any("37" in warning for warning in right.warnings)


def test_ranks_on_one_machine_have_gpus_of_their_own(tmp_path: Path) -> None:
    """On a machine with a GPU for each rank the GPUs' memory is not the machine's: what it keeps is the cache alone."""
    model = write_model(tmp_path / "m", KIMI, gib(549))
    box = boxes.of_size(449)
    arguments = ("--model-path", str(model), "--tp", "8", "--mem-fraction-static", "0.85", "--enable-hicache")
    estimate = estimate_of("sglang", *arguments, "--hicache-size", "37", box=box)
    assert judge([estimate], box).verdict is Verdict.FITS
    assert {item.name for item in estimate.items if not item.gpu} == {"host side", "hierarchical cache"}


def test_context_and_micro_batch_of_llama(tmp_path: Path) -> None:
    """262144 and 2048 died under use with 87 GiB of weights; 131072 and 1024 gained 6 GiB, and stayed."""
    model = write_gguf(tmp_path / "m.gguf", {**QWEN3_NEXT_GGUF, "qwen3next.vocab_size": 151936}, gib(87))
    large = estimate_of("llama.cpp", "-m", str(model), "-c", "262144", "-ub", "2048", "-b", "2048", "-np", "4")
    small = estimate_of("llama.cpp", "-m", str(model), "-c", "131072", "-ub", "1024", "-np", "4")
    assert 5 * GIB < large.steady.likely - small.steady.likely < 8 * GIB
    assert verdict_of(large) is Verdict.TIGHT
    assert verdict_of(small) is Verdict.FITS
    graph = next(item.amount for item in large.items if item.name == "compute peak")
    assert graph.low < graph.likely < 9 * GIB < graph.high


def test_how_many_requests_a_cache_carries() -> None:
    """A cache of 116000 tokens has 773 for each of 150 requests, so that some 50 of 2300 run."""
    estimate = estimate_of(
        "sglang", "--model-path", "a/b", "--max-total-tokens", "116000", "--max-running-requests", "150"
    )
    assert estimate.concurrency == {"asked": 150, "kv_tokens": 116000, "tokens_each": 773}


# --- vLLM -------------------------------------------------------------------------------------------


def test_a_fixed_size_of_the_cache(tmp_path: Path) -> None:
    """With --kv-cache-memory-bytes the fraction is not looked at, and nothing is profiled at the start."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    estimate = estimate_of("vllm", str(model), "--kv-cache-memory-bytes", "36864M", "--gpu-memory-utilization", "0.5")
    assert likely(estimate, "keys and values") == 36 * GIB
    assert any("not looked at" in warning for warning in estimate.warnings)
    fraction = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.5")
    assert estimate.passing.high < fraction.passing.high
    assert estimate.concurrency["full_length_requests"] == 36 * GIB // (131072 * 131072)


def test_a_budget_that_is_too_small(tmp_path: Path) -> None:
    """Weights above the budget, and a cache below one request, are said to make the engine give up."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    small = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.1")
    assert "more than the budget" in small.never
    assert verdict_of(small) is Verdict.NO
    short = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.15")
    assert "one request of 131072" in short.never
    automatic = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.15", "--max-model-len", "auto")
    assert automatic.never == ""


def test_an_unknown_model_is_no_yes() -> None:
    """Without the weights a fraction that would leave room is not called safe, and one that does not is refused."""
    low = estimate_of("vllm", "no/such", "--gpu-memory-utilization", "0.2")
    assert verdict_of(low) is Verdict.UNKNOWN
    assert verdict_of(estimate_of("vllm", "no/such", "--gpu-memory-utilization", "0.90")) is Verdict.NO


def test_an_unknown_value_is_no_default() -> None:
    """A fraction that cannot be told is not taken for the default."""
    estimate = estimate_of("vllm", "a/b", "--gpu-memory-utilization", "${UTIL}")
    assert any("${UTIL}" in unknown for unknown in estimate.unknowns)
    assert not any(item.name == "budget" for item in estimate.items)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    """Of an unknown architecture the weights and the budget are known, and the concurrency is said not to be."""
    model = write_model(tmp_path / "m", {**LLAMA_8B, "model_type": "strange"}, gib(15))
    estimate = estimate_of("vllm", str(model), "--gpu-memory-utilization", "0.3")
    assert estimate.concurrency == {}
    assert any("strange" in warning for warning in estimate.warnings)
    assert likely(estimate, "weights") == gib(15)


@pytest.mark.parametrize(
    ("speculative", "size", "unknown"),
    [
        ('{"method":"mtp","num_speculative_tokens":3}', 0, ""),
        ('{"method":"ngram"}', 0, ""),
        ('{"method":"dflash","model":"DRAFT"}', 1 * GIB, ""),
        ('{"method":"eagle3","model":"no/such"}', None, "no/such"),
        ('{"method":"new"}', None, "new"),
    ],
)
def test_a_draft_model_has_its_own_line(tmp_path: Path, speculative: str, size: int | None, unknown: str) -> None:
    """A draft model is a line of its own; layers in the model's own files take nothing more; others are unknown."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    draft = write_model(tmp_path / "d", None, gib(1))
    arguments = ("--gpu-memory-utilization", "0.4", "--speculative-config", speculative.replace("DRAFT", str(draft)))
    estimate = estimate_of("vllm", str(model), *arguments)
    found = [item.amount.likely for item in estimate.items if item.name == "draft model"]
    assert found == ([] if size is None else [size])
    assert any(unknown in each for each in estimate.unknowns) if unknown else not estimate.unknowns


def test_weights_in_32_bits_are_halved(tmp_path: Path) -> None:
    """A checkpoint of 32-bit tensors is kept in 16 bits, unless vLLM is told otherwise."""
    directory = write_model(tmp_path / "m", LLAMA_8B, 2)
    write_safetensors(directory / "model.safetensors", {"w": ("F32", (1 << 30,), 4 * GIB)})
    assert likely(estimate_of("vllm", str(directory), "--gpu-memory-utilization", "0.3"), "weights") == 2 * GIB
    kept = estimate_of("vllm", str(directory), "--gpu-memory-utilization", "0.3", "--dtype", "float32")
    assert likely(kept, "weights") == 4 * GIB


def test_two_boxes_share_the_weights(tmp_path: Path) -> None:
    """On two machines with a rank each, each holds half of the weights."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(16))
    estimate = estimate_of("vllm", str(model), "-tp", "2", "--nnodes", "2", "--gpu-memory-utilization", "0.3")
    assert likely(estimate, "weights") == gib(8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("131072", 131072), ("128K", 131072), ("128k", 128000), ("25.6k", 25600), ("auto", "auto"), ("-1", "auto")],
)
def test_counts_as_vllm_reads_them(text: str, expected: object) -> None:
    """A count may end in k or K, which are not the same."""
    assert flags.read(vllm_flags.TABLE, ("m", "--max-model-len", text), {}).get("--max-model-len") == expected


@pytest.mark.parametrize(
    ("arguments", "flag", "expected"),
    [
        (("--gpu_memory_utilization", "0.7"), "--gpu-memory-utilization", 0.7),
        (("--gpu-memory-utilization=0.7",), "--gpu-memory-utilization", 0.7),
        (("--gpu-memory-util", "0.7"), "--gpu-memory-utilization", 0.7),
        (("-tp", "2"), "--tensor-parallel-size", 2),
        (("--speculative_config", '{"method":"mtp"}'), "--speculative-config", {"method": "mtp"}),
        (("--speculative-config.method", "mtp"), "--speculative-config", {"method": "mtp"}),
        (("--enforce-eager",), "--enforce-eager", True),
        (("--gpu-memory-utilization", "0.7", "--gpu-memory-utilization", "0.8"), "--gpu-memory-utilization", 0.8),
    ],
)
def test_flags_of_vllm(arguments: tuple[str, ...], flag: str, expected: object) -> None:
    """Flags are understood with dashes and underscores, shortened, joined by =, and the last one counts."""
    read = flags.read(vllm_flags.TABLE, ("m", *arguments), {})
    assert (read.get(flag), read.positional, read.unknown_flags) == (expected, ["m"], [])


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--gpu-memory-utilization", "1.5"), ("--gpu-memory-utilization", "nan"), ("--max-num-seqs", "-1"),
     ("--tensor-parallel-size", "two"), ("--speculative-config", "{"), ("--kv-cache-memory-bytes", "10GB")],
)  # fmt: skip
def test_values_that_are_none(flag: str, value: str) -> None:
    """A value that the engine would refuse is named, and not used."""
    read = flags.read(vllm_flags.TABLE, ("m", flag, value), {})
    assert read.get(flag) is None
    assert [unknown for unknown in read.unknowns if flag in unknown and value in unknown]


def test_flags_that_nobody_knows() -> None:
    """A flag that is in no table is named, with its value left out of the rest; known ones beside it are not."""
    words = ("m", "--brand-new-cache", "7", "--served-model-name", "a", "b", "--trust-remote-code", "--port", "1")
    read = flags.read(vllm_flags.TABLE, words, {})
    assert (read.unknown_flags, read.positional) == (["--brand-new-cache"], ["m"])


_FLAGS = ["-", "--", "-tp", "--model", "--gpu-memory-utilization", "=", "--x=1", "-O3", "--speculative-config.method"]
_MORE = ["--max-model-len", "--hicache-size", "-c", "2", "0.5", "m", "{", "-1", "auto", "1e9", "99999999999", ""]


@given(
    st.sampled_from(["vllm", "sglang", "llama.cpp", "ollama"]), st.lists(st.sampled_from([*_FLAGS, *_MORE]), max_size=8)
)
def test_any_words(engine: str, words: list[str]) -> None:
    """Whatever a command line holds, it comes to an estimate, and without a model never to a yes."""
    estimate = estimate_of(engine, *words)
    assert all(item.amount.low <= item.amount.likely <= item.amount.high for item in estimate.items)
    assert verdict_of(estimate) in (Verdict.NO, Verdict.UNKNOWN)


def test_a_larger_fraction_is_never_safer(tmp_path: Path) -> None:
    """Verdicts go from fits over tight to no as the fraction grows, and never back."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    order = [Verdict.FITS, Verdict.TIGHT, Verdict.NO]
    common = ("vllm", str(model), "--max-model-len", "4096", "--gpu-memory-utilization")
    found = [order.index(verdict_of(estimate_of(*common, f"0.{each}"))) for each in range(20, 100)]
    assert found == sorted(found)
    assert set(found) == {0, 1, 2}


# --- SGLang -----------------------------------------------------------------------------------------


def test_the_default_fraction_of_sglang(tmp_path: Path) -> None:
    """Without a fraction SGLang keeps back what it expects steps and graphs to take: some 13 GiB here."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    estimate = estimate_of("sglang", "--model-path", str(model))
    static = likely(estimate, "weights") + likely(estimate, "keys and values")
    assert 12 * GIB < spark().total - static < 15 * GIB


def test_a_draft_model_of_sglang_is_outside(tmp_path: Path) -> None:
    """A draft model (EAGLE-3) comes on top of the static fraction, which killed a service that had fitted without."""
    model, draft = write_model(tmp_path / "m", LLAMA_8B, gib(15)), write_model(tmp_path / "d", None, gib(3))
    common = ("--model-path", str(model), "--mem-fraction-static", "0.4")
    plain = estimate_of("sglang", *common)
    with_draft = estimate_of(
        "sglang", *common, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)
    )
    assert with_draft.steady.likely - plain.steady.likely == gib(3)


@pytest.mark.parametrize(("ratio", "expected"), [("2", 2.0), ("0.5", 0.5)])
def test_a_ratio_is_of_the_cache(tmp_path: Path, ratio: str, expected: float) -> None:
    """--hicache-ratio is a multiple of the cache on the GPU."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    arguments = ("--model-path", str(model), "--mem-fraction-static", "0.2", "--enable-hierarchical-cache")
    estimate = estimate_of("sglang", *arguments, "--hicache-ratio", ratio)
    assert likely(estimate, "hierarchical cache") == round(expected * likely(estimate, "keys and values"))


def test_flags_of_sglang() -> None:
    """Names, other names and beginnings of names are understood."""
    words = ("--model-path", "m", "--tp", "2", "--mem-frac", "0.5", "--enable-hicache", "--trust-remote-code")
    read = flags.read(sglang_flags.TABLE, words, {})
    assert (read.get("--tp-size"), read.get("--mem-fraction-static")) == (2, 0.5)
    assert read.get("--enable-hierarchical-cache") is True
    assert read.unknown_flags == []


def test_flags_that_sglang_refuses(tmp_path: Path) -> None:
    """SGLang takes no `_` in a flag: it is said, and its own default is no figure then."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    estimate = estimate_of("sglang", "--model-path", str(model), "--mem_fraction_static", "0.4")
    assert "write --mem-fraction-static" in estimate.unknowns[0]
    assert all(item.name != "keys and values" for item in estimate.items)
    assert verdict_of(estimate) is Verdict.UNKNOWN
    assert flags.read(sglang_flags.TABLE, ("--model-path", "m", "--ep", "1"), {}).unknown_flags == []


# --- llama.cpp and Ollama ---------------------------------------------------------------------------


def test_a_quantized_cache_of_llama(tmp_path: Path) -> None:
    """q8_0 for keys and values takes 34 bytes where f16 takes 64."""
    model = write_gguf(tmp_path / "m.gguf", QWEN3_NEXT_GGUF, gib(1))
    plain = estimate_of("llama.cpp", "-m", str(model), "-c", "65536", "-np", "1")
    small = estimate_of("llama.cpp", "-m", str(model), "-c", "65536", "-np", "1", "-ctk", "q8_0", "-ctv", "q8_0")
    tokens = 65536 * 12 * 2 * (256 + 256)
    assert likely(plain, "keys and values") - likely(small, "keys and values") == tokens * 2 - tokens * 34 // 32


def test_a_draft_model_of_llama(tmp_path: Path) -> None:
    """A draft model (-md) has weights, a cache and a graph of its own, in a line of its own."""
    model = write_gguf(tmp_path / "m.gguf", QWEN3_NEXT_GGUF, gib(10))
    draft = write_gguf(tmp_path / "d.gguf", QWEN3_NEXT_GGUF, gib(1))
    plain = estimate_of("llama.cpp", "-m", str(model), "-c", "8192")
    drafted = estimate_of("llama.cpp", "-m", str(model), "-c", "8192", "-md", str(draft))
    assert drafted.steady.likely - plain.steady.likely > gib(1)
    assert likely(drafted, "draft model") > gib(1)


def test_llama_without_a_context(tmp_path: Path) -> None:
    """Without -c the context of the model is taken, and that is said."""
    model = write_gguf(tmp_path / "m.gguf", QWEN3_NEXT_GGUF, gib(1))
    estimate = estimate_of("llama.cpp", "-m", str(model))
    assert estimate.concurrency["kv_tokens"] == 262144
    assert any("no -c" in warning for warning in estimate.warnings)


def test_variables_of_llama() -> None:
    """An environment variable does what the flag does, and the flag goes before it."""
    environment = {"LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_ARG_N_PARALLEL": "2"}
    read = flags.read(llama_flags.TABLE, ("-m", "x", "-np", "3", "-ngl", "99", "-fa", "on"), environment)
    assert (read.get("--ctx-size"), read.get("--parallel"), read.unknown_flags) == (4096, 3, [])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "names no model"),
        (("-m", "/no/such.gguf"), "not found"),
        (("-m", "$MODEL"), "cannot be told"),
        (("-hf", "a/b:Q4_K_M"), "not in a model cache"),
    ],
)
def test_llama_without_a_file(arguments: tuple[str, ...], why: str) -> None:
    """A model that is not here is no figure."""
    estimate = estimate_of("llama.cpp", *arguments)
    assert any(why in unknown for unknown in estimate.unknowns)
    assert verdict_of(estimate) is Verdict.UNKNOWN


def test_ollama_takes_the_largest_of_its_models(tmp_path: Path) -> None:
    """Ollama names no model: the largest that was pulled counts, and as many more as it keeps loaded are possible."""
    models = tmp_path / "models"
    for name, size in (("big", 20), ("mid", 8), ("small", 2)):
        blob = models / "blobs" / f"sha256-{name}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(blob, QWEN3_NEXT_GGUF, gib(size))
        manifest = models / "manifests" / "registry.ollama.ai" / "library" / name / "latest"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(
            f'{{"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{name}","size":1}}]}}'
        )
    environment = {"OLLAMA_MODELS": str(models), "OLLAMA_CONTEXT_LENGTH": "8192", "OLLAMA_MAX_LOADED_MODELS": "2"}
    estimate = estimate_of("ollama", environment=environment)
    assert estimate.model == "big:latest"
    assert abs(likely(estimate, "weights") - gib(20)) < MIB
    others = next(item.amount for item in estimate.items if item.name == "further models")
    assert (others.low, round(others.high / GIB)) == (0, 8)


def test_a_model_of_ollama_with_its_own_context(tmp_path: Path) -> None:
    """A model's own num_ctx goes before the server's context."""
    models = tmp_path / "models"
    (models / "blobs").mkdir(parents=True)
    write_gguf(models / "blobs" / "sha256-m", QWEN3_NEXT_GGUF, gib(2))
    (models / "blobs" / "sha256-p").write_text('{"num_ctx": 65536}')
    manifest = models / "manifests" / "r" / "library" / "m" / "latest"
    manifest.parent.mkdir(parents=True)
    kinds = (("model", "sha256:m"), ("params", "sha256:p"))
    layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest} for kind, digest in kinds]
    manifest.write_text(json.dumps({"layers": layers}))
    environment = {"OLLAMA_MODELS": str(models), "OLLAMA_CONTEXT_LENGTH": "4096"}
    estimate = estimate_of("ollama", environment=environment)
    tokens = 65536 * 12 * 2 * (256 + 256) * 2
    assert tokens < likely(estimate, "keys and values") < tokens * 1.1


def test_an_engine_that_is_not_known() -> None:
    """Of another engine nothing is computed."""
    estimate = estimate_of("lmdeploy", "serve", "api_server", "m")
    assert (estimate.items, verdict_of(estimate)) == ((), Verdict.UNKNOWN)
    assert "lmdeploy" in estimate.unknowns[0]
