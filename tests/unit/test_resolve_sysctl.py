"""Which line decides a kernel setting: each table row was seen with systemd-sysctl itself."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.model import Place
from plimsoll.box.resolve import FileText, in_order
from plimsoll.box.resolve_sysctl import (
    parse_sysctl,
    read_at_boot,
    sysctl_key,
    sysctl_others,
    sysctl_value,
    tuned_lines,
)
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


def _sources(**others: object) -> dict[str, object]:
    return {"sysctl_d": [], "etc_sysctl_conf": None, "ufw": None, "tuned": [], **others}


def test_every_place_that_names_a_key() -> None:
    """Whoever names a key is listed, in either spelling, patterns left out; tuned and sysctl.conf among them."""
    files = [file("/a", "x.y=1\n# x.y=2\nx/y=3\nx.*=4"), file("/b", "-x.y")]
    found = _sources(sysctl_d=files, etc_sysctl_conf=file("/c", "x.y=1"), tuned=[file("/d", "[sysctl]\nx.y=2")])
    places = [Place("/a", 1), Place("/a", 3), Place("/b", 1), Place("/c", 1), Place("/d", 2)]
    assert sysctl_others(found, "x.y") == places


def test_what_is_read_at_boot() -> None:
    """The directories without /run, then ufw's own file; neither /etc/sysctl.conf nor tuned."""
    files = [file(f"{ETC}/z.conf", ""), file(f"{RUN}/a.conf", ""), file(f"{USR}/b.conf", "")]
    found = _sources(sysctl_d=files, etc_sysctl_conf=file("/c", ""), ufw=file("/u", ""), tuned=[file("/d", "")])
    assert [f["path"] for f in read_at_boot(found)] == [f"{USR}/b.conf", f"{ETC}/z.conf", "/u"]


def test_lines_of_tuned() -> None:
    """A profile sets keys in its section sysctl alone; a state from before profiles were read has none."""
    profile = file("/p", "[main]\nsummary=x\n[sysctl]\nvm.x = 1\nvm/x=2\n[vm]\nvm.x=3\n")
    assert [(a.value, a.place.line) for a in tuned_lines(_sources(tuned=[profile]), "vm.x")] == [("1", 4), ("2", 5)]
    assert tuned_lines({"sysctl_d": []}, "vm.x") == []


# --- properties -------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("ab=.-/*[]!#; \t\r\n\0\\\ufeff\ufffd\u00a0é"), max_size=60))
def test_any_text_can_be_parsed(text: str) -> None:
    """No file breaks the parser, and what is found lies on a line of the file."""
    count = text.count("\n") + text.count("\r") + text.count("\0") + 1
    for line in parse_sysctl(file("/x", text)):
        assert 1 <= line.place.line <= count
        assert line.concerns("a/b") in (True, False)


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
