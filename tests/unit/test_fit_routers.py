"""Routers: presets of llama-server as llama.cpp reads them, and what llama-swap runs at the same time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.model import Amount, CannotTellError, Estimate, Item, Verdict
from plimsoll.box.fit.verdict import judge, together
from plimsoll.box.host import Host
from tests.unit.fit_builders import LLAMA_8B, QWEN3_NEXT_GGUF, context, gib, spark, write_gguf, write_model
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


# --- llama-swap -------------------------------------------------------------------------------------

SIZES = {"chat": 0.4, "code": 0.3, "embed": 0.1, "draw": 0.2}


def _swap(tmp_path: Path, rest: str) -> tuple[list[Estimate], float]:
    """Return the models of a configuration, and how much of the box their budgets come to, as a fraction."""
    models = "".join(
        f"  {name}:\n    cmd: vllm serve a/{name} --gpu-memory-utilization {size}\n" for name, size in SIZES.items()
    )
    path = written(tmp_path, "config.yaml", f"models:\n{models}{rest}")
    found = [replace(each, unknowns=()) for each in launches(path)]
    estimates = [Estimate(each, (Item("budget", Amount.exactly(round(SIZES[each.name] * 100)), ""),)) for each in found]
    return estimates, together(estimates)[0].likely / 100


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("", 0.4),
        ("  a: {members: [chat, code]}\n  b: {members: [embed, draw]}\n", 0.4),
        ("  a: {swap: false, members: [code, embed]}\n", 0.4),
        ("  a: {swap: false, members: [chat, code]}\n", 0.7),
        ("  a: {swap: false, members: [chat, code]}\n  b: {swap: false, members: [embed, draw]}\n", 0.7),
        ("  a: {persistent: true, members: [chat, code]}\n  b: {members: [embed, draw]}\n", 0.6),
        ("  a: {exclusive: false, swap: false, members: [code, embed]}\n", 0.8),
        ("  a: {exclusive: false, members: [code, embed]}\n  b: {persistent: true, members: [draw]}\n", 0.9),
    ],
)
def test_groups_of_llama_swap(tmp_path: Path, groups: str, expected: float) -> None:
    """Groups that exclude each other count as the largest; persistent ones and those that exclude none stay beside."""
    assert _swap(tmp_path, f"groups:\n{groups}" if groups else "")[1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({"pair": "x & y"}, 0.7),
        ({"one": "x | y"}, 0.4),
        ({"all": "(x | y) & z & w"}, 0.7),
        ({"all": "x | y & z"}, 0.4),
        ({"base": "y | z", "all": "+base & w & y"}, 0.6),
        ({"all": "+base & w", "base": "y & z"}, 0.6),
        ({"small": "z & w"}, 0.4),
        ({"twice": "x & x"}, 0.4),
    ],
)
def test_the_matrix_of_llama_swap(tmp_path: Path, sets: Mapping[str, str], expected: float) -> None:
    """Of the sets that run together the largest counts; a model in no set runs alone."""
    rows = "".join(f"    {name}: '{text}'\n" for name, text in sets.items())
    matrix = f"matrix:\n  vars: {{x: chat, y: code, z: embed, w: draw}}\n  sets:\n{rows}"
    assert _swap(tmp_path, matrix)[1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        ("{vars: {x: chat}, sets: {a: 'x & q'}}", "names q, which is none of the vars"),
        ("{vars: {x: chat}, sets: {a: '+b', b: '+a'}}", "inside of itself"),
        ("{vars: {x: chat}, sets: {a: '+b'}}", "is no set"),
        ("{vars: {x: chat}, sets: {a: '(x'}}", "is not understood"),
        ("{vars: {x: chat}, sets: {a: 'x x'}}", "is not understood"),
        ("{vars: {x: chat}, sets: {a: 'x &'}}", "is not understood"),
        ("{vars: {x: chat}}", "needs vars and sets"),
        ("[x]", "no mapping"),
        (f"{{vars: {{x: chat}}, sets: {{a: '{'&'.join(['(x|x|x|x)'] * 9)}'}}}}", "more than 1000 combinations"),
        (f"{{vars: {{x: chat}}, sets: {{a: '{'(' * 5000}x{')' * 5000}'}}}}", "is not understood"),
    ],
)
def test_a_matrix_that_cannot_be_followed(tmp_path: Path, matrix: str, why: str) -> None:
    """What llama-swap refuses, or what is too much, is one error with its place."""
    with pytest.raises(CannotTellError, match=rf"config\.yaml:10: .*{why}"):
        _swap(tmp_path, f"matrix: {matrix}\n")


def test_groups_beside_a_matrix(tmp_path: Path) -> None:
    """Both at once are refused."""
    with pytest.raises(CannotTellError, match="exclude each other"):
        _swap(tmp_path, "groups: {}\nmatrix: {vars: {x: chat}, sets: {a: x}}\n")


def test_models_that_run_together_are_judged_together(tmp_path: Path) -> None:
    """Two models of a set that fit alone do not fit together; what is beside them decides about advice as well."""
    model = write_model(tmp_path / "m", LLAMA_8B, gib(16))
    entry = f"    cmd: vllm serve {model} --max-model-len 8192 --gpu-memory-utilization 0.5\n"
    models = f"models:\n  one:\n{entry}  two:\n{entry}"
    for sets, verdict in (("x | y", Verdict.FITS), ("x & y", Verdict.NO)):
        text = f"{models}matrix:\n  vars: {{x: one, y: two}}\n  sets: {{all: '{sets}'}}\n"
        found = [ask.one(each, context()) for each in launches(written(tmp_path, "c.yaml", text))]
        assert judge(found, spark()).verdict is verdict


def test_variables_of_llama_swap(tmp_path: Path) -> None:
    """`${env.NAME}` is filled in from where llama-swap is started, in macros as well; what is not set is refused."""
    macros = "macros:\n  dir: ${env.HOME}/models\nmodels:\n  m:\n    cmd: |\n      # ${env.GONE}\n"
    path = written(tmp_path, "c.yaml", f"{macros}      llama-server -m ${{dir}}/x.gguf -c ${{env.SIZE}}\n")
    own = Host(environment={"HOME": "/home/x", "SIZE": "4096"})
    assert launches(path, host=own)[0].arguments == ("-m", "/home/x/models/x.gguf", "-c", "4096")
    with pytest.raises(CannotTellError, match=r"c\.yaml:5: \$\{env\.SIZE\} is not set"):
        launches(path)
