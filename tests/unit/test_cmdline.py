"""What a daemon would be started with: EnvironmentFile and ExecStart in systemd's dialect, and modprobe.d."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.cmdline import (
    effective_exec_start,
    environment,
    module_options,
    parse_environment_file,
    persisted_arguments,
    shown,
)
from plimsoll.box.model import Place
from plimsoll.box.resolve_units import unit_files_in_order
from plimsoll.box.words import split_words
from plimsoll.controls.earlyoom import environment_value
from tests.unit.builders import file, unreadable

FRAGMENT = file(
    "/usr/lib/systemd/system/e.service",
    "[Service]\nEnvironmentFile=-/etc/default/e\nExecStart=/usr/bin/e $ARGS\n",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=x", "x"),
        ('A="-r 60"', "-r 60"),
        ('A="-r 60" # c', "-r 60# c"),
        ("A=x # c", "x # c"),
        (r"A='a\.b'", r"a\.b"),
        (r'A="a\.b \$ \" \\"', r'a\.b $ " ' + "\\"),
        ('A=a"b"', 'a"b"'),
        ('A="a" "b"', "ab"),
        ("A=one\\\n two", "one two"),
        ('A="x\\\ny"', "xy"),
        ("A=a\\ b \\\n  c", "a b   c"),
        ("A=b\\  ", "b "),
        (" A = v ", "v"),
        ('A="multi\nline"', "multi\nline"),
        ("A=", ""),
        (r"A=\x41", "x41"),
        ("A=a\r\nB=c", "a"),
        ("A='never closed", "never closed"),
        ("A=1\nA=2", "2"),
        ("# c \\\nA=1", "1"),
        ("; c\nA=1", "1"),
        ("junk\nA=1", "1"),
        ("A=$HOME", "$HOME"),
        ("A=x \\", "x"),
        ("export A=1", None),
        ("#A=1", None),
        ("=A=1", None),
        ("A=1\0", None),
        ("A=\ufffd", None),
        ("# \ufffd\nA=1", "1"),
    ],
)
def test_environment_file(text: str, expected: str | None) -> None:
    """Quotes count at the start of a value only, comments at the start of a line only, and there is no `export`."""
    found = parse_environment_file(text).get("A")
    assert (found[0] if found else None) == expected


def test_line_of_a_variable() -> None:
    """A variable is found at the line on which it begins."""
    found = parse_environment_file('# c\n\nA="1\n2"\nB=3')
    assert {name: line for name, (_value, line) in found.items()} == {"A": 3, "B": 5}


@pytest.mark.parametrize(
    ("text", "c_escapes", "expected"),
    [
        ("-r 60", False, ["-r", "60"]),
        (" a\tb\n c ", False, ["a", "b", "c"]),
        ("--prefer '^(a|b c)$'", False, ["--prefer", "^(a|b c)$"]),
        (r"'a\.b'", False, ["a.b"]),
        (r"'a\.b'", True, [r"a\.b"]),
        (r"e\x41 \101 x\ty a\sb", True, ["eA", "A", "x\ty", "a b"]),
        (r"'it\'s'", False, ["it's"]),
        ("a'b'\"c\"", False, ["abc"]),
        ("'' x", False, ["", "x"]),
        ("'never closed", False, ["never closed"]),
        ("a\\", False, ["a"]),
        ("", False, []),
    ],
)
def test_words(text: str, c_escapes: bool, expected: list[str]) -> None:
    r"""Quotes hold a word together and `\` counts inside both kinds, which a shell's single quotes do not allow."""
    assert split_words(text, c_escapes=c_escapes) == expected


def _unit(env: str | None, *drop_ins: str) -> dict[str, Any]:
    files = {"fragments": [FRAGMENT], "drop_ins": [file(f"/etc/d/{n}.conf", text) for n, text in enumerate(drop_ins)]}
    read = (lambda _path: None) if env is None else (lambda path: file(path, env))
    return {**files, "environment": environment(unit_files_in_order(files), read)}


@pytest.mark.parametrize(
    ("env", "drop_ins", "arguments", "place"),
    [
        ("\nARGS=\"-m 5 'a b'\"", [], ["-m", "5", "a b"], Place("/etc/default/e", 2)),
        (None, [], [], Place(FRAGMENT["path"], 3)),
        ("ARGS=1", ["[Service]\nExecStart=\nExecStart=/usr/bin/e -m 3"], ["-m", "3"], Place("/etc/d/0.conf", 3)),
        ("ARGS=1 2", ["[Service]\nExecStart=\nExecStart=e -x ${ARGS}"], ["-x", "1 2"], Place("/etc/default/e", 1)),
        ("ARGS=1", ["[Service]\nExecStart=\nExecStart=e a$ARGS $$b %%"], ["a$ARGS", "$b", "%"], None),
        ("ARGS=1", ["[Service]\nExecStart=\nExecStart=:e $ARGS"], ["$ARGS"], Place("/etc/d/0.conf", 3)),
        ("ARGS=1", ["[Service]\nExecStart=\nExecStart=-@e name $ARGS"], ["1"], Place("/etc/default/e", 1)),
        ("ARGS=1", ["[Service]\nEnvironmentFile="], [], Place(FRAGMENT["path"], 3)),
        ("B=1", ["[Service]\nEnvironment=C=x 'ARGS=2 3'"], ["2", "3"], Place("/etc/d/0.conf", 2)),
        ("ARGS=1", ["[Service]\nEnvironment=ARGS=2"], ["1"], Place("/etc/default/e", 1)),
        (None, ["[Service]\nEnvironment=ARGS=2", "[Service]\nEnvironment="], [], Place(FRAGMENT["path"], 3)),
    ],
)
def test_arguments_after_a_reboot(env: str | None, drop_ins: list[str], arguments: list[str], place: Place) -> None:
    """The arguments are what ExecStart, its resets and the variables come to, decided where the value stands."""
    found, where = persisted_arguments(_unit(env, *drop_ins))
    assert found == arguments
    assert place in (None, where)


def test_two_exec_starts_start_nothing() -> None:
    """A daemon with a second ExecStart and no reset before it is refused by systemd: nothing would run."""
    unit = _unit("ARGS=1", "[Service]\nExecStart=/usr/bin/e -m 3")
    assert effective_exec_start(unit_files_in_order(unit)) is None
    assert persisted_arguments(unit) == (None, None)
    assert shown(None) is None


def test_a_later_environment_file_wins() -> None:
    """Of two files that set the variable the one named last decides."""
    files = {"fragments": [FRAGMENT], "drop_ins": [file("/etc/d/x.conf", "[Service]\nEnvironmentFile=/etc/more")]}
    texts = {"/etc/default/e": "ARGS=1", "/etc/more": "ARGS=2"}
    found = environment(unit_files_in_order(files), lambda path: file(path, texts[path]))
    assert found == {"variables": {"ARGS": {"value": "2", "file": "/etc/more", "line": 1}}}


def test_secrets_stay_on_the_host() -> None:
    """Of an EnvironmentFile only the variables that the command line names are taken."""
    assert _unit("TOKEN=hunter2\nARGS=1")["environment"]["variables"].keys() == {"ARGS"}
    files = [file("/x", "[Service]\nEnvironmentFile=/etc/secret\nExecStart=/bin/x")]
    assert environment(files, lambda path: pytest.fail(f"{path} was read")) == {"variables": {}}


def test_environment_file_that_cannot_be_read_is_said() -> None:
    """A file with an I/O error is no empty file."""
    found = environment([FRAGMENT], unreadable)
    assert found["error"] == "/etc/default/e: Input/output error"


@pytest.mark.parametrize(
    ("text", "booted", "expected"),
    [
        ("options nvidia NVreg_X=0", "", ["0"]),
        ("options  nvidia\tA=1 NVreg_X=0 B=2", "", ["0"]),
        ("options nvidia NVreg_X=0\noptions nvidia NVreg_X=1", "", ["0", "1"]),
        ("options nvidia A=1 \\\n  NVreg_X=0", "", ["0"]),
        ('options nvidia NVreg_X="0"', "", ["0"]),
        ("# options nvidia NVreg_X=0", "", []),
        ("options nvidia_uvm NVreg_X=0", "", []),
        ("options nvidia NVreg_Xy=0", "", []),
        ("options nvidia NVreg-X=0\r\n", "", ["0"]),
        ("options nvidia NVreg_X=0\u00a0", "", ["0\u00a0"]),
        ("options nvidia\u00a0NVreg_X=0", "", []),
        ("alias nvidia NVreg_X=0\noptions\n\n", "", []),
        ("options nvidia NVreg_X=0", "quiet nvidia.NVreg_X=1 nvidia-drm.modeset=1", ["0", "1"]),
    ],
)
def test_module_options(text: str, booted: str, expected: list[str]) -> None:
    """Every place is listed that sets an option; the kernel's command line comes last."""
    found = module_options([file("/etc/modprobe.d/x.conf", text)], booted, "nvidia", "NVreg_X")
    assert [a.value for a in found] == expected


def test_dashes_in_module_names() -> None:
    """`-` and `_` are the same in a module's name."""
    found = module_options([file("/x", "options nvidia-uvm a=1")], "nvidia-uvm.a=2", "nvidia_uvm", "a")
    assert [(a.value, a.place) for a in found] == [("1", Place("/x", 1)), ("2", Place("/proc/cmdline", 1))]


_ANY_TEXT = st.text(st.sampled_from("ab=#;'\"\\ \t\r\n\0$%{}-@:x41"), max_size=60)


@given(_ANY_TEXT, _ANY_TEXT)
def test_any_text_can_be_parsed(env: str, command: str) -> None:
    """No file and no command line breaks a parser."""
    parse_environment_file(env)
    module_options([file("/x", env)], command, "a", "b")
    files = {"fragments": [file("/x", f"[Service]\nExecStart=x {command}")], "drop_ins": []}
    found = environment(unit_files_in_order(files), lambda path: file(path, env))
    persisted_arguments({**files, "environment": found})


_ARGUMENT = st.text(
    st.characters(codec="utf-8", exclude_characters="'\"\\`", exclude_categories=("C", "Z")), min_size=1
)


@given(st.lists(_ARGUMENT | st.just("a b"), min_size=1, max_size=5))
def test_what_is_written_is_what_is_read(arguments: list[str]) -> None:
    """Arguments that were written to the file come out of systemd's two rounds of quoting as they went in."""
    text = f'# c\nARGS="{environment_value(arguments)}"\n'
    assert split_words(parse_environment_file(text)["ARGS"][0], c_escapes=False) == arguments
