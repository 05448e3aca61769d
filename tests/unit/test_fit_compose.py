"""What `docker compose` would start: its command line, its env files, its way to split a command, and dependencies."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from plimsoll.box.fit import ask
from plimsoll.box.fit.compose_variables import env_file
from plimsoll.box.fit.compose_words import odd_words, split
from plimsoll.box.fit.model import CannotTellError, Verdict
from plimsoll.box.fit.verdict import judge
from plimsoll.box.host import Host
from tests.unit.fit_builders import LLAMA_8B, context, gib, spark, write_model
from tests.unit.fit_sources import launches, written

SERVICES = """\
services:
  chat:
    image: x/vllm
    command: --model a/chat --gpu-memory-utilization ${SHARE:-0.5}
  code:
    image: x/vllm
    command: --model a/code
    depends_on: {embed: {condition: service_healthy}, spare: {condition: service_started, required: false}}
  embed:
    image: x/vllm
    command: --model a/embed
  spare:
    image: x/vllm
    command: --model a/spare
    profiles: [extra]
  ui:
    image: x/open-webui
    depends_on: [code]
"""


def _names(*words: str) -> list[str]:
    return sorted(each.name for each in launches(*words))


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a compose file with several engines."""
    return written(tmp_path, "f.yml", SERVICES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("up -d", ["chat", "code", "embed"]),
        ("up -d chat", ["chat"]),
        ("up -d chat embed", ["chat", "embed"]),
        ("up -d chat code", ["chat", "code", "embed"]),
        ("up -d ui", ["code", "embed"]),
        ("up -d --no-deps ui code", ["code"]),
        ("up -d --pull always --wait-timeout 900 chat", ["chat"]),
        ("up chat -d --timeout=5 --scale chat=1", ["chat"]),
        ("up -dt 5 chat", ["chat"]),
        ("create --pull missing chat", ["chat"]),
        ("run --rm -e A=1 --name up chat", ["chat"]),
        ("up spare", ["spare"]),
        ("--profile extra up", ["chat", "code", "embed", "spare"]),
        ("--profile other --profile=extra up code", ["code", "embed", "spare"]),
        ("--profile * up", ["chat", "code", "embed", "spare"]),
        ("--ansi never --progress plain -p up up chat", ["chat"]),
    ],
)
def test_services_of_a_command_line(file: str, words: str, expected: list[str]) -> None:
    """All services that are named count with what they need; values of options are no services."""
    assert _names("docker", "compose", "-f", file, *words.split()) == expected
    assert _names("docker-compose", f"--file={file}", *words.split()) == expected


def test_services_of_the_option(file: str) -> None:
    """--compose takes several services as well."""
    found = launches(compose=(file, "chat", "ui"))
    assert sorted(each.name for each in found) == ["chat", "code", "embed"]


@pytest.mark.parametrize("words", ["down chat", "logs -f chat", "ps", "--env-file up.env config"])
def test_subcommands_that_start_nothing(file: str, words: str) -> None:
    """Other subcommands start nothing, whatever their words are."""
    with pytest.raises(CannotTellError, match="starts no model server"):
        launches("docker", "compose", "-f", file, *words.split())


def test_a_command_that_run_is_given(file: str) -> None:
    """What `run` is given stands for the command of the file, and its variables are added."""
    words = ("run", "-e", "VLLM_X=1", "--entrypoint", "vllm serve", "chat", "a/other", "--max-model-len", "4096")
    found = launches("docker", "compose", "-f", file, *words)
    assert found[0].arguments == ("a/other", "--max-model-len", "4096")
    assert found[0].environment["VLLM_X"] == "1"


def test_env_files_of_a_command_line(tmp_path: Path, file: str) -> None:
    """--env-file stands in place of `.env`, a later one goes before an earlier one, and the asker's before both."""
    written(tmp_path, ".env", "SHARE=0.1\n")
    one, two = written(tmp_path, "one.env", "SHARE=0.2\n"), written(tmp_path, "two.env", "SHARE=0.3\n")
    for options, expected in (
        ((), "0.1"),
        (("--env-file", one), "0.2"),
        (("--env-file", one, f"--env-file={two}"), "0.3"),
    ):
        found = launches("docker", "compose", "-f", file, *options, "up", "chat")
        assert found[0].arguments[-1] == expected
    own = Host(environment={"HOME": "/root", "SHARE": "0.9"})
    assert launches("docker", "compose", "-f", file, "up", "chat", host=own)[0].arguments[-1] == "0.9"
    with pytest.raises(CannotTellError, match=r"gone\.env: --env-file cannot be read"):
        launches("docker", "compose", "-f", file, "--env-file", str(tmp_path / "gone.env"), "up")


def test_a_file_that_is_laid_over_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An override file that compose reads without being told is no file to pass over."""
    written(tmp_path, "compose.yaml", SERVICES)
    monkeypatch.chdir(tmp_path)
    assert _names("docker", "compose", "up", "chat") == ["chat"]
    written(tmp_path, "compose.override.yaml", "services: {}\n")
    with pytest.raises(CannotTellError, match="lays it over"):
        launches("docker", "compose", "up", "chat")


# --- env files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export SHARE=0.92\n", {"SHARE": "0.92"}),
        ("export\tA=1\r\nB = 2\r\n", {"A": "1", "B": "2"}),
        ("A=1 # try\n", {"A": "1"}),
        ("A=1#2\n", {"A": "1#2"}),
        ("# A=1\n\n  B=2", {"B": "2"}),
        ("A=${ALL}\nB=$A-x\n", {"A": "0.7", "B": "0.7-x"}),
        ("A=${GONE:-3}\nB=${GONE}\n", {"A": "3", "B": "${GONE}"}),
        ("A='${ALL} # \\n'\n", {"A": "${ALL} # \\n"}),
        ('A="${ALL} # x" # y\n', {"A": "0.7 # x"}),
        ('A="one\\ntwo \\"2\\" \\$ALL"\n', {"A": 'one\ntwo "2" $ALL'}),
        ('A="one\ntwo"\nB=1\n', {"A": "one\ntwo", "B": "1"}),
        ("ALL\nGONE\n", {"ALL": "0.7"}),
        ("A: 1\n", {"A": "1"}),
        ("A=\n", {"A": ""}),
        ("A=pa$-word\n", {"A": "pa$-word"}),
    ],
)
def test_env_files(text: str, expected: Mapping[str, str]) -> None:
    """Env files are read in compose's dialect, not in that of systemd."""
    assert env_file(text, {"ALL": "0.7"}) == expected


@pytest.mark.parametrize("text", ["A='1\n", "two words=1\n", "=1\n", "A='1'2\n"])
def test_env_files_that_compose_refuses(text: str) -> None:
    """What compose refuses is an error with its line."""
    with pytest.raises(ValueError, match="line 1"):
        env_file(text, {})


def test_env_files_of_a_service(tmp_path: Path) -> None:
    """A file that may be missing takes nothing away; one that must be there does."""
    text = "services:\n  a:\n    image: x/vllm\n    command: --model m\n    env_file:\n      - path: gone.env\n"
    found = launches(compose=(written(tmp_path, "one.yml", f"{text}        required: false\n"),))
    assert found[0].unknowns == ()
    found = launches(compose=(written(tmp_path, "two.yml", text),))
    assert "gone.env: env_file cannot be read" in found[0].unknowns[0]
    written(tmp_path, "gone.env", "export A='1' # x\n")
    assert launches(compose=(str(tmp_path / "two.yml"),))[0].environment == {"A": "1"}


# --- words of a command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  'b c' \"d e\"f ''", ["a", "b c", "d ef", ""]),
        ("a \\\n  --b 1", ["a", "\n", "--b", "1"]),
        ("a \\\n--b 1", ["a", "\n--b", "1"]),
        ('sh -c "a \\\n  --b"', ["sh", "-c", "a \n  --b"]),
        ("sh -c 'a \\\n  --b'", ["sh", "-c", "a \\\n  --b"]),
        ("a\n--b\n", ["a", "--b"]),
        ("a > log b", ["a"]),
        ("a 2>&1", ["a"]),
        ("a&& b", ["a"]),
        ("a; b", ["a"]),
        ("a 'b;c' \"d|e\" f\\;g", ["a", "b;c", "d|e", "f;g"]),
        ("a $(b c) `d e`", ["a", "$(b c)", "`d e`"]),
        ('a \\"b\\tc', ["a", '"b\tc']),
    ],
)
def test_words_of_a_command(text: str, expected: list[str]) -> None:
    """A command that is one text is split as compose does it, not as a shell would."""
    assert split(text) == expected


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a \\", "a (b)", "a `b"])
def test_words_that_compose_refuses(text: str) -> None:
    """What compose refuses is an error."""
    with pytest.raises(ValueError, match="compose refuses"):
        split(text)


def test_words_that_an_engine_refuses(tmp_path: Path) -> None:
    """A newline that compose keeps before a flag is named, and what is started so is no yes."""
    assert odd_words(["a", "\n--b", "\n", " x", "--c", ""]) == ["\n--b", "\n"]
    model = write_model(tmp_path / "m", LLAMA_8B, gib(15))
    lines = ["|", f"--model {model} \\", "--gpu-memory-utilization 0.3 \\", "--max-model-len 4096", ""]
    text = f"services:\n  a:\n    image: x/vllm\n    volumes: ['{tmp_path}:{tmp_path}']\n    command: "
    found = launches(compose=(written(tmp_path, "c.yml", text + "\n      ".join(lines)),))
    assert "--gpu-memory-utilization" in found[0].unknowns[0]
    assert judge([ask.one(found[0], context())], spark()).verdict is Verdict.UNKNOWN
    plain = launches(compose=(written(tmp_path, "d.yml", text + "\n      ".join(lines).replace(" \\", "")),))
    assert judge([ask.one(plain[0], context())], spark()).verdict is Verdict.FITS


# --- what one service hides -------------------------------------------------------------------------


def test_an_included_file_with_profiles(tmp_path: Path) -> None:
    """Engines that wait for a profile do not hide those of the next file, and what is needed may be there."""
    written(tmp_path, "one.yml", "services:\n  a:\n    image: x/vllm\n    profiles: [p]\n    command: --model m/a\n")
    written(tmp_path, "two.yml", "services:\n  b:\n    image: x/vllm\n    command: --model m/b\n")
    text = "include: [one.yml, {path: two.yml}]\nservices:\n  ui:\n    image: x/ui\n    depends_on: [b]\n"
    path = written(tmp_path, "c.yml", text)
    assert _names("docker", "compose", "-f", path, "up") == ["b"]
    assert _names("docker", "compose", "-f", path, "up", "ui") == ["b"]
    assert _names("docker", "compose", "-f", path, "--profile", "p", "up") == ["a", "b"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("extends: {file: gone.yml, service: x}", "the service odd is not understood"),
        ("image: x/llama-swap\n    command: llama-swap -config /gone.yaml", "(/gone.yaml) is not mounted from here"),
    ],
)
def test_a_service_that_is_not_understood(tmp_path: Path, other: str, why: str) -> None:
    """It is an unknown of its own, and hides none of the others."""
    text = f"services:\n  a:\n    image: x/vllm\n    command: --model m/a\n  odd:\n    {other}\n"
    path = written(tmp_path, "c.yml", text)
    found = launches(compose=(path,))
    assert [each.name for each in found] == ["a", "odd"]
    assert why in ask.one(found[1], context()).unknowns[0]
    assert ask.one(found[1], context()).items == ()
    assert _names("docker", "compose", "-f", path, "up", "a") == ["a"]


def test_an_image_that_chooses_by_itself(tmp_path: Path) -> None:
    """A NIM image takes memory that nobody can tell before it runs."""
    path = written(tmp_path, "c.yml", "services:\n  n:\n    image: nvcr.io/nim/meta/some-model:latest\n")
    estimate = ask.one(launches(compose=(path,))[0], context())
    assert "a NIM image chooses" in estimate.unknowns[0]


def test_a_manifest_of_kubernetes(tmp_path: Path) -> None:
    """What is no compose file is called by its name."""
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers: []\n---\napiVersion: v1\nkind: Service\n"
    with pytest.raises(CannotTellError, match="a manifest of Kubernetes"):
        launches(written(tmp_path, "pod.yaml", text))


def test_an_entry_point_with_a_quote_that_is_open(tmp_path: Path) -> None:
    """It is refused as compose refuses it, and named."""
    path = written(tmp_path, "c.yml", "services:\n  a:\n    image: x/vllm\n    command: --model m/a\n")
    with pytest.raises(CannotTellError, match="--entrypoint bash -c 'x: a quote"):
        launches("docker", "compose", "-f", path, "run", "--entrypoint", "bash -c 'x", "a")


def test_no_profiles_are_none(tmp_path: Path) -> None:
    """A service whose list of profiles is empty starts by itself."""
    path = written(
        tmp_path, "c.yml", "services:\n  a:\n    image: x/vllm\n    profiles: []\n    command: --model m/a\n"
    )
    assert _names("docker", "compose", "-f", path, "up") == ["a"]
