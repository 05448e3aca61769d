"""What families of configuration files have in common: each table row was seen with systemd 252's own programs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.resolve import (
    Turn,
    after_reboot,
    glob_matches,
    ini_list,
    ini_value,
    parse_ini,
    turns,
    unreadable,
)
from tests.unit import builders
from tests.unit.builders import file, masked

RUN, USR = "/run/sysctl.d", "/usr/lib/sysctl.d"


def test_after_a_reboot_nothing_in_run_hides_anything() -> None:
    """What lies in /run is gone after a reboot, and what it hid is read again; what a generator made is made anew."""
    files = [masked(f"{RUN}/50-x.conf"), file(f"{USR}/50-x.conf", "a.b=1")]
    assert [f["path"] for f in after_reboot(files)] == [f"{USR}/50-x.conf"]
    generated = file("/run/systemd/generator/a.service.d/x.conf", "")
    assert after_reboot([generated]) == [generated]


def test_every_file_has_its_turn() -> None:
    """Files come by name; a hidden one says what hides it, and a masked one hides itself."""
    one, two = file("/etc/d/b.conf", ""), masked("/etc/d/a.conf")
    hidden, other = file("/usr/d/a.conf", ""), file("/usr/d/b.conf", "")
    assert turns([one, two, hidden, other]) == [
        Turn(two, "/etc/d/a.conf"),
        Turn(hidden, "/etc/d/a.conf"),
        Turn(one),
        Turn(other, "/etc/d/b.conf"),
    ]


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("/a/b.conf", "/a/*.conf", True),
        ("/a/b/c.conf", "/a/*.conf", False),
        ("/a/.b.conf", "/a/*.conf", False),
        ("/a/.b.conf", "/a/.*.conf", True),
        ("/a/b", "/a/[^b]", False),
        ("/a/c", "/a/[^b]", True),
        ("/a/b", "/a/{b,c}", False),
    ],
)
def test_patterns_over_paths(path: str, pattern: str, expected: bool) -> None:
    """A pattern crosses no slash, finds no hidden name by a wildcard, and knows no braces."""
    assert glob_matches(path, pattern) is expected


def test_unreadable_file_is_named() -> None:
    """The first file that could not be read is said with the reason."""
    assert unreadable([file("/a", ""), builders.unreadable("/b")]) == "/b: Input/output error"
    assert unreadable([file("/a", "")]) == ""


# --- systemd's own files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[S]\nK=5", "5"),
        ("[S]\nK = 5 \t", "5"),
        ("K=4\n[S]\nK=5\n[T]\nK=6\n[s]\nK=7", "5"),
        ("[S]\nK=5\n[T]\nX=1\n[S]\nK=6", "6"),
        ("[S]\nK=5\nk=6", "5"),
        ("[S]\n#K=5\n; K=6", None),
        ("[S]\nK=5\n[S\nK=6", "5"),
        ("[S]\nK=5\n[ S ]\nK=6", "5"),
        ("[S]\nK=5\nX=\ufffd\nK=6", "5"),
        ("# \ufffd\n[S]\nK=5", "5"),
        ("\ufeff[S]\nK=5", "5"),
        ("\ufeff# c\n[S]\nK=5", "5"),
        ("[S]\rK=5\0K=6\r\n", "6"),
        ("[S]\nK=\\\n# c\n7", "7"),
        ("[S]\nK=\\\n; c\n\n7", ""),
        ("[S]\nK=5 \\\n\nK=6", "6"),
        ("[S]\nX=\\\nK=6", None),
        ("[S]\nK=5 \\", "5"),
        ("[S]\nX=y \\\\\nK=6", "6"),
        ("[S]\nX=y \\ \nK=6", "6"),
        ("[S]\nK=5\nK=", ""),
        ("[S]\nK=a\u00a0", "a\u00a0"),
        ("[S]\nK", None),
        ("", None),
    ],
)
def test_one_ini_file(text: str, expected: str | None) -> None:
    r"""Sections, comments, `\` at the end and what ends the reading of a file are as systemd has them."""
    winner = ini_value([file("/x", text)], "S", "K").winner
    assert (winner.value if winner else None) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["256M", "256MB"], "256M"),
        (["256M", "lots"], "256M"),
        (["256M", ""], ""),
        (["256M", "15%"], "15%"),
        (["256M", "infinity"], "infinity"),
        (["256m"], None),
    ],
)
def test_a_refused_value_leaves_the_one_before_it(values: list[str], expected: str | None) -> None:
    """Systemd warns of a value that it cannot read and keeps what was set before; an empty one resets."""
    files = [file(f"/{number}.conf", f"[Service]\nMemoryMin={value}") for number, value in enumerate(values)]
    winner = ini_value(files, "Service", "MemoryMin").winner
    assert (winner.value if winner else None) == expected


def test_line_of_a_continued_assignment() -> None:
    """An assignment is found at the line on which it begins."""
    found = parse_ini(file("/x", "# c\n[S]\n\nK=a \\\n b\nL=1"))
    assert [(a.key, a.place.line) for a in found] == [("K", 4), ("L", 6)]
    assert found[0].value.split() == ["a", "b"]


@pytest.mark.parametrize(
    ("key", "texts", "expected"),
    [
        ("ExecStart", ["ExecStart=a", "ExecStart=\nExecStart=b"], ["b"]),
        ("ExecStart", ["ExecStart=a", "ExecStart=b"], ["a", "b"]),
        ("ExecStart", ["ExecStart=a", "ExecStart="], []),
        ("Environment", ["Environment=A=1\nEnvironment=\nEnvironment=B=2", "Environment=C=3"], ["B=2", "C=3"]),
        ("After", ["After=a", "After=\nAfter=b"], ["a", "b"]),
    ],
)
def test_lists(key: str, texts: list[str], expected: list[str]) -> None:
    """An empty assignment clears a list; one of dependencies it leaves as it was."""
    files = [file(f"/{number}.conf", f"[S]\n{text}") for number, text in enumerate(texts)]
    assert [a.value for a in ini_list(files, "S", key)] == expected


# --- properties -------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("ab=.-/*[]!#; \t\r\n\0\\\ufeff\ufffd\u00a0é"), max_size=60))
def test_any_text_can_be_parsed(text: str) -> None:
    """No file breaks the parser, and what is found lies on a line of the file."""
    count = text.count("\n") + text.count("\r") + text.count("\0") + 1
    for assignment in parse_ini(file("/x", text)):
        assert 1 <= assignment.place.line <= count
