"""Why a host could not be done, in one line that a person can act on. Pure."""

from __future__ import annotations

import re

import click

from plimsoll.fleet.text import printable

MAX_REASON = 400
_OTHER_KEY = "it shows another host key than known_hosts has: make sure which machine that is, then `ssh-keygen -R` it"
_KNOWN = (
    (r"No space left on device", "its disk is full"),
    (r"Read-only file system", "its file system is mounted read-only"),
    (r"sudo: .*password|may not run sudo|is not in the sudoers file|not allowed to execute", "sudo is refused there"),
    (r"HOST IDENTIFICATION HAS CHANGED|BadHostKey|[Hh]ost key for .*(does not match|mismatch)", _OTHER_KEY),
    (r"Host key verification failed|No host key|StrictPolicy", "known_hosts has no key of it, or another one"),
    (r"is changing this host", "another plimsoll is changing it at this moment"),
    (r"SSH session not active|Connection reset|Broken pipe|EOFError|No existing session", "its connection was lost"),
    (r"Timeout opening channel|Could not connect|[Tt]imed out", "it did not answer in time"),
)
"""What a log may say -> what that means, the more certain first."""
_WITHOUT_A_WORD = (r"[Ee]rror: executed \d+(/\d+)? commands", "its connection was lost, or what ran there was killed")
"""All that pyinfra has to say of a command that ended without a word and without an exit code."""
_TELLING = re.compile(r"the layer \w+ was taken back|controls are not as they should be|plimsoll: |[Ee]rror\b|failed\b")
_PREFIX = re.compile(r"^(\s|-->|\[[^\]]*\]|plimsoll:)+")


def explained(line: str) -> str:
    """Return what a line means where that is known, with the line itself; else the line."""
    known = (*_KNOWN, _WITHOUT_A_WORD)
    meaning = next((meaning for pattern, meaning in known if re.search(pattern, line)), None)
    return printable(f"{meaning} ({_plain(line)})" if meaning else line, MAX_REASON)


def reason_in(text: str) -> str:
    """Return the line of a log that says best why a deploy failed, explained."""
    lines = [line for line in click.unstyle(text).splitlines() if line.strip()]
    for pattern, _meaning in _KNOWN:
        found = next((line for line in reversed(lines) if re.search(pattern, line)), None)
        if found is not None:
            return explained(found)
    place = next((place for place, line in enumerate(lines) if _TELLING.search(line)), len(lines) - 1)
    if place < 0:
        return "it said nothing"
    # what follows a heading belongs to it: the first of the controls that it announces
    more = lines[place + 1 : place + 2] if lines[place].rstrip().endswith(":") else []
    return explained(" ".join(_plain(line) for line in (lines[place], *more)))


def _plain(line: str) -> str:
    return _PREFIX.sub("", line).strip()
