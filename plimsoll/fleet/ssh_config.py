"""`plimsoll ssh-config HOST`: the client's side of a connection that outlives a box short of memory."""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

from plimsoll.fleet.files import write_atomically

OPTIONS = {
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "12",
    "ControlMaster": "auto",
    "ControlPath": "~/.ssh/cm-%C",
    "ControlPersist": "24h",
}
SSH_TIMEOUT_S = 20

EXIT_SHADOWED = 2
EXIT_COULD_NOT_TELL = 3

# 15 s x 12 = 3 minutes; a login to a box short of memory took 50 s
_BEGIN = "# plimsoll begin {host}: short of memory it lets nobody in for a while, so keep one connection open"
_END = "# plimsoll end {host}"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_OURS = re.compile(r"# plimsoll (begin|end) ([^\s:]+)")
_SECTION = re.compile(r"\s*(host|match)[\s=]", re.IGNORECASE)


def block(host: str, *, closed: bool = False) -> str:
    """Return the block for `host`; a closed one ends in `Host *`: what follows is for all hosts again."""
    lines = [_BEGIN.format(host=host), f"Host {host}"]
    lines += [f"    {key} {value}" for key, value in OPTIONS.items()]
    lines += ["Host *"] if closed else []
    return "\n".join([*lines, _END.format(host=host)]) + "\n"


class MergeError(click.ClickException):
    """The file cannot be merged into; nothing was written."""


class _Marks(NamedTuple):
    begin: int
    end: int


def merge(text: str, host: str) -> str:
    """Put the block for `host` in the place where its values win: ssh takes the first value of each keyword.

    That is the top of the file; blocks of ours for other hosts may stand before it. All other lines are kept.
    Raises MergeError when the marks of an earlier merge are damaged.
    """
    lines = text.splitlines(keepends=True)
    marks = _find(lines, host)
    if marks is None:
        return _joined([], lines, host)
    before, after = lines[: marks.begin], lines[marks.end + 1 :]
    if _harmless(before):
        return _joined(before, after, host)
    return _joined([], before + after, host)


def _joined(before: list[str], after: list[str], host: str) -> str:
    closed = any(_is_statement(line) for line in after) and not _starts_section(after)
    return "".join([*before, block(host, closed=closed), *after])


def _find(lines: list[str], host: str) -> _Marks | None:
    found = [(mark[1], number) for number, line in enumerate(lines) if (mark := _OURS.match(line)) and mark[2] == host]
    if not found:
        return None
    if [kind for kind, _ in found] != ["begin", "end"]:
        where = ", ".join(f"{kind} on line {number + 1}" for kind, number in found)
        raise MergeError(f"the marks for {host} are damaged ({where}): remove that block by hand and repeat")
    return _Marks(found[0][1], found[1][1])


def _is_statement(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _starts_section(lines: list[str]) -> bool:
    first = next((line for line in lines if _is_statement(line)), "")
    return bool(_SECTION.match(first))


def _harmless(lines: list[str]) -> bool:
    """Whether nothing but comments and our blocks for other hosts stands here."""
    inside = False
    for line in lines:
        mark = _OURS.match(line)
        if mark:
            inside = mark[1] == "begin"
        elif not inside and _is_statement(line):
            return False
    return True


def effective(text: str, host: str, *, forced: bool = False) -> dict[str, str]:
    """Ask ssh itself what it would use for `host` with `text` as the user's configuration.

    `forced` gives our values on its command line, where nothing beats them. Returns lower-case keywords.
    Raises OSError, CalledProcessError or TimeoutExpired when ssh cannot say.
    """
    options = [f"-o{key}={value}" for key, value in OPTIONS.items()] if forced else []
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config"
        config.write_bytes(_encode(text))
        done = subprocess.run(
            ["ssh", "-G", "-F", str(config), *options, host],
            capture_output=True,
            text=True,
            check=True,
            timeout=SSH_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    wanted = {key.lower() for key in OPTIONS}
    return {key: value for key, _, value in pairs if key in wanted}


class _Proof(NamedTuple):
    """What ssh says: our values that lose, and values of the user that ours now beat."""

    shadowed: dict[str, str]
    overridden: dict[str, str]


def _prove(old: str, new: str, host: str) -> _Proof:
    stock = effective("", host)
    before = effective(old, host)
    after = effective(new, host)
    ours = effective(new, host, forced=True)
    shadowed = {key: after.get(key, "unset") for key in ours if after.get(key) != ours[key]}
    overridden = {key: value for key, value in before.items() if value not in (stock.get(key), after.get(key))}
    return _Proof(shadowed, overridden)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _read(file: Path) -> str:
    try:
        return _decode(file.read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise MergeError(f"{file} cannot be read: {error.strerror}") from None


def _diff(old: str, new: str, file: Path) -> str:
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), str(file), str(file))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _merge_into(file: Path, host: str, *, dry: bool) -> int:
    old = _read(file)
    new = merge(old, host)
    code = _say_proof(old, new, host)
    if dry:
        click.echo(_encode(_diff(old, new, file)), nl=False)
        return code
    if new == old:
        click.echo(f"{file}: nothing to change")
        return code
    try:
        write_atomically(file, new)
    except OSError as error:
        raise MergeError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"{file}: merged the block for {host}")
    return code


def _say_proof(old: str, new: str, host: str) -> int:
    """Say on stderr what ssh makes of the merged file; returns the exit code."""
    try:
        proof = _prove(old, new, host)
    except subprocess.CalledProcessError as error:
        raise MergeError(f"ssh refuses the file: {error.stderr.strip()}; nothing was changed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        click.echo(f"not checked whether these values win: ssh -G does not answer ({error})", err=True)
        return EXIT_COULD_NOT_TELL
    for key, value in proof.overridden.items():
        click.echo(f"note: the file's own {key} {value} for {host} no longer counts", err=True)
    for key, value in proof.shadowed.items():
        click.echo(f"shadowed: ssh uses {key} {value} for {host} all the same", err=True)
    return EXIT_SHADOWED if proof.shadowed else 0


def _check_host(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _HOST.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no host name or alias", context, parameter)
    return value


@click.command("ssh-config", short_help="Print the client block that waits for HOST.")
@click.argument("host", callback=_check_host)
@click.option("--merge", "wanted", is_flag=True, help="Merge the block into the file instead of printing it.")
@click.option("--file", type=click.Path(path_type=Path), help="Merge into this file (default: ~/.ssh/config).")
@click.option("--dry", is_flag=True, help="With --merge: show the difference, write nothing.")
def command(host: str, wanted: bool, file: Path | None, dry: bool) -> int:
    """Print the ssh client block for HOST, or merge it into ~/.ssh/config.

    It keeps one connection open and patient, so that a box short of memory can still be reached over it.
    """
    if not wanted:
        if dry or file:
            raise click.UsageError("--file and --dry go with --merge")
        click.echo(block(host), nl=False)
        return 0
    # a symlink to a file kept elsewhere stays one
    return _merge_into((file or Path("~/.ssh/config")).expanduser().resolve(), host, dry=dry)
