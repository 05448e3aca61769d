"""What a script starts of several alternatives: `case`, `if`, functions, and the arguments that they are given."""

from pathlib import Path

import pytest

from plimsoll.box.fit import ask, shell
from plimsoll.box.fit.model import Launch
from plimsoll.box.fit.shell_flow import Slots
from plimsoll.box.fit.verdict import together
from tests.unit.fit_builders import QWEN3_NEXT_GGUF, context, gib, write_gguf
from tests.unit.fit_sources import command_lines, launches, written

CASE = """\
#!/bin/bash
case "$1" in
  s|small) llama-server -m GGUF -c 4096 ;;
  [lL]*) llama-server -m GGUF -c 8192 ;;
  "") exit 1 ;;
  *) echo "usage: $0 s|l"; exit 1 ;;
esac
"""
FUNCTIONS = """\
#!/bin/bash
run_small() { llama-server -m GGUF -c "$1" -np "${2:-1}"; }
function run_large {
  llama-server -m GGUF -c 65536 "$@"
}
"""


def _contexts(found: list[Launch]) -> list[str]:
    return [each.arguments[each.arguments.index("-c") + 1] for each in found]


@pytest.mark.parametrize(
    ("argument", "expected"), [("s", ["4096"]), ("small", ["4096"]), ("Large", ["8192"]), ("$X", ["4096", "8192"])]
)
def test_a_case(tmp_path: Path, argument: str, expected: list[str]) -> None:
    """A word that is known chooses one branch; of one that is not the branches replace each other."""
    found = launches(written(tmp_path, "start.sh", CASE), argument)
    assert _contexts(found) == expected
    exclusive = {each.exclusive for each in found}
    assert len(exclusive) == 1
    assert bool(exclusive.pop()) is (len(expected) > 1)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("run_small 4096", ["-m GGUF -c 4096 -np 1"]),
        ("run_small 8192 2 && run_large -np 4", ["-m GGUF -c 8192 -np 2", "-m GGUF -c 65536 -np 4"]),
        ("if run_small 4096; then echo started; fi", ["-m GGUF -c 4096 -np 1"]),
        ("$1", ["-m GGUF -c $1 -np ${2:-1}", "-m GGUF -c 65536 $@"]),
    ],
)
def test_functions(call: str, expected: list[str]) -> None:
    """A function starts what it does where it is called, with its arguments; a name that is not known may call any."""
    assert [line for _, line in command_lines(launches(FUNCTIONS + call))] == expected


def test_functions_that_call_each_other() -> None:
    """Calls that never end, or that multiply, are an end."""
    assert shell.commands("f() { g; }\ng() { f; run x; }\nf", {})[-1].words == ("run", "x")
    calls = "".join(f"f{n}() {{ {f'f{n + 1};' * 30} }}\n" for n in range(8))
    with pytest.raises(shell.ShellError, match="statements"):
        shell.commands(calls + "f0", {})
    with pytest.raises(shell.ShellError, match="characters"):
        shell.commands("X=12345678\n" + "X=$X$X\n" * 16 + "run $X\n" * 1000, {})
    with pytest.raises(shell.ShellError, match="within more than"):
        shell.commands("while x\n" * 1000, {})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("if ask; then\n a 60\nelse\n b 50\nfi", 60),
        ("if ask; then\n a 20\n b 30\nelse\n c 40\nfi", 70),
        ("if ask; then\n a 20\nelif tell; then\n b 30\nfi\nc 5", 35),
        ("if ask; then\n if tell; then\n a 10\n else\n b 20\n fi\n c 5\nelse\n d 22\nfi", 27),
        ("case $(x) in 1) a 20;; 2) b 30;& 3) c 40;; esac", 70),
    ],
)
def test_the_largest_of_alternatives(text: str, kept: int) -> None:
    """Of branches of which one runs the largest counts, and never less than what one of them starts together."""
    slots = Slots()
    found: dict[str, int] = {}
    alone = 0
    for command in shell.commands(text, {}):
        if command.words[-1].isdecimal():
            place, size = slots.place(command.alternatives), int(command.words[-1])
            found[place] = max(found.get(place, 0), size) if place else 0
            alone += 0 if place else size
    assert sum(found.values()) + alone == kept


def test_alternatives_are_judged_as_such(tmp_path: Path) -> None:
    """The branches of a condition that cannot be told are no sum; two calls of the same script are one."""
    model = write_gguf(tmp_path / "g.gguf", QWEN3_NEXT_GGUF, gib(20))
    start = f"llama-server -m {model} --cache-ram 0 -c"
    serve = written(tmp_path, "serve.sh", f"#!/bin/bash\nif ask; then {start} 8192; else {start} 4096; fi\n")
    weights = [
        together(ask.estimates(launches(command), context()))[0].likely // gib(20)
        for command in (f"{serve} x", f"{serve} x &\n{serve} y")
    ]
    assert weights == [1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('A=$1; shift; B=$1; run -c "$A" -np "$B"', "-c 8192 -np 2"),
        ("shift 2; run x $3 $1", "x $3 z"),
        ('set -- --a 1; run "$@" $*', "--a 1 --a 1"),
        ('run "${1}" "$@"', "8192 8192 2 z"),
        ('if ask; then shift; fi; run x "$1"', "x $1"),
    ],
)
def test_arguments_that_are_shifted(text: str, expected: str) -> None:
    """`shift` and `set --` move the arguments; under a condition they are not known any more."""
    found = shell.commands(text, {}, setting=shell.Setting(arguments=("8192", "2", "z")))
    assert " ".join(found[-1].words[1:]) == expected


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ('if [ "$A" = 2 ] && [ "$A" = 1 ]; then run; fi', []),
        ('if [ "$A" = 2 ] || [ "$A" = 1 ]; then run; fi', [False]),
        ('if ! [ "$A" = 2 ]; then run; fi', [False]),
        ('[ "$A" = 2 ] && true && run', []),
        ('[ "$A" = 1 ] && cd /x && run', [False]),
        ("command -v run && run", [False]),
    ],
)
def test_tests_that_are_joined(text: str, runs: list[bool]) -> None:
    """Tests with `&&`, `||` and `!` between them come to one answer."""
    assert [each.conditional for each in shell.commands(text, {"A": "1"}) if each.words[0] == "run"] == runs


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm serve a/b \\ \n  --max-model-len 8192", "script:2: .*followed by a blank"),
        ("vllm serve a/b \\\n  # the length\n  --max-model-len 8192", "script:3: .*a line with #"),
        ("vllm serve a/b\n  --max-model-len 8192", "script:2: this line is not part"),
    ],
)
def test_a_flag_that_is_no_part_of_the_command(text: str, why: str) -> None:
    """A flag on a line of its own is not the engine's, and the reason is told."""
    found = launches(text)
    assert "--max-model-len" not in found[0].arguments
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found[0].notes[0])


def test_patterns_that_only_a_shell_reads(tmp_path: Path) -> None:
    """Of a pattern that is not understood it is not known whether it fits: both branches stay."""
    script = 'case "$1" in [^a]) C=10 ;; *) C=20 ;; esac\nllama-server -m GGUF -c "$C"\n'
    (found,) = launches(written(tmp_path, "start.sh", script), "b")
    assert _contexts([found]) == ["$C"]


@pytest.mark.parametrize("opening", ['"$(', "${a:-"])
def test_quotes_within_quotes_without_end(opening: str) -> None:
    """Nesting beyond all sense is an error of the script, not of this program."""
    with pytest.raises(shell.ShellError):
        shell.commands(f"vllm serve {opening * 3000}", {})


@pytest.mark.parametrize("builtin", ["read -r -p size Q", "mapfile -t Q", "getopts ab Q"])
def test_a_variable_that_is_filled_while_it_runs(tmp_path: Path, builtin: str) -> None:
    """What it was before says nothing."""
    script = f"Q=s\n{builtin}\ncase $Q in s) C=10 ;; *) C=20 ;; esac\nllama-server -m GGUF -c $C\n"
    (found,) = launches(written(tmp_path, "start.sh", script))
    assert _contexts([found]) == ["$C"]
