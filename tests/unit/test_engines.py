"""Which model server something is: by what runs, not by whose directory, user or log has the name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box import engines
from plimsoll.box.words import split_words


@pytest.mark.parametrize(
    ("comm", "argv", "expected"),
    [
        ("VLLM::EngineCor", "VLLM::EngineCore", "vllm"),
        ("VLLM::Worker_TP", "VLLM::Worker_TP1", "vllm"),
        ("sglang::schedul", "sglang::scheduler_TP0", "sglang"),
        ("ray::RayWorkerW", "ray::RayWorkerWrapper.execute_method", "vllm"),
        ("vllm", "/srv/.venv/bin/python3 /srv/.venv/bin/vllm serve m", "vllm"),
        ("python3", "python3 -u -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("pt_main_thread", "/usr/bin/python3.12 -X dev -m sglang.launch_server --tp 1", "sglang"),
        ("python3", "python3 /opt/vllm/serve", "vllm"),
        ("python3", "python3 /x/site-packages/sglang/launch_server.py", "sglang"),
        ("ollama", "/usr/local/bin/ollama serve", "ollama"),
        ("ollama", "/usr/local/bin/ollama runner --model /m --port 4", "ollama"),
        ("ollama_llama_se", "/var/lib/ollama/runners/cuda/ollama_llama_server -m x", "ollama"),
        ("llama-server", "./build/bin/llama-server -m x.gguf -ngl 99", "llama-server"),
        ("trtllm-serve", "/usr/bin/python3 /usr/local/bin/trtllm-serve m", "trtllm"),
        ("text-generation", "text-generation-launcher --model-id m", "text-generation"),
        ("python3", "python3 -mllama_cpp.server --model m", "llama-cpp"),
        ("uv", "uv run vllm serve m", None),
        ("bash", "bash -c vllm", None),
        ("bash", "/bin/bash /opt/vllm/start-vllm.sh", None),
        ("vim", "vim vllm.conf", None),
        ("tail", "tail /var/log/ollama.log", None),
        ("sshd", "sshd: vllm [priv]", None),
        ("python3", "/opt/vllm/venv/bin/python /opt/vllm/exporter.py", None),
        ("python3", "python3 -m sglang_router.launch_router", None),
        ("python3", "python3 -c import vllm", None),
        ("python3", "python3 -m", None),
        ("python3", "python3", None),
        ("vllm-exporter", "/usr/bin/vllm-exporter", None),
        ("ollama", "ollama run llama3", None),
        ("vllm", "python3 /usr/bin/vllm chat", None),
        ("vllm", "python3 /usr/bin/vllm bench serve --model m", None),
        ("vllm", "python3 /usr/bin/vllm bench throughput --model m", "vllm"),
        ("python3", "python3 -m vllm.entrypoints.cli.main bench serve", None),
        ("python3", "python3 -m vllm.entrypoints.cli.main serve m", "vllm"),
        ("python3", "python3 -mvllm.entrypoints.cli.main chat", None),
        ("python3", "python3 -m sglang.bench_serving --backend sglang", None),
        ("python3", "python3 -m sglang.bench_one_batch --model-path m", "sglang"),
        ("python3", "python3 /opt/kit/kimi_verify_vllm.py", None),
        ("docker", "docker run vllm/vllm-openai", None),
        ("x", "", None),
    ],
)
def test_process(comm: str, argv: str, expected: str | None) -> None:
    """A title, a program, a script or a module tells; a wrapper, a client, an editor and an exporter are none."""
    assert engines.of_process(comm, argv.split(" ")) == expected


def test_title_that_holds_blanks() -> None:
    """A process that wrote its title over its arguments has but one, and its beginning tells."""
    assert engines.of_process("sshd", ["sshd: vllm [priv]"]) is None
    assert engines.of_process("llama-server", ["llama-server -m x"]) == "llama-server"
    assert engines.of_process("x", []) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/bin/env -u HOME A=1 B=2 C=3 D=4 vllm serve m", "vllm"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve m", "vllm"),
        ("-/usr/local/bin/uv run --project /srv/x --with flash vllm serve m", "vllm"),
        ("uvx --from vllm==0.11 vllm serve m", "vllm"),
        ("uv run python -m vllm.entrypoints.openai.api_server", "vllm"),
        ("/bin/bash -lc 'cd /srv && source .venv/bin/activate && exec vllm serve m'", "vllm"),
        ("bash -e -c 'sleep 5; while true; do ollama serve; done'", "ollama"),
        ("sh -c 'exec env A=1 nice -n 5 llama-server -m x | tee /var/log/x'", "llama-server"),
        ("/usr/bin/nice -n 10 /usr/bin/numactl --interleave=all /x/vllm serve m", "vllm"),
        ("/usr/bin/sudo -u llm -E /opt/venv/bin/vllm serve m", "vllm"),
        ("systemd-run --scope -p MemoryMax=80G --unit vllm tritonserver --x", "tritonserver"),
        ("/usr/bin/flock -n /run/vllm.lock sglang serve", "sglang"),
        ("conda run -n serving --no-capture-output python -m sglang.launch_server", "sglang"),
        ("taskset -c 0-9 chrt -i 0 timeout -s KILL 10h ollama serve", "ollama"),
        ("apptainer run --nv /images/x.sif vllm serve m", "vllm"),
        ("/opt/start-vllm.sh", "vllm"),
        ("/bin/bash /opt/run_sglang.sh --tp 1", "sglang"),
        ("conda run -n vllm python app.py", None),
        ("gosu vllm python app.py", None),
        ("sudo -u ollama /home/ollama/bin/backup.sh", None),
        ("/opt/vllm-monitor/bin/monitor", None),
        ("/opt/kit/verify_vllm.sh", None),
        ("/opt/kit/bench-serving-sglang.sh", None),
        ("docker-entrypoint vllm bench serve", None),
        ("nginx -c /etc/nginx/ollama.conf", None),
        ("nice tail -F vllm", None),
        ("bash -c 'echo vllm; tail -F /var/log/vllm'", None),
        ("bash", None),
        ("bash -x", None),
        ("exec", None),
        ("A=1", None),
        ("", None),
    ],
)
def test_command(command: str, expected: str | None) -> None:
    """What starts an engine is seen through: a priority, an environment, a shell; what only names one is not it."""
    assert engines.of_command(split_words(command, c_escapes=True)) == expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:cu130-nightly", "vllm"),
        ("registry.local:5000/x/dspark-vllm-gx10@sha256:00ff", "vllm"),
        ("nvcr.io/nvidia/tritonserver:25.01-py3", "tritonserver"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama-cpp"),
        ("ghcr.io/huggingface/text-generation-inference:3", "text-generation"),
        ("vllm/vllm-router", None),
        ("prom/vllm-exporter:1", None),
        ("vllm/nginx", None),
        ("", None),
    ],
)
def test_image(image: str, expected: str | None) -> None:
    """An image is named after what it runs, not after who publishes it."""
    assert engines.of_image(image) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("__DIR__/.venv/bin/python", True),
        ("/opt/__KIT__/x", True),
        ("{{", True),
        ("/usr/bin/<your-engine>", True),
        ("@BINDIR@/x", True),
        ("${HOME}/bin/vllm", True),
        ("-/usr/bin/vllm", False),
        ("%h/bin/vllm", False),
        ("vllm", False),
        ("", False),
    ],
)
def test_template(word: str, expected: bool) -> None:
    """A unit whose program is yet to be filled in is none that systemd would start."""
    assert engines.is_template(word) is expected


def test_wrappers_without_end() -> None:
    """A line that wraps again and again, as anybody's unit may, is given up and breaks nothing."""
    assert engines.of_command(["env"] * 10 + ["vllm"]) == "vllm"
    assert engines.of_command(["env"] * 100_000 + ["vllm"]) is None
    script = "x"
    for _ in range(12):
        script = "sh -c " + "'" + script.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert engines.of_command(split_words(script, c_escapes=False)) is None


@given(st.text(max_size=15), st.lists(st.text(st.sampled_from("vlm ollama-/:;&|(){}=c'\"$python"), max_size=12)))
def test_any_words(comm: str, words: list[str]) -> None:
    """No command line breaks the looking."""
    engines.of_process(comm, words)
    engines.of_command(["bash", "-c", *words])
    engines.of_command(words)
    engines.among(words)
