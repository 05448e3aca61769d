"""Which file decides: each table row was seen with systemd 252's own programs."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.model import Place
from plimsoll.box.resolve import (
    FileText,
    after_reboot,
    drop_in_directories,
    in_order,
    ini_value,
    parse_ini,
    parse_sysctl,
    sysctl_everywhere,
    sysctl_key,
    sysctl_value,
    unit_files_in_order,
    unreadable,
)
from tests.unit import builders
from tests.unit.builders import file, masked

ETC, RUN, USR = "/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"


def _value(key: str, *texts: str) -> str | None:
    files = [file(f"{ETC}/{number}.conf", text) for number, text in enumerate(texts)]
    winner = sysctl_value(in_order(files), key).winner
    return winner.value if winner else None


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("vm.swappiness", "vm/swappiness"),
        ("vm/swappiness", "vm/swappiness"),
        ("/vm/swappiness", "vm/swappiness"),
        ("net.ipv4.conf.eth0/100.rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ("net/ipv4/conf/eth0.100/rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ("net..ipv4.conf", "net/ipv4/conf"),
        ("kernel/./panic//", "kernel/panic"),
        (".kernel.panic", "kernel/panic"),
        ("single", "single"),
    ],
)
def test_sysctl_key(written: str, path: str) -> None:
    """The first separator decides which one separates; the other stands for a dot in a name."""
    assert sysctl_key(written) == path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", "1"),
        ("a.b = 1 \t", "1"),
        ("a/b=1", "1"),
        ("-a.b=1", "1"),
        ("- a.b = 1", "1"),
        ("a.b=", ""),
        ("a.b=   \t", ""),
        ("a.b=x=y", "x=y"),
        ("a.b=1 # not a comment", "1 # not a comment"),
        ('a.b="1"', '"1"'),
        ("#a.b=1", None),
        ("  ; a.b=1", None),
        ("a.b 1", None),
        ("a.b=1\na.b=2", "2"),
        ("a.b=1\r\na.c=2\r\n", "1"),
        ("a.c=2\ra.b=1", "1"),
        ("a.c=2\0a.b=1\0", "1"),
        ("a.b=1\\\n2", "1\\"),
        ("a.b=1\u00a0", "1\u00a0"),
        ("a.b=1\x0b", "1\x0b"),
        ("a.b=1\u2028a.b=2", "1\u2028a.b=2"),
        ("\ufeffa.b=1", None),
        ("a.b=1\n-a.b", None),
        ("-a.b\na.b=1", "1"),
        ("A.b=1", None),
    ],
)
def test_one_sysctl_file(text: str, expected: str | None) -> None:
    """A line is `key = value`; only blanks, tabs and line ends are stripped, and nothing follows a comment sign."""
    assert _value("a.b", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("net.*.x=1", "1"),
        ("net.a.x=1\nnet.*.x=2", "1"),
        ("net.*.x=2\n-net.a.x", None),
        ("-net.a.x\nnet.*.x=2", None),
        ("net.*.x=1\nnet.a*.x=2", "2"),
        ("net.*.x=2\nnet.a*.x=1\nnet.*.x=2", "1"),
        ("net.*.x=0\nnet.a*.x=1\nnet.*.x=2", "2"),
        ("net.*.x=2\n-net.*.x", None),
        ("net.*.x=2\n-net.a*.x", "2"),
        ("net.*=1", None),
        ("net.[ab].x=1", "1"),
        ("net.[!a].x=1", None),
        ("net.[^a].x=1", None),
        ("net.[^b].x=1", "1"),
        ("net.?.x=1", "1"),
        ("net.{a,b}.x=1", None),
        ("net/*/x=1", "1"),
    ],
)
def test_patterns(text: str, expected: str | None) -> None:
    """A key set by name beats every pattern; of patterns the last one applies, a repeated one at its first place."""
    assert _value("net.a.x", text) == expected


def test_names_sort_across_directories() -> None:
    """Files are read in the order of their names, whichever directory they lie in."""
    files = [file(f"{ETC}/10-a.conf", "a.b=1"), file(f"{USR}/50-b.conf", "a.b=2"), file(f"{USR}/9-c.conf", "a.b=3")]
    effective = sysctl_value(in_order(files), "a.b")
    assert effective.winner is not None
    assert effective.winner.place == Place(f"{USR}/9-c.conf", 1)
    assert [loser.place.file for loser in effective.losers] == [f"{USR}/50-b.conf", f"{ETC}/10-a.conf"]


@pytest.mark.parametrize("hiding", [masked(f"{ETC}/50-x.conf"), file(f"{ETC}/50-x.conf", "")])
def test_a_file_hides_its_namesake(hiding: FileText) -> None:
    """A file of the same name in a more important directory hides the other, also when it is empty or /dev/null."""
    files = [hiding, file(f"{USR}/50-x.conf", "a.b=1"), file(f"{USR}/60-y.conf", "a.c=1")]
    assert sysctl_value(in_order(files), "a.b").winner is None
    assert sysctl_value(in_order(files), "a.c").winner is not None


def test_after_a_reboot_nothing_in_run_hides_anything() -> None:
    """What lies in /run is gone after a reboot, and what it hid is read again; what a generator made is made anew."""
    files = [masked(f"{RUN}/50-x.conf"), file(f"{USR}/50-x.conf", "a.b=1")]
    assert [f["path"] for f in after_reboot(files)] == [f"{USR}/50-x.conf"]
    generated = file("/run/systemd/generator/a.service.d/x.conf", "")
    assert after_reboot([generated]) == [generated]


def test_every_place_that_names_a_key() -> None:
    """Whoever names a key is listed, in either spelling, patterns left out."""
    files = [file("/a", "x.y=1\n# x.y=2\nx/y=3\nx.*=4"), file("/b", "-x.y")]
    assert sysctl_everywhere(files, "x.y") == [Place("/a", 1), Place("/a", 3), Place("/b", 1)]


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
    ("unit", "expected"),
    [
        ("ssh.service", ["ssh.service.d", "service.d"]),
        ("a-b.service", ["a-b.service.d", "a-.service.d", "service.d"]),
        ("a-b-c.slice", ["a-b-c.slice.d", "a-b-.slice.d", "a-.slice.d", "slice.d"]),
        ("user@.service", ["user@.service.d", "service.d"]),
        ("a-b@c.service", ["a-b@c.service.d", "a-b@.service.d", "a-@.service.d", "service.d"]),
        ("system.slice", ["system.slice.d", "slice.d"]),
    ],
)
def test_drop_in_directories(unit: str, expected: list[str]) -> None:
    """A unit's drop-ins come from its own directory, its template's, its dashed prefixes' and its type's."""
    assert drop_in_directories(unit) == expected


def test_only_the_first_fragment_counts() -> None:
    """The fragment in /etc replaces the vendor's; drop-ins follow by name; what lies in /run is gone after a reboot."""
    files = {
        "fragments": [file("/run/systemd/system/x.service", "r"), file("/etc/x", "e"), file("/usr/x", "u")],
        "drop_ins": [file("/etc/d/z.conf", ""), file("/run/d/y.conf", ""), file("/usr/d/a.conf", "")],
    }
    assert [f["path"] for f in unit_files_in_order(files)] == ["/etc/x", "/usr/d/a.conf", "/etc/d/z.conf"]


def test_masked_fragment_keeps_the_drop_ins() -> None:
    """A unit whose fragment is a link to /dev/null has only its drop-ins."""
    files = {"fragments": [masked("/etc/x"), file("/usr/x", "")], "drop_ins": [file("/etc/d/z.conf", "")]}
    assert [f["path"] for f in unit_files_in_order(files)] == ["/etc/d/z.conf"]


# --- properties -------------------------------------------------------------------------------------

_ANY_TEXT = st.text(st.sampled_from("ab=.-/*[]!#; \t\r\n\0\\\ufeff\ufffd\u00a0é"), max_size=60)


@given(_ANY_TEXT)
def test_any_text_can_be_parsed(text: str) -> None:
    """No file breaks a parser, and what is found lies on a line of the file."""
    count = text.count("\n") + text.count("\r") + text.count("\0") + 1
    for line in parse_sysctl(file("/x", text)):
        assert 1 <= line.place.line <= count
    for assignment in parse_ini(file("/x", text)):
        assert 1 <= assignment.place.line <= count


_LINES = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["a/x", "a/y", "b/x", "a/*", "*/x"]), st.sampled_from(["0", "1", None])),
    max_size=8,
)
_FILES = st.dictionaries(st.tuples(st.sampled_from([ETC, USR]), st.sampled_from("123")), _LINES, max_size=6)


def _naive(files: dict[tuple[str, str], list[tuple[bool, str, str | None]]], key: str) -> str | None:
    """Carry out what systemd-sysctl does, step by step, on a kernel that is a dictionary."""
    options: dict[str, str | None] = {}
    names = sorted({name for _directory, name in files})
    for lines in (files.get((ETC, name), files.get((USR, name))) for name in names):
        for _dash, pattern, value in lines or []:
            if pattern not in options or options[pattern] != value:
                options.pop(pattern, None)
                options[pattern] = value
    kernel: dict[str, str] = {}
    for pattern, value in options.items():
        is_pattern = "*" in pattern
        if value is None or not fnmatch.fnmatchcase(key, pattern) or (is_pattern and key in options):
            continue
        kernel[key] = value
    return kernel.get(key)


@given(_FILES)
def test_sysctl_agrees_with_a_naive_model(files: dict[tuple[str, str], list[tuple[bool, str, str | None]]]) -> None:
    """The value that is said to win is the one that is left after every step was carried out."""

    def written(dash: bool, pattern: str, value: str | None) -> str:
        return f"-{pattern}" if value is None else f"{'-' if dash else ''}{pattern.replace('/', '.')} = {value}"

    texts = [
        file(f"{directory}/{name}.conf", "\n".join(written(*line) for line in lines))
        for directory in (ETC, USR)
        for (where, name), lines in files.items()
        if where == directory
    ]
    for key in ("a/x", "a/y", "b/x"):
        winner = sysctl_value(in_order(texts), key).winner
        assert (winner.value if winner else None) == _naive(files, key)
