"""What a maintainer asks for, in one archive, redacted: the answer in its three forms, and what the box is."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from plimsoll.box.host import Host
from plimsoll.box.incident.redact import Redactor

HOST_FILES = (
    "/proc/version", "/proc/cmdline", "/proc/meminfo", "/proc/pressure/memory", "/proc/swaps", "/proc/buddyinfo",
    "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/etc/dgx-release", "/etc/os-release",
    "/etc/plimsoll/guard.toml", "/run/plimsoll/status.json",
)  # fmt: skip
"""As they are at the moment of the call, which may be long after the incident: the README says so."""
_README = """\
What `plimsoll incident --bundle` collected. Everything in it is text.

incident.txt, incident.json, incident.html   what happened, with the lines that say so
{host}
SHA256SUMS                                   to see whether it arrived whole: sha256sum -c SHA256SUMS

{redacted}
"""
_HOST_LINE = "host.txt                                     what the box is now, not what it was at the time"


def archive(answer: Mapping[str, Any], page: str, text: str, host: Host | None, redactor: Redactor) -> bytes:
    """Return a compressed tar archive; `host` is None where the logs are another machine's."""
    files = {
        "incident.txt": redactor.text(text),
        "incident.json": json.dumps(redactor.value(dict(answer)), indent=1) + "\n",
        "incident.html": redactor.text(page),
    }
    if host is not None:
        files["host.txt"] = redactor.text(_host(host))
    # last, because it says what was replaced in the others
    files["README"] = _README.format(host=_HOST_LINE if host else "", redacted=redactor.sentence())
    sums = (f"{hashlib.sha256(content.encode()).hexdigest()}  {name}\n" for name, content in files.items())
    files["SHA256SUMS"] = "".join(sums)
    return _packed(files)


def _host(host: Host) -> str:
    parts = []
    for path in HOST_FILES:
        content = host.text_or_none(path)
        parts.append(f"== {path}\n{content if content is not None else '(cannot be read)'}\n")
    return "\n".join(parts)


def _packed(files: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            data = content.encode()
            member = tarfile.TarInfo(f"plimsoll-incident/{name}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()
