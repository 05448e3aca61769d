"""Which line of sshd_config decides: each table row was seen with sshd of OpenSSH 9.2 and 10.0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.model import Place
from plimsoll.box.resolve_sshd import (
    MAIN,
    MAX_DEPTH,
    SshdRefusesError,
    among,
    include_patterns,
    sshd_lines,
    sshd_value,
)

A, B = "/etc/ssh/sshd_config.d/a.conf", "/etc/ssh/sshd_config.d/b.conf"
INCLUDE = "Include /etc/ssh/sshd_config.d/*.conf\n"


def _values(keyword: str, main: str, **included: str) -> list[tuple[str, ...]]:
    files = {MAIN: main, **{f"/etc/ssh/sshd_config.d/{name}.conf": text for name, text in included.items()}}
    return [line.arguments for line in sshd_value(sshd_lines(files), keyword)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("K 1", ["1"]),
        ("k 1\nK 2", ["1"]),
        ("K=1", ["1"]),
        ("K = 1", ["1"]),
        (" \tK\t1 \r", ["1"]),
        ('"K" 1', ["1"]),
        ("K 1 2 # 3", ["1", "2"]),
        ("K 1#2", ["1#2"]),
        ('K "1 2"', ["1 2"]),
        ("K '1 \"2'", ['1 "2']),
        ('K a"b c"d', ["ab cd"]),
        ('K "#1"', ["#1"]),
        ("K a\\ b", ["a b"]),
        ('K "a\\ b"', ["a\\ b"]),
        ('K "a\\"b"', ['a"b']),
        ("K a\\b", ["a\\b"]),
        ('K ""', [""]),
        ("#K 1", []),
        ("K 1\f", ["1"]),
    ],
)
def test_one_line(text: str, expected: list[str]) -> None:
    """Keywords have no case, quotes and backslashes are sshd's own, and a word that begins with # begins a comment."""
    found = _values("k", text)
    assert [word for words in found for word in words] == expected


@pytest.mark.parametrize(
    ("keyword", "text", "expected"),
    [
        ("Port", "Port 1\nport 2", [("1",), ("2",)]),
        ("AcceptEnv", "AcceptEnv A B\nAcceptEnv C", [("A", "B"), ("C",)]),
        ("AuthorizedKeysFile", "AuthorizedKeysFile a b\nAuthorizedKeysFile c", [("a", "b")]),
        ("KbdInteractiveAuthentication", "ChallengeResponseAuthentication yes", [("yes",)]),
        ("KeepAlive", "TCPKeepAlive no", [("no",)]),
    ],
)
def test_what_adds_up(keyword: str, text: str, expected: list[tuple[str, ...]]) -> None:
    """The first line counts, but for keywords of which all do; old names stand for new ones."""
    assert _values(keyword, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MaxAuthTries 3\nMatch all\nMaxAuthTries 4", ["4"]),
        ("MaxAuthTries 3\nMatch ALL # x\nMaxAuthTries 4\nMatch all\nMaxAuthTries 5", ["4"]),
        ("MaxAuthTries 3\nMatch User x\nMaxAuthTries 4", ["3"]),
        ("Match User x\nMaxAuthTries 4", []),
        ("Match User x\nMaxAuthTries 4\nMatch all\nMaxAuthTries 5", ["5"]),
        (f"{INCLUDE}MaxAuthTries 3", ["4"]),
        (f"MaxAuthTries 3\n{INCLUDE}", ["3"]),
        (f"MaxAuthTries 3\nMatch User x\n{INCLUDE}", ["3"]),
        (f"MaxAuthTries 3\nMatch all\n{INCLUDE}", ["4"]),
    ],
)
def test_match(text: str, expected: list[str]) -> None:
    """What stands after `Match all` beats what stands before; what depends on other criteria does not count."""
    assert _values("MaxAuthTries", text, a="MaxAuthTries 4") == [(value,) for value in expected]


def test_match_all_replaces_lists() -> None:
    """A list that is set after `Match all` is the whole list; a keyword that no Match may hold goes on adding up."""
    text = "AcceptEnv A\nPort 1\nMatch all\nAcceptEnv B\nAcceptEnv C\nPort 2"
    assert _values("AcceptEnv", text) == [("B",), ("C",)]
    assert _values("Port", text) == [("1",), ("2",)]


def test_a_match_ends_with_its_file() -> None:
    """After an included file the criteria are those from before it, and they are said of each line."""
    files = {MAIN: f"Match User x\n{INCLUDE}MaxSessions 1\n", A: "Match Group y\nBanner a\n", B: "Banner b\n"}
    found = [(line.keyword, line.place, line.match) for line in sshd_lines(files)]
    assert found == [
        ("banner", Place(A, 2), "User x Group y"),
        ("banner", Place(B, 1), "User x"),
        ("maxsessions", Place(MAIN, 3), "User x"),
    ]


def test_files_come_in_the_order_of_their_names() -> None:
    """Of included files the first by name decides, where the Include stands."""
    assert _values("MaxAuthTries", INCLUDE, b="MaxAuthTries 1", Z="MaxAuthTries 2", a="MaxAuthTries 3") == [("2",)]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('\nBanner "a', 2, "quotes"),
        ("Banner 'a", 1, "quotes"),
        ("Banner", 1, "no argument"),
        ("Match all User x", 1, "cannot be combined"),
        ("Match User x all", 1, "cannot be combined"),
        ("Match User x\nPort 22", 2, "not allowed"),
        ("Include sshd_config", 1, "too deeply"),
    ],
)
def test_sshd_does_not_start(text: str, line: int, why: str) -> None:
    """What sshd refuses to start with is an error with its place."""
    with pytest.raises(SshdRefusesError, match=why) as caught:
        sshd_lines({MAIN: text})
    assert caught.value.place == Place(MAIN, line)


@pytest.mark.parametrize(("depth", "starts"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_depth(depth: int, starts: bool) -> None:
    """Sixteen levels of includes are read, one more is refused."""
    files = {MAIN: "Include 1", **{f"/etc/ssh/{n}": f"Include {n + 1}" for n in range(1, depth)}}
    files[f"/etc/ssh/{depth}"] = "MaxAuthTries 1"
    if starts:
        assert [line.arguments for line in sshd_lines(files)] == [("1",)]
    else:
        with pytest.raises(SshdRefusesError):
            sshd_lines(files)


def test_patterns() -> None:
    """A relative pattern is meant from /etc/ssh, whichever file it stands in; a tilde means nothing."""
    text = 'Include a/*.conf /b "/c d"\nMatch User x\ninclude=~/e\n'
    assert include_patterns(A, text) == ["/etc/ssh/a/*.conf", "/b", "/c d", "~/e"]
    assert among(["/etc/ssh/a/y.conf", "/etc/ssh/a/.z.conf", "/etc/ssh/a/X.conf"])("/etc/ssh/a/*.conf") == [
        "/etc/ssh/a/X.conf",
        "/etc/ssh/a/y.conf",
    ]


def test_own_expansion() -> None:
    """Whoever has a real file system can expand patterns there; a file without a text is an empty one."""
    files = {MAIN: "Include x\nBanner b\n", "/other": "Banner a\n"}
    lines = sshd_lines(files, lambda pattern: ["/other", "/gone"] if pattern == "/etc/ssh/x" else [])
    assert [line.place.file for line in lines] == ["/other", MAIN]


@given(st.text(st.sampled_from("aKM \t\r\n\"'\\#=*/é"), max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    """No file breaks the reader: it is read, or refused with a place in it."""
    try:
        lines = sshd_lines({MAIN: text})
    except SshdRefusesError as error:
        assert 1 <= error.place.line <= text.count("\n") + 1
    else:
        assert all(line.keyword for line in lines)
