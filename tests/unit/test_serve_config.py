"""A model's file: every key does what it says, every fault is named with its place, and nothing foreign is obeyed."""

import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.box.errors import USAGE
from plimsoll.box.guard.config import ConfigError
from plimsoll.box.host import Host
from plimsoll.box.serve import config, keys
from plimsoll.box.serve.model import Cluster, Command, Compose, Docker, Hooks, Need, Proof, Restart, Unit
from tests.unit.serving import SMALLEST, declare

PATH = "/etc/plimsoll/models.d/qwen.toml"
READY = '[ready]\nurl = "http://127.0.0.1:8000/v1/models"\nmodel_id = "qwen"\n'
UNIT = '[run]\nunit = "qwen.service"\n'


def example() -> str:
    """Return the example of the module's documentation."""
    assert config.__doc__ is not None
    lines = config.__doc__.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    #"))
    last = max(number for number, line in enumerate(lines) if line.startswith("    "))
    return textwrap.dedent("\n".join(lines[first : last + 1]))


def faults(text: str) -> list[str]:
    """Return the lines of the error that a file leads to."""
    with pytest.raises(ConfigError) as error:
        config.parse(text, PATH)
    assert error.value.exit_code == USAGE
    return str(error.value).splitlines()


def test_the_example_in_the_documentation_is_read_as_it_says() -> None:
    """What people copy from the documentation is a file that does, with the values that stand in it."""
    found = config.parse(example(), PATH)
    assert (found.name, found.file, found.unit) == ("qwen", PATH, "vllm-qwen.service")
    assert found.need == Need(92 << 20, 6 << 20, ("/srv/models/qwen",))
    assert found.proof == Proof(25600, 4, 600)
    assert found.readiness.url == "http://127.0.0.1:8000/v1/models"
    assert found.readiness.api_key_file == "/etc/plimsoll/qwen.key"
    assert (found.port, found.fallback, found.restart) == (8000, "qwen-small", Restart.NO)
    assert found.cluster == Cluster("gx10-b", ("/usr/local/bin/end-other-half",))
    assert found.hooks == Hooks((), ("/usr/local/bin/tell",), ("/usr/local/bin/tell",), 10)


def test_the_example_names_every_key() -> None:
    """No key is left out of the example, commented out or not."""
    named = {match[1] for line in example().splitlines() if (match := re.match(r"(?:# )?(\w+) = ", line))}
    assert named == {key.name for key in keys.KEYS}


def test_a_file_needs_to_say_little() -> None:
    """How it runs and when it is ready is enough; the rest has the documented defaults."""
    found = config.parse(UNIT + READY, PATH)
    assert found.place == Unit("qwen.service")
    assert (found.port, found.at_boot, found.restart, found.fallback) == (8000, False, Restart.NO, None)
    assert (found.stop_grace_s, found.oom_score_adj, found.guard_may_kill) == (60, 0, True)
    assert (found.need, found.proof, found.docker, found.cluster) == (Need(), None, None, None)
    assert found.readiness.completion


def test_documented_defaults_are_those_that_hold() -> None:
    """A file that gives every default explicitly means the same as one that gives none."""
    given: dict[str, list[str]] = {}
    for row in keys.describe():
        section, _, name = row.key.partition(".")
        if row.default not in ("none", "has to be given") and section not in ("prove", "kill") and name != "user":
            given.setdefault(section, []).append(f"{name} = {row.default}")
    given["run"] = [line for line in given["run"] if not line.startswith("directory")]
    extra = {section: "\n".join(lines) + "\n" for section, lines in given.items()}
    text = UNIT + extra.pop("run") + READY + extra.pop("ready")
    text += "".join(f"[{section}]\n{lines}" for section, lines in extra.items())
    assert config.parse(text, PATH) == config.parse(UNIT + READY, PATH)


def test_ways_to_run() -> None:
    """A compose service and a command are read with what belongs to them."""
    compose = '[run]\ncompose = "/srv/c.yaml"\nservice = "vllm"\n[docker]\nuser = "alice"\nsocket = "/run/d.sock"\n'
    found = config.parse(compose + READY, PATH)
    assert (found.place, found.docker, found.unit) == (
        Compose("/srv/c.yaml", "vllm"),
        Docker("alice", "/run/d.sock"),
        "",
    )
    command = '[run]\ncommand = ["/bin/v", "serve"]\nuser = "v"\ndirectory = "/srv"\nenvironment = {A = "1"}\n'
    found = config.parse(command + READY, PATH)
    assert found.place == Command(("/bin/v", "serve"), "v", "/srv", {"A": "1"})
    assert found.unit == "model-qwen.service"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{UNIT}prot = 5\n{READY}", 3, "unknown key run.prot; did you mean 'port'?"),
        (f"{UNIT}{READY}[neeed]\ngib = 5\n", 6, "unknown section [neeed]; did you mean 'need'?"),
        (f"{UNIT}{READY}[need]\ngib = '5'\n", 7, "need.gib: '5' is not a number"),
        (f"{UNIT}{READY}[need]\ngib = nan\n", 7, "need.gib: nan is not a number"),
        (f"{UNIT}{READY}[need]\nweights = []\n", 7, "need.weights: [] is not a list of paths"),
        (f'{UNIT}{READY}[need]\nweights = ["models"]\n', 7, "'models' is not a path from the root"),
        (f"{UNIT}{READY}[kill]\noom_score_adj = -1000\n", 7, "makes the kernel shoot everything else"),
        (f"{UNIT}{READY}[kill]\noom_score_adj = -1001\n", 7, "not a whole number from -1000 to 1000"),
        (f"{UNIT}restart = 'always'\n{READY}", 3, "run.restart: 'always' is not"),
        (f"{UNIT}at_boot = 1\n{READY}", 3, "run.at_boot: 1 is not true or false"),
        (f"{UNIT}port = 70000\n{READY}", 3, "run.port: 70000 is not a whole number from 1 to 65535"),
        (f"{UNIT}user = 'v'\n{READY}", 3, "run.user is for run.command only, and this model has run.unit"),
        (f"{UNIT}command = ['/bin/v']\n{READY}", 3, "run.unit and run.command exclude each other"),
        ("[run]\nunit = 'vllm'\n" + READY, 2, "is not the name of a service unit"),
        ("[run]\nunit = 'plimsoll-guard.service'\n" + READY, 2, "is a unit of Plimsoll's own"),
        ("[run]\nunit = '../x.service'\n" + READY, 2, "is not the name of a service unit"),
        ("[run]\ncommand = []\n" + READY, 2, "run.command: [] is not"),
        ("[run]\ncommand = ['vllm']\n" + READY, 2, "'vllm' is not a path from the root"),
        ("[run]\ncommand = ['/bin/v']\nenvironment = {A = 1}\n" + READY, 3, "A = 1 is not a variable"),
        ("[run]\ncompose = '/srv/c.yaml'\n" + READY, 2, "run.compose needs run.service"),
        (READY, 1, "it is not said how the model runs"),
        (UNIT, 1, "ready.url is missing"),
        (f"{UNIT}{READY}[prove]\nslots = 4\n", 7, "prove.slots is given without prove.prompt_tokens"),
        (f"{UNIT}{READY}[cluster]\nhook = ['/bin/x']\n", 7, "cluster.hook is given without cluster.host"),
        (f"{UNIT}{READY}[cluster]\nhost = '-oProxyCommand=x'\n", 7, "is not a host, or user@host"),
        (f"{UNIT}{READY}[hooks]\nended = 'tell'\n", 7, "hooks.ended: 'tell' is not a list of texts"),
        (f"{UNIT}{READY}[fallback]\nmodel = 'Qwen Small'\n", 7, "is not the name of a model"),
        (f"{UNIT}{READY}run = 5\n", 6, "unknown key ready.run"),
        ("run = 5\n" + READY, 1, "run is a section: write [run]"),
        ("[run\n", 1, "not TOML"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_line(text: str, line: int, said: str) -> None:
    """One error says what is wrong, where, and what would do."""
    found = faults(text)
    assert any(each.startswith(f"{PATH}:{line}: ") and said in each for each in found), found


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:8000/v1/models", "http://example.com/v1/models", "127.0.0.1:8000", "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/", "http://u:p@127.0.0.1/", "http://[::1/", "http://127.0.0.1/#x", "http:///v1",
        "http://127.0.0.1/ v1", "file:///etc/passwd", "http://cafe/", "", 5,
    ],
)  # fmt: skip
def test_a_readiness_url_is_http_to_an_address_of_this_box(url: object) -> None:
    """Names, other schemes, users, fragments and what is no URL are refused: nothing leads the request elsewhere."""
    assert any("ready.url" in each for each in faults(f'{UNIT}[ready]\nurl = {url!r}\nmodel_id = "q"\n'))


@pytest.mark.parametrize(("url", "port"), [("http://[::1]:81/v1/models", 81), ("http://localhost/v1/models", 80)])
def test_the_port_is_that_of_the_url(url: str, port: int) -> None:
    """Without run.port what must be free before a start is the port that readiness is asked at."""
    assert config.parse(f'{UNIT}[ready]\nurl = "{url}"\nmodel_id = "q"\n', PATH).port == port


def test_all_faults_are_told_at_once() -> None:
    """One look at the message mends the file, and each fault is told once."""
    found = faults('[run]\nunit = 5\nprot = 1\n[ready]\nurl = 5\n[kill]\noom_score_adj = "x"\n')
    assert [re.sub(r"^\S+:(\d+): .*", r"\1", each) for each in found] == ["2", "3", "4", "5", "7"]


def test_minus_1000_is_taken_with_force() -> None:
    """Who insists gets an engine that the kernel's OOM killer never takes."""
    found = config.parse(f"{UNIT}{READY}[kill]\noom_score_adj = -1000\nforce = true\n", PATH)
    assert found.oom_score_adj == -1000


@pytest.mark.parametrize("name", ["Qwen", "a/b", "..", "", "-x", "a" * 65, "a b", "x."])
def test_a_name_that_could_be_something_else_is_refused(name: str, tmp_path: Path) -> None:
    """A name becomes part of paths and units, so it is letters, digits and a few marks only."""
    declare(tmp_path, "qwen", SMALLEST.format(unit="q"))
    with pytest.raises(ConfigError, match="is not the name of a model"):
        config.load(Host(str(tmp_path)), name)


def test_an_unknown_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    """A slip is mended by the message."""
    declare(tmp_path, "qwen", SMALLEST.format(unit="q"))
    with pytest.raises(ConfigError, match=r"there is no model qwem .*did you mean 'qwen'\?"):
        config.load(Host(str(tmp_path)), "qwem")
    with pytest.raises(ConfigError, match="none is declared yet"):
        config.load(Host(str(tmp_path / "empty")), "qwen")


def fallbacks(root: Path, **chain: str | None) -> Host:
    """Declare models with their fallbacks below a root."""
    for name, fallback in chain.items():
        more = f'[fallback]\nmodel = "{fallback}"\n' if fallback else ""
        declare(root, name, SMALLEST.format(unit=name) + more)
    return Host(str(root))


def test_a_fallback_is_loaded_with_its_own(tmp_path: Path) -> None:
    """A chain that ends is good, however long."""
    host = fallbacks(tmp_path, a="b", b="c", c=None)
    assert config.load(host, "a").fallback == "b"
    assert sorted(config.load_all(host)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ({"a": "a"}, "a.toml: fallback.model: a -> a is a circle"),
        ({"a": "b", "b": "c", "c": "b"}, "b.toml: fallback.model: b -> c -> b is a circle"),
        ({"a": "bb", "bbb": None}, "a.toml: fallback.model: there is no model bb; did you mean 'bbb'?"),
        ({"a": "b", "b": "gone"}, "b.toml: fallback.model: there is no model gone"),
    ],
)
def test_a_fallback_that_leads_nowhere_is_an_error(chain: dict[str, str | None], said: str, tmp_path: Path) -> None:
    """A fallback that is missing or leads back is found out before it is needed."""
    with pytest.raises(ConfigError) as error:
        config.load(fallbacks(tmp_path, **chain), "a")
    assert said in str(error.value)


def test_one_bad_file_hides_no_other(tmp_path: Path) -> None:
    """What there is can be shown although one file does not do; who asks for all of them gets the error."""
    host = fallbacks(tmp_path, a=None, b="a")
    declare(tmp_path, "c", "[run]\n")
    found, problems = config.look(host)
    assert sorted(found) == ["a", "b"]
    assert all("c.toml:" in each for each in problems)
    assert problems
    with pytest.raises(ConfigError, match=r"c\.toml"):
        config.load_all(host)
    assert config.load(host, "b").name == "b"


def test_check_finds_before_any_host_what_load_finds_on_it() -> None:
    """The operator's side judges the same documents: names, keys, places and fallbacks, each with its model."""
    good: dict[str, Any] = tomllib.loads(UNIT + READY)
    documents = {
        "good": good,
        "Bad Name": good,
        "lost": {**good, "fallback": {"model": "goood"}},
        "circle": {**good, "fallback": {"model": "circle"}},
        "typo": {**good, "kil": {}},
        "proud": {**good, "kill": {"oom_score_adj": -1000}},
    }
    found = {(each.model, each.section, each.key): each.message for each in config.check(documents)}
    assert set(found) == {
        ("Bad Name", "", ""), ("lost", "fallback", "model"), ("circle", "fallback", "model"), ("typo", "kil", ""),
        ("proud", "kill", "oom_score_adj"),
    }  # fmt: skip
    assert "did you mean 'good'?" in found["lost", "fallback", "model"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
KEY_NAMES = st.sampled_from([key.name for key in keys.KEYS]) | st.text(max_size=6)
SECTIONS = st.sampled_from([*keys.BY_SECTION, "kil"])
ANY_DOCUMENT = st.dictionaries(SECTIONS, VALUES | st.dictionaries(KEY_NAMES, VALUES, max_size=4), max_size=4)


@settings(max_examples=60)
@given(ANY_DOCUMENT)
def test_whatever_a_document_holds_is_judged(document: dict[str, Any]) -> None:
    """No value brings the check to an end by itself: all that is wrong is a fault with its model and section."""
    for fault in config.check({"m": document}):
        assert fault.model == "m"
        assert fault.message


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_others_can_write_is_not_obeyed(what: str, tmp_path: Path) -> None:
    """A file names programs that root runs: one that others may change is refused, and its directory too."""
    path = declare(tmp_path, "qwen", SMALLEST.format(unit="q"))
    (path if what == "file" else path.parent).chmod(0o777)
    with pytest.raises(ConfigError, match="others could have root run what they like"):
        config.load(Host(str(tmp_path)), "qwen")


def test_something_else_than_a_text_file_is_one_clear_error(tmp_path: Path) -> None:
    """A FIFO is not waited for, and neither a large file nor one that is no UTF-8 is taken apart."""
    path = declare(tmp_path, "qwen", "")
    host = Host(str(tmp_path))
    path.write_bytes(b"[run]\n# \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8, at byte 8"):
        config.load(host, "qwen")
    path.write_bytes(b"#" * (config.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than 64 KiB"):
        config.load(host, "qwen")
    path.unlink()
    os.mkfifo(path, 0o644)
    with pytest.raises(ConfigError, match="is not a regular file"):
        config.load(host, "qwen")
