"""Long jobs outside of a login: transient units in system.slice, which end with nobody's session."""

import os
import re
from collections.abc import Sequence

from plimsoll.box.errors import UsageError
from plimsoll.box.host import Host
from plimsoll.box.serve.launch import START_TIMEOUT_S, LaunchError, literal

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PASSED_ON = ("PATH", "LANG", "HF_HOME", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")


def unit_of(name: str) -> str:
    """Return the unit of a job; raises UsageError for a name that is none."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name: small letters, digits, '.', '_' and '-', 63 at most")
    return f"job-{name}.service"


def command(name: str, words: Sequence[str], user: str, directory: str, environment: dict[str, str]) -> list[str]:
    """Return the systemd-run command of a job, which runs as `user` in `directory`."""
    properties = {"User": user, "WorkingDirectory": directory, "OOMScoreAdjust": "0"}
    return [
        "systemd-run", "--quiet", f"--unit={unit_of(name)}", "--slice=system.slice", "--service-type=exec",
        f"--description=The job {name}",
        *(f"--property={key}={value}" for key, value in properties.items()),
        *(f"--setenv={key}={environment[key]}" for key in _PASSED_ON if key in environment),
        "--", words[0], *literal(words[1:]),
    ]  # fmt: skip


def run(host: Host, name: str, words: Sequence[str], user: str | None = None) -> str:
    """Start a job and return its unit; raises UsageError, and LaunchError in systemd's words.

    Without `user` it runs as who called sudo, and as root where nobody did.
    """
    if not words:
        raise UsageError(f"serve run {name}: no command; write it after --")
    unit = unit_of(name)
    host.run("systemctl", "reset-failed", "--", unit, timeout_s=START_TIMEOUT_S)
    owner = user or host.environment.get("SUDO_USER") or "root"
    ran = host.run(*command(name, words, owner, os.getcwd(), host.environment), timeout_s=START_TIMEOUT_S)
    if ran.code != 0:
        raise LaunchError(f"{unit} was not started: {ran.problem}")
    return unit
