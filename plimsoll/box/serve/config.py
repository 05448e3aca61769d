"""models.d: one file a model says how it runs, what it needs, when it is ready, and who is told. All its keys.

An example with every key:

    # /etc/plimsoll/models.d/qwen.toml: the file's name is the model's
    [run]                                   # exactly one of `unit`, `compose`, `command`
    unit = "vllm-qwen.service"              # a unit of the system's, without Restart= and not enabled
    # compose = "/srv/qwen/compose.yaml"    # a compose file, and
    # service = "vllm"                      #   which of its services
    # command = ["/opt/vllm/bin/vllm", "serve", "/srv/models/qwen", "--port", "8000"]   # in system.slice
    # user = "vllm"                         #   as whom; root without it
    # directory = "/srv/qwen"               #   where
    # environment = {HF_HUB_OFFLINE = "1"}  #   with these variables
    port = 8000                             # must be free before a start; without it the port of ready.url
    at_boot = false                         # start it when the box starts
    restart = "no"                          # or "on-failure": again, once its memory is back

    [need]                                  # without it `plimsoll fit` computes it from the command
    gib = 92                                # what it takes at most, the spike of its start included
    steady_gib = 6                          # its own line of available memory instead of the guard's slow line
    weights = ["/srv/models/qwen"]          # its checkpoint, where the command does not tell

    [ready]
    url = "http://127.0.0.1:8000/v1/models" # an address of this box, not a name
    model_id = "qwen"                       # what that list has to name
    completion = true                       # one token has to come back as well
    deadline_s = 1800
    request_timeout_s = 60
    api_key_file = "/etc/plimsoll/qwen.key" # its first line goes along as bearer token

    [prove]                                 # what `start --prove` sends
    prompt_tokens = 25600
    slots = 4                               # that many at once
    timeout_s = 600

    [stop]
    grace_s = 60                            # from SIGTERM to SIGKILL
    reclaim_timeout_s = 300                 # until its memory is back

    [kill]
    oom_score_adj = 0                       # -1000 makes the kernel shoot everything else: only with force = true
    force = false
    guard_may_kill = true

    [fallback]
    model = "qwen-small"                    # started, once, when this one does not come up

    # [docker]                              # of a compose service whose daemon is rootless
    # user = "alice"
    # socket = "/run/user/1000/docker.sock"

    [cluster]                               # it runs on two hosts: both are admitted, or neither
    host = "gx10-b"                         # as ssh takes it
    hook = ["/usr/local/bin/end-other-half"]

    [hooks]                                 # a program and its arguments; a JSON document is its standard input
    started = []
    failed = ["/usr/local/bin/tell"]
    ended = ["/usr/local/bin/tell"]         # it had been ready, and ended without being stopped
    timeout_s = 10

A file is judged as a whole, so that one look mends it.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from plimsoll.box.guard.config import ConfigError, Key, WrongValueError, line_of, nearest
from plimsoll.box.host import Host
from plimsoll.box.serve import keys
from plimsoll.box.serve.model import (
    Cluster,
    Command,
    Compose,
    Docker,
    Hooks,
    Model,
    Need,
    Place,
    Proof,
    Readiness,
    Unit,
)

DIRECTORY = "/etc/plimsoll/models.d"
SUFFIX = ".toml"
MAX_BYTES = 64 << 10
KERNEL_IMMUNE = -1000


# --- one file --------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What is wrong with a model, and with which key of which section; both are empty for the whole."""

    model: str
    section: str
    key: str
    message: str


def parse(text: str, path: str) -> Model:
    """Return what a file says; raises ConfigError with every fault of it. Whether its fallback exists is not asked."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        raise ConfigError(f"{path}:{found[1] if found else 1}: not TOML: {error}") from error
    name = os.path.basename(path).removesuffix(SUFFIX)
    values, faults = _understood(name, document)
    if faults:
        lines = text.splitlines()
        placed = sorted((line_of(lines, each.section, each.key or None), each.message) for each in faults)
        raise ConfigError("\n".join(f"{path}:{line}: {message}" for line, message in placed))
    return _model(name, path, values)


def check(documents: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    """Return all that is wrong with models, by name, as what their files would hold; with their fallbacks too. Pure."""
    faults: list[Fault] = []
    fallbacks: dict[str, str | None] = {}
    for name, document in documents.items():
        if not keys.NAME.fullmatch(name):
            faults.append(Fault(name, "", "", f"{name!r} is not {keys.MODEL.accepts}"))
        values, found = _understood(name, document)
        faults += found
        fallbacks[name] = values.get("fallback.model")
    return [*faults, *_against_fallbacks(fallbacks, documents)]


def _understood(name: str, document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return the values by dotted key, and what is wrong; a key whose value does not do is there as None."""
    values: dict[str, Any] = {}
    found = [*_read(document, values), *_against(values)]
    return values, [Fault(name, section, key or "", message) for section, key, message in found]


def _against_fallbacks(fallbacks: Mapping[str, str | None], known: Iterable[str]) -> Iterator[Fault]:
    """Yield which fallbacks are missing among the models that are known, or lead round in a circle."""
    there = dict.fromkeys(known)
    for name, fallback in fallbacks.items():
        if fallback is not None and fallback not in there:
            message = f"fallback.model: there is no model {fallback}; {nearest(fallback, there)}"
            yield Fault(name, "fallback", "model", message)
        way = [name]
        while (following := fallbacks.get(way[-1])) is not None and following not in way:
            way.append(following)
        if following == name:
            circle = " -> ".join([*way, name])
            yield Fault(name, "fallback", "model", f"fallback.model: {circle} is a circle; take one of them out")


_Wrong = tuple[str, str | None, str]
"""Section, key, message."""


def _read(document: Mapping[str, Any], values: dict[str, Any]) -> Iterator[_Wrong]:
    """Put the values into `values`, by dotted key; yield what is wrong."""
    for section, content in document.items():
        known = keys.BY_SECTION.get(section)
        if known is None:
            yield section, None, f"unknown section [{section}]; {nearest(section, keys.BY_SECTION)}"
        elif not isinstance(content, dict):
            yield section, None, f"{section} is a section: write [{section}] and its keys below"
        else:
            yield from _read_section(section, content, known, values)


def _read_section(
    section: str, content: Mapping[str, Any], known: Mapping[str, Key], values: dict[str, Any]
) -> Iterator[_Wrong]:
    for name, value in content.items():
        key = known.get(name)
        if key is None:
            yield section, name, f"unknown key {section}.{name}; {nearest(name, known)}"
            continue
        # the key counts as given although its value does not do: one fault is not to be told twice
        values[key.dotted] = None
        try:
            values[key.dotted] = key.kind.read(key, value)
        except WrongValueError as wrong:
            yield section, name, f"{key.dotted}: {wrong}"


def _against(values: Mapping[str, Any]) -> Iterator[_Wrong]:
    """Yield what does not go together, or is missing."""
    yield from _against_places(values)
    for dotted in keys.REQUIRED:
        if dotted not in values:
            yield "ready", None, f"{dotted} is missing: without it nobody can tell when the model is ready"
    for pair in keys.TOGETHER:
        given = [dotted for dotted in pair if dotted in values]
        if len(given) == 1:
            missing = next(dotted for dotted in pair if dotted not in values)
            yield *_split(given[0]), f"{given[0]} is given without {missing}: give both"
    if values.get("kill.oom_score_adj") == KERNEL_IMMUNE and not values.get("kill.force"):
        message = (
            "kill.oom_score_adj: -1000 makes the kernel shoot everything else instead; "
            "take -999 or more, or add kill.force = true"
        )
        yield "kill", "oom_score_adj", message
    if "cluster.hook" in values and "cluster.host" not in values:
        yield "cluster", "hook", "cluster.hook is given without cluster.host: name the other host"


def _against_places(values: Mapping[str, Any]) -> Iterator[_Wrong]:
    given = [dotted for dotted in keys.PLACES if dotted in values]
    if not given:
        yield "run", None, "it is not said how the model runs: give run.unit, run.compose or run.command"
    for dotted in given[1:]:
        yield *_split(dotted), f"{given[0]} and {dotted} exclude each other: a model runs in one way"
    if "run.compose" in given and "run.service" not in values:
        yield "run", "compose", "run.compose needs run.service: which of its services is the model"
    if str(values.get("run.unit")).startswith("plimsoll-"):
        yield "run", "unit", f"run.unit: {values['run.unit']} is a unit of Plimsoll's own"
    for place, own in keys.OF_PLACE.items():
        for dotted in own:
            if given and place not in given and dotted in values:
                yield *_split(dotted), f"{dotted} is for {place} only, and this model has {given[0]}"


def _split(dotted: str) -> tuple[str, str]:
    section, _, name = dotted.partition(".")
    return section, name


def _model(name: str, path: str, values: Mapping[str, Any]) -> Model:
    def given(*sections: str) -> dict[str, Any]:
        return {k.target: values[k.dotted] for k in keys.KEYS if k.section in sections and k.dotted in values}

    cluster = given("cluster")
    docker = given("docker")
    hooks = given("hooks")
    fields = {key: value for key, value in given("run", "stop", "kill", "fallback").items() if key in _OWN_FIELDS}
    readiness = Readiness(**given("ready"))
    return Model(
        name, path, _place(given("run")), readiness,
        **{"port": _port(readiness.url), **fields},
        need=Need(**given("need")),
        proof=Proof(**given("prove")) if "prove.slots" in values else None,
        docker=Docker(docker["docker_user"], docker["docker_socket"]) if docker else None,
        cluster=Cluster(cluster["cluster_host"], cluster.get("cluster_hook", ())) if cluster else None,
        hooks=Hooks(**{{"hook_timeout_s": "timeout_s"}.get(key, key): value for key, value in hooks.items()}),
    )  # fmt: skip


_OWN_FIELDS = frozenset({
    "port", "at_boot", "restart", "stop_grace_s", "reclaim_timeout_s", "oom_score_adj", "guard_may_kill", "fallback",
})  # fmt: skip


def _port(url: str) -> int:
    found = keys.URL_FORM.fullmatch(url)
    return int((found and found["port"]) or keys.DEFAULT_PORT)


def _place(run: Mapping[str, Any]) -> Place:
    if "unit" in run:
        return Unit(run["unit"])
    if "compose" in run:
        return Compose(run["compose"], run["service"])
    rest = {name: run[name] for name in ("user", "directory", "environment") if name in run}
    return Command(run["command"], **rest)


# --- the directory ---------------------------------------------------------------------------------------


def names(host: Host) -> list[str]:
    """Return the names of all models that are declared, sorted."""
    return [each.removesuffix(SUFFIX) for each in host.names(DIRECTORY) if each.endswith(SUFFIX) and each[0] != "."]


def read(host: Host, name: str) -> Model:
    """Return one model; its fallback is not looked at. Raises ConfigError."""
    path = f"{DIRECTORY}/{name}{SUFFIX}"
    if not keys.NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not {keys.MODEL.accepts}; there are: {_listed(host)}")
    try:
        _refuse_foreign(host, path)
        content = host.content(path)
    except FileNotFoundError:
        near = nearest(name, dict.fromkeys(names(host))) if names(host) else "none is declared yet"
        raise ConfigError(f"there is no model {name} ({path}); {near}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES >> 10} KiB, which no model's file is")
    try:
        return parse(content.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8, at byte {error.start}") from error


def _listed(host: Host) -> str:
    return ", ".join(names(host)) or "none"


def _refuse_foreign(host: Host, path: str) -> None:
    """Raise ConfigError for a file that others than root can write: what it names is run by root."""
    owner = 0 if not host.root else os.stat(host.root).st_uid
    for each in (DIRECTORY, path, *_on_the_way(host, path)):
        found = os.stat(host.path(each))
        if found.st_uid != owner or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            what = f"belongs to user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
            raise ConfigError(f"{each}: {what}: others could have root run what they like; chown root, chmod go-w")


def _on_the_way(host: Host, path: str) -> Iterator[str]:
    """Yield the directories in which a linked file lies: who may write one of them can put another file there."""
    if not os.path.islink(host.path(path)):
        return
    top = os.path.realpath(host.root or "/")
    directory = os.path.dirname(os.path.realpath(host.path(path)))
    while directory not in ("/", top):
        yield directory.removeprefix(host.root)
        directory = os.path.dirname(directory)


def load(host: Host, name: str) -> Model:
    """Return one model, whose fallbacks all exist and lead back to none of them; raises ConfigError."""
    known = names(host)
    chain = {name: read(host, name)}
    following = chain[name].fallback
    while following in known and following not in chain:
        chain[following] = read(host, following)
        following = chain[following].fallback
    for fault in _against_fallbacks({each.name: each.fallback for each in chain.values()}, known):
        raise ConfigError(f"{chain[fault.model].file}: {fault.message}")
    return chain[name]


def load_all(host: Host) -> dict[str, Model]:
    """Return all models by name; raises ConfigError with the faults of all files."""
    found, problems = look(host)
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def look(host: Host) -> tuple[dict[str, Model], list[str]]:
    """Return the models whose files do, by name, and what is wrong with the others: to show what there is."""
    found: dict[str, Model] = {}
    problems: list[str] = []
    for name in names(host):
        try:
            found[name] = load(host, name)
        except ConfigError as error:
            problems += [each for each in str(error).splitlines() if each not in problems]
    return found, problems
