"""What starts a model, but says nowhere that can be read with which flags: the reason, and what helps. Pure."""

import re
from collections.abc import Sequence

from plimsoll.box import engines

_NIM = re.compile(r"(?:^|/)nim/", re.IGNORECASE)
_DOCKER = ("docker", "podman", "nerdctl")


def image(name: str) -> str:
    """Return why it cannot be told what an image takes, empty for an image of which nothing is known."""
    if _NIM.search(name):
        return f"{name}: a NIM image chooses its model, engine and flags when it starts: what it takes cannot be seen"
    return ""


def command(words: Sequence[str]) -> str:
    """Return why it cannot be told what a command starts, empty where there is nothing better to say."""
    if len(words) == 1:
        words = words[0].split()
    if len(words) < 2:  # noqa: PLR2004  # a program and what it is to do
        return ""
    program, verb, *rest = engines.program_name(words[0]), *words[1:]
    last = next((word for word in reversed(rest) if not word.startswith("-")), "")
    if program in _DOCKER and verb in ("start", "restart"):
        return (
            f"{program} {verb} {last}: the container keeps the command that it was made with, which is not read here: "
            "ask about that command, or about the running process with --pid"
        )
    if program in _DOCKER and verb == "model":
        return (
            "docker model: Docker's own server chooses engine, context and flags when it loads a model: ask about the "
            "running process with --pid"
        )
    if program == "ollama" and verb == "run":
        return (
            f"ollama run {last}: asks a server that runs already, and that one takes the memory: ask about "
            "`ollama serve`, or its unit"
        )
    return next((why for word in rest if (why := image(word))), "") if program in _DOCKER else ""
