"""Arrangements of sshd_config and its included files, asked of `sshd -T`."""

import random

from tests.corpus.case import SEED, Case, Content

MAIN = "/etc/ssh/sshd_config"
DIRECTORY = "/etc/ssh/sshd_config.d"
INCLUDE = f"Include {DIRECTORY}/*.conf\n"
KEYS = (
    "Port", "HostKey", "AcceptEnv", "AllowUsers", "DenyUsers", "PasswordAuthentication", "PubkeyAuthentication",
    "X11Forwarding", "MaxAuthTries", "MaxSessions", "ClientAliveInterval", "ClientAliveCountMax", "PermitTTY", "Banner",
    "AuthorizedKeysFile", "UseDNS", "TCPKeepAlive", "KbdInteractiveAuthentication",
)  # fmt: skip
BANNER_WITH_A_BLANK = 'Banner "/etc/issue of this"\n'

ONE_FILE = {
    "nothing": "",
    "plain": "Port 2200\nX11Forwarding yes\n",
    "first wins": "MaxAuthTries 3\nMaxAuthTries 4\n",
    "case of keywords": "MAXAUTHTRIES 3\nmaxsessions 4\nX11FORWARDING yes\n",
    "equals sign": "MaxAuthTries=3\nMaxSessions = 4\nBanner= /etc/issue\n",
    "blanks": "  MaxAuthTries   3\n\tMaxSessions\t4\t\n",
    "comments": "# MaxAuthTries 3\n  # MaxSessions 3\n#MaxAuthTries 2\nMaxSessions 4\n",
    "comment after a value": "MaxAuthTries 3 # three\nMaxSessions 4 #four\nBanner /etc/issue#5\n",
    "quotes": 'MaxAuthTries "3"\nBanner "/etc/issue"\n',
    "single quotes": "MaxAuthTries '3'\nBanner '/etc/issue'\n",
    "quotes around a blank": BANNER_WITH_A_BLANK,
    "quotes within a word": 'Banner /etc/"iss"ue\n',
    "quotes around a number sign": 'Banner "/etc/#issue"\n',
    "quote within quotes": 'Banner "/etc/it\'s"\n',
    "backslash before a quote": 'Banner "/etc/a\\"b"\n',
    "backslash before a blank": "Banner /etc/a\\ b\n",
    "backslash before a blank in quotes": 'Banner "/etc/a\\ b"\n',
    "backslash before a letter": "Banner /etc/a\\b\n",
    "quotes that do not match": 'Banner "/etc/issue\n',
    "single quotes that do not match": "Banner '/etc/issue\n",
    "quoted keyword": '"MaxAuthTries" 3\n',
    "no argument": "MaxAuthTries\n",
    "no argument but a blank": "MaxAuthTries  \n",
    "carriage returns": "MaxAuthTries 3\r\nMaxSessions 4\r\n",
    "form feed at the end": "MaxAuthTries 3\f\n",
    "no newline at the end": "MaxAuthTries 3",
    "ports add up": "Port 2200\nPort 2201\n",
    "names to accept add up": "AcceptEnv LANG LC_*\nAcceptEnv FOO\n",
    "users add up": "AllowUsers a b\nAllowUsers c\nDenyUsers d\nDenyUsers e\n",
    "keys files do not": "AuthorizedKeysFile .a .b\nAuthorizedKeysFile .c\n",
    "old name of a keyword": "ChallengeResponseAuthentication yes\nKbdInteractiveAuthentication no\n",
    "old name after the new one": "KbdInteractiveAuthentication yes\nChallengeResponseAuthentication no\n",
    "another name": "KeepAlive no\nTCPKeepAlive yes\n",
    "match all": "MaxAuthTries 3\nMatch all\nMaxAuthTries 4\n",
    "match all, before": "Match all\nMaxAuthTries 4\n",
    "match all twice": "MaxAuthTries 3\nMatch all\nMaxAuthTries 4\nMatch all\nMaxAuthTries 5\n",
    "match all, upper case": "MaxAuthTries 3\nmatch ALL\nMaxAuthTries 4\n",
    "match all with a comment": "MaxAuthTries 3\nMatch all # comment\nMaxAuthTries 4\n",
    "match all and lists": "AcceptEnv A\nAllowUsers a\nMatch all\nAcceptEnv B\nAcceptEnv C\nAllowUsers b\n",
    "match all and a port": "Port 2200\nMatch all\nPort 2201\n",
    "match all and UseDNS": "UseDNS yes\nMatch all\nUseDNS no\n",
    "match all combined": "Match all user x\nMaxAuthTries 4\n",
    "match combined with all": "Match user x all\nMaxAuthTries 4\n",
    "match user": "MaxAuthTries 3\nMatch User x\nMaxAuthTries 4\n",
    "match user, not set outside": "Match User x\nMaxAuthTries 4\nX11Forwarding yes\n",
    "match not user": "MaxAuthTries 3\nMatch User *,!x\nMaxAuthTries 4\n",
    "match address": "MaxAuthTries 3\nMatch Address 10.0.0.0/8\nMaxAuthTries 4\n",
    "match group and host": "Match Group x Host y\nMaxAuthTries 4\n",
    "match user, then all": "MaxAuthTries 3\nMatch User x\nMaxAuthTries 4\nMatch all\nMaxSessions 7\n",
    "match user, then all, and a port": "Match User x\nMaxAuthTries 4\nMatch all\nPort 2201\n",
    "port in a match": "Match User x\nPort 2201\n",
    "UseDNS in a match": "Match User x\nUseDNS yes\n",
    "indented lines do not end a match": "Match User x\n  MaxAuthTries 4\n\nMaxSessions 5\n",
    "match with an equals sign": "Match=User x\nMaxAuthTries 4\n",
}


def _nested(depth: int) -> dict[str, Content]:
    between = {f"/etc/ssh/i{n}.conf": f"Include i{n + 1}.conf\n" for n in range(1, depth)}
    return {MAIN: "Include i1.conf\n", **between, f"/etc/ssh/i{depth}.conf": "MaxAuthTries 5\n"}


SEVERAL_FILES: dict[str, dict[str, Content]] = {
    "included first": {MAIN: f"{INCLUDE}MaxAuthTries 3\n", f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n"},
    "included last": {MAIN: f"MaxAuthTries 3\n{INCLUDE}", f"{DIRECTORY}/a.conf": "MaxAuthTries 4\nMaxSessions 5\n"},
    "included in the middle": {
        MAIN: f"MaxAuthTries 3\n{INCLUDE}MaxSessions 2\n",
        f"{DIRECTORY}/a.conf": "MaxAuthTries 4\nMaxSessions 5\n",
    },
    "order of names": {
        MAIN: INCLUDE,
        f"{DIRECTORY}/50-cloud-init.conf": "PasswordAuthentication yes\n",
        f"{DIRECTORY}/10-gx10.conf": "PasswordAuthentication no\n",
        f"{DIRECTORY}/99-late.conf": "PasswordAuthentication yes\nMaxAuthTries 4\n",
    },
    "order of capitals": {
        MAIN: INCLUDE,
        f"{DIRECTORY}/a.conf": "MaxAuthTries 3\n",
        f"{DIRECTORY}/Z.conf": "MaxAuthTries 4\n",
    },
    "nothing is included": {MAIN: f"{INCLUDE}MaxAuthTries 3\n"},
    "relative": {MAIN: "Include sshd_config.d/*.conf\n", f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n"},
    "relative, from an included file": {
        MAIN: INCLUDE,
        f"{DIRECTORY}/a.conf": "Include more/*.conf\n",
        "/etc/ssh/more/b.conf": "MaxAuthTries 4\n",
        f"{DIRECTORY}/more/b.conf": "MaxAuthTries 5\n",
    },
    "two patterns": {
        MAIN: "Include more/*.conf sshd_config.d/*.conf\n",
        f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n",
        "/etc/ssh/more/b.conf": "MaxAuthTries 5\n",
    },
    "the same file twice": {MAIN: INCLUDE + INCLUDE, f"{DIRECTORY}/a.conf": "Port 2200\nMaxAuthTries 4\n"},
    "quoted pattern": {MAIN: f'Include "{DIRECTORY}/*.conf"\n', f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n"},
    "pattern with an equals sign": {MAIN: f"Include={DIRECTORY}/*.conf\n", f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n"},
    "pattern of one character": {
        MAIN: "Include sshd_config.d/?.conf\n",
        f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n",
        f"{DIRECTORY}/bb.conf": "MaxSessions 4\n",
    },
    "pattern of a set": {
        MAIN: "Include sshd_config.d/[!a]*.conf\n",
        f"{DIRECTORY}/a.conf": "MaxAuthTries 4\n",
        f"{DIRECTORY}/bb.conf": "MaxSessions 4\n",
    },
    "pattern over directories": {
        MAIN: "Include */x.conf\n",
        "/etc/ssh/a/x.conf": "MaxAuthTries 4\n",
        "/etc/ssh/b/x.conf": "MaxAuthTries 5\n",
    },
    "dot file": {MAIN: INCLUDE, f"{DIRECTORY}/.a.conf": "MaxAuthTries 4\n"},
    "only .conf": {MAIN: INCLUDE, f"{DIRECTORY}/a.conf.bak": "MaxAuthTries 4\n", f"{DIRECTORY}/b": "MaxSessions 4\n"},
    "a file that is not there": {MAIN: "Include /etc/ssh/nothing.conf\nMaxAuthTries 3\n"},
    "tilde": {MAIN: "Include ~/x.conf\nMaxAuthTries 3\n"},
    "nested": {
        MAIN: "Include a.conf\nMaxAuthTries 3\n",
        "/etc/ssh/a.conf": "Include b.conf\nMaxAuthTries 4\n",
        "/etc/ssh/b.conf": "MaxAuthTries 5\n",
    },
    "nested in itself": {MAIN: "MaxAuthTries 3\nInclude sshd_config\n"},
    **{f"nested {depth} deep": _nested(depth) for depth in (15, 16, 17)},
    "a match ends with its file": {
        MAIN: f"{INCLUDE}MaxAuthTries 3\nPort 2200\n",
        f"{DIRECTORY}/a.conf": "Match User x\nMaxAuthTries 4\n",
    },
    "a match ends with its file, seen by the next": {
        MAIN: INCLUDE,
        f"{DIRECTORY}/a.conf": "Match User x\nMaxAuthTries 4\n",
        f"{DIRECTORY}/b.conf": "MaxAuthTries 5\nPort 2200\n",
    },
    "match all ends with its file": {
        MAIN: f"MaxAuthTries 2\n{INCLUDE}MaxSessions 3\n",
        f"{DIRECTORY}/a.conf": "Match all\nMaxAuthTries 4\nMaxSessions 5\n",
    },
    "included below a match": {
        MAIN: "MaxAuthTries 3\nMatch User x\nInclude a.conf\n",
        "/etc/ssh/a.conf": "MaxAuthTries 4\nMaxSessions 5\n",
    },
    "match all included below a match": {
        MAIN: "MaxAuthTries 3\nMatch User x\nInclude a.conf\nMatch all\nMaxSessions 7\n",
        "/etc/ssh/a.conf": "Match all\nMaxAuthTries 4\nMaxSessions 5\n",
    },
    "included below match all": {
        MAIN: "MaxAuthTries 3\nMatch all\nInclude a.conf\n",
        "/etc/ssh/a.conf": "MaxAuthTries 4\nMatch User x\nMaxSessions 5\n",
    },
    "port included below a match": {MAIN: "Match User x\nInclude a.conf\n", "/etc/ssh/a.conf": "Port 2200\n"},
    "lists from several files": {
        MAIN: f"AcceptEnv A\n{INCLUDE}AllowUsers x\nPort 2200\n",
        f"{DIRECTORY}/a.conf": "AcceptEnv B\nAllowUsers y z\nPort 2201\n",
    },
    "an error in an included file": {MAIN: INCLUDE, f"{DIRECTORY}/a.conf": "MaxAuthTries\n"},
}


def _random(number: int) -> Case:
    rng = random.Random(f"{SEED} sshd {number}")  # noqa: S311  # an arrangement is no secret
    lines = [
        "MaxAuthTries {}",
        "MaxSessions {}",
        "ClientAliveInterval {}",
        "AcceptEnv A{}",
        "AllowUsers u{}",
        "Match all",
    ]
    lines += ["Match User x", "maxauthtries={}", "# MaxSessions {}", "PermitTTY no", "X11Forwarding yes"]
    names = [f"{DIRECTORY}/{name}.conf" for name in ("10-a", "50-b", "90-c")]
    files: dict[str, Content] = {}
    for path in (MAIN, *rng.sample(names, rng.randint(1, 3))):
        text = [rng.choice(lines).format(rng.randint(1, 9)) for _ in range(rng.randint(0, 6))]
        if path == MAIN:
            text.insert(rng.randint(0, len(text)), INCLUDE.rstrip())
        files[path] = "".join(f"{line}\n" for line in text)
    return Case(f"sshd: random {number}", files, {"keys": list(KEYS)})


def cases() -> list[Case]:
    """Return every arrangement."""
    ask = {"keys": list(KEYS)}
    single = [Case(f"sshd: {name}", {MAIN: text}, ask) for name, text in ONE_FILE.items()]
    several = [Case(f"sshd: {name}", files, ask) for name, files in SEVERAL_FILES.items()]
    return [*single, *several, *map(_random, range(20))]
