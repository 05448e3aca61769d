"""What a maintainer asks for, in one archive, redacted: the answer in its three forms, and what the box is."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.box.host import Host
from plimsoll.box.incident.redact import Redactor

HOST_FILES = (
    "/proc/version", "/proc/cmdline", "/proc/meminfo", "/proc/pressure/memory", "/proc/swaps", "/proc/buddyinfo",
    "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/etc/dgx-release", "/etc/os-release",
    "/etc/plimsoll/guard.toml", "/run/plimsoll/status.json",
)  # fmt: skip
"""As they are at the moment of the call, which may be long after the incident: the README says so."""
CANNOT_BE_READ = "(cannot be read)"
_README = """\
What `plimsoll incident --bundle` collected. Everything in it is text.

incident.txt, incident.json, incident.html   what happened, with the lines that say so
{log}{host}SHA256SUMS                                   to see whether it arrived whole: sha256sum -c SHA256SUMS

{redacted}
"""
_LOG_LINE = "log.txt                                      the logs around it, as they stand there\n"
_HOST_LINE = "host.txt                                     what the box is now, not what it was at the time\n"


@dataclass(frozen=True)
class Contents:
    """What goes into an archive."""

    answer: Mapping[str, Any]
    page: str
    text: str
    files: Mapping[str, str] | None
    """The box's own files; None where the logs are another machine's."""
    excerpts: Mapping[str, str]
    """The logs around the incident."""


def of_host(host: Host) -> dict[str, str]:
    """Return what a box is, file by file."""
    found = {path: host.text_or_none(path) for path in HOST_FILES}
    return {path: CANNOT_BE_READ if text is None else text for path, text in found.items()}


def archive(contents: Contents, redactor: Redactor) -> bytes:
    """Return a compressed tar archive, with everything replaced that names a machine, a person or a place."""
    files = {
        "incident.txt": redactor.text(contents.text),
        "incident.json": json.dumps(redactor.value(dict(contents.answer)), indent=1) + "\n",
        "incident.html": redactor.text(contents.page),
    }
    if contents.excerpts:
        files["log.txt"] = redactor.text(_sections(contents.excerpts))
    if contents.files is not None:
        files["host.txt"] = redactor.text(_sections(contents.files))
    log, host = (_LOG_LINE if "log.txt" in files else ""), (_HOST_LINE if "host.txt" in files else "")
    # last, because it says what was replaced in the others
    files["README"] = _README.format(log=log, host=host, redacted=redactor.sentence())
    sums = (f"{hashlib.sha256(content.encode()).hexdigest()}  {name}\n" for name, content in files.items())
    files["SHA256SUMS"] = "".join(sums)
    return _packed(files)


def _sections(parts: Mapping[str, str]) -> str:
    return "\n".join(f"== {name}\n{text}\n" for name, text in parts.items())


def _packed(files: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            data = content.encode()
            member = tarfile.TarInfo(f"plimsoll-incident/{name}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()
