"""Shell scripts as far as they say what is started; what only a run would tell stays as it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.box.fit import shell


def _words(text: str, **variables: str) -> list[tuple[str, ...]]:
    return [command.words for command in shell.commands(text, variables)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m --x 1", [("vllm", "serve", "m", "--x", "1")]),
        ("vllm m \\\n  --x '{\"a\": 1}' \\\n  --y \"b c\"", [("vllm", "m", "--x", '{"a": 1}', "--y", "b c")]),
        ("a=1\nb=${a}2\nrun $b \"$a\" '$a'", [("run", "12", "1", "$a")]),
        ("run ${X:-d} ${Y-e} ${Z:+f} ${Q:=g} $Q", [("run", "d", "e", "g", "g")]),
        ("X=\nrun ${X:-d} ${X-e} x", [("run", "d", "x")]),
        ('A=(--x 1 "b c")\nA+=(--y)\nrun "${A[@]}" z', [("run", "--x", "1", "b c", "--y", "z")]),
        ("A=(one two)\nrun ${A[1]} $A", [("run", "two", "one")]),
        ("ARGS='--x 1 --y 2'\nrun $ARGS \"$ARGS\"", [("run", "--x", "1", "--y", "2", "--x 1 --y 2")]),
        ("run a # b\n# run c\nrun 'd#e' f#g", [("run", "a"), ("run", "d#e", "f#g")]),
        ("run a > /tmp/log 2>&1 &\nrun b | tee c", [("run", "a"), ("run", "b"), ("tee", "c")]),
        ("cat <<EOF > x\nrun no\nEOF\nrun yes", [("cat",), ("run", "yes")]),
        ("cat <<-'EOF'\n\trun no\n\tEOF\nrun yes", [("cat",), ("run", "yes")]),
        ("f() {\n  run a\n}\nf", [("run", "a")]),
        ("run \"a\\\"b\" a\\ b 'a'\"b\"", [("run", 'a"b', "a b", "ab")]),
        ("run \"\" ''", [("run", "", "")]),
        ("run $'a b'", [("run", "a b")]),
        ("run a; run b && run c || run d", [("run", "a"), ("run", "b"), ("run", "c"), ("run", "d")]),
    ],
)  # fmt: skip
def test_words(text: str, expected: list[tuple[str, ...]]) -> None:
    """Variables, arrays, defaults, quotes, comments, redirections and here-documents come out as a shell reads them."""
    assert _words(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "run $(hostname) x",
        "run `hostname` x",
        "run $UNSET x",
        "run ${UNSET} x",
        "run ${UNSET:?say it} x",
        "f() {\n  run $1 x\n}\nf",
        'while [ "$#" -gt 0 ]; do\n  case "$1" in -a) A=1;; esac\n  shift\ndone\nrun $1 x',
        'if [ -n "$A" ]; then U=1; else U=2; fi\nrun $U x',
        "case $A in\n  a) U=1;;\nesac\nrun $U x",
        "for U in 1 2; do\n  run $U x\ndone",
    ],
)  # fmt: skip
def test_what_only_a_run_would_tell(text: str) -> None:
    """Output of commands, variables that nobody sets, and those that a condition sets stay in sight as they are."""
    word = next(words[1] for words in _words(text) if words[0] == "run")
    assert word.startswith(("$", "`"))


def test_a_condition_is_remembered() -> None:
    """A command that depends on a condition is told from one that does not."""
    found = shell.commands("if [ -d x ]; then\n  run a\nfi\nrun b", {})
    assert [(command.words[1], command.conditional, command.line) for command in found] == [
        ("a", True, 2),
        ("b", False, 4),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('X=1\nif [ "$X" = 1 ]; then\n run a\nelse\n run b\nfi', ["a"]),
        ('X=\nif [[ -n $X ]]; then\n run a\nelif [ -z "$X" ]; then\n run b\nelse\n run c\nfi', ["b"]),
        ('X=2\n[ "$X" = 2 ] && run a\n[ "$X" = 3 ] && run b\n[ "$X" = 2 ] || run c', ["a"]),
        ('[ -z "${X:-}" ] && X=5\nrun $X', ["5"]),
        ('X=4\n[ -n "$X" ] || X=5\nrun $X', ["4"]),
        ("if [ -f there ]; then\n run a\nfi\nif [ -f gone ]; then\n run b\nfi", ["a"]),
        ("A=(--x)\nif [ -d z ]; then\n A+=(--y)\nfi\nrun ${A[@]}", ["--x"]),
        ('for i in 1 2; do\n [ -n "$i" ] || A+=(x)\ndone\nB=()\nB+=(c)\nrun ${B[@]}', ["c"]),
    ],
)
def test_conditions_that_can_be_told(text: str, expected: list[str]) -> None:
    """A test of texts that are known decides which branch is followed, and which is left out."""
    found = shell.commands(text, {}, {"/there": ""}.get)
    assert [command.words[1] for command in found if command.words[0] == "run"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('D="$(cd "$(dirname "$0")" && pwd)"\nrun $D', "/opt/x"),
        ('D=$(dirname "${BASH_SOURCE[0]}")\nrun $D/y', "/opt/x/y"),
        ("run $PWD $(pwd)", "/work"),
        ('cd "$(dirname "$0")/.."\nrun $(pwd)/z', "/opt/z"),
        ("run $(basename /a/b.gguf .gguf)", "b"),
        ("N=4\nrun $((N * 1024))", "4096"),
        ("run $(( 10 / 0 ))", "$(( 10 / 0 ))"),
        ("run $1 ${2:-d}", "first"),
        ('f() {\n local m=$1\n run "$m"\n}\nf x', "x"),
    ],
)
def test_paths_and_arguments(text: str, expected: str) -> None:
    """A script's directory, arguments and whole numbers come out; a function's arguments are not the script's."""
    found = shell.commands(text, {}, setting=shell.Setting("/opt/x/run.sh", "/work", ("first",)))
    assert next(command.words[1] for command in found if command.words[0] == "run") == expected


def test_a_file_that_is_not_there() -> None:
    """What a file would have set that cannot be read in is said with every command after it."""
    found = shell.commands("run a\n. ./env\nrun b", {})
    assert [command.missing for command in found] == [(), ("./env",)]


def test_the_environment_of_a_command() -> None:
    """What is exported, and what stands before a command, is in its environment; other variables are not."""
    found = shell.commands("export A=1 B=2\nC=3\nD=4 run x", {})
    assert found[0].environment == {"A": "1", "B": "2", "D": "4"}


def test_a_file_that_is_read_in() -> None:
    """`source` and `set -a` bring in variables of another file."""
    found = shell.commands("set -a\n. ./env\nset +a\nrun $X", {}, {"/./env": "X=5\n"}.get)
    assert found[-1].words == ("run", "5")
    assert found[-1].environment == {"X": "5"}


def test_files_that_read_each_other_in() -> None:
    """A file that reads itself in is an end, not an endless loop."""
    assert shell.commands(". x\nrun a", {}, lambda _path: ". x\n")[-1].words == ("run", "a")


@pytest.mark.parametrize(
    ("text", "line"), [("a\nrun 'b", 2), ('run "a', 1), ("x\n\nrun ${a", 3), ("run $(a", 1), ("cat <<E\nx", 2)]
)
def test_a_script_that_is_cut_off(text: str, line: int) -> None:
    """What is not closed is an error with the line on which it begins."""
    with pytest.raises(shell.ShellError) as caught:
        shell.commands(text, {})
    assert caught.value.line >= line - 1


@given(st.text(alphabet="ab$'\"\\ \n{}()[]=;&|<>#@:-+?`~*", max_size=60))
def test_any_text(text: str) -> None:
    """Whatever a text holds, it comes to commands or to a ShellError, in bounded time."""
    try:
        found = shell.commands(text, {"a": "1"})
    except shell.ShellError:
        return
    assert all(command.words for command in found)
