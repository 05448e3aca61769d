"""What the stand-in servers answer, and the real processes: names, requests, signals. With ordinary memory."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from lab.engine import kinds, main, titles
from lab.engine.kinds import KINDS, Status
from lab.engine.plan import Phase, Plan
from lab.wedge import ship
from plimsoll.box import engines

DEADLINE_S = 60
LOADED = (Phase("weights", grow_percent=0.01, loading=True),)
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize(
    ("name", "state", "path", "status"),
    [
        ("vllm", "ready", "/health", 200),
        ("vllm", "stuck", "/health", 200),
        ("vllm", "failed", "/health", 503),
        ("vllm", "failed", "/v1/completions", 500),
        ("vllm", "ready", "/v1/completions", 200),
        ("vllm", "ready", "/nothing", 404),
        ("sglang", "loading", "/health", 503),
        ("sglang", "ready", "/health_generate", 200),
        ("sglang", "stuck", "/health", 200),
        ("llama-server", "loading", "/health", 503),
        ("llama-server", "loading", "/v1/completions", 503),
        ("llama-server", "loading", "/v1/models", 200),
        ("llama-server", "ready", "/health", 200),
        ("llama-server", "failed", "/health", 200),
        ("llama-server", "failed", "/v1/completions", 500),
        ("llama-server", "ready", "/nothing", 404),
    ],
)
def test_answers(name: str, state: kinds.State, path: str, status: int) -> None:
    """Each server answers as the real one does in each state, the known lies included."""
    answer = KINDS[name].answers(Status(state, "m"), path, {})
    assert answer
    assert answer.status == status


@pytest.mark.parametrize("name", KINDS)
def test_a_stuck_server_never_answers_a_prompt(name: str) -> None:
    """Healthy or not, no token comes."""
    assert KINDS[name].answers(Status("stuck", "m"), "/v1/completions", {}) is None


def test_what_the_answers_say() -> None:
    """Lists have the model, completions a text, and errors the form of each server."""
    ready, loading = Status("ready", "/models/m"), Status("loading", "/models/m")
    document = KINDS["vllm"].answers(ready, "/v1/models", {})
    assert document
    assert isinstance(document.body, dict)
    assert [card["id"] for card in document.body["data"]] == ["/models/m"]
    completion = KINDS["vllm"].answers(ready, "/v1/completions", {"model": "/models/m"})
    assert completion
    assert isinstance(completion.body, dict)
    assert completion.body["choices"][0]["text"]
    unknown = KINDS["sglang"].answers(ready, "/v1/completions", {"model": "other"})
    assert unknown
    assert unknown.status == 404
    wait = KINDS["llama-server"].answers(loading, "/health", {})
    assert wait == kinds.Answer(
        HTTPStatus.SERVICE_UNAVAILABLE,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
    )


@pytest.mark.parametrize(
    ("words", "model", "port"),
    [
        (["serve", "/m", "--port", "81", "--gpu-memory-utilization", "0.85"], "/m", 81),
        (["serve", "--model-path", "/m"], "/m", 80),
        (["-m", "/m/weights", "-ngl", "999"], "/m/weights", 80),
        (["--trust-remote-code", "/m"], "/m", 80),
    ],
)
def test_command_lines(words: list[str], model: str, port: int) -> None:
    """The model and the port are found among options that mean nothing here."""
    assert main.parse(words, 80) == main.Call(Path(model), port)


def test_a_command_line_without_a_model() -> None:
    """A server without a model is told what it needs."""
    with pytest.raises(ValueError, match=r"no model: name the directory that holds plan\.json"):
        main.parse(["serve", "--port", "1"], 80)


def test_room_for_a_title() -> None:
    """A command line is as long as the title that is put over it, unless the title is shorter than the shortest."""
    title = ["llama-server", "-m", "/usr/local/lib/lab/models/ramp/weights", "--port", "8080", "--ctx-size", "32768"]
    long = titles.command("/x.pyz", title)
    assert len(titles.as_bytes(long)) == len(titles.as_bytes(title))
    assert titles.command("/x.pyz", ["a"]) == [sys.executable, "/x.pyz"]


# --- real processes ---------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The file that is brought into the machine."""
    path = tmp_path / "engine.pyz"
    path.write_bytes(ship.archive())
    return path


@pytest.fixture
def launch(archive: Path, tmp_path: Path) -> Iterator[Launch]:
    """Start a program of the machine on this host; whatever it leaves is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, plan: Plan, *words: str) -> subprocess.Popen[str]:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / main.PLAN).write_text(plan.to_json())
        script = tmp_path / name
        script.write_text(ship.programs()[name].replace(ship.ARCHIVE, str(archive)))
        command = [sys.executable, str(script), *words]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(what: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever is waited for
    """Wait until something is true, and return it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came about")


def get(port: int, path: str) -> tuple[int, str] | None:
    """Ask a server; None while it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return None


def named(comm: str, session: int) -> int | None:
    """The process of this name in a session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if f"({comm})" in text and int(text.rpartition(")")[2].split()[3]) == session:
            return int(stat.parent.name)
    return None


def command_line(pid: int) -> list[str]:
    """A process's command line, without the empty words at its end."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")


def test_vllm_is_two_processes_with_the_real_names(launch: Launch, tmp_path: Path) -> None:
    """The port opens once the model is loaded; the memory is held by VLLM::EngineCor; SIGTERM ends both in order."""
    port, model = free_port(), str(tmp_path / "model")
    plan = Plan(LOADED, memory="ordinary", ends_after_s=0.5)
    server = launch("vllm", plan, "serve", model, "--port", str(port))
    assert eventually(lambda: get(port, "/health")) == (200, "")
    assert json.loads(get(port, "/v1/models")[1])["data"][0]["id"] == model  # type: ignore[index]  # it listens
    worker = named("VLLM::EngineCor", server.pid)
    assert worker
    assert command_line(worker) == ["VLLM::EngineCore"]
    assert command_line(server.pid)[1:] == [str(tmp_path / "vllm"), "serve", model, "--port", str(port)]
    assert engines.of_process("VLLM::EngineCor", command_line(worker)) == "vllm"
    assert engines.of_process("vllm", command_line(server.pid)) == "vllm"
    started_s = time.monotonic()
    server.terminate()
    assert server.wait(DEADLINE_S) == 0
    assert 0.4 < time.monotonic() - started_s < 10
    assert not named("VLLM::EngineCor", server.pid)


def test_llama_server_is_one_process_with_the_real_command_line(launch: Launch, tmp_path: Path) -> None:
    """It answers 503 while it loads, looks like the real one to the last word, and ends with success."""
    port, weights = free_port(), str(tmp_path / "model" / "weights")
    slow = (Phase("weights", grow_percent=0.01, hold_s=4, loading=True),)
    plan = Plan(slow, "llama-server", "ordinary", ends_after_s=0)
    server = launch("llama-server", plan, "-m", weights, "--port", str(port))
    assert eventually(lambda: get(port, "/health"))[0] == 503
    assert Path(f"/proc/{server.pid}/comm").read_text() == "llama-server\n"
    assert command_line(server.pid) == ["llama-server", "-m", weights, "--port", str(port)]
    assert engines.of_process("llama-server", command_line(server.pid)) == "llama-server"
    assert eventually(lambda: get(port, "/health") == (200, '{"status": "ok"}'))
    server.terminate()
    assert server.wait(DEADLINE_S) == 0


def test_a_dead_worker_takes_its_server_along(launch: Launch, tmp_path: Path) -> None:
    """SIGKILL to the process with the memory ends the server with an error, which names it."""
    plan = Plan(LOADED, "sglang", "ordinary")
    server = launch("sglang", plan, "serve", "--model-path", str(tmp_path / "model"), "--port", str(free_port()))
    worker = eventually(lambda: named("sglang::schedul", server.pid))
    assert engines.of_process("sglang::schedul", command_line(worker)) == "sglang"
    os.kill(worker, signal.SIGKILL)
    assert server.wait(DEADLINE_S) == 1
    assert server.stderr
    assert "sglang::scheduler has ended with -9" in server.stderr.read()


def test_sigterm_can_be_ignored(launch: Launch, tmp_path: Path) -> None:
    """With no time to end in, only SIGKILL ends it, and its worker with it."""
    port = free_port()
    plan = Plan(LOADED, memory="ordinary", ends_after_s=None)
    server = launch("vllm", plan, "serve", str(tmp_path / "model"), "--port", str(port))
    eventually(lambda: get(port, "/health"))
    worker = named("VLLM::EngineCor", server.pid)
    assert worker
    server.terminate()
    os.kill(worker, signal.SIGTERM)
    time.sleep(0.5)
    assert server.poll() is None
    assert named("VLLM::EngineCor", server.pid) == worker
    server.kill()
    server.wait(DEADLINE_S)
    eventually(lambda: not named("VLLM::EngineCor", server.pid))


def test_an_ordinary_program(launch: Launch, tmp_path: Path) -> None:
    """The control's program is no model server to anybody."""
    process = launch(main.ORDINARY, Plan(LOADED, memory="ordinary", ends_after_s=0), str(tmp_path / "model"))
    eventually(lambda: "SigCgt:\t0000000000000000" not in Path(f"/proc/{process.pid}/status").read_text())
    assert engines.of_process(main.ORDINARY, command_line(process.pid)) is None


@pytest.mark.parametrize("name", ["vllm", "llama-server", "sglang", main.ORDINARY])
def test_a_model_that_is_not_there(name: str, launch: Launch, tmp_path: Path) -> None:
    """A server without its plan says so in one line."""
    process = launch(name, Plan(LOADED), "-m", str(tmp_path / "absent" / "weights"))
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert said.startswith(f"{name}: ")
    assert said.count("\n") == 1
    assert "plan.json" in said
