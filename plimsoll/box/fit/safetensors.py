"""The headers of safetensors files: how many bytes of tensors, of which types, without reading a tensor.

A file is 8 bytes of length, little-endian, that many bytes of JSON, then the tensors without a gap. Nothing in it is
trusted: what is not as it should be is one CannotTellError.
"""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box.fit.model import CannotTellError

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own library."""
MAX_PARSED_BYTES = 2 << 20
"""Headers up to this sum are read in full, some 20 ms; of larger ones the lengths alone, which give the same sum."""
_LENGTH_BYTES = 8

BITS: Mapping[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """One file's tensors: their bytes, and the bytes by type where the header was read in full."""

    tensor_bytes: int
    by_type: Mapping[str, int] | None
    tensors: Mapping[str, int] | None
    """Bytes by name."""


def header_bytes(path: str) -> int:
    """Return the length of a file's header; raises CannotTellError and OSError."""
    if not os.path.isfile(path):
        raise CannotTellError(f"{path}: is no regular file")
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        first = file.read(_LENGTH_BYTES + 1)
    if len(first) <= _LENGTH_BYTES:
        raise _damaged(path, f"{size} bytes are no safetensors file")
    length: int = struct.unpack("<Q", first[:_LENGTH_BYTES])[0]
    if length > MAX_HEADER_BYTES:
        raise _damaged(path, f"a header of {length} bytes cannot be (the format allows {MAX_HEADER_BYTES})")
    if _LENGTH_BYTES + length > size:
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")
    if first[_LENGTH_BYTES:] != b"{":
        raise _damaged(path, "its header does not begin with {")
    return length


def read(path: str, length: int, *, in_full: bool) -> Header:
    """Return a file's header of `length` bytes; raises CannotTellError and OSError."""
    data_bytes = os.stat(path).st_size - _LENGTH_BYTES - length
    if not in_full:
        return Header(data_bytes, None, None)
    with open(path, "rb") as file:
        file.seek(_LENGTH_BYTES)
        raw = file.read(length)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON ({str(error)[:80]})") from error
    if not isinstance(document, dict):
        raise _damaged(path, "its header is no JSON object")
    tensors = {name: _tensor(path, name, each) for name, each in document.items() if name != "__metadata__"}
    end = max((each[2] for each in tensors.values()), default=0)
    if end != data_bytes:
        raise _damaged(path, f"its tensors are {end} bytes by the header, and {data_bytes} in the file")
    by_type: dict[str, int] = {}
    for kind, size, _end in tensors.values():
        by_type[kind] = by_type.get(kind, 0) + size
    return Header(data_bytes, by_type, {name: size for name, (_kind, size, _end) in tensors.items()})


def _tensor(path: str, name: str, described: Any) -> tuple[str, int, int]:  # noqa: ANN401  # as JSON has it
    """Return a tensor's type, its bytes and where it ends."""
    try:
        kind, shape, (start, end) = described["dtype"], described["shape"], described["data_offsets"]
        if any(type(each) is not int for each in (*shape, start, end)):
            # a text as a length would be repeated as often as the next one says
            raise TypeError("no whole number")  # noqa: TRY301  # all that is wrong with a tensor is one
        elements = 1
        for length in shape:
            elements *= length
        expected = -(-elements * BITS[kind] // 8) if kind in BITS else end - start
        fine = elements >= 0 and 0 <= start <= end and expected == end - start
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, f"tensor {name[:80]} is not described as the format wants") from error
    if not fine:
        raise _damaged(path, f"tensor {name[:80]}: {kind} {shape} is not {end - start} bytes")
    return kind, end - start, end


def _damaged(path: str, why: str) -> CannotTellError:
    return CannotTellError(f"{path}: damaged safetensors header: {why}; download the file again")


def read_all(paths: list[str]) -> Header:
    """Return the sum over a model's files; raises CannotTellError and OSError."""
    lengths = {path: header_bytes(path) for path in paths}
    in_full = sum(lengths.values()) <= MAX_PARSED_BYTES
    headers = [read(path, length, in_full=in_full) for path, length in lengths.items()]
    by_type: dict[str, int] = {}
    tensors: dict[str, int] = {}
    for header in headers:
        tensors |= header.tensors or {}
        for kind, size in (header.by_type or {}).items():
            by_type[kind] = by_type.get(kind, 0) + size
    sizes = sum(header.tensor_bytes for header in headers)
    return Header(sizes, by_type if in_full else None, tensors if in_full else None)
