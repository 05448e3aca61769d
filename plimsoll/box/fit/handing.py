"""Programs that are handed a command: tmux, screen, su, ssh, torchrun, and shells with `-c`. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.box.engines import SHELLS, program_name, shell_script


@dataclass(frozen=True)
class Script:
    """A text that a shell is given, with its `$0`, `$1` and so on."""

    before: tuple[str, ...]
    """The words before the program that is handed it."""
    text: str
    arguments: tuple[str, ...] = ()
    machine: str = ""
    """The other machine on which it runs; empty for this one."""


def script(words: Sequence[str], position: int) -> Script | None:
    """Return the script that the program at `position` is handed; None where it is handed none."""
    name, after = program_name(words[position]), list(words[position + 1 :])
    before = tuple(words[:position])
    if name in SHELLS:
        text = shell_script(words[position:])
        return None if text is None else Script(before, text, tuple(after[after.index(text) + 1 :]))
    if name in ("su", "runuser"):
        text = _value(after, ("-c", "--command", "--session-command"))
        return None if text is None else Script(before, text)
    if name in _TERMINALS:
        text = _TERMINALS[name](after)
        return Script(before, text) if text else None
    if name == "ssh":
        machine, *command = _operands(after, _SSH_VALUES) or [""]
        return Script(before, " ".join(command), (), machine) if command else None
    return None


def as_python(words: Sequence[str]) -> Sequence[str]:
    """Return a command with `torchrun` and its options replaced by the interpreter that it starts."""
    name = program_name(words[0])
    module = list(words[1:3]) in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
    if name != "torchrun" and not (module and name.startswith("python")):
        return words
    rest = list(words[3:] if module else words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-m", "--module"):
            return ["python3", "-m", *rest]
        if option not in _TORCH_SWITCHES and "=" not in option:
            del rest[:1]
    return ["python3", *rest]


_TORCH_SWITCHES = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path")
_TMUX_STARTS = ("new-session", "new", "new-window", "neww", "split-window", "splitw", "respawn-pane", "respawn-window")
_TMUX_SENDS = ("send-keys", "send")
_TMUX_VALUES = ("-s", "-t", "-n", "-c", "-x", "-y", "-e", "-F", "-f", "-l", "-S", "-L", "-N")
_SCREEN_VALUES = ("-c", "-e", "-h", "-p", "-s", "-S", "-t", "-T")
_SSH_VALUES = (
    "-B", "-b", "-c", "-D", "-E", "-e", "-F", "-I", "-i", "-J", "-L", "-l", "-m", "-O", "-o", "-P", "-p", "-Q", "-R",
    "-S", "-W", "-w",
)  # fmt: skip
_KEYS = re.compile(r"C-[a-z]|Enter|KPEnter|Escape|Space")


def _tmux(words: Sequence[str]) -> str:
    """Return what `tmux new-session … COMMAND` starts, or `send-keys` types."""
    operands = _operands(words, _TMUX_VALUES)
    verb, *rest = operands or [""]
    if verb in _TMUX_SENDS:
        return " ".join(key for key in _operands(rest, ("-t", "-N")) if not _KEYS.fullmatch(key))
    if verb not in _TMUX_STARTS:
        return ""
    rest = _operands(rest, _TMUX_VALUES)
    rest = rest[: rest.index(";")] if ";" in rest else rest
    return _as_text(rest)


def _screen(words: Sequence[str]) -> str:
    """Return what `screen -dmS NAME COMMAND` starts, or `-X stuff` types."""
    if "-X" in words:
        sent = list(words[list(words).index("-X") + 1 :])
        return sent[1] if len(sent) > 1 and sent[0] == "stuff" else ""
    return _as_text(_operands(words, _SCREEN_VALUES))


_TERMINALS = {"tmux": _tmux, "screen": _screen}


def _as_text(words: Sequence[str]) -> str:
    """Return words as a text that a shell would read them from; one word alone is such a text."""
    if len(words) == 1:
        return words[0]
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _operands(words: Sequence[str], with_value: Sequence[str]) -> list[str]:
    """Return the words from the first on that is neither an option nor the value of one."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        word = words[position]
        together = not word.startswith("--") and word[1:].isalpha() and f"-{word[-1]}" in with_value
        position += 2 if word in with_value or together else 1
    position += words[position : position + 1] == ["--"]
    return list(words[position:])


def _value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an option, None where it is not there."""
    for index, word in enumerate(words):
        if word in names and index + 1 < len(words):
            return words[index + 1]
        if word.partition("=")[0] in names and word.startswith("--"):
            return word.partition("=")[2]
    return None
