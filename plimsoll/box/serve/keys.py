"""The keys of a model's file: what each may be, what holds without it, and what it means."""

import re
from typing import Any

from plimsoll.box.guard.config import ARGV, FLAG, NUMBER, PATHNAME, WHOLE, Key, Kind, Row, WrongValueError, shown
from plimsoll.box.guard.model import KIB_PER_GIB
from plimsoll.box.serve.model import Restart

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]{1,200}(?:@[A-Za-z0-9:_.\\-]{1,200})?\.service")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}\$?")
_SSH_HOST = re.compile(r"(?:[a-z_][a-z0-9_-]{0,31}@)?[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,126}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
URL_FORM = re.compile(
    r"http://(?:localhost|[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]{2,45}\])(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?:/[!\"$-~]*)?"
)
"""With an address, since a name may be looked up elsewhere; without a user and a fragment. urllib.parse would take a
twentieth of the time of a whole command to be imported."""
DEFAULT_PORT = 80
MAX_PORT = 65535


# --- what a value may be ---------------------------------------------------------------------------------


def _text(pattern: re.Pattern[str], accepts: str) -> Kind:
    def read(_key: Key, value: Any) -> Any:  # noqa: ANN401  # what a file holds, and what a field takes
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise WrongValueError(f"{value!r} is not {accepts}")
        return value

    return Kind(accepts, read)


def _absolute(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not value:
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return PATHNAME.read(key, value)


def _paths(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not isinstance(value, list) or not value:
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return tuple(_absolute(key, each) for each in value)


def _program(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if value == []:
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return ARGV.read(key, value)


def _variables(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if not isinstance(value, dict):
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str) or re.search(r"[\0\n]", text):
            raise WrongValueError(f'{name} = {text!r} is not a variable: write NAME = "text", of one line')
    return value


def _restart(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    if value not in list(Restart):
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return Restart(value)


def _url(key: Key, value: Any) -> Any:  # noqa: ANN401  # as above
    found = URL_FORM.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found["port"] or DEFAULT_PORT) > MAX_PORT:
        raise WrongValueError(f"{value!r} is not {key.accepts}")
    return value


SERVICE_UNIT = _text(_UNIT, 'the name of a service unit, such as "vllm.service"')
COMPOSE_SERVICE = _text(_SERVICE, "the name of a service in the compose file")
USER = _text(_USER, "the name of a user")
MODEL = _text(NAME, "the name of a model: small letters, digits, and . _ - between them")
MODEL_ID = _text(re.compile(r"[^\0-\x1f]{1,512}"), "the id that the server gives the model")
SSH_HOST = _text(_SSH_HOST, "a host, or user@host, as ssh takes it")
ABSOLUTE = Kind("a path from the root", _absolute)
ABSOLUTES = Kind("a list of paths from the root, of one at least", _paths)
PROGRAM = Kind("a list: a program with its path, and its arguments", _program)
VARIABLES = Kind('a table of variables, such as {NAME = "text"}', _variables)
RESTART = Kind('"no" or "on-failure"', _restart)
URL = Kind("http://ADDRESS:PORT/PATH, with an address of this box or localhost", _url)

_GIB = (0.01, 65536.0)
_TIME = (1.0, 21600.0)


class _Key(Key):
    """A key whose default stands beside it."""

    @property
    def default(self) -> Any:  # noqa: ANN401  # as above
        """What holds where the file says nothing; None where that is nothing."""
        return self.own_default


KEYS: tuple[Key, ...] = (
    _Key("run", "unit", SERVICE_UNIT, "unit", "the unit of the system's manager that it is"),
    _Key("run", "compose", ABSOLUTE, "compose", "the compose file that it is in"),
    _Key("run", "service", COMPOSE_SERVICE, "service", "which service of the compose file it is"),
    _Key("run", "command", PROGRAM, "command", "the command that is started as a transient unit in system.slice"),
    _Key("run", "user", USER, "user", "as whom the command runs", own_default="root"),
    _Key("run", "directory", ABSOLUTE, "directory", "where the command runs", own_default="/"),
    _Key("run", "environment", VARIABLES, "environment", "variables that the command is given"),
    _Key("run", "port", WHOLE, "port", "what must be free before a start; else the port of ready.url", (1, MAX_PORT)),
    _Key("run", "at_boot", FLAG, "at_boot", "start it when the box starts", own_default=False),
    _Key("run", "restart", RESTART, "restart", "start it again after it ended by itself", own_default="no"),
    _Key("need", "gib", NUMBER, "declared_kib", "what it takes at most, its start included; else computed by fit",
        _GIB, KIB_PER_GIB),
    _Key("need", "steady_gib", NUMBER, "steady_line_kib", "its own line of available memory instead of the slow line",
        _GIB, KIB_PER_GIB),
    _Key("need", "weights", ABSOLUTES, "weights", "its checkpoint, where its command does not tell"),
    _Key("ready", "url", URL, "url", "its list of models"),
    _Key("ready", "model_id", MODEL_ID, "model_id", "what the list of models has to name"),
    _Key("ready", "completion", FLAG, "completion", "whether one token has to come back as well", own_default=True),
    _Key("ready", "deadline_s", NUMBER, "deadline_s", "how long a start may take", _TIME, own_default=1800.0),
    _Key("ready", "request_timeout_s", NUMBER, "request_timeout_s", "how long one request may take", (1, 600),
        own_default=60.0),
    _Key("ready", "api_key_file", ABSOLUTE, "api_key_file", "a file whose first line is sent as bearer token"),
    _Key("prove", "prompt_tokens", WHOLE, "prompt_tokens", "the length of a prompt of real use", (1, 1 << 24)),
    _Key("prove", "slots", WHOLE, "slots", "how many of them come at once", (1, 256)),
    _Key("prove", "timeout_s", NUMBER, "timeout_s", "how long all of them may take", _TIME, own_default=600.0),
    _Key("stop", "grace_s", NUMBER, "stop_grace_s", "time from SIGTERM to SIGKILL", (0, 3600), own_default=60.0),
    _Key("stop", "reclaim_timeout_s", NUMBER, "reclaim_timeout_s", "how long its memory may take to come back",
        (1, 3600), own_default=300.0),
    _Key("kill", "oom_score_adj", WHOLE, "oom_score_adj", "above 0: the kernel's OOM killer takes it sooner",
        (-1000, 1000), own_default=0),
    _Key("kill", "force", FLAG, "force", "allow an oom_score_adj of -1000", own_default=False),
    _Key("kill", "guard_may_kill", FLAG, "guard_may_kill", "whether the guard may stop it", own_default=True),
    _Key("fallback", "model", MODEL, "fallback", "the model that is started, once, when this one does not come up"),
    _Key("docker", "user", USER, "docker_user", "whose rootless daemon runs the compose service"),
    _Key("docker", "socket", ABSOLUTE, "docker_socket", "that daemon's socket"),
    _Key("cluster", "host", SSH_HOST, "cluster_host", "the other host that it runs on"),
    _Key("cluster", "hook", PROGRAM, "cluster_hook", "run when it ends on this host"),
    _Key("hooks", "started", ARGV, "started", "run when it is ready", own_default=()),
    _Key("hooks", "failed", ARGV, "failed", "run when it did not come up", own_default=()),
    _Key("hooks", "ended", ARGV, "ended", "run when it ended without being stopped", own_default=()),
    _Key("hooks", "timeout_s", NUMBER, "hook_timeout_s", "a hook is killed after this time", (0.1, 600),
        own_default=10.0),
)  # fmt: skip
# in the order of KEYS at every start: a file that is written in it must not differ from one run to the next
BY_SECTION = {
    section: {key.name: key for key in KEYS if key.section == section}
    for section in dict.fromkeys(key.section for key in KEYS)
}
REQUIRED = ("ready.url", "ready.model_id")
TOGETHER = (("prove.prompt_tokens", "prove.slots"), ("docker.user", "docker.socket"))
OF_PLACE = {
    "run.command": ("run.user", "run.directory", "run.environment"),
    "run.compose": ("run.service", "docker.user", "docker.socket"),
}
"""What makes sense with one way to run only."""
PLACES = ("run.unit", "run.compose", "run.command")


def describe() -> list[Row]:
    """Return one row for every key, in the order of the file."""
    return [Row(key.dotted, key.accepts, _shown_default(key), key.means) for key in KEYS]


def _shown_default(key: Key) -> str:
    if key.dotted in REQUIRED:
        return "has to be given"
    return "none" if key.own_default is None else shown(key.own_default)
