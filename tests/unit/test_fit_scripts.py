"""What scripts and the files of routers start."""

import os
from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.model import CannotTellError
from tests.unit.fit_builders import context, gib, write_gguf
from tests.unit.fit_sources import command_lines, launches, written


def test_a_script(tmp_path: Path) -> None:
    """A script is followed through variables, arrays, a file it reads in, and a script that it calls."""
    written(tmp_path, "env.sh", "MODEL=a/b\n")
    written(tmp_path, "serve.sh", '#!/bin/bash\nexec vllm serve "$1" --max-num-seqs "${2:-4}"\n')
    text = '#!/bin/bash\ncd "$(dirname "$0")"\n. ./env.sh\nARGS=("$MODEL" 8)\n./serve.sh "${ARGS[@]}"\n'
    found = launches(written(tmp_path, "start.sh", text))
    assert command_lines(found) == [("vllm", "a/b --max-num-seqs 8")]
    assert str(found[0].place).endswith("serve.sh:2")


def test_a_file_that_a_shell_is_given(tmp_path: Path) -> None:
    """A shell takes any text for a script, whatever it is called."""
    path = written(tmp_path, "notes-vllm.txt", "# a comment\nvllm serve a/b \\\n  -tp 2\n")
    assert command_lines(launches("bash", path)) == [("vllm", "a/b -tp 2")]


def test_a_script_that_starts_itself(tmp_path: Path) -> None:
    """A script that calls itself again is an end."""
    path = written(tmp_path, "again.sh", '#!/bin/bash\n"$0" x\nvllm serve a/b\n')
    assert command_lines(launches(path)) == [("vllm", "a/b")]


def test_a_script_that_is_not_here(tmp_path: Path) -> None:
    """A unit that calls a script which cannot be read starts an engine with unknown flags."""
    path = written(tmp_path, "x.service", "[Service]\nExecStart=/opt/llm/start-vllm.sh\n")
    assert launches(path)[0].opaque


def test_a_script_that_is_none(tmp_path: Path) -> None:
    """A text that is no script is an error with its line."""
    with pytest.raises(CannotTellError, match=r"notes\.txt:2: a \" is not closed"):
        launches(written(tmp_path, "notes.txt", 'vllm serve a\n"never closed\n'))


@pytest.mark.parametrize(
    ("text", "engine", "arguments"),
    [
        ("MODEL=a/b\nSERVE_ARGS=(--gpu-memory-utilization 0.90\n  --max-model-len 8192)\n", "vllm",
         "a/b --gpu-memory-utilization 0.90 --max-model-len 8192"),
        ("MODEL=a/b\nEXTRA='--mem-fraction-static 0.5 --tp 1'\n", "sglang",
         "--model-path a/b --mem-fraction-static 0.5 --tp 1"),
        ("TEXT_GPU_MEMORY_UTILIZATION=0.55\nTEXT_PORT=8000\n", "vllm", "--gpu-memory-utilization 0.55"),
        ("| a | table |\ngpu_memory_utilization=0.75\nmax_num_seqs=1\n", "vllm",
         "--gpu-memory-utilization 0.75 --max-num-seqs 1"),
    ],
)  # fmt: skip
def test_a_file_of_variables(tmp_path: Path, text: str, engine: str, arguments: str) -> None:
    """Flags in a file that holds no command are understood, and never called safe."""
    found = launches(written(tmp_path, "x.env", text))
    assert command_lines(found) == [(engine, arguments)]
    assert any("holds no command" in each for each in found[0].unknowns)


def test_what_never_ends(tmp_path: Path) -> None:
    """A FIFO where a script, a model, a configuration or presets should be is an answer, not a wait."""
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "model.safetensors")
    for command in ((str(fifo),), ("bash", str(fifo)), ("llama-swap", "--config", str(fifo))):
        with pytest.raises(CannotTellError):
            launches(*command)
    for words in (
        ("llama-server", "-m", str(fifo)),
        ("llama-server", "--models-preset", str(fifo)),
        ("vllm", "serve", str(tmp_path / "model")),
        ("vllm", "serve", "a/b", "--config", str(fifo)),
    ):
        assert all(each.unknowns for each in ask.estimates(launches(*words), context()))


SWAP = """\
macros:
  server: llama-server --port ${PORT} -ngl 99
models:
  one:
    cmd: |
      ${server}
      # a comment
      -m /m/one.gguf
      -c 4096
  two:
    cmd: ${server} -m /m/two.gguf -c 8192
    env:
      - LLAMA_ARG_N_PARALLEL=2
  three:
    cmd: vllm serve a/b
groups:
  always:
    swap: false
    exclusive: false
    members: [three]
"""


def test_a_configuration_of_llama_swap(tmp_path: Path) -> None:
    """Macros are filled in; models that are swapped share their memory, a group that is not swapped has its own."""
    path = written(tmp_path, "config.yaml", SWAP)
    for found in (launches(path), launches("llama-swap", "--config", path, "--listen", ":8080")):
        assert [each.name for each in found] == ["one", "two", "three"]
        assert " ".join(found[0].arguments) == "--port 5800 -ngl 99 -m /m/one.gguf -c 4096"
        assert found[1].environment["LLAMA_ARG_N_PARALLEL"] == "2"
        assert found[0].exclusive == found[1].exclusive != ""
        assert found[2].exclusive == ""


def test_macros_in_a_circle(tmp_path: Path) -> None:
    """Macros that name each other are an error with the line."""
    text = "macros:\n  a: ${b}\n  b: ${a}x\nmodels:\n  m:\n    cmd: ${a}\n"
    with pytest.raises(CannotTellError, match=":6: macros"):
        launches(written(tmp_path, "config.yaml", text))


def test_presets_of_llama_server(tmp_path: Path) -> None:
    """Each preset, or file of a directory, is a model of its own; as many as are loaded at a time count."""
    for name, size in (("a", 4), ("b", 2), ("c", 1)):
        write_gguf(tmp_path / f"{name}.gguf", {"general.architecture": "strange"}, gib(size))
    sections = "".join(f"[{name}]\nmodel = {tmp_path}/{name}.gguf\n" for name in ("c", "a", "b"))
    path = written(tmp_path, "presets.ini", f"[*]\nc = 4096\nLLAMA_ARG_N_PARALLEL = 1\n{sections}")
    found = launches("llama-server", "--models-preset", path, "--models-max", "2")
    estimates = ask.estimates(found, context())
    assert [each.launch.name for each in estimates] == ["a", "b"]
    assert {setting.flag: setting.value for setting in estimates[0].settings}["--ctx-size"] == 4096
    found = launches("llama-server", "--models-dir", str(tmp_path), "--models-max", "1", "-c", "2048")
    estimates = ask.estimates(found, context())
    assert [each.launch.name for each in estimates] == ["a.gguf"]
    assert {setting.flag: setting.value for setting in estimates[0].settings}["--ctx-size"] == 2048
    empty = ask.estimates(launches("llama-server", "--models-dir", str(tmp_path / "none")), context())
    assert "no GGUF model" in empty[0].unknowns[0]
