"""What an audit sends to a host: it reads there what is read here, whichever Python the host has."""

import ast
import json
import marshal
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plimsoll.box import state
from plimsoll.box.model import Request
from plimsoll.controls import plan
from plimsoll.fleet import light_dataclasses, light_enum, light_re, on_host, reader
from plimsoll.policy import Policy

REQUEST = plan.request(Policy()).to_json()
SAME_EVERY_TIME = ("schema", "sysctl_files", "units", "manager_files", "packages", "files", "modules", "sshd_files")


def answer(first_line: str, argv: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Do what a host does, and return what came of it."""
    question = json.dumps({"request": REQUEST, "mark": "M" * 32, "limit_s": 60})
    command = argv or [sys.executable, *shlex.split(reader.command())[1:]]
    given = f"{first_line}\n{question}\n"
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, cwd="/", check=False)


def for_another_python(line: str) -> str:
    """Return the program as it is for a host with another version of Python, which cannot use what is compiled."""
    word, _version, _compiled, sources = line.split(" ")
    return f"{word} cpython-39 broken {sources}"


@pytest.mark.parametrize("sent", [str, for_another_python])
def test_a_host_reads_what_is_read_here(sent: Callable[[str], str]) -> None:
    """From the compiled modules as from their sources, with what stands in for slow ones, the state is the same."""
    done = answer(sent(reader.first_line()))
    assert (done.returncode, done.stderr) == (0, "")
    _before, found, _after = done.stdout.split("M" * 32)
    there, here = json.loads(found), json.loads(json.dumps(state.read(Request.from_json(REQUEST))))
    assert there.keys() == here.keys()
    assert {name: there[name] for name in SAME_EVERY_TIME} == {name: here[name] for name in SAME_EVERY_TIME}


def test_what_is_compiled_is_used() -> None:
    """A host with the same version of Python compiles nothing: it does not look at the sources."""
    word, version, compiled, _sources = reader.first_line().split(" ")
    assert answer(f"{word} {version} {compiled} broken").returncode == 0


@pytest.mark.parametrize("line", ["", "{}", '{"request": {}, "mark": "M"}'])
def test_it_is_silent_where_the_program_is_gone(line: str) -> None:
    """An attempt that took the program and failed has said why; the next one has nothing to add."""
    done = answer(line)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_what_goes_wrong_there_is_said() -> None:
    """A program that breaks on a host ends with its reason on stderr, and with no state."""
    done = answer(reader.first_line().replace("plimsoll ", "plimsoll cpython-0 x ", 1))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Error" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", [on_host, light_dataclasses, light_enum, light_re])
def test_only_the_standard_library_is_needed_there(module: Any) -> None:  # noqa: ANN401  # a module
    """What goes to a host beside the box imports nothing that does not come with Python."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in plain | named} <= sys.stdlib_module_names


def test_a_failure_there_can_be_traced(capfd: pytest.CaptureFixture[str]) -> None:
    """Code without the numbers of its lines fails as any other does: its frames are told, and the error at the end."""
    code = reader._compiled("sent", "def broken():\n    return [each for each in (1 // 0,)]\nbroken()\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code, {})  # noqa: S102  # what was compiled here
    traceback.print_exception(caught.value)
    told = capfd.readouterr().err.splitlines()
    assert [line.strip() for line in told if '"sent"' in line][-1].startswith('File "sent", line ')
    assert told[-1].startswith("ZeroDivisionError")


def test_a_pattern_is_compiled_when_it_is_used() -> None:
    """What is wrong with a pattern shows at its first use; a good one finds what it finds elsewhere."""
    broken, good = light_re.compile("("), light_re.compile("B+", re.IGNORECASE)
    with pytest.raises(re.error):
        broken.search("a")  # type: ignore[operator]  # it stands for a pattern
    assert good.search("abb").group() == "bb"  # type: ignore[operator]  # as above
    assert good.sub("", "abba") == "aa"  # type: ignore[operator]  # as above
    # whatever else is asked for is the original's
    assert light_re.escape("a.b") == "a\\.b"  # type: ignore[operator]  # as above
    assert (light_re.ASCII, light_re.VERBOSE, light_re.DOTALL) == (re.ASCII, re.VERBOSE, re.DOTALL)


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile(r"(?P<key>\w+)\s*=\s*(?P<value>.*)|#(.*)", re.MULTILINE),
        re.compile(r"b+", re.IGNORECASE),
        re.compile(rb"[^\w@%+=:,./-]", re.ASCII),
        re.compile(r" (a) (?:b|c)  # with blanks", re.VERBOSE),
    ],
)
def test_a_pattern_that_is_sent_finds_the_same(pattern: re.Pattern[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of what the operator's Python has made of it, without being compiled once more."""
    key = (pattern.pattern, reader._given_flags(pattern))
    sent = marshal.loads(marshal.dumps({key: reader._parts(pattern)}))  # noqa: S302  # what was made here
    monkeypatch.setattr(light_re, "READY", sent)
    monkeypatch.setattr(light_re, "original", lambda: pytest.fail("it is compiled anew"))
    made: Any = light_re.compile(*key)
    text = "one = 1\n# two BbB ac\nac=@?" if isinstance(pattern.pattern, str) else b"a b?c"
    assert [m.groups() for m in made.finditer(text)] == [m.groups() for m in pattern.finditer(text)]
    assert [m.groupdict() for m in made.finditer(text)] == [m.groupdict() for m in pattern.finditer(text)]
    assert (made.flags, made.groups, made.groupindex) == (pattern.flags, pattern.groups, pattern.groupindex)


LOADED = "import sys; sys.stderr.write(','.join(sorted(sys.modules)))"


def test_reading_needs_no_compiler_of_patterns() -> None:
    """No pattern that a reading meets on any host is missing among those that are sent."""
    command = [sys.executable, *shlex.split(reader.command())[1:]]
    command[-1] = command[-1].replace(
        "n['main'](m)", f"import os; os._exit = lambda code: exec({LOADED!r}); n['main'](m)"
    )
    done = answer(reader.first_line(), command)
    assert "plimsoll.box.answer" in done.stderr
    assert not {"enum", "re._compiler", "typing"} & set(done.stderr.split(","))


def test_texts_with_names() -> None:
    """A member is its text, is found by it, and by nothing else."""

    class Colour(light_enum.StrEnum):
        RED = "red"
        BLUE = "blue"

    blue: Any = Colour.BLUE
    assert (Colour("red"), blue.value, f"{Colour.RED}") == ("red", "blue", "red")
    assert json.dumps({Colour.RED: Colour.BLUE}) == '{"red": "blue"}'
    assert {Colour.RED: 1}["red"] == 1
    with pytest.raises(ValueError, match="'green' is not a valid Colour"):
        Colour("green")


class Thing:
    """A class as the box has them."""

    name: str
    size: int = 3
    parts: list[str] = light_dataclasses.field(default_factory=list)


FROZEN = light_dataclasses.dataclass(frozen=True)(Thing)


def test_fields_are_arguments() -> None:
    """By position and by name, with defaults, of which one that is made belongs to one object alone."""
    one, other = FROZEN("a"), FROZEN(size=4, name="b", parts=["x"])
    one.parts.append("mine")
    assert (one.name, one.size, one.parts) == ("a", 3, ["mine"])
    assert (other.name, other.size, other.parts) == ("b", 4, ["x"])
    assert FROZEN("a").parts == []


@pytest.mark.parametrize(
    ("values", "named"), [(("a", 1, [], 4), {}), (("a",), {"name": "b"}), (("a",), {"colour": 1}), ((), {"size": 1})]
)
def test_wrong_arguments(values: tuple[object, ...], named: dict[str, object]) -> None:
    """Too many values, a field given twice, one that is not there, and one that is missing are errors."""
    with pytest.raises((TypeError, KeyError)):
        FROZEN(*values, **named)


def test_equal_values_are_equal_objects() -> None:
    """Objects of one class with the same values are equal and found in a set; others are not."""
    place = light_dataclasses.dataclass(frozen=True)(type("Place", (), {"__annotations__": {"file": str, "line": int}}))
    assert place("a", 1) == place(file="a", line=1)
    assert len({place("a", 1), place("a", 1)}) == 1
    assert place("a", 1) != place("a", 2)
    assert place("a", 1) != FROZEN("a", 1)
