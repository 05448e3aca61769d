"""Small model files in the formats that engines read, written by hand; large ones are holes on the disk."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.box.fit import ask
from plimsoll.box.fit import box as boxes
from plimsoll.box.fit.box import Box
from plimsoll.box.fit.context import Context
from plimsoll.box.fit.model import GIB, Estimate, Launch, Verdict
from plimsoll.box.fit.verdict import judge
from plimsoll.box.host import Host

ALIGNMENT = 32
BF16_BYTES = 2
Q8_0 = (8, 32, 34)

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
}
QWEN3_NEXT_GGUF: dict[str, Any] = {
    "general.architecture": "qwen3next",
    "qwen3next.block_count": 48,
    "qwen3next.context_length": 262144,
    "qwen3next.embedding_length": 2048,
    "qwen3next.feed_forward_length": 5120,
    "qwen3next.attention.head_count": 16,
    "qwen3next.attention.head_count_kv": 2,
    "qwen3next.attention.key_length": 256,
    "qwen3next.attention.value_length": 256,
    "qwen3next.expert_count": 512,
    "qwen3next.expert_used_count": 10,
    "qwen3next.expert_feed_forward_length": 512,
    "qwen3next.ssm.conv_kernel": 4,
    "qwen3next.ssm.state_size": 128,
    "qwen3next.ssm.group_count": 16,
    "qwen3next.ssm.inner_size": 4096,
    "tokenizer.ggml.tokens": ["a"] * 3000,
}


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def gguf_value(value: Any) -> bytes:  # noqa: ANN401  # every kind that the format has
    """Return a value as GGUF writes it: its type and its content."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<IQ", 10, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", 9, 5, len(value)) + b"".join(struct.pack("<i", each) for each in value)


def gguf_header(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], int, int]]) -> bytes:
    """Return a header; `tensors` are `{name: (shape, type, bytes)}`."""
    found = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    found += b"".join(_text(key) + gguf_value(value) for key, value in metadata.items())
    offset = 0
    for name, (shape, kind, size) in tensors.items():
        found += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", each) for each in shape)
        found += struct.pack("<IQ", kind, offset)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return found


def write_gguf(path: Path, metadata: Mapping[str, Any], weight_bytes: int = 34 * 8) -> Path:
    """Write a GGUF file whose one tensor has so many bytes, a multiple of a row of Q8_0; return its path."""
    kind, block, size = Q8_0
    rows = weight_bytes // size
    header = gguf_header(metadata, {"blk.0.w": ((block, rows), kind, rows * size)})
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // ALIGNMENT) * ALIGNMENT + rows * size)
    return path


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> Path:
    """Write a safetensors file; `tensors` are `{name: (type, shape, bytes)}`. Returns its path."""
    described, offset = {}, 0
    for name, (kind, shape, size) in tensors.items():
        described[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(described).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + offset)
    return path


def write_model(directory: Path, config: Mapping[str, Any] | None, weight_bytes: int) -> Path:
    """Write a model of Hugging Face's form with so many bytes of weights; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    elements = weight_bytes // BF16_BYTES
    write_safetensors(directory / "model.safetensors", {"w": ("BF16", [elements], elements * BF16_BYTES)})
    return directory


def spark() -> Box:
    """Return an empty box of the size of a DGX Spark."""
    return boxes.of_size(121.6)


def context(box: Box | None = None, root: str = "") -> Context:
    """Return a question about an empty DGX Spark, or about `box`."""
    return Context(Host(root), box or spark())


def launch(engine: str, *arguments: str, **changes: Any) -> Launch:  # noqa: ANN401  # fields of a launch
    """Return one start of an engine."""
    return Launch(engine, engine, arguments, **changes)


def estimate_of(engine: str, *arguments: str, box: Box | None = None, **changes: Any) -> Estimate:  # noqa: ANN401
    """What one engine with these arguments takes."""
    return ask.one(launch(engine, *arguments, **changes), context(box))


def likely(of: Estimate, name: str) -> int:
    """The likely bytes of the first line of that name."""
    return next(item.amount.likely for item in of.items if item.name == name)


def verdict_of(of: Estimate, box: Box | None = None) -> Verdict:
    """Whether it fits, alone on its box."""
    return judge([of], box or spark()).verdict


def gib(size: float) -> int:
    """Return GiB as bytes, even, so that it is a whole number of 16-bit elements."""
    return round(size * GIB) // 2 * 2
