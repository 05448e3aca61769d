"""What images of engines start by themselves, and what of a command in one is no server. Pure."""

import posixpath
import re
from collections.abc import Iterable, Sequence

from plimsoll.box import engines

SWAP_CONFIGURATIONS = ("/app/config.yaml", "/etc/llama-swap/config/config.yaml")
"""Where the image of llama-swap looks for its configuration; its entry point names the first."""
SWAP_DIRECTORY = "/app"
_ALL_TOOLS = re.compile(r"llama[._-]?cpp:full", re.IGNORECASE)
"""The image whose entry point chooses a tool of llama.cpp by its first word."""
_SERVER_TOOL = ("--server", "-s")
_SERVES_ITSELF = re.compile(r"vllm-openai|ollama|llama[._-]?cpp|llama-server|text-generation|tgi", re.IGNORECASE)
"""Images whose entry point is the server; those of NVIDIA and of SGLang run the words that they are given."""

_HARMLESS = frozenset({
    "apt", "apt-get", "aria2c", "cat", "chmod", "chown", "cp", "curl", "date", "echo", "env", "false", "find", "git",
    "grep", "hf", "huggingface-cli", "hostname", "id", "ln", "ls", "mkdir", "modelscope", "mv", "nvcc", "nvidia-smi",
    "pip", "pip3", "printenv", "printf", "ps", "rm", "rsync", "tar", "test", "touch", "true", "uname", "wget", "which",
})  # fmt: skip
"""Programs that end by themselves and load no model."""
_IDLE = frozenset(
    {*engines.SHELLS, "htop", "jupyter", "nvtop", "ray", "screen", "sleep", "tail", "tmux", "top", "watch"}
)
_PYTHON = re.compile(r"python[0-9.]*")


def engine(image: str) -> str | None:
    """Return the engine of an image, None for one that is none."""
    return "llama-cpp" if _ALL_TOOLS.search(_name(image)) else engines.of_image(image)


def is_swap(image: str) -> bool:
    """Say whether an image is of llama-swap."""
    return "llama-swap" in _name(image)


def _name(image: str) -> str:
    return posixpath.basename(image.partition("@")[0])


def serves_itself(image: str) -> bool:
    """Say whether an image starts its server without being told to."""
    return _SERVES_ITSELF.search(_name(image)) is not None and not _ALL_TOOLS.search(_name(image))


def without_tool(image: str, command: Sequence[str]) -> Sequence[str] | None:
    """Return the flags of the server that the image of all tools is told to start; None for another tool of it."""
    if not _ALL_TOOLS.search(_name(image)):
        return command
    return command[1:] if tuple(command[:1]) and command[0] in _SERVER_TOOL else None


def is_program(word: str) -> bool:
    """Say whether a word is a program or a script rather than the name of a model."""
    name = engines.program_name(word)
    return name in _HARMLESS | _IDLE or bool(_PYTHON.fullmatch(name)) or word.endswith((".sh", ".py"))


def are_harmless(programs: Iterable[str]) -> bool:
    """Say whether programs all end by themselves and load no model."""
    return {engines.program_name(each) for each in programs} <= _HARMLESS


def configuration(command: Sequence[str]) -> str:
    """Return the file that llama-swap is told to read, empty where it is told none."""
    words = list(command)
    return next(
        (word.partition("=")[2] or "".join(words[index + 1 : index + 2])
         for index, word in enumerate(words) if word.partition("=")[0].lstrip("-") in ("config", "c")),
        "",
    )  # fmt: skip
