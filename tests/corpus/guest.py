"""Lays arrangements out on a machine and asks the real programs; standard library only.

Standard input is `{kind, batches: [[{name, files, ask}]]}`, standard output `{name: answer}`. sysctl and sshd
run where only this process sees the files (`unshare --mount`); units and managers need those that PID 1 sees.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "SYSTEMD_PAGER": ""}
DEADLINE_S = 120


def run(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it printed."""
    return subprocess.run(
        argv, capture_output=True, text=True, errors="replace", env={**ENVIRONMENT, **more}, check=False
    )


def must(*argv: str, **more: str) -> str:
    """Run a program that has to succeed."""
    done = run(*argv, **more)
    if done.returncode != 0:
        sys.exit(f"{argv}: {done.stdout}{done.stderr}")
    return done.stdout


def lay_out(files: dict[str, Any]) -> list[Path]:
    """Make the files and return what was made, files and directories, in this order."""
    made = []
    for name, content in files.items():
        path = Path(name)
        for directory in reversed(path.parents):
            if not directory.exists():
                directory.mkdir()
                made.append(directory)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif "link" in content:
            path.symlink_to(content["link"])
        else:
            path.mkdir()
        made.append(path)
    return made


def remove(made: list[Path]) -> None:
    """Remove what was made."""
    for path in reversed(made):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


@contextlib.contextmanager
def laid_out(files: dict[str, Any]) -> Iterator[None]:
    """Have files for the time being."""
    made = lay_out(files)
    try:
        yield
    finally:
        remove(made)


def cover(path: str) -> None:
    """Mount an empty file system over a directory; it goes with this process's mount namespace."""
    Path(path).mkdir(parents=True, exist_ok=True)
    must("mount", "-t", "tmpfs", "-o", "mode=755", "corpus", path)


# --- sysctl -----------------------------------------------------------------------------------------


UNTOUCHED = "as it was before"


def ask_sysctl(cases: list[Case]) -> dict[str, Any]:
    """Return for each case the value that each key was left with, None where nothing was written."""
    for path in ("/proc/sys", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/etc"):
        cover(path)
    answers = {}
    for case in cases:
        # It does not write what is there already: what is there must be no value of any case.
        tree = {f"/proc/sys/{key}": f"{UNTOUCHED}\n" for key in case["ask"]["keys"]}
        with laid_out(tree), laid_out(case["files"]):
            said = run("/usr/lib/systemd/systemd-sysctl").stderr
            # It does not cut a file that it writes to: what came last is the first line.
            lines = {key: Path(f"/proc/sys/{key}").read_bytes().partition(b"\n")[0] for key in case["ask"]["keys"]}
        values = {key: None if line == UNTOUCHED.encode() else line.decode() for key, line in lines.items()}
        answers[case["name"]] = {"values": values, "said": said}
    return answers


# --- sshd -------------------------------------------------------------------------------------------


def ask_sshd(cases: list[Case]) -> dict[str, Any]:
    """Return for each case the values that sshd prints for each keyword; `refused` where it does not start."""
    keys = {path.name: path.read_bytes() for path in Path("/etc/ssh").glob("ssh_host_*_key*")}
    cover("/etc/ssh")
    for name, content in keys.items():
        path = Path("/etc/ssh") / name
        path.write_bytes(content)
        path.chmod(0o600)
    Path("/run/sshd").mkdir(exist_ok=True)
    answers = {}
    for case in cases:
        with laid_out(case["files"]):
            done = run("/usr/sbin/sshd", "-T")
        wanted = {key.lower() for key in case["ask"]["keys"]}
        found: dict[str, list[str]] = {key: [] for key in wanted}
        for line in done.stdout.splitlines():
            keyword, _, value = line.partition(" ")
            if keyword in wanted:
                found[keyword].append(value)
        answers[case["name"]] = {"refused": done.returncode != 0, "values": found, "said": done.stderr}
    return answers


# --- units ------------------------------------------------------------------------------------------


def shown(text: str) -> dict[str, list[str]]:
    """Return one block of `systemctl show`: the lines of every property."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key, []).append(value)
    return found


PROPERTIES = (
    "Id,Names,LoadState,FragmentPath,DropInPaths,OOMScoreAdjust,MemoryMin,MemoryLow,CPUWeight,IOWeight,Nice,Restart,"
    "Environment,EnvironmentFiles,ExecStart,Description,After,Wants"
)


def ask_units(cases: list[Case]) -> dict[str, Any]:
    """Return for each case of one batch what systemd says of its unit, all asked at once."""
    files = {path: content for case in cases for path, content in case["files"].items()}
    with laid_out(files):
        must("systemctl", "daemon-reload")
        # --all: a property that is empty is said to be so
        text = must("systemctl", "show", "--all", "-p", PROPERTIES, "--", *(case["ask"]["unit"] for case in cases))
    must("systemctl", "daemon-reload")
    blocks = text.strip().split("\n\n")
    if len(blocks) != len(cases):
        sys.exit(f"{len(cases)} units were asked for, {len(blocks)} were shown")
    return {case["name"]: shown(block) for case, block in zip(cases, blocks, strict=True)}


# --- managers ---------------------------------------------------------------------------------------

MANAGER_DIRECTORIES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
MANAGER_PROPERTIES = "Version,DefaultOOMScoreAdjust,DefaultTimeoutStartUSec,DefaultStartLimitBurst"
USER_DIRECTORY = "/run/corpus-user"
USER = {"XDG_RUNTIME_DIR": USER_DIRECTORY, "HOME": USER_DIRECTORY}


@contextlib.contextmanager
def without_files_of(name: str) -> Iterator[None]:
    """Have none of the files that configure one manager, for the time being."""
    aside = []
    for directory in MANAGER_DIRECTORIES:
        for path in (Path(directory) / f"{name}.conf", Path(directory) / f"{name}.conf.d"):
            if path.exists() or path.is_symlink():
                path.rename(f"{path}.aside")
                aside.append(path)
    try:
        yield
    finally:
        for path in aside:
            Path(f"{path}.aside").rename(path)


def ask_system() -> dict[str, list[str]]:
    """Return what PID 1 makes of its files."""
    must("systemctl", "daemon-reload")
    return shown(must("systemctl", "show", "-p", MANAGER_PROPERTIES))


def ask_user() -> dict[str, list[str]]:
    """Return what a user manager makes of its files."""
    must("systemctl", "--user", "daemon-reload", **USER)
    return shown(must("systemctl", "--user", "show", "-p", MANAGER_PROPERTIES, **USER))


@contextlib.contextmanager
def user_manager() -> Iterator[None]:
    """Have a user manager that starts nothing."""
    Path(USER_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    settings = [f"--setenv={key}={value}" for key, value in USER.items()]
    program = ("/usr/lib/systemd/systemd", "--user", "--unit=timers.target")
    must("systemd-run", "-q", "--unit=corpus-user", "-p", "Delegate=yes", *settings, *program)
    wait_for(lambda: run("systemctl", "--user", "show", "-p", "Version", **USER).returncode == 0)
    try:
        yield
    finally:
        must("systemctl", "stop", "corpus-user")


def wait_for(condition: Any) -> None:  # noqa: ANN401  # a callable; the typing module's name would be one import more
    """Wait until something is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("waited in vain")
        time.sleep(0.1)


JOURNAL = "/var/log/journal"


def ask_journald() -> dict[str, list[str]]:
    """Return the limit that a journald of its own announces when it opens its journal; then it is ended."""
    drop_in = {"/etc/systemd/journald@corpus.conf.d/00-0-storage.conf": "[Journal]\nStorage=persistent\n"}
    with laid_out(drop_in), subprocess.Popen(["/usr/lib/systemd/systemd-journald", "corpus"]) as journald:
        said: list[str] = []

        def limit() -> bool:
            text = run("journalctl", "--namespace=corpus", "-o", "cat").stdout
            said[:] = re.findall(r"^System Journal .* max ([0-9.]+[KMG])", text, re.MULTILINE)
            return bool(said)

        try:
            wait_for(limit)
        finally:
            journald.terminate()
    for parent in (JOURNAL, "/run/log/journal"):
        for path in Path(parent).glob("*.corpus"):
            shutil.rmtree(path)
    version = must("systemctl", "--version").split()[1]
    return {"SystemMaxUse": said[:1], "Version": [version]}


def ask_managers(cases: list[Case]) -> dict[str, Any]:
    """Return for each case of one manager what it has and, as `baseline`, what it has without any file."""
    name = cases[0]["ask"]["manager"]
    ask = {"system": ask_system, "user": ask_user}.get(name, ask_journald)
    answers = {}
    with contextlib.ExitStack() as stack:
        if name == "user":
            stack.enter_context(user_manager())
        stack.enter_context(without_files_of(name))
        if name.startswith("journald"):
            Path(JOURNAL).mkdir(exist_ok=True)
        baseline = ask()
        for case in cases:
            with laid_out(case["files"]):
                answers[case["name"]] = {**ask(), "baseline": baseline}
    must("systemctl", "daemon-reload")
    return answers


ASK = {"sysctl": ask_sysctl, "sshd": ask_sshd, "units": ask_units, "managers": ask_managers}


def main() -> None:
    """Answer what is asked on standard input."""
    asked = json.load(sys.stdin)
    answers: dict[str, Any] = {}
    os.umask(0o022)
    for batch in asked["batches"]:
        answers |= ASK[asked["kind"]](batch)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
