"""A model's files on the disk: which of them count, and what is said where they are not whole."""

import json
from pathlib import Path

import pytest

from plimsoll.box.fit import checkpoint
from plimsoll.box.fit.model import CannotTellError, Launch
from plimsoll.box.host import Host
from tests.unit.fit_builders import LLAMA_8B, QWEN3_NEXT_GGUF, gib, launch, write_gguf, write_model, write_safetensors


def _load(path: Path | str, wanted: str = "", asked: Launch | None = None) -> checkpoint.Checkpoint:
    return checkpoint.load(Host(), asked or launch("vllm"), str(path), wanted=wanted)


def test_files_of_an_index(tmp_path: Path) -> None:
    """The files that the index lists count, others beside them do not."""
    for name, size in (("model-1.safetensors", 100), ("model-2.safetensors", 60), ("consolidated.safetensors", 160)):
        write_safetensors(tmp_path / name, {name: ("U8", (size,), size)})
    weights = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / checkpoint.INDEX).write_text(json.dumps({"metadata": {"total_size": 160}, "weight_map": weights}))
    assert _load(tmp_path).weight_bytes == 160
    (tmp_path / checkpoint.INDEX).unlink()
    assert _load(tmp_path).weight_bytes == 160


def test_files_that_are_missing(tmp_path: Path) -> None:
    """Where files of an index are not there its total counts, and that is said; without a total there is no figure."""
    write_safetensors(tmp_path / "model-1.safetensors", {"a": ("U8", (100,), 100)})
    index = {
        "metadata": {"total_size": 132_600_000_000},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"},
    }
    (tmp_path / checkpoint.INDEX).write_text(json.dumps(index))
    found = _load(tmp_path)
    assert found.weight_bytes == 132_600_000_000
    assert "1 of its files are not there" in found.basis
    (tmp_path / checkpoint.INDEX).write_text(json.dumps({**index, "metadata": {}}))
    with pytest.raises(CannotTellError, match=r"model-2\.safetensors"):
        _load(tmp_path)


def test_one_gguf_of_several(tmp_path: Path) -> None:
    """Of several GGUF models in a repository the quantization tells which; without one they are named."""
    for name, size in (("m-Q4_K_M.gguf", 4), ("m-Q8_0.gguf", 8), ("mmproj-f16.gguf", 1)):
        write_gguf(tmp_path / name, QWEN3_NEXT_GGUF, gib(size))
    assert abs(_load(tmp_path, "q8_0").weight_bytes - gib(8)) < 100
    with pytest.raises(CannotTellError, match="2 GGUF models"):
        _load(tmp_path)
    assert _load(tmp_path / "m-Q4_K_M.gguf").architecture.name == "qwen3next"


def test_a_split_gguf_in_a_directory_of_its_own(tmp_path: Path) -> None:
    """The parts of a split model are one model, wherever in the repository they lie."""
    (tmp_path / "UD-IQ4_XS").mkdir()
    for number in (1, 2):
        write_gguf(tmp_path / "UD-IQ4_XS" / f"m-UD-IQ4_XS-{number:05}-of-00002.gguf", QWEN3_NEXT_GGUF, 3400)
    assert _load(tmp_path, "UD-IQ4_XS").weight_bytes == 6800


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"config.json": "{}"}, "no weights in it"),
        ({"model.safetensors": "x"}, "safetensors"),
        ({"config.json": "[]", "pytorch_model.bin": "x"}, "no JSON object"),
        ({"config.json": "{", "pytorch_model.bin": "x"}, "no JSON"),
        ({checkpoint.INDEX: "{", "a.safetensors": "x"}, "no JSON"),
    ],
)
def test_directories_that_are_no_model(tmp_path: Path, files: dict[str, str], why: str) -> None:
    """A directory that is not whole is an error with the file and the reason."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CannotTellError, match=why):
        _load(tmp_path)


def test_weights_without_a_description(tmp_path: Path) -> None:
    """Without a config.json the weights are known, and what is kept per token is said not to be."""
    found = _load(write_model(tmp_path / "m", None, 1000))
    assert found.weight_bytes == 1000
    assert "no config.json" in found.architecture.unknown


def test_weights_in_the_old_form(tmp_path: Path) -> None:
    """Of .bin files the size counts, and the basis says so."""
    (tmp_path / "pytorch_model-1.bin").write_bytes(bytes(70))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    found = _load(tmp_path)
    assert (found.weight_bytes, found.kind) == (70, "bin")
    assert found.architecture.caches


def test_a_revision(tmp_path: Path) -> None:
    """A revision is looked up in the cache; several snapshots without a main one are not chosen from."""
    repository = tmp_path / "hub" / "models--a--b"
    for name, size in (("one", 1000), ("two", 2000)):
        write_model(repository / "snapshots" / name, LLAMA_8B, size)
    asked = launch("vllm", environment={"HF_HOME": str(tmp_path)})
    with pytest.raises(CannotTellError, match="not in a model cache"):
        _load("a/b", asked=asked)
    assert checkpoint.load(Host(), asked, "a/b", revision="two").weight_bytes == 2000


@pytest.mark.parametrize("reference", ["", "$MODEL", "/no/such", "./gone", "a/b/c/d", "no/such"])
def test_references_that_lead_nowhere(reference: str) -> None:
    """A model that is not here is an error that names it."""
    with pytest.raises(CannotTellError):
        _load(reference)
