"""Which model server a process, a command line or an image is, seen through whatever starts it. Pure.

A name decides where a program, a script, a module or an image is named; not in a directory, a user's or a log's name.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

from plimsoll.box.words import split_words

_ENGINE = re.compile(
    r"(?:^|-)(vllm|sglang|ollama|llama-server|llama-box|llamafile|llama-cpp(?=-server)|tritonserver|trtllm|tensorrt-llm"
    r"|text-generation(?=-server|-launcher|-inference|$)|lmdeploy|mlc-llm|koboldcpp|mistralrs|tabbyapi|aphrodite)"
    r"[0-9]*(?=-|$)"
)
"""Over a name in small letters with `-` for all else; the kernel cuts text-generation-server at 15 characters."""

_BESIDE = frozenset({
    "backup", "benchmark", "build", "builder", "check", "checker", "clean", "cleanup", "client", "conf", "dashboard",
    "download", "exporter", "gateway", "guard", "guardian", "health", "healthcheck", "install", "installer", "kill",
    "lock", "log", "logs", "metrics", "monitor", "monitoring", "notify", "panel", "probe", "proxy", "pull", "ready",
    "router", "stats", "status", "stop", "sync", "test", "tests", "ui", "update", "updater", "upgrade", "verify",
    "wait", "warmup", "watch", "watchdog", "watcher", "webui",
})  # fmt: skip
"""What stands in the name of a program that looks after an engine and holds none of its memory."""
_OTHER_CHARACTERS = re.compile(r"[^a-z0-9]+")
_TITLE = re.compile(r"(vllm|sglang)::", re.IGNORECASE)
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")
_END_OF_NAME = re.compile(r"[ \t]|:(?!:)")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|<[a-z_ -]+>|@[A-Z_]+@|__[A-Z_]+__")
_BENCH_CLIENT = re.compile(r"(^|-)bench-serving(-|$)")
"""A benchmark of a server that runs elsewhere; `bench_one_batch` and `bench_offline_throughput` load the model."""

_RAY_WORKER = "ray::RayWorkerW"
"""What Ray calls the processes in which vLLM's ranks run, as far as the kernel keeps it."""
_CLIENT_COMMANDS = {
    "ollama": frozenset({"cp", "create", "help", "list", "ls", "ps", "pull", "push", "rm", "run", "show", "stop"}),
    # `bench throughput` and `bench latency` load the model themselves
    "vllm": frozenset({"bench serve", "chat", "collect-env", "complete"}),
}
"""What makes the same program a client of a server that runs elsewhere: its command, or that with the next word."""

SHELLS = ("sh", "bash", "dash", "zsh", "ash", "fish")
_PREFIXES = "-@:+!|"
"""What may stand before a program in ExecStart."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SERVING_SCRIPTS = frozenset({"api_server", "entrypoint", "launch", "launch_server", "run", "serve", "server", "start"})
"""Names of scripts that say nothing by themselves: the directories above them do."""

_WRAPPERS = frozenset({
    "accelerate", "apptainer", "builtin", "catatonit", "chrt", "command", "conda", "do", "dumb-init", "else", "env",
    "exec", "flock", "gosu", "if", "ionice", "mamba", "micromamba", "mpirun", "nice", "nohup", "nsenter", "nsys",
    "numactl", "pipenv", "pixi", "poetry", "prlimit", "runuser", "setpriv", "setsid", "singularity", "stdbuf",
    "su-exec", "sudo", "systemd-cat", "systemd-inhibit", "systemd-run", "taskset", "then", "time", "timeout", "tini",
    "trtllm-llmapi-launch", "unbuffer", "unshare", "until", "uv", "uvx", "while", "{", "!",
})  # fmt: skip
"""Programs, and words of a shell, that start the program which follows."""
_OPERAND_FIRST = frozenset({"flock", "gosu", "su-exec"})
"""Wrappers of which the first operand is a name of something else: a lock, a user."""
_BEFORE_PROGRAM = re.compile(r"[0-9].*|run|exec|launch|tool|profile|.*\.sif")
"""Operands of a wrapper that are not yet the program: a priority, a time, processors, its own command, an image."""
_WITH_VALUE = {
    "conda": ("-n", "--name", "-p", "--prefix", "--cwd"),
    "env": ("-u", "--unset", "-C", "--chdir"),
    "exec": ("-a",),
    "mpirun": ("-x", "--mca"),
    "nsys": ("-o", "--output", "-t", "--trace"),
    "runuser": ("-u", "--user", "-g", "--group"),
    "stdbuf": ("-i", "-o", "-e"),
    "sudo": ("-u", "--user", "-g", "--group", "-D", "--chdir", "-h", "--host"),
    "systemd-cat": ("-t", "--identifier"),
    "systemd-inhibit": ("--who", "--why", "--what"),
    "systemd-run": ("-p", "--property", "-u", "--unit", "--slice", "--description", "--uid", "--gid", "-E", "--setenv"),
    "timeout": ("-s", "--signal"),
    "uv": ("--with", "--from", "--project", "--directory", "--python", "-p", "--env-file", "--extra", "--package"),
}
"""Options whose value could be taken for a program, by wrapper."""
_SAME_OPTIONS = {"mamba": "conda", "micromamba": "conda", "uvx": "uv"}


def named(name: str) -> str | None:
    """Return the model server that a program's, a module's or an image's name names, None for anything beside one."""
    plain = _OTHER_CHARACTERS.sub("-", name.lower()).strip("-")
    match = _ENGINE.search(plain)
    is_beside = bool(_BESIDE & set(plain.split("-"))) or _BENCH_CLIENT.search(plain) is not None
    return match[1] if match and not is_beside else None


def of_process(comm: str, argv: Sequence[str]) -> str | None:
    """Return which model server a process is; what only starts one (a shell, `uv run`) is none.

    A process may have given itself a title (`VLLM::EngineCore`), of which the kernel keeps 15 characters.
    """
    if comm.startswith(_RAY_WORKER):
        return "vllm"
    title = _TITLE.match(comm)
    if title:
        return title[1].lower()
    words = argv[0].split(" ") if len(argv) == 1 else argv
    return _of_program(words) if words and posixpath.basename(words[0]) not in SHELLS else None


def of_command(words: Sequence[str]) -> str | None:
    """Return which model server a command line starts, wrappers, `sh -c` and interpreters seen through."""
    return next((engine for command in commands(words) if (engine := _of_program(command))), None)


MAX_WRAPPERS = 16
"""Nobody wraps an engine that often; a unit file may be anybody's."""


def commands(words: Sequence[str], wrappers_left: int = MAX_WRAPPERS) -> Iterator[Sequence[str]]:
    """Yield the commands that a command line can start, each without what it is wrapped in.

    Several for a script that is given to a shell; none behind more than MAX_WRAPPERS.
    """
    if not wrappers_left:
        return
    first = next((index for index, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    rest = list(words[first:])
    script = shell_script(rest)
    if script is not None:
        for part in re.split(r"[;&|\n()]+", script):
            yield from commands(split_words(part, c_escapes=False), wrappers_left - 1)
    elif rest and program_name(rest[0]) in _WRAPPERS:
        yield from commands(_wrapped(program_name(rest[0]), rest[1:]), wrappers_left - 1)
    elif rest:
        yield rest


def is_wrapper(name: str) -> bool:
    """Say whether a program starts the program that follows it."""
    return name in _WRAPPERS


def _wrapped(wrapper: str, words: Sequence[str]) -> Sequence[str]:
    """Return the command line that a wrapper starts, empty where it cannot be told."""
    with_value = _WITH_VALUE.get(_SAME_OPTIONS.get(wrapper, wrapper), ())
    to_skip = int(wrapper in _OPERAND_FIRST)
    previous = ""
    for index, word in enumerate(words):
        is_value, previous = previous in with_value, word
        if is_value or word.startswith("-") or _ASSIGNMENT.match(word) or _BEFORE_PROGRAM.fullmatch(word):
            continue
        if not to_skip:
            return words[index:]
        to_skip -= 1
    return ()


def shell_script(words: Sequence[str]) -> str | None:
    """Return the script that a shell is given by `-c` (`-lc`, `-e -c`), None for any other command line."""
    if not words or program_name(words[0]) not in SHELLS:
        return None
    for index, word in enumerate(words[1:-1], 1):
        if _SCRIPT_OPTION.fullmatch(word):
            return words[index + 1]
        if not word.startswith(("-", "+")):
            return None
    return None


def interpreted_script(argv: Sequence[str]) -> str:
    """Return the file name of the script that Python or a shell was started with, empty for anything else."""
    program = program_name(argv[0]) if argv else ""
    if not _PYTHON.fullmatch(program) and program not in SHELLS:
        return ""
    first = next((word for word in argv[1:] if not word.startswith("-") or word in ("-c", "-m")), "-c")
    return "" if first.startswith("-") else posixpath.basename(first)


def program_name(word: str) -> str:
    """Return a program's name without its path and without what ExecStart may have before it."""
    return posixpath.basename(word.lstrip(_PREFIXES)) or word


def _of_program(words: Sequence[str]) -> str | None:
    """Return which model server a command is that begins with its program, or with an interpreter of it."""
    program, arguments = program_name(words[0]), list(words[1:])
    # A title is one text: `sshd: vllm [priv]` is sshd.
    program = _END_OF_NAME.split(program)[0] if "::" not in program else program
    if _PYTHON.fullmatch(program):
        return _of_python(arguments)
    if program in SHELLS:
        script = next((index for index, word in enumerate(arguments) if not word.startswith("-")), None)
        return None if script is None else _of_script(arguments[script], arguments[script + 1 :])
    return _unless_client(named(program), arguments)


def _of_python(arguments: list[str]) -> str | None:
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option.startswith("-m"):
            module = option[2:] or "".join(arguments[:1])
            rest = arguments if option[2:] else arguments[1:]
            return _unless_client(named("-".join(module.split(".")[:2])), rest)
        if option.startswith("-c"):
            return None
        if option in ("-X", "-W"):
            del arguments[:1]
    return _of_script(arguments[0], arguments[1:]) if arguments else None


def _of_script(path: str, arguments: Sequence[str]) -> str | None:
    stem = posixpath.splitext(posixpath.basename(path))[0]
    if stem in _SERVING_SCRIPTS:
        return next((engine for part in posixpath.dirname(path).split("/") if (engine := named(part))), None)
    return _unless_client(named(stem), arguments)


def _unless_client(engine: str | None, arguments: Sequence[str]) -> str | None:
    plain = [word for word in arguments if not word.startswith("-")]
    commands_given = {" ".join(plain[:length]) for length in (1, 2)}
    return None if engine is None or commands_given & _CLIENT_COMMANDS.get(engine, frozenset()) else engine


def of_image(image: str) -> str | None:
    """Return which model server an image is named after: by its last part and its tag, not by who publishes it."""
    return named(posixpath.basename(image.partition("@")[0]))


def among(words: Sequence[str]) -> str | None:
    """Return the model server that a word names, or a part of a path: a guess, where no program is told."""
    return next((engine for word in words for part in word.split("/") if (engine := named(part))), None)


def is_template(word: str) -> bool:
    """Say whether a program is a placeholder that an installer was to fill in: systemd starts no such unit."""
    program = word.lstrip(_PREFIXES)
    relative = "/" in program and not program.startswith(("/", "%"))
    return relative or _PLACEHOLDER.search(program) is not None
