"""Commands that other programs are handed, and what containers run: nothing of it is dropped without a word."""

from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.model import CannotTellError
from tests.unit.fit_builders import context
from tests.unit.fit_sources import command_lines, launches, written


@pytest.mark.parametrize(
    "command",
    [
        ("tmux", "new-session", "-d", "-s", "chat", "vllm serve a/b -tp 2"),
        ("/usr/bin/tmux", "-L", "x", "new", "-ds", "chat", "vllm", "serve", "a/b", "-tp", "2"),
        ("tmux", "send-keys", "-t", "chat", "vllm serve a/b -tp 2", "C-m"),
        ("sudo", "-u", "llm", "screen", "-dmS", "chat", "/opt/bin/vllm", "serve", "a/b", "-tp", "2"),
        ("screen", "-S", "chat", "-X", "stuff", "vllm serve a/b -tp 2\n"),
        ("su", "-", "llm", "-c", "cd /srv && exec vllm serve a/b -tp 2"),
        ("runuser", "-l", "llm", "-c", "vllm serve a/b -tp 2"),
        ("runuser", "-u", "llm", "--", "vllm", "serve", "a/b", "-tp", "2"),
        ("torchrun", "--nproc-per-node", "1", "--standalone", "-m", "vllm.entrypoints.openai.api_server", "a/b", "-tp",
         "2"),
        ("python3", "-m", "torch.distributed.run", "--nnodes=1", "-m", "vllm.entrypoints.api_server", "a/b", "-tp",
         "2"),
        ("bash", "-c", 'vllm serve "$1" -tp "$2"', "start", "a/b", "2"),
        ("bash", "-c", 'exec vllm serve "$@"', "--", "a/b", "-tp", "2"),
        ("pcore", "/opt/bin/vllm", "serve", "a/b", "-tp", "2"),
        ('eval "vllm serve a/b -tp 2"',),
        ("CMD='vllm serve a/b -tp 2'\neval \"$CMD\"",),
    ],
)  # fmt: skip
def test_a_command_that_a_program_is_handed(command: tuple[str, ...]) -> None:
    """Terminals, other users, launchers and shells with arguments are seen through, with or without their paths."""
    assert command_lines(launches(*command)) == [("vllm", "a/b -tp 2")]


@pytest.mark.parametrize("command", ["tmux attach -t vllm", "screen -ls", "su - vllm", "ssh box", "ssh box nvidia-smi"])
def test_programs_that_are_handed_nothing(command: str) -> None:
    """Without a command in it nothing starts."""
    with pytest.raises(CannotTellError, match="starts no model server"):
        launches(*command.split())


def test_names_of_such_programs_among_the_arguments() -> None:
    """A model that is called like one of them is a model."""
    assert command_lines(launches("llama-server", "-m", "/models/su", "-c", "4096")) == [
        ("llama.cpp", "-m /models/su -c 4096")
    ]


def test_another_machine() -> None:
    """What starts elsewhere is said and not counted."""
    with pytest.raises(CannotTellError, match="vllm starts on spark2, another machine"):
        launches("ssh", "-p", "22", "-tt", "spark2", "vllm", "serve", "a/b")
    found = launches("ssh spark2 'nohup vllm serve a/b &'\nllama-server -m x.gguf")
    assert command_lines(found) == [("llama.cpp", "-m x.gguf")]
    assert ["another machine" in note for note in found[0].notes] == [True]


# --- containers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["bash", "sleep infinity", "tail -f /dev/null", "bash /start.sh", "/opt/start.sh", "python3 /opt/app.py",
     "jupyter lab", ""],
)  # fmt: skip
@pytest.mark.parametrize("image", ["nvcr.io/nvidia/vllm:25.11-py3", "lmsysorg/sglang:spark"])
def test_a_container_that_starts_no_server_itself(image: str, words: str) -> None:
    """An image that runs what it is given starts no server by itself, and no default of one is taken."""
    found = launches(*f"docker run -it --gpus all {image} {words}".split())
    assert [each.opaque for each in found] == [True]
    assert ask.one(found[0], context()).items == ()


def test_a_program_in_an_image_that_serves() -> None:
    """A shell is no model, even where the entry point of an image takes a model."""
    image = "vllm/vllm-openai:v0.12.0"
    assert launches("docker", "run", image, "bash")[0].opaque
    assert command_lines(launches("docker", "run", image, "a/b", "-tp", "2")) == [("vllm", "a/b -tp 2")]
    assert command_lines(launches("docker", "run", "ollama/ollama")) == [("ollama", "")]


@pytest.mark.parametrize("words", ["nvidia-smi", "hf download a/b", "bash -c 'hf download a/b && ls /m'"])
def test_a_container_that_loads_no_model(words: str) -> None:
    """What only looks or downloads in an engine's image is no start."""
    with pytest.raises(CannotTellError, match="starts no model server"):
        launches(f"docker run --rm nvcr.io/nvidia/vllm:25.11-py3 {words}")


SCRIPTED = """\
services:
  chat:
    image: vllm/vllm-openai:v0.12.0
    entrypoint: [/bin/bash, /opt/run.sh]
    command: [a/b]
    volumes: ["./run-chat.sh:/opt/run.sh:ro", "./conf:/conf"]
  embed:
    image: vllm/vllm-openai:v0.12.0
    command: [c/d]
"""


def test_the_own_script_of_a_container(tmp_path: Path) -> None:
    """A script that is mounted is read where it lies; one that is in the image alone is a start that is not known."""
    path = written(tmp_path, "compose.yml", SCRIPTED)
    found = launches(compose=(path,))
    assert [(each.name, each.opaque) for each in found] == [("chat", True), ("embed", False)]
    (tmp_path / "conf").mkdir()
    written(tmp_path / "conf", "env", "U=0.5\n")
    script = '#!/bin/bash\n. /conf/env\n[ -f /gone ] && X=--x\nexec vllm serve "$1" --gpu-memory-utilization $U $X\n'
    written(tmp_path, "run-chat.sh", script)
    found = launches(compose=(path,))
    assert command_lines(found) == [("vllm", "a/b --gpu-memory-utilization 0.5 $X"), ("vllm", "c/d")]
    assert str(found[0].place).endswith("run-chat.sh:4")


def test_arguments_of_an_entry_point(tmp_path: Path) -> None:
    """The words of `command` are the arguments of the script in `entrypoint`."""
    service = "image: x/y\n    entrypoint: [bash, -c, 'exec vllm serve \"$$@\"', --]\n    command: [a/b]\n"
    path = written(tmp_path, "c.yml", f"services:\n  a:\n    {service}")
    assert command_lines(launches(compose=(path,))) == [("vllm", "a/b")]


@pytest.mark.parametrize("inside", ["/app/config.yaml", "/etc/llama-swap/config/config.yaml", "/x/y.yaml"])
def test_the_image_of_llama_swap(tmp_path: Path, inside: str) -> None:
    """The configuration that is mounted is read, the default one or the one that is named."""
    path = written(tmp_path, "swap.yaml", "models:\n  one:\n    cmd: llama-server -m /m/one.gguf -c 4096\n")
    named = ["-config", inside] if inside == "/x/y.yaml" else []
    command = ["docker", "run", "-v", f"{path}:{inside}", "ghcr.io/mostlygeek/llama-swap:cuda", *named]
    assert command_lines(launches(*command)) == [("llama.cpp", "-m /m/one.gguf -c 4096")]
    assert launches("docker", "run", "ghcr.io/mostlygeek/llama-swap:cuda")[0].opaque


@pytest.mark.parametrize("tool", ["--server", "-s"])
def test_the_image_of_all_tools(tool: str) -> None:
    """The image of llama.cpp with all tools is told which; another than the server is no start."""
    image = "ghcr.io/ggml-org/llama.cpp:full-cuda"
    assert command_lines(launches(*f"docker run {image} {tool} -m /x.gguf".split())) == [("llama.cpp", "-m /x.gguf")]
    with pytest.raises(CannotTellError, match="starts no model server"):
        launches(*f"docker run {image} --convert /m".split())


def test_variables_of_a_container(tmp_path: Path) -> None:
    """A file of variables is read as docker does, without a shell; one that is not there leaves them unknown."""
    path = written(tmp_path, "x.env", "# a comment\nA='1' # 2\nLLAMA_ARG_N_PARALLEL=2\nHOME\n\n")
    found = launches("docker", "exec", "--env-file", path, "-e", "LLAMA_ARG_CTX_SIZE=8192", "box", "llama-server")
    assert found[0].environment == {
        "A": "'1' # 2", "LLAMA_ARG_N_PARALLEL": "2", "HOME": "/root", "LLAMA_ARG_CTX_SIZE": "8192",
    }  # fmt: skip
    for client in ("run", "exec"):
        gone = launches("docker", client, "--env-file", "/no/such.env", "x/vllm", "vllm", "serve", "a/b")
        assert "--env-file /no/such.env cannot be read" in gone[0].unknowns[0]


def test_the_server_of_llama_cpp_python() -> None:
    """It has flags of its own, and is not taken for llama-server."""
    found = launches("python3", "-m", "llama_cpp.server", "--model", "x.gguf", "--n_ctx", "4096")
    assert [each.engine for each in found] == ["llama-cpp-python"]
    assert ask.one(found[0], context()).unknowns


def test_an_installer_that_writes_a_unit(tmp_path: Path) -> None:
    """A script that writes a unit is a script."""
    text = "#!/bin/bash\ncat > /etc/x.service <<EOF\n[Service]\nExecStart=/bin/true\nEOF\nvllm serve a/b\n"
    assert command_lines(launches(written(tmp_path, "install.sh", text))) == [("vllm", "a/b")]


@pytest.mark.parametrize("command", ["start.sh", "bash start.sh", "compose.yml", "./gone"])
def test_a_file_that_is_not_there(command: str) -> None:
    """A file that is missing is told from a command that starts nothing."""
    with pytest.raises(CannotTellError, match="no such file"):
        launches(*command.split())


def test_an_activated_environment() -> None:
    """A script that activates an environment sets no flags, so that nothing is missed without it."""
    assert launches("source ~/venv/bin/activate\nvllm serve a/b")[0].unknowns == ()
