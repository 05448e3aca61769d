"""What vLLM keeps of its cache on the host, and flags whose form decides nothing about memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box.fit import flags, vllm_flags
from plimsoll.box.fit.model import Verdict
from tests.unit.fit_builders import LLAMA_8B, estimate_of, gib, verdict_of, write_model


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": gib(60)}}, {}, 60),
        ({"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": gib(8)}},
         {}, 8),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, {"LMCACHE_MAX_LOCAL_CPU_SIZE": "60"}, 60),
        ({"kv_connector": "LMCacheConnectorV1"}, {}, 5),
        ({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": gib(4)}},
            {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"lmcache.max_local_cpu_size": 2}},
        ]}}, {}, 6),
    ],
)  # fmt: skip
def test_connectors_that_keep_a_cache_on_the_host(
    tmp_path: Path, config: dict[str, Any], environment: dict[str, str], expected: int
) -> None:
    """What a connector pins of the host's memory comes on top of the budget."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    common = (str(model), "--gpu-memory-utilization", "0.4", "--max-model-len", "8192")
    plain = estimate_of("vllm", *common)
    with_it = estimate_of("vllm", *common, "--kv-transfer-config", json.dumps(config), environment=environment)
    assert with_it.steady.likely - plain.steady.likely == gib(expected)
    assert with_it.unknowns == ()


@pytest.mark.parametrize(
    ("config", "environment", "why"),
    [
        ('{"kv_connector":"SomeConnector"}', {}, "the connector SomeConnector takes"),
        ('{"kv_connector":"OffloadingConnector"}', {}, "cpu_bytes_to_use is missing"),
        ('{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":"$N"}}', {}, "no size"),
        ('{"kv_connector":"LMCacheConnectorV1"}', {"LMCACHE_CONFIG_FILE": "/l.yaml"}, "LMCACHE_CONFIG_FILE"),
        ('{"kv_connector":"LMCacheConnectorV1"}', {"LMCACHE_MAX_LOCAL_CPU_SIZE": "${N}"}, "no size"),
        ('{"kv_connector":"MultiConnector"}', {}, "names no connectors"),
        ("$CONFIG", {}, "is not known here"),
    ],
)
def test_connectors_that_are_not_known(tmp_path: Path, config: str, environment: dict[str, str], why: str) -> None:
    """What a connector takes is no guess: nothing fits for certain beside it."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    common = (str(model), "--gpu-memory-utilization", "0.4", "--max-model-len", "8192")
    estimate = estimate_of("vllm", *common, "--kv-transfer-config", config, environment=environment)
    assert any(why in each for each in estimate.unknowns)
    assert verdict_of(estimate) is Verdict.UNKNOWN


@pytest.mark.parametrize("size", ["$KV", "20GiB"])
@pytest.mark.parametrize("more", [(), ("--gpu-memory-utilization", "0.95")])
def test_a_size_of_the_cache_that_is_not_known(tmp_path: Path, size: str, more: tuple[str, ...]) -> None:
    """A fixed size goes before the fraction, so that no fraction stands in for one that is not understood."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(16))
    estimate = estimate_of("vllm", str(model), "--kv-cache-memory-bytes", size, *more)
    assert [item.name for item in estimate.items] == ["weights"]
    assert verdict_of(estimate) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "words", [("--compilation-config", "3"), ("-cc", "3"), ("-cc.mode", "3"), ("--compilation-config", '{"mode":3}')]
)
def test_a_level_of_compilation(tmp_path: Path, words: tuple[str, ...]) -> None:
    """It decides nothing about memory, in whatever form; the flag after it is read."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    estimate = estimate_of("vllm", str(model), *words, "--gpu-memory-utilization", "0.3", "--max-model-len", "8192")
    assert (estimate.unknowns, estimate.unknown_flags, verdict_of(estimate)) == ((), (), Verdict.FITS)


def test_a_key_of_a_flag_keeps_its_underscores() -> None:
    """`_` is the same as `-` in the name of a flag, not in what stands behind its dot."""
    words = ("m", "--speculative_config.num_speculative_tokens", "3", "--speculative-config.method", "ngram")
    read = flags.read(vllm_flags.TABLE, words, {})
    assert read.get("--speculative-config") == {"num_speculative_tokens": 3, "method": "ngram"}
