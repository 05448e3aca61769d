"""Routers: presets of llama-server as llama.cpp reads them."""

from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.model import Estimate, Verdict
from plimsoll.box.fit.verdict import judge
from tests.unit.fit_builders import QWEN3_NEXT_GGUF, context, gib, spark, write_gguf
from tests.unit.fit_sources import launches, written

# --- presets ----------------------------------------------------------------------------------------


def _presets(tmp_path: Path, text: str, *flags: str) -> list[Estimate]:
    write_gguf(tmp_path / "m.gguf", QWEN3_NEXT_GGUF, gib(1))
    path = written(tmp_path, "p.ini", text.replace("FILE", str(tmp_path / "m.gguf")))
    return ask.estimates(launches("llama-server", "--models-preset", path, *flags), context())


def _settings(estimate: Estimate) -> dict[str, object]:
    return {each.flag: each.value for each in estimate.settings}


@pytest.mark.parametrize(
    ("line", "flag", "expected"),
    [
        ("flash-attn = on", "--flash-attn", "on"),
        ("fa = off", "--flash-attn", "off"),
        ("LLAMA_ARG_FLASH_ATTN = true", "--flash-attn", "true"),
        ("fit = off", "--fit", False),
        ("swa-full = false", "--swa-full", None),
        ("swa-full = on", "--swa-full", True),
        ("LLAMA_ARG_SWA_FULL = 1", "--swa-full", True),
        ("cpu-moe = 0", "--cpu-moe", None),
        ("kv-unified = off", "--no-kv-unified", True),
        ("no-kv-unified = false", "--kv-unified", True),
        ("kvu = on", "--kv-unified", True),
        ("no-mmap = true", "--no-mmap", True),
        ("cram = 512", "--cache-ram", 512),
        ("ctxcp = 3", "--ctx-checkpoints", 3),
        ("ncmoe = 4", "--n-cpu-moe", 4),
        ("fitt = 2048", "--fit-target", "2048"),
        ("cmoe = on", "--cpu-moe", True),
        ("ub = 256", "--ubatch-size", 256),
        ("LLAMA_ARG_N_PARALLEL = 2", "--parallel", 2),
        ("LLAMA_ARG_BATCH = 1024", "--batch-size", 1024),
        ("LLAMA_ARG_UBATCH = 128", "--ubatch-size", 128),
        ("parallel = 2 ; two at a time", "--parallel", 2),
        ("parallel = 2\t# two at a time", "--parallel", 2),
    ],
)
def test_options_of_presets(tmp_path: Path, line: str, flag: str, expected: object) -> None:
    """An option that has a value keeps it, a switch becomes bare or its other way; none takes the next line's."""
    found = _presets(tmp_path, f"[*]\n{line}\nctx-size = 8192\n[m]\nmodel = FILE\n")[0]
    assert (_settings(found).get(flag), _settings(found)["--ctx-size"]) == (expected, 8192)
    assert (found.unknown_flags, found.unknowns) == ((), ())


@pytest.mark.parametrize("line", ["jinja = on", "no-warmup = 1", "threads = 8", "warmup = off", "version = 1"])
def test_options_of_presets_that_take_no_memory(tmp_path: Path, line: str) -> None:
    """What is in none of the tables of memory is known all the same."""
    found = _presets(tmp_path, f"{line}\n[m]\n{line}\nc = 4096\nmodel = FILE\n")
    assert [(_settings(each)["--ctx-size"], each.unknown_flags) for each in found] == [(4096, ())]


def test_an_option_of_presets_that_nobody_knows(tmp_path: Path) -> None:
    """An unknown option is named, and takes nothing from those after it; one that llama.cpp refuses is no yes."""
    found = _presets(tmp_path, "[m]\nbrand-new = on\nc = 4096\nmodel = FILE\n")[0]
    assert (found.unknown_flags, _settings(found)["--ctx-size"]) == (("--brand-new",), 4096)
    refused = _presets(tmp_path, "[m]\nctx_size = 4096\nmodel = FILE\n")
    assert refused[0].unknowns[0].endswith("p.ini:2: llama.cpp takes no ctx_size in presets: write ctx-size")
    assert judge(refused, spark()).verdict is Verdict.UNKNOWN
    assert "p.ini:2: is neither" in _presets(tmp_path, "[m]\nctx-size 4096\n")[0].unknowns[0]


@pytest.mark.parametrize(
    ("section", "flags", "expected"),
    [
        ("", (), 65536),
        ("c = 4096", (), 4096),
        ("LLAMA_ARG_CTX_SIZE = 4096", (), 4096),
        ("c = 4096", ("--ctx-size", "131072"), 131072),
        ("ctx-size = 4096", ("-c", "131072"), 131072),
    ],
)
def test_what_goes_before_what_in_presets(tmp_path: Path, section: str, flags: tuple[str, ...], expected: int) -> None:
    """The command line goes before a model's section, and that before the section of all."""
    text = f"[*]\nctx-size = 65536\n[m] ; the only one\nmodel = FILE\n{section}\n"
    assert _settings(_presets(tmp_path, text, *flags)[0])["--ctx-size"] == expected


def test_a_switch_that_is_undone_in_presets(tmp_path: Path) -> None:
    """Both ways of a switch are one option: the later section goes before, and the command line before both."""
    text = "[*]\nkv-unified = on\nswa-full = on\n[m]\nno-kv-unified = on\nswa-full = off\nmodel = FILE\n"
    found = _settings(_presets(tmp_path, text)[0])
    assert (found.get("--kv-unified"), found.get("--no-kv-unified"), found.get("--swa-full")) == (None, True, None)
    found = _settings(_presets(tmp_path, text, "--kv-unified")[0])
    assert (found.get("--kv-unified"), found.get("--no-kv-unified")) == (True, None)


def test_keys_before_the_first_section(tmp_path: Path) -> None:
    """They are those of a model called default, and hold for no other; where they name no model, that is said."""
    found = _presets(tmp_path, "version = 1\nctx-size = 8192\n[m]\nmodel = FILE\n")
    assert [(each.launch.name, _settings(each).get("--ctx-size")) for each in found] == [("m", None)]
    assert any("p.ini:1: this is for a model called default" in note for note in found[0].launch.notes)
    found = _presets(tmp_path, "ctx-size = 8192\nmodel = FILE\n[m]\nmodel = FILE\n")
    assert {each.launch.name: _settings(each).get("--ctx-size") for each in found} == {"default": 8192, "m": None}
