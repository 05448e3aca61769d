"""The header of a GGUF file, without the tensors: metadata, and how many bytes each tensor has.

Format: GGUF versions 2 and 3 (and 1, which has 32-bit counts), little-endian. Nothing in a file is trusted: every
count, length and depth has a bound, and a file that is not as it should be is one CannotTellError.
"""

import mmap
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plimsoll.box.fit.ggml_types import TYPES
from plimsoll.box.fit.model import CannotTellError

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
MAX_HEADER_BYTES = 64 << 20
"""The header of a model with a vocabulary of 262144 words is some 10 MB."""
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20
"""A model of 512 experts in 96 layers has some 1500: the experts of a layer are one tensor."""
MAX_KEY_BYTES = 1 << 16
MAX_TEXT_BYTES = 64 << 20
MAX_ELEMENTS = 1 << 22
"""Of an array; the longest in use are the merges of a tokenizer, some 500,000."""
MAX_KEPT = 1 << 12
"""Arrays up to this length are kept (one value a layer); longer ones belong to the tokenizer."""
MAX_ALL_KEPT = 1 << 16
"""Of all arrays together: a header of nothing but short ones would take thirty times its size."""
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Skipped:
    """An array that is not kept: texts, and what is longer than MAX_KEPT."""

    length: int


Value = str | int | float | bool | list[str | int | float | bool] | Skipped


@dataclass(frozen=True)
class Header:
    """What a file says of itself. `tensor_bytes` is the sum over its tensors, without the padding between them."""

    metadata: Mapping[str, Value]
    tensor_bytes: int
    tensor_count: int
    file_bytes: int
    largest_tensor_bytes: int
    tensors: Mapping[str, int]
    """Bytes by name."""


class _CutError(Exception):
    """The file ends before its header does, or says something that cannot be."""


class _Reader:
    def __init__(self, data: "bytes | mmap.mmap", limit: int) -> None:
        self.data = data
        self.limit = limit
        self.position = 0
        self.kept = 0
        """Values of arrays."""
        self.cut = f"it ends inside its header, or that is longer than {MAX_HEADER_BYTES >> 20} MiB"

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self.position + size > self.limit:
            raise _CutError(self.cut)
        value: int = struct.unpack_from(form, self.data, self.position)[0]
        self.position += size
        return value

    def text(self, count: str, most: int) -> str:
        length = self.number(count)
        if length > most:
            raise _CutError(f"a text of {length} bytes at byte {self.position} (at most {most} are possible)")
        if self.position + length > self.limit:
            raise _CutError(self.cut)
        raw = self.data[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8", "replace")

    def skip_texts(self, count: str, length: int) -> None:
        """Go past an array of texts; half of the work on a whole header is this loop."""
        unpack, size = struct.Struct(count).unpack_from, struct.calcsize(count)
        position = self.position
        try:
            for _ in range(length):
                position += size + unpack(self.data, position)[0]
        except (struct.error, OverflowError) as error:
            raise _CutError(self.cut) from error
        if position > self.limit:
            raise _CutError(self.cut)
        self.position = position


def read(path: str) -> Header:
    """Return the header of one file; raises CannotTellError for what is none, and OSError."""
    # a FIFO of that name would never end
    if not os.path.isfile(path):
        raise CannotTellError(f"{path}: is no regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(4) != MAGIC:
            raise CannotTellError(f"{path}: is no GGUF file (it does not begin with GGUF); name the model's file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _checked(path, data, size)


def _checked(path: str, data: "bytes | mmap.mmap", size: int) -> Header:
    try:
        return _parse(_Reader(data, min(size, MAX_HEADER_BYTES)), size)
    except _CutError as error:
        raise CannotTellError(f"{path}: damaged GGUF header: {error}; download the file again") from error


def _parse(reader: _Reader, size: int) -> Header:
    reader.position = len(MAGIC)
    version = reader.number("<I")
    if version not in VERSIONS:
        raise _CutError(f"version {version} is not known (1 to 3 are)")
    count = "<Q" if version > 1 else "<I"
    tensor_count, pairs = reader.number(count), reader.number(count)
    if tensor_count > MAX_TENSORS or pairs > MAX_PAIRS:
        raise _CutError(f"{tensor_count} tensors and {pairs} keys cannot be")
    metadata: dict[str, Value] = {}
    for _ in range(pairs):
        key = reader.text(count, MAX_KEY_BYTES)
        metadata[key] = _value(reader, reader.number("<I"), count)
    tensors, end = _tensors(reader, tensor_count, count)
    start = _aligned(reader.position, metadata)
    if start + end > size and tensor_count:
        raise _CutError(f"its tensors end at byte {start + end}, the file at {size}: it is not complete")
    sizes = tensors.values()
    return Header(metadata, sum(sizes), tensor_count, size, max(sizes, default=0), tensors)


def _value(reader: _Reader, kind: int, count: str) -> Value:
    if kind == _STRING:
        return reader.text(count, MAX_TEXT_BYTES)
    if kind == _ARRAY:
        return _array(reader, count)
    if kind not in _SCALARS:
        raise _CutError(f"a value of type {kind} at byte {reader.position} is not known")
    return reader.number(_SCALARS[kind])


def _array(reader: _Reader, count: str) -> Value:
    kind, length = reader.number("<I"), reader.number(count)
    if length > MAX_ELEMENTS:
        raise _CutError(f"an array of {length} values at byte {reader.position} cannot be")
    if kind == _STRING:
        reader.skip_texts(count, length)
        return Skipped(length)
    if kind not in _SCALARS:
        raise _CutError(f"an array of values of type {kind} at byte {reader.position} is not known")
    form = _SCALARS[kind]
    if length > MAX_KEPT or reader.kept + length > MAX_ALL_KEPT:
        reader.position += struct.calcsize(form) * length
        if reader.position > reader.limit:
            raise _CutError(reader.cut)
        return Skipped(length)
    reader.kept += length
    return [reader.number(form) for _ in range(length)]


def _tensors(reader: _Reader, tensor_count: int, count: str) -> tuple[dict[str, int], int]:
    """Return the bytes of every tensor, and where the last one ends, from the start of the data."""
    found: dict[str, int] = {}
    end = 0
    for _ in range(tensor_count):
        name = reader.text(count, MAX_KEY_BYTES)
        dimensions = reader.number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise _CutError(f"{name[:80]} has {dimensions} dimensions")
        shape = [reader.number(count) for _ in range(dimensions)]
        kind, offset = reader.number("<I"), reader.number("<Q")
        found[name] = _tensor_bytes(name, shape, kind)
        end = max(end, offset + found[name])
    return found, end


def _tensor_bytes(name: str, shape: list[int], kind: int) -> int:
    if kind not in TYPES:
        raise CannotTellError(f"tensor {name[:80]} is of type {kind}, whose size is not known here: weights unknown")
    label, block, size = TYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
    row = shape[0] if shape else 1
    if row % block:
        raise _CutError(f"{name[:80]} has rows of {row} elements, which are no whole blocks of {label}")
    return elements // block * size


def _aligned(position: int, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise _CutError(f"an alignment of {alignment!r} cannot be")
    return -(-position // alignment) * alignment


_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def parts(path: str) -> list[str]:
    """Return the paths of all files of a model that is split into several; the path itself where it is not."""
    match = _SPLIT.fullmatch(os.path.basename(path))
    if match is None:
        return [path]
    if not 0 < int(match["number"]) <= int(match["count"]):
        return [path]
    directory = os.path.dirname(path)
    names = (f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1))
    return [os.path.join(directory, name) for name in names]


def read_all(path: str, read_one: Callable[[str], Header] = read) -> Header:
    """Return the header of a model's first file, with the tensors of all of its files added up.

    Raises CannotTellError where a file of it is missing, and OSError.
    """
    paths = parts(path)
    missing = [each for each in paths if not os.path.isfile(each)]
    if missing:
        raise CannotTellError(f"{missing[0]}: not there, {len(missing)} of {len(paths)} files of the model are missing")
    headers = [read_one(each) for each in paths]
    tensors = {name: size for header in headers for name, size in header.tensors.items()}
    return Header(
        headers[0].metadata,
        sum(header.tensor_bytes for header in headers),
        sum(header.tensor_count for header in headers),
        sum(header.file_bytes for header in headers),
        max(header.largest_tensor_bytes for header in headers),
        tensors,
    )
