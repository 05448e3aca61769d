"""Which line of sshd_config and its included files decides a keyword. Pure.

Rules: sshd_config(5), and what sshd of OpenSSH 9.2 and 10.0 does (`sshd -T`). The first value of a keyword wins,
some keywords add up, and what stands after `Match all` beats both.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from plimsoll.box.model import Place
from plimsoll.box.resolve import glob_matches

MAIN = "/etc/ssh/sshd_config"
MAX_DEPTH = 16
"""sshd refuses to start with includes nested any deeper, one of a file in itself among them."""

ADD_UP = frozenset({
    "acceptenv", "allowgroups", "allowusers", "denygroups", "denyusers", "hostcertificate", "hostkey",
    "listenaddress", "port", "subsystem",
})  # fmt: skip
"""Keywords of which every line counts, and not only the first."""

IN_MATCH = frozenset({
    "acceptenv", "allowagentforwarding", "allowgroups", "allowstreamlocalforwarding", "allowtcpforwarding",
    "allowusers", "authenticationmethods", "authorizedkeyscommand", "authorizedkeyscommanduser",
    "authorizedkeysfile", "authorizedprincipalscommand", "authorizedprincipalscommanduser",
    "authorizedprincipalsfile", "banner", "casignaturealgorithms", "challengeresponseauthentication",
    "channeltimeout", "chrootdirectory", "clientalivecountmax", "clientaliveinterval", "denygroups", "denyusers",
    "disableforwarding", "exposeauthinfo", "forcecommand", "gatewayports", "gssapiauthentication",
    "hostbasedacceptedalgorithms", "hostbasedauthentication", "hostbasedusesnamefrompacketonly", "ignorerhosts",
    "include", "ipqos", "kbdinteractiveauthentication", "kerberosauthentication", "loglevel", "logverbose", "match",
    "maxauthtries", "maxsessions", "pamservicename", "passwordauthentication", "permitemptypasswords",
    "permitlisten", "permitopen", "permitrootlogin", "permittty", "permittunnel", "permituserrc",
    "pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes", "pubkeyauthentication", "pubkeyauthoptions", "rdomain",
    "refuseconnection", "rekeylimit", "requiredrsasize", "revokedkeys", "setenv", "skeyauthentication",
    "streamlocalbindmask", "streamlocalbindunlink", "subsystem", "trustedusercakeys", "unusedconnectiontimeout",
    "x11displayoffset", "x11forwarding", "x11uselocalhost",
})  # fmt: skip
"""Keywords that may stand after a Match; sshd refuses to start where another one stands there."""

SAME = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "skeyauthentication": "kbdinteractiveauthentication",
    "dsaauthentication": "pubkeyauthentication",
    "hostbasedacceptedkeytypes": "hostbasedacceptedalgorithms",
    "hostdsakey": "hostkey",
    "keepalive": "tcpkeepalive",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
}
"""Other names that sshd knows a keyword by."""


@dataclass(frozen=True)
class SshdLine:
    """A line that sets something; `match` is empty outside of every Match, `all`, or the criteria it depends on."""

    keyword: str
    arguments: tuple[str, ...]
    place: Place
    match: str = ""


class SshdRefusesError(ValueError):
    """The files are such that sshd does not start; `place` is where it stops reading, and the text is why."""

    def __init__(self, place: Place, why: str) -> None:
        super().__init__(f"{place.file}:{place.line}: {why}")
        self.place = place


Expand = Callable[[str], list[str]]
"""From an absolute pattern to the paths that it stands for, in the order of glob(3)."""


def among(paths: Iterable[str]) -> Expand:
    """Return what expands patterns over `paths` alone."""
    known = sorted(paths)
    return lambda pattern: [path for path in known if glob_matches(path, pattern)]


def absolute(pattern: str) -> str:
    """Return the pattern of an Include as sshd looks for it: a relative one is meant from /etc/ssh."""
    return pattern if pattern.startswith(("/", "~")) else f"/etc/ssh/{pattern}"


def sshd_lines(files: Mapping[str, str], expand: Expand | None = None) -> list[SshdLine]:
    """Return every line of sshd_config and of what it includes, in the order in which sshd reads them.

    `files` are the texts by path. Raises SshdRefusesError where sshd would not start; it does not check values.
    """
    return list(_lines(files, expand or among(files), MAIN, "", 0))


def _lines(files: Mapping[str, str], expand: Expand, path: str, match: str, depth: int) -> Iterator[SshdLine]:
    """Yield the lines of one file; a Match in it ends with it."""
    outer = match
    for place, keyword, arguments in _parsed(path, files.get(path, "")):
        if keyword == "match":
            match = _joined_match(outer, _criteria(place, arguments))
        elif keyword == "include":
            for included in (p for pattern in arguments for p in expand(absolute(pattern))):
                if depth == MAX_DEPTH:
                    raise SshdRefusesError(place, "includes are nested too deeply")
                yield from _lines(files, expand, included, match, depth + 1)
        elif match not in ("", "all") and keyword not in IN_MATCH:
            raise SshdRefusesError(place, f"{keyword} is not allowed within a Match block")
        else:
            yield SshdLine(keyword, tuple(arguments), place, match)


def _joined_match(outer: str, own: str) -> str:
    """Return on what a line depends in a file that was itself included below a Match."""
    return own if outer in ("", "all") else outer if own in ("", "all") else f"{outer} {own}"


def _criteria(place: Place, arguments: list[str]) -> str:
    words = [word.lower() for word in arguments]
    if words == ["all"]:
        return "all"
    if "all" in words[::2]:
        raise SshdRefusesError(place, "'all' cannot be combined with other criteria")
    return " ".join(arguments)


def include_patterns(path: str, text: str) -> list[str]:
    """Return the absolute patterns that a file includes, whatever Match they stand below."""
    return [absolute(p) for _, keyword, patterns in _parsed(path, text) if keyword == "include" for p in patterns]


# --- lines ------------------------------------------------------------------------------------------

_KEYWORD = re.compile(r'[ \t\r]*(?:"([^"]*)"|([^ \t\r"=]*))[ \t\r]*=?[ \t\r]*')
_PART = re.compile(r"""\\["\\' ]|.""", re.DOTALL)


def _parsed(path: str, text: str) -> Iterator[tuple[Place, str, list[str]]]:
    for number, raw in enumerate(text.split("\n"), 1):
        match = _KEYWORD.match(raw.rstrip(" \t\r\f"))
        keyword = (match[1] or match[2] or "") if match else ""
        if match is None or not keyword or keyword.startswith("#"):
            continue
        place = Place(path, number)
        rest = match.string[match.end() :]
        if not rest:
            raise SshdRefusesError(place, f"{keyword} has no argument")
        yield place, SAME.get(keyword.lower(), keyword.lower()), _words(place, rest)


def _words(place: Place, text: str) -> list[str]:
    r"""Return the words of a line as sshd splits them: quotes of both kinds, `\` before one, `#` begins a comment."""
    words: list[str] = []
    quote, going_on = "", False
    for part in _PART.findall(text):
        if part == "#" and not going_on:
            break
        blank = part in " \t" and not quote
        if not blank and not going_on:
            words.append("")
        going_on = not blank
        if part in ("'", '"') and quote in ("", part):
            quote = "" if quote else part
        elif not blank:
            # A backslash before a blank means something outside of quotes only.
            words[-1] += part if quote and part == "\\ " else part[-1]
    if quote:
        raise SshdRefusesError(place, "its quotes do not match")
    return words


# --- what is in force -------------------------------------------------------------------------------


def sshd_value(lines: Iterable[SshdLine], keyword: str) -> list[SshdLine]:
    """Return the lines that decide `keyword` for a connection that no criteria but `all` apply to; empty for none.

    What stands after `Match all` replaces what was set before, also for keywords that add up.
    """
    keyword = SAME.get(keyword.lower(), keyword.lower())
    hits = [line for line in lines if line.keyword == keyword and line.match in ("", "all")]
    if keyword in IN_MATCH:
        hits = [line for line in hits if line.match] or hits
    return hits if keyword in ADD_UP else hits[:1]
