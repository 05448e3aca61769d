"""Headers of model files: the same bytes as the formats' own packages find, and one clear error for what is damaged."""

import base64
import json
import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.fit import checkpoint, ggml_types, gguf, safetensors
from plimsoll.box.fit.model import CannotTellError, Launch
from plimsoll.box.host import Host
from tests.unit.fit_builders import Q8_0, gguf_header, gguf_value, write_gguf, write_safetensors

# A file that the package gguf 0.19.0 wrote: F32, F16, Q8_0, Q4_K, MXFP4, IQ4_XS and Q6_K tensors, all kinds of values.
GGUF_OF_THE_PACKAGE = (
    b"c-rlfOHRWu5J27Z0~G}UqEsLub;mATpekL_6R-|$GI66i4su;6oQ4GlLE<9Zg9XH`-P%<ocC6+}j_vWw*yCh8zQ3yzLiWg-L(`v`"
    b"o`C>Kc}QhE%@o9HAz{CaH_bZdG^Z!-B%JUfo<(u75UNoI11H;Bhzp@$sUi-7si}6zF(K!k1Nj7!BooZFYJ^;R7F7y_$_f!qfhOBM"
    b"^$D;3G^5#5+msR*S@$}@h4*p_kVI)ApQ%jT^OSaH=bi-3SNGE}ag~XemKiU@lvAc}y4Ki)9y6PwJoc!$i3?x{<>32gP1oitW+1Xx"
    b"kRf9^4_DK9+mvjx)=fW{4{d00GauR_Ki}<!+wG{7I!nvB3qn3_3F(h&W<~?^4cskUtT+jrAFAmtc6>2*Guo5tLLPR+q)ODz+p#Y~"
    b"m3UpYuTx)4tHhpubbXOkiAQDY_XvU@2!bF8f*=TjAP9mW2!bF8g8VbTIpJ-N"
)

# Its GGUFReader adds up n_bytes of the tensors to this.
GGUF_TENSOR_BYTES = 6734
# A file that the package safetensors 0.8.0 wrote: 4 x 6 F16, 3 x 5 F32 and 7 U8.
SAFETENSORS_OF_THE_PACKAGE = (
    b"c-p;;K?;K~5Jf$T%z6k(t*Ll`-k_@@A>c?C27?)}BHp{pChaE0egE!%{(G<Dn+=R{#J0C=je&N9VVa#~Xu&h=2yW_W6r){f4nhhy"
    b"dO=T5GpDvBpy$<7{9mgRAcTia?OtKsA$+vcFa+WdM~PZ?N9nId=}dD*ebi`)N;XLpa`M(>;N^%#29>J2eJ{)6|9Jz#?@v7"
)

SAFETENSORS_BYTES = 4 * 6 * 2 + 3 * 5 * 4 + 7


def _written(path: Path, packed: bytes) -> Path:
    path.write_bytes(zlib.decompress(base64.b85decode(packed)))
    return path


def test_a_gguf_of_the_package(tmp_path: Path) -> None:
    """The tensors of a file that the format's own package wrote are added up to the byte, its values are read."""
    header = gguf.read(str(_written(tmp_path / "m.gguf", GGUF_OF_THE_PACKAGE)))
    assert header.tensor_bytes == GGUF_TENSOR_BYTES
    assert header.tensor_count == 7
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.attention.head_count_kv"] == [2, 4]
    assert header.metadata["x.neg"] == -5
    assert header.metadata["x.flag"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == gguf.Skipped(4)


def test_a_safetensors_file_of_the_package(tmp_path: Path) -> None:
    """The tensors of a file that the format's own package wrote are added up to the byte, by type."""
    header = safetensors.read_all([str(_written(tmp_path / "m.safetensors", SAFETENSORS_OF_THE_PACKAGE))])
    assert header.tensor_bytes == SAFETENSORS_BYTES
    assert header.by_type == {"F16": 48, "F32": 60, "U8": 7}


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (0, (3, 5), 60),
        (30, (7,), 14),
        (2, (64, 2), 72),
        (12, (512, 3), 864),
        (39, (64,), 34),
        (40, (128,), 72),
        (23, (256, 2), 272),
    ],
)
def test_the_bytes_of_a_quantized_tensor(tmp_path: Path, kind: int, shape: tuple[int, ...], expected: int) -> None:
    """A tensor has as many bytes as its blocks: F32, BF16, Q4_0, Q4_K, MXFP4, NVFP4, IQ4_XS."""
    path = tmp_path / "m.gguf"
    header = gguf_header({}, {"t": (shape, kind, expected)})
    path.write_bytes(header + bytes(-len(header) % 32 + expected))
    assert gguf.read(str(path)).tensor_bytes == expected


def test_a_model_in_several_gguf_files(tmp_path: Path) -> None:
    """The files of a split model are added up; with one missing there is no figure, but its name."""
    names = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for name in names:
        write_gguf(tmp_path / name, {"general.architecture": "llama"}, 34 * 10)
    assert gguf.read_all(str(tmp_path / names[0])).tensor_bytes == 3 * 340
    (tmp_path / names[1]).unlink()
    with pytest.raises(CannotTellError, match="00002-of-00003"):
        gguf.read_all(str(tmp_path / names[0]))


@given(cut=st.integers(0, 800))
def test_a_gguf_that_was_cut_off(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that ends anywhere inside of its header is an error that names it, never a figure."""
    whole = zlib.decompress(base64.b85decode(GGUF_OF_THE_PACKAGE))
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    path.write_bytes(whole[:cut])
    with pytest.raises(CannotTellError, match=r"m\.gguf"):
        gguf.read(str(path))


@given(position=st.integers(0, 863), value=st.integers(0, 255))
def test_a_gguf_with_a_wrong_byte(position: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A wrong byte anywhere in a header ends in a header or in CannotTellError, with nothing else raised."""
    content = bytearray(zlib.decompress(base64.b85decode(GGUF_OF_THE_PACKAGE)))
    content[position] = value
    path = tmp_path_factory.mktemp("wrong") / "m.gguf"
    path.write_bytes(content)
    try:
        found = gguf.read(str(path))
    except CannotTellError as error:
        assert "\n" not in str(error)
    else:
        assert 0 <= found.tensor_bytes <= len(content)


_START = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no GGUF file"),
        (b"PK\x03\x04" + bytes(100), "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (_START + struct.pack("<QQ", 1 << 60, 1), "tensors"),
        (_START + struct.pack("<QQ", 0, 1 << 40), "keys"),
        (_START + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 10 << 30), "10737418240 bytes"),
        (_START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 50), "cannot be"),
        (_START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "type 9"),
        (_START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 77), "type 77"),
        (_START + struct.pack("<QQQ", 0, 1, 17) + b"general.alignment" + gguf_value(0), "alignment"),
        (gguf_header({}, {"t": ((32, 4), 8, 136)}), "not complete"),
        (gguf_header({}, {"t": ((33,), 8, 34)}) + bytes(64), "no whole blocks"),
        (gguf_header({}, {"t": ((32,), 36, 34)}) + bytes(64), "type 36"),
        (_START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IQ", 8, 50), "ends inside its header"),
    ],
)
def test_a_damaged_gguf(tmp_path: Path, content: bytes, why: str) -> None:
    """What cannot be in a header is one error with the file and the reason, without reading or reserving gigabytes."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CannotTellError, match=why):
        gguf.read(str(path))


def test_a_header_of_nothing_but_short_arrays_is_not_kept(tmp_path: Path) -> None:
    """Arrays that are kept are so up to a limit for all of them together: a list takes eight times its bytes."""
    arrays = {f"k{number}": [number % 100] * 4000 for number in range(40)}
    pairs = b"".join(
        struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IIQ", 9, 0, len(values)) + bytes(values)
        for name, values in arrays.items()
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(_START + struct.pack("<QQ", 0, len(arrays)) + pairs)
    found = gguf.read(str(path)).metadata
    assert sum(len(each) for each in found.values() if isinstance(each, list)) <= gguf.MAX_ALL_KEPT
    assert found["k0"] == arrays["k0"]
    assert found["k39"] == gguf.Skipped(4000)


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf"])
def test_a_name_that_counts_no_parts_is_one_file(tmp_path: Path, name: str) -> None:
    """It is read as what it is, and not as the first of none."""
    path = write_gguf(tmp_path / name, {"general.architecture": "llama"})
    assert gguf.read_all(str(path)).tensor_count == 1


@pytest.mark.parametrize("shape", ['["aaaa",4000000000]', "[[0],4000000000]", "[1e308,1e308]", "[true,4]", '"22"'])
def test_a_shape_of_anything_but_numbers_is_damaged(tmp_path: Path, shape: str) -> None:
    """A text as a length would be repeated as often as the next one says, in gigabytes."""
    header = f'{{"a":{{"dtype":"F16","shape":{shape},"data_offsets":[0,8]}}}}'.encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(CannotTellError, match="not described as the format wants"):
        safetensors.read_all([str(path)])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no safetensors"),
        (struct.pack("<Q", 10 << 30) + b"{}", "10737418240 bytes cannot be"),
        (struct.pack("<Q", 1000) + b"{}", "in a file of"),
        (struct.pack("<Q", 2) + b"[]", "does not begin"),
        (struct.pack("<Q", 3) + b"{x}", "no JSON"),
        (struct.pack("<Q", 14) + b'{"a":{"b": 1}}', "not described"),
        (struct.pack("<Q", 52) + b'{"a":{"dtype":"F16","shape":[3],"data_offsets":[0,4]}', "no JSON"),
        (
            struct.pack("<Q", 54) + b'{"a":{"dtype":"F16","shape":[3],"data_offsets":[0,4]}}' + bytes(4),
            "is not 4 bytes",
        ),
        (struct.pack("<Q", 54) + b'{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}' + bytes(9), "in the file"),
        (struct.pack("<Q", 5_000) + b"{" + b'"a":[' * 990 + bytes(60), "no JSON"),
    ],
)
def test_a_damaged_safetensors_file(tmp_path: Path, content: bytes, why: str) -> None:
    """What cannot be in a header is one error with the file and the reason; a length of 10 GB is not believed."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CannotTellError, match=why):
        safetensors.read_all([str(path)])


def test_a_large_header_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where headers are too large to be read in time, the lengths alone give the same sum."""
    path = write_safetensors(tmp_path / "m.safetensors", {"a": ("F16", (8,), 16), "b": ("F32", (8,), 32)})
    monkeypatch.setattr(safetensors, "MAX_PARSED_BYTES", 10)
    header = safetensors.read_all([str(path)])
    assert (header.tensor_bytes, header.by_type) == (48, None)


def test_q8_0_is_as_it_is_written_here() -> None:
    """The row that the tests' own writer uses is the format's."""
    assert ggml_types.TYPES[Q8_0[0]][1:] == Q8_0[1:]


def test_an_index_of_too_many_files_takes_no_time(tmp_path: Path) -> None:
    """An index may name as many files as it has tensors, none of which is there."""
    names = {str(number): f"f{number}" for number in range(30_000)}
    (tmp_path / checkpoint.INDEX).write_text(json.dumps({"weight_map": names}))
    write_safetensors(tmp_path / "m.safetensors", {"a": ("F16", (8,), 16)})
    began_s = time.process_time()
    with pytest.raises(CannotTellError, match="29999 more files are missing"):
        checkpoint.load(Host(), Launch("vllm", "m", ()), str(tmp_path))
    assert time.process_time() - began_s < 2
