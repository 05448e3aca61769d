"""How people really start engines: containers, compose files, units, scripts, routers; and what is no start at all."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from plimsoll.box.fit import ask, units
from plimsoll.box.fit.ask import Question
from plimsoll.box.fit.box import of_size
from plimsoll.box.fit.compose_variables import interpolated
from plimsoll.box.fit.model import CannotTellError, Launch, Mount
from plimsoll.box.fit.protection import false_ones
from plimsoll.box.host import Host
from tests.unit.fit_builders import LLAMA_8B, context, gib, write_model
from tests.unit.fit_sources import command_lines, launches, written

# --- commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "engine", "arguments"),
    [
        ("vllm serve a/b --x 1", "vllm", "a/b --x 1"),
        ("python3 -m vllm.entrypoints.openai.api_server --model a/b", "vllm", "--model a/b"),
        ("/opt/venv/bin/vllm serve a/b", "vllm", "a/b"),
        ("python3 /opt/vllm_wrapper.py serve a/b", "vllm", "a/b"),
        ("env A=1 nohup vllm serve a/b", "vllm", "a/b"),
        ("sudo -u llm vllm serve a/b", "vllm", "a/b"),
        ("python3 -m sglang.launch_server --model-path a/b --tp 1", "sglang", "--model-path a/b --tp 1"),
        ("uv run vllm serve a/b", "vllm", "a/b"),
        ("llama-server -m x.gguf -c 4096", "llama.cpp", "-m x.gguf -c 4096"),
        ("./build/bin/llama-server -m x.gguf", "llama.cpp", "-m x.gguf"),
        ("ollama serve", "ollama", ""),
        ("docker run --rm --gpus all vllm/vllm-openai:latest --model a/b", "vllm", "--model a/b"),
        ("docker run -it -e X=1 -v /a:/b lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path a/b",
         "sglang", "--model-path a/b"),
        ("docker run --entrypoint vllm some/image serve a/b", "vllm", "a/b"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/x.gguf", "llama.cpp", "-m /models/x.gguf"),
        ("docker exec -d box vllm serve a/b", "vllm", "a/b"),
        ("docker exec -e A=1 sglang python3 -m sglang.launch_server --tp 2", "sglang", "--tp 2"),
        ("podman run --device nvidia.com/gpu=all vllm/vllm-openai:v1 serve a/b", "vllm", "a/b"),
    ],
)  # fmt: skip
def test_what_a_command_starts(command: str, engine: str, arguments: str) -> None:
    """Wrappers, interpreters, images and entry points are seen through to the engine and its own flags."""
    assert command_lines(launches(*command.split())) == [(engine, arguments)]


@pytest.mark.parametrize(
    "command",
    [("bash", "-lc", "export U=0.6; exec vllm serve a/b --gpu-memory-utilization $U"),
     ("docker", "run", "vllm/vllm-openai:x", "bash", "-c", "U=0.6; vllm serve a/b --gpu-memory-utilization $U"),
     ("U=0.6\nvllm serve a/b \\\n  --gpu-memory-utilization $U",),
     ("env", "U=0.6", "sh", "-c", "vllm serve a/b --gpu-memory-utilization $U")],
)  # fmt: skip
def test_a_shell_within_a_command(command: tuple[str, ...]) -> None:
    """What is given to a shell is read as a shell would, in a container as well; so is a command in one word."""
    assert command_lines(launches(*command)) == [("vllm", "a/b --gpu-memory-utilization 0.6")]


@pytest.mark.parametrize(
    "command", ["ls -l", "vllm chat", "ollama pull x", "docker ps", "docker compose logs", "journalctl -u vllm.service"]
)
def test_what_starts_nothing(command: str) -> None:
    """A command that starts no model server is said to be none."""
    with pytest.raises(CannotTellError, match="starts no model server"):
        launches(*command.split())


def test_what_docker_is_told(tmp_path: Path) -> None:
    """Limits, mounts, variables and restarts of `docker run` are kept; only named variables go into the container."""
    options = f"--memory 128g --restart always --ipc host --shm-size 64g -v {tmp_path}:/m -e A=1 -e HOME"
    found = launches(*f"docker run {options} x/vllm serve /m".split())[0]
    assert (found.guards.memory_bytes, found.guards.restart) == (gib(128), "always")
    assert found.mounts == (Mount(str(tmp_path), "/m"),)
    assert found.environment == {"A": "1", "HOME": "/root"}


def test_a_model_that_is_mounted(tmp_path: Path) -> None:
    """A path inside of a container is found outside, where it is mounted from."""
    write_model(tmp_path / "qwen", LLAMA_8B, gib(3))
    found = launches(*f"docker run -v {tmp_path}:/models x/vllm serve /models/qwen".split())[0]
    estimate = ask.one(found, context())
    assert [item.amount.likely for item in estimate.items if item.name == "weights"] == [gib(3)]


@pytest.mark.parametrize("layout", ["refs", "single", "home"])
def test_a_model_in_a_cache(tmp_path: Path, layout: str) -> None:
    """A repository is found in the cache: by its main revision, or the only one that was downloaded."""
    hub = tmp_path / (".cache/huggingface/hub" if layout == "home" else "hub")
    repository = hub / "models--a--b"
    write_model(repository / "snapshots" / "abc", LLAMA_8B, gib(3))
    if layout != "single":
        write_model(repository / "snapshots" / "old", LLAMA_8B, gib(5))
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("abc\n")
    environment = {"HOME": str(tmp_path)} if layout == "home" else {"HF_HOME": str(tmp_path)}
    found = Launch("vllm", "x", ("a/b", "--gpu-memory-utilization", "0.5"), environment, homes=(str(tmp_path),))
    estimate = ask.one(found, context())
    assert [item.amount.likely for item in estimate.items if item.name == "weights"] == [gib(3)]


# --- compose files ----------------------------------------------------------------------------------

COMPOSE = """\
x-gpu: &gpu
  ipc: host
  shm_size: ${SHM:-16g}
  restart: unless-stopped
services:
  big:
    <<: *gpu
    image: vllm/vllm-openai:${TAG:-latest}
    command: >
      --model ${MODEL:-a/b}
      --gpu-memory-utilization ${UTIL:-0.80}
    environment:
      - HF_HOME=/hf
    volumes:
      - ${CACHE:-/data/hf}:/hf
    deploy:
      resources:
        limits:
          memory: 100g
  small:
    image: x/sglang
    entrypoint: ["python3", "-m", "sglang.launch_server"]
    command: ["--model-path", "c/d", "--mem-fraction-static", "0.2"]
  web:
    image: nginx
"""


def test_a_compose_file(tmp_path: Path) -> None:
    """Every service that is an engine is one start, with its defaults filled in; the others are none."""
    found = launches(compose=(written(tmp_path, "compose.yml", COMPOSE),))
    assert command_lines(found) == [
        ("vllm", "--model a/b --gpu-memory-utilization 0.80"),
        ("sglang", "--model-path c/d --mem-fraction-static 0.2"),
    ]
    assert (found[0].guards.restart, found[0].guards.memory_bytes) == ("unless-stopped", gib(100))
    assert found[0].mounts == (Mount("/data/hf", "/hf"),)
    assert str(found[0].place).endswith("compose.yml:9")


def test_variables_of_a_compose_file(tmp_path: Path) -> None:
    """`.env` beside the file fills in variables, and what is set where one types goes before it."""
    path = written(tmp_path, "compose.yml", COMPOSE)
    written(tmp_path, ".env", "UTIL=0.5\nMODEL=e/f\n")
    host = Host(environment={"HOME": "/root", "MODEL": "g/h"})
    found = ask.launches(host, Question(compose=(path, "big")))
    assert command_lines(found) == [("vllm", "--model g/h --gpu-memory-utilization 0.5")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("services:\n  a:\n    image: vllm\n  b: *x\n", r":4: \*x"),
        ("services:\n  a: &a\n    image: vllm\n    deploy: *a\n", r":4: \*a.*cycle"),
        ("a: 1\n", "no services"),
        ("- a\n", "no mapping"),
        ("services:\n  a:\n    image: vllm\n    command: ${X:?say X}\n", r":4: X must be set: say X"),
        ("services:\n  a:\n    extends: {file: other.yml, service: b}\n", ":3: extends"),
        ("services:\n  a:\n    extends: b\n  b:\n    extends: a\n", "extends"),
        ("services:\n  a:\n    image: vllm\n    command: 'x \"y'\n", ":4: command"),
        ("services:\n  a:\n    image: vllm\n    command: x\n    profiles: [gpu]\n", "by profile only; name one: a"),
        ("services:\n  a:\n    image: vllm\n    command: !override x\n", ":4: !override"),
    ],
)
def test_a_compose_file_that_cannot_be_followed(tmp_path: Path, text: str, why: str) -> None:
    """What is not understood is one error with the file and the line."""
    with pytest.raises(CannotTellError, match=why):
        launches(compose=(written(tmp_path, "compose.yml", text),))


def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    """A wrong name of a service is answered with the right ones."""
    with pytest.raises(CannotTellError, match=r"no service 'bog'; it has big, small, web"):
        launches(compose=(written(tmp_path, "compose.yml", COMPOSE), "bog"))


def test_compose_files_that_include_each_other(tmp_path: Path) -> None:
    """Files that are included are followed, and a circle of them is an end."""
    written(tmp_path, "two.yml", "services:\n  b:\n    image: x/vllm\n    command: [--model, c/d]\n")
    path = written(tmp_path, "one.yml", "include:\n  - two.yml\nservices:\n  a:\n    image: nginx\n")
    assert command_lines(launches(compose=(path,))) == [("vllm", "--model c/d")]
    circle = written(tmp_path, "three.yml", "include: [three.yml]\n")
    with pytest.raises(CannotTellError, match="too many times"):
        launches(compose=(circle,))


def test_an_entry_point_that_is_taken_away(tmp_path: Path) -> None:
    """With an empty entry point and no command it is not known what runs, and no default is taken."""
    text = "services:\n  a:\n    image: x/vllm\n    entrypoint: []\n"
    found = launches(compose=(written(tmp_path, "c.yml", text),))
    assert found[0].opaque
    assert ask.one(found[0], context()).items == ()


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("$A-${A}-$$A", {"A": "1"}, "1-1-$A"),
        ("${A:-d}${B-e}${C:+f}${A+g}", {"A": ""}, "deg"),
        ("${A:-${B:-c}}", {}, "c"),
        ("${HOME}/x", {}, "${HOME}/x"),
        ("$UNSET", {}, "$UNSET"),
    ],
)
def test_interpolation(text: str, variables: Mapping[str, str], expected: str) -> None:
    """Variables of compose are filled in with their defaults; those that nobody sets stay in sight."""
    assert interpolated(text, variables) == expected


@pytest.mark.parametrize("text", ["${A", "$-", "${}", "${A:!x}", "${A?gone}"])
def test_interpolation_that_compose_refuses(text: str) -> None:
    """What compose would refuse is an error."""
    with pytest.raises(ValueError, match=r"\$|must be set|understood|no variable"):
        interpolated(text, {})


# --- units ------------------------------------------------------------------------------------------

UNIT = """\
[Unit]
Description=a model

[Service]
Environment=UTIL=0.7 "ARGS=--max-model-len 4096"
Environment=OTHER=%h/x
EnvironmentFile=-/etc/default/model
# what it runs
ExecStart=/usr/bin/env -i HOME=/root /usr/bin/docker run --rm --name text \\
  # a comment in between
  --memory 128g \\
  x/vllm serve a/b \\
  --gpu-memory-utilization ${UTIL} $ARGS
MemoryMax=256M
Restart=always
OOMScoreAdjust=-500
"""


def _root(tmp_path: Path, files: Mapping[str, str]) -> Host:
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(tmp_path), {"HOME": "/root"})


def test_a_unit(tmp_path: Path) -> None:
    """A unit's command comes out of continued lines, Environment, EnvironmentFile and drop-ins."""
    host = _root(tmp_path, {
        "/etc/systemd/system/text.service": UNIT,
        "/etc/default/model": "UTIL=0.6\n",
        "/etc/systemd/system/text.service.d/more.conf": '[Service]\nEnvironment="ARGS=--max-model-len 8192"\n',
    })  # fmt: skip
    found = launches(unit="text", host=host)
    assert command_lines(found) == [("vllm", "a/b --gpu-memory-utilization 0.6 --max-model-len 8192")]
    guards = found[0].guards
    assert (guards.memory_bytes, guards.restart, guards.oom_score_adj) == (gib(128), "always", -500)
    assert guards.client_only


def test_what_protects_nothing(tmp_path: Path) -> None:
    """Limits that bound the client or do not see CUDA, restarts and scores of an engine are named with their place."""
    host = _root(tmp_path, {"/etc/systemd/system/text.service": UNIT})
    found = false_ones(launches(unit="text.service", host=host)[0], of_size(121.6))
    for part in (
        "--memory 128.0 GiB",
        "above the 121.6 GiB",
        "MemoryMax=256M",
        "text.service:14",
        "restart always",
        "-500",
    ):
        assert any(part in each for each in found), part


def test_an_environment_file_that_is_not_there(tmp_path: Path) -> None:
    """A variable from a file that cannot be read stays in sight, and the file is named with its line."""
    unit = "[Service]\nEnvironmentFile=/gone\nExecStart=vllm serve a/b --gpu-memory-utilization ${U}\n"
    found = launches(unit="x", host=_root(tmp_path, {"/etc/systemd/system/x.service": unit}))[0]
    assert any("x.service:2: EnvironmentFile /gone" in each for each in found.unknowns)
    assert "${U}" in found.arguments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[Service]\nExecStart=__DIR__/bin/python app.py\n", ":2: __DIR__.*template"),
        ("[Unit]\nDescription=x\n", r"no \[Service\]"),
        ("[Service]\nType=oneshot\n", "no ExecStart"),
        ("[Service]\nExecStart=/usr/bin/true\n", "starts no model server"),
    ],
)
def test_a_unit_that_starts_none(tmp_path: Path, text: str, why: str) -> None:
    """A template, a unit without a command, and one of something else are told from each other."""
    with pytest.raises(CannotTellError, match=why):
        launches(written(tmp_path, "x.service", text))


def test_a_quadlet(tmp_path: Path) -> None:
    """A Quadlet file is the `podman run` that it stands for."""
    options = f"Volume={tmp_path}:/m\nEnvironment=A=1\nPodmanArgs=--memory 64g"
    text = f"[Container]\nImage=x/vllm:1\n{options}\nExec=serve /m -tp 1\n"
    found = launches(written(tmp_path, "llm.container", text))
    assert command_lines(found) == [("vllm", "/m -tp 1")]
    assert (found[0].guards.memory_bytes, found[0].environment) == (gib(64), {"A": "1"})
    with pytest.raises(CannotTellError, match="names no Image"):
        launches(written(tmp_path, "no.container", "[Container]\nExec=x\n"))


def test_variables_of_a_quadlet(tmp_path: Path) -> None:
    """%h is the home of who asks, and Exec= is filled in from [Service] as systemd does it."""
    (tmp_path / "models").mkdir()
    written(tmp_path, "own.env", "A=1\n")
    text = "[Container]\nImage=x/vllm:1\nVolume=%h/models:/m\nEnvironmentFile=%h/own.env\n"
    more = "Exec=serve /m --gpu-memory-utilization ${SHARE} $MORE\n[Service]\nEnvironment=SHARE=0.4 'MORE=-tp 1'\n"
    path = written(tmp_path, "llm.container", text + more)
    words = units.of_quadlet(text + more, path, (str(tmp_path),))
    assert words[2:6] == ["-v", f"{tmp_path}/models:/m", "--env-file", f"{tmp_path}/own.env"]
    assert words[-6:] == ["serve", "/m", "--gpu-memory-utilization", "0.4", "-tp", "1"]
    assert units.of_quadlet(text, "/etc/containers/systemd/llm.container", ("/home/x",))[3] == "/root/models:/m"
    rootless = "/home/y/.config/containers/systemd/llm.container"
    assert units.of_quadlet(text, rootless, ("/home/x",))[3] == "/home/y/models:/m"


@pytest.mark.parametrize("directory", ["/etc/systemd/system", "/root/.config/systemd/user"])
def test_an_instance_of_a_template(tmp_path: Path, directory: str) -> None:
    """`name@instance` is read from the template, with the instance filled in everywhere; drop-ins of both count."""
    unit = (
        "[Service]\nEnvironment=SIZE=%I\nEnvironmentFile=%h/%i.env\nExecStart=vllm serve a/%i -tp ${TP} --x=${SIZE}%%\n"
    )
    host = _root(tmp_path, {
        f"{directory}/vllm@.service": unit,
        f"{directory}/vllm@some-model.service.d/a.conf": "[Service]\nEnvironment=SIZE=%p\n",
        "/root/some-model.env": "TP=2\n",
    })  # fmt: skip
    found = launches(unit="vllm@some-model", host=host)
    assert command_lines(found) == [("vllm", "a/some-model -tp 2 --x=vllm%")]


def test_the_home_of_a_unit(tmp_path: Path) -> None:
    """%h of the system's units is root's home, whatever User= says; the user's own home is where it works."""
    unit = "[Service]\nUser=llm\nWorkingDirectory=~\nEnvironment=A=%h\nExecStart=vllm serve %h/m\n"
    found = launches(unit="x", host=_root(tmp_path, {"/etc/systemd/system/x.service": unit}))[0]
    assert (found.arguments, found.environment["A"], found.directory) == (("/root/m",), "/root", "/home/llm")
    own = _root(tmp_path / "two", {"/root/.config/systemd/user/x.service": unit.replace("User=llm\n", "")})
    assert launches(unit="x", host=own)[0].arguments == ("/root/m",)


def test_a_recipe(tmp_path: Path) -> None:
    """A recipe's command is filled in from its defaults; without one the runtime's flags come from them."""
    common = "model: a/b\nruntime: vllm-distributed\ndefaults:\n  gpu_memory_utilization: 0.6\n  tensor_parallel: 2\n"
    assert command_lines(launches(written(tmp_path, "r.yaml", common))) == [
        ("vllm", "a/b --gpu-memory-utilization 0.6 --tensor-parallel-size 2")
    ]
    command = "command: |\n  vllm serve {model} \\\n    --gpu-memory-utilization {gpu_memory_utilization}\n"
    assert command_lines(launches(written(tmp_path, "c.yaml", common + command))) == [
        ("vllm", "a/b --gpu-memory-utilization 0.6")
    ]


def test_a_launcher_that_can_be_read(tmp_path: Path) -> None:
    """A launcher that starts what it is given does so as well if it can be read."""
    path = written(tmp_path, "run.sh", '#!/bin/bash\ndocker exec box "$@"\n')
    assert command_lines(launches(path, "exec", "vllm", "serve", "a/b")) == [("vllm", "a/b")]


def test_a_launcher_that_is_given_a_command() -> None:
    """What an unknown launcher is given to start is found; benchmarks of an engine are no server."""
    by_script = ("./launch-cluster.sh", "-t", "img", "exec", "vllm", "serve", "a/b", "-tp", "2")
    assert command_lines(launches(*by_script)) == [("vllm", "a/b -tp 2")]
    assert command_lines(launches("pcore", "llama-server", "-m", "x")) == [("llama.cpp", "-m x")]
    assert command_lines(launches("vllm", "serve", "/models/bench/m")) == [("vllm", "/models/bench/m")]
    for command in (
        "vllm bench serve --model a/b",
        "docker exec -it sglang python3 -m sglang.bench_serving --backend x",
    ):
        with pytest.raises(CannotTellError, match="starts no model server"):
            launches(*command.split())


def test_a_configuration_file_of_an_engine(tmp_path: Path) -> None:
    """Flags from `--config` count, those of the command line go before them; without the file nothing is assumed."""
    text = "gpu-memory-utilization: 0.5\nenforce-eager: true\nmax-model-len: 4096\n"
    path = written(tmp_path, "vllm.yaml", text)
    found = launches("vllm", "serve", "a/b", "--config", path, "--max-model-len", "8192")[0]
    settings = {each.flag: each.value for each in ask.one(found, context()).settings}
    assert settings["--gpu-memory-utilization"] == 0.5
    assert (settings["--max-model-len"], settings["--enforce-eager"]) == (8192, True)
    gone = ask.one(launches("vllm", "serve", "a/b", "--config", "/no/such.yaml")[0], context())
    assert any("/no/such.yaml" in each for each in gone.unknowns)
    assert not any(item.name == "budget" for item in gone.items)


@pytest.mark.parametrize("name", ["gone", "../etc/passwd", "a b", "/no/such.service"])
def test_a_unit_that_is_not_there(tmp_path: Path, name: str) -> None:
    """A name that no unit has is an error that says so."""
    with pytest.raises(CannotTellError, match=r"no such unit|no name of a unit|cannot be read"):
        launches(unit=name, host=_root(tmp_path, {}))


def test_a_process(tmp_path: Path) -> None:
    """A running process is read from its command line, its environment and its root; a title leads to its parent."""
    host = _root(tmp_path, {
        "/proc/7/cmdline": "llama-server\0-m\0/x.gguf\0-c\0004096\0",
        "/proc/7/environ": "LLAMA_ARG_N_PARALLEL=2\0PWD=/srv\0",
        "/proc/7/root/etc/x": "",
        "/proc/9/cmdline": "VLLM::EngineCore",
        "/proc/9/status": "Name:\tx\nPPid:\t7\n",
    })  # fmt: skip
    found = ask.launches(host, Question(pid=7))
    assert command_lines(found) == [("llama.cpp", "-m /x.gguf -c 4096")]
    assert (found[0].environment["LLAMA_ARG_N_PARALLEL"], found[0].directory) == ("2", "/srv")
    assert found[0].mounts == (Mount("/proc/7/root", "/"),)
    assert ask.launches(host, Question(pid=9)) == found
    with pytest.raises(CannotTellError, match="process 8"):
        ask.launches(host, Question(pid=8))
