"""Words and flags that only a run would tell: they are named, and no default stands in for them."""

from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.model import Estimate, Verdict
from plimsoll.box.fit.verdict import judge
from tests.unit.fit_builders import LLAMA_8B, QWEN3_NEXT_GGUF, context, gib, spark, write_gguf, write_model
from tests.unit.fit_sources import command_lines, launches


@pytest.fixture(name="models")
def _models(tmp_path: Path) -> dict[str, str]:
    return {
        "M": str(write_model(tmp_path / "m", LLAMA_8B, gib(16))),
        "G": str(write_gguf(tmp_path / "g.gguf", QWEN3_NEXT_GGUF, gib(4))),
    }


def _asked(text: str, models: dict[str, str]) -> list[Estimate]:
    return ask.estimates(launches(text.replace("MODEL", models["M"]).replace("GGUF", models["G"])), context())


def _verdict(found: list[Estimate]) -> Verdict:
    return judge(found, spark()).verdict


@pytest.mark.parametrize(
    ("added", "place"),
    [
        ("A+=(--gpu-memory-utilization 0.3)", ":3"),
        ("A+=(--gpu-memory-util=0.3)", ":3"),
        ('A=("${A[@]}" --gpu_memory_utilization 0.3)', ":3"),
        ("A+=(--port 9)", ":3"),
        ("A+=(0.3)", ":3"),
    ],
)
def test_a_flag_that_a_condition_adds(models: dict[str, str], added: str, place: str) -> None:
    """A flag that decides, or that is there already, is not taken to be added: what holds is not known."""
    start = "A=(--max-model-len 8192 --gpu-memory-utilization 0.9 --port 8)\nif lspci | grep -q x; then"
    found = _asked(f'{start}\n{added}\nfi\nvllm serve MODEL "${{A[@]}}"', models)
    assert _verdict(found) is Verdict.UNKNOWN
    assert place in " ".join(found[0].unknowns)
    assert not any(item.name == "keys and values" for item in found[0].items)


@pytest.mark.parametrize(
    "added",
    ["A+=(--enable-auto-tool-choice --tool-call-parser hermes)", 'A=("${A[@]}" --trust-remote-code)'],
)
@pytest.mark.parametrize("before", ["--gpu-memory-utilization 0.3 --max-model-len 8192", ""])
def test_a_flag_without_memory_that_a_condition_adds(models: dict[str, str], added: str, before: str) -> None:
    """A flag that takes no memory may be there or not."""
    start = f"A=({before})\nif lspci | grep -q x; then {added}; fi\n"
    found = _asked(f'{start}vllm serve MODEL --gpu-memory-utilization 0.3 "${{A[@]}}"', models)
    assert not found[0].unknowns


@pytest.mark.parametrize(
    "command",
    [
        'mapfile -t MORE < site.flags\nvllm serve MODEL --max-model-len 8192 --gpu-memory-utilization 0.3 "${MORE[@]}"',
        "vllm serve MODEL --max-model-len 8192 $(cat extra.flags)",
        "vllm serve MODEL --max-model-len 8192 `cat extra.flags`",
        'vllm serve MODEL --max-model-len 8192 --gpu-memory-utilization 0.3 "$9"',
        "vllm serve $(cat extra.flags) --model MODEL --max-model-len 8192",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.3 $MORE",
        "llama-server $MORE -m GGUF -c 4096 --cache-ram 0",
    ],
)
def test_a_word_that_is_not_filled_in(models: dict[str, str], command: str) -> None:
    """Behind a word that is not known may stand any flag: it is named, nothing is a yes."""
    found = _asked(command, models)
    assert _verdict(found) is Verdict.UNKNOWN
    assert "may hold any flag" in " ".join(found[0].unknowns)


def test_no_default_beside_a_word_that_is_not_filled_in(models: dict[str, str]) -> None:
    """The default fraction is none where the word may set another."""
    found = _asked("vllm serve MODEL $(cat extra.flags)", models)
    assert [item.name for item in found[0].items] == ["weights"]


def test_a_model_that_is_not_filled_in() -> None:
    """A model in a variable that nobody sets is an unknown of its own; the flags beside it are understood."""
    found = ask.estimates(launches("vllm serve $MODEL --gpu-memory-utilization 0.3"), context())
    assert command_lines([found[0].launch]) == [("vllm", "$MODEL --gpu-memory-utilization 0.3")]
    assert [setting.value for setting in found[0].settings] == [0.3]
    assert "any flag" not in " ".join(found[0].unknowns)


@pytest.mark.parametrize("flag", ["-fa", "--flash-attn"])
@pytest.mark.parametrize(
    "command", ["llama-server -m GGUF {} -c 4096 --cache-ram 0", "llama-server -c 4096 -m GGUF {}"]
)
def test_flash_attention_alone(models: dict[str, str], flag: str, command: str) -> None:
    """The old form without a value does not take the next flag for one; that current builds refuse it is said."""
    found = _asked(command.format(flag), models)[0]
    values = {setting.flag: setting.value for setting in found.settings}
    assert (values["--flash-attn"], values["--ctx-size"]) == ("on", 4096)
    assert [f"{flag} without a value" in note for note in found.launch.notes] == [True]


@pytest.mark.parametrize(
    ("command", "flag", "others"),
    [
        ("vllm serve MODEL --gpu-memory-utilization --max-model-len 8192", "--gpu-memory-utilization",
         {"--max-model-len": 8192}),
        ("vllm serve MODEL --max-model-len 8192 --gpu-memory-utilization", "--gpu-memory-utilization",
         {"--max-model-len": 8192}),
        ("vllm serve MODEL --chat-template --max-model-len 8192", None, {"--max-model-len": 8192}),
        ("llama-server -m GGUF -np -c 4096", "--parallel", {"--ctx-size": 4096}),
        ("llama-server -m GGUF -c 4096 --reverse-prompt -END -np 2", None, {"--ctx-size": 4096, "--parallel": 2}),
    ],
)  # fmt: skip
def test_a_flag_is_no_value(models: dict[str, str], command: str, flag: str | None, others: dict[str, int]) -> None:
    """A flag that lost its value does not take a flag that is known in its place: its own value is unknown."""
    found = _asked(command, models)[0]
    values = {setting.flag: setting.value for setting in found.settings}
    assert {name: values[name] for name in others} == others
    assert [each.split()[0].rstrip(":") for each in found.unknowns] == ([flag] if flag else [])
    assert flag not in values


def test_a_context_that_may_be_in_what_is_not_known(models: dict[str, str]) -> None:
    """The model's whole context is no figure where the flag for it may be among words that are not filled in."""
    (found,) = _asked("llama-server -m GGUF --cache-ram 0 $(cat extra.flags)", models)
    assert "how long the context is (-c)" in " ".join(found.unknowns)
    assert not {"keys and values", "compute peak"} & {item.name for item in found.items}
    (given,) = _asked("llama-server -m GGUF -c 4096 --cache-ram 0 $(cat extra.flags)", models)
    assert "keys and values" in {item.name for item in given.items}
