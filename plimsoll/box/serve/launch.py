"""How a model is started, looked at and ended, wherever it runs: a unit, a transient unit, a compose service. Edge.

What is in common is a `Launcher`; none of its methods waits for a model. Whoever runs a model is asked what becomes of
it: systemd, or a docker daemon.
"""

import pwd
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plimsoll.box.errors import INTERNAL, UNKNOWN, BoxError
from plimsoll.box.host import Host, Ran
from plimsoll.box.serve.model import Command, Compose, Docker, Model
from plimsoll.box.serve.watching import members
from plimsoll.box.systemctl import SHOW_TIMEOUT_S, parse_show

START_TIMEOUT_S = 90.0
"""Until systemd or docker has begun; systemd was seen to answer nobody for 15 s while it read its units."""
CREATE_TIMEOUT_S = 3600.0
"""Until a container is made: its image may have to be fetched first, and they are some 20 GB."""
_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "MainPID", "ControlGroup", "Result", "ExecMainStatus", "ExecMainCode",
    "UnitFileState", "Restart",
)  # fmt: skip
_INSPECT = "{{.Id}} {{.State.Status}} {{.State.Pid}} {{.State.ExitCode}} {{.Name}}"
_SHORT = 12
"""Digits by which docker calls a container."""


class LaunchError(BoxError):
    """Whoever should run the model has refused; the message is theirs."""

    exit_code = INTERNAL


class NoAnswerError(BoxError):
    """Whoever runs the model does not say what becomes of it."""

    exit_code = UNKNOWN


@dataclass(frozen=True)
class Seen:
    """A model's processes at one moment."""

    there: bool
    """Whether anything of it runs, or is about to."""
    said: str
    """In the words of who runs it."""
    main_pid: int = 0
    """0 where there is none (yet)."""
    pids: tuple[int, ...] = ()
    cgroup: str = ""
    container: str = ""
    name: str = ""
    """Of its unit, or of its container."""
    notes: tuple[str, ...] = ()
    """What starts it without an admission."""

    @property
    def selector(self) -> str:
        """What the guard calls a container; empty for a unit."""
        return self.container[:_SHORT]


class Launcher(ABC):
    """One model, as it is run. All methods raise NoAnswerError; those that act also LaunchError."""

    selector: str
    """What the guard calls it; of a compose service known once it is prepared."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what is started afterwards, so that it has a name; takes no memory."""

    @abstractmethod
    def start(self) -> None:
        """Have it started."""

    @abstractmethod
    def look(self) -> Seen:
        """Say what there is of it."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """Have SIGTERM sent, and see to it that nobody starts it again."""

    @abstractmethod
    def kill(self) -> None:
        """Have SIGKILL sent to all of it."""

    @abstractmethod
    def forget(self) -> None:
        """Have a failure forgotten, so that it can be started anew."""


def launcher(host: Host, model: Model) -> Launcher:
    """Return what runs a model."""
    if isinstance(model.place, Compose):
        return ComposeService(host, model.place, model.docker, round(model.stop_grace_s))
    if isinstance(model.place, Command):
        return Transient(host, model.unit, model.place, model)
    return SystemUnit(host, model.unit)


# --- systemd ----------------------------------------------------------------------------------------


class SystemUnit(Launcher):
    """A unit of the system's manager."""

    def __init__(self, host: Host, unit: str) -> None:
        self._host = host
        self._unit = unit
        self.selector = unit

    def prepare(self) -> None:
        """Clear the way: a unit that failed too often is not started."""
        self.forget()

    def start(self) -> None:
        """Start it; of a unit that tells when it is ready, that is not waited for."""
        self._systemctl("start", "--no-block")

    def look(self) -> Seen:
        """Say what systemd says, and which processes are in its cgroup."""
        names = ",".join(_PROPERTIES)
        ran = self._host.run("systemctl", "show", "-p", names, "--", self._unit, timeout_s=SHOW_TIMEOUT_S)
        blocks = parse_show(ran.out)
        if ran.code != 0 or len(blocks) != 1:
            raise NoAnswerError(f"systemctl show {self._unit}: {ran.problem}; nothing is known of it now")
        return _of_unit(self._host, self._unit, blocks[0])

    def ask_to_end(self) -> None:
        """Stop it; its own KillSignal and ExecStop are systemd's to know."""
        self._systemctl("stop", "--no-block")

    def kill(self) -> None:
        """Kill all of its processes; that there are none any more is what was wanted."""
        self._host.run("systemctl", "kill", "--signal=SIGKILL", "--", self._unit, timeout_s=START_TIMEOUT_S)

    def forget(self) -> None:
        """Reset its failure; systemd knows none of a unit that it has not loaded."""
        self._host.run("systemctl", "reset-failed", "--", self._unit, timeout_s=START_TIMEOUT_S)

    def _systemctl(self, *words: str) -> None:
        ran = self._host.run("systemctl", *words, "--", self._unit, timeout_s=START_TIMEOUT_S)
        if ran.code != 0:
            raise LaunchError(f"systemctl {words[0]} {self._unit}: {ran.problem}")


class Transient(SystemUnit):
    """A command, as a transient unit in system.slice: no login's end ends it, and no user manager's score is on it."""

    def __init__(self, host: Host, unit: str, command: Command, model: Model) -> None:
        super().__init__(host, unit)
        self._command = command
        self._model = model

    def start(self) -> None:
        """Start it; says at once where its program cannot be executed."""
        ran = self._host.run(*transient(self._unit, self._command, self._model), timeout_s=START_TIMEOUT_S)
        if ran.code != 0:
            raise LaunchError(f"{self._unit} was not started: {ran.problem}")

    def ask_to_end(self) -> None:
        """Stop it; where it has ended, systemd has forgotten it, and that is as good."""
        if self.look().there:
            super().ask_to_end()


def transient(unit: str, command: Command, model: Model) -> tuple[str, ...]:
    """Return the systemd-run command of a model. Its failure stays to be read until it is reset."""
    properties = {
        "OOMScoreAdjust": str(model.oom_score_adj),
        "TimeoutStopSec": f"{model.stop_grace_s:g}",
        "Restart": "no",
        "WorkingDirectory": command.directory,
        "User": command.user,
    }
    return (
        "systemd-run", "--quiet", f"--unit={unit}", "--slice=system.slice", "--service-type=exec",
        f"--description=The model {model.name}",
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in command.environment.items()),
        "--", command.argv[0], *literal(command.argv[1:]),
    )  # fmt: skip


def literal(words: Iterable[str]) -> Iterator[str]:
    """Yield arguments as systemd takes them literally: it would put variables in place of $NAME and ${NAME}."""
    return (word.replace("$", "$$") for word in words)


def _of_unit(host: Host, unit: str, shown: dict[str, str]) -> Seen:
    active, sub = shown.get("ActiveState", "unknown"), shown.get("SubState", "")
    cgroup = shown.get("ControlGroup") or f"/system.slice/{unit}"
    main_pid = int(shown.get("MainPID") or 0)
    pids = members(host, cgroup) or ((main_pid,) if main_pid else ())
    said = f"{active} ({sub})" if active in ("active", "activating", "deactivating") else _failure(active, shown)
    return Seen(active not in ("inactive", "failed") or bool(pids), said, main_pid, pids, cgroup, name=unit,
                notes=tuple(_round_the_admission(unit, shown)))  # fmt: skip


def _round_the_admission(unit: str, shown: dict[str, str]) -> Iterator[str]:
    if shown.get("UnitFileState") in ("enabled", "enabled-runtime"):
        mend = f"systemctl disable {unit}, and run.at_boot = true in its place"
        yield f"{unit} is enabled: it starts with the box, and is not admitted; {mend}"
    if shown.get("Restart", "no") not in ("no", ""):
        mend = 'take that out, and set run.restart = "on-failure" in its place'
        yield f"{unit} has Restart={shown['Restart']}: systemd starts it again, and it is not admitted; {mend}"


def _failure(active: str, shown: dict[str, str]) -> str:
    if shown.get("LoadState") == "not-found":
        return "no such unit is loaded"
    if active != "failed":
        return active
    return f"failed: {shown.get('Result') or 'no reason given'}, status {shown.get('ExecMainStatus', '?')}"


# --- docker -----------------------------------------------------------------------------------------


class ComposeService(Launcher):
    """A service of a compose file, of the system's daemon or of a user's own."""

    def __init__(self, host: Host, place: Compose, docker: Docker | None, grace_s: int) -> None:
        self._host = host
        self._place = place
        self._docker = docker_client(docker)
        self._grace_s = grace_s
        self.selector = ""

    def prepare(self) -> None:
        """Create its container."""
        self._run("up", "--no-start", self._place.service, timeout_s=CREATE_TIMEOUT_S)
        containers = self._containers()
        if not containers:
            raise LaunchError(f"{self._place.file}: docker has made no container for {self._place.service}")
        self.selector = containers[0][:_SHORT]

    def start(self) -> None:
        """Start it, and what it depends on."""
        self._run("up", "--detach", self._place.service, timeout_s=CREATE_TIMEOUT_S)

    def look(self) -> Seen:
        """Say what docker says of its containers; of several, the first one that runs."""
        containers = self._containers()
        if not containers:
            return Seen(there=False, said="there is no container")
        ran = self._host.run(*self._docker, "inspect", "--format", _INSPECT, *containers, timeout_s=START_TIMEOUT_S)
        rows = [line.split() for line in ran.out.splitlines()]
        if ran.code != 0 or any(len(row) < 5 for row in rows):  # noqa: PLR2004  # as _INSPECT has them
            raise NoAnswerError(f"docker inspect: {ran.problem}; nothing is known of {self._place.service} now")
        found = [self._seen(row) for row in rows]
        self.selector = found[0].selector
        return next((each for each in found if each.there), found[0])

    def ask_to_end(self) -> None:
        """Stop it. Docker answers when it has ended, which is not waited for: it goes on with it by itself."""
        containers = self._containers()
        words = (*self._docker, "stop", "-t", str(self._grace_s), *containers)
        timeout_s = self._grace_s + START_TIMEOUT_S
        if containers:
            threading.Thread(target=lambda: self._host.run(*words, timeout_s=timeout_s), daemon=True).start()

    def kill(self) -> None:
        """Kill its containers; that they have ended meanwhile is what was wanted."""
        containers = self._containers()
        if containers:
            self._host.run(*self._docker, "kill", *containers, timeout_s=START_TIMEOUT_S)

    def forget(self) -> None:
        """There is nothing to be forgotten: docker starts a container however it ended."""

    def _seen(self, row: list[str]) -> Seen:
        identity, status, pid, code, name = row[:5]
        there = status in ("running", "restarting", "paused", "removing")
        main_pid = int(pid) if pid.isdigit() else 0
        cgroup = (self._host.text_or_none(f"/proc/{main_pid}/cgroup") or "").rpartition("::")[2] if main_pid else ""
        pids = members(self._host, cgroup) or ((main_pid,) if main_pid else ())
        said = status if there else f"{status}, exit code {code}"
        named = name.lstrip("/")
        return Seen(there, f"{named}: {said}", main_pid, pids, cgroup, identity, named)

    def _containers(self) -> list[str]:
        ran = self._compose("ps", "--all", "--quiet", self._place.service, timeout_s=START_TIMEOUT_S)
        if ran.code != 0:
            raise NoAnswerError(f"docker compose ps: {ran.problem}; nothing is known of {self._place.service} now")
        return ran.out.split()

    def _run(self, *words: str, timeout_s: float) -> None:
        ran = self._compose(*words, timeout_s=timeout_s)
        if ran.code != 0:
            raise LaunchError(f"docker compose {' '.join(words)}: {ran.problem}")

    def _compose(self, *words: str, timeout_s: float) -> Ran:
        return self._host.run(*self._docker, "compose", "--file", self._place.file, *words, timeout_s=timeout_s)


def docker_client(docker: Docker | None) -> tuple[str, ...]:
    """Return how docker is called: a user's own daemon by that user, with his home and his socket."""
    if docker is None:
        return ("docker",)
    socket = docker.socket if "://" in docker.socket else f"unix://{docker.socket}"
    variables = (f"DOCKER_HOST={socket}", f"HOME={_home(docker.user)}", f"USER={docker.user}")
    return ("runuser", "--user", docker.user, "--", "env", *variables, "docker")


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError as error:
        raise LaunchError(f"there is no user {user}, whose docker daemon the model is said to run in") from error
